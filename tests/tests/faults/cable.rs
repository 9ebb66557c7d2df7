//! Long messages between two processes that share no network but a cable of 1500 bytes, or one that loses and reorders, or both.
//!
//! `DOORBELL_NETWORK_MIB` says how much goes through each; 1024 is the long form.

use doorbell::mode::Thresholds;
use doorbell::{FabricKind, Match, Node, NodeBuilder, NodeId};
use doorbell_tests::patience::{PATIENCE, eventually, until};
use doorbell_tests::process::{Process, told, told_as};
use doorbell_tests::words::Words;
use doorbell_tests::{Turn, number, pattern};
use doorbell_udp::port::relay::{Badness, Relay};
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// The shared words.
mod at {
    /// The port at which the node at home listens.
    pub const PORT: usize = 0;
    /// The other end of the cable is there.
    pub const LAID: usize = 1;
    /// Why there is no cable: one more than the number of the line that failed.
    pub const NONE: usize = 2;
    /// Nanoseconds from the first message to the last.
    pub const TIME: usize = 3;
    /// Messages that came.
    pub const CAME: usize = 4;
    pub const COUNT: usize = 5;
}

const MESSAGE: usize = 8 << 20;
const MIB: u64 = 1 << 20;
const DATA: u64 = 1;
const DONE: u64 = 2;
const READY: u64 = 3;

/// A value that the parent passed, if it passed one.
fn told_if(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn bytes() -> u64 {
    (number("DOORBELL_NETWORK_MIB", 64) * MIB).next_multiple_of(MESSAGE as u64)
}

/// Long enough for the slowest of these cases on a busy machine.
fn patience() -> Duration {
    PATIENCE + Duration::from_secs(4 * bytes() / MIB)
}

fn builder() -> NodeBuilder {
    Node::builder("cable").fabric(FabricKind::Udp).key([42; 32])
}

/// Listens at all these addresses, which commas separate.
fn listening(builder: NodeBuilder, addresses: &str) -> NodeBuilder {
    addresses.split(',').filter(|address| !address.is_empty()).fold(builder, |builder, at| builder.listen(at))
}

/// Receives from the other end, and checks every byte.
pub fn home(words: &Words) {
    let node = listening(builder().id(0), &told("LISTEN")).join().unwrap();
    words[at::PORT].store(node.address().unwrap().port().into(), SeqCst);
    let deadline = Instant::now() + patience();
    node.wait_for(2, deadline).unwrap();
    let mut buf = vec![0; MESSAGE];
    // Says that all links are open, where that matters.
    while told_if("STRIPE_LEAST").is_some()
        && node.recv_until(Match::from(NodeId(1)).tag(READY), &mut buf, deadline).unwrap().len == 0
    {}
    let (began, mut first) = (Instant::now(), None);
    for seed in 0..bytes() / MESSAGE as u64 {
        let envelope = node.recv_until(Match::from(NodeId(1)).tag(DATA), &mut buf, deadline).unwrap();
        let first = *first.get_or_insert(u64::from(envelope.sequence));
        assert_eq!((envelope.len, u64::from(envelope.sequence) - first), (MESSAGE, seed));
        pattern::check(&buf, seed);
        words[at::CAME].store(seed + 1, SeqCst);
    }
    words[at::TIME].store(began.elapsed().as_nanos() as u64, SeqCst);
    node.send_until(NodeId(1), DONE, b"", deadline).unwrap();
    node.leave().unwrap();
}

pub fn away() {
    let connect: SocketAddr = told_as("CONNECT");
    let own = told_if("OWN").unwrap_or_default();
    let builder = match told_if("STRIPE_LEAST") {
        Some(bytes) => builder().policy(Thresholds::new().stripe_least(bytes.parse().unwrap())),
        None => builder(),
    };
    let node = listening(builder.id(1), &own).connect(connect).join().unwrap();
    let deadline = Instant::now() + patience();
    if told_if("STRIPE_LEAST").is_some() {
        let all = || node.send_as(NodeId(0), READY, b"", "udp/1".parse().unwrap()).unwrap().used.link == 1;
        eventually("both links", all);
        node.send_until(NodeId(0), READY, b"all", deadline).unwrap();
    }
    let mut buf = vec![0; MESSAGE];
    for seed in 0..bytes() / MESSAGE as u64 {
        pattern::fill(&mut buf, seed);
        node.send_until(NodeId(0), DATA, &buf, deadline).unwrap();
    }
    node.recv_until(Match::from(NodeId(0)).tag(DONE), &mut [], deadline).unwrap();
    node.leave().unwrap();
}

/// A relay to where a node listens. It loses and holds back one in twenty.
fn bad_network(to: SocketAddr) -> Relay {
    let badness = Badness { loss: 0.05, reordering: 0.05, duplication: 0.01, ..Badness::NONE };
    Relay::start(None, to, [badness; 2], number("DOORBELL_SEED", 1)).unwrap()
}

fn tell_what_was_lost(relay: &Relay) {
    for (way, relayed) in ["there", "back"].into_iter().zip(relay.relayed()) {
        println!("{way}: {relayed:?}");
        assert!(relayed.lost > 0 && relayed.reordered > 0, "{relayed:?}");
    }
}

fn tell_how_fast(way: &str, words: &Words) {
    let (bytes, time) = (bytes(), Duration::from_nanos(words[at::TIME].load(SeqCst)));
    println!("{way}: {} MiB in {time:.2?}, {:.0} MB/s", bytes / MIB, bytes as f64 / 1e6 / time.as_secs_f64());
}

/// Waits for a word that another process writes.
fn word(words: &Words, at: usize, of: &[&Process]) -> u64 {
    until("a word of another process", || {
        assert!(!of.iter().any(|process| process.ended_by(Instant::now())), "it ended before it was ready");
        Some(words[at].load(SeqCst)).filter(|word| *word != 0)
    })
}

#[test]
fn a_network_that_loses_and_reorders_delivers_all_of_it_intact() {
    let _turn = Turn::take();
    let words = Words::new(at::COUNT);
    let home = Process::start("home").words(&words).tell("LISTEN", "127.0.0.1:0").go();
    let port = word(&words, at::PORT, &[&home]) as u16;
    let relay = bad_network(([127, 0, 0, 1], port).into());
    let away = Process::start("away").words(&words).tell("CONNECT", relay.front(0).to_string()).go();
    home.end_well(patience());
    away.end_well(PATIENCE);
    tell_how_fast("5 % lost, 5 % held back", &words);
    tell_what_was_lost(&relay);
}

// ---- two network namespaces, which go with the processes that are in them

const HOME: &str = "10.77.0.1";
const AWAY: &str = "10.77.0.2";
const PORT: u16 = 7000;

/// From here on this process has an empty network of its own. A user namespace makes that possible without privileges.
fn alone() -> std::io::Result<()> {
    // SAFETY: system calls, on strings that end with a zero.
    unsafe {
        let (user, group) = (libc::geteuid(), libc::getegid());
        let flags = if user == 0 { libc::CLONE_NEWNET } else { libc::CLONE_NEWNET | libc::CLONE_NEWUSER };
        if libc::unshare(flags) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        if user != 0 {
            let mut line = [0; 40];
            for (path, id) in
                [(c"/proc/self/setgroups", None), (c"/proc/self/uid_map", Some(user)), (c"/proc/self/gid_map", Some(group))]
            {
                let len = match id {
                    Some(id) => libc::snprintf(line.as_mut_ptr(), line.len(), c"0 %u 1".as_ptr(), id),
                    None => libc::snprintf(line.as_mut_ptr(), line.len(), c"deny".as_ptr()),
                };
                let file = libc::open(path.as_ptr(), libc::O_WRONLY);
                if file < 0 || libc::write(file, line.as_ptr().cast(), len as usize) != len as isize {
                    return Err(std::io::Error::last_os_error());
                }
                libc::close(file);
            }
        }
    }
    Ok(())
}

/// Runs `ip` once for each line. The number of the line that failed, from 1.
fn ip(lines: &str) -> Option<u64> {
    run("ip", lines)
}

fn run(program: &str, lines: &str) -> Option<u64> {
    for (at, line) in lines.lines().enumerate() {
        match Command::new(program).args(line.split_whitespace()).output() {
            Ok(output) if output.status.success() => {}
            failed => {
                eprintln!("`{program} {}`: {failed:?}", line.trim());
                return Some(at as u64 + 1);
            }
        }
    }
    None
}

/// Lays a cable from its own network to that of a process that it starts, and is the node at home.
pub fn near_end() {
    let words = Words::inherited();
    // SAFETY: between fork and exec, one system call: it is root where it is.
    let start = unsafe { Process::start("far end").words(&words).before(|| cvt(libc::unshare(libc::CLONE_NEWNET))) };
    let relay = (told("RELAYED") == "yes").then(|| bad_network(told_as("LISTEN")));
    let connect = format!("{HOME}:{}", relay.as_ref().map_or(PORT, |relay| relay.front(0).port()));
    let far = start.tell("CONNECT", connect).go();
    let cable = format!(
        "link add cable mtu 1500 type veth peer name cable mtu 1500 netns {}
         addr add {HOME}/24 dev cable
         link set cable up
         link set lo up",
        far.pid()
    );
    match ip(&cable) {
        Some(line) => words[at::NONE].store(line, SeqCst),
        None => {
            words[at::LAID].store(1, SeqCst);
            home(&words);
            far.end_well(PATIENCE);
            relay.iter().for_each(tell_what_was_lost);
        }
    }
}

pub fn far_end() {
    let words = Words::inherited();
    let deadline = Instant::now() + PATIENCE;
    while words[at::LAID].load(SeqCst) == 0 {
        assert!(Instant::now() < deadline, "no cable");
        std::thread::yield_now();
    }
    assert_eq!(ip(&format!("addr add {AWAY}/24 dev cable\nlink set cable up")), None);
    away();
}

/// The addresses at the two cables of one end.
fn of_two(end: u8) -> [String; 2] {
    [77, 78].map(|net| format!("10.{net}.0.{end}"))
}

/// As [`near_end`], with two cables, of which one is switched off at one end or the other when half has come.
pub fn near_end_of_two() {
    let words = Words::inherited();
    // SAFETY: as above.
    let start = unsafe { Process::start("far end of two").words(&words).before(|| cvt(libc::unshare(libc::CLONE_NEWNET))) };
    let far = start.tell("CONNECT", format!("{}:{PORT}", of_two(1)[0])).tell("OWN", told("OWN")).go();
    let mut lines = String::from("link set lo up");
    for (number, address) in of_two(1).into_iter().enumerate() {
        let pid = far.pid();
        lines += &format!(
            "\nlink add cable{number} mtu 1500 type veth peer name cable{number} mtu 1500 netns {pid}
             addr add {address}/24 dev cable{number}
             link set cable{number} up"
        );
    }
    let is_slow = told_if("STRIPE_LEAST").is_some();
    if let Some(line) = ip(&lines).or_else(|| (0..2).filter(|_| is_slow).find_map(slow)) {
        words[at::NONE].store(line, SeqCst);
        return;
    }
    words[at::LAID].store(1, SeqCst);
    if is_slow {
        home(&words);
        far.end_well(PATIENCE);
        return;
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let half = bytes() / MESSAGE as u64 / 2;
            eventually("half of it", || words[at::CAME].load(SeqCst) >= half);
            assert_eq!(ip("link set cable0 down"), None);
        });
        home(&words);
    });
    far.end_well(PATIENCE);
}

/// So slow that the cable dominates.
const SLOW: &str = "100mbit";

/// Makes a cable slow in one direction. The number of the line that failed, from 1: there may be no such queue here.
fn slow(number: usize) -> Option<u64> {
    run("tc", &format!("qdisc add dev cable{number} root tbf rate {SLOW} burst 64kb latency 20ms"))
}

pub fn far_end_of_two() {
    let words = Words::inherited();
    eventually("cables", || words[at::LAID].load(SeqCst) != 0);
    for (number, address) in of_two(2).into_iter().enumerate() {
        assert_eq!(ip(&format!("addr add {address}/24 dev cable{number}\nlink set cable{number} up")), None);
        if told_if("STRIPE_LEAST").is_some() {
            assert_eq!(slow(number), None);
        }
    }
    away();
}

fn cvt(result: i32) -> std::io::Result<()> {
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Starts two processes in networks of their own, joined by a cable, and has one send to the other.
fn over_a_cable(way: &str, relayed: &str) {
    let _turn = Turn::take();
    let words = Words::new(at::COUNT);
    // SAFETY: between fork and exec, only system calls.
    let start = unsafe { Process::start("near end").words(&words).before(alone) };
    let near = match start.tell("LISTEN", format!("{HOME}:{PORT}")).tell("RELAYED", relayed).try_go() {
        Ok(near) => near,
        Err(error) => return println!("SKIPPED: no network namespaces here: {error}"),
    };
    near.end_well(patience());
    match words[at::NONE].load(SeqCst) {
        0 => tell_how_fast(way, &words),
        line => println!("SKIPPED: no cable between network namespaces here: see line {line} above"),
    }
}

#[test]
fn two_network_namespaces_exchange_it_over_a_cable_of_1500_bytes() {
    over_a_cable("a cable of 1500 bytes", "no");
}

#[test]
fn what_goes_by_a_cable_that_is_cut_goes_on_by_another() {
    let _turn = Turn::take();
    let listen = of_two(1).map(|address| format!("{address}:{PORT}")).join(",");
    // The other end may have a socket for each cable, or one for all.
    for own in [of_two(2).map(|address| format!("{address}:0")).join(","), String::new()] {
        let words = Words::new(at::COUNT);
        // SAFETY: between fork and exec, only system calls.
        let start = unsafe { Process::start("near end of two").words(&words).before(alone) };
        let near = match start.tell("LISTEN", &listen).tell("OWN", &own).try_go() {
            Ok(near) => near,
            Err(error) => return println!("SKIPPED: no network namespaces here: {error}"),
        };
        near.end_well(patience());
        match words[at::NONE].load(SeqCst) {
            0 => tell_how_fast("two cables, one of them cut", &words),
            line => println!("SKIPPED: no cable between network namespaces here: see line {line} above"),
        }
    }
}

/// The time over two slow cables if messages of at least this length are divided. `None` if this machine has no such cables.
fn over_slow_cables(least: u64) -> Option<Duration> {
    let words = Words::new(at::COUNT);
    // SAFETY: between fork and exec, only system calls.
    let start = unsafe { Process::start("near end of two").words(&words).before(alone) };
    let [listen, own] = [(1, PORT), (2, 0)].map(|(end, port)| of_two(end).map(|address| format!("{address}:{port}")).join(","));
    let start = start.tell("LISTEN", listen).tell("OWN", own).tell("STRIPE_LEAST", least.to_string());
    match start.try_go() {
        Ok(near) => near.end_well(patience()),
        Err(error) => {
            println!("SKIPPED: no network namespaces here: {error}");
            return None;
        }
    }
    match words[at::NONE].load(SeqCst) {
        0 => Some(Duration::from_nanos(words[at::TIME].load(SeqCst))),
        line => {
            println!("SKIPPED: no cable between network namespaces here: see line {line} above");
            None
        }
    }
}

#[test]
fn what_is_divided_among_two_slow_cables_takes_less_time_than_by_one() {
    let _turn = Turn::take();
    let mut seen = Vec::new();
    // Other work of the machine may hold up any one of them.
    for _ in 0..3 {
        let (Some(whole), Some(divided)) = (over_slow_cables(u64::MAX), over_slow_cables(0)) else { return };
        println!("{} MiB at {SLOW}: by one cable {whole:.2?}, by two {divided:.2?}", bytes() / MIB);
        if divided < whole.mul_f64(0.8) {
            return;
        }
        seen.push((whole, divided));
    }
    panic!("by one cable, and by two: {seen:?}");
}

#[test]
fn a_cable_that_loses_and_reorders_delivers_all_of_it_intact() {
    over_a_cable("a cable of 1500 bytes, 5 % lost, 5 % held back", "yes");
}
