//! The store works over shared memory and over the network, and each error says what happened.

use doorbell::service::{Class, CloseReason, Gone, Outbox, PacketKind, PeerId, Service, ServiceHandle, Verdict, Wants};
use doorbell::{Error, FabricKind, Node, NodeBuilder, Payload, Priority, Space};
use doorbell_example_service::{BYTES_MAX, KeyValue};
use std::time::{Duration, Instant};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Three nodes of one store.
fn stores(fabric: FabricKind) -> [KeyValue; 3] {
    let space = Space::heap();
    let listen = |builder: NodeBuilder| builder.listen(([127, 0, 0, 1], 0));
    let builder = |id| Node::builder("store").id(id).space(space.clone()).fabric(fabric);
    let stores = match fabric {
        FabricKind::Udp => {
            let first = KeyValue::join(listen(builder(0))).unwrap();
            let address = first.node().address().unwrap();
            let [second, third] = [1, 2].map(|id| KeyValue::join(builder(id).connect(address)).unwrap());
            [first, second, third]
        }
        _ => [0, 1, 2].map(|id| KeyValue::join(builder(id)).unwrap()),
    };
    stores.iter().for_each(|store| drop(store.node().wait_for(3, soon()).unwrap()));
    stores
}

fn each_fabric(test: impl Fn([KeyValue; 3])) {
    for fabric in [FabricKind::Shm, FabricKind::Udp] {
        test(stores(fabric));
    }
}

#[test]
fn each_node_finds_what_others_put() {
    each_fabric(|stores| {
        let [a, b, c] = &stores;
        assert_eq!(a.put(b.node().id(), b"colour", b"green", soon()).unwrap(), None);
        assert_eq!(c.get(b.node().id(), b"colour", soon()).unwrap(), Some(b"green".to_vec()));
        assert_eq!(c.put(b.node().id(), b"colour", b"red", soon()).unwrap(), Some(b"green".to_vec()));
        assert_eq!(a.get(b.node().id(), b"colour", soon()).unwrap(), Some(b"red".to_vec()));
        assert_eq!(a.get(c.node().id(), b"colour", soon()).unwrap(), None);
        assert_eq!(a.put(b.node().id(), b"", b"", soon()).unwrap(), None);
        assert_eq!(a.get(b.node().id(), b"", soon()).unwrap(), Some(Vec::new()));
    });
}

#[test]
fn threads_of_all_nodes_ask_at_once() {
    each_fabric(|stores| {
        std::thread::scope(|scope| {
            for (asks, store) in stores.iter().enumerate() {
                for thread in 0..2_u8 {
                    let (store, stores) = (store.clone(), &stores);
                    scope.spawn(move || {
                        for (at, owner) in (0..3_u8).cycle().zip(stores.iter().cycle()).take(60) {
                            let key = [asks as u8, thread, at];
                            store.put(owner.node().id(), &key, &[at; BYTES_MAX], soon()).unwrap();
                            assert_eq!(store.get(owner.node().id(), &key, soon()).unwrap(), Some(vec![at; BYTES_MAX]));
                        }
                    });
                }
            }
        });
    });
}

#[test]
fn the_end_of_an_owner_ends_what_it_was_asked() {
    each_fabric(|stores| {
        let [a, b, c] = stores;
        let owner = b.node().id();
        b.node().clone().leave().unwrap();
        let lost = a.get(owner, b"colour", soon());
        assert!(matches!(lost, Err(Error::PeerLeft { .. } | Error::NoSuchNode { .. })), "{lost:?}");
        assert_eq!(a.get(c.node().id(), b"colour", soon()).unwrap(), None, "the others go on");
    });
}

#[test]
fn what_is_too_long_is_refused_here() {
    let [a, b, _] = stores(FabricKind::Shm);
    let refused = a.put(b.node().id(), &[0; BYTES_MAX + 1], b"", soon());
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
}

/// Another service for packets of the store's class. It has something to send that finds no room.
#[derive(Default)]
struct Other {
    is_set: bool,
    is_stuck: bool,
}

impl Class for Other {
    const CLASS: PacketKind = PacketKind::User0;
}

impl Service for Other {
    fn receive(&mut self, _: PeerId, _: Priority, _: u64, _: Payload<'_>) -> Verdict {
        Verdict::Taken
    }

    fn progress(&mut self, _: &mut Outbox<'_>) -> usize {
        0
    }

    fn wants(&self) -> Wants {
        if self.is_stuck { Wants::Soon } else { Wants::Nothing }
    }

    fn peer_gone(&mut self, _: PeerId, _: Gone) {}

    fn close(&mut self, _: CloseReason) {}
}

#[test]
fn a_node_has_one_service_of_a_class() {
    let space = Space::heap();
    let refused = KeyValue::join(Node::builder("store").space(space.clone()).service(Other::default));
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    // The node that could not be as it was to be has left.
    let alone = KeyValue::join(Node::builder("store").space(space).id(0)).unwrap();
    assert_eq!(alone.node().members().unwrap().len(), 1);
}

#[test]
fn a_handle_finds_no_service_that_its_node_has_not() {
    let node = Node::builder("store").space(Space::heap()).join().unwrap();
    let missing = ServiceHandle::<Other>::open(&node);
    assert!(matches!(missing, Err(Error::Invalid { .. })), "{missing:?}");
}

/// A node with that service.
fn other() -> ServiceHandle<Other> {
    let node = Node::builder("other").space(Space::heap()).service(Other::default).join().unwrap();
    ServiceHandle::open(&node).unwrap()
}

#[test]
fn a_call_of_one_thread_wakes_the_wait_of_another() {
    let handle = other();
    std::thread::scope(|scope| {
        let (has_looked, looked) = std::sync::mpsc::channel();
        let began = Instant::now();
        let limit = Duration::from_secs(20);
        let (deadline, handle) = (began + limit, &handle);
        let waits = scope.spawn(move || {
            handle.wait_until(deadline, move |other| {
                let _ = has_looked.send(());
                other.is_set.then_some(7)
            })
        });
        looked.recv_timeout(limit).unwrap();
        handle.call(|other| other.is_set = true).unwrap();
        assert_eq!(waits.join().unwrap().unwrap(), 7);
        // At its deadline the wait looks once more, so that it found the number says nothing by itself.
        assert!(began.elapsed() < limit / 2, "the wait ended by its deadline, not by the call");
    });
}

#[test]
fn a_wait_ends_though_its_service_wants_turns_and_can_do_nothing() {
    let handle = other();
    handle.call(|other| other.is_stuck = true).unwrap();
    let never = handle.wait_until(Instant::now() + Duration::from_millis(200), |_| None::<()>);
    assert!(matches!(never, Err(Error::Timeout { .. })), "{never:?}");
}

#[test]
fn a_wait_ends_with_its_node() {
    let handle = other();
    std::thread::scope(|scope| {
        let (has_looked, looked) = std::sync::mpsc::channel();
        let handle = &handle;
        let waits = scope.spawn(move || {
            handle.wait(move |_| {
                let _ = has_looked.send(());
                None::<()>
            })
        });
        looked.recv_timeout(Duration::from_secs(20)).unwrap();
        handle.node().clone().leave().unwrap();
        let ended = waits.join().unwrap();
        assert!(matches!(ended, Err(Error::Closed)), "{ended:?}");
    });
}

/// A service for packets that belong to the engine.
#[derive(Default)]
struct Wrong(Other);

impl Class for Wrong {
    const CLASS: PacketKind = PacketKind::Whole;
}

impl Service for Wrong {
    fn receive(&mut self, from: PeerId, priority: Priority, tag: u64, payload: Payload<'_>) -> Verdict {
        self.0.receive(from, priority, tag, payload)
    }

    fn progress(&mut self, _: &mut Outbox<'_>) -> usize {
        0
    }

    fn wants(&self) -> Wants {
        Wants::Nothing
    }

    fn peer_gone(&mut self, _: PeerId, _: Gone) {}

    fn close(&mut self, _: CloseReason) {}
}

#[test]
fn a_program_has_no_service_for_packets_of_the_engine() {
    let refused = Node::builder("other").space(Space::heap()).service(Wrong::default).join();
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
}
