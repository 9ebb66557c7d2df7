//! Updates of cells, as far as the engine knows them: bytes that one node's atomics say to another's.

/// Bytes of an update.
pub const UPDATE_BYTES: usize = 40;

/// An update that is to be asked for.
#[derive(Clone, Copy, Debug)]
pub struct Update {
    /// What the target's atomics are told.
    pub bytes: [u8; UPDATE_BYTES],
    /// Bytes of the cell.
    pub cell: usize,
    /// Whether the old value is wanted.
    pub fetch: bool,
}

/// How a target does updates. Atomics say so when they are installed; a node without them knows no update.
#[derive(Clone, Copy)]
pub struct Updates {
    /// Reads what another node said. `None` if there is no such update, or this processor can't do it.
    pub read: fn(&[u8; UPDATE_BYTES]) -> Option<Update>,
    /// Does an update that was read, and gives the old value.
    ///
    /// # Safety
    /// `cell` bytes are readable and writable there, and aligned to their number; all others access them by atomic instructions, too.
    pub perform: unsafe fn(&[u8; UPDATE_BYTES], *mut u8) -> [u8; 16],
}
