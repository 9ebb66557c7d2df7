//! Starts the processes of a measurement, waits for their answers, and leaves nothing behind however it ends.

use crate::peers::{Peer, Program, Who};
use crate::plan::Table;
use crate::{Failure, Ran, peers};
use doorbell_benches::floor::Mapping;
use doorbell_peers::order::{Answer, Order, Player};
use doorbell_peers::worker;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, id};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The directory of everything that processes share by name.
const SHARED: &str = "/dev/shm";
/// The prefix of directory names; the id of the creating process follows.
const DIR: &str = "doorbell-peers.";
/// The prefixes of the memory of MPICH and Intel MPI. They choose the rest, and leave memory behind if they are killed.
const MPI_MEMORY: [&str; 2] = ["mpich_shm_", "Intel_MPI_"];
/// How long the other processes may go on when one has failed.
const GRACE: Duration = Duration::from_secs(2);
/// How long a process may take to end after it was told to.
const END: Duration = Duration::from_secs(2);
/// Seconds after the limit at which a process ends itself if nothing else has ended it.
const LATER: u32 = 5;
/// The number of messages under way in a direction, for streams.
pub const WINDOW: usize = 8;

/// The settings with which MPICH's authors test it where there are more processes than processors: it yields after each look that
/// found nothing.
const MPICH_CROWDED: [(&str, &str); 3] = [
    ("MPIR_CVAR_POLLS_BEFORE_YIELD", "1"),
    ("MPIR_CVAR_CH4_PROGRESS_THROTTLE", "true"),
    ("MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT", "1"),
];

/// The result of a run: the answer, or why there is none.
pub type Outcome = Result<Answer, String>;

/// A signal ended the measurement.
#[derive(Clone, Copy, Debug)]
pub struct Stopped(pub usize);

/// Starts measurements one after another.
#[derive(Debug)]
pub struct Launcher {
    dir: PathBuf,
    prefix: String,
    pin: [usize; 2],
    limit: u32,
    signal: Arc<AtomicUsize>,
}

impl Launcher {
    /// Creates a launcher for processes on these two processors.
    pub fn new(pin: [usize; 2], limit: u32) -> Result<Self, Failure> {
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register_usize(number, signal.clone(), number as usize)
                .map_err(|error| Failure::environment(format!("could not set a signal handler: {error}"), ""))?;
        }
        remove_those_of_the_dead();
        let launcher = Self { dir: dir(id()), prefix: prefix(id()), pin, limit, signal };
        Ok(launcher)
    }

    /// Runs one kind of work over one peer, once.
    pub fn run(&self, peer: &Peer, table: Table, quick: bool) -> Ran {
        let outcome = self.measure(peer, table, quick).unwrap_or_else(|error| Err(format!("could not start: {error}")));
        remove(&self.dir, &self.prefix);
        match self.signal.load(Ordering::SeqCst) {
            0 => Ok(outcome),
            signal => Err(Stopped(signal)),
        }
    }

    fn measure(&self, peer: &Peer, table: Table, quick: bool) -> io::Result<Outcome> {
        fs::create_dir_all(&self.dir)?;
        let pairs = table.pairs;
        let mapping = Mapping::create(worker::shape(pairs))?;
        let player = match &peer.program {
            Program::This(Player::Library(library)) | Program::Launched { library, .. } => {
                Player::Library(fs::canonicalize(library)?)
            }
            Program::This(player) => player.clone(),
            Program::Own(_) => Player::Program,
        };
        let order = Order {
            work: table.work,
            over: table.over,
            legs: peers::legs(peer.who, table, quick),
            window: WINDOW,
            pairs,
            pin: self.pin,
            touched: table.touched,
            dir: self.dir.clone(),
            prefix: self.prefix.clone(),
            memory: (id() as i32, mapping.descriptor()),
            limit: self.limit + LATER,
            helped: peer.who.is_helped(),
            active: peer.who == Who::UcxActive,
            player,
        };
        let path = self.dir.join("order");
        fs::write(&path, serde_json::to_vec(&order)?)?;
        let mut processes = Processes::default();
        match &peer.program {
            Program::Launched { launcher, .. } => {
                processes.start(self.launched(peer.who, launcher, &order, &path)?, &self.dir, "launcher")?
            }
            program => {
                let program = match program {
                    Program::Own(path) => path.clone(),
                    _ => std::env::current_exe()?,
                };
                for node in 0..order.processes() {
                    let mut command = Command::new(&program);
                    command.arg(worker::COMMAND).arg(&path).arg(node.to_string());
                    processes.start(command, &self.dir, &node.to_string())?;
                }
            }
        }
        let ended = processes.wait(Duration::from_secs(self.limit.into()), &self.signal);
        let words = processes.words(&self.dir);
        drop(processes);
        Ok(judge(&order, ended, &words, self.limit))
    }

    fn launched(&self, who: Who, launcher: &Path, order: &Order, path: &Path) -> io::Result<Command> {
        let mut command = Command::new(launcher);
        // The workers pin themselves, like those of all other peers.
        match who {
            Who::Impi | Who::ImpiHelped => {
                command.env("I_MPI_PIN", "0").env("I_MPI_FABRICS", "shm");
                if order.crowded() {
                    command.env("I_MPI_WAIT_MODE", "1");
                }
            }
            Who::Mpich => {
                command.args(["--bind-to", "none"]);
                if order.crowded() {
                    command.envs(MPICH_CROWDED);
                }
            }
            _ => {
                command.args([
                    "--bind-to",
                    "none",
                    "--map-by",
                    ":OVERSUBSCRIBE",
                    "--mca",
                    "pml",
                    "ob1",
                    "--mca",
                    "btl",
                    "self,sm",
                ]);
                if nix::unistd::geteuid().is_root() {
                    command.arg("--allow-run-as-root");
                }
                if order.crowded() {
                    command.args(["--mca", "mpi_yield_when_idle", "1"]);
                }
            }
        }
        command.args(["-n", &order.processes().to_string()]);
        command.arg(std::env::current_exe()?).arg(worker::COMMAND).arg(path);
        command.env("OMPI_MCA_btl_sm_backing_directory", &self.dir).env("OMPI_MCA_osc_sm_backing_store", &self.dir);
        Ok(command)
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        remove(&self.dir, &self.prefix);
    }
}

fn dir(process: u32) -> PathBuf {
    Path::new(SHARED).join(format!("{DIR}{process}"))
}

/// Ends with a letter, so that the prefix of no other number begins alike.
fn prefix(process: u32) -> String {
    format!("peers-{process}p")
}

/// Removes the leftovers of one run, or of all runs of one process. A file that cannot be removed is gone or belongs to another
/// program.
fn remove(dir: &Path, prefix: &str) {
    let _ = fs::remove_dir_all(dir);
    for entry in fs::read_dir(SHARED).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.contains(prefix) || MPI_MEMORY.iter().any(|start| name.starts_with(start)) && !is_mapped(&name) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether a process has mapped a file of this name. Other users' processes cannot be read, but their files cannot be removed
/// either.
fn is_mapped(name: &str) -> bool {
    let maps = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| fs::read_to_string(entry.path().join("maps")));
    maps.flatten().any(|maps| maps.contains(name))
}

fn remove_those_of_the_dead() {
    for entry in fs::read_dir(SHARED).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let process: Option<u32> = name.to_str().and_then(|name| name.strip_prefix(DIR)).and_then(|number| number.parse().ok());
        if let Some(process) = process
            && kill(Pid::from_raw(process as i32), None) == Err(nix::errno::Errno::ESRCH)
        {
            remove(&entry.path(), &prefix(process));
        }
    }
}

/// How the processes ended.
enum Ended {
    Well,
    Failed,
    TooLate,
    Interrupted,
}

/// Running processes. Dropping this kills them.
#[derive(Default)]
struct Processes {
    children: Vec<(Child, String)>,
}

impl Processes {
    fn start(&mut self, mut command: Command, dir: &Path, name: &str) -> io::Result<()> {
        let words = File::create(dir.join(format!("words.{name}")))?;
        command
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(words.try_clone()?)
            .stderr(words)
            .env("TMPDIR", dir)
            .env("UCX_POSIX_DIR", dir);
        let child = command
            .spawn()
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", command.get_program().display())))?;
        self.children.push((child, name.into()));
        Ok(())
    }

    fn wait(&mut self, limit: Duration, signal: &AtomicUsize) -> Ended {
        let mut deadline = Instant::now() + limit;
        let mut failed = false;
        loop {
            let mut running = false;
            for (child, _) in &mut self.children {
                match child.try_wait() {
                    Ok(None) => running = true,
                    Ok(Some(status)) if status.success() => {}
                    Ok(Some(_)) | Err(_) if !failed => {
                        failed = true;
                        deadline = deadline.min(Instant::now() + GRACE);
                    }
                    _ => {}
                }
            }
            if signal.load(Ordering::SeqCst) != 0 {
                return Ended::Interrupted;
            }
            match (running, failed) {
                (false, false) => return Ended::Well,
                (false, true) => return Ended::Failed,
                (true, true) if Instant::now() > deadline => return Ended::Failed,
                (true, false) if Instant::now() > deadline => return Ended::TooLate,
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// The last output of each process.
    fn words(&self, dir: &Path) -> String {
        let last = |name: &String| {
            let said = fs::read(dir.join(format!("words.{name}"))).unwrap_or_default();
            let said = String::from_utf8_lossy(&said).into_owned();
            said.lines().map(str::trim).rfind(|line| line.chars().any(char::is_alphanumeric)).map(str::to_string)
        };
        self.children.iter().filter_map(|(_, name)| last(name)).collect::<Vec<_>>().join("; ")
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for (child, _) in &mut self.children {
            // A launcher ends the processes that it started only if it is asked to.
            if matches!(child.try_wait(), Ok(None)) {
                let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
            }
        }
        let deadline = Instant::now() + END;
        for (child, _) in &mut self.children {
            while matches!(child.try_wait(), Ok(None)) {
                if Instant::now() > deadline {
                    // The process was not reaped yet, so the number still belongs to it.
                    let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
                    let _ = child.wait();
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// Turns the answers of the processes into an outcome.
fn judge(order: &Order, ended: Ended, words: &str, limit: u32) -> Outcome {
    let answers: Vec<Option<Answer>> =
        (0..order.processes()).map(|node| serde_json::from_slice(&fs::read(order.answer(node)).ok()?).ok()).collect();
    if let Some(error) = answers.iter().flatten().find_map(|answer| answer.error.as_ref()) {
        return Err(error.clone());
    }
    match ended {
        Ended::Interrupted => return Err("interrupted".into()),
        Ended::TooLate => return Err(format!("hung: it was killed after {limit} s")),
        Ended::Failed if words.is_empty() => return Err("ended without an answer".into()),
        Ended::Failed => return Err(format!("ended without an answer; its last words: {words}")),
        Ended::Well => {}
    }
    let Some(answers) = answers.into_iter().collect::<Option<Vec<Answer>>>() else {
        return Err("ended without an answer".into());
    };
    // For several pairs, take the mean and all round trips; for collectives, the slowest. The first answer knows the distance of the processors.
    let together = order.work.is_collective();
    let mut clocks = answers.into_iter().step_by(if together { 1 } else { 2 });
    let Some(mut first) = clocks.next() else { return Err("ended without an answer".into()) };
    for other in clocks {
        for (seen, too) in first.legs.iter_mut().flatten().zip(other.legs.iter().flatten()) {
            seen.trips.merge(&too.trips);
            seen.ns = if together { seen.ns.max(too.ns) } else { seen.ns + (too.ns - seen.ns) / order.pairs as f64 };
        }
    }
    Ok(first)
}
