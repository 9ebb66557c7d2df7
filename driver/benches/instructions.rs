//! How many instructions the short paths take, as callgrind counts them: the same on a noisy machine and on a quiet one.
//!
//! ```sh
//! cargo bench -p doorbell --bench instructions               # compares with driver/benches/instructions.txt
//! cargo bench -p doorbell --bench instructions -- --record   # writes it anew
//! ```
//!
//! Needs valgrind. Exit codes: 0 as recorded, or better; 1 more than recorded; 2 could not be counted.

use doorbell::dma::{Descriptor, InjectionFifo};
use doorbell::mode::{Decision, Policy, Question, Thresholds};
use doorbell::testing::Domain;
use doorbell::{Match, Node, Peer, Progress};
use std::fmt::Write as _;
use std::hint::black_box;
use std::path::Path;
use std::process::{Command, ExitCode};

/// How much more than the recorded number is accepted, in per cent.
const TOLERANCE: f64 = 3.0;
/// The exchanges that are counted. Only the function itself counts.
const COUNT: usize = 4096;
/// The messages sent before they are received, so that neither side has to wait for the other.
const BURST: usize = 16;
/// The messages of a series.
const SERIES: usize = 64;
const BYTES: usize = 8;
/// The length of a message that does not fit into a cell.
const LINE: usize = 64;
/// Tells a process which path to run.
const VARIABLE: &str = "DOORBELL_COUNTED_PATH";

/// The counted functions by their names, and what they do.
const PATHS: [(&str, &str); 15] = [
    ("send_message", "Peer::send of 8 bytes"),
    ("receive_message", "Peer::recv of 8 bytes"),
    ("send_line", "Peer::send of 64 bytes"),
    ("receive_line", "Peer::recv of 64 bytes"),
    ("send_series", "one of 64 messages of 8 bytes that Peer::send_many sends"),
    ("send_chunks", "one of 64 messages of 8 bytes that Peer::send_chunks sends"),
    ("receive_series", "one of 64 messages of 8 bytes that Node::recv_many reads"),
    ("send_loan", "Node::loan_bytes of 64 bytes, LoanMut::send"),
    ("take_loan", "Peer::take of a loan, dropping it"),
    ("start_and_finish_send", "Peer::start_send of 8 bytes, Operation::wait"),
    ("start_and_finish_receive", "Node::start_recv of 8 bytes that are there, Operation::wait"),
    ("put", "Peer::put of 8 bytes"),
    ("inject", "InjectionFifo::inject of a put"),
    ("send_8_by_policy", "Peer::send of 8 bytes, for which a policy decides"),
    ("send_8_by_thresholds", "the same with Thresholds, which settles it"),
];

/// A policy that decides as the driver would without it.
#[derive(Debug)]
struct AsAsked;

impl Policy for AsAsked {
    fn choose(&self, question: &mut Question<'_>) -> Decision {
        question.honoured().unwrap()
    }
}

#[inline(never)]
fn send_message(to: &Peer, message: &[u8; BYTES]) {
    to.send(7, message).unwrap();
}

#[inline(never)]
fn receive_message(from: &Peer, message: &mut [u8; BYTES]) {
    from.recv(Match::any().tag(7), message).unwrap();
}

#[inline(never)]
fn send_line(to: &Peer, message: &[u8; LINE]) {
    to.send(7, message).unwrap();
}

#[inline(never)]
fn receive_line(from: &Peer, message: &mut [u8; LINE]) {
    from.recv(Match::any().tag(7), message).unwrap();
}

#[inline(never)]
fn send_series(to: &Peer, messages: &[(u64, &[u8]); SERIES]) {
    to.send_many(messages).unwrap();
}

#[inline(never)]
fn send_chunks(to: &Peer, bytes: &[u8; SERIES * BYTES]) {
    to.send_chunks(7, BYTES, bytes).unwrap();
}

#[inline(never)]
fn receive_series(node: &Node) {
    let mut count = 0;
    while count < SERIES {
        count += node.recv_many(Match::any().tag(7), SERIES, |_, payload| _ = black_box(payload.as_ptr())).unwrap();
    }
}

#[inline(never)]
fn send_loan(node: &Node, to: &Peer) {
    let mut loan = node.loan_bytes(64).unwrap();
    loan[0] = 1;
    loan.send(to, 8).unwrap();
}

#[inline(never)]
fn take_loan(from: &Peer) {
    black_box(from.take::<[u8]>(Match::any().tag(8)).unwrap());
}

#[inline(never)]
fn start_and_finish_send(to: &Peer, message: [u8; BYTES]) {
    to.start_send(7, message).unwrap().wait().result.unwrap();
}

#[inline(never)]
fn start_and_finish_receive(node: &Node, message: [u8; BYTES]) {
    node.start_recv(Match::any().tag(7), message).unwrap().wait().result.unwrap();
}

#[inline(never)]
fn put(to: &Peer, word: &[u64; 1], at: doorbell::Key<u64, doorbell::ReadWrite>) {
    to.put(word, at).unwrap();
}

#[inline(never)]
fn inject(fifo: &InjectionFifo, put: &Descriptor) {
    assert!(fifo.inject(put).unwrap());
}

#[inline(never)]
fn send_8_by_thresholds(to: &Peer, message: &[u8; BYTES]) {
    to.send(7, message).unwrap();
}

#[inline(never)]
fn send_8_by_policy(to: &Peer, message: &[u8; BYTES]) {
    to.send(7, message).unwrap();
}

/// Runs one path.
fn run(path: &str) {
    let domain = Domain::new();
    let builder = || domain.builder().progress(Progress::Inline);
    let a = match path {
        "send_8_by_policy" => builder().policy(AsAsked),
        "send_8_by_thresholds" => builder().policy(Thresholds::new()),
        _ => builder(),
    };
    let (a, b) = (a.join().unwrap(), builder().join().unwrap());
    let (to, from) = (a.peer(b.id()).unwrap(), b.peer(a.id()).unwrap());
    let region = b.region::<u64>(1).unwrap();
    let key = region.key();
    // An open FIFO costs each turn of the engine a look, and a region each search for one.
    let injects = (path == "inject").then(|| {
        let (fifo, source) = (InjectionFifo::builder(&a).open().unwrap(), a.region::<u64>(1).unwrap());
        (fifo, Descriptor::put(source.key(), key).unwrap(), source)
    });
    let (mut message, mut line) = ([1; BYTES], [1; LINE]);
    let series = [(7, &[1; BYTES][..]); SERIES];
    // The first calls find the lane and make this thread the engine's usual one. They do not count.
    for _ in 0..2 * BURST * BURST {
        to.send(7, &message).unwrap();
        b.recv(Match::any(), &mut message).unwrap();
    }
    if path.ends_with("_series") || path == "send_chunks" {
        let chunks = [1; SERIES * BYTES];
        for _ in 0..COUNT / SERIES {
            if path == "send_chunks" {
                send_chunks(&to, &chunks)
            } else {
                send_series(&to, &series)
            }
            receive_series(&b);
        }
        return;
    }
    for _ in 0..COUNT / BURST {
        for _ in 0..BURST {
            match path {
                "send_loan" | "take_loan" => send_loan(&a, &to),
                "send_line" | "receive_line" => send_line(&to, &line),
                "start_and_finish_send" => start_and_finish_send(&to, message),
                "put" => put(&to, &[1], key),
                "inject" => injects.iter().for_each(|(fifo, put, _)| inject(fifo, put)),
                "send_8_by_policy" => send_8_by_policy(&to, &message),
                "send_8_by_thresholds" => send_8_by_thresholds(&to, &message),
                _ => send_message(&to, &message),
            }
        }
        for _ in 0..BURST {
            match path {
                "send_loan" | "take_loan" => take_loan(&from),
                "send_line" | "receive_line" => receive_line(&from, &mut line),
                "start_and_finish_receive" => start_and_finish_receive(&b, message),
                "put" => {}
                "inject" => drop(a.progress().unwrap()),
                _ => receive_message(&from, &mut message),
            }
        }
    }
}

/// Instructions of one call of the function `path`.
fn count(path: &str) -> Result<f64, String> {
    let program = std::env::current_exe().map_err(|error| format!("can't find the path of this program: {error}"))?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", &format!("--toggle-collect=instructions::{path}")])
        .arg(program)
        .env(VARIABLE, path)
        .output()
        .map_err(|error| format!("valgrind can't be started: {error}\n  hint: install it (Debian: valgrind)"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let collected =
        said.lines().find_map(|line| line.split_once("Collected :")).and_then(|(_, count)| count.trim().parse::<u64>().ok());
    match collected {
        Some(instructions) if output.status.success() && instructions > COUNT as u64 => Ok(instructions as f64 / COUNT as f64),
        _ => Err(format!("valgrind counted no instructions of {path}; its output:\n{said}")),
    }
}

/// The compiler that made this program: other compilers give other numbers.
fn compiler() -> String {
    let output = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("--version").output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

fn compare(record: bool) -> Result<bool, String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/instructions.txt");
    let recorded = std::fs::read_to_string(&file).unwrap_or_default();
    let compiler = compiler();
    let same_compiler = recorded.contains(&format!("# {compiler}\n"));
    let before =
        |path: &str| recorded.lines().find_map(|line| line.strip_prefix(path)?.split_whitespace().next()?.parse::<f64>().ok());
    let mut found = format!(
        "# Instructions of one call or message, counted by callgrind. Made by `cargo bench -p doorbell --bench instructions -- --record`.\n# {compiler}\n"
    );
    let mut good = true;
    for (path, what) in PATHS {
        let now = count(path)?;
        let _ = writeln!(found, "{path:<24} {now:7.1}  {what}");
        let Some(before) = before(path) else {
            println!("{path:<24} {now:7.1}             {what}");
            good &= record;
            continue;
        };
        let more = (now / before - 1.0) * 100.0;
        println!("{path:<24} {now:7.1}  {more:+6.1} %   {what}");
        if more > TOLERANCE && !record {
            good = false;
        } else if more < -TOLERANCE && !record {
            println!("{:<24} better than recorded: record it", "");
        }
    }
    if record {
        std::fs::write(&file, found).map_err(|error| format!("could not write {}: {error}", file.display()))?;
    } else if !same_compiler {
        println!("recorded with another compiler than {compiler}: a number above the recorded one is only reported");
        return Ok(true);
    }
    Ok(good)
}

fn main() -> ExitCode {
    if let Ok(path) = std::env::var(VARIABLE) {
        run(&path);
        return ExitCode::SUCCESS;
    }
    match compare(std::env::args().any(|word| word == "--record")) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!(
                "error: more instructions than recorded, by more than {TOLERANCE} %\n  hint: find out why; if it is worth it, record the new numbers"
            );
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}
