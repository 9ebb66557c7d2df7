//! Reports of transfers: how many bytes took which way, which side copied them, and which thread executed each descriptor.

use doorbell_fabric::NodeId;
use doorbell_shm::meeting::Moved;
use std::collections::VecDeque;

/// The kinds of descriptors that the engine executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Descriptor {
    /// Request to send: announces the message to the target, and carries the direct-put descriptor to it.
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

/// A descriptor that this node's engine executed for a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Executed {
    /// The kind of descriptor.
    pub descriptor: Descriptor,
    /// The kernel's id of the thread that executed it last.
    pub thread: i32,
    /// How many threads took part, one after the other. More than one if the engine changed hands.
    pub threads: u32,
    /// The bytes and chunks that it moved.
    pub moved: Moved,
}

/// The end of a transfer that this node was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// This node sent the message.
    Origin,
    /// This node received the message.
    Target,
}

/// What this node knows about one transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferReport {
    /// This node's end.
    pub side: Side,
    /// The node at the other end.
    pub peer: NodeId,
    /// The message's tag.
    pub tag: u64,
    /// The length of the message in bytes.
    pub len: u64,
    /// The length of a chunk in bytes.
    pub chunk: u64,
    /// Whether the memory FIFO began at the buffer's high end.
    pub from_high: bool,
    /// The bytes and chunks that went as memory-FIFO packets.
    pub fifo: Moved,
    /// The bytes and chunks that the origin put into the target's memory.
    pub put: Moved,
    /// The bytes and chunks that the target copied itself.
    pub pulled: Moved,
    /// The descriptors that this node's engine executed, in the order in which it began them.
    pub executed: Vec<Executed>,
    /// How often the transfer's counter reached zero: once, if it completed.
    pub zeroes: u32,
}

impl TransferReport {
    /// A report for a transfer that begins.
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

    /// Notes that this thread executed a descriptor, or a part of one, and moved `bytes` bytes.
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

    /// This node's execution of one kind of descriptor, if there was any.
    pub fn of(&self, descriptor: Descriptor) -> Option<&Executed> {
        self.executed.iter().find(|executed| executed.descriptor == descriptor)
    }
}

/// The latest transfers of a node.
#[derive(Debug, Default)]
pub struct Reports(VecDeque<TransferReport>);

/// The most reports that are kept.
pub const REPORTS_MAX: usize = 64;

impl Reports {
    /// Keeps a report, and forgets the oldest if there are too many.
    pub fn keep(&mut self, report: TransferReport) {
        if self.0.len() == REPORTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(report);
    }

    /// All kept reports, oldest first.
    pub fn list(&self) -> Vec<TransferReport> {
        self.0.iter().cloned().collect()
    }
}

/// The kernel's id of the calling thread, read once.
pub fn thread_number() -> i32 {
    doorbell_shm::board::thread() as i32
}
