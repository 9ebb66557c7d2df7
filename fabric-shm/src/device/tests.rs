use super::words::View;
use super::{Client, Dead, DeviceGeometry, Header, Held, NoWrite, Received, STORED_MOST, Writer};
use crate::keys::OwnerId;
use crate::segment::{HeapBlock, Segment};
use doorbell_fabric::{Incarnation, NodeId};
use proptest::prelude::*;
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const LIFE: Incarnation = Incarnation(1);
const THREADS: usize = 3;
const LIMIT: u64 = 1000;

thread_local!(static DIES_AFTER: Cell<Option<usize>> = const { Cell::new(None) });

/// Dies here, if this is the chosen point.
pub(super) fn arrive() {
    match DIES_AFTER.get() {
        Some(0) => {
            DIES_AFTER.set(None);
            resume_unwind(Box::new("dies"))
        }
        left => DIES_AFTER.set(left.map(|left| left - 1)),
    }
}

struct Device {
    segment: Segment,
    geometry: DeviceGeometry,
}

impl Device {
    /// Threads 1 to 3 in slots 0 to 2.
    fn new(senders: usize) -> Self {
        let geometry = DeviceGeometry { threads: THREADS + 1, senders, lane_bytes: 8192 };
        let bytes = View::bytes(&geometry);
        let segment = Segment::heap(Arc::new(HeapBlock::new(bytes).unwrap()), 0, bytes).unwrap();
        let device = Self { segment, geometry };
        for slot in 0..THREADS {
            let held = device.lock(slot);
            let attached = held.attach(slot as u32 + 1, (NodeId(1), LIFE), 0);
            assert_eq!(attached, Some(Ok((slot, device.owner(slot)))));
        }
        device
    }

    fn view(&self) -> View<'_> {
        // SAFETY: so many bytes, page-aligned.
        unsafe { View::at(self.segment.ptr(), &self.geometry) }
    }

    /// The receiver of a slot, or an identification without a slot if it has none.
    fn owner(&self, slot: usize) -> OwnerId {
        let owner = self.view().slots.get(slot).and_then(|words| OwnerId::from_bits(words.owner.load(Ordering::Relaxed)));
        owner.unwrap_or(OwnerId::user(NodeId(1), LIFE, slot as u32))
    }

    fn lock(&self, slot: usize) -> Held<'_> {
        Held::try_lock(self.view(), self.owner(slot)).ok().unwrap()
    }

    fn writer(&self, node: u16) -> Writer {
        Writer::claim(&self.view(), (NodeId(node), LIFE), None, |_, _| true).unwrap()
    }

    /// Steps of one thread until it has a message or there is none; it dies at the chosen point.
    fn receive(&self, slot: usize) -> Result<Option<(Header, Vec<u8>)>, ()> {
        match self.receive_as(slot, slot as u32 + 1, usize::MAX) {
            Ok(Got::Message(header, bytes)) => Ok(Some((header, bytes))),
            Ok(Got::Nothing) => Ok(None),
            Ok(Got::TooLong(_)) => unreachable!("there is room"),
            Err(_) => Err(()),
        }
    }

    /// The same into a buffer of `room` bytes. An error names the message that it was about to take, if it got that far.
    fn receive_as(&self, slot: usize, thread: u32, room: usize) -> Result<Got, Option<Header>> {
        loop {
            let (mut bytes, mut taking) = (Vec::new(), None);
            let step = || {
                let held = ManuallyDrop::new(self.lock(slot));
                let take = |view: &View<'_>, header: &Header| {
                    let fits = header.len <= room;
                    if fits {
                        taking = Some(*header);
                        view.payload(header).iter().for_each(|piece| piece.append_to(&mut bytes));
                    }
                    fits
                };
                let received = held.receive(slot, thread, || 1, take, |_| ());
                drop(ManuallyDrop::into_inner(held));
                received
            };
            match catch_unwind(AssertUnwindSafe(step)) {
                Err(_) => return Err(taking),
                Ok(Received::Message(header, _)) => return Ok(Got::Message(header, bytes)),
                Ok(Received::Others(_)) => {}
                Ok(Received::Nothing) => return Ok(Got::Nothing),
                Ok(Received::Left(header)) => return Ok(Got::TooLong(header)),
            }
        }
    }

    /// Has another thread inherit the lock of a dead owner.
    fn inherit(&self, slot: usize) {
        let seen = self.view().lock_seen();
        if seen.owner().is_some() {
            drop(Held::inherit(self.view(), self.owner(slot), seen).unwrap());
        }
    }
}

/// The result of receiving.
enum Got {
    Message(Header, Vec<u8>),
    TooLong(Header),
    Nothing,
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    (0..len).map(|at| (at as u64 ^ seed) as u8).collect()
}

/// Wherever an owner of the lock dies, the next finds every message, and none twice except the one that the dead owner was
/// about to take.
#[test]
fn the_next_owner_finds_what_a_dead_one_did() {
    let mut points = 0;
    loop {
        let device = Device::new(2);
        let mut writers = [device.writer(5), device.writer(6)];
        let mut sent: Vec<Vec<u64>> = vec![Vec::new(); THREADS];
        for tag in 0..12_u64 {
            let slot = (tag * 7 % 3) as usize;
            let len = [0, 8, 32, 33, 100, 500][tag as usize % 6];
            let writer = &mut writers[tag as usize % 2];
            writer.try_write(&device.view(), slot as u32 + 1, tag, &[&bytes(len, tag)]).unwrap();
            sent[slot].push(tag);
        }
        let mut got: Vec<Vec<u64>> = vec![Vec::new(); THREADS];
        let mut died = false;
        DIES_AFTER.set(Some(points));
        for round in 0.. {
            let mut none = true;
            for slot in [1, 0, 2, 0] {
                match device.receive(slot) {
                    Ok(None) => {}
                    Ok(Some((header, found))) => {
                        none = false;
                        assert_eq!(found, bytes(header.len, header.tag));
                        got[slot].push(header.tag);
                    }
                    Err(()) => {
                        (none, died) = (false, true);
                        device.inherit(2);
                    }
                }
            }
            assert!(round < 100, "it goes on for ever");
            if none {
                break;
            }
        }
        DIES_AFTER.set(None);
        for got in &mut got {
            got.sort_unstable();
            let twice = got.windows(2).any(|pair| pair[0] == pair[1]);
            assert!(!twice, "point {points}: {got:?}");
        }
        let lost = sent.concat().len() - got.concat().len();
        // The dead owner may have taken one message before it could report that.
        assert!(lost <= usize::from(died), "point {points}: {lost} of {sent:?} are lost: {got:?}");
        let view = device.view();
        for (lane, words) in view.lanes.iter().enumerate() {
            assert_eq!(words.read.load(Ordering::Relaxed), words.written(), "lane {lane}, point {points}");
        }
        if !died {
            break;
        }
        points += if cfg!(miri) { 7 } else { 1 };
    }
    assert!(points > 30, "{points}");
}

#[test]
fn a_thread_that_fetches_nothing_stops_the_others_only_when_its_storage_is_full() {
    let device = Device::new(1);
    let mut writer = device.writer(5);
    let view = device.view();
    for tag in 0..STORED_MOST as u64 {
        writer.try_write(&view, 1, tag, &[b"for one"]).unwrap();
    }
    writer.try_write(&view, 2, 0, &[b"for two"]).unwrap();
    // One too many for the storage.
    assert_eq!(device.receive(1), Ok(None));
    assert_eq!(view.next_for(2), None, "it is of no use to look again");
    assert_eq!(device.receive(0).unwrap().unwrap().0.tag, 0);
    assert_eq!(device.receive(1).unwrap().unwrap().1, b"for two");
    for tag in 1..STORED_MOST as u64 {
        assert_eq!(device.receive(0).unwrap().unwrap().0.tag, tag);
    }
    assert_eq!((device.receive(0), device.receive(1)), (Ok(None), Ok(None)));
}

#[test]
fn what_nobody_fetches_is_dropped_and_counted() {
    let device = Device::new(1);
    let (mut writer, view) = (device.writer(5), device.view());
    writer.try_write(&view, 77, 0, &[&[1; 100]]).unwrap();
    writer.try_write(&view, 2, 1, &[b"behind"]).unwrap();
    assert_eq!(device.receive(1).unwrap().unwrap().1, b"behind");
    let sweep = |now| device.lock(0).sweep(now, LIMIT, &Dead::default());
    assert_eq!((sweep(2), sweep(LIMIT)), (0, 0));
    assert_eq!(sweep(LIMIT + 1), 1);
    let counts = Held::counts(view);
    assert_eq!((counts.dropped, counts.dropped_bytes, counts.received), (1, 100, 1));
    // No thread has id 77, and its slot is free.
    assert_eq!(view.slot_of(77), None);
    let words = &view.lanes[0];
    assert_eq!(words.read.load(Ordering::Relaxed), words.written());
}

#[test]
fn a_lane_is_taken_over_where_its_owner_left_it() {
    let device = Device::new(1);
    let view = device.view();
    let client = Client { node: NodeId(9), incarnation: LIFE, stream: 3 };
    let claim = |node, dead: u16| Writer::claim(&view, (NodeId(node), LIFE), Some(client), |node, _| node.0 != dead);
    let mut first = claim(5, 0).unwrap();
    first.try_write(&view, 1, 1, &[&bytes(300, 1)]).unwrap();
    first.try_write(&view, 1, 2, &[&bytes(3, 2)]).unwrap();
    // It died after it had published the second, and before it could count it.
    let (at, sequence, latest) = view.lanes[0].published();
    assert_eq!((at, sequence), (first.position(), 2));
    view.lanes[0].published[latest][0].store(0, Ordering::Relaxed);
    assert!(claim(6, 0).is_none(), "its owner lives");
    let mut second = claim(6, 5).unwrap();
    assert_eq!((second.sequence(), second.position()), (2, first.position()));
    second.try_write(&view, 1, 3, &[&[]]).unwrap();
    for tag in 1..=3 {
        let (header, _) = device.receive(0).unwrap().unwrap();
        assert_eq!((header.tag, header.source), (tag, NodeId(9)));
    }
    // Another client begins at zero.
    second.release(&view);
    let other = Client { stream: 4, ..client };
    let third = Writer::claim(&view, (NodeId(6), LIFE), Some(other), |_, _| true).unwrap();
    assert_eq!(third.sequence(), 0);
}

#[test]
fn bounds_of_messages() {
    let device = Device::new(1);
    let (mut writer, view) = (device.writer(5), device.view());
    let max = device.geometry.message_max();
    assert_eq!(writer.try_write(&view, 1, 0, &[&vec![0; max + 65]]), Err(NoWrite::TooLong));
    for round in 0..20 {
        writer.try_write(&view, 1, round, &[&bytes(max, round), &[]]).unwrap();
        assert_eq!(device.receive(0).unwrap().unwrap().1, bytes(max, round));
    }
    while writer.try_write(&view, 1, 0, &[&[0; 100]]).is_ok() {}
    assert_eq!(writer.try_write(&view, 1, 0, &[&[0; 100]]), Err(NoWrite::Full));
    for broken in [DeviceGeometry { threads: 0, ..device.geometry }, DeviceGeometry { lane_bytes: 5000, ..device.geometry }] {
        assert!(broken.validate().is_err());
    }
}

/// One step of a random program.
#[derive(Clone, Debug)]
enum Op {
    Send {
        lane: usize,
        thread: u32,
        len: usize,
    },
    /// Into a buffer of `room` bytes; with a point at which the thread dies, if it gets that far.
    Receive {
        thread: u32,
        room: usize,
        dies: Option<usize>,
    },
    Leave {
        thread: u32,
    },
    /// The sender of a lane dies, and another takes it over; sometimes with a message that was not counted.
    NewSender {
        lane: usize,
        uncounted: bool,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let len = || prop_oneof![3 => 0..=80_usize, 1 => 0..=DeviceGeometry { lane_bytes: 8192, ..Default::default() }.message_max()];
    let room = prop_oneof![3 => Just(usize::MAX), 1 => len()];
    let dies = prop_oneof![2 => Just(None), 1 => (0..9_usize).prop_map(Some)];
    prop_oneof![
        8 => (0..2_usize, 1..=4_u32, len()).prop_map(|(lane, thread, len)| Op::Send { lane, thread, len }),
        8 => (1..=4_u32, room, dies).prop_map(|(thread, room, dies)| Op::Receive { thread, room, dies }),
        1 => (1..=4_u32).prop_map(|thread| Op::Leave { thread }),
        1 => (0..2_usize, any::<bool>()).prop_map(|(lane, uncounted)| Op::NewSender { lane, uncounted }),
    ]
}

/// Tags and lengths, in order.
type Waiting = VecDeque<(u64, usize)>;

/// The expected contents of a device: the messages of each lane and thread, the first of which a dead thread may have taken.
#[derive(Default)]
struct Model {
    waiting: BTreeMap<(usize, u32), (Waiting, bool)>,
}

impl Model {
    /// This message is the first of its lane and thread.
    fn is_first(&mut self, header: &Header) {
        let (waiting, may_be_gone) = self.waiting.get_mut(&(header.place.lane, header.thread)).unwrap();
        if *may_be_gone && waiting[0].0 != header.tag {
            waiting.pop_front();
            *may_be_gone = false;
        }
        assert_eq!(waiting[0], (header.tag, header.len), "{header:?}");
    }

    fn take(&mut self, header: &Header) {
        self.is_first(header);
        let (waiting, may_be_gone) = self.waiting.get_mut(&(header.place.lane, header.thread)).unwrap();
        waiting.pop_front();
        *may_be_gone = false;
    }

    /// There is no message for this thread.
    fn is_empty(&mut self, thread: u32) -> bool {
        for (waiting, may_be_gone) in self.waiting.iter_mut().filter(|((_, id), _)| *id == thread).map(|(_, waiting)| waiting) {
            if std::mem::take(may_be_gone) {
                waiting.pop_front();
            }
        }
        self.waiting.iter().filter(|((_, id), _)| *id == thread).all(|(_, (waiting, _))| waiting.is_empty())
    }
}

fn run(ops: Vec<Op>) {
    let device = Device::new(2);
    let view = device.view();
    let mut writers = [device.writer(5), device.writer(6)];
    let mut nodes = [5, 6];
    let mut slots: BTreeMap<u32, usize> = (0..THREADS).map(|slot| (slot as u32 + 1, slot)).collect();
    let mut model = Model::default();
    let last = (1..=4).map(|thread| Op::Receive { thread, room: usize::MAX, dies: None });
    let last: Vec<Op> = last.flat_map(|op| vec![op; ops.len()]).collect();
    for (tag, op) in ops.into_iter().chain(last).enumerate() {
        let tag = tag as u64;
        match op {
            Op::Send { lane, thread, len } => match writers[lane].try_write(&view, thread, tag, &[&bytes(len, tag)]) {
                Ok(()) => model.waiting.entry((lane, thread)).or_default().0.push_back((tag, len)),
                Err(why) => {
                    assert_eq!(why, NoWrite::Full);
                    let messages = model.waiting.iter().filter(|((by, _), _)| *by == lane);
                    assert!(messages.map(|(_, (waiting, _))| waiting.len()).sum::<usize>() > 0, "full while empty");
                }
            },
            Op::Receive { thread, room, dies } => {
                let attach = || device.lock(63).attach(thread, (NodeId(1), LIFE), 0).unwrap().unwrap().0;
                let slot = *slots.entry(thread).or_insert_with(attach);
                DIES_AFTER.set(dies);
                let got = device.receive_as(slot, thread, room);
                DIES_AFTER.set(None);
                match got {
                    Ok(Got::Message(header, found)) => {
                        assert_eq!((header.thread, found), (thread, bytes(header.len, header.tag)));
                        model.take(&header);
                    }
                    Ok(Got::TooLong(header)) => {
                        assert!(header.thread == thread && header.len > room);
                        model.is_first(&header);
                    }
                    Ok(Got::Nothing) => assert!(model.is_empty(thread), "something is lost of thread {thread}"),
                    Err(taking) => {
                        if let Some(header) = taking {
                            model.is_first(&header);
                            model.waiting.get_mut(&(header.place.lane, thread)).unwrap().1 = true;
                        }
                        device.inherit(63);
                    }
                }
            }
            Op::Leave { thread } => {
                if let Some(slot) = slots.remove(&thread) {
                    device.lock(63).detach(slot, device.owner(slot), 0);
                }
            }
            Op::NewSender { lane, uncounted } => {
                let (dead, heir) = (nodes[lane], 7 + tag as u16);
                let (_, sequence, latest) = view.lanes[lane].published();
                let at = writers[lane].position();
                if uncounted && writers[lane].try_write(&view, 1, tag, &[&bytes(4, tag)]).is_ok() {
                    model.waiting.entry((lane, 1)).or_default().0.push_back((tag, 4));
                    view.lanes[lane].record(1 - latest, at, sequence);
                }
                let claimed = Writer::claim(&view, (NodeId(heir), LIFE), None, |node, _| node.0 != dead).unwrap();
                assert_eq!(claimed.lane(), lane, "the lane of a living sender");
                (writers[lane], nodes[lane]) = (claimed, heir);
            }
        }
    }
    let counts = Held::counts(view);
    assert_eq!((counts.broken, counts.dropped), (0, 0));
    for words in view.lanes {
        assert_eq!(words.read.load(Ordering::Relaxed), words.written(), "the sender gets no room back");
    }
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: if cfg!(miri) { 3 } else { 300 }, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    /// Compared with a plain list for each lane and thread: whatever the order, the sizes and the deaths, no message is lost
    /// except those that a dead thread had taken, none comes twice, and the messages of a lane come in order.
    #[test]
    fn a_device_is_a_queue_for_each_thread(ops in proptest::collection::vec(op(), 1..if cfg!(miri) { 25 } else { 60 })) {
        run(ops);
    }

    /// Whatever is written anywhere in a device, nothing panics, hangs or touches memory outside.
    #[test]
    #[cfg_attr(miri, ignore = "it writes words of another size than they are read with, which Miri can't follow")]
    fn hostile_words_harm_nobody_else(
        steps in proptest::collection::vec((0..10_u8, any::<u64>(), any::<u64>()), 1..80),
    ) {
        let device = Device::new(2);
        let mut writers = [device.writer(5), device.writer(6)];
        let words = device.segment.len() / 8;
        for (kind, at, value) in steps {
            // Again each time, since the words between the fields are written, too.
            let view = device.view();
            match kind {
                0..=3 => {
                    let len = (value % 600) as usize;
                    let _ = writers[(at % 2) as usize].try_write(&view, (at % 5) as u32, value, &[&bytes(len, value)]);
                }
                4..=6 => {
                    if Held::try_lock(view, device.owner(0)).is_ok() {
                        let _ = device.receive((at % THREADS as u64) as usize);
                    }
                }
                7 => {
                    if let Ok(held) = Held::try_lock(view, device.owner(1)) {
                        held.sweep(value, LIMIT, &view.dead(None, |_, _| at.is_multiple_of(2)));
                    }
                    if let Some(held) = Held::inherit(view, device.owner(2), view.lock_seen()) {
                        drop(held);
                    }
                    let _ = Writer::claim(&view, (NodeId(7), LIFE), None, |_, _| at.is_multiple_of(2)).map(|writer| writers[0] = writer);
                }
                _ => {
                    // Words of the head more often than those of the rings.
                    let first = crate::layout::PAGE / 8;
                    let last = if at.is_multiple_of(3) { words } else { first + 1500 };
                    let at = first + (at / 3) as usize % (last - first);
                    let values = [0, 1, u64::MAX, value, value % 300, (value % 300) << 56];
                    // SAFETY: within the segment, aligned; all words of a device are atomics.
                    let word = unsafe { &*device.segment.ptr().cast::<AtomicU64>().add(at) };
                    word.store(values[value as usize % values.len()], Ordering::Relaxed);
                }
            }
        }
    }
}

/// However a node asks for lanes, it leaves some for others: itself, over the network, and with lanes kept for senders that may
/// come back.
#[test]
fn no_node_has_all_lanes() {
    let device = Device::new(8);
    let (feeder, lives) = ((NodeId(1), LIFE), |_, _| true);
    let claim = |node: u16, stream: u32| {
        let client = Client { node: NodeId(node), incarnation: LIFE, stream };
        Writer::claim(&device.view(), feeder, Some(client), lives)
    };
    let near: Vec<_> = (0..20).map_while(|_| Writer::claim(&device.view(), (NodeId(5), LIFE), None, lives)).collect();
    assert_eq!(near.len(), 4);
    let far: Vec<_> = (0..20).map_while(|stream| claim(6, stream)).collect();
    assert_eq!(far.len(), 2);
    // A third node has one lane, and a fourth, too.
    let others = [claim(7, 1).unwrap(), claim(8, 1).unwrap()];
    assert!(claim(9, 1).is_none());
    assert_eq!(Writer::claim(&device.view(), feeder, None, lives).map(|writer| writer.lane()), None);
    near.iter().chain(&others).for_each(|writer| writer.release(&device.view()));
    // The lanes of a client that may come back still count as its own. It gets them back, and no more.
    far.iter().for_each(|writer| writer.release(&device.view()));
    let again: Vec<_> = (0..20).map_while(|stream| claim(6, 100 + stream)).collect();
    assert!(again.len() <= 4, "{} lanes", again.len());
    let back: Vec<_> = [0, 1].into_iter().filter_map(|stream| claim(6, stream)).collect();
    assert!(again.len() + back.len() <= 4, "{} and {} lanes", again.len(), back.len());
    let more = (0..20).filter_map(|stream| claim(6, 200 + stream)).count();
    assert!(again.len() + back.len() + more <= 4);
    assert!(claim(7, 9).is_some());
}

/// Threads of one node that claim lanes at once count before any of them has one. The node still gets its share, and no more.
#[test]
fn threads_that_claim_at_once_get_the_share_of_their_node() {
    const LANES: usize = 8;
    let device = Device::new(LANES);
    // All lanes belong to dead nodes, so each thread checks each lane's owner.
    for (node, count) in [(9, 4), (8, 2), (7, 1), (6, 1)] {
        let claimed = (0..count).map_while(|_| Writer::claim(&device.view(), (NodeId(node), LIFE), None, |_, _| true)).count();
        assert_eq!(claimed, count);
    }
    let counted = std::sync::Barrier::new(LANES);
    let claim = || {
        let asked = Cell::new(0);
        let lives = |_, _| {
            asked.set(asked.get() + 1);
            if asked.get() == LANES {
                counted.wait();
            }
            false
        };
        usize::from(Writer::claim(&device.view(), (NodeId(5), LIFE), None, lives).is_some())
    };
    let got: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..LANES).map(|_| scope.spawn(claim)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(got, LANES / 2);
}
