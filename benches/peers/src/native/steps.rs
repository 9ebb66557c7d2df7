//! Transfers of Doorbell in two steps, between which the process computes. The poller of its node carries them out.

use crate::order::Work;
use crate::transport::{Result, Setup, TAG};
use doorbell::dma::{Descriptor, InjectionFifo};
use doorbell::{Completion, Counter, Error, KEY_BYTES, Key, Match, Node, Operation, Peer, ReadWrite, Received, Region};
use doorbell_benches::memory::Memory;

/// A transfer, under way or not.
#[derive(Debug)]
pub struct Steps {
    /// The source or the target. The engine has it while a message is under way.
    memory: Option<Memory>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Put { source: Region<u8>, target: Key<u8, ReadWrite>, fifo: InjectionFifo, sent: Counter },
    Send(Option<Operation<Completion<Memory>>>),
    Receive(Option<Operation<Received<Memory>>>),
}

const NOTHING: &str = "no transfer is under way";

impl Steps {
    /// Prepares the transfers of the order. Of a put, both sides have the memory.
    pub fn new(setup: &Setup<'_>, node: &Node) -> Result<Self> {
        let bytes = setup.order.bytes();
        match setup.order.work {
            Work::PutOverlap => {
                let source = node.region::<u8>(bytes)?;
                // SAFETY: this is the only slice of the region, which the clone keeps mapped. The engine reads it between
                // `start` and `finish`, while the slice is not used; the memory of the target is not used at all.
                let memory = unsafe { Memory::lent(source.as_mut_slice().as_mut_ptr(), bytes, Box::new(source.clone())) };
                let theirs: [u8; KEY_BYTES] = setup
                    .place
                    .swap("key", &source.key().to_bytes())?
                    .try_into()
                    .map_err(|_| "the other process left a key of the wrong length")?;
                let (target, fifo, sent) = (Key::from_bytes(&theirs)?, InjectionFifo::builder(node).open()?, node.counter()?);
                Ok(Self { memory: Some(memory), kind: Kind::Put { source, target, fifo, sent } })
            }
            work => {
                let kind = if work == Work::SendOverlap { Kind::Send(None) } else { Kind::Receive(None) };
                Ok(Self { memory: Some(Memory::private(bytes)?), kind })
            }
        }
    }

    /// The source or the target.
    pub fn memory(&mut self) -> Result<&mut [u8]> {
        Ok(self.memory.as_mut().ok_or("the memory is under way")?)
    }

    /// Starts the transfer.
    pub fn start(&mut self, node: &Node, peer: &Peer) -> Result<()> {
        let mut message = || self.memory.take().ok_or("the memory is under way");
        match &mut self.kind {
            Kind::Put { source, target, fifo, sent } => {
                sent.init(source.len() as u64)?;
                let put = Descriptor::put(source.key(), *target)?.send_counter(sent.key());
                if !fifo.inject(&put)? {
                    return Err("the injection FIFO is full, although each put before was complete".into());
                }
            }
            Kind::Send(under_way) => *under_way = Some(peer.start_send(TAG, message()?)?),
            Kind::Receive(under_way) => *under_way = Some(node.start_recv(Match::from(peer.id()).tag(TAG), message()?)?),
        }
        Ok(())
    }

    /// Waits for its end.
    pub fn finish(&mut self) -> Result<()> {
        match &mut self.kind {
            Kind::Put { sent, .. } => sent.wait()?,
            Kind::Send(under_way) => self.memory = Some(super::finish(under_way.take().ok_or(NOTHING)?)?),
            Kind::Receive(under_way) => {
                let memory = super::finish(under_way.take().ok_or(NOTHING)?)?;
                self.memory = Some(memory.ok_or(Error::Cancelled)?);
            }
        }
        Ok(())
    }
}
