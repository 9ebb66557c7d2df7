//! Updates of cells as the engine sees them: bytes that one node's atomics send to another's.

/// The length of an encoded update in bytes.
pub const UPDATE_BYTES: usize = 40;

/// An update to be requested.
#[derive(Clone, Copy, Debug)]
pub struct Update {
    /// The encoded update for the target's atomics.
    pub bytes: [u8; UPDATE_BYTES],
    /// The size of the cell in bytes.
    pub cell: usize,
    /// Whether the answer carries the old value.
    pub fetch: bool,
}

/// How a target does updates. Atomics set it when they are installed. A node without atomics does no update.
#[derive(Clone, Copy)]
pub struct Updates {
    /// Decodes an update of another node. `None` if there is no such update, or this processor can't do it.
    pub read: fn(&[u8; UPDATE_BYTES]) -> Option<Update>,
    /// Does a decoded update and returns the old value.
    ///
    /// # Safety
    /// The pointer is to a readable and writable cell that is aligned to its size. All other code accesses it by atomic
    /// instructions.
    pub perform: unsafe fn(&[u8; UPDATE_BYTES], *mut u8) -> [u8; 16],
}
