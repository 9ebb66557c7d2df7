//! Processes that are killed while they have loans of others, or while others have theirs.
//!
//! Every time: loans that the dead process held come back whole to their owners, and loans of the dead process that others hold stay as they are.

use doorbell::{Error, Event, Match, Node, NodeId, Taken};
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{soon, until};
use doorbell_tests::pattern;
use doorbell_tests::process::{Process, told};
use doorbell_tests::random::{Random, seed};
use doorbell_tests::{Turn, number};
use std::time::{Duration, Instant};

const OWNER: NodeId = NodeId(0);
const WRITER: NodeId = NodeId(1);
const READER: NodeId = NodeId(2);
const LENGTHS: [usize; 6] = [0, 8, 100, 5000, 70_000, 300_000];

fn join(domain: &str, id: NodeId) -> Node {
    Node::builder(domain).id(id).loan_bytes(4 << 20).join().unwrap()
}

/// Lends one message to each node that is there. Nodes that are absent, full or dead are skipped.
fn lend(node: &Node, tag: u64, to: &[NodeId]) {
    match node.loan_bytes(LENGTHS[tag as usize % LENGTHS.len()]) {
        Ok(mut loan) => {
            pattern::fill(&mut loan, tag);
            let loan = loan.share();
            for id in to {
                let _ = loan.send_until(*id, tag, Instant::now() + Duration::from_millis(2));
            }
        }
        Err(Error::LoansOut { .. }) => {
            node.progress().unwrap();
            std::thread::yield_now();
        }
        Err(error) => panic!("{error}"),
    }
}

#[track_caller]
fn check(taken: &Taken<[u8]>) {
    pattern::check(&taken.to_vec(), taken.envelope().tag);
}

/// The role: lends until it is killed.
pub fn write() {
    let node = join(&told("DOMAIN"), WRITER);
    let mut tag = 0;
    loop {
        lend(&node, tag, &[OWNER, READER]);
        tag += 1;
    }
}

/// The role: takes, keeps some, forgets some, until it is killed.
pub fn read() {
    let node = join(&told("DOMAIN"), READER);
    let (mut random, mut kept) = (Random::new(u64::from(node.incarnation().0)), Vec::new());
    loop {
        match node.take_until::<[u8]>(Match::any(), Instant::now() + Duration::from_millis(100)) {
            Ok(taken) => {
                check(&taken);
                if random.below(200) == 0 { std::mem::forget(taken) } else { kept.push(taken) }
            }
            Err(Error::Timeout { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        if kept.len() > random.below(12) {
            kept.swap_remove(random.below(kept.len()));
        }
    }
}

#[test]
fn loans_of_the_dead_come_back() {
    let _turn = Turn::take();
    let (kills, seed) = (number("DOORBELL_KILLS", 20), seed());
    println!("loans: DOORBELL_SEED={seed} DOORBELL_KILLS={kills}");
    let domain = Domain::new("lent");
    let node = join(domain.name(), OWNER);
    let mut random = Random::new(seed);
    let start = |id: NodeId| {
        let role = if id == WRITER { "loan-writer" } else { "loan-reader" };
        let process = Process::start(role).tell("DOMAIN", domain.name()).go();
        until("a process that joins", || node.peer(id).ok());
        process
    };
    let mut processes = [start(WRITER), start(READER)];
    let (mut tag, mut most_out, mut taken_in_all) = (0, 0, 0);
    for kill in 0..kills {
        let mut kept: Vec<Taken<[u8]>> = Vec::new();
        let moment = Instant::now() + Duration::from_micros(1000 + random.below(20_000) as u64);
        while Instant::now() < moment || kept.is_empty() {
            lend(&node, tag, &[READER]);
            tag += 1;
            if let Some(taken) = node.try_take::<[u8]>(Match::any()).unwrap() {
                check(&taken);
                taken_in_all += 1;
                kept.push(taken);
                if kept.len() > 8 {
                    kept.swap_remove(random.below(8));
                }
            }
        }
        most_out = most_out.max(node.loan_stats().unwrap().out);
        let victim = if random.below(2) == 0 { WRITER } else { READER };
        let process = &processes[victim.index() - 1];
        process.kill();
        assert!(process.ended_by(soon()), "SIGKILL did not end {}", process.role);
        until("the news of a death", || match node.try_event().unwrap() {
            Some(Event::Died { node, .. }) => {
                assert_eq!(node, victim, "kill {kill}: another died");
                Some(())
            }
            Some(event @ Event::Damaged { .. }) => panic!("kill {kill}: {event}"),
            _ => None,
        });
        if victim == READER {
            let stats = node.loan_stats().unwrap();
            assert_eq!((stats.blocks, stats.held, stats.out), (0, 0, 0), "kill {kill}: DOORBELL_SEED={seed}");
            // And can be lent again, much of it at once, whatever sizes it was cut to before.
            let all: Vec<_> = (0..30).map(|_| node.loan_bytes(64 << 10).unwrap()).collect();
            drop(all);
        }
        kept.iter().for_each(check);
        // Before the next life begins, all that this one sent is taken.
        while node.try_take::<[u8]>(Match::from(victim)).is_ok_and(|taken| taken.is_some_and(|taken| [check(&taken)].len() == 1))
        {
        }
        processes[victim.index() - 1] = start(victim);
        kept.iter().for_each(check);
    }
    println!("{tag} lent, {taken_in_all} taken, {most_out} out at once");
    assert!(most_out > 0 && taken_in_all > 0);
    for process in &processes {
        process.kill();
        assert!(process.ended_by(soon()));
    }
    drop(processes);
    node.leave().unwrap();
    doorbell_shm::domain::clean(domain.space(), Some(domain.name()), true).unwrap();
    domain.assert_empty();
}
