//! Files that are truncated while nodes use them: operations that depend on them fail at both ends and name the cause, and no other operation fails.

use doorbell::Listener;
use doorbell::Stream;
use doorbell::{CopySide, Error, Event, Key, Match, Node, NodeId, Progress, ReadWrite};
use doorbell_tests::domain::Domain;
use doorbell_tests::patience::{eventually, finishes, running, soon, until};
use nix::sys::signal::{SigSet, Signal};
use std::fs::File;
use std::io::Read;
use std::time::Instant;

const MIB: usize = 1 << 20;
const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);

struct Pair {
    domain: Domain,
    a: Node,
    b: Node,
}

impl Pair {
    fn new(what: &str, progress: Progress) -> Self {
        Self::with(what, progress, CopySide::Auto)
    }

    fn with(what: &str, progress: Progress, copy: CopySide) -> Self {
        let domain = Domain::new(what);
        let join = |id| Node::builder(domain.name()).max_nodes(4).id(id).progress(progress).copy(copy).join().unwrap();
        let (a, b) = (join(0), join(1));
        a.wait_for(2, soon()).unwrap();
        let pair = Self { a, b, domain };
        pair.talk();
        pair
    }

    fn file(&self, name: &str) -> File {
        let path = std::path::Path::new("/dev/shm").join(format!("{}{name}", self.domain.prefix()));
        File::options().read(true).write(true).open(path).unwrap()
    }

    /// Checks that both still exchange messages of every length.
    fn talk(&self) {
        for (from, to) in [(&self.a, &self.b), (&self.b, &self.a)] {
            for len in [8, 5000, MIB] {
                let (sender, receiver, id) = (from.clone(), to.clone(), to.id());
                let send = running("to send", move || sender.send_until(id, 9, &vec![7; len], soon()));
                let mut buf = vec![0; len];
                assert_eq!(receiver.recv_until(Match::any().tag(9), &mut buf, soon()).unwrap().len, len);
                assert!(buf.iter().all(|byte| *byte == 7));
                send.join().unwrap();
            }
        }
    }

    fn leave(self) {
        self.a.leave().unwrap();
        self.b.leave().unwrap();
        self.domain.assert_empty();
    }
}

/// Both ends of a stream fail: that of the node that is cut off, and that of its peer, which waits for bytes.
#[test]
fn streams_with_a_node_whose_inbox_is_truncated_end() {
    let pair = Pair::new("streams", Progress::Adaptive);
    let listener = Listener::builder(&pair.a, "cut").bind().unwrap();
    let mut waits = Stream::builder(&pair.b, "cut").connect().unwrap();
    let (mut own, _) = listener.accept_until(soon()).unwrap();
    let waiting = running("a stream's reader", move || (waits.read(&mut [0; 8]), waits)).started();
    pair.file(".0.inbox").set_len(0).unwrap();
    // Both are kept, as dropping one would be a good end.
    let (read, _own) = finishes("the end of a node's own stream", move || (own.read(&mut [0; 8]), own));
    read.unwrap_err();
    waiting.join().0.unwrap_err();
    drop(listener);
    pair.leave();
}

/// The first report of damage among the events so far.
fn damaged(node: &Node) -> Option<(NodeId, &'static str)> {
    std::iter::from_fn(|| node.try_event().unwrap()).find_map(|event| match event {
        Event::Damaged { node, reason } => Some((node, reason)),
        _ => None,
    })
}

/// The cut of an inbox: its new length, and whether it gets its old length back.
#[derive(Clone, Copy, Debug)]
struct Cut {
    keep: u64,
    regrown: bool,
}

/// Everything that depends on `A`'s inbox is under way, and then it is cut.
fn cut_inbox(progress: Progress, cut: Cut) {
    let pair = Pair::new("inbox", progress);
    let (a, b) = (&pair.a, &pair.b);
    let incarnation = b.incarnation();
    // In parts, pulled, queued behind what is not received, and blocked in a call.
    let begin = |from: &Node, to| {
        let mut sends: Vec<_> = (0..3).map(|_| from.start_send(to, 1, vec![1; MIB]).unwrap()).collect();
        sends.extend((0..100).map(|_| from.start_send(to, 2, vec![1; 16 << 10]).unwrap()));
        sends
    };
    let (from_a, from_b) = (begin(a, B), begin(b, A));
    let posted = [(a, B), (b, A)].map(|(node, from)| node.start_recv(Match::from(from).tag(3), vec![0; 8]).unwrap());
    let anybody = a.start_recv(Match::any().tag(4), vec![0; 8]).unwrap();
    let receive = |node: &Node, accepts: Match| {
        let node = node.clone();
        running("a receive", move || node.recv(accepts, &mut [0; 8])).started()
    };
    let blocked = [receive(a, Match::from(B).tag(5)), receive(b, Match::from(A).tag(5))];
    let in_place = a.clone();
    let in_place = running("a receive in place", move || in_place.recv_with(Match::any().tag(6), |_, _| ())).started();
    let counting = a.clone();
    let counted = running("a counter", move || {
        let counter = counting.counter()?;
        counter.init(1)?;
        counter.wait()
    })
    .started();
    let file = pair.file(".0.inbox");
    let len = file.metadata().unwrap().len();
    file.set_len(cut.keep).unwrap();
    if cut.regrown {
        file.set_len(len).unwrap();
    }
    let (is_severed, is_over) = (
        |error: &Error| matches!(error, Error::Severed { node: A }),
        |error: &Error| matches!(error, Error::PeerDied { node: A, .. } | Error::Damaged { node: A }),
    );
    let [at_a, at_b] = blocked.map(|receive| receive.join().unwrap_err());
    assert!(is_severed(&at_a) && is_over(&at_b), "{cut:?}: {at_a}; {at_b}");
    let error = in_place.join().unwrap_err();
    assert!(is_severed(&error), "{cut:?}: {error}");
    let error = counted.join().unwrap_err();
    assert!(is_severed(&error), "{cut:?}: {error}");
    let [at_a, at_b] = posted.map(|receive| finishes("a posted receive", move || receive.wait()).result.unwrap_err());
    assert!(is_severed(&at_a) && is_over(&at_b), "{cut:?}: {at_a}; {at_b}");
    let error = finishes("a posted receive", move || anybody.wait()).result.unwrap_err();
    assert!(is_severed(&error), "{cut:?}: {error}");
    for (sends, is_named) in [(from_a, &is_severed as &dyn Fn(&Error) -> bool), (from_b, &is_over)] {
        for send in sends {
            // Messages that were in the lane before have been sent.
            if let Err(error) = finishes("a send", move || send.wait()).result {
                assert!(is_named(&error), "{cut:?}: {error}");
            }
        }
    }
    // From now on, too.
    for len in [8, 5000, MIB] {
        let error = a.send(B, 1, &vec![0; len]).unwrap_err();
        assert!(is_severed(&error), "{cut:?}: {error}");
    }
    let error = a.recv(Match::any().tag(3), &mut [0; 8]).unwrap_err();
    assert!(is_severed(&error), "{cut:?}: {error}");
    assert!(b.send(A, 1, &[0; 8]).is_err());
    assert_eq!(until("it is told", || damaged(a)), (A, "its inbox was truncated"));
    // Another life of it, and `B` has gone on.
    let Pair { a, b, domain } = pair;
    a.leave().unwrap();
    let a = until("it joins anew", || Node::builder(domain.name()).id(0).progress(progress).join().ok());
    until("it is seen", || b.peer(A).ok());
    assert_eq!(b.incarnation(), incarnation);
    let pair = Pair { domain, a, b };
    // What the former life had sent is received, or was given up.
    pair.talk();
    pair.leave();
}

#[test]
fn a_node_whose_inbox_is_truncated_fails_by_name_and_its_peers_hear_of_it() {
    for progress in [Progress::Adaptive, Progress::Poller] {
        for keep in [0, 100, 4096] {
            for regrown in [false, true] {
                cut_inbox(progress, Cut { keep, regrown });
            }
        }
    }
}

/// The lanes of one pair are a file of their own: the two lose each other, and nobody else.
#[test]
fn lanes_that_are_truncated_part_two_nodes_and_no_others() {
    for (keep, regrown) in [(0, false), (4096, false), (12 << 10, false), (0, true)] {
        let pair = Pair::new("lanes", Progress::Adaptive);
        let (a, b) = (&pair.a, &pair.b);
        let c = Node::builder(pair.domain.name()).id(2).progress(Progress::Adaptive).join().unwrap();
        // The lanes have grown: to the words of transfers, and to their full rings.
        for _ in 0..2 {
            let sends: Vec<_> = (0..200).map(|_| b.start_send(A, 7, vec![1; 512]).unwrap()).collect();
            (0..200).for_each(|_| _ = a.take_until::<[u8]>(Match::from(B).tag(7), soon()).unwrap());
            sends.into_iter().for_each(|send| send.wait().result.unwrap());
        }
        let file = pair.file(&format!(".0.{}-from-1", a.incarnation().0));
        let len = file.metadata().unwrap().len();
        assert!(len > 100 << 10, "{len}");
        file.set_len(keep).unwrap();
        if regrown {
            file.set_len(len).unwrap();
        }
        let is_over = |error: &Error, node| matches!(error, Error::Damaged { node: of } if *of == node);
        let waits = |node: &Node, from| {
            let node = node.clone();
            running("a receive", move || node.recv(Match::from(from).tag(5), &mut [0; 8])).started()
        };
        let (at_a, at_b) = (waits(a, B), waits(b, A));
        // A lane that nobody uses may be missed until it is used.
        until("the sender fails", || b.send_until(A, 8, &[0; 64], soon()).err());
        let (at_a, at_b) = (at_a.join().unwrap_err(), at_b.join().unwrap_err());
        assert!(is_over(&at_a, B) && is_over(&at_b, A), "{keep} {regrown}: {at_a}; {at_b}");
        for (from, to, of) in [(a, &c, A), (&c, a, NodeId(2)), (b, &c, B), (&c, b, NodeId(2))] {
            from.send(to.id(), 9, &[from.id().0 as u8; 100]).unwrap();
            let mut got = [0; 100];
            to.recv_until(Match::from(of).tag(9), &mut got, soon()).unwrap();
            assert_eq!(got, [from.id().0 as u8; 100]);
        }
        c.leave().unwrap();
        // The next life of the sender has lanes that work.
        let Pair { domain, a, b } = pair;
        b.leave().unwrap();
        let b = until("it joins anew", || Node::builder(domain.name()).id(1).progress(Progress::Adaptive).join().ok());
        until("it is seen", || a.peer(B).ok().filter(|peer| peer.incarnation() == b.incarnation()));
        let pair = Pair { domain, a, b };
        pair.talk();
        pair.leave();
    }
}

/// Without a thread that looks: at the next call.
#[test]
fn a_node_that_does_nothing_hears_of_it_at_its_next_call() {
    let pair = Pair::new("idle", Progress::Inline);
    pair.file(".0.inbox").set_len(0).unwrap();
    let (a, b) = (pair.a.clone(), pair.b.clone());
    let waits = running("a receive", move || b.recv(Match::from(A), &mut [0; 8])).started();
    let error = finishes("a receive", move || a.recv(Match::from(B), &mut [0; 8])).unwrap_err();
    assert!(matches!(error, Error::Severed { node: A }), "{error}");
    let error = waits.join().unwrap_err();
    assert!(matches!(error, Error::PeerDied { node: A, .. } | Error::Damaged { node: A }), "{error}");
    pair.leave();
}

/// A truncated region fails puts and gets, but no messages.
#[test]
fn a_region_that_is_truncated_hurts_nothing_but_what_is_in_it() {
    let pair = Pair::new("region", Progress::Adaptive);
    let (a, b) = (&pair.a, &pair.b);
    let regions: [_; 2] = [a.region::<u8>(MIB).unwrap(), a.region::<u8>(MIB).unwrap()];
    let keys: [Key<u8, ReadWrite>; 2] = [regions[0].key(), regions[1].key()];
    keys.iter().for_each(|key| b.put(&[1; 64], key.at(MIB / 2)).unwrap());
    pair.file(".0.r0").set_len(8192).unwrap();
    let mut got = [0; 64];
    assert!(matches!(b.put(&[2; 64], keys[0].at(MIB / 2)), Err(Error::Damaged { node: A })));
    assert!(matches!(b.get(keys[0].at(MIB / 2), &mut got), Err(Error::Damaged { node: A })));
    b.get(keys[1].at(MIB / 2), &mut got).unwrap();
    assert_eq!(got, [1; 64]);
    // A message that lies in it can't be had, and its sender learns that.
    // SAFETY: nobody writes there.
    let bytes: &'static [u8] = unsafe { std::slice::from_raw_parts(regions[0].as_slice().as_ptr(), MIB) };
    let receive = b.start_recv(Match::from(A).tag(1), vec![0; MIB]).unwrap();
    let sent = finishes("a send", {
        let a = a.clone();
        move || a.send(B, 1, bytes)
    });
    if let Err(error) = sent {
        assert!(matches!(error, Error::Invalid { .. }), "{error}");
    }
    drop(receive);
    pair.talk();
    assert_eq!(damaged(b), None);
    drop(regions);
    pair.leave();
}

/// The copy fails at the buffer of the receive, which only its owner can have truncated: the receive ends, and the send reports it.
#[test]
fn a_buffer_that_cannot_be_written_is_not_blamed_on_the_sender() {
    let pair = Pair::with("buffer", Progress::Adaptive, CopySide::Target);
    let (a, b) = (&pair.a, &pair.b);
    let region = b.region::<u8>(8 * MIB).unwrap();
    // SAFETY: nobody has a key, and the slice is used by one receive only.
    let buf = unsafe { &mut *std::ptr::from_mut(region.as_mut_slice()) };
    // Only its end is gone, where the target begins to copy.
    pair.file(".1.r0").set_len(7 * MIB as u64).unwrap();
    let (sender, receiver) = (a.clone(), b.clone());
    let send = running("a send", move || sender.send(B, 1, &vec![1; 8 * MIB]));
    let received = finishes("a receive", move || receiver.recv(Match::from(A), buf));
    let sent = send.join();
    // Where the kernel's copy is refused, all goes through the lane, and is written here.
    if let Err(error) = received {
        let Error::Invalid { what } = error else { panic!("{error}") };
        assert!(what.contains("can't be received at"), "{what}");
        let Err(Error::Invalid { what }) = sent else { panic!("{sent:?}") };
        assert!(what.contains("into which node 1 receives it"), "{what}");
    } else {
        println!("nothing was copied by the kernel: {sent:?} {:?}", b.transfers().unwrap());
    }
    pair.talk();
    assert_eq!((damaged(a), drop(region)), (None, ()));
    pair.leave();
}

/// A message that is lent is lost with the memory it lies in, and no other is.
#[test]
fn a_loan_whose_memory_is_truncated_fails_by_name() {
    let pair = Pair::new("arena", Progress::Adaptive);
    let (a, b) = (&pair.a, &pair.b);
    let lend = |len: usize| {
        let mut loan = a.loan_bytes(len).unwrap();
        loan.fill(3);
        loan.share().send_until(B, 1, soon()).unwrap();
    };
    lend(64 << 10);
    let mut buf = vec![0; 64 << 10];
    assert_eq!(b.recv_until(Match::from(A), &mut buf, soon()).unwrap().len, 64 << 10);
    (0..4).for_each(|_| lend(64 << 10));
    pair.file(".0.r0").set_len(8192).unwrap();
    let is_damaged = |error: Error| matches!(error, Error::Damaged { node: A });
    let accepts = Match::from(A).tag(1);
    assert!(b.recv_until(accepts, &mut buf, soon()).is_err_and(is_damaged));
    assert!(b.recv_with_until(accepts, soon(), |_, payload| payload.to_vec()).is_err_and(is_damaged));
    let posted = b.start_recv(accepts, vec![0; 64 << 10]).unwrap();
    assert!(posted.wait().result.is_err_and(is_damaged));
    let taken = b.take_until::<[u8]>(accepts, soon()).unwrap();
    assert!(taken.to_vec().iter().all(|byte| *byte == 0));
    assert!(!taken.is_whole());
    drop(taken);
    pair.talk();
    assert_eq!(damaged(b), None);
    pair.leave();
}

/// The board only shows a node, and the directory only leads to newcomers: a node is told of their loss, and nodes that talk go on.
#[test]
fn messages_go_on_without_board_and_directory() {
    for (name, what) in [(".0.board", "its board"), ("", "the domain's directory")] {
        let pair = Pair::new("board", Progress::Adaptive);
        let file = pair.file(name);
        let len = file.metadata().unwrap().len();
        file.set_len(0).unwrap();
        let (node, reason) = until("it is told", || {
            let _ = pair.a.recv_until(Match::any().tag(1), &mut [0; 8], Instant::now() + std::time::Duration::from_millis(60));
            damaged(&pair.a)
        });
        assert!(node == A && reason.starts_with(what), "{reason}");
        pair.talk();
        file.set_len(len).unwrap();
        let Pair { domain, a, b } = pair;
        assert!([a, b].into_iter().all(|node| node.leave().is_ok()));
        doorbell_shm::domain::clean(domain.space(), Some(domain.name()), true).unwrap();
    }
}

/// A thread that blocks the signal is ended with its process by such a fault: the poller must not have that from the thread that made it.
#[test]
fn the_poller_lets_the_signal_in() {
    let domain = Domain::new("blocked");
    let mut only = SigSet::empty();
    only.add(Signal::SIGBUS);
    only.thread_block().unwrap();
    let node = Node::builder(domain.name()).progress(Progress::Poller).join().unwrap();
    only.thread_unblock().unwrap();
    let of_task = |task: &std::path::Path, file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
    let lets_in = |task: &std::path::Path| {
        let status = of_task(task, "status");
        let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).map(str::trim);
        blocked.and_then(|mask| u64::from_str_radix(mask, 16).ok()).is_none_or(|mask| mask & 1 << (libc::SIGBUS - 1) == 0)
    };
    eventually("all pollers let it in", || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|entry| entry.path());
        let pollers: Vec<_> = tasks.filter(|task| of_task(task, "comm").starts_with("doorbell-poller")).collect();
        !pollers.is_empty() && pollers.iter().all(|task| lets_in(task))
    });
    node.leave().unwrap();
}
