//! Models of a device: lock, shared storage and hand-over. Messages have eight bytes, in words that loom watches.

use super::words::{Apart, LaneWords, Line, Root, Slot, View};
use super::{Held, MOST, Received, STORED_MOST, Writer};
use crate::doorbell::Bell;
use crate::keys::{LockWords, OwnerId};
use doorbell_fabric::sync::AtomicU64;
use doorbell_fabric::{Incarnation, NodeId};
use loom::sync::atomic::{Ordering, fence};
use loom::thread::{self, ThreadId};
use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering as Plain};
use std::time::Duration;

thread_local!(static DIES_AFTER: Cell<Option<(ThreadId, usize)>> = const { Cell::new(None) });

/// Dies here, if this is the chosen thread at the chosen point.
pub(super) fn arrive() {
    match DIES_AFTER.get() {
        Some((who, left)) if who == thread::current().id() => {
            DIES_AFTER.set(left.checked_sub(1).map(|left| (who, left)));
            if left == 0 {
                resume_unwind(Box::new("dies"))
            }
        }
        _ => {}
    }
}

const LIFE: Incarnation = Incarnation(1);
const SENDER: (NodeId, Incarnation) = (NodeId(9), LIFE);

fn word() -> AtomicU64 {
    AtomicU64::new(0)
}

fn words<const N: usize>() -> [AtomicU64; N] {
    std::array::from_fn(|_| word())
}

struct Device {
    root: Root,
    slots: Vec<Slot>,
    lanes: Vec<LaneWords>,
    rings: Vec<Line>,
}

impl Device {
    /// Threads 1 and 2 in slots 0 and 1, one lane.
    fn new(ring: usize) -> Arc<Self> {
        let root = Root {
            lock: LockWords::new(),
            busy: Apart(word()),
            port: Apart(word()),
            ended: Apart(word()),
            swept: word(),
            turn: word(),
            counts: words(),
            names: Apart(words()),
            attached: Apart(words()),
        };
        let slot = |_| Slot {
            owner: word(),
            tid: word(),
            generation: word(),
            head: word(),
            tail: word(),
            bell: Bell::new(),
            stored: std::array::from_fn::<_, STORED_MOST, _>(|_| words()),
        };
        let lane = LaneWords {
            owner: word(),
            client: word(),
            stream: word(),
            published: [words(), words()],
            scan: Apart(word()),
            read: word(),
            blocked: word(),
            broken: word(),
            room: Bell::new(),
        };
        let device = Arc::new(Self {
            root,
            slots: (0..MOST).map(slot).collect(),
            lanes: vec![lane],
            rings: (0..ring).map(|_| Line(words())).collect(),
        });
        for (slot, name) in device.root.names.0.iter().enumerate() {
            name.store(slot as u64 + 2, Ordering::Relaxed);
        }
        device
    }

    fn view(&self) -> View<'_> {
        View { root: &self.root, slots: &self.slots, lanes: &self.lanes, rings: &self.rings }
    }

    fn writer(&self) -> Writer {
        Writer::claim(&self.view(), SENDER, None, |_, _| true).unwrap()
    }

    /// One step of the thread of a slot with the lock held. Returns its message, if it got one.
    fn step(&self, held: &Held<'_>, slot: usize) -> Option<u64> {
        let mut got = 0;
        let take = |view: &View<'_>, header: &super::Header| {
            got = view.line(header.place.lane, header.place.at).0[4].load(Ordering::Relaxed);
            true
        };
        match held.receive(slot, slot as u32 + 1, || 1, take, |_| ()) {
            Received::Message(header, _) => {
                assert_eq!((header.thread, header.len, header.tag), (slot as u32 + 1, 8, got + 100));
                Some(got)
            }
            Received::Left(_) => unreachable!("it is taken"),
            Received::Others(_) | Received::Nothing => None,
        }
    }

    /// Waits for a message as a thread does that can't spin.
    fn receive(&self, slot: usize) -> u64 {
        let (view, me) = (self.view(), OwnerId::thread(NodeId(1), LIFE, slot as u32));
        loop {
            if view.next_for(slot as u32 + 1).is_none() && !view.has_stored(slot) {
                view.await_message(slot, slot as u32 + 1, Duration::MAX);
                continue;
            }
            match Held::try_lock(view, me) {
                Ok(held) => {
                    if let Some(got) = self.step(&held, slot) {
                        return got;
                    }
                }
                Err(_) => Held::await_lock(view, Duration::MAX),
            }
        }
    }
}

fn send(device: &Device, writer: &mut Writer, thread: u32, value: u64) -> bool {
    writer.try_write(&device.view(), thread, value + 100, &[&value.to_ne_bytes()]).is_ok()
}

/// Messages to two threads reach each, whichever thread looks first, and no wake-up is lost.
#[test]
fn messages_reach_their_threads() {
    let mut model = loom::model::Builder::new();
    // With one more preemption it takes a minute.
    model.preemption_bound = Some(2);
    model.check(|| {
        let device = Device::new(8);
        let mut writer = device.writer();
        let threads = [0, 1].map(|slot| {
            let device = device.clone();
            thread::spawn(move || device.receive(slot))
        });
        assert!(send(&device, &mut writer, 2, 7) && send(&device, &mut writer, 1, 8));
        let [one, two] = threads.map(|thread| thread.join().unwrap());
        assert_eq!((one, two), (8, 7));
    });
}

/// Two messages for one thread come in order through a ring that holds one at a time: the sender sleeps until there is room.
#[test]
fn a_sender_sleeps_until_there_is_room() {
    loom::model(|| {
        let device = Device::new(4);
        let mut writer = device.writer();
        let other = device.clone();
        let receiver = thread::spawn(move || [0; 4].map(|_| other.receive(0)));
        for value in 0..4 {
            while !send(&device, &mut writer, 1, value) {
                writer.sleep(&device.view(), 8, Duration::MAX);
            }
        }
        assert_eq!(receiver.join().unwrap(), [0, 1, 2, 3]);
    });
}

/// One thread stores a header for another, which looks at its storage without the lock and takes it from there.
#[test]
fn what_is_stored_is_seen_whole() {
    loom::model(|| {
        let device = Device::new(8);
        let mut writer = device.writer();
        assert!(send(&device, &mut writer, 2, 3));
        let other = device.clone();
        let storing = thread::spawn(move || {
            let me = OwnerId::thread(NodeId(1), LIFE, 0);
            if let Ok(held) = Held::try_lock(other.view(), me) {
                assert_eq!(other.step(&held, 0), None);
            }
        });
        let sees = device.clone();
        let looking = thread::spawn(move || {
            // Not by way of the lock, which would order everything: a thread that sees the count sees the place.
            if sees.view().has_stored(1) {
                assert_eq!(sees.slots[1].stored[0][1].load(Ordering::Relaxed), 1);
            }
        });
        storing.join().unwrap();
        looking.join().unwrap();
        assert_eq!(device.receive(1), 3);
    });
}

/// How a mortal thread ended.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Lives(Option<u64>),
    /// Whether it had begun to receive its message.
    Dead(bool),
}

impl Device {
    /// One round of the thread of a slot, which dies at the chosen point.
    fn step_and_die(&self, slot: usize) -> End {
        let mut taking = false;
        let steps = || {
            let Ok(held) = Held::try_lock(self.view(), OwnerId::thread(NodeId(1), LIFE, slot as u32)) else { return None };
            // A thread that dies with the lock does not release it.
            let held = ManuallyDrop::new(held);
            let take = |_: &View<'_>, _: &super::Header| {
                taking = true;
                true
            };
            let received = held.receive(slot, slot as u32 + 1, || 1, take, |_| ());
            drop(ManuallyDrop::into_inner(held));
            match received {
                Received::Message(header, _) => Some(header.tag - 100),
                _ => None,
            }
        };
        match catch_unwind(AssertUnwindSafe(steps)) {
            Ok(got) => End::Lives(got),
            Err(_) => End::Dead(taking),
        }
    }

    /// As [`receive`](Self::receive), while the owner of the lock may have died: `dead` is 1 then.
    fn receive_beside(&self, slot: usize, dead: &AtomicU64) -> u64 {
        let (view, me) = (self.view(), OwnerId::thread(NodeId(1), LIFE, slot as u32));
        loop {
            let held = match Held::try_lock(view, me) {
                Ok(held) => Some(held),
                Err(seen) if dead.load(Ordering::Acquire) == 1 => Held::inherit(view, me, seen),
                Err(_) => {
                    let heard = self.root.lock.arm();
                    // Outside of models it wakes up from time to time to check that.
                    if !self.root.lock.get().is_free() && dead.load(Ordering::Acquire) == 0 {
                        self.root.lock.sleep(heard);
                    }
                    None
                }
            };
            if let Some(held) = held {
                if let Some(got) = self.step(&held, slot) {
                    return got;
                }
                drop(held);
                view.await_message(slot, slot as u32 + 1, Duration::MAX);
            }
        }
    }
}

/// Wherever an owner of the lock dies, messages for others reach them. Its own message reaches its heir, unless it was taken.
/// No message comes twice.
#[test]
fn the_next_owner_finds_all() {
    static DIED: AtomicBool = AtomicBool::new(true);
    let mut points = 0;
    while DIED.swap(false, Plain::Relaxed) {
        loom::model(move || {
            let device = Device::new(8);
            let mut writer = device.writer();
            let dead = Arc::new(word());
            assert!(send(&device, &mut writer, 2, 7) && send(&device, &mut writer, 1, 8));
            let (other, sees) = (device.clone(), dead.clone());
            let survivor = thread::spawn(move || other.receive_beside(1, &sees));
            DIES_AFTER.set(Some((thread::current().id(), points)));
            let mut end = device.step_and_die(0);
            if end == End::Lives(None) {
                end = device.step_and_die(0);
            }
            DIES_AFTER.set(None);
            if let End::Dead(_) = end {
                DIED.store(true, Plain::Relaxed);
                dead.store(1, Ordering::Release);
                fence(Ordering::SeqCst);
                device.root.lock.wake_all();
            }
            assert_eq!(survivor.join().unwrap(), 7);
            let view = device.view();
            let heir = OwnerId::thread(NodeId(1), LIFE, 0);
            let held = match Held::try_lock(view, heir) {
                Ok(held) => held,
                Err(seen) => Held::inherit(view, heir, seen).unwrap(),
            };
            let left = [(); 2].map(|()| device.step(&held, 0)).into_iter().flatten().collect::<Vec<_>>();
            match end {
                End::Lives(Some(got)) => assert_eq!((got, left), (8, vec![])),
                End::Lives(None) | End::Dead(false) => assert_eq!(left, [8]),
                End::Dead(true) => assert!(left.is_empty() || left == [8], "{left:?}"),
            }
            let words = &device.lanes[0];
            assert_eq!(words.read.load(Ordering::Relaxed), words.written());
        });
        points += 1;
    }
    assert!(points > 5, "{points}");
}
