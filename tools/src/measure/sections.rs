//! The sections of a pair of processes, over the driver and over the machine's floor in turns.

use super::carrier::TAG;
use super::{By, Finding, Landing, Leg, NodeCalls, Over, PeerCalls, Plan, PutStream, Puts, Requests, Test, Together};
use crate::clock::processor_time;
use crate::exit::Explain;
use crate::experiment::{Trouble, unless_stopped};
use doorbell::mode::ModeRequest;
use doorbell::{Envelope, Match, Node, NodeId, Payload, Peer, Recipient};
use doorbell_benches::exchange;
use doorbell_benches::stream;
use doorbell_benches::{
    Buffers, Datagrams, Floor, Flow, Memory, Messages, Part, Patience, Samples, Section, Side, UdpEnd, Way, ticks, touch,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The most bytes of a datagram in a stream over the floor. The kernel cuts runs of datagrams into these, and larger ones are no faster.
const DATAGRAM: usize = 8 << 10;
/// How long such a stream lasts.
const POUR: Duration = Duration::from_millis(30);

/// The driver's end of a pair.
pub struct Driver<'a> {
    /// The node at this end.
    pub node: &'a Node,
    /// The peer; `None` if messages go through the node.
    pub peer: Option<&'a Peer>,
    /// The node at the other end.
    pub to: NodeId,
    /// The messages to receive, if they go through the node.
    pub from: Match,
    /// Says when to stop.
    pub patience: &'a Patience,
    /// The memory of puts, if the plan is by puts.
    pub landing: Option<Landing>,
    /// Whether messages are written and read in place.
    pub loan: bool,
    /// The mode by which the peer sends messages one by one.
    pub mode: Option<ModeRequest>,
    /// How many messages one call sends or receives.
    pub batch: usize,
}

impl Driver<'_> {
    fn play(&mut self, part: Part<'_>, section: Section, buffers: &mut Buffers) -> Result<(), Trouble> {
        let Self { node, peer, to, from, patience, loan, mode, .. } = *self;
        if let Some(landing) = &mut self.landing {
            let puts = Puts::new(node, peer, landing, section.bytes, patience);
            if matches!(part, Part::Pour | Part::Drain) {
                return exchange::play(PutStream::new(puts), part, section, buffers)?.finish();
            }
            let counts = exchange::play(puts, part, section, buffers)?.counts();
            landing.go_on(counts);
            return Ok(());
        }
        if loan {
            // The sender writes in place and the receiver reads in place, so the buffers of the exchange stay as they are.
            let (to, mut count, touched) = (peer.map_or(Recipient::Node(to), Recipient::Peer), 0, section.touched);
            let send = |message: &[u8]| {
                let mut loan = node.loan_bytes(message.len())?;
                if touched {
                    count += 1;
                    touch::write(&mut loan, count);
                }
                loan.send(to, TAG)
            };
            let receive = |_: &mut [u8]| {
                let taken = node.take_bytes(Match::any())?;
                if touched {
                    // SAFETY: the other process writes no loan that it has sent.
                    touch::read(unsafe { taken.as_slice() });
                }
                Ok(())
            };
            let section = Section { touched: false, ..section };
            return exchange::play(By { send, receive, patience }, part, section, buffers).map(drop);
        }
        if let Some((mode, peer)) = mode.zip(peer) {
            let send = |message: &[u8]| peer.send_as(TAG, message, mode).map(drop);
            let receive = |into: &mut [u8]| peer.recv(Match::any(), into).map(drop);
            return exchange::play(By { send, receive, patience }, part, section, buffers).map(drop);
        }
        if let Some(peer) = peer.filter(|_| self.batch > 1) {
            return match (part, section.touched) {
                (Part::Pour, _) => self.pour_batches(peer, section),
                (_, true) => self.drain_batches::<true>(section),
                (_, false) => self.drain_batches::<false>(section),
            };
        }
        // The target of a stream receives it through the node.
        if let Some(peer) = peer.filter(|_| !matches!(part, Part::Drain)) {
            return exchange::play(PeerCalls::new(peer, patience, section.bytes), part, section, buffers).map(drop);
        }
        exchange::play(NodeCalls::new(node, (to, from), patience, section.bytes), part, section, buffers).map(drop)
    }

    /// Sends the messages of a section, several by one call.
    fn pour_batches(&self, peer: &Peer, section: Section) -> Result<(), Trouble> {
        let Section { bytes, touched, .. } = section;
        let mut room = Memory::private(bytes * self.batch).or_usage("could not allocate buffers", "")?;
        let empty: Vec<(u64, &[u8])> = vec![(TAG, &[]); if bytes == 0 { self.batch } else { 0 }];
        let mut left = section.warmup + section.count;
        while left > 0 {
            if touched {
                room.chunks_mut(bytes.max(1)).for_each(|message| touch::write(message, left as u64));
            }
            let count = left.min(self.batch);
            match bytes {
                0 => peer.send_many(&empty[..count])?,
                _ => peer.send_chunks(TAG, bytes, &room[..count * bytes])?,
            }
            unless_stopped(self.patience)?;
            left -= count;
        }
        Ok(())
    }

    /// Receives the messages of a section, several by one call.
    fn drain_batches<const TOUCHED: bool>(&self, section: Section) -> Result<(), Trouble> {
        let mut left = section.warmup + section.count;
        while left > 0 {
            let read = |_: &Envelope, payload: Payload<'_>| {
                if TOUCHED {
                    // SAFETY: the other process does not write a message that it has sent, until the message is taken.
                    touch::read(unsafe { std::slice::from_raw_parts(payload.as_ptr(), payload.len()) });
                }
            };
            left -= self.node.recv_many(self.from, left.min(self.batch), read)?;
            unless_stopped(self.patience)?;
        }
        Ok(())
    }

    fn stream(&self, flow: Flow, messages: &mut Messages) -> Result<(), Trouble> {
        let Self { node, peer, to, patience, .. } = *self;
        stream::run(&mut Requests { node, peer, to, patience }, flow, messages)
    }
}

/// The machine's floor.
// A process has one of these.
#[allow(clippy::large_enum_variant)]
pub enum Floors<'a> {
    /// It is not measured.
    None,
    /// Memory that both processes share.
    Memory(Floor<'a>),
    /// A plain UDP socket.
    Udp(UdpEnd),
}

/// One side of a pair, ready for its sections.
pub struct Sections<'a> {
    /// The measurement.
    pub plan: &'a Plan,
    /// The side.
    pub side: Side,
    /// How the side keeps step with the others.
    pub together: Together<'a>,
    /// The side's end of the driver.
    pub driver: Driver<'a>,
    /// The side's end of the floor.
    pub floors: Floors<'a>,
    /// Says when to stop.
    pub patience: &'a Patience,
    /// The buffers of messages one by one.
    pub buffers: Buffers,
    /// The buffers of streams, for each leg.
    pub messages: Vec<Messages>,
}

impl Sections<'_> {
    /// Measures the sizes one after the other, and returns the findings for each when the other side is done as well.
    pub fn work(mut self) -> Result<Vec<Finding>, Trouble> {
        if !self.plan.shared {
            return self.all();
        }
        let (node, done) = (self.driver.node, AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| probe_now_and_then(node, &done));
            let findings = self.all();
            done.store(true, Ordering::Relaxed);
            findings
        })
    }

    fn all(&mut self) -> Result<Vec<Finding>, Trouble> {
        let plan = self.plan;
        let mut findings = Vec::new();
        // Why the kernel does not copy between the two processes. Both processes find that out.
        let mut refused = None;
        if let Floors::Memory(floor) = &self.floors
            && plan.test == Test::Bandwidth
            && plan.floor
        {
            refused = floor.may_pull()?.map(|error| error.to_string());
        }
        for (number, leg) in plan.legs.iter().enumerate() {
            let hops = Vec::from_iter(self.together.probe()?);
            let mut finding = Finding { refused: refused.clone(), hops, ..Finding::default() };
            for round in 0..leg.rounds {
                for over in plan.sections(leg, round) {
                    self.together.gate()?;
                    if over != Over::Pulled || refused.is_none() {
                        let before = processor_time();
                        self.section(number, over, finding.over(over))?;
                        finding.busy += if over == Over::Driver { processor_time() - before } else { Duration::ZERO };
                    }
                }
            }
            finding.hops.extend(self.together.probe()?);
            findings.push(finding);
        }
        // No process leaves while another may still use its node.
        self.together.gate()?;
        Ok(findings)
    }

    fn section(&mut self, number: usize, over: Over, samples: &mut Samples) -> Result<(), Trouble> {
        let plan = self.plan;
        let leg = &plan.legs[number];
        let section = Section { bytes: leg.bytes, warmup: leg.warmup, count: leg.count, touched: plan.touched };
        if over == Over::Floor
            && plan.test != Test::Latency
            && let Floors::Udp(end) = &self.floors
        {
            let ticks = pour_datagrams(end, self.side, leg, &mut self.together, self.patience)?;
            ticks.into_iter().for_each(|ticks| samples.record(ticks));
            return Ok(());
        }
        match (plan.test, self.side) {
            (Test::Latency, Side::Ping) => {
                let mut ticks = Vec::new();
                self.play(over, Part::Ping(&mut ticks), section)?;
                ticks.into_iter().for_each(|ticks| samples.record(ticks));
            }
            (Test::Latency, Side::Pong) => self.play(over, Part::Pong, section)?,
            (Test::Rate, Side::Ping) => {
                let start = ticks();
                self.play(over, Part::Pour, section)?;
                // The other process has no part in puts, so this one does not wait for it.
                if !plan.put {
                    self.together.wait()?;
                }
                samples.record(ticks() - start);
                if plan.put && plan.setting.net.is_some() {
                    self.together.tell()?;
                }
            }
            (Test::Rate, Side::Pong) if plan.put && plan.setting.net.is_some() => {
                self.together.wait_helping(self.driver.node, plan.arrival(), self.patience)?;
            }
            (Test::Rate, Side::Pong) if plan.put => {}
            (Test::Rate, Side::Pong) => {
                self.play(over, Part::Drain, section)?;
                self.together.tell()?;
            }
            (Test::Bandwidth, side) => {
                let start = ticks();
                self.stream(number, over, side)?;
                match side {
                    Side::Ping => {
                        self.together.wait()?;
                        samples.record(ticks() - start);
                    }
                    Side::Pong => self.together.tell()?,
                }
            }
        }
        Ok(())
    }

    fn stream(&mut self, number: usize, over: Over, side: Side) -> Result<(), Trouble> {
        let plan = self.plan;
        let Leg { bytes, count, .. } = plan.legs[number];
        let turns = |sends: bool| if sends || plan.both_ways { count } else { 0 };
        let flow = Flow { sends: turns(side == Side::Ping), receives: turns(side == Side::Pong), touched: plan.touched };
        let messages = &mut self.messages[number];
        match (over, &mut self.floors) {
            (Over::Driver, _) => self.driver.stream(flow, messages),
            (Over::Pulled, Floors::Memory(floor)) => Ok(floor.stream_pulled(flow, messages)?),
            (_, Floors::Memory(floor)) => Ok(floor.stream_copied(bytes, flow, messages)?),
            (_, Floors::Udp(_) | Floors::None) => Ok(()),
        }
    }

    fn play(&mut self, over: Over, part: Part<'_>, section: Section) -> Result<(), Trouble> {
        let (buffers, patience) = (&mut self.buffers, self.patience);
        match (over, &mut self.floors) {
            (Over::Driver, _) => self.driver.play(part, section, buffers),
            (Over::Chunked(chunk), Floors::Memory(floor)) => Ok(floor.play_chunked(chunk, part, section, buffers)?),
            (_, Floors::Memory(floor)) => Ok(floor.play(part, section, buffers)?),
            (_, Floors::Udp(end)) => Ok(exchange::play(Datagrams { end, patience }, part, section, buffers).map(drop)?),
            (_, Floors::None) => Ok(()),
        }
    }
}

/// A section of the floor of a stream: as many datagrams as fit in a time, in runs that the kernel cuts and gathers. A slow receiver loses
/// some, so the receiver counts. It returns the ticks that the messages of a section would take.
fn pour_datagrams(
    end: &UdpEnd,
    side: Side,
    leg: &Leg,
    together: &mut Together<'_>,
    patience: &Patience,
) -> Result<Option<u64>, Trouble> {
    if side == Side::Ping {
        end.pour(leg.bytes.clamp(1, DATAGRAM), Way::CutAndGathered, POUR, patience)?;
        together.tell()?;
        return Ok(None);
    }
    let start = (ticks(), Instant::now());
    let arrived = end.drain(Way::CutAndGathered, patience, || together.is_told())?;
    let ticks_per_ns = (ticks() - start.0) as f64 / (start.1.elapsed().as_nanos() as f64).max(1.0);
    together.wait()?;
    let bytes = (leg.bytes.max(1) * leg.count) as f64;
    Ok(Some((bytes / arrived.rate() * ticks_per_ns) as u64))
}

/// Another thread of the process, which uses the node rarely.
fn probe_now_and_then(node: &Node, done: &AtomicBool) {
    let node = node.clone();
    while !done.load(Ordering::Relaxed) {
        // The measuring thread reports the same error.
        let _ = node.probe(Match::any());
        std::thread::sleep(Duration::from_millis(10));
    }
}
