//! The programs as they are: a server and its clients as processes, over either transport.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Longer than anything here takes on a busy machine; whatever is not done then hangs.
const PATIENCE: Duration = Duration::from_secs(90);

/// Where one test has its server.
struct Place {
    program: &'static str,
    over: &'static str,
    name: String,
    /// Of each process.
    threads: u32,
}

impl Place {
    fn new(program: &'static str, over: &'static str, test: &str) -> Self {
        let which = Path::new(program).file_name().unwrap().to_str().unwrap();
        let name = format!("plug-in-{which}-{over}-{test}-{}", std::process::id());
        Self { program, over, name, threads: 1 }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.program);
        command.args(words).args(["--over", self.over, "--name", &self.name, "--threads", &self.threads.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A server that is ready.
    fn serve(&self) -> Process {
        let server = Process::start(self.command(&["serve", "--attended"]));
        assert_eq!(server.line(), "ready");
        server
    }

    /// A call that is answered.
    fn call(&self, words: &str) {
        let words: Vec<_> = ["call"].into_iter().chain(words.split(' ')).collect();
        let output = Process::start(self.command(&words)).ends();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// A call that has had its first answer, and will not end.
    fn long_call(&self, words: &str) -> Process {
        let words: Vec<_> = ["call"].into_iter().chain(words.split(' ')).chain(["--count", "4000000000"]).collect();
        let client = Process::start(self.command(&words));
        assert!(client.line().starts_with("the first answer"), "{words:?}");
        client
    }

    /// Nothing of the domain is in the system any more.
    fn is_clean(&self) {
        let files = std::fs::read_dir("/dev/shm").unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        let left: Vec<_> = files.filter(|file| file.contains(&self.name)).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

impl Drop for Place {
    /// Removes what a server that was killed leaves, and a test that fails.
    fn drop(&mut self) {
        for place in [Path::new("/dev/shm"), &std::env::temp_dir()] {
            for file in std::fs::read_dir(place).into_iter().flatten().flatten() {
                if file.file_name().to_string_lossy().contains(&self.name) {
                    let _ = std::fs::remove_file(file.path());
                }
            }
        }
    }
}

/// Killed when dropped.
struct Process {
    child: Option<Child>,
    lines: Receiver<String>,
}

impl Process {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let (tell, lines) = channel();
        std::thread::spawn(move || said.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Self { child: Some(child), lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(PATIENCE).expect("says something in time")
    }

    fn signal(&self, signal: nix::sys::signal::Signal) {
        let id = self.child.as_ref().unwrap().id();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(id.try_into().unwrap()), signal).unwrap();
    }

    /// Its standard input ends, and then it.
    fn ends(mut self) -> Output {
        let mut child = self.child.take().unwrap();
        let id = child.id();
        drop(child.stdin.take());
        let (tell, output) = channel();
        std::thread::spawn(move || tell.send(child.wait_with_output()));
        output.recv_timeout(PATIENCE).map(Result::unwrap).unwrap_or_else(|_| {
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(id as i32), nix::sys::signal::SIGKILL).unwrap();
            panic!("the process hangs")
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn calls(place: &Place, kinds: &[&str]) {
    let server = place.serve();
    place.call("unary --count 50");
    place.call("unary --count 3 --size 4MiB");
    for kind in kinds {
        place.call(&format!("{kind} --count 100"));
        place.call(&format!("{kind} --count 40 --size 300KiB"));
    }
    assert!(server.ends().status.success());
    place.is_clean();
}

/// Several clients, one of which is killed.
fn clients(place: &Place, kinds: &[&str]) {
    let server = place.serve();
    let kind = kinds[0];
    let [others, killed] = [0, 1].map(|_| place.long_call(&format!("{kind} --size 100KiB")));
    drop(killed);
    place.call("unary --count 50 --size 5000");
    drop(others);
    place.call(&format!("{kind} --count 10 --size 1MiB"));
    assert!(server.ends().status.success());
    place.is_clean();
}

/// The server is killed, at work or while it stands still.
fn killed(place: &Place, kinds: &[&str]) {
    for words in ["unary".into(), "unary --size 1MiB".into(), format!("{} --size 100KiB", kinds[0])] {
        for stops in [false, true] {
            let server = place.serve();
            let client = place.long_call(&words);
            if stops {
                server.signal(nix::sys::signal::SIGSTOP);
            }
            drop(server);
            let output = client.ends();
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{words}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
            place.is_clean();
        }
    }
}

fn no_server(place: &Place) {
    let output = Process::start(place.command(&["call", "unary"])).ends();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("start"), "{}", String::from_utf8_lossy(&output.stderr));
    place.is_clean();
}

macro_rules! programs {
    ($($name:ident: $program:literal, $kinds:expr;)*) => {$(
        mod $name {
            use super::*;

            const PROGRAM: &str = env!(concat!("CARGO_BIN_EXE_", $program));

            programs!(@over unix, $kinds);
            programs!(@over doorbell, $kinds);

            #[test]
            fn metrics() {
                let mut command = Command::new(PROGRAM);
                command.args(["bench", "--count", "50", "--rounds", "3", "--size", "1KiB", "--format", "json"]);
                let output = Process::start({
                    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
                    command
                });
                let text: String = output.lines.iter().collect();
                assert!(output.ends().status.success());
                let rows: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
                assert_eq!(rows.iter().map(|row| row["over"].as_str().unwrap()).collect::<Vec<_>>(), ["unix", "doorbell"]);
                for row in rows {
                    assert_eq!((row["program"].as_str(), row["calls"].as_u64()), (Some($program), Some(50)));
                    for metric in ["p50_ns", "p99_ns", "client_cpu_ns", "server_cpu_ns"] {
                        assert!(row[metric].as_u64() > Some(0), "{row}");
                    }
                }
            }
        }
    )*};
    (@over $over:ident, $kinds:expr) => {
        mod $over {
            use super::*;

            fn place(test: &str) -> Place {
                Place::new(PROGRAM, stringify!($over), test)
            }

            #[test]
            fn calls() {
                super::super::calls(&place("calls"), $kinds);
            }

            #[test]
            fn calls_with_threads() {
                let mut place = place("threads");
                place.threads = 3;
                super::super::calls(&place, $kinds);
            }

            #[test]
            fn clients() {
                super::super::clients(&place("clients"), $kinds);
            }

            #[test]
            fn killed() {
                super::super::killed(&place("killed"), $kinds);
            }

            #[test]
            fn no_server() {
                super::super::no_server(&place("none"));
            }
        }
    };
}

programs! {
    tonic: "rpc-tonic", &["stream", "chat", "together"];
    hyper: "http-hyper", &["stream", "chat"];
    tarpc: "rpc-tarpc", &["together"];
}
