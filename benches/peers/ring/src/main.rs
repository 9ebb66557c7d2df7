//! A plain ring as a peer of Doorbell: what a program would write for itself, one ring of bytes in each direction.
//!
//! It matches no tags and does not notice that the other process died.

mod ring;

use doorbell_benches::exchange::{self, Buffers, Carrier, Part, Section, Side};
use doorbell_benches::memory::Memory;
use doorbell_benches::stream::{self, Flow, Window};
use doorbell_peers::batch::{self, Batches};
use doorbell_peers::order::{Over, Work};
use doorbell_peers::transport::{BATCH, Fault, Result, Setup, StreamBuffers, Transport, unknown, until, until_pausing};
use doorbell_peers::worker;
use ring::{Receiver, SHARED, Sender};
use shared_memory::ShmemConf;
use std::collections::VecDeque;
use std::process::ExitCode;

fn main() -> ExitCode {
    worker::main::<Rings>()
}

struct Rings {
    out: Sender,
    back: Receiver,
    crowded: bool,
    buffers: Buffers,
    messages: StreamBuffers,
    /// Room for a batch of messages.
    batch: Memory,
}

impl Transport for Rings {
    fn open(setup: &Setup<'_>) -> Result<Self> {
        let order = setup.order;
        let knows = matches!(order.work, Work::Latency | Work::Rate | Work::Batch | Work::OneWay | Work::BothWays | Work::Pairs);
        if !knows || order.over != Over::Memory {
            return Err(unknown("the plain ring", order.work, order.over));
        }
        let name = |node| format!("/{}-ring-{node}", order.prefix);
        let mine = ShmemConf::new().os_id(name(setup.node)).size(SHARED).create()?;
        setup.place.swap("ring", &[])?;
        let theirs = ShmemConf::new().os_id(name(setup.other())).open()?;
        let (Some(out), Some(back)) = (Sender::new(mine), Receiver::new(theirs)) else {
            return Err("the system gave less memory than a ring needs".into());
        };
        let batch = Memory::private(if order.work == Work::Batch { BATCH * order.bytes() } else { 0 })?;
        let (buffers, messages) = (setup.buffers()?, StreamBuffers::new(order));
        Ok(Self { out, back, crowded: order.crowded(), buffers, messages, batch })
    }

    fn version(&self) -> String {
        "one sender, one receiver, 1 MiB; shared_memory 0.12".into()
    }

    fn play(&mut self, part: Part<'_>, section: Section) -> Result<()> {
        let Self { out, back, crowded, buffers, .. } = self;
        exchange::play(Way { out, back, crowded: *crowded }, part, section, buffers)?;
        Ok(())
    }

    fn batches(&mut self, side: Side, section: Section) -> Result<()> {
        let Self { out, back, crowded, batch, .. } = self;
        batch::play(&mut Several { way: Way { out, back, crowded: *crowded }, batch, bytes: section.bytes }, side, section)
    }

    fn stream(&mut self, bytes: usize, flow: Flow) -> Result<()> {
        let Self { out, back, crowded, messages, .. } = self;
        let way = Way { out, back, crowded: *crowded };
        stream::run(&mut Streams { way, posted: VecDeque::new(), complete: 0, done: 0 }, flow, messages.of(bytes)?)
    }
}

struct Way<'a> {
    out: &'a mut Sender,
    back: &'a mut Receiver,
    crowded: bool,
}

#[cold]
fn wrong(length: u64) -> Fault {
    format!("a message of {length} bytes came, and another length was expected").into()
}

impl Carrier for Way<'_> {
    type Error = Fault;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        let mut done = 0;
        until(self.crowded, || Ok(self.out.push(message, &mut done).then_some(())))
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [u8]) -> Result<()> {
        let mut done = 0;
        until_pausing(self.crowded, || self.back.pull(into, &mut done).map(|all| all.then_some(()))).map_err(wrong)
    }
}

/// Messages that are under way. A sender without room receives meanwhile: two that only send long messages would wait forever.
struct Streams<'a> {
    way: Way<'a>,
    posted: VecDeque<Memory>,
    /// The bytes that were received of the first message that is not complete.
    done: usize,
    /// The number of complete messages at the front of `posted`.
    complete: usize,
}

impl Streams<'_> {
    /// Receives what has come of the first message that is not complete.
    #[inline(always)]
    fn take(&mut self) -> Result<()> {
        if let Some(into) = self.posted.get_mut(self.complete)
            && self.way.back.pull(into, &mut self.done).map_err(wrong)?
        {
            self.complete += 1;
            self.done = 0;
        }
        Ok(())
    }
}

impl Window for Streams<'_> {
    type Error = Fault;
    type Sent = Memory;
    type Received = ();

    #[inline(always)]
    fn start_send(&mut self, message: Memory) -> Result<Memory> {
        let mut done = 0;
        until(self.way.crowded, || {
            if self.way.out.push(&message, &mut done) {
                return Ok(Some(()));
            }
            self.take().map(|()| None)
        })?;
        Ok(message)
    }

    #[inline(always)]
    fn finish_send(&mut self, sent: Memory) -> Result<Memory> {
        Ok(sent)
    }

    #[inline(always)]
    fn start_receive(&mut self, into: Memory) -> Result<()> {
        self.posted.push_back(into);
        Ok(())
    }

    #[inline(always)]
    fn finish_receive(&mut self, (): ()) -> Result<Memory> {
        until(self.way.crowded, || {
            if self.complete > 0 {
                self.complete -= 1;
                return Ok(self.posted.pop_front());
            }
            self.take().map(|()| None)
        })
    }
}

/// Batches: the position is published once for all messages of one.
struct Several<'a> {
    way: Way<'a>,
    batch: &'a mut Memory,
    bytes: usize,
}

impl Batches for Several<'_> {
    const IN_PLACE: bool = false;

    #[inline(always)]
    fn send(&mut self, bytes: usize, count: usize, write: impl FnMut(&mut [u8])) -> Result<()> {
        let batch = &mut self.batch[..bytes * count];
        batch.chunks_exact_mut(bytes).for_each(write);
        let mut done = 0;
        until(self.way.crowded, || {
            done += self.way.out.push_many(batch[done * bytes..].chunks_exact(bytes));
            Ok((done == count).then_some(()))
        })
    }

    #[inline(always)]
    fn receive(&mut self, limit: usize, mut read: impl FnMut(&[u8])) -> Result<usize> {
        let Self { way, batch, bytes } = self;
        until(way.crowded, || {
            match way.back.pull_many(batch[..*bytes * limit].chunks_exact_mut(*bytes), &mut read).map_err(wrong)? {
                0 => Ok(None),
                taken => Ok(Some(taken)),
            }
        })
    }
}
