//! Large messages, moved from both ends: for all kinds of memory, both orientations, and receives at any moment.

use doorbell::transfer::Side;
use doorbell::{
    Completion, CopySide, Envelope, Error, Match, Metric, Node, Operation, Priority, Progress, Region, TransferReport,
};
use doorbell_tests::in_place::read_by;
use doorbell_tests::patience::{eventually, finishes, running, soon, until};
use doorbell_tests::pattern;
use doorbell_tests::random::Random;
use doorbell_tests::steps::Steps;
use doorbell_tests::world::{Ground, World};
use std::sync::mpsc;

const KIB: usize = 1 << 10;
pub(super) const MIB: usize = 1 << 20;
/// Lengths around the shortest message that is moved so, around the edges of its chunks, and around the length that gives the target time to answer.
const LENGTHS: [usize; 9] = [32 * KIB + 1, 48 * KIB - 1, 48 * KIB, 64 * KIB + 1, MIB - 1, MIB, MIB + 1, 2 * MIB - 7, 5 * MIB];
pub(super) const LONGEST: usize = 5 * MIB;
/// The place of messages in regions: at the edge of no page and no word.
const SKEW: usize = 13;

/// A message's memory.
enum Buffer {
    Private(Vec<u8>),
    Region(Region<u8>, usize),
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        match self {
            Buffer::Private(bytes) => bytes,
            // SAFETY: nobody else has this region's key, and no other buffer is made of it while this one lives.
            Buffer::Region(region, len) => unsafe { &region.as_slice()[SKEW..][..*len] },
        }
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        match self {
            Buffer::Private(bytes) => bytes,
            // SAFETY: as above.
            Buffer::Region(region, len) => unsafe { &mut region.as_mut_slice()[SKEW..][..*len] },
        }
    }
}

/// Where the buffers of a node come from.
struct Memory {
    node: Node,
    region: Region<u8>,
}

impl Memory {
    fn new(node: &Node) -> Self {
        Self { node: node.clone(), region: node.region(LONGEST + 64).unwrap() }
    }

    fn buffer(&self, registered: bool, len: usize) -> Buffer {
        if registered { Buffer::Region(self.region.clone(), len) } else { Buffer::Private(vec![0; len]) }
    }

    fn filled(&self, registered: bool, len: usize, seed: u64) -> Buffer {
        let mut buffer = self.buffer(registered, len);
        pattern::fill(buffer.as_mut(), seed);
        buffer
    }
}

/// How a message is received.
#[derive(Clone, Copy, Debug)]
enum Form {
    Recv,
    RecvBy,
    StartRecv,
    RecvWith,
    TryRecv,
}

const FORMS: [Form; 5] = [Form::Recv, Form::RecvBy, Form::StartRecv, Form::RecvWith, Form::TryRecv];

/// The moment at which the receive is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// Before it is sent.
    Before,
    /// After its RTS.
    AfterRts,
    /// After some of it went by memory FIFO.
    InTheMiddle,
}

const MOMENTS: [Moment; 3] = [Moment::Before, Moment::AfterRts, Moment::InTheMiddle];

fn receive(form: Form, node: &Node, accepts: Match, mut buffer: Buffer) -> (doorbell::Result<Envelope>, Buffer) {
    let got = match form {
        Form::Recv => node.recv(accepts, buffer.as_mut()),
        Form::RecvBy => node.recv_until(accepts, buffer.as_mut(), soon()),
        Form::StartRecv => {
            let completion = waited(node.start_recv(accepts, buffer).unwrap());
            return (completion.result, completion.buffer.unwrap());
        }
        Form::RecvWith => read_by(node, accepts, soon(), |envelope, payload| {
            payload.copy_to(&mut buffer.as_mut()[..payload.len()]);
            *envelope
        }),
        Form::TryRecv => until("a whole message is there", || node.try_recv(accepts, buffer.as_mut()).transpose()),
    };
    (got, buffer)
}

#[track_caller]
pub(super) fn waited<B, R>(request: Operation<Completion<B, R>>) -> Completion<B, R> {
    request.wait_until(soon()).unwrap_or_else(|_| panic!("a request does not end"))
}

#[track_caller]
fn all_sent<B>(requests: Vec<Operation<Completion<B>>>) {
    for request in requests {
        assert!(matches!(waited(request).result, Ok(())));
    }
}

/// The report of one transfer, at one of its ends, once it is over there.
#[track_caller]
pub(super) fn report(node: &Node, side: Side, tag: u64) -> TransferReport {
    until("a transfer is over", || {
        let mut reports = node.transfers().unwrap();
        reports.retain(|report| report.side == side && report.tag == tag);
        assert!(reports.len() <= 1, "reported twice: {reports:?}");
        reports.pop()
    })
}

/// Checks that both ends report the same of a transfer, and that every byte was counted once.
#[track_caller]
pub(super) fn reports_agree(origin: &Node, target: &Node, tag: u64, len: usize) -> [TransferReport; 2] {
    let ends = [report(origin, Side::Origin, tag), report(target, Side::Target, tag)];
    let [there, here] = &ends;
    assert_eq!((there.peer, here.peer), (target.id(), origin.id()));
    assert_eq!((there.len, there.chunk, there.from_high), (here.len, here.chunk, here.from_high));
    assert_eq!((there.fifo, there.put, there.pulled), (here.fifo, here.put, here.pulled), "{there:?}\n{here:?}");
    assert_eq!(there.len, len as u64);
    assert_eq!(there.fifo.bytes + there.put.bytes + there.pulled.bytes, there.len, "{there:?}");
    assert_eq!(there.fifo.chunks + there.put.chunks + there.pulled.chunks, there.len.div_ceil(there.chunk), "{there:?}");
    assert_eq!((there.zeroes, here.zeroes), (1, 1), "{there:?}\n{here:?}");
    ends
}

/// The bytes of transfers that a node has moved itself: by memory FIFO, or by put.
pub(super) fn sent_bytes(node: &Node) -> u64 {
    let metrics = node.metrics().unwrap();
    metrics[Metric::BytesFifo] + metrics[Metric::BytesPut]
}

/// Waits until a node has sent this many bytes of transfers since `before`. Turns its engine, as `Inline` needs.
#[track_caller]
pub(super) fn pushed(node: &Node, before: u64, bytes: u64) {
    eventually("some of it goes", || {
        node.progress().unwrap();
        sent_bytes(node) >= before + bytes
    });
}

/// The same, unless the target was so fast that nothing had to go that way.
#[track_caller]
pub(super) fn pushed_or_ended<B>(node: &Node, before: u64, send: &Operation<Completion<B>>) {
    eventually("some of it goes", || send.test() || sent_bytes(node) > before);
}

fn oriented(world: &World, from_high: bool) -> [Node; 2] {
    [0, 1].map(|id| world.builder(id).fifo_from_high(from_high).join().unwrap())
}

/// Every length between every kind of memory, with receives posted at every moment.
fn arrive(world: &World, from_high: bool) {
    let [a, b] = oriented(world, from_high);
    let (at_a, at_b) = (Memory::new(&a), Memory::new(&b));
    let mut tag = 0;
    for (index, len) in LENGTHS.into_iter().enumerate() {
        for memory in 0..4 {
            tag += 1;
            let (from, to) = (memory & 1 != 0, memory & 2 != 0);
            let moment = MOMENTS[(tag as usize + index) % MOMENTS.len()];
            let form = FORMS[tag as usize % FORMS.len()];
            let accepts = Match::any().tag(tag);
            let (bytes, room) = (at_a.filled(from, len, tag), at_b.buffer(to, len));
            let (before, rts) = (sent_bytes(&a), a.metrics().unwrap()[Metric::Rts]);
            let (to_b, sender) = (b.id(), a.clone());
            let (begun, has_begun) = mpsc::channel();
            let send = move || {
                let request = sender.start_send(to_b, tag, bytes).unwrap();
                eventually("its RTS is on its way", || {
                    sender.progress().unwrap();
                    sender.metrics().unwrap()[Metric::Rts] > rts
                });
                if moment == Moment::InTheMiddle {
                    pushed(&sender, before, 16 << 10);
                }
                begun.send(()).unwrap();
                waited(request).result.unwrap();
            };
            let (got, room) = if moment == Moment::Before {
                let receiver = b.clone();
                let receiving = running("a receive", move || receive(form, &receiver, accepts, room)).started();
                finishes("a send", send);
                receiving.join()
            } else {
                let sending = running("a send", send);
                has_begun.recv().unwrap();
                let receiver = b.clone();
                let got = finishes("a receive", move || receive(form, &receiver, accepts, room));
                sending.join();
                got
            };
            let envelope = got.unwrap_or_else(|error| panic!("{len} bytes, {form:?} {moment:?}: {error}"));
            assert_eq!((envelope.tag, envelope.len, envelope.source), (tag, len, a.id()));
            pattern::check(room.as_ref(), tag);
            let [origin, _] = reports_agree(&a, &b, tag, len);
            assert_eq!(origin.from_high, from_high);
        }
    }
    drop((at_a.node, at_b.node));
}

pub fn large_messages_arrive_intact(world: &World) {
    arrive(world, false);
}

pub fn large_messages_arrive_intact_from_the_high_end(world: &World) {
    arrive(world, true);
}

pub fn whoever_copies_large_messages_arrive(world: &World) {
    let policies = [CopySide::Auto, CopySide::Origin, CopySide::Target, CopySide::Both];
    for (index, (here, there)) in policies.into_iter().flat_map(|here| policies.map(|there| (here, there))).enumerate() {
        let a = world.builder(0).copy(here).join().unwrap();
        let b = world.builder(1).copy(there).join().unwrap();
        let (to, sender, seed) = (b.id(), a.clone(), index as u64);
        let sending = running("a send", move || sender.send(to, 1, &pattern::bytes(MIB + 5, seed)).unwrap());
        let (receiver, mut buf) = (b.clone(), vec![0; MIB + 5]);
        let buf = finishes("a receive", move || {
            receiver.recv(Match::any(), &mut buf).unwrap();
            buf
        });
        sending.join();
        pattern::check(&buf, seed);
        if here == CopySide::Auto && a.metrics().unwrap()[Metric::Rts] == 0 {
            // Through the lane, as that is faster here.
            b.leave().unwrap();
            a.leave().unwrap();
            continue;
        }
        let [origin, target] = reports_agree(&a, &b, 1, MIB + 5);
        // Where a policy decides it may have a message put by a network.
        let is_decided = world.ground == Ground::Lots;
        assert!(is_decided || here != CopySide::Target || origin.put.bytes == 0, "{here} to {there}: {origin:?}");
        assert!(
            here != CopySide::Origin && there != CopySide::Origin || target.pulled.bytes == 0,
            "{here} to {there}: {target:?}"
        );
        assert!(there != CopySide::Target || target.put.bytes == 0, "{here} to {there}: {target:?}");
        b.leave().unwrap();
        a.leave().unwrap();
    }
}

pub fn a_large_message_in_a_short_buffer_is_in_the_error(world: &World) {
    let [a, b] = world.nodes();
    for (round, form) in [Form::Recv, Form::RecvBy, Form::StartRecv, Form::TryRecv].into_iter().enumerate() {
        for (len, room) in [(40_000, 39_999), (MIB + 1, MIB), (2 * MIB, 0)] {
            let tag = (round * 10) as u64 + 1;
            let (to, sender) = (b.id(), a.clone());
            let sending = running("sends", move || {
                sender.send_until(to, tag, &pattern::bytes(len, 4), soon()).unwrap();
                sender.send_until(to, 2, b"next", soon()).unwrap();
            });
            let receiver = b.clone();
            let accepts = Match::any().tag(tag);
            let short = Buffer::Private(vec![7; room]);
            let (got, buffer) = finishes("a receive", move || receive(form, &receiver, accepts, short));
            let Err(Error::Truncated { message, capacity }) = got else { panic!("{form:?}: {got:?}") };
            assert_eq!((capacity, message.envelope.len, message.bytes.len()), (room, len, len));
            pattern::check(&message.bytes, 4);
            assert!(buffer.as_ref().iter().all(|byte| *byte == 7), "the short buffer was written");
            // Exactly that message, and once.
            assert_eq!(b.recv_until(Match::any(), &mut [0; 8], soon()).unwrap().tag, 2);
            assert_eq!(b.try_recv(Match::any(), &mut [0; 8]).unwrap(), None);
            sending.join();
        }
    }
    assert_eq!(b.stats().unwrap().pooled, 0);
}

pub fn order_is_kept_among_long_and_short_messages(world: &World) {
    let [a, b] = world.nodes();
    let mut random = Random::new(7);
    let lens: Vec<usize> = (0..60).map(|_| *random.pick(&[0, 8, 3000, 32 * KIB, 32 * KIB + 1, 50_000, 200_000, MIB])).collect();
    let (to, sender, sent) = (b.id(), a.clone(), lens.clone());
    let sending = running("sends", move || {
        let mut requests = Vec::new();
        for (number, len) in sent.into_iter().enumerate() {
            requests.push(sender.start_send(to, 5, pattern::bytes(len, number as u64)).unwrap());
            if number % 7 == 0 {
                all_sent(std::mem::take(&mut requests));
            }
        }
        all_sent(requests);
    });
    let mut posted = Vec::new();
    for (number, len) in lens.into_iter().enumerate() {
        // Some are asked for before they come, some after.
        posted.push((number, len, b.start_recv(Match::any().tag(5), vec![0; MIB]).unwrap()));
        if number % 5 == 0 {
            for (number, len, request) in posted.drain(..) {
                let completion = waited(request);
                let envelope = completion.result.unwrap();
                assert_eq!((envelope.len, envelope.sequence), (len, number as u32));
                pattern::check(&completion.buffer.unwrap()[..len], number as u64);
            }
        }
    }
    for (number, len, request) in posted {
        let completion = waited(request);
        assert_eq!(completion.result.unwrap().len, len);
        pattern::check(&completion.buffer.unwrap()[..len], number as u64);
    }
    sending.join();
}

pub fn several_threads_move_large_messages_at_once(world: &World) {
    const THREADS: u64 = 3;
    const ROUNDS: u64 = 6;
    let [a, b] = world.nodes();
    let [sends, receives] = ["sends", "receives"].map(|what| [(); THREADS as usize].map(|()| Steps::of(what)));
    let mut all = Vec::new();
    for thread in 0..THREADS {
        for (here, there) in [(a.clone(), b.clone()), (b.clone(), a.clone())] {
            let (to, from) = (there.id(), here.id());
            let [sends, receives] = [&sends, &receives].map(|steps| steps[thread as usize].clone());
            all.push(running("sends", move || {
                for round in 0..ROUNDS {
                    let len = 100_000 + (thread * 300_000 + round * 50_000) as usize;
                    let bytes = pattern::bytes(len, thread * 100 + round);
                    sends.step(|| waited(here.start_send(to, thread, bytes).unwrap()).result.unwrap());
                }
            }));
            all.push(running("receives", move || {
                let mut buf = vec![0; 2 * MIB];
                for round in 0..ROUNDS {
                    let accepts = Match::from(from).tag(thread);
                    let len = receives.step(|| {
                        if round % 2 == 0 { there.recv(accepts, &mut buf) } else { there.recv_until(accepts, &mut buf, soon()) }
                    });
                    pattern::check(&buf[..len.unwrap().len], thread * 100 + round);
                }
            }));
        }
    }
    all.into_iter().for_each(|running| running.join());
    sends.iter().chain(&receives).for_each(Steps::check);
}

pub fn a_node_moves_a_large_message_to_itself(world: &World) {
    let [a] = world.nodes();
    let (from, to) = (Memory::new(&a), Memory::new(&a));
    let mut tag = 0;
    for memory in 0..4 {
        for before in [false, true] {
            tag += 1;
            let len = MIB + 3;
            let (bytes, room) = (from.filled(memory & 1 != 0, len, tag), to.buffer(memory & 2 != 0, len));
            let accepts = Match::any().tag(tag);
            let (send, receive) = if before {
                let receive = a.start_recv(accepts, room).unwrap();
                (a.start_send(a.id(), tag, bytes).unwrap(), receive)
            } else {
                let send = a.start_send(a.id(), tag, bytes).unwrap();
                pushed(&a, 0, 1);
                (send, a.start_recv(accepts, room).unwrap())
            };
            let completion = waited(receive);
            assert_eq!(completion.result.unwrap().len, len);
            pattern::check(completion.buffer.unwrap().as_ref(), tag);
            waited(send).result.unwrap();
            reports_agree(&a, &a, tag, len);
        }
    }
    // Blocking: the one thread that waits is both ends.
    let sending = a.start_send(a.id(), 77, pattern::bytes(MIB, 77)).unwrap();
    let (node, mut buf) = (a.clone(), vec![0; MIB]);
    let buf = finishes("a receive from oneself", move || {
        node.recv(Match::any().tag(77), &mut buf).unwrap();
        buf
    });
    pattern::check(&buf, 77);
    waited(sending).result.unwrap();
}

pub fn counters_reach_zero_once_whatever_the_delays(world: &World) {
    let mut random = Random::new(11);
    for round in 0..6 {
        let (high, copies) = (random.chance(50), [CopySide::Both, CopySide::Origin, CopySide::Target]);
        let a = world.builder(0).fifo_from_high(high).copy(*random.pick(&copies)).join().unwrap();
        let b = world.builder(1).copy(*random.pick(&copies)).join().unwrap();
        let len = |random: &mut Random| {
            let bits = 14 + random.below(7);
            32 * KIB + 1 + random.below(1 << bits)
        };
        let lens: Vec<usize> = (0..8).map(|_| len(&mut random)).collect();
        let delays: Vec<usize> = (0..16).map(|_| random.below(200)).collect();
        let (sender, to, sent, pauses) = (a.clone(), b.id(), lens.clone(), delays.clone());
        let sending = running("sends", move || {
            for (index, len) in sent.into_iter().enumerate() {
                let mut bytes = pattern::bytes(len, index as u64);
                (0..pauses[index]).for_each(|_| std::thread::yield_now());
                sender.send(to, index as u64, &bytes).unwrap();
                // Its counter is at zero: whatever is read of them after this is not the message.
                bytes.fill(!0);
                std::hint::black_box(&bytes);
            }
        });
        let (receiver, wanted) = (b.clone(), lens.clone());
        finishes("receives", move || {
            let mut buf = vec![0; 2 * MIB];
            for (index, len) in wanted.into_iter().enumerate() {
                (0..delays[8 + index]).for_each(|_| std::thread::yield_now());
                let accepts = Match::any().tag(index as u64);
                let envelope = if index % 2 == 0 {
                    receiver.recv(accepts, &mut buf)
                } else {
                    receiver.recv_until(accepts, &mut buf, soon())
                };
                assert_eq!(envelope.unwrap().len, len);
                pattern::check(&buf[..len], index as u64);
            }
        });
        sending.join();
        for (index, len) in lens.into_iter().enumerate() {
            reports_agree(&a, &b, index as u64, len);
        }
        // Each was completed once. What the library sends of its own account is no message, and not as long.
        assert_eq!(a.metrics().unwrap()[Metric::Transfers], 8, "round {round}");
        a.leave().unwrap();
        b.leave().unwrap();
    }
}

/// A transfer of high priority is not held up by one of low priority that its target has answered and does not take.
pub fn an_answered_transfer_holds_up_its_own_priority_only(world: &World) {
    let a = world.builder(0).progress(Progress::Inline).copy(CopySide::Origin).join().unwrap();
    let b = world.builder(1).progress(Progress::Inline).copy(CopySide::Origin).join().unwrap();
    let begin = |priority, tag| {
        let peer = a.peer_with_priority(b.id(), priority).unwrap();
        peer.start_send(tag, pattern::bytes(LONGEST, tag)).unwrap()
    };
    // Posted first: on a busy machine the whole message could otherwise arrive before the receive, and need no answer.
    let taken = b.start_recv(Match::any().tag(1), vec![0; LONGEST]).unwrap();
    let low = begin(Priority::Low, 1);
    eventually("the answer", || {
        a.progress().unwrap();
        b.progress().unwrap();
        b.metrics().unwrap()[Metric::RemoteGets] > 0
    });
    // From here on nobody turns the target, so its lane fills. By a network its poller does, and then nothing is in the way.
    let mut still = 0;
    let mut before = sent_bytes(&a);
    eventually("the lane of low priority is full", || {
        a.progress().unwrap();
        let now = sent_bytes(&a);
        still = if now == before { still + 1 } else { 0 };
        before = now;
        still >= 1000
    });
    let high = begin(Priority::High, 2);
    // The lane of low priority is full, so these are its own. No more than its lane holds: nobody turns the target.
    pushed(&a, before, 1);
    let receiver = b.clone();
    let urgent =
        running("a receive", move || receive(Form::RecvBy, &receiver, Match::any().tag(2), Buffer::Private(vec![0; LONGEST])));
    assert!(matches!(waited(high).result, Ok(())));
    let (envelope, buffer) = urgent.join();
    assert_eq!(envelope.unwrap().len, LONGEST);
    pattern::check(buffer.as_ref(), 2);
    let (sender, receiver) = (running("a send", move || waited(low).result.unwrap()), waited(taken));
    sender.join();
    pattern::check(&receiver.buffer.unwrap(), 1);
    let [origin, _] = reports_agree(&a, &b, 2, LONGEST);
    assert!(origin.fifo.bytes > 0, "{origin:?}");
}
