//! The process that writes a load.

use super::load::Place as Where;
use super::{
    BACKGROUND, LOOK, MESSAGE, Noise, OVER, Phase, Progress, READ, READER, Run, Slot, Watch, Way, Written, WrittenPhase, slots,
    stamp,
};
use crate::clock::now;
use crate::experiment::Trouble;
use doorbell::mode::{Mode, ModeRequest, Protocol, Receipt};
use doorbell::transfer::RENDEZVOUS_BYTES;
use doorbell::{Completion, Error, Match, Node, Operation, Peer, Priority};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

/// How long the links may take to be up.
const LINKS_WITHIN: Duration = Duration::from_secs(3);
/// How often the writer looks for the end of a send before it yields.
const LOOKS: u32 = 64;
/// Messages between two looks at the background.
const TEND_EVERY: u64 = 8;

/// The mode to request for a message of this length.
fn asks(fixed: Option<Mode>, of_phase: ModeRequest, len: usize) -> ModeRequest {
    match fixed {
        None => of_phase,
        Some(mode) if mode.protocol != Protocol::Transfer && len < RENDEZVOUS_BYTES => {
            Mode { protocol: Protocol::Transfer, ..mode }.into()
        }
        Some(mode) => mode.into(),
    }
}

/// A mode from words that name all of it.
fn whole(words: &str) -> Result<Mode, Trouble> {
    let request: ModeRequest = words.parse().map_err(|error| Trouble::Wrong(format!("{error}")))?;
    let mode = request.fabric.zip(request.link).zip(request.protocol);
    let ((fabric, link), protocol) = mode.ok_or_else(|| Trouble::Wrong(format!("{words} does not name a whole mode")))?;
    Ok(Mode { fabric, link, protocol })
}

/// The links between the two processes, as soon as all are up or the time is over.
fn links(peer: &Peer) -> Result<Vec<String>, Trouble> {
    let deadline = Instant::now() + LINKS_WITHIN;
    let mut found = Vec::new();
    for link in ["shm/0", "udp/0", "udp/1"] {
        let request: ModeRequest = link.parse().map_err(|error| Trouble::Wrong(format!("{error}")))?;
        loop {
            // Under a policy the message may take another mode, and the receipt says so.
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

/// Sends messages, and keeps the buffers of those under way.
struct Flow<'a> {
    peer: &'a Peer,
    tag: u64,
    free: Vec<Slot>,
    going: VecDeque<Operation<Completion<Slot>>>,
    used: Vec<(Mode, u64)>,
}

/// How many messages took each mode.
type Used = BTreeMap<String, u64>;

impl<'a> Flow<'a> {
    fn new(peer: &'a Peer, tag: u64, free: Vec<Slot>) -> Self {
        Self { peer, tag, going: VecDeque::with_capacity(free.len()), free, used: Vec::with_capacity(16) }
    }

    fn send(&mut self, slot: Slot, mode: ModeRequest) -> Result<(), Error> {
        self.going.push_back(self.peer.start_send_as(self.tag, slot, mode)?);
        Ok(())
    }

    /// Takes back the buffers of sent messages. Turns the engine if some are not sent yet.
    fn tend(&mut self) -> Result<(), Error> {
        while self.going.front().is_some_and(Operation::test) {
            self.finish()?;
        }
        Ok(())
    }

    /// Waits for the oldest message under way by testing: a queued message gets its receipt only when its mode is decided.
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

/// The background of a phase.
struct Beside<'a> {
    flow: Flow<'a>,
    mode: ModeRequest,
    len: usize,
    sent: u64,
}

impl Beside<'_> {
    /// Sends as many background messages as may be under way.
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

/// Sends the phases one after the other, and waits after each until the reader has read all of it.
pub fn write(run: &Run, node: &Node, watch: Option<&Watch>, at: &Progress) -> Result<Written, Trouble> {
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
        // A first message shows whether the mode exists. It also sets up what the first use of a mode needs.
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

/// How many messages and background messages were sent.
type Counts = [u64; 2];

/// Sends one phase.
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

/// Waits for a moment, and meanwhile moves the messages under way.
fn wait_until(moment: u64, flow: &mut Flow<'_>, beside: &mut Option<Beside<'_>>) -> Result<(), Error> {
    /// The shortest sleep from which a thread wakes in time.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_dma_takes_the_lane_for_what_is_short() {
        let put = whole("udp/0/put").unwrap();
        let words = |len| asks(Some(put), ModeRequest::default(), len).to_string();
        assert_eq!((words(RENDEZVOUS_BYTES - 1), words(RENDEZVOUS_BYTES)), ("udp/0/transfer".into(), "udp/0/put".into()));
        assert_eq!(asks(None, ModeRequest::default(), 1).to_string(), "any");
        assert!(whole("udp/0").is_err());
    }
}
