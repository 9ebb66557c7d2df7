//! No system call on the path of a message: both processes forbid themselves all system calls, and go on talking.
//!
//! After set-up each process installs a filter that kills it at any system call but `exit_group`, for all its threads, and
//! then exchanges millions of messages, spinning. Shared words hold its progress.

use doorbell::{Match, Node, NodeId, Progress, Wait};
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::soon;
use doorbell_tests::process::{Process, told, told_as};
use doorbell_tests::words::Words;
use doorbell_tests::{Turn, number, processors};
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// From here on this process is killed at any system call but the one that ends it.
fn forbid_system_calls() {
    let allow_exit = [
        // Load the number of the call; is it exit_group? Allow it. Else kill the process.
        libc::sock_filter { code: (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16, jt: 0, jf: 0, k: 0 },
        libc::sock_filter {
            code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            jt: 0,
            jf: 1,
            k: libc::SYS_exit_group as u32,
        },
        libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
        libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: libc::SECCOMP_RET_KILL_PROCESS },
    ];
    let program = libc::sock_fprog { len: allow_exit.len() as u16, filter: allow_exit.as_ptr().cast_mut() };
    // SAFETY: the program lives through the call; the kernel copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let (mode, all_threads) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_TSYNC);
        assert_eq!(libc::syscall(libc::SYS_seccomp, mode, all_threads, &program), 0, "the filter was refused");
    }
}

pub fn talk(me: u16) {
    let words = Words::inherited();
    let rounds: u64 = told_as("ROUNDS");
    let wait: Wait = told_as("WAIT");
    let pause = Duration::from_millis(told_as("PAUSE"));
    let node = Node::builder(told("DOMAIN")).id(me).progress(Progress::Inline).wait(wait).join().unwrap();
    node.wait_for(2, soon()).unwrap();
    let peer = node.peer(NodeId(1 - me)).unwrap();
    let mut buf = [0; 8];
    // The first ones find the lanes and bias the batons; both may make system calls.
    for round in 0..1000_u64 {
        exchange(&peer, me, round, &mut buf);
    }
    // Both have their filters before the first is needed, so that neither waits while the other is busy with the kernel.
    forbid_system_calls();
    words[2].fetch_add(1, Ordering::SeqCst);
    while words[2].load(Ordering::SeqCst) < 2 {
        std::hint::spin_loop();
    }
    // Time for the other side to do what it does while nothing comes.
    let began = Instant::now();
    while me == 0 && began.elapsed() < pause {
        std::hint::spin_loop();
    }
    for round in 0..rounds {
        if !exchange(&peer, me, round, &mut buf) {
            break;
        }
        words[me as usize].store(round + 1, Ordering::Relaxed);
    }
    // SAFETY: ends the process without running anything that would make another system call.
    unsafe { libc::syscall(libc::SYS_exit_group, 0) };
}

/// One message there and one back, or a few of them by one call. False if one was wrong: a panic would make system calls.
fn exchange(peer: &doorbell::Peer, me: u16, round: u64, buf: &mut [u8; 8]) -> bool {
    if round % 16 == 3 {
        return (me != 0 || send_series(peer, round)) && receive_series(peer, round) && (me == 0 || send_series(peer, round));
    }
    if me == 0 && peer.send(round, &round.to_ne_bytes()).is_err() {
        return false;
    }
    let Ok(envelope) = peer.recv(Match::any(), buf) else { return false };
    if envelope.tag != round || u64::from_ne_bytes(*buf) != round {
        return false;
    }
    me == 0 || peer.send(round, &round.to_ne_bytes()).is_ok()
}

/// A bundle of unequal messages, one that is a single copy, and one that is written message by message.
const SERIES: [usize; 7] = [8, 100, 40, 8, 8, 9, 9];

fn send_series(peer: &doorbell::Peer, round: u64) -> bool {
    let bytes = [round as u8; 100];
    let messages = SERIES.map(|len| (round, &bytes[..len]));
    peer.send_many(&messages[..3]).is_ok()
        && peer.send_chunks(round, 8, &bytes[..16]).is_ok()
        && peer.send_chunks(round, 9, &bytes[..18]).is_ok()
}

fn receive_series(peer: &doorbell::Peer, round: u64) -> bool {
    let (mut next, mut good) = (0, true);
    while next < SERIES.len() && good {
        let mut bytes = [0; 100];
        let taken = peer.recv_many(Match::any(), SERIES.len() - next, |envelope, payload| {
            payload.copy_to(&mut bytes);
            let len = SERIES[next];
            good &= (envelope.tag, payload.len()) == (round, len) && bytes[..len].iter().all(|byte| *byte == round as u8);
            next += 1;
        });
        good &= taken.is_ok();
    }
    good
}

fn run(what: &str, wait: &str, pause: u64, rounds: u64) -> (Domain, Words, [std::process::ExitStatus; 2]) {
    let domain = Domain::new(what);
    let words = Words::new(3);
    let start = |role| {
        let start = Process::start(role).words(&words).tell("DOMAIN", domain.name());
        start.tell("ROUNDS", rounds.to_string()).tell("PAUSE", pause.to_string()).tell("WAIT", wait).go()
    };
    let (left, right) = (start("left"), start("right"));
    let patience = Duration::from_secs(60 + rounds / 100_000);
    let ends = [left.end(patience), right.end(patience)];
    doorbell_shm::domain::clean(domain.space(), Some(domain.name()), true).unwrap();
    (domain, words, ends)
}

#[test]
fn messages_make_no_system_calls() {
    let _turn = Turn::take();
    // With one processor both would wait for whole time slices of each other.
    let rounds = if processors() < 2 { 1000 } else { number("DOORBELL_PINGPONGS", 1_000_000) };
    let (_domain, words, ends) = run("seccomp", "spin", 0, rounds);
    println!(
        "{} and {} of {rounds} exchanges without a system call",
        words[0].load(Ordering::SeqCst),
        words[1].load(Ordering::SeqCst)
    );
    assert!(ends.iter().all(|end| end.success()), "{ends:?}");
    assert_eq!([words[0].load(Ordering::SeqCst), words[1].load(Ordering::SeqCst)], [rounds; 2]);
}

/// The filter works: a process that parks dies of it, and one that spins does not.
#[test]
fn the_filter_kills_who_parks() {
    let _turn = Turn::take();
    let (_domain, words, ends) = run("seccomp-park", "park", 20, 10);
    assert!(ends.iter().all(|end| end.signal() == Some(libc::SIGSYS)), "{ends:?}");
    assert_eq!([words[0].load(Ordering::SeqCst), words[1].load(Ordering::SeqCst)], [0; 2]);
    let (_domain, words, ends) = run("seccomp-pause", "spin", 20, 10);
    assert!(ends.iter().all(|end| end.success()), "{ends:?}");
    assert_eq!([words[0].load(Ordering::SeqCst), words[1].load(Ordering::SeqCst)], [10; 2]);
}
