//! `doorbell info`: the properties of this machine that matter to Doorbell.

use crate::environment::directory;
use crate::exit::Failure;
use crate::processes;
use crate::text::{FormArgs, Style, bytes, counted};
use doorbell::io::IoEngine;
use doorbell::{LaneGeometry, PortKind};
use doorbell_fabric::sync::Barriers;
use doorbell_shm::layout::{FIRST_BYTES, INBOX_BYTES, LAYOUT_HASH, LAYOUT_VERSION, board_bytes};
use doorbell_udp::port::Uring;
use nix::sys::statvfs::statvfs;
use nix::sys::utsname::uname;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;

/// Show the properties of this machine that matter to Doorbell
///
/// Shows what is missing or slow on this machine, and the defaults of programs.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../help/info.txt"))]
pub struct InfoArgs {
    #[command(flatten)]
    form: FormArgs,
}

/// The default number of nodes of a domain, as in [`doorbell::NodeBuilder::max_nodes`].
const MAX_NODES: usize = 16;
/// The number of injection FIFOs of a node by default.
const FIFOS: usize = 32;

/// How a node works without io_uring.
const WITHOUT_PORT: &str = "a node waits for the network by ppoll and a second thread";
const WITHOUT_FILES: &str = "an I/O node reads and writes files by plain calls, so a slow medium holds up all its clients";

/// A fact about this machine.
pub struct Fact {
    pub name: &'static str,
    /// The text for people.
    pub text: String,
    /// The fields for programs.
    pub fields: Value,
    /// Whether it makes Doorbell slower, or some of it impossible.
    pub is_bad: bool,
}

impl Fact {
    fn new(name: &'static str, text: impl Into<String>, fields: Value) -> Self {
        Self { name, text: text.into(), fields, is_bad: false }
    }

    fn bad_if(self, is_bad: bool) -> Self {
        Self { is_bad, ..self }
    }
}

/// All facts.
pub fn facts() -> [Fact; 8] {
    [kernel(), processors(), memory(), barriers(), futex(), io_uring(), layout(), defaults()]
}

/// Collects the facts and prints them.
pub fn run(args: &InfoArgs) -> Result<(), Failure> {
    let facts = facts();
    let text = || {
        let style = Style::of(&std::io::stdout());
        let line = |fact: &Fact| format!("{}  {}\n", style.bold(format_args!("{:<11}", fact.name)), fact.text);
        facts.iter().map(line).collect()
    };
    let fields = facts.iter().filter_map(|fact| fact.fields.as_object()).flatten();
    args.form.print(text, [fields.collect::<BTreeMap<_, _>>()]);
    Ok(())
}

fn kernel() -> Fact {
    let found = uname();
    let word = |word: fn(&nix::sys::utsname::UtsName) -> &std::ffi::OsStr| {
        found.as_ref().map_or("unknown".into(), |found| word(found).to_string_lossy().into_owned())
    };
    let (system, release, machine) =
        (word(|found| found.sysname()), word(|found| found.release()), word(|found| found.machine()));
    let note = if machine == "x86_64" && system == "Linux" { "" } else { "; Doorbell was tested on x86-64 Linux only" };
    let fields = json!({ "kernel": release, "machine": machine });
    Fact::new("kernel", format!("{system} {release} on {machine}{note}"), fields).bad_if(!note.is_empty())
}

fn processors() -> Fact {
    let list = processes::processors().unwrap_or_default();
    let note = if list.len() < 2 { "; messages between processes are fastest with two" } else { "" };
    let text = format!("{} for this process: {}{note}", counted(list.len(), "processor"), processes::joined(&list));
    Fact::new("processors", text, json!({ "processors": list })).bad_if(!note.is_empty())
}

fn memory() -> Fact {
    // A node that exchanges small messages with all others.
    let node = (INBOX_BYTES + board_bytes(FIFOS) + (MAX_NODES - 1) * FIRST_BYTES) as u64;
    let directory = directory();
    let shown = directory.display();
    let Ok(found) = statvfs(directory) else {
        let text = format!("{shown} cannot be asked for its size: mount a tmpfs there");
        return Fact::new("memory", text, json!({ "shm_bytes": null, "shm_free_bytes": null })).bad_if(true);
    };
    let all = found.blocks() * found.fragment_size();
    let free = found.blocks_available() * found.fragment_size();
    let (size, room) = match all {
        0 => (format!("{shown} has no limit"), String::new()),
        _ => {
            let size = format!("{shown} has {}, {} free", bytes(all), bytes(free));
            (size, format!(": room for {} of default size", counted((free / node) as usize, "node")))
        }
    };
    let note = if all > 0 && free < 2 * node { "; enlarge it (containers: --shm-size), or see `doorbell clean`" } else { "" };
    let fields = json!({ "shm_bytes": all, "shm_free_bytes": free });
    Fact::new("memory", format!("{size}{room}{note}"), fields).bad_if(!note.is_empty())
}

fn barriers() -> Fact {
    let found = Barriers::join();
    let text = match (found.process, found.machine) {
        (true, true) => "works: producers do not fence, and a thread that parks pays for both",
        (false, true) => "works between processes only: threads that share a node lock each time",
        (_, false) => "does not work: producers fence after every message, which makes them several times slower",
    };
    let fields = json!({
        "membarrier_process": found.process, "membarrier_machine": found.machine, "producers_fence": !found.machine,
    });
    Fact::new("membarrier", text, fields).bad_if(!(found.process && found.machine))
}

fn futex() -> Fact {
    let word = AtomicU32::new(0);
    // SAFETY: the word outlives the call, which wakes no thread and uses only the address.
    let works = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) == 0 };
    let text = if works { "works: threads can park" } else { "is refused: threads cannot park; use --wait spin or yield" };
    Fact::new("futex", text, json!({ "futex": works })).bad_if(!works)
}

fn io_uring() -> Fact {
    // A node on a network and an I/O node need different features of io_uring, and a kernel may have only one of them.
    let (port, files) = (Uring::check(), IoEngine::Uring.check());
    let kind = PortKind::Auto.here();
    let auto = format!("--port auto means {kind}");
    let text = match (&port, &files) {
        (Ok(()), Ok(())) => {
            format!(
                "works: a node waits by it for the network and its doorbell, and an I/O node reads and writes files by it; {auto}"
            )
        }
        (Err(why), Ok(())) => format!("works for files only: {why}; {WITHOUT_PORT}; {auto}"),
        (Ok(()), Err(why)) => format!("works for the network only: {why}; {WITHOUT_FILES}; {auto}"),
        (Err(why), Err(_)) => format!("cannot be had: {why}; {WITHOUT_PORT}, and {WITHOUT_FILES}; {auto}"),
    };
    let refused = port.as_ref().map_err(ToString::to_string).err().or(files.as_ref().map_err(ToString::to_string).err());
    let is_refused = refused.is_some();
    let fields = json!({
        "io_uring_port": port.is_ok(), "port_auto": kind.to_string(), "io_uring_files": files.is_ok(), "io_uring_refused": refused,
    });
    Fact::new("io_uring", text, fields).bad_if(is_refused)
}

fn layout() -> Fact {
    let hash = format!("{LAYOUT_HASH:016x}");
    let text = format!("version {LAYOUT_VERSION}, hash {hash}: nodes of one domain must agree on it");
    Fact::new("layout", text, json!({ "layout_version": LAYOUT_VERSION, "layout_hash": hash }))
}

fn defaults() -> Fact {
    let lanes = LaneGeometry::default();
    let (first, full) = (FIRST_BYTES as u64, lanes.pair_bytes() as u64);
    let text = format!(
        "{MAX_NODES} nodes a domain; a board of {} for each; {} for each two that talk, which grow to {}: {} messages and {}",
        bytes(board_bytes(FIFOS) as u64),
        bytes(first),
        bytes(full),
        lanes.cells[1],
        bytes(lanes.data_bytes[1].into()),
    );
    Fact::new(
        "defaults",
        text,
        json!({
            "max_nodes": MAX_NODES, "pair_bytes": first, "pair_bytes_full": full, "board_bytes": board_bytes(FIFOS), "lane_messages": lanes.cells[1],
            "lane_bytes": lanes.data_bytes[1],
        }),
    )
}
