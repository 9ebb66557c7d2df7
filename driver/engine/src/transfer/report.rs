//! What a transfer did: which way how many bytes went, who copied them, which thread executed each descriptor.

use doorbell_fabric::NodeId;
use doorbell_shm::meeting::Moved;
use std::collections::VecDeque;

/// What a descriptor asks the engine to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Descriptor {
    /// Request to send: tells the target of the message, and carries the direct-put descriptor to it.
    Rts,
    /// Chunks in packets, from the first end of the buffer.
    MemoryFifo,
    /// The acknowledgement: brings the direct-put descriptor back to the origin's engine.
    RemoteGet,
    /// Chunks into the target's memory, from the last end of the buffer.
    DirectPut,
    /// Chunks that the target copies itself, from the last end of the buffer.
    Pull,
}

/// One descriptor that this node's engine executed for a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Executed {
    /// Which.
    pub descriptor: Descriptor,
    /// The kernel's number of the thread that did so last.
    pub thread: i32,
    /// How many threads took part, one after the other; more than one where the engine changed hands.
    pub threads: u32,
    /// What it moved.
    pub moved: Moved,
}

/// Which end of a transfer this node was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The message was sent from here.
    Origin,
    /// The message was received here.
    Target,
}

/// What is known here of one transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferReport {
    /// Which end this node was.
    pub side: Side,
    /// The node at the other end.
    pub peer: NodeId,
    /// The message's tag.
    pub tag: u64,
    /// Bytes of the message.
    pub len: u64,
    /// Bytes of a chunk.
    pub chunk: u64,
    /// Whether the memory FIFO began at the buffer's high end.
    pub from_high: bool,
    /// What went by memory-FIFO packets.
    pub fifo: Moved,
    /// What the origin put into the target's memory.
    pub put: Moved,
    /// What the target copied itself.
    pub pulled: Moved,
    /// The descriptors that this node's engine executed, in the order in which it began to.
    pub executed: Vec<Executed>,
    /// How often the transfer's counter reached zero: once, for one that completed.
    pub zeroes: u32,
}

impl TransferReport {
    /// Of a transfer that begins.
    pub fn new(side: Side, peer: NodeId, tag: u64, ends: doorbell_shm::meeting::Ends) -> Self {
        let none = Moved::default();
        Self {
            side,
            peer,
            tag,
            len: ends.len,
            chunk: ends.chunk,
            from_high: ends.from_high,
            fifo: none,
            put: none,
            pulled: none,
            executed: Vec::with_capacity(4),
            zeroes: 0,
        }
    }

    /// This thread executed a descriptor, or a part of one, and moved so many bytes.
    pub fn execute(&mut self, descriptor: Descriptor, bytes: u64) {
        let thread = thread_number();
        let at = match self.executed.iter().position(|executed| executed.descriptor == descriptor) {
            Some(at) => at,
            None => {
                self.executed.push(Executed { descriptor, thread, threads: 1, moved: Moved::default() });
                self.executed.len() - 1
            }
        };
        let executed = &mut self.executed[at];
        if executed.thread != thread {
            (executed.thread, executed.threads) = (thread, executed.threads.saturating_add(1));
        }
        if bytes > 0 {
            executed.moved.add(bytes, 1);
        }
    }

    /// What this node's engine did for one descriptor.
    pub fn of(&self, descriptor: Descriptor) -> Option<&Executed> {
        self.executed.iter().find(|executed| executed.descriptor == descriptor)
    }
}

/// The latest transfers of a node.
#[derive(Debug, Default)]
pub struct Reports(VecDeque<TransferReport>);

/// How many are kept.
pub const REPORTS_MAX: usize = 64;

impl Reports {
    /// Keeps one, and forgets the oldest if there are too many.
    pub fn keep(&mut self, report: TransferReport) {
        if self.0.len() == REPORTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(report);
    }

    /// All that are kept, oldest first.
    pub fn list(&self) -> Vec<TransferReport> {
        self.0.iter().cloned().collect()
    }
}

/// The kernel's number of the calling thread, asked for once.
pub fn thread_number() -> i32 {
    doorbell_shm::board::thread() as i32
}
