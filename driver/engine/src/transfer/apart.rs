//! A transfer between nodes that share no memory. Each engine has a rendezvous block of its own, and notices carry what the
//! other engine could read in shared memory.
//!
//! Only the origin claims chunks. Until the remote get comes, it claims them for the memory FIFO, from the first end. Then it
//! puts all the rest: in one *part*, or in one for each link that carries some of it. A network reads a part when it sends it,
//! and again if datagrams were lost, so the bytes are lent to the network until all have arrived. The network stores what
//! arrives in any order.

use super::descriptor::Names;
use crate::links::{BytesIn, BytesOut};
use crate::mode::Links;
use crate::sync::op::Op;
use doorbell_shm::meeting::RendezvousBlock;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The origin's half: a message lent to the network.
pub struct Lending {
    /// The claimed chunks, and how the transfer ended. Only this node uses it.
    pub meeting: RendezvousBlock,
    generation: u64,
    state: Mutex<Lent>,
}

struct Lent {
    bytes: Bytes,
    /// The parts to be put, in order: all that was left. Empty until they are offered.
    parts: Vec<Part>,
    /// A piece that was claimed for the memory FIFO is incomplete.
    piece: bool,
}

struct Part {
    /// Empty if it goes by memory FIFO.
    place: Range<u64>,
    /// How far the network has read.
    read: u64,
    /// The whole part has arrived.
    arrived: bool,
}

enum Bytes {
    /// The whole message, in the sender's memory.
    Lent(*const u8),
    /// A copy of the bytes to be put, which begin at this offset of the message. The sender has its bytes back.
    Kept(u64, Vec<u8>),
    Gone,
}

// SAFETY: the maker of the SendOp keeps the bytes readable until its op ended or was removed. Before either, `let_go` or
// `take_back` was called. The bytes are read only with the lock held.
unsafe impl Send for Lent {}

impl Lending {
    /// Lends a message.
    ///
    /// # Safety
    /// It stays readable until `let_go` or `take_back` has returned.
    pub unsafe fn new(bytes: *const u8, generation: u64) -> Self {
        let state = Lent { bytes: Bytes::Lent(bytes), parts: Vec::new(), piece: false };
        let meeting = RendezvousBlock::default();
        meeting.open(generation);
        Self { meeting, generation, state: Mutex::new(state) }
    }

    /// Sets whether a piece that was claimed for the memory FIFO is incomplete.
    pub fn set_piece(&self, piece: bool) {
        lock(&self.state).piece = piece;
    }

    /// Offers all that is left for putting, in these parts, none of which is empty.
    pub fn offer(&self, parts: impl IntoIterator<Item = Range<u64>>) {
        let part = |place: Range<u64>| Part { read: place.start, place, arrived: false };
        lock(&self.state).parts = parts.into_iter().map(part).collect();
    }

    /// A part, for the session that puts it.
    pub fn part(self: &Arc<Self>, at: usize) -> Arc<dyn BytesOut> {
        Arc::new(LentPart { lending: self.clone(), at })
    }

    /// Sends a part by memory FIFO, because no session can put it.
    pub fn take_part(&self, at: usize) {
        let mut state = lock(&self.state);
        if let Some(part) = state.parts.get_mut(at) {
            part.place = 0..0;
            part.read = 0;
            state.piece = true;
        }
    }

    /// The target reported that a whole part has arrived.
    pub fn set_arrived(&self, at: usize) {
        if let Some(part) = lock(&self.state).parts.get_mut(at) {
            part.arrived = true;
        }
    }

    /// Whether a whole part has arrived.
    pub fn has_arrived(&self, at: usize) -> bool {
        lock(&self.state).parts.get(at).is_some_and(|part| part.arrived)
    }

    /// Takes the message back; the sender may reuse its bytes afterwards. True if the target does not get the message. False if
    /// the whole message is on its way: it counts as sent, and what may have to be sent again is copied here.
    pub fn take_back(&self) -> bool {
        let mut state = lock(&self.state);
        let put = state.parts.iter().filter(|part| !part.place.is_empty());
        let [start, end] = [put.clone().map(|part| part.place.start).min(), put.clone().map(|part| part.place.end).max()];
        let is_read = put.clone().all(|part| part.read == part.place.end) && !state.piece;
        if let (Some(start), Some(end), true) = (start, end, is_read) {
            if let Bytes::Lent(bytes) = state.bytes {
                // SAFETY: the parts lie within the message (offer), which is readable (Lent).
                let rest = unsafe { std::slice::from_raw_parts(bytes.add(start as usize), (end - start) as usize) };
                state.bytes = Bytes::Kept(start, rest.to_vec());
            }
            return false;
        }
        state.bytes = Bytes::Gone;
        self.meeting.close(self.generation)
    }

    /// Ends the transfer; the sender may reuse its bytes afterwards.
    pub fn let_go(&self) {
        let mut state = lock(&self.state);
        if matches!(state.bytes, Bytes::Lent(_)) {
            state.bytes = Bytes::Gone;
        }
    }
}

/// One part of a lent message.
struct LentPart {
    lending: Arc<Lending>,
    at: usize,
}

impl BytesOut for LentPart {
    fn has(&self) -> bool {
        !matches!(lock(&self.lending.state).bytes, Bytes::Gone)
    }

    fn lend(&self, at: u64, len: usize, to: &mut dyn FnMut(&[u8])) -> bool {
        let mut state = lock(&self.lending.state);
        let Lent { bytes, parts, .. } = &mut *state;
        let end = at + len as u64;
        let Some(part) = parts.get_mut(self.at).filter(|part| at >= part.place.start && end <= part.place.end) else {
            return false;
        };
        match bytes {
            // SAFETY: within the message (offer), which is readable as long as the lock is held (Lent).
            Bytes::Lent(bytes) => to(unsafe { std::slice::from_raw_parts(bytes.add(at as usize), len) }),
            Bytes::Kept(from, rest) => to(&rest[(at - *from) as usize..][..len]),
            Bytes::Gone => return false,
        }
        part.read = part.read.max(end);
        true
    }

    fn ended(&self, whole: bool) {
        if let Some(part) = lock(&self.lending.state).parts.get_mut(self.at) {
            part.arrived |= whole;
        }
    }
}

/// The target's half: the destination of what the network brings. After its drop, nothing is stored.
pub struct Landing {
    /// How the transfer ended. Only this node uses it.
    pub meeting: RendezvousBlock,
    place: Arc<Place>,
    /// The names of the message in each link's session, once they were requested.
    names: Option<Names>,
}

struct Place {
    len: u64,
    state: Mutex<Room>,
}

struct Room {
    at: *mut u8,
    /// The operation of the receive that has the buffer. Once it is done, the buffer must not be used.
    op: Option<Arc<Op>>,
    stored: u64,
}

// SAFETY: the room is valid and exclusive until `move_to` or the drop of the Landing has returned, or the op is done. It is
// written only with the lock held.
unsafe impl Send for Room {}

impl Landing {
    /// A landing for a message of `len` bytes, without a buffer yet.
    pub fn new(len: u64, generation: u64) -> Self {
        let state = Mutex::new(Room { at: std::ptr::null_mut(), op: None, stored: 0 });
        let meeting = RendezvousBlock::default();
        meeting.open(generation);
        Self { meeting, place: Arc::new(Place { len, state }), names: None }
    }

    /// Has the message stored in the buffer of a receive, and requests a name for it from these links of the network, once.
    ///
    /// # Safety
    /// The whole message fits, and no other code touches the buffer until `op` is done, `move_to` has returned or this is
    /// dropped.
    pub unsafe fn open(
        &mut self,
        at: *mut u8,
        op: &Arc<Op>,
        links: Links,
        mut name: impl FnMut(u8, &Arc<dyn BytesIn>) -> Option<u64>,
    ) -> Names {
        if let Some(names) = self.names {
            return names;
        }
        {
            let mut room = lock(&self.place.state);
            (room.at, room.op) = (at, Some(op.clone()));
        }
        let place: Arc<dyn BytesIn> = self.place.clone();
        let mut names = Names::default();
        for link in links.iter() {
            names[usize::from(link)] = name(link, &place);
        }
        *self.names.insert(names)
    }

    /// Has the message stored in another buffer. The bytes at `from` are copied there first.
    ///
    /// # Safety
    /// As [`open`](Self::open), for a buffer that no receive can take away. The bytes at `from` are readable.
    pub unsafe fn move_to(&self, from: *const u8, at: *mut u8) {
        let mut room = lock(&self.place.state);
        // SAFETY: both hold the message (caller).
        unsafe { std::ptr::copy_nonoverlapping(from, at, self.place.len as usize) };
        if !room.at.is_null() {
            (room.at, room.op) = (at, None);
        }
    }

    /// The number of bytes stored so far.
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
        // SAFETY: within the message, for which there is room, and the room is exclusive (open, move_to).
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), room.at.add(at as usize), bytes.len()) };
        room.stored += bytes.len() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 100;

    /// A message lent in three parts.
    fn lent(bytes: &[u8; LEN]) -> (Arc<Lending>, [Arc<dyn BytesOut>; 3]) {
        // SAFETY: each test ends the loan before it drops the bytes.
        let lending = Arc::new(unsafe { Lending::new(bytes.as_ptr(), 5) });
        lending.offer([40..60, 60..80, 80..100]);
        let parts = [0, 1, 2].map(|at| lending.part(at));
        (lending, parts)
    }

    fn read(part: &Arc<dyn BytesOut>, at: u64, len: usize) -> Option<Vec<u8>> {
        let mut read = Vec::new();
        part.lend(at, len, &mut |bytes| read.extend_from_slice(bytes)).then_some(read)
    }

    fn message() -> [u8; LEN] {
        std::array::from_fn(|at| at as u8)
    }

    #[test]
    fn a_part_is_read_where_it_lies_and_nowhere_else() {
        let bytes = message();
        let (lending, parts) = lent(&bytes);
        assert_eq!(read(&parts[1], 65, 10), Some(bytes[65..75].to_vec()));
        assert_eq!([(59, 2), (79, 2), (40, 1), (80, 1)].map(|(at, len)| read(&parts[1], at, len)), [const { None }; 4]);
        lending.let_go();
        assert!(read(&parts[1], 65, 10).is_none() && !parts[1].has());
    }

    #[test]
    fn a_message_is_as_good_as_sent_when_every_part_was_read() {
        let mut bytes = message();
        let (lending, parts) = lent(&bytes);
        for (part, at) in parts.iter().zip([40, 60, 80]) {
            read(part, at, 20).unwrap();
        }
        assert!(!lending.take_back());
        // What may have to be sent again is kept, and the sender has its bytes back.
        bytes.fill(0);
        assert_eq!(read(&parts[1], 60, 20), Some((60..80).collect()));
        // It must not end twice.
        assert!(!lending.take_back() && parts[0].has());
        lending.let_go();
        assert!(parts[0].has());
    }

    #[test]
    fn a_message_of_which_a_part_was_not_read_is_taken_back() {
        for unread in 0..3 {
            let bytes = message();
            let (lending, parts) = lent(&bytes);
            for (at, part) in parts.iter().enumerate() {
                read(part, 40 + 20 * at as u64, if at == unread { 19 } else { 20 }).unwrap();
            }
            assert!(lending.take_back(), "part {unread}");
            assert!(parts.iter().all(|part| !part.has()) && lending.meeting.progress(5).unwrap().closed);
        }
        // The same before anything was offered.
        let bytes = message();
        // SAFETY: taken back before the bytes are dropped.
        let lending = unsafe { Lending::new(bytes.as_ptr(), 5) };
        assert!(lending.take_back());
    }

    #[test]
    fn a_part_that_goes_by_memory_fifo_is_sent_when_that_has_it() {
        let bytes = message();
        let (lending, parts) = lent(&bytes);
        read(&parts[0], 40, 20).unwrap();
        lending.take_part(1);
        read(&parts[2], 80, 20).unwrap();
        assert!(read(&parts[1], 60, 1).is_none());
        parts.iter().for_each(|part| part.ended(true));
        lending.set_piece(false);
        assert!(!lending.take_back());
        let (lending, parts) = lent(&bytes);
        read(&parts[0], 40, 20).unwrap();
        read(&parts[2], 80, 20).unwrap();
        lending.take_part(1);
        assert!(lending.take_back());
    }

    #[test]
    fn parts_arrive_one_by_one() {
        let bytes = message();
        let (lending, parts) = lent(&bytes);
        parts[1].ended(true);
        parts[2].ended(false);
        assert_eq!([0, 1, 2, 3].map(|at| lending.has_arrived(at)), [false, true, false, false]);
        lending.let_go();
    }

    #[test]
    fn each_link_is_asked_for_a_name_once() {
        let mut landing = Landing::new(10, 3);
        let (mut buf, op) = ([0_u8; 10], Op::new());
        let mut asked = Vec::new();
        for _ in 0..2 {
            let name = |link, _: &Arc<dyn BytesIn>| {
                asked.push(link);
                (link != 2).then_some(u64::from(link) * 7)
            };
            // SAFETY: the buffer outlives the landing.
            let names = unsafe { landing.open(buf.as_mut_ptr(), &op, Links::NONE.with(1).with(2).with(3), name) };
            assert_eq!(names, [None, Some(7), None, Some(21)]);
        }
        assert_eq!(asked, [1, 2, 3]);
    }
}
