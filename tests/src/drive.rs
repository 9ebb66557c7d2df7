//! A program made of bytes: which word of shared memory is overwritten with what, in between what a node does. Over the heap, where the
//! same code runs as over files; what the bytes say is written as a peer could write it, and no address of this process is ever
//! named, for between threads of one process those are followed.

use crate::patience::{soon, take_back};
use doorbell::{CounterKey, Error, Key, LaneGeometry, Match, Node, NodeId, Progress, ReadWrite, Space, Wait};
use doorbell_fabric::{PacketHead, PacketKind, Priority};
use doorbell_shm::domain::{JoinOptions, Membership, PeerInbox};
use doorbell_shm::lane::{Producer, RawMemory, packet_bytes};
use doorbell_shm::layout::{DOORBELL_OFFSET, HEADER_BYTES, PAGE, REACH_OFFSET, RINGS_OFFSET};
use doorbell_shm::meeting::MEETINGS;
use doorbell_shm::region::OwnRegion;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The longest message of these programs.
const LONGEST: usize = 100 << 10;
/// Steps of a program, at most.
const STEPS: usize = 400;
const TAG: u64 = 1;

/// Where the bytes of a program are read.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    fn half(&mut self) -> usize {
        usize::from(self.byte()) << 8 | usize::from(self.byte())
    }

    /// A number out of few bytes: small ones, those that are nearly a power of two, or any.
    fn number(&mut self) -> u64 {
        let first = self.byte();
        match first % 5 {
            0 => u64::from(self.byte()),
            1 => 1_u64 << (self.byte() % 64),
            2 => (1_u64 << (self.byte() % 64)).wrapping_sub(1),
            3 => (self.half() as u64) << (self.byte() % 48),
            _ => (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte())),
        }
    }
}

/// The writer: a member of the domain without an engine.
struct Writer {
    // Declared before what they point into.
    producers: [Option<Producer<RawMemory>>; 3],
    /// The full rings of lanes that have not moved there.
    full: [Option<RawMemory>; 3],
    sequences: [u32; 3],
    region: OwnRegion,
    target: PeerInbox,
    membership: Membership,
    lanes: LaneGeometry,
}

impl Writer {
    /// A word of what it was given: of its victim's header page, of its own lanes there, or of its own inbox and region, which its victim
    /// maps.
    fn word(&self, bytes: &mut Bytes<'_>) -> &AtomicU64 {
        let (lanes, len) = (self.target.pair().unwrap().ptr(), self.lanes.pair_bytes());
        let victims = self.membership.pair_from(NodeId(0)).unwrap().ptr();
        let (start, len) = match bytes.byte() % 6 {
            0 => (self.target.header(), HEADER_BYTES),
            // Controls, first rings, meetings, returns: most of what is of interest. In the heap all lanes have their full length.
            1 => (lanes, RINGS_OFFSET),
            2 => (lanes, len),
            3 => (victims, RINGS_OFFSET),
            4 => (victims, len),
            _ => (self.membership.inbox().ptr(), HEADER_BYTES),
        };
        let at = (bytes.half() * 8) % len;
        let at = if len == HEADER_BYTES { Self::not_an_address(at) } else { at };
        // SAFETY: within what is mapped, aligned; all others reach it by atomics, or by copies that may see anything.
        unsafe { &*start.add(at).cast() }
    }

    /// Where private memory is probed is an address, and is none of the writer's affair here.
    fn not_an_address(at: usize) -> usize {
        if (REACH_OFFSET..REACH_OFFSET + 128).contains(&at) { DOORBELL_OFFSET } else { at }
    }

    fn push(&mut self, bytes: &mut Bytes<'_>) {
        let priority = usize::from(bytes.byte() % 3);
        if self.producers[priority].is_none() {
            // SAFETY: mapped as long as `target`.
            let (first, full) = unsafe { self.target.pair().unwrap().rings(Priority::ALL[priority]) };
            self.producers[priority] = Producer::claim(first, self.membership.incarnation().0);
            self.full[priority] = Some(full);
        }
        let Some(kind) = PacketKind::from_number(1 + bytes.byte() % 8) else { return };
        let mut sequence = self.sequences[priority];
        let odd = bytes.byte();
        if odd > 250 {
            sequence = sequence.wrapping_add(bytes.number() as u32);
        }
        let ticket = u64::from(bytes.byte() % (MEETINGS as u8 + 1)) | u64::from(odd % 4) << 16;
        let number = |bytes: &mut Bytes<'_>| bytes.number();
        // No place in private memory: see above.
        let place = |bytes: &mut Bytes<'_>, region: u32| match bytes.byte() % 3 {
            0 => [0, bytes.number()],
            1 => [2 | u64::from(region) << 32, bytes.number()],
            _ => [(bytes.number() & !3) | 3, bytes.number()],
        };
        let region = self.region.number();
        let (payload, total): (Vec<u64>, u64) = match kind {
            PacketKind::Rts => {
                let chunk = if bytes.byte().is_multiple_of(4) { bytes.number() } else { 16 << 10 };
                let [kind, value] = place(bytes, region);
                if !odd.is_multiple_of(8) {
                    self.open(ticket);
                }
                (vec![ticket, chunk, kind, value], bytes.number() % (1 << 41))
            }
            PacketKind::Control => {
                let [kind, value] = place(bytes, region);
                match bytes.byte() % 3 {
                    0 => (vec![2 << 32 | bytes.number() & 0xffff_ffff, bytes.number(), bytes.number(), bytes.number()], 32),
                    1 => (vec![ticket | 1 << 32 | u64::from(odd) << 40, kind, value], 24),
                    _ => (vec![bytes.number(), kind, value], 24),
                }
            }
            PacketKind::Loan => (vec![u64::from(region) | bytes.number() << 32, number(bytes), number(bytes), number(bytes)], 32),
            _ => {
                let len = [0, 1, 5, 8, 512, 2048][usize::from(bytes.byte() % 6)];
                (vec![0x5a5a; len], bytes.number())
            }
        };
        let tag = if kind == PacketKind::Chunk { ticket } else { u64::from(bytes.byte() % 3) };
        let Some(producer) = &mut self.producers[priority] else { return };
        if (payload.len() * 8 > 256 || odd == 7)
            && let Some(full) = self.full[priority].take()
        {
            producer.move_to(full);
        }
        let head = PacketHead { kind, tag, sequence, total };
        let len = (payload.len() * 8).saturating_sub(usize::from(odd % 2)).min(packet_bytes(producer.data_bytes()));
        // SAFETY: a slice of at least that length, cut to what a packet holds.
        let push = unsafe { producer.push(&head, payload.as_ptr().cast(), len) };
        if push == doorbell_fabric::Push::Done && matches!(kind, PacketKind::Whole | PacketKind::Rts | PacketKind::Loan) {
            self.sequences[priority] = self.sequences[priority].wrapping_add(1);
        }
    }

    /// As an origin does before its RTS.
    fn open(&self, ticket: u64) {
        let slot = (ticket & 0xffff) as usize % MEETINGS;
        let at = doorbell_shm::layout::MEETINGS_OFFSET + slot * 128;
        // SAFETY: within the lanes, aligned.
        unsafe { &*self.target.pair().unwrap().ptr().add(at).cast::<AtomicU64>() }.store((ticket >> 16) << 50, Ordering::Release);
    }
}

/// One operation of the node while the writer scribbles. It must end, and may fail with any error but `Closed`.
fn act(node: &Node, region: &doorbell::Region<u8>, buf: &mut [u8], bytes: &mut Bytes<'_>) {
    let now = Instant::now();
    let foe = NodeId(1);
    let len = bytes.half() * 2 % LONGEST;
    let result: Result<(), Error> = match bytes.byte() % 12 {
        0 => node.send_until(foe, TAG, &buf[..len], now),
        1 => node.try_send(foe, TAG, &buf[..len.min(9000)]),
        2 => node.recv_until(Match::from(foe), &mut buf[..len], now).map(drop),
        3 => node.recv_until(Match::any().tag(TAG), &mut buf[..len], now).map(drop),
        4 => node.try_recv(Match::any(), buf).map(drop),
        5 => node.try_take::<[u8]>(Match::any()).map(|taken| drop(taken.map(|taken| taken.to_vec()))),
        6 => node.try_take::<u64>(Match::any()).map(|taken| _ = taken.map(|taken| taken.read())),
        7 => node.loan_bytes(1 + len).and_then(|loan| loan.share().send_until(foe, TAG, now)),
        8 => node.start_recv(Match::any(), vec![0; len]).map(|request| drop((request.test(), take_back(request)))),
        9 => node.start_send(foe, TAG, vec![7; len]).map(|request| drop((request.test(), take_back(request)))),
        10 => {
            let mut key = region.key().to_bytes();
            key[usize::from(bytes.byte()) % key.len()] ^= bytes.byte();
            match Key::<u8, ReadWrite>::from_bytes(&key) {
                Ok(key) => node.get(key, &mut buf[..len.min(PAGE)]),
                Err(error) => Err(error),
            }
        }
        _ => node.counter().and_then(|counter| {
            counter.init(1 + len as u64)?;
            let mut key = counter.key().to_bytes();
            key[usize::from(bytes.byte()) % key.len()] ^= bytes.byte();
            let key = CounterKey::from_bytes(&key).unwrap_or(counter.key());
            node.notify_until(key, len as u64, now)
        }),
    };
    if let Err(error) = result {
        assert!(!matches!(error, Error::Closed | Error::Forked | Error::Reentrant { .. }), "{error}");
    }
}

/// Runs a program. Panics, or worse, if something is wrong.
pub fn drive(program: &[u8]) {
    static NO_ADDRESSES: Once = Once::new();
    // SAFETY: before this process has any other thread that reads the environment but by the standard library, which locks it.
    NO_ADDRESSES.call_once(|| unsafe { std::env::set_var("DOORBELL_CMA", "off") });
    let space = Space::heap();
    let mut bytes = Bytes(program);
    let lanes = LaneGeometry { cells: [16; 3], data_bytes: [16 << 10; 3] };
    let first = bytes.byte();
    let builder = Node::builder("drive").space(space.clone()).id(0).max_nodes(3).lanes(lanes).pool_bytes(1 << 20);
    let copy = if first % 2 == 0 { doorbell::CopySide::Both } else { doorbell::CopySide::Origin };
    let node = builder.copy(copy).progress(Progress::Inline).wait(Wait::default()).loan_bytes(1 << 20).join().unwrap();
    let honest = Node::builder("drive").space(space.clone()).id(2).progress(Progress::Inline).join().unwrap();
    let options = JoinOptions { id: Some(NodeId(1)), ..JoinOptions::new("drive", space.clone()) };
    let membership = Membership::join(options).unwrap();
    let target = membership.open_peer(NodeId(0)).unwrap();
    let region = membership.create_region(0, 2 * PAGE).unwrap();
    let mut writer =
        Writer { producers: [None, None, None], full: [None; 3], sequences: [0; 3], region, target, membership, lanes };
    let memory = node.region::<u8>(PAGE).unwrap();
    let mut buf = vec![0x11; LONGEST];
    let mut echoes = 0_u64;
    for _ in 0..STEPS {
        let Some(step) = bytes.next() else { break };
        match step % 8 {
            0 | 1 => {
                let word = writer.word(&mut bytes);
                let old = word.load(Ordering::Relaxed);
                let value = match bytes.byte() % 4 {
                    0 => old.wrapping_add(bytes.number()),
                    1 => old ^ 1 << (bytes.byte() % 64),
                    2 => old.wrapping_sub(bytes.number()),
                    _ => bytes.number(),
                };
                word.store(value, Ordering::Release);
            }
            2..5 => writer.push(&mut bytes),
            5 | 6 => act(&node, &memory, &mut buf, &mut bytes),
            _ => {
                // Others are not in the way.
                honest.send_until(NodeId(0), 77, &echoes.to_le_bytes(), soon()).unwrap();
                let mut echo = [0; 8];
                node.recv_until(Match::from(NodeId(2)).tag(77), &mut echo, soon()).unwrap();
                assert_eq!(u64::from_le_bytes(echo), echoes);
                echoes += 1;
            }
        }
        if step & 0x80 != 0 {
            let _ = node.progress();
        }
    }
    while let Ok(Some(event)) = node.try_event() {
        if let doorbell::Event::Damaged { node, reason } = event {
            assert_eq!(node, NodeId(1), "{reason}");
        }
    }
    node.leave().unwrap();
    honest.leave().unwrap();
}
