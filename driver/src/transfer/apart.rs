//! A transfer between nodes that share no memory: each engine has a meeting of its own, and says in words what the other would read.
//!
//! The origin alone claims chunks: by memory FIFO from the first end until the remote get has come, and then all the rest, which is the *part*
//! that it puts. The network reads it when it is sent, and again if that was lost, so the bytes are lent to it until all has arrived. It stores
//! what arrives in whatever order it comes.

use crate::engine::op::Op;
use doorbell_shm::meeting::Meeting;
use doorbell_udp::fabric::{BytesIn, BytesOut};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The origin's half: the message, lent to the network.
pub struct Lending {
    /// Which chunks are claimed, and how it ended. This node alone has it.
    pub meeting: Meeting,
    generation: u64,
    state: Mutex<Lent>,
}

struct Lent {
    bytes: Bytes,
    /// What is put.
    part: Range<u64>,
    /// How far into the part the network has read.
    read: u64,
    /// A chunk is in the memory FIFO in part.
    piece: bool,
    /// All that is put has arrived.
    arrived: bool,
}

enum Bytes {
    /// The whole message, where the sender has it.
    Lent(*const u8),
    /// The part that is put: the sender has its bytes back.
    Kept(Vec<u8>),
    Gone,
}

// SAFETY: the bytes are kept readable by whoever made the SendOp until its op ended or was removed; before either, `let_go` or `take_back`
// was called, and nobody reads them without the lock.
unsafe impl Send for Lent {}

impl Lending {
    /// Lends a message.
    ///
    /// # Safety
    /// It stays readable until `let_go` or `take_back` has returned.
    pub unsafe fn new(bytes: *const u8, generation: u64) -> Self {
        let state = Lent { bytes: Bytes::Lent(bytes), part: 0..0, read: 0, piece: false, arrived: false };
        let meeting = Meeting::default();
        meeting.open(generation);
        Self { meeting, generation, state: Mutex::new(state) }
    }

    /// Whether a chunk is in the memory FIFO in part.
    pub fn set_piece(&self, piece: bool) {
        lock(&self.state).piece = piece;
    }

    /// This part is put.
    pub fn offer(&self, part: Range<u64>) {
        let mut state = lock(&self.state);
        state.read = part.start;
        state.part = part;
    }

    /// Whether all that is put has arrived.
    pub fn has_arrived(&self) -> bool {
        lock(&self.state).arrived
    }

    /// The sender has its bytes back after this. True if the target gets nothing of the message. False if all of it is on its way: then it is as
    /// good as sent, and what may have to be sent again is kept here.
    pub fn take_back(&self) -> bool {
        let mut state = lock(&self.state);
        let is_sent = !state.part.is_empty() && state.read == state.part.end && !state.piece;
        if is_sent {
            if let Bytes::Lent(bytes) = state.bytes {
                let (at, len) = (state.part.start as usize, (state.part.end - state.part.start) as usize);
                // SAFETY: the part lies within the message (offer), which is readable (Lent).
                state.bytes = Bytes::Kept(unsafe { std::slice::from_raw_parts(bytes.add(at), len) }.to_vec());
            }
            return false;
        }
        state.bytes = Bytes::Gone;
        self.meeting.close(self.generation)
    }

    /// It is over: the sender has its bytes back after this.
    pub fn let_go(&self) {
        let mut state = lock(&self.state);
        if matches!(state.bytes, Bytes::Lent(_)) {
            state.bytes = Bytes::Gone;
        }
    }
}

impl BytesOut for Lending {
    fn has(&self) -> bool {
        !matches!(lock(&self.state).bytes, Bytes::Gone)
    }

    fn lend(&self, at: u64, len: usize, to: &mut dyn FnMut(&[u8])) -> bool {
        let mut state = lock(&self.state);
        let end = at + len as u64;
        if at < state.part.start || end > state.part.end {
            return false;
        }
        match &state.bytes {
            // SAFETY: within the message (offer), which is readable as long as the lock is held (Lent).
            Bytes::Lent(bytes) => to(unsafe { std::slice::from_raw_parts(bytes.add(at as usize), len) }),
            Bytes::Kept(part) => to(&part[(at - state.part.start) as usize..][..len]),
            Bytes::Gone => return false,
        }
        state.read = state.read.max(end);
        true
    }

    fn ended(&self, whole: bool) {
        lock(&self.state).arrived |= whole;
    }
}

/// The target's half: where the network stores what arrives. Dropped, it stores nothing any more.
pub struct Landing {
    /// How the transfer ended. This node alone has it.
    pub meeting: Meeting,
    place: Arc<Place>,
    /// What the network calls it.
    name: Option<u64>,
}

struct Place {
    len: u64,
    state: Mutex<Room>,
}

struct Room {
    at: *mut u8,
    /// Of the receive whose buffer this is: done, it is no buffer any more.
    op: Option<Arc<Op>>,
    stored: u64,
}

// SAFETY: the room is valid and nobody else's until `move_to` or the drop of the Landing has returned, or the op is done; nobody writes
// there without the lock.
unsafe impl Send for Room {}

impl Landing {
    /// For a message of `len` bytes, which go nowhere so far.
    pub fn new(len: u64, generation: u64) -> Self {
        let state = Mutex::new(Room { at: std::ptr::null_mut(), op: None, stored: 0 });
        let meeting = Meeting::default();
        meeting.open(generation);
        Self { meeting, place: Arc::new(Place { len, state }), name: None }
    }

    /// Has the message stored in the buffer of a receive, and asks the network for a name for it.
    ///
    /// # Safety
    /// The whole message fits, and nobody else touches the buffer until `op` is done, `move_to` has returned or this is dropped.
    pub unsafe fn open(&mut self, at: *mut u8, op: &Arc<Op>, name: impl FnOnce(&Arc<dyn BytesIn>) -> Option<u64>) -> Option<u64> {
        if self.name.is_none() {
            {
                let mut room = lock(&self.place.state);
                (room.at, room.op) = (at, Some(op.clone()));
            }
            self.name = name(&(self.place.clone() as Arc<dyn BytesIn>));
        }
        self.name
    }

    /// Has the message stored elsewhere: what is at `from` is copied there first.
    ///
    /// # Safety
    /// As [`open`](Self::open), for a buffer that no receive can take away; what is at `from` can be read.
    pub unsafe fn move_to(&self, from: *const u8, at: *mut u8) {
        let mut room = lock(&self.place.state);
        // SAFETY: both hold the message (caller).
        unsafe { std::ptr::copy_nonoverlapping(from, at, self.place.len as usize) };
        if !room.at.is_null() {
            (room.at, room.op) = (at, None);
        }
    }

    /// Bytes that were stored so far.
    pub fn stored(&self) -> u64 {
        lock(&self.place.state).stored
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        lock(&self.place.state).at = std::ptr::null_mut();
    }
}

impl BytesIn for Place {
    fn store(&self, at: u64, bytes: &[u8]) {
        let mut room = lock(&self.state);
        let is_inside = at.checked_add(bytes.len() as u64).is_some_and(|end| end <= self.len);
        if room.at.is_null() || !is_inside || room.op.as_ref().is_some_and(|op| op.is_done()) {
            return;
        }
        // SAFETY: within the message, for which there is room, and the room is ours (open, move_to).
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), room.at.add(at as usize), bytes.len()) };
        room.stored += bytes.len() as u64;
    }
}
