//! A process of which threads receive: its main thread begins and ends sections with the sender, and is the dispatcher.

use super::super::plan::pack;
use super::scheme::{self, Dispatcher, Ear, Fifo, FromHand, GLANCE, Hand, sent_ns};
use super::worker::{DEVICE, Member, Round, Seen, join};
use super::{Leg, Scheme};
use crate::clock;
use crate::experiment::Trouble;
use crate::experiment::place::pin;
use doorbell::{Device, DeviceThread, Node};
use doorbell_benches::floor::{Finish, Patience, Stopped};
use doorbell_benches::stats::Samples;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

/// The longest message for which a device has room where nothing is said: a lane has room for two such.
const ROOM: usize = 256 * 1024 - 128;

/// What a thread saw: for each leg, for each scheme.
type OfThread = Vec<Vec<Share>>;

/// What a thread saw of a scheme.
#[derive(Default)]
struct Share {
    rounds: Vec<Round>,
    times: Samples,
}

/// Has the threads of this process receive section after section.
pub fn work(member: &Arc<Member>) -> Result<Vec<Vec<Seen>>, Trouble> {
    let plan = &member.plan;
    let device =
        Device::builder(&member.node, DEVICE).threads(plan.threads).senders(1).message_max(plan.longest().max(ROOM)).attach()?;
    let threads = member.threads();
    // Where the threads of this process meet, without looking again and again as at the gate.
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
    // Told to stop, all of them end soon, and leave the domain. If one is in trouble this process ends whatever the others wait for.
    if found.is_ok() || member.place.patience.stopped() {
        handles.into_iter().for_each(|thread| drop(thread.join()));
    }
    found
}

/// What all threads found.
fn gather(told: &Receiver<Said>, threads: usize) -> Result<Vec<Vec<Seen>>, Trouble> {
    let (mut shares, mut rounds) = (Vec::new(), None);
    while shares.len() < threads || rounds.is_none() {
        match told.recv() {
            Ok(Said::Lead(found)) => rounds = Some(found?),
            Ok(Said::Thread(found)) => shares.push(found?),
            Err(_) => return Err(Trouble::Wrong("a thread has ended without a word".into())),
        }
    }
    Ok(sum(&rounds.unwrap_or_default(), &shares))
}

/// Where the threads of one process meet. Who waits sleeps; unlike the standard library's it lets go of all who are told to stop.
struct Barrier {
    parties: usize,
    patience: Patience,
    /// How many are here, and how often all were.
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
            if self.patience.stopped() {
                return Err(Stopped);
            }
            here = self.all.wait_timeout(here, GLANCE).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }
}

/// What threads tell at their end.
enum Said {
    Lead(Result<Vec<Vec<Vec<u64>>>, Trouble>),
    Thread(Result<OfThread, Trouble>),
}

/// All threads of the process together.
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
        Seen { rounds: processor.iter().enumerate().map(round).collect(), times: pack(&times) }
    };
    let of_leg = |(leg, schemes): (usize, &Vec<Vec<u64>>)| {
        schemes.iter().enumerate().map(|(scheme, processor)| of_scheme(leg, scheme, processor)).collect()
    };
    processor.iter().enumerate().map(of_leg).collect()
}

/// Begins and ends sections, and dispatches: what the process used of processors.
fn lead(member: &Member, barrier: &Barrier, hands: &[Option<Hand>], threads: usize) -> Result<Vec<Vec<Vec<u64>>>, Trouble> {
    let plan = &member.plan;
    // All threads are nodes and have their ids of the device.
    barrier.wait()?;
    member.meet()?;
    member.gate()?;
    let mut found = Vec::new();
    for leg in &plan.legs {
        let mut of_leg = vec![Vec::new(); plan.schemes.len()];
        for (round, scheme) in plan.sections() {
            member.gate()?;
            let began = clock::processor_time();
            barrier.wait()?;
            if plan.schemes[scheme] == Scheme::Dispatcher {
                hand_out(member, *leg, hands, threads)?;
            }
            barrier.wait()?;
            let used = clock::processor_time() - began;
            member.gate()?;
            if round > 0 {
                of_leg[scheme].push(used.as_nanos() as u64);
            }
        }
        found.push(of_leg);
    }
    Ok(found)
}

/// The dispatcher: until each thread has got its last message.
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
    // If nobody hears it, the process ends.
    let _ = tell.send(Said::Thread(found));
}

/// Its processor, its id of the device, and its node.
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
        let mut found = Vec::new();
        for leg in &plan.legs {
            let mut of_leg: Vec<Share> = plan.schemes.iter().map(|_| Share::default()).collect();
            for (round, scheme) in plan.sections() {
                let mut times = Samples::new();
                self.barrier.wait()?;
                let member = self.member;
                let seen = match plan.schemes[scheme] {
                    Scheme::Claimed => listen(&mut self.claimed, member, *leg, &mut buf, &mut read, &mut times),
                    Scheme::Dispatcher => listen(&mut self.from, member, *leg, &mut buf, &mut read, &mut times),
                    Scheme::Fifo => listen(&mut Fifo(self.fifo), member, *leg, &mut buf, &mut read, &mut times),
                }?;
                self.barrier.wait()?;
                if round > 0 {
                    of_leg[scheme].rounds.push(seen);
                    of_leg[scheme].times.merge(&times);
                }
            }
            found.push(of_leg);
        }
        Ok(found)
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
            if member.place.patience.stopped() {
                return Err(Stopped.into());
            }
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
