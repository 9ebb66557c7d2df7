//! One of the two processes that carry out a load: one writes, the other reads, and both look at the same clock.

use super::Run;
use super::load::{LEAST, Phase, Place as Where};
use super::noise::{Noise, mix};
use super::watch::{AsAsked, Timeline, Watch, Watched};
use crate::clock::now;
use crate::exit::Failure;
use crate::experiment::place::{Place, leave};
use crate::experiment::{Trouble, give_up};
use crate::measure::plan::{Recorded, pack};
use doorbell::mode::{Mode, ModeRequest, Policy, Protocol, Receipt, Thresholds};
use doorbell::transfer::RENDEZVOUS_BYTES;
use doorbell::{Error, Match, Node, NodeId, Peer, Priority, Request};
use doorbell_benches::floor::Stopped;
use doorbell_benches::memory::Memory;
use doorbell_benches::stats::Samples;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const WRITER: NodeId = NodeId(0);
const READER: NodeId = NodeId(1);
/// Who writes listens here, and who reads as well: a link each.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::LOCALHOST, Ipv4Addr::new(127, 0, 0, 2)];
/// How long the links may take to be there.
const LINKS_WITHIN: Duration = Duration::from_secs(3);
/// After what silence the other counts as dead: a machine that is busy is not.
const SILENCE: Duration = Duration::from_secs(10);

/// Tags.
const MESSAGE: u64 = 1;
const BACKGROUND: u64 = 2;
/// All of a phase was sent; with how many messages, and how many of the background.
const OVER: u64 = 3;
/// All of a phase was read.
const READ: u64 = 4;
/// To see which links there are.
const LOOK: u64 = 5;

/// Bytes of a word.
const WORD: usize = 8;
/// Words of what a message says of itself.
const HEAD: usize = LEAST / WORD;
/// Every so many words one is of its message; the others are of their place alone.
const STAMPED: usize = 64;
/// Of so many messages one is compared word by word.
const WHOLE_EVERY: u64 = 16;
/// Looks for the end of a send before others may have the processor.
const LOOKS: u32 = 64;
/// Messages between two looks at the background.
const TEND_EVERY: u64 = 8;

/// By what the messages of a run go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// As a policy decides, and whether it is watched.
    Policy {
        /// Which one.
        policy: Chooser,
        /// Whether a timeline is made.
        watched: bool,
    },
    /// All by one mode.
    Fixed(String),
}

/// Policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Chooser {
    /// `Thresholds::new()`
    Thresholds,
    /// `Thresholds::tuned()`: with what `doorbell tune` found
    Tuned,
    /// What is asked for is done, as without a policy
    Asked,
}

impl Chooser {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Chooser::Thresholds => "thresholds",
            Chooser::Tuned => "tuned",
            Chooser::Asked => "asked",
        }
    }

    fn make(self) -> Box<dyn Policy> {
        match self {
            Chooser::Thresholds => Box::new(Thresholds::new()),
            Chooser::Tuned => Box::new(Thresholds::tuned()),
            Chooser::Asked => Box::new(AsAsked),
        }
    }
}

/// What one process found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Found {
    /// The one that writes.
    Written(Box<Written>),
    /// The one that reads: for each phase.
    Read(Vec<ReadPhase>),
}

/// What the writer found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Written {
    /// The links there were.
    pub links: Vec<String>,
    /// Why the load can't go by this way here, if it can't.
    pub unavailable: Option<String>,
    /// For each phase.
    pub phases: Vec<WrittenPhase>,
    /// If the policy was watched.
    pub timeline: Option<Timeline>,
}

/// What the writer knows of a phase.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WrittenPhase {
    /// When it began, on the clock of both.
    pub start: u64,
    /// Messages by the modes that they took, as their receipts say.
    pub used: BTreeMap<String, u64>,
    /// The same of the background.
    pub background: BTreeMap<String, u64>,
}

/// What the reader knows of a phase.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReadPhase {
    /// Messages, each the one after the one before it, and whole.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// When it had the last one.
    pub end: u64,
    /// Nanoseconds from when a message was due, or handed over, until it was read.
    pub latency: Recorded,
    /// Messages of the background.
    pub background: u64,
    /// Their bytes.
    pub background_bytes: u64,
}

/// What this process is at, for whoever looks whether it gets on.
#[derive(Debug, Default)]
struct Progress {
    phase: AtomicU64,
    message: AtomicU64,
    is_over: AtomicBool,
}

/// Joins the domain, and writes or reads.
pub fn work(run: &Run, place: &Place) -> Result<Found, Trouble> {
    let at = Arc::new(Progress::default());
    watch_over(run, place, &at);
    let done = join(run, place).and_then(|(node, watch)| {
        let done = match place.process {
            0 => write(run, &node, watch.as_deref(), &at).map(|written| Found::Written(Box::new(written))),
            _ => read_all(run, &node, &at).map(Found::Read),
        };
        leave(node, done)
    });
    at.is_over.store(true, Ordering::Relaxed);
    done
}

/// Ends this process when it is told to stop, or when it hangs: a receive without a deadline looks for neither.
fn watch_over(run: &Run, place: &Place, at: &Arc<Progress>) {
    let (stop, at, limit) = (place.stop.clone(), at.clone(), Duration::from_secs(run.limit_s));
    let (verb, phases) = (if place.process == 0 { "sent" } else { "read" }, run.load.phases.clone());
    let begun = Instant::now();
    thread::spawn(move || {
        while !at.is_over.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(50));
            if stop.load(Ordering::Relaxed) {
                give_up::<Run>(Stopped.into());
            }
            if begun.elapsed() > limit {
                let phase = at.phase.load(Ordering::Relaxed) as usize;
                let name = phases.get(phase).map_or("", |phase| &phase.name);
                let message = at.message.load(Ordering::Relaxed);
                let what = format!("after {} s it hangs: phase '{name}', {message} messages {verb}", limit.as_secs());
                give_up::<Run>(Trouble::Wrong(what));
            }
        }
    });
}

type Joined = (Node, Option<Arc<Watch>>);

fn join(run: &Run, place: &Place) -> Result<Joined, Trouble> {
    let Place { process, mapping, patience, .. } = place;
    let domain = &run.setting.domain;
    let why = |error: Error| {
        let what = format!("could not join the domain '{domain}' as node {process}: {error}");
        Trouble::Unable(Failure::usage(what, "see `doorbell info`"))
    };
    let mut builder = run.setting.builder("modes").map_err(why)?;
    builder = builder.id(NodeId(*process as u16)).max_nodes(2).dead_after(SILENCE);
    let note = if *process == 0 { 0 } else { mapping.gate().read_note(patience)? };
    for (at, address) in ADDRESSES.into_iter().enumerate() {
        builder = builder.listen(SocketAddr::from((address, 0)));
        if *process > 0 {
            let port = (note >> (16 * at)) as u16;
            let there = SocketAddr::from((address, port));
            builder = if at == 0 { builder.connect(there) } else { builder.seek(there) };
        }
    }
    let mut watch = None;
    match run.way {
        Way::Policy { policy, watched: true } if *process == 0 => {
            let made = Watch::new(policy.make());
            watch = Some(made.clone());
            builder = builder.policy(Watched(made));
        }
        Way::Policy { policy: Chooser::Thresholds, .. } if *process == 0 => builder = builder.policy(Thresholds::new()),
        Way::Policy { policy: Chooser::Tuned, .. } if *process == 0 => builder = builder.policy(Thresholds::tuned()),
        Way::Policy { policy: Chooser::Asked, .. } if *process == 0 => builder = builder.policy(AsAsked),
        _ => {}
    }
    let node = builder.join().map_err(why)?;
    if *process == 0 {
        let ports = node.addresses().iter().enumerate().map(|(at, address)| u64::from(address.port()) << (16 * at));
        mapping.gate().leave_note(ports.sum());
    }
    match place.meet(&node, 2) {
        Err(Trouble::Driver(error)) => Err(why(error)),
        met => met.map(|()| (node, watch)),
    }
}

/// A buffer, and how much of it is a message.
struct Slot {
    memory: Memory,
    len: usize,
}

impl AsRef<[u8]> for Slot {
    fn as_ref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

/// Memory for messages of a phase.
fn memory(node: &Node, place: Where, bytes: usize) -> Result<Memory, Trouble> {
    match place {
        Where::Private => Memory::private(bytes).map_err(|error| Trouble::unable("could not allocate buffers", error)),
        Where::Region => {
            let region = node.region::<u8>(bytes)?;
            // SAFETY: the only slice of the region, which the box keeps; peers touch it on behalf of sends and receives alone.
            let start = unsafe { region.as_mut_slice() }.as_mut_ptr();
            // SAFETY: as above.
            Ok(unsafe { Memory::lent(start, bytes, Box::new(region)) })
        }
    }
}

fn slots(node: &Node, place: Where, bytes: usize, count: usize) -> Result<Vec<Slot>, Trouble> {
    let slot = |_| {
        let mut memory = memory(node, place, bytes)?;
        for (place, word) in memory.as_chunks_mut().0.iter_mut().enumerate() {
            *word = placed(place).to_ne_bytes();
        }
        Ok(Slot { memory, len: bytes })
    };
    (0..count).map(slot).collect()
}

/// The word that belongs to a place.
fn placed(place: usize) -> u64 {
    (place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn is_stamped(place: usize) -> bool {
    place % STAMPED == HEAD
}

/// Makes a message of a buffer.
fn stamp(slot: &mut Slot, len: usize, number: u64, due: u64) {
    slot.len = len;
    let words = slot.memory[..len].as_chunks_mut().0;
    let of_message = mix(number);
    for (word, number) in words.iter_mut().zip([number, due, len as u64, mix(number ^ due ^ len as u64)]) {
        *word = number.to_ne_bytes();
    }
    for place in (HEAD..words.len()).step_by(STAMPED) {
        words[place] = (placed(place) ^ of_message).to_ne_bytes();
    }
}

/// When a message was due, if it is the one with this number, and whole.
fn check(bytes: &[u8], expected: u64) -> Result<u64, String> {
    let words = bytes.as_chunks().0;
    let word = |place: usize| words.get(place).copied().map_or(0, u64::from_ne_bytes);
    let (number, due, len) = (word(0), word(1), word(2));
    if word(3) != mix(number ^ due ^ len) {
        return Err(format!("message {expected} of {} bytes does not begin as any message does", bytes.len()));
    }
    if number != expected || len != bytes.len() as u64 {
        let kind = if number < expected { "came again or too late" } else { "came too early, or those before it are lost" };
        return Err(format!("message {number} of {len} bytes {kind}: {expected} was to come; {} bytes came", bytes.len()));
    }
    let of_message = mix(number);
    let is_whole = number.is_multiple_of(WHOLE_EVERY);
    let step = if is_whole { 1 } else { STAMPED };
    for place in (HEAD..words.len()).step_by(step) {
        let right = if is_stamped(place) { placed(place) ^ of_message } else { placed(place) };
        if word(place) != right {
            return Err(format!("message {number} of {len} bytes is not what was sent, from byte {} on", place * WORD));
        }
    }
    Ok(due)
}

/// What is asked for, for a message of this length.
fn asks(fixed: Option<Mode>, of_phase: ModeRequest, len: usize) -> ModeRequest {
    match fixed {
        None => of_phase,
        Some(mode) if mode.protocol != Protocol::Transfer && len < RENDEZVOUS_BYTES => {
            Mode { protocol: Protocol::Transfer, ..mode }.into()
        }
        Some(mode) => mode.into(),
    }
}

/// The mode that a request names whole.
fn whole(words: &str) -> Result<Mode, Trouble> {
    let request: ModeRequest = words.parse().map_err(|error| Trouble::Wrong(format!("{error}")))?;
    let mode = request.fabric.zip(request.link).zip(request.protocol);
    let ((fabric, link), protocol) = mode.ok_or_else(|| Trouble::Wrong(format!("{words} is no whole mode")))?;
    Ok(Mode { fabric, link, protocol })
}

/// Which links there are, when all are there or the time is over.
fn links(peer: &Peer) -> Result<Vec<String>, Trouble> {
    let deadline = Instant::now() + LINKS_WITHIN;
    let mut found = Vec::new();
    for link in ["shm/0", "udp/0", "udp/1"] {
        let request: ModeRequest = link.parse().map_err(|error| Trouble::Wrong(format!("{error}")))?;
        loop {
            // Under a policy it may go another way, and says so.
            match peer.send_as(LOOK, &[], request) {
                Ok(receipt) if request.allows(receipt.used) => {
                    found.push(link.to_owned());
                    break;
                }
                Ok(_) | Err(Error::Invalid { .. }) if Instant::now() < deadline => thread::sleep(Duration::from_millis(1)),
                Ok(_) | Err(Error::Invalid { .. }) => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(found)
}

/// Sends, and keeps the buffers of what is on its way.
struct Flow<'a> {
    peer: &'a Peer,
    tag: u64,
    free: Vec<Slot>,
    going: VecDeque<Request<Slot>>,
    used: Vec<(Mode, u64)>,
}

/// Sorted as they are written.
type Used = BTreeMap<String, u64>;

impl<'a> Flow<'a> {
    fn new(peer: &'a Peer, tag: u64, free: Vec<Slot>) -> Self {
        Self { peer, tag, going: VecDeque::with_capacity(free.len()), free, used: Vec::with_capacity(16) }
    }

    fn send(&mut self, slot: Slot, mode: ModeRequest) -> Result<(), Error> {
        self.going.push_back(self.peer.start_send_as(self.tag, slot, mode)?);
        Ok(())
    }

    /// Takes back the buffers of what has gone. Turns the engine if something has not.
    fn tend(&mut self) -> Result<(), Error> {
        while self.going.front().is_some_and(Request::test) {
            self.finish()?;
        }
        Ok(())
    }

    /// Waits for the first of those on their way. By testing: what was queued has its receipt only when it is decided.
    fn finish(&mut self) -> Result<(), Error> {
        let Some(request) = self.going.pop_front() else { return Ok(()) };
        for look in 0.. {
            if request.test() {
                break;
            }
            if look > LOOKS {
                thread::yield_now();
            }
        }
        if let Some(Receipt { used, .. }) = request.receipt() {
            match self.used.iter_mut().find(|(mode, _)| *mode == used) {
                Some((_, count)) => *count += 1,
                None => self.used.push((used, 1)),
            }
        }
        let completion = request.wait();
        completion.result?;
        self.free.push(completion.buffer);
        Ok(())
    }

    fn drain(&mut self) -> Result<(), Error> {
        while !self.going.is_empty() {
            self.finish()?;
        }
        Ok(())
    }

    fn used(&self) -> Used {
        self.used.iter().map(|(mode, count)| (mode.to_string(), *count)).collect()
    }
}

/// The flow beside the messages.
struct Beside<'a> {
    flow: Flow<'a>,
    mode: ModeRequest,
    len: usize,
    sent: u64,
}

impl Beside<'_> {
    /// Has as many on their way as there may be.
    fn fill(&mut self) -> Result<(), Error> {
        self.flow.tend()?;
        while let Some(mut slot) = self.flow.free.pop() {
            stamp(&mut slot, self.len, self.sent, now());
            self.flow.send(slot, asks(None, self.mode, self.len))?;
            self.sent += 1;
        }
        Ok(())
    }
}

/// The writer: sends phase after phase, and after each waits until all was read.
fn write(run: &Run, node: &Node, watch: Option<&Watch>, at: &Progress) -> Result<Written, Trouble> {
    let peer = node.peer(READER)?;
    let low = node.peer_with_priority(READER, Priority::Low)?;
    let mut written = Written { links: links(&peer)?, ..Written::default() };
    let fixed = match &run.way {
        Way::Fixed(words) => Some(whole(words)?),
        Way::Policy { .. } => None,
    };
    for (number, phase) in run.load.phases.iter().enumerate() {
        at.phase.store(number as u64, Ordering::Relaxed);
        let free = slots(node, phase.memory, phase.sizes.most(), phase.window)?;
        let beside = match &phase.background {
            None => None,
            Some(background) => {
                let free = slots(node, Where::Private, background.size.0, background.window)?;
                let flow = Flow::new(&low, BACKGROUND, free);
                Some(Beside { flow, mode: background.mode, len: background.size.0, sent: 0 })
            }
        };
        // One for nothing: whether it can go so, and so that what comes first does not pay for what is made at the first use.
        let (most, first) = (phase.sizes.most(), free.first().map_or(&[][..], Slot::as_ref));
        let counts = match peer.send_as(LOOK, &first[..most], asks(fixed, phase.asks, most)) {
            Ok(_) => {
                let mut flow = Flow::new(&peer, MESSAGE, free);
                let (counts, found) = write_phase(phase, (number as u64, fixed), &mut flow, beside, watch, at)?;
                written.phases.push(found);
                counts
            }
            Err(Error::Invalid { what }) => {
                written.unavailable = Some(what);
                [0, 0]
            }
            Err(error) => return Err(error.into()),
        };
        let is_last = written.unavailable.is_some() || number + 1 == run.load.phases.len();
        peer.send(OVER, &counts.iter().chain(&[u64::from(is_last)]).flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>())?;
        peer.recv(Match::any().tag(READ), &mut [])?;
        if is_last {
            break;
        }
    }
    written.timeline = watch.map(Watch::timeline);
    Ok(written)
}

/// Messages, and those of the background.
type Counts = [u64; 2];

/// One phase, and how much was sent of it.
fn write_phase(
    phase: &Phase,
    (number, fixed): (u64, Option<Mode>),
    flow: &mut Flow<'_>,
    mut beside: Option<Beside<'_>>,
    watch: Option<&Watch>,
    at: &Progress,
) -> Result<(Counts, WrittenPhase), Error> {
    let mut sent = 0;
    let mut found = WrittenPhase { start: now(), ..WrittenPhase::default() };
    if let Some(watch) = watch {
        watch.go_on(found.start);
    }
    let mut noise = Noise::new(number);
    let mut due = 0;
    while sent < phase.messages {
        if sent.is_multiple_of(phase.burst) {
            due = if phase.every_us > 0 { found.start + sent / phase.burst * phase.every_us * 1000 } else { 0 };
            wait_until(due, flow, &mut beside)?;
        }
        if sent.is_multiple_of(TEND_EVERY) {
            flow.tend()?;
            beside.as_mut().map_or(Ok(()), Beside::fill)?;
        }
        let mut slot = loop {
            match flow.free.pop() {
                Some(slot) => break slot,
                None => flow.finish()?,
            }
            beside.as_mut().map_or(Ok(()), Beside::fill)?;
        };
        let len = phase.sizes.pick(noise.next());
        stamp(&mut slot, len, sent, if due > 0 { due } else { now() });
        flow.send(slot, asks(fixed, phase.asks, len))?;
        sent += 1;
        at.message.store(sent, Ordering::Relaxed);
    }
    flow.drain()?;
    if let Some(beside) = &mut beside {
        beside.flow.drain()?;
    }
    if let Some(watch) = watch {
        watch.pause();
    }
    found.used = flow.used();
    found.background = beside.as_ref().map(|beside| beside.flow.used()).unwrap_or_default();
    Ok(([sent, beside.map_or(0, |beside| beside.sent)], found))
}

/// Waits for a moment. Meanwhile what is on its way gets on.
fn wait_until(moment: u64, flow: &mut Flow<'_>, beside: &mut Option<Beside<'_>>) -> Result<(), Error> {
    /// Sooner a thread does not wake up.
    const DOZE: u64 = 200_000;
    loop {
        let left = moment.saturating_sub(now());
        if left == 0 {
            return Ok(());
        }
        flow.tend()?;
        if let Some(beside) = beside {
            beside.fill()?;
        } else if flow.going.is_empty() && left > DOZE {
            thread::sleep(Duration::from_nanos(left - DOZE / 2));
        }
        std::hint::spin_loop();
    }
}

/// The reader: reads what comes, looks whether it is right, and behaves as the phase says.
fn read_all(run: &Run, node: &Node, at: &Progress) -> Result<Vec<ReadPhase>, Trouble> {
    let peer = node.peer(WRITER)?;
    let mut phases = Vec::new();
    for (number, phase) in run.load.phases.iter().enumerate() {
        at.phase.store(number as u64, Ordering::Relaxed);
        let most = phase.sizes.most().max(phase.background.as_ref().map_or(0, |background| background.size.0)).max(LEAST);
        let mut into = memory(node, phase.memory, most)?;
        let (found, is_last) = read_phase(phase, &peer, &mut into, at)?;
        phases.push(found);
        peer.send(READ, &[])?;
        if is_last {
            break;
        }
    }
    Ok(phases)
}

fn read_phase(phase: &Phase, peer: &Peer, into: &mut [u8], at: &Progress) -> Result<(ReadPhase, bool), Trouble> {
    let mut found = ReadPhase::default();
    let mut latency = Samples::new();
    let wrong = |what: String| Trouble::Wrong(format!("phase '{}': {what}", phase.name));
    let mut all: Option<[u64; 3]> = None;
    let work = (phase.reader.work_us * 1e3) as u64;
    loop {
        if let Some([messages, background, is_last]) = all {
            if found.messages != messages {
                return Err(wrong(format!("{} messages came of {messages} that were sent", found.messages)));
            }
            if found.background == background {
                found.latency = pack(&latency);
                return Ok((found, is_last != 0));
            }
        }
        let envelope = peer.recv(Match::any(), into)?;
        let bytes = &into[..envelope.len];
        match envelope.tag {
            MESSAGE => {
                let due = check(bytes, found.messages).map_err(wrong)?;
                let moment = now();
                latency.record(moment.saturating_sub(due));
                found.messages += 1;
                found.bytes += bytes.len() as u64;
                found.end = moment;
                at.message.store(found.messages, Ordering::Relaxed);
                if work > 0 {
                    while now() < moment + work {
                        std::hint::spin_loop();
                    }
                }
                if phase.reader.stall_every > 0 && found.messages.is_multiple_of(phase.reader.stall_every) {
                    thread::sleep(Duration::from_millis(phase.reader.stall_ms));
                }
            }
            BACKGROUND => {
                check(bytes, found.background).map_err(|what| wrong(format!("background: {what}")))?;
                found.background += 1;
                found.background_bytes += bytes.len() as u64;
            }
            OVER => {
                let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
                all = Some(words.try_into().map_err(|_| wrong("the end of a phase is malformed".into()))?);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: u64, len: usize) -> Vec<u8> {
        let mut memory = Memory::private(len).unwrap();
        for (place, word) in memory.as_chunks_mut().0.iter_mut().enumerate() {
            *word = placed(place).to_ne_bytes();
        }
        let mut slot = Slot { memory, len };
        stamp(&mut slot, len, number, 17);
        slot.as_ref().to_vec()
    }

    #[test]
    fn a_message_that_is_another_or_not_whole_is_found() {
        for len in [LEAST, LEAST + 1, 40, 1000, 65_536] {
            assert_eq!(check(&message(16, len), 16), Ok(17), "{len}");
            assert!(check(&message(16, len), 17).unwrap_err().contains("came again or too late"));
            assert!(check(&message(16, len), 15).unwrap_err().contains("came too early"));
            assert!(check(&message(16, len)[..LEAST - 1], 16).is_err());
        }
        let mut long = message(16, 65_536);
        long[65_535] ^= 1;
        assert!(check(&long, 16).unwrap_err().contains("from byte 65528 on"));
        // Of the message before it, in the same buffer.
        let mut mixed = message(17, 65_536);
        mixed[8192..].copy_from_slice(&message(16, 65_536)[8192..]);
        assert!(check(&mixed, 17).unwrap_err().contains("from byte 8224 on"));
    }

    #[test]
    fn a_fixed_dma_takes_the_lane_for_what_is_short() {
        let put = whole("udp/0/put").unwrap();
        let words = |len| asks(Some(put), ModeRequest::default(), len).to_string();
        assert_eq!((words(RENDEZVOUS_BYTES - 1), words(RENDEZVOUS_BYTES)), ("udp/0/transfer".into(), "udp/0/put".into()));
        assert_eq!(asks(None, ModeRequest::default(), 1).to_string(), "any");
        assert!(whole("udp/0").is_err());
    }
}
