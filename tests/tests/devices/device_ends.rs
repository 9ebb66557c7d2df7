//! A node leaves in the middle of its work at a device, and a device goes while others send to it.

use doorbell::Device;
use doorbell::DeviceSender;
use doorbell::device::DeviceStep;
use doorbell::{DeviceError, Error, Node};
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{PATIENCE, briefly, eventually, running, soon};
use std::sync::mpsc::channel;
use std::time::Instant;

fn join(domain: &Domain) -> Node {
    Node::builder(domain.name()).join().unwrap()
}

fn fault<T: std::fmt::Debug>(result: Result<T, Error>) -> DeviceError {
    let error = result.unwrap_err();
    *error.downcast_ref().unwrap_or_else(|| panic!("{error}"))
}

/// A node leaves while one of its threads has the device's lock, and that thread goes on before or after it has left.
fn leaves_with_the_lock(before: bool) {
    let domain = Domain::new("device-leave");
    let (leaving, staying, sending) = (join(&domain), join(&domain), join(&domain));
    let ((has_lock, lock), (go_on, on)) = (channel(), channel());
    let on = std::sync::Mutex::new(on);
    let watch = move |event: doorbell::device::DeviceEvent| {
        if event.step == DeviceStep::Header(Some(1)) {
            let _ = has_lock.send(());
            let _ = on.lock().unwrap().recv_timeout(PATIENCE);
        }
    };
    let device = Device::builder(&leaving, "net").watch(watch).attach().unwrap();
    let kept = Device::builder(&staying, "net").attach().unwrap();
    let (mut one, mut two) = (device.thread(1).unwrap(), kept.thread(2).unwrap());
    let sender = DeviceSender::open(&sending, "net").unwrap();
    sender.send(1, 0, b"for one").unwrap();
    (1..5).for_each(|tag| sender.send(2, tag, b"for two").unwrap());
    let receiving = running("a thread receives", move || {
        let mut buf = [0; 64];
        let got = one.receive_until(&mut buf, soon());
        // Dropped after its node has left.
        (got.map(|envelope| envelope.tag), one)
    });
    lock.recv_timeout(PATIENCE).unwrap();
    let node = leaving.clone();
    let leave = running("its node leaves", move || node.leave());
    eventually("the node is closed", || DeviceSender::open(&leaving, "net").is_err());
    if before {
        go_on.send(()).unwrap();
        leave.join().unwrap();
    } else {
        leave.join().unwrap();
        // Others find that the lock's owner is no more, and go on.
        assert_eq!(two.receive_until(&mut [0; 64], soon()).unwrap().tag, 1);
        go_on.send(()).unwrap();
    }
    let (got, one) = receiving.join();
    match got {
        Ok(tag) => assert_eq!(tag, 0),
        Err(error) => assert!(matches!(error, Error::Closed), "{error}"),
    }
    drop(one);
    let mut buf = [0; 64];
    let first = if before { 1 } else { 2 };
    let tags: Vec<u64> = (first..5).map(|_| two.receive_until(&mut buf, soon()).unwrap().tag).collect();
    assert_eq!(tags, Vec::from_iter(first..5));
    // The lane is as good as before.
    for tag in 10..200 {
        sender.send_until(2, tag, &[7; 60], soon()).unwrap();
        assert_eq!(two.receive_until(&mut buf, soon()).unwrap().tag, tag);
    }
    let counts = kept.counts();
    assert_eq!((counts.inherited, counts.broken), (u64::from(!before), 0));
    drop((sender, two, kept, device));
    [staying, sending].into_iter().for_each(|node| node.leave().unwrap());
}

#[test]
fn leaving_waits_for_a_thread_that_has_the_lock() {
    leaves_with_the_lock(true);
}

#[test]
fn a_thread_whose_node_has_left_spoils_nothing() {
    leaves_with_the_lock(false);
}

#[test]
fn senders_are_told_that_their_device_is_gone() {
    let domain = Domain::new("device-gone");
    let (attached, sending) = (join(&domain), join(&domain));
    let device = Device::builder(&attached, "net").attach().unwrap();
    let sender = DeviceSender::open(&sending, "net").unwrap();
    sender.send(1, 0, b"while it is there").unwrap();
    drop(device);
    assert_eq!(fault(sender.send(1, 1, b"nobody")), DeviceError::Absent);
    assert_eq!(fault(sender.try_send(1, 1, b"nobody")), DeviceError::Absent);
    // Another of the same name is another.
    let device = Device::builder(&attached, "net").attach().unwrap();
    let mut thread = device.thread(1).unwrap();
    assert_eq!(fault(sender.send(1, 2, b"the former")), DeviceError::Absent);
    let anew = DeviceSender::open(&sending, "net").unwrap();
    anew.send(1, 3, b"the new one").unwrap();
    assert_eq!(thread.receive_until(&mut [0; 64], soon()).unwrap().tag, 3);
    drop((sender, anew, thread, device));
    [attached, sending].into_iter().for_each(|node| node.leave().unwrap());
}

#[test]
fn ids_that_nobody_has_keep_no_thread_out() {
    let domain = Domain::new("device-strays");
    let node = join(&domain);
    let device = Device::builder(&node, "net").threads(4).attach().unwrap();
    let (stray, sender) = (DeviceSender::open(&node, "net").unwrap(), DeviceSender::open(&node, "net").unwrap());
    let mut one = device.thread(1).unwrap();
    let mut buf = [0; 8];
    (100..110).for_each(|id| stray.send(id, 0, b"?").unwrap());
    let late = one.receive_until(&mut buf, Instant::now());
    assert!(late.is_err(), "{late:?}");
    assert!(one.receive_until(&mut buf, briefly()).is_err());
    sender.send(1, 7, b"mine").unwrap();
    assert_eq!(one.receive_until(&mut buf, soon()).unwrap().tag, 7, "another sender's lane is not held up");
    // All four ids that the device serves are to be had at once.
    let mut others = [2, 3, 4].map(|id| device.thread(id).unwrap());
    assert_eq!(fault(device.thread(5)), DeviceError::Crowded { threads: 4 });
    for (thread, id) in others.iter_mut().zip(2..) {
        sender.send(id, id.into(), &[]).unwrap();
        assert_eq!(thread.receive_until(&mut buf, soon()).unwrap().tag, u64::from(id));
    }
    drop((stray, sender, one, others, device));
    node.leave().unwrap();
}

#[test]
fn a_lane_is_its_new_senders_whatever_the_former_does() {
    let domain = Domain::new("device-lane");
    let (receiving, leaving, second, third) = (join(&domain), join(&domain), join(&domain), join(&domain));
    let device = Device::builder(&receiving, "net").senders(1).attach().unwrap();
    let mut thread = device.thread(1).unwrap();
    let former = DeviceSender::open(&leaving, "net").unwrap();
    leaving.leave().unwrap();
    let sender = DeviceSender::open(&second, "net").unwrap();
    assert!(matches!(former.send(1, 0, b"gone"), Err(Error::Closed)));
    drop(former);
    assert_eq!(fault(DeviceSender::open(&third, "net")), DeviceError::NoLane { senders: 1 });
    sender.send(1, 5, b"its own").unwrap();
    assert_eq!(thread.receive_until(&mut [0; 8], soon()).unwrap().tag, 5);
    drop((sender, thread, device));
    [receiving, second, third].into_iter().for_each(|node| node.leave().unwrap());
}
