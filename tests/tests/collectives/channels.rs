//! Channels of a team compared with the published method that they follow: each step, in the order in which members take it.
//!
//! | step of the method | steps that the watched members report |
//! |---|---|
//! | determining whether any channels of the shared memory are available | `Available`, or `Queued` |
//! | if none is: storing the operations within a queue, and monitoring the shared memory for an indication that one is | `Queued`, and later `Available` |
//! | if one is: selecting it, and acquiring it | `Acquired` |
//! | posting the operations and a synchronisation point, transferring them from the queue | `Moved`, `Posted` |
//! | determining that processing has reached the synchronisation point | `PointReached` |
//! | posting to it a background synchronisation | `SynchronisationPosted` |
//! | (which makes it available again, without the application) | the `Available` of the next turn |

use doorbell::collective::reduction::{Max, Sum};
use doorbell::collective::{ChannelEvent, ChannelStep, Team};
use doorbell::{Metric, Node, NodeId, Progress, Result, Space};
use doorbell_tests::patience::{PATIENCE, soon};
use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex};

use ChannelStep::{Acquired, Available, Moved, PointReached, Posted, Queued, SynchronisationPosted};

/// The steps of all members, in one order.
#[derive(Default)]
struct Log {
    events: Mutex<Vec<(usize, ChannelEvent)>>,
    grown: Condvar,
    /// How often any application came to [`meet`](Self::meet).
    met: Mutex<usize>,
    come: Condvar,
}

impl Log {
    fn add(&self, member: usize, event: ChannelEvent) {
        self.events.lock().unwrap().push((member, event));
        self.grown.notify_all();
    }

    /// Waits until a member has taken a step.
    fn wait_for(&self, member: usize, turn: u64, step: ChannelStep) {
        let is_it = |(by, event): &(usize, ChannelEvent)| (*by, event.turn, event.step) == (member, turn, step);
        let events = self.events.lock().unwrap();
        let (events, waited) = self.grown.wait_timeout_while(events, PATIENCE, |events| !events.iter().any(is_it)).unwrap();
        assert!(!waited.timed_out(), "member {member} did not come to {step:?} of turn {turn}: {events:?}");
    }

    /// Waits for the applications of all members, without Doorbell.
    fn meet(&self, members: usize) {
        let mut met = self.met.lock().unwrap();
        *met += 1;
        self.come.notify_all();
        let until = met.next_multiple_of(members);
        let (_met, waited) = self.come.wait_timeout_while(met, PATIENCE, |met| *met < until).unwrap();
        assert!(!waited.timed_out(), "a member does not come");
    }

    /// The steps of one member in a turn.
    fn steps(&self, member: usize, turn: u64) -> Vec<ChannelStep> {
        let events = self.events.lock().unwrap();
        events.iter().filter(|(by, event)| (*by, event.turn) == (member, turn)).map(|(_, event)| event.step).collect()
    }
}

/// The method as a state machine that follows the steps of members and reports a wrong one.
struct Model {
    members: usize,
    channels: usize,
    /// Of each member and turn, the last step.
    last: Vec<Vec<ChannelStep>>,
    queued: BTreeSet<(usize, u64)>,
}

impl Model {
    fn new(members: usize, channels: usize) -> Self {
        Self { members, channels, last: vec![Vec::new(); members], queued: BTreeSet::new() }
    }

    /// Turns come one after the other, and go round the channels.
    fn take(&mut self, member: usize, ChannelEvent { channel, turn, step }: ChannelEvent) -> Result<(), String> {
        let at = turn as usize;
        if channel != at % self.channels {
            return Err(format!("turn {turn} is not of channel {channel}"));
        }
        let before = self.last[member].get(at).copied();
        let is_queued = self.queued.contains(&(member, turn));
        let fits = match (before, step) {
            (None, Queued) => at == self.last[member].len() && at >= self.channels && self.queued.insert((member, turn)),
            (None, Available) => at == self.last[member].len(),
            (Some(Queued), Available) | (Some(Available), Acquired) => true,
            (Some(Acquired), Moved) => is_queued,
            (Some(Acquired), Posted) => !is_queued,
            (Some(Moved), Posted) | (Some(Posted), PointReached) | (Some(PointReached), SynchronisationPosted) => true,
            _ => false,
        };
        if !fits {
            return Err(format!("{step:?} after {before:?}"));
        }
        if step == Available {
            // Of the channel, and of those in the queue before.
            let is_left = |by: usize| at < self.channels || self.last[by].get(at - self.channels) == Some(&SynchronisationPosted);
            if let Some(by) = (0..self.members).find(|by| !is_left(*by)) {
                return Err(format!("member {by} has not synchronised the turn before of channel {channel}"));
            }
            if self.last[member][..at].contains(&Queued) {
                return Err("it went before another that was in the queue".into());
            }
        }
        match self.last[member].get_mut(at) {
            Some(last) => *last = step,
            None => self.last[member].push(step),
        }
        Ok(())
    }
}

/// Nodes of one process over shared memory, and a team of them that is watched.
fn with_team(members: usize, channels: usize, progress: Progress, act: impl Fn(&Team, &Log) -> Result<()> + Sync) {
    let space = Space::heap();
    let node = |at: usize| {
        let builder = Node::builder("channels").id(at as u16).max_nodes(members.max(2)).progress(progress);
        builder.space(space.clone()).join().unwrap()
    };
    let nodes: Vec<Node> = (0..members).map(node).collect();
    let ids: Vec<NodeId> = nodes.iter().map(Node::id).collect();
    let log = Arc::<Log>::default();
    let run = |(rank, node): (usize, &Node)| {
        let (sees, team) = (log.clone(), Team::builder(node).members(&ids).channels(channels).slot_bytes(4096));
        let team = team.patience(PATIENCE).watch(move |event| sees.add(rank, event)).form_until(soon()).unwrap();
        act(&team, &log).unwrap_or_else(|error| panic!("rank {rank}: {error}"));
        team.barrier().unwrap();
        // All turns of this member are over when it has left the last one, which may be a moment after its last result.
        let turns = { log.events.lock().unwrap().iter().map(|(_, event)| event.turn).max().unwrap() };
        (0..members).for_each(|member| log.wait_for(member, turns, SynchronisationPosted));
        team.stats()
    };
    let stats = std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = nodes.iter().enumerate().map(|member| scope.spawn(move || run(member))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let events = log.events.lock().unwrap();
    let mut model = Model::new(members, channels);
    for (at, (member, event)) in events.iter().enumerate() {
        let fault = |why| panic!("event {at}, {event:?} of member {member}: {why}\n{:?}", &events[at.saturating_sub(40)..=at]);
        model.take(*member, *event).unwrap_or_else(fault);
    }
    for (member, stats) in stats.iter().enumerate() {
        assert!(
            model.last[member].iter().all(|last| *last == SynchronisationPosted),
            "member {member}: {:?}",
            model.last[member]
        );
        let (turns, queued) = (model.last[member].len(), model.queued.iter().filter(|(by, _)| *by == member).count());
        assert_eq!(
            (stats.acquired + stats.queued, stats.queued, stats.synchronised),
            (turns as u64, queued as u64, turns as u64)
        );
    }
}

/// The steps of a turn whose channel was available.
const AT_ONCE: [ChannelStep; 5] = [Available, Acquired, Posted, PointReached, SynchronisationPosted];
/// The steps of a turn that had to wait for its channel.
const QUEUED: [ChannelStep; 7] = [Queued, Available, Acquired, Moved, Posted, PointReached, SynchronisationPosted];

/// A member that has its result goes on while others are late. A member that needs a channel gets it in the background unless all are in use.
fn nobody_waits_for_a_channel(team: &Team, log: &Log, channels: usize, progress: Progress) -> Result<()> {
    let (me, members, turns) = (team.rank(), team.len(), channels as u64);
    // The first member broadcasts once a channel: no call waits for the others, which have not even arrived.
    let mut begun = None;
    if me == 0 {
        for turn in 0..turns {
            team.broadcast(0, &mut [turn])?;
            assert_eq!(log.steps(0, turn), AT_ONCE);
        }
        // Then none is available.
        let queued = team.start_broadcast(0, vec![turns])?;
        if members > 1 {
            assert!(!queued.test());
            assert_eq!(log.steps(0, turns), [Queued]);
            assert!((1..members).all(|other| log.steps(other, 0).is_empty()), "the others have not come");
        }
        begun = Some(queued);
    }
    log.meet(members);
    if me != 0 {
        for turn in 0..turns {
            let mut x = [u64::MAX];
            team.broadcast(0, &mut x)?;
            assert_eq!(x, [turn]);
        }
        begun = Some(team.start_broadcast(0, vec![u64::MAX])?);
    }
    let begun = begun.unwrap();
    if progress == Progress::Poller {
        // From here on no application does anything: the queued operation moves, is posted and done, and the channel synchronised.
        (0..members).for_each(|member| log.wait_for(member, turns, SynchronisationPosted));
        if members > 1 {
            assert_eq!(log.steps(0, turns), QUEUED);
        }
        assert!(begun.test());
    }
    assert_eq!(begun.wait()?, [turns]);
    (0..members).for_each(|member| log.wait_for(member, turns, SynchronisationPosted));
    log.meet(members);
    // All members have left all channels. A member that does nothing from here on keeps no channel busy, even without a poller.
    if me == 0 {
        for turn in turns + 1..2 * turns + 1 {
            team.broadcast(0, &mut [turn])?;
            // A poller says that it synchronises right before it does.
            let steps = log.steps(0, turn);
            assert!(steps == AT_ONCE || progress != Progress::Inline && steps == QUEUED, "{steps:?}");
        }
    }
    log.meet(members);
    if me != 0 {
        for turn in turns + 1..2 * turns + 1 {
            let mut x = [u64::MAX];
            team.broadcast(0, &mut x)?;
            assert_eq!(x, [turn]);
        }
    }
    Ok(())
}

/// One member after the other is late. The others queue their operations, and all results are right.
fn late_members_are_queued_for(team: &Team, log: &Log, channels: usize) -> Result<()> {
    let (me, members) = (team.rank(), team.len());
    let all = |value: u64| (0..members as u64).map(move |rank| value + rank);
    // A turn later than all that was.
    let mut turn = 2 * channels as u64 + 1;
    for late in 0..members.min(3) {
        // One more than there are channels: none of them ends without the late member.
        let last = turn + channels as u64;
        if me == late {
            (0..members).filter(|other| *other != late).for_each(|other| log.wait_for(other, last, Queued));
        }
        let begun: Vec<_> = (turn..=last).map(|n| team.start_allreduce(Max, vec![n + me as u64])).collect::<Result<_>>()?;
        // Several operations with one point.
        let batch = team.batch();
        let together = [batch.allreduce(Sum, vec![7 + me as u64; 40])?, batch.broadcast(late, vec![me as u64; 40])?];
        drop(batch);
        for (n, begun) in (turn..).zip(begun) {
            assert_eq!(begun.wait()?, [all(n).max().unwrap()]);
        }
        let [sum, sent] = together.map(|one| one.wait());
        assert_eq!((sum?, sent?), (vec![all(7).sum::<u64>(); 40], vec![late as u64; 40]));
        let mut xs = vec![me as u64; 1500];
        team.allreduce(Sum, &mut xs)?;
        assert_eq!(xs, [all(0).sum::<u64>(); 1500]);
        // Two more turns: the batch, and the last one.
        turn = last + 3;
        if me != late {
            assert_eq!(log.steps(me, last), QUEUED);
        }
    }
    Ok(())
}

fn the_claim(members: impl Iterator<Item = usize>, progress: Progress) {
    for members in members {
        for channels in [1, 2, 4, 16] {
            with_team(members, channels, progress, |team, log| {
                nobody_waits_for_a_channel(team, log, channels, progress)?;
                late_members_are_queued_for(team, log, channels)
            });
        }
    }
}

#[test]
fn each_step_of_the_claim_is_taken_by_applications_that_wait() {
    the_claim(1..=16, Progress::Inline);
}

#[test]
fn each_step_of_the_claim_is_taken_by_engines() {
    the_claim([1, 2, 3, 4, 8, 16].into_iter(), Progress::Poller);
}

#[test]
fn each_step_of_the_claim_is_taken_by_either() {
    the_claim([2, 5, 16].into_iter(), Progress::Adaptive);
}

#[test]
fn a_node_shows_what_became_of_the_channels_of_all_its_teams() {
    let node = Node::builder("shown").space(Space::heap()).join().unwrap();
    for teams in 1..4 {
        let team = Team::builder(&node).label(teams.to_string()).form().unwrap();
        (0..10).for_each(|_| team.barrier().unwrap());
        let batch = team.batch();
        let both = [1, 2].map(|x| batch.allreduce(Sum, vec![x]).unwrap());
        drop(batch);
        assert_eq!(both.map(|one| one.wait().unwrap()), [[1], [2]]);
        let stats = team.stats();
        assert_eq!((stats.operations, stats.acquired, stats.queued, stats.synchronised), (12, 11, 0, 11));
        let shown = node.metrics().unwrap();
        let of = [Metric::Collectives, Metric::TurnsAcquired, Metric::TurnsQueued, Metric::TurnsSynchronised];
        // Those of teams that are gone stay.
        assert_eq!(of.map(|metric| shown[metric]), [12 * teams, 11 * teams, 0, 11 * teams]);
        assert!(shown[Metric::TurnsForeseen] >= stats.foreseen);
    }
}

#[test]
fn the_model_finds_fault_with_what_the_claim_forbids() {
    let event = |turn, step| ChannelEvent { channel: turn as usize % 2, turn, step };
    let mut channels = Vec::new();
    // Both members use both channels once.
    for turn in 0..2 {
        (0..2).for_each(|member| channels.extend(AT_ONCE.map(|step| (member, event(turn, step)))));
    }
    let faulty = |events: Vec<(usize, ChannelEvent)>| {
        let mut model = Model::new(2, 2);
        events.into_iter().try_for_each(|(member, event)| model.take(member, event)).is_err()
    };
    let then = |more: &[(usize, ChannelEvent)]| [&channels[..], more].concat();
    assert!(!faulty(then(&QUEUED.map(|step| (0, event(2, step))))));
    assert!(!faulty(then(&AT_ONCE.map(|step| (0, event(2, step))))));
    let without = |at: usize| (0..channels.len()).filter(|n| *n != at).map(|n| channels[n]).collect::<Vec<_>>();
    assert!((0..channels.len()).all(|at| {
        let mut all = without(at);
        all.extend([0, 1].map(|turn| (0, event(turn + 2, Available))));
        faulty(all)
    }));
    assert!(faulty(then(&[(0, event(3, Available))])), "a turn was left out");
    assert!(faulty(then(&[(0, event(2, Queued)), (0, event(3, Available))])), "it overtakes one that is queued");
    assert!(faulty(then(&[(0, event(2, Available)), (0, event(2, Acquired)), (0, event(2, Moved))])), "it was not queued");
    assert!(faulty(vec![(0, event(0, Queued))]), "nobody has used it");
}
