//! Members of a team die at random moments: every other member is told which one died, they shrink the team, and go on with right results.
//!
//! `DOORBELL_KILLS` says how many die, `DOORBELL_SEED` seeds the choices.

use doorbell::collective::reduction::{Max, Sum};
use doorbell::collective::{Team, TeamError};
use doorbell::{Error, FabricKind, Node, NodeId};
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{PATIENCE, soon};
use doorbell_tests::process::{Process, told, told_as};
use doorbell_tests::random::{Random, seed};
use doorbell_tests::words::Words;
use doorbell_tests::{LOOPBACK, Turn, number};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// The words: how far each member is, how large its team is, which nodes were killed, and whether to stop.
const MEMBERS_MAX: usize = 5;
const SIZE: usize = MEMBERS_MAX;
const KILLED: usize = 2 * MEMBERS_MAX;
const STOP: usize = 3 * MEMBERS_MAX;
const WORDS: usize = STOP + 1;

fn value(node: NodeId, round: u64, at: usize) -> u64 {
    ((u64::from(node.0) + 3) * (round + 1)) ^ at as u64
}

/// One round of work: true if all are to stop.
fn work(team: &Team, node: &Node, words: &Words, round: u64) -> Result<bool, Error> {
    let len = [1, 40, 3000, 70_000][(round % 4) as usize];
    let mut xs: Vec<u64> = (0..len).map(|at| value(node.id(), round, at)).collect();
    match round % 3 {
        0 => team.allreduce(Sum, &mut xs)?,
        1 => xs = team.start_allreduce(Sum, xs)?.wait()?,
        _ => {
            let root = round as usize % team.len();
            team.reduce(root, Sum, &mut xs)?;
            team.broadcast(root, &mut xs)?;
        }
    }
    for (at, x) in xs.into_iter().enumerate() {
        let expected = team.members().into_iter().fold(0_u64, |sum, member| sum.wrapping_add(value(member, round, at)));
        assert_eq!(x, expected, "element {at} of round {round}");
    }
    let mut stop = [words[STOP].load(SeqCst)];
    team.allreduce(Max, &mut stop)?;
    Ok(stop[0] > 0)
}

/// The role: works, and shrinks its team when a member died.
pub fn member() {
    let me: usize = told_as("ME");
    let count: usize = told_as("COUNT");
    let words = Words::inherited();
    let builder = Node::builder(told("DOMAIN")).id(me as u16).max_nodes(count + 1);
    let node = match &told("ADDRESS")[..] {
        "none" => builder.join().unwrap(),
        address => {
            let kind = if me.is_multiple_of(2) { FabricKind::Udp } else { FabricKind::Auto };
            builder.fabric(kind).connect(address).dead_after(DEAD_AFTER).join().unwrap()
        }
    };
    let all = (0..count as u16).map(NodeId);
    while !all.clone().all(|id| node.members().unwrap().iter().any(|member| member.id == id)) {
        node.wait_for(count, soon()).unwrap();
        std::thread::yield_now();
    }
    let ids: Vec<NodeId> = (0..count as u16).map(NodeId).collect();
    let mut team = match Team::builder(&node).members(&ids).form_until(soon()) {
        Ok(team) => team,
        // It was killed before the team was there.
        Err(Error::PeerDied { .. } | Error::NoSuchNode { .. }) => return,
        Err(error) => panic!("{error}"),
    };
    loop {
        words[SIZE + me].store(team.len() as u64, SeqCst);
        let mut round = 0;
        let error = loop {
            match work(&team, &node, &words, round) {
                Ok(true) => return node.leave().unwrap(),
                Ok(false) => round += 1,
                Err(error) => break error,
            }
            words[me].fetch_add(1, SeqCst);
        };
        match error {
            Error::PeerDied { node, .. } => {
                assert_eq!(words[KILLED + node.index()].load(SeqCst), 1, "node {node} was not killed")
            }
            // Another member was faster, and shrinks the team already.
            error if error.downcast_ref::<TeamError>().is_some() => {}
            error => panic!("{error}"),
        }
        team = team.shrink_until(soon()).unwrap();
    }
}

/// How long a member over the network is silent before it counts as dead.
const DEAD_AFTER: Duration = Duration::from_secs(1);

#[test]
fn a_team_survives_its_members() {
    storm(false, 20);
}

#[test]
fn a_team_over_the_network_survives_its_members() {
    storm(true, 4);
}

fn storm(networked: bool, kills: u64) {
    let _turn = Turn::take();
    let (kills, seed) = (number("DOORBELL_KILLS", kills) as usize, seed());
    println!("team storm: DOORBELL_SEED={seed} DOORBELL_KILLS={kills}");
    let mut random = Random::new(seed);
    let mut longest = Duration::ZERO;
    let mut killed = 0;
    while killed < kills {
        let domain = Domain::new("team-storm");
        let count = 3 + random.below(MEMBERS_MAX - 2);
        let words = Words::new(WORDS);
        // All others meet by it.
        let meeting = networked.then(|| {
            let builder = Node::builder(domain.name()).id(count as u16).max_nodes(count + 1);
            builder.listen(LOOPBACK).dead_after(DEAD_AFTER).join().unwrap()
        });
        let address = meeting.as_ref().map_or("none".to_owned(), |node| node.address().unwrap().to_string());
        let start = |me: usize| {
            let start = Process::start("team storm: member").words(&words).tell("DOMAIN", domain.name());
            start.tell("ME", me.to_string()).tell("COUNT", count.to_string()).tell("ADDRESS", &address).go()
        };
        let mut members: Vec<_> = (0..count).map(|me| Some(start(me))).collect();
        let wait = |members: &[Option<Process>], rounds: u64| {
            let deadline = soon();
            let before: Vec<u64> = (0..count).map(|me| words[me].load(SeqCst)).collect();
            let living = members.iter().flatten().count() as u64;
            for (me, member) in members.iter().enumerate() {
                let Some(member) = member else { continue };
                while words[me].load(SeqCst) < before[me] + rounds || words[SIZE + me].load(SeqCst) != living {
                    assert!(
                        Instant::now() < deadline && !member.ended_by(Instant::now()),
                        "member {me} of {count} does not go on"
                    );
                    std::thread::yield_now();
                }
            }
        };
        wait(&members, 2);
        for _ in 0..count - 2 {
            let moment = Instant::now() + Duration::from_micros(random.below(3000) as u64);
            while Instant::now() < moment {
                std::thread::yield_now();
            }
            let living: Vec<usize> = (0..count).filter(|me| members[*me].is_some()).collect();
            let me = *random.pick(&living);
            words[KILLED + me].store(1, SeqCst);
            let victim = members[me].take().unwrap();
            victim.kill();
            let at = Instant::now();
            assert!(victim.ended_by(soon()), "SIGKILL did not end member {me}");
            killed += 1;
            wait(&members, 3);
            longest = longest.max(at.elapsed());
        }
        words[STOP].store(1, SeqCst);
        members.into_iter().flatten().for_each(|member| member.end_well(PATIENCE));
        if let Some(node) = meeting {
            node.leave().unwrap();
        }
    }
    println!("{killed} killed; the longest until all others had gone on for some rounds: {longest:?}");
}
