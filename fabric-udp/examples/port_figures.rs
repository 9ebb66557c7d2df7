//! What a port costs beside bare sockets: two pinned processes on loopback. `cargo run --release -p doorbell-udp --example port_figures`
//!
//! `hot`, `parked` or `stream` behind `--` measure that alone. Rows are `what bytes value unit`. The bare sockets are those of the floor in
//! `doorbell-benches`.

use doorbell_benches::clock::{Clock, ticks};
use doorbell_benches::floor::{Patience, UdpEnd, Way};
use doorbell_udp::Run;
use doorbell_udp::port::{Kind, Options, Park, Port, Room, Sent, open};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::{Duration, Instant};

const ROUNDS: usize = 20_000;
/// Times that floor and port are measured one after the other, as a machine is faster now and slower then.
const PAIRS: usize = 15;
/// The ways in which datagrams move.
const MOVES: [&str; 2] = ["calls", "uring"];
const PARKED_ROUNDS: usize = 4_000;
const STREAM: Duration = Duration::from_millis(700);
/// Below every datagram that is part of a measurement.
const END: &[u8] = &[0xee];

fn main() {
    let words: Vec<String> = std::env::args().collect();
    if words.get(1).is_some_and(|word| word == "answer") {
        return answer(&words[2..]);
    }
    let wanted = |what: &str| words.len() == 1 || words.iter().any(|word| word == what);
    pin(0);
    let clock = Clock::calibrate();
    for bytes in [8, 64, 1400].into_iter().filter(|_| wanted("hot")) {
        let mut ratios = MOVES.map(|_| Vec::new());
        for _ in 0..PAIRS {
            let floor = floor_latency(clock, bytes);
            for (kind, ratios) in MOVES.into_iter().zip(&mut ratios) {
                ratios.push(latency(clock, kind, "hot", bytes) / floor);
            }
        }
        for (kind, mut ratios) in MOVES.into_iter().zip(ratios) {
            ratios.sort_by(f64::total_cmp);
            row(&format!("rtt hot {kind}: median"), bytes, ratios[PAIRS / 2], "of the floor");
        }
    }
    for round in 0..3 {
        println!("# round {round}");
        for kind in ["plain", "calls", "uring"].into_iter().filter(|_| wanted("parked")) {
            latency(clock, kind, "parked", 8);
        }
        for (bytes, way, many) in
            [(1400, Way::CutAndGathered, 46), (60_000, Way::CutAndGathered, 1), (60_000, Way::Single, 1), (64, Way::Single, 1)]
                .into_iter()
                .filter(|_| wanted("stream"))
        {
            floor_stream(bytes, way);
            MOVES.into_iter().for_each(|kind| stream(bytes, many, kind));
        }
    }
}

fn pin(processor: usize) {
    // SAFETY: a local set of processors, all zero at first.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &set);
    }
}

fn row(what: &str, bytes: usize, value: f64, unit: &str) {
    println!("{what}\t{bytes}\t{value:.4}\t{unit}");
}

fn patience() -> Patience {
    Patience::new(Arc::new(AtomicBool::new(false)), false)
}

fn quantile(mut samples: Vec<u64>, clock: Clock) -> f64 {
    samples.drain(..samples.len() / 10);
    samples.sort_unstable();
    clock.ns(samples[samples.len() / 2] as f64)
}

fn port(kind: &str) -> Box<dyn Port> {
    let kind = kind.parse::<Kind>().unwrap();
    open(&Options { kind, receive_buffer: 64 << 20, send_buffer: 64 << 20, ..Options::new("127.0.0.1:0".parse().unwrap()) })
        .unwrap()
}

/// Starts the other process, which says its address.
fn other(words: &[&str]) -> (Child, BufReader<std::process::ChildStdout>, SocketAddr) {
    let mut child =
        Command::new(std::env::current_exe().unwrap()).arg("answer").args(words).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    (child, said, line.trim().parse().unwrap())
}

fn await_one(port: &mut dyn Port, room: &mut Room, gear: &str, bell: &AtomicU32) -> Option<(SocketAddr, bool)> {
    loop {
        let mut found = None;
        if gear == "parked" {
            port.park(Park { bell, expected: 0, timeout: Duration::from_secs(5), writable: false }).unwrap();
        }
        port.direct().receive(room, 16, &mut |run: Run<'_>| found = Some((run.peer, *run.bytes == *END))).unwrap();
        if found.is_some() {
            return found;
        }
    }
}

fn latency(clock: Clock, kind: &str, gear: &str, bytes: usize) -> f64 {
    let rounds = if gear == "parked" { PARKED_ROUNDS } else { ROUNDS };
    let (mut child, _said, peer) = other(&["latency", kind, gear]);
    let mut port = port(kind);
    let bell = AtomicU32::new(0);
    let (mut message, mut room) = (vec![1; bytes], Room::default());
    let mut samples = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = ticks();
        assert_eq!(port.direct().send(&Run { peer, bytes: &mut message, segment: bytes }), Sent::Sent);
        await_one(&mut *port, &mut room, gear, &bell);
        samples.push(ticks() - start);
    }
    assert_eq!(port.direct().send(&Run { peer, bytes: &mut END.to_vec(), segment: 1 }), Sent::Sent);
    child.wait().unwrap();
    let median = quantile(samples, clock);
    row(&format!("rtt {gear} {kind}"), bytes, median, "ns");
    median
}

fn stream(bytes: usize, many: usize, kind: &str) {
    let (mut child, mut said, peer) = other(&["stream", kind, "hot"]);
    let port = port(kind);
    let mut messages = vec![vec![1; bytes * many]; if many == 1 && bytes < 60_000 { 16 } else { 1 }];
    let end = Instant::now() + STREAM;
    let runs: Vec<_> = messages.iter_mut().map(|message| Run { peer, bytes: message, segment: bytes }).collect();
    while Instant::now() < end {
        for run in &runs {
            let _ = std::hint::black_box(port.direct().send(run));
        }
    }
    let sent = port.direct().statistics().sent;
    for _ in 0..50 {
        let _ = port.direct().send(&Run { peer, bytes: &mut END.to_vec(), segment: 1 });
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    child.wait().unwrap();
    let figures: Vec<f64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let what = format!("stream hot {kind}");
    row(&what, bytes, figures[0] / figures[1], "GB/s");
    row(&what, bytes, figures[0] / bytes as f64 / figures[1] * 1e3, "M/s");
    row(&what, bytes, 100.0 * (1.0 - figures[0] / sent.bytes as f64), "% lost");
    row(&what, bytes, figures[2], "overflowed");
}

fn answer(words: &[String]) {
    let [what, kind, gear] = words else { panic!("what, kind and gear") };
    pin(1);
    let mut port = port(kind);
    println!("{}", port.direct().local());
    std::io::stdout().flush().unwrap();
    let (bell, mut room) = (AtomicU32::new(0), Room::default());
    if what == "latency" {
        let mut message = vec![1; 2000];
        while let Some((peer, false)) = await_one(&mut *port, &mut room, gear, &bell) {
            let bytes = port.direct().statistics().received.bytes;
            let count = port.direct().statistics().received.datagrams;
            let len = (bytes / count) as usize;
            let _ = port.direct().send(&Run { peer, bytes: &mut message[..len], segment: len });
        }
        return;
    }
    let (mut bytes, mut first, mut last, mut over) = (0, None, Instant::now(), false);
    while !over {
        let got = port
            .direct()
            .receive(&mut room, 16, &mut |run: Run<'_>| {
                over |= *run.bytes == *END;
                bytes += if over { 0 } else { run.bytes.len() };
            })
            .unwrap();
        if got > 0 && !over {
            last = Instant::now();
            first.get_or_insert(last);
        }
    }
    println!("{bytes} {} {}", (last - first.unwrap()).as_nanos(), port.direct().statistics().overflowed);
}

/// Both ends in this process tree: a thread stands in for the second process, as the kernel makes no difference.
fn floor_latency(clock: Clock, bytes: usize) -> f64 {
    let [ping, pong] = UdpEnd::pair(4 << 20).unwrap();
    let samples = std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            pong.pong(&mut vec![0; bytes], ROUNDS, &patience()).unwrap();
        });
        ping.ping(&mut vec![1; bytes], ROUNDS, &patience()).unwrap()
    });
    let median = quantile(samples, clock);
    row("rtt floor", bytes, median, "ns");
    median
}

fn floor_stream(bytes: usize, way: Way) {
    let [from, to] = UdpEnd::pair(64 << 20).unwrap();
    let ended = AtomicBool::new(false);
    let arrived = std::thread::scope(|scope| {
        let drain = scope.spawn(|| {
            pin(1);
            to.drain(way, &patience(), || ended.load(std::sync::atomic::Ordering::SeqCst)).unwrap()
        });
        std::thread::sleep(Duration::from_millis(20));
        from.pour(bytes, way, STREAM, &patience()).unwrap();
        ended.store(true, std::sync::atomic::Ordering::SeqCst);
        drain.join().unwrap()
    });
    row(&format!("stream floor {way:?}"), bytes, arrived.rate(), "GB/s");
    row(&format!("stream floor {way:?}"), bytes, arrived.rate() / bytes as f64 * 1e3, "M/s");
}
