//! A receiving process. Its lead thread begins and ends sections together with the sender, and is the dispatcher.

use super::scheme;
use super::{DEVICE, Dispatcher, Ear, Fifo, FromHand, GLANCE, Hand, Leg, Member, Round, Scheme, Seen, Turn, join, sent_ns};
use crate::clock;
use crate::experiment::{Trouble, pin, unless_stopped};
use doorbell::{Device, DeviceThread, Node};
use doorbell_benches::{Finish, Patience, Samples, Stopped};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

/// The longest message that fits into a device by default: a lane has room for two of these.
const ROOM: usize = 256 * 1024 - 128;

/// The findings of a thread, by leg and scheme.
type OfThread = Vec<Vec<Share>>;

/// The findings of a thread for one scheme.
#[derive(Default)]
struct Share {
    rounds: Vec<Round>,
    times: Samples,
}

/// Lets the threads of this process receive in all sections.
pub fn work(member: &Arc<Member>) -> Result<Vec<Vec<Seen>>, Trouble> {
    let plan = &member.plan;
    let device =
        Device::builder(&member.node, DEVICE).threads(plan.threads).senders(1).message_max(plan.longest().max(ROOM)).attach()?;
    let threads = member.threads();
    // The threads of this process meet here. Waiting threads sleep, and do not poll as at the gate.
    let barrier = Arc::new(Barrier::new(threads.len() + 1, member.place.patience.clone()));
    let (tell, told) = channel();
    let mut handles = Vec::new();
    let (mut hands, mut ends) = ((0..plan.threads).map(|_| None).collect::<Vec<Option<Hand>>>(), Vec::new());
    for thread in threads.iter().copied() {
        let (hand, from) = scheme::channel();
        hands[thread] = Some(hand);
        ends.push((thread, from));
    }
    for (thread, from) in ends {
        let (member, device, barrier, tell) = (member.clone(), device.clone(), barrier.clone(), tell.clone());
        handles.push(std::thread::spawn(move || thread_of(&member, &device, from, thread, &barrier, &tell)));
    }
    handles.push({
        let (member, count) = (member.clone(), threads.len());
        std::thread::spawn(move || drop(tell.send(Said::Lead(lead(&member, &barrier, &hands, count)))))
    });
    drop(device);
    let found = gather(&told, threads.len());
    // Threads that were told to stop end soon, and leave the domain. If one thread fails, the process ends without waiting for the others.
    if found.is_ok() || member.place.patience.stopped() {
        handles.into_iter().for_each(|thread| drop(thread.join()));
    }
    found
}

/// Collects the findings of all threads.
fn gather(told: &Receiver<Said>, threads: usize) -> Result<Vec<Vec<Seen>>, Trouble> {
    let (mut shares, mut rounds) = (Vec::new(), None);
    while shares.len() < threads || rounds.is_none() {
        match told.recv() {
            Ok(Said::Lead(found)) => rounds = Some(found?),
            Ok(Said::Thread(found)) => shares.push(found?),
            Err(_) => return Err(Trouble::Wrong("a thread has ended without its findings".into())),
        }
    }
    Ok(sum(&rounds.unwrap_or_default(), &shares))
}

/// A barrier of the threads of one process. Waiting threads sleep. Unlike the barrier of the standard library it releases threads that are told to stop.
struct Barrier {
    parties: usize,
    patience: Patience,
    /// How many threads are here, and how often all of them were.
    here: Mutex<(usize, u64)>,
    all: Condvar,
}

impl Barrier {
    fn new(parties: usize, patience: Patience) -> Self {
        Self { parties, patience, here: Mutex::new((0, 0)), all: Condvar::new() }
    }

    fn wait(&self) -> Result<(), Stopped> {
        let mut here = self.here.lock().unwrap_or_else(PoisonError::into_inner);
        here.0 += 1;
        if here.0 == self.parties {
            *here = (0, here.1 + 1);
            self.all.notify_all();
            return Ok(());
        }
        let before = here.1;
        while here.1 == before {
            unless_stopped(&self.patience)?;
            here = self.all.wait_timeout(here, GLANCE).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

/// The message of a thread at its end.
enum Said {
    Lead(Result<Vec<Vec<Vec<u64>>>, Trouble>),
    Thread(Result<OfThread, Trouble>),
}

/// The findings of all threads of the process together.
fn sum(processor: &[Vec<Vec<u64>>], shares: &[OfThread]) -> Vec<Vec<Seen>> {
    let of_scheme = |leg: usize, scheme: usize, processor: &[u64]| {
        let of_threads = || shares.iter().map(|share| &share[leg][scheme]);
        let mut times = Samples::new();
        of_threads().for_each(|share| times.merge(&share.times));
        let round = |(round, processor_ns): (usize, &u64)| {
            let of_round = || of_threads().map(|share| share.rounds[round]);
            let ended_ns = of_round().map(|round| round.ended_ns).max().unwrap_or(0);
            Round { messages: of_round().map(|round| round.messages).sum(), ended_ns, processor_ns: *processor_ns }
        };
        Seen { rounds: processor.iter().enumerate().map(round).collect(), times }
    };
    let of_leg = |(leg, schemes): (usize, &Vec<Vec<u64>>)| {
        schemes.iter().enumerate().map(|(scheme, processor)| of_scheme(leg, scheme, processor)).collect()
    };
    processor.iter().enumerate().map(of_leg).collect()
}

/// Begins and ends sections, and dispatches. Returns the processor time of the process in each section.
fn lead(member: &Member, barrier: &Barrier, hands: &[Option<Hand>], threads: usize) -> Result<Vec<Vec<Vec<u64>>>, Trouble> {
    let plan = &member.plan;
    // Behind the barrier all threads have joined as nodes, and have their ids of the device.
    barrier.wait()?;
    member.meet()?;
    member.gate()?;
    plan.sections(|turn| {
        member.gate()?;
        let began = clock::processor_time();
        barrier.wait()?;
        if plan.schemes[turn.scheme] == Scheme::Dispatcher {
            hand_out(member, plan.legs[turn.leg], hands, threads)?;
        }
        barrier.wait()?;
        let used = clock::processor_time() - began;
        member.gate()?;
        Ok(used.as_nanos() as u64)
    })
}

/// Dispatches messages until each thread has got its last one.
fn hand_out(member: &Member, leg: Leg, hands: &[Option<Hand>], threads: usize) -> Result<(), Trouble> {
    let (mut left, mut deadline) = (threads, Instant::now() + GLANCE);
    let mut dispatcher = Dispatcher { node: &member.node, bytes: leg.bytes, hands, asleep: 0, given: 0 };
    while left > 0 {
        match dispatcher.step(deadline)? {
            Some(tag) if sent_ns(tag).is_none() => left -= 1,
            Some(_) => {}
            None if member.place.patience.stopped() => return Err(Stopped.into()),
            None => deadline = Instant::now() + GLANCE,
        }
    }
    dispatcher.wake();
    Ok(())
}

fn thread_of(member: &Member, device: &Device, from: FromHand, thread: usize, barrier: &Barrier, tell: &Sender<Said>) {
    let found = settle(member, device, thread).and_then(|(claimed, node)| {
        barrier.wait()?;
        Listener { member, thread, claimed, from, fifo: &node, barrier }.work()
    });
    // If the receiver is gone, the process is ending.
    let _ = tell.send(Said::Thread(found));
}

/// Moves a thread to its processor. Returns its id of the device, and its node.
fn settle(member: &Member, device: &Device, thread: usize) -> Result<(DeviceThread, Node), Trouble> {
    let plan = &member.plan;
    let processors = plan.of_threads();
    pin(processors.get(thread % processors.len().max(1)).copied())?;
    let node = join(plan, member.itself(thread).index())?;
    Ok((device.thread(thread as u32)?, node))
}

/// A thread that receives.
struct Listener<'a> {
    member: &'a Member,
    thread: usize,
    claimed: DeviceThread,
    from: FromHand,
    fifo: &'a Node,
    barrier: &'a Barrier,
}

impl Listener<'_> {
    fn work(mut self) -> Result<OfThread, Trouble> {
        let plan = &self.member.plan;
        let mut buf = vec![0; plan.longest()];
        let mut read = Finish::new(&self.member.place.mapping.pair(self.thread), &self.member.place.patience);
        let mut times = vec![vec![Samples::new(); plan.schemes.len()]; plan.legs.len()];
        let rounds = plan.sections(|Turn { leg, scheme, counts }| {
            let (mut seen, member, leg_of) = (Samples::new(), self.member, plan.legs[leg]);
            self.barrier.wait()?;
            let round = match plan.schemes[scheme] {
                Scheme::Claimed => listen(&mut self.claimed, member, leg_of, &mut buf, &mut read, &mut seen),
                Scheme::Dispatcher => listen(&mut self.from, member, leg_of, &mut buf, &mut read, &mut seen),
                Scheme::Fifo => listen(&mut Fifo(self.fifo), member, leg_of, &mut buf, &mut read, &mut seen),
            }?;
            self.barrier.wait()?;
            if counts {
                times[leg][scheme].merge(&seen);
            }
            Ok(round)
        })?;
        let share = |(rounds, times)| Share { rounds, times };
        Ok(rounds.into_iter().zip(times).map(|(rounds, times)| rounds.into_iter().zip(times).map(share).collect()).collect())
    }
}

/// Receives until the section ends.
fn listen<E: Ear>(
    ear: &mut E,
    member: &Member,
    leg: Leg,
    buf: &mut [u8],
    read: &mut Finish<'_>,
    times: &mut Samples,
) -> Result<Round, Trouble> {
    let (mut messages, mut deadline) = (0, Instant::now() + GLANCE);
    loop {
        let Some(tag) = ear.receive(buf, deadline)? else {
            unless_stopped(&member.place.patience)?;
            deadline = Instant::now() + GLANCE;
            continue;
        };
        let Some(sent_ns) = sent_ns(tag) else { break };
        messages += 1;
        if leg.load.is_timed() {
            times.record(member.now().saturating_sub(sent_ns));
        }
        if leg.load == super::Load::Alone {
            read.tell();
        }
    }
    Ok(Round { messages, ended_ns: member.now(), processor_ns: 0 })
}
