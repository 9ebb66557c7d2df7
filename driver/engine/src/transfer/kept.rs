//! The engine's own memory for messages: pieces that wait for a receive, storage for a whole message, and buffers that a program
//! can't have back yet.

use crate::sync::op::Op;
use crate::sync::pool::BlockingPool;
use doorbell_fabric::Payload;
use std::alloc::{Layout, alloc_zeroed};
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory for pieces is allocated in multiples of this many bytes.
const PARTS_STEP: usize = 64 << 10;

/// Pieces of a message with their offsets, in order of arrival. Memory is allocated as bytes arrive, so a length that a peer
/// only announced costs nothing.
#[derive(Default)]
pub struct Pieces(Vec<(u64, Vec<u8>)>);

impl Pieces {
    /// Adds a piece.
    pub fn push(&mut self, at: u64, payload: Payload<'_>) {
        match self.0.last_mut() {
            // Append to the last piece if this one continues it and it does not have to move.
            Some((start, bytes)) if *start + bytes.len() as u64 == at && bytes.capacity() - bytes.len() >= payload.len() => {
                payload.append_to(bytes);
            }
            _ => {
                let mut bytes = Vec::with_capacity(payload.len().next_multiple_of(PARTS_STEP));
                payload.append_to(&mut bytes);
                self.0.push((at, bytes));
            }
        }
    }

    /// Copies all pieces to their places.
    pub fn copy_to(&self, mut write: impl FnMut(u64, &[u8])) {
        for (at, bytes) in &self.0 {
            write(*at, bytes);
        }
    }

    /// The whole message, put together from all pieces.
    pub fn assemble(mut self, len: usize) -> Vec<u8> {
        if let [(0, bytes)] = &mut self.0[..]
            && bytes.len() == len
        {
            return std::mem::take(bytes);
        }
        self.0.sort_by_key(|(at, _)| *at);
        let mut whole = Vec::with_capacity(len);
        self.0.into_iter().for_each(|(_, bytes)| whole.extend_from_slice(&bytes));
        // A peer that sent one place twice and left out another harms only its own message.
        whole.resize(len, 0);
        whole
    }
}

/// The owner of a buffer, which the engine drops in place of the program. Dropping this lets the blocking pool drop the owner: its
/// destructor is the program's, and may call the node, or free a region.
pub struct Keepsake {
    owner: Owner,
    pool: Arc<BlockingPool>,
}

#[derive(Clone, Copy)]
struct Owner {
    place: NonNull<()>,
    drop: unsafe fn(NonNull<()>),
}

// SAFETY: `Keepsake::new` gets a `Send` owner.
unsafe impl Send for Owner {}

impl Keepsake {
    /// Takes an owner over.
    ///
    /// # Safety
    /// The owner is `Send`. No other code drops it, and `drop` may be called with it once, on any thread.
    pub unsafe fn new(place: NonNull<()>, drop: unsafe fn(NonNull<()>), pool: Arc<BlockingPool>) -> Self {
        Self { owner: Owner { place, drop }, pool }
    }
}

impl Drop for Keepsake {
    fn drop(&mut self) {
        let owner = self.owner;
        self.pool.submit(Box::new(move || {
            // Whole, because its fields alone are not `Send`.
            let Owner { place, drop } = { owner };
            // SAFETY: as `new` says; this is the only call.
            unsafe { drop(place) }
        }));
    }
}

/// Storage for a whole message that does not belong to the program. An origin may put into it.
pub enum Store {
    /// The engine's own.
    Own(Vec<u8>),
    /// The buffer of a receive that ended before its origin had let go of it.
    Buffer(Left),
}

/// A buffer that the program can't have back yet.
pub struct Left {
    at: *mut u8,
    len: usize,
    /// The receive that had it.
    op: Arc<Op>,
    /// The owner, once the program has given it to the engine. Until then the operation has it.
    owner: Option<Keepsake>,
}

// SAFETY: the bytes are writable and exclusive as long as the owner is not dropped (Store::left).
unsafe impl Send for Left {}

impl Store {
    /// Storage of zeroes. Its pages cost nothing before they are written. `None` if there is no room for so many.
    pub fn zeroed(len: usize) -> Option<Self> {
        let layout = Layout::array::<u8>(len).ok().filter(|layout| layout.size() > 0)?;
        // SAFETY: the layout is not of size zero. The allocator's bytes of this layout are those of a vector of this capacity.
        let bytes = unsafe {
            let start = NonNull::new(alloc_zeroed(layout))?;
            Vec::from_raw_parts(start.as_ptr(), len, len)
        };
        Some(Self::Own(bytes))
    }

    /// The first `len` bytes of the buffer of a receive.
    ///
    /// # Safety
    /// They stay writable, and no other code touches them, until the engine has dropped their owner, which it gets by
    /// [`keep`](Self::keep).
    pub unsafe fn left(at: *mut u8, len: usize, op: Arc<Op>) -> Self {
        Self::Buffer(Left { at, len, op, owner: None })
    }

    /// Takes the owner of the buffer over if it is that of this receive. Otherwise returns the owner.
    pub fn keep(&mut self, op: &Arc<Op>, owner: Keepsake) -> Option<Keepsake> {
        match self {
            Self::Buffer(left) if left.owner.is_none() && Arc::ptr_eq(&left.op, op) => {
                left.owner = Some(owner);
                None
            }
            _ => Some(owner),
        }
    }

    /// The start of the storage.
    pub fn start(&mut self) -> *mut u8 {
        match self {
            Self::Own(bytes) => bytes.as_mut_ptr(),
            Self::Buffer(left) => left.at,
        }
    }

    /// Copies a piece to its place. The caller checked that it lies within the message.
    pub fn write(&mut self, at: usize, payload: Payload<'_>) {
        match self {
            Self::Own(bytes) => {
                payload.copy_to(&mut bytes[at..][..payload.len()]);
            }
            Self::Buffer(left) => {
                debug_assert!(at + payload.len() <= left.len);
                // SAFETY: within the message (caller), which the buffer holds (left).
                payload.copy_to(unsafe { std::slice::from_raw_parts_mut(left.at.add(at), payload.len()) });
            }
        }
    }

    /// The whole message. The caller knows that no origin writes any more.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            // SAFETY: as `left` says.
            Self::Buffer(left) => unsafe { std::slice::from_raw_parts(left.at, left.len) },
        }
    }

    /// The same, as a vector.
    pub fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Own(bytes) => bytes,
            left => left.bytes().to_vec(),
        }
    }
}
