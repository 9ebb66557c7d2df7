//! The ways of attack. Each blow is a few writes that no correct peer makes.

use crate::foe::{Foe, Raw, files, lock, open};
use crate::{HOSTILE, STILL, VICTIM, at};
use doorbell_fabric::{PacketHead, PacketKind, Push};
use doorbell_shm::layout::{
    CELL_BYTES, CONTROL_BYTES, DOORBELL_OFFSET, HEADER_BYTES, MEETINGS_OFFSET, PAGE, RETURNS_BYTES, RETURNS_OFFSET,
};
use doorbell_tests::random::Random;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Where the entries of a domain segment begin, and how long they are.
const ENTRIES: usize = PAGE;
const ENTRY: usize = 256;

/// Numbers at boundaries.
fn forged(random: &mut Random, near: u64) -> u64 {
    let edge =
        *random.pick(&[0, 1, 40, 63, 64, 4096, 16 << 10, 128 << 10, 1 << 20, 1 << 24, 1 << 31, 1 << 32, 1 << 40, 1 << 63, !0]);
    match random.below(8) {
        0 => near.wrapping_add(1),
        1 => near.wrapping_sub(1),
        2 => near.wrapping_add(edge),
        3 => near.wrapping_sub(edge),
        4 => edge,
        5 => edge.wrapping_sub(1),
        6 => near ^ 1 << random.below(64),
        _ => random.next(),
    }
}

/// One blow.
pub fn strike(way: &str, foe: &mut Foe) {
    match way {
        "replay" => replay(foe),
        "indices" => indices(foe),
        "envelopes" => envelopes(foe),
        "descriptors" => descriptors(foe),
        "keys" => keys(foe),
        "meetings" => meetings(foe),
        "loans" => loans(foe),
        "doorbells" => doorbells(foe),
        "directory" => directory(foe),
        "impersonate" => impersonate(foe),
        "bitflips" => bitflips(foe),
        "truncate" => truncate(foe),
        "extend" => extend(foe),
        "locks" => locks(foe),
        "flood" => flood(foe),
        "services" => services(foe),
        other => panic!("there is no way called {other}"),
    }
}

/// No blow, with as much of a processor as the last one took, and given away where that way gives it away.
pub fn rest(way: &str, blow: Duration) {
    match way {
        "locks" => std::thread::park_timeout(Duration::from_millis(5)),
        "impersonate" => std::thread::yield_now(),
        _ => {}
    }
    let until = processor_time() + blow;
    while processor_time() < until {
        std::hint::spin_loop();
    }
}

/// The processor time of this thread.
pub fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// An address in the victim's private memory that an attacker would like to write.
pub const SHIFT: usize = 8192;
/// The node that is made by hand.
pub const MADE: u16 = 3;

/// Prepares the first blow of a life.
pub fn begin(way: &str, foe: &mut Foe) {
    if way == "impersonate" {
        let pid = foe.words[at::PID].load(SeqCst);
        foe.forge_node(MADE, pid);
    }
    if way == "loans" && foe.random.chance(30) {
        hollow(foe);
    }
}

/// Its region is as long as it says, though there is no memory behind.
fn hollow(foe: &mut Foe) {
    let Some(file) = open(&format!("{HOSTILE}.r{}", foe.number)) else { return };
    let len = 1_u64 << *foe.random.pick(&[30, 36, 39]);
    if file.set_len(len).is_ok()
        && let Some(head) = Raw::map(&file, 0, PAGE)
    {
        // The length of the segment, and the region's own.
        head.set(48, len);
        head.set(1024 + 16, len - PAGE as u64);
    }
}

/// Restores what the next life needs to begin.
pub fn end(way: &str, foe: &mut Foe) {
    if foe.hold.take().is_some() {
        foe.directory.set(ENTRIES + usize::from(foe.id) * ENTRY, 0);
        let _ = std::fs::remove_file(crate::foe::path(&format!("{}.inbox", foe.id)));
    }
    if way == "directory" || way == "bitflips" {
        for (at, word) in foe.kept.iter().enumerate() {
            // All but the generation, the next incarnation and the entries, which belong to other nodes.
            if !(1024..1280).contains(&(at * 8)) && at * 8 < ENTRIES {
                foe.directory.set(at * 8, *word);
            }
        }
    }
}

/// Where the cells of one lane lie, how many, and where its data do.
fn lane(foe: &mut Foe) -> (usize, doorbell_shm::layout::LanePlace) {
    let priority = foe.random.below(3);
    (priority, foe.place(priority))
}

/// Pushes any packet as its producer would.
fn push(foe: &mut Foe, priority: usize, head: &PacketHead, bytes: &[u8]) -> bool {
    let Some(producer) = foe.producer(priority) else { return false };
    let len = bytes.len().min(doorbell_shm::lane::packet_bytes(producer.data_bytes()));
    // SAFETY: a slice, cut to what a packet holds.
    let done = unsafe { producer.push(head, bytes.as_ptr(), len) } == Push::Done;
    if done && matches!(head.kind, PacketKind::Whole | PacketKind::Rts | PacketKind::Loan) {
        foe.sequences[priority] = foe.sequences[priority].wrapping_add(1);
    }
    // Its victim may sleep.
    wake_up(&foe.header);
    done
}

/// Wakes the owner of an inbox.
pub fn wake_up(header: &Raw) {
    header.set(DOORBELL_OFFSET, header.get(DOORBELL_OFFSET) & !0xffff_ffff);
    wake(header);
}

fn wake(header: &Raw) {
    let word = header.word(DOORBELL_OFFSET).as_ptr().cast::<u32>();
    // SAFETY: a mapped, aligned word, used as an address only.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX) };
}

fn words<const N: usize>(words: [u64; N]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn replay(foe: &mut Foe) {
    let (_, place) = lane(foe);
    if foe.kept.is_empty() || foe.random.chance(5) {
        foe.kept = (0..foe.block.words()).map(|at| foe.block.get(at * 8)).collect();
    }
    let cells = place.cell_count;
    match foe.random.below(4) {
        // A cell of an earlier time.
        0 => {
            let cell = place.cells + foe.random.below(cells) * CELL_BYTES;
            for at in (cell..cell + CELL_BYTES).step_by(8) {
                foe.block.set(at, foe.kept[at / 8]);
            }
        }
        // A cell of another place, with its own position or with that of its new place.
        1 | 2 => {
            let (from, to) = (foe.random.below(cells), foe.random.below(cells));
            let shift = if foe.random.chance(50) { to.wrapping_sub(from) as u32 } else { 0 };
            for word in 0..CELL_BYTES / 8 {
                let value = foe.block.get(place.cells + from * CELL_BYTES + word * 8);
                let moved = if word == 0 { value & !0xffff_ffff | u64::from((value as u32).wrapping_add(shift)) } else { value };
                foe.block.set(place.cells + to * CELL_BYTES + word * 8, moved);
            }
        }
        // Everything of an earlier time.
        _ => (0..foe.kept.len()).for_each(|at| foe.block.set(at * 8, foe.kept[at])),
    }
    wake(&foe.header);
}

fn indices(foe: &mut Foe) {
    let (priority, place) = lane(foe);
    let which = foe.random.below(2);
    let block = [&foe.block, &foe.own_block][which];
    let at = match foe.random.below(3) {
        // Head, data head, refused; owner and waiting.
        0 => place.control + *foe.random.pick(&[0, 8, 16, 128, 136]),
        // First words of cells, and where their payload lies.
        1 => place.cells + foe.random.below(place.cell_count) * CELL_BYTES,
        _ => place.cells + foe.random.below(place.cell_count) * CELL_BYTES + 24 + foe.random.below(2) * 8,
    };
    debug_assert!(priority * CONTROL_BYTES == place.control);
    block.set(at, forged(&mut foe.random, block.get(at)));
}

fn envelopes(foe: &mut Foe) {
    let priority = foe.random.below(3);
    let kind = PacketKind::from_number(1 + foe.random.below(9) as u8).unwrap();
    let sequence = match foe.random.below(20) {
        0 => foe.random.next() as u32,
        1 => foe.sequences[priority].wrapping_sub(1),
        _ => foe.sequences[priority],
    };
    let len = *foe.random.pick(&[0, 1, 8, 24, 32, 40, 41, 100, 4096, 5000, 16 << 10]);
    let total = match foe.random.below(4) {
        0 => len as u64,
        1 => len as u64 + foe.random.below(100_000) as u64,
        _ => forged(&mut foe.random, len as u64),
    };
    let tag = *foe.random.pick(&[2, 2, 2, 3, 4, 1, 0, !0]);
    let bytes = vec![0x5a; len];
    push(foe, priority, &PacketHead { kind, tag, sequence, total }, &bytes);
    if foe.random.chance(2) {
        // A kind that there is not, or a length that no cell can tell.
        let place = foe.place(priority);
        let pushed = foe.producer(priority).map_or(0, |producer| producer.pushed());
        // Or the one behind which the other ring is read, which does not hold what the victim expects.
        let kind = if foe.random.chance(30) { 0xff } else { foe.random.next() };
        let check = (pushed + 1) as u32 as u64 | kind << 32;
        foe.block.set(place.cells + (pushed as usize & (place.cell_count - 1)) * CELL_BYTES, check);
    }
}

/// A place as descriptors name it.
fn place(foe: &mut Foe) -> [u64; 2] {
    let private = foe.words[at::PRIVATE].load(SeqCst);
    let address = *foe.random.pick(&[private, private + 4096, 0, 1, 4096, !0, 1 << 47, 0xffff_8000_0000_0000]);
    let number = *foe.random.pick(&[foe.number, 0, 1, 2, 1000, u32::MAX]);
    let offset = foe.random.below(70_000) as u64;
    match foe.random.below(6) {
        0 => [0, 0],
        1 => [1, address],
        2 => [1, (&raw const *foe).addr() as u64],
        3 => [2 | u64::from(number) << 32, forged(&mut foe.random, offset)],
        4 => [2 | u64::from(foe.number) << 32, offset],
        _ => [foe.random.next(), foe.random.next()],
    }
}

fn meeting(slot: usize) -> usize {
    MEETINGS_OFFSET + slot * 128
}

fn descriptors(foe: &mut Foe) {
    let priority = foe.random.below(3);
    let slot = foe.random.below(34);
    let generation = 1 + foe.random.below(4) as u64;
    let ticket = slot as u64 | generation << 16;
    let sequence = foe.sequences[priority];
    match foe.random.below(8) {
        // An RTS, with a meeting that is open or not.
        0..3 => {
            if foe.random.chance(90) {
                foe.block.set(meeting(slot), generation << 50);
                foe.block.set(meeting(slot) + 8, 0);
            }
            let len = *foe.random.pick(&[1, 100, 40_000, 150_000, 1 << 20, 1 << 30, 1 << 39]);
            let chunk = *foe.random.pick(&[16 << 10, 32 << 10, 128 << 10, 128 << 10 | 1 << 63, 1000, 0, !0]);
            let [kind, value] = place(foe);
            let head = PacketHead { kind: PacketKind::Rts, tag: crate::victim::TAG, sequence, total: len };
            push(foe, priority, &head, &words([ticket, chunk, kind, value]));
        }
        // Chunks, in crumbs too.
        3 | 4 => {
            let at = foe.random.below(200_000) as u64;
            let at = *foe.random.pick(&[0, at, (16 << 10) - 1, 1 << 30, !0, at / 16384 * 16384]);
            let len = *foe.random.pick(&[0, 1, 8, 4096, 16 << 10]);
            let head = PacketHead { kind: PacketKind::Chunk, tag: ticket, sequence: 0, total: at };
            push(foe, priority, &head, &vec![1; len]);
        }
        // A remote get, or a control word that there is not.
        _ => {
            let [kind, value] = place(foe);
            let mut control = ticket | 1 << 32 | (foe.random.below(16) as u64) << 40;
            // As often as not of a transfer of the victim's: it says so in the lane.
            if foe.random.chance(50) {
                let claims = foe.own_block.get(meeting(slot));
                control = slot as u64 | (claims >> 50) << 16 | 1 << 32 | (foe.random.below(2) as u64) << 40;
            }
            if foe.random.chance(3) {
                control = foe.random.next();
            }
            let head = PacketHead { kind: PacketKind::Control, tag: 0, sequence: 0, total: 24 };
            push(foe, 0, &head, &words([control, kind, value]));
        }
    }
}

fn keys(foe: &mut Foe) {
    let sequence = foe.sequences[1];
    let own = foe.region.key().to_bytes();
    let (kind, tag, bytes) = match foe.random.below(4) {
        // A key, with words exchanged and its checksum made anew: that is no secret.
        0 | 1 => {
            let mut key = own;
            match foe.random.below(5) {
                0 => key[2..4].copy_from_slice(&(foe.random.below(10) as u16).to_le_bytes()),
                1 => key[4..8].copy_from_slice(&(foe.random.below(10) as u32).to_le_bytes()),
                2 => key[8..12].copy_from_slice(&(foe.random.below(5) as u32).to_le_bytes()),
                3 => key[16..24].copy_from_slice(&forged(&mut foe.random, 0).to_le_bytes()),
                _ => key[24..32].copy_from_slice(&forged(&mut foe.random, 64 << 10).to_le_bytes()),
            }
            (PacketKind::Whole, crate::victim::KEY, summed(key).to_vec())
        }
        2 => {
            let key: Vec<u8> = (0..doorbell::CounterKey::BYTES).map(|_| foe.random.next() as u8 & 3).collect();
            (PacketKind::Whole, crate::victim::COUNTER, key)
        }
        // Lowers counters, of its victim or of nobody.
        _ => {
            let index = foe.random.below(300) as u64;
            let incarnation = foe.random.below(4) as u64;
            let bytes = forged(&mut foe.random, 1);
            let secret = foe.random.below(10) as u64;
            (PacketKind::Control, 0, words([2 << 32 | u64::from(VICTIM) | index << 16, incarnation, bytes, secret]))
        }
    };
    let priority = if kind == PacketKind::Control { 0 } else { 1 };
    push(foe, priority, &PacketHead { kind, tag, sequence, total: bytes.len() as u64 }, &bytes);
}

/// A key with the sum that its reader expects, found by trying.
fn summed(mut key: [u8; doorbell::KEY_BYTES]) -> [u8; doorbell::KEY_BYTES] {
    let first = u16::from_le_bytes([key[14], key[15]]);
    for sum in (0..=u16::MAX).map(|step| first.wrapping_add(step)) {
        key[14..16].copy_from_slice(&sum.to_le_bytes());
        if doorbell::Key::<u8, doorbell::ReadOnly>::from_bytes(&key).is_ok() {
            break;
        }
    }
    key
}

fn meetings(foe: &mut Foe) {
    let which = foe.random.below(2);
    let block = [&foe.block, &foe.own_block][which];
    let at = MEETINGS_OFFSET + foe.random.below(4) * 128 + *foe.random.pick(&[0, 8, 64]);
    let word = block.get(at);
    let generation = word >> 50 << 50;
    let value = match foe.random.below(6) {
        0 => generation,
        1 => generation | 1 << 48,
        2 => generation | 1 << 49,
        3 => generation | (foe.random.below(40) as u64) << 24 | foe.random.below(40) as u64,
        4 => generation.wrapping_add(1 << 50),
        _ => forged(&mut foe.random, word),
    };
    block.set(at, value);
}

fn loans(foe: &mut Foe) {
    if foe.random.chance(20) {
        // Gives back what it has, has not, and had once.
        let at = RETURNS_OFFSET + foe.random.below(RETURNS_BYTES);
        let value = foe.random.below(1000) as u64;
        foe.block.set(at, value | value << 32);
        return;
    }
    let priority = foe.random.below(3);
    let arena = *foe.random.pick(&[foe.number, foe.number, foe.number, 0, 1, 77, u32::MAX]);
    let generation = 1 + foe.random.below(10) as u64;
    let offset = *foe.random.pick(&[0, 64, 4096, 65472, 65536, 1 << 20, 1 << 40, !0 << 6, 7]);
    let len = *foe.random.pick(&[0, 1, 4, 64, 65536, 65537, 1 << 30, (1 << 30) - 4096, (1 << 39) - 4096, 1 << 41, !0]);
    let slot = *foe.random.pick(&[0, 1, 1023, 1024, !0]);
    let lease = words([u64::from(arena) | generation << 32, offset, len, slot]);
    let head = PacketHead { kind: PacketKind::Loan, tag: crate::victim::TAG, sequence: foe.sequences[priority], total: 32 };
    // Often as they should be, so that it is read on.
    if foe.random.chance(60) {
        let lease = words([u64::from(foe.number) | generation << 32, 64, 4096, 3]);
        push(foe, priority, &head, &lease);
    } else {
        push(foe, priority, &head, &lease);
    }
}

fn doorbells(foe: &mut Foe) {
    let which = foe.random.below(2);
    let header = [&foe.header, &foe.own_header][which];
    match foe.random.below(5) {
        0 => header.set(DOORBELL_OFFSET, *foe.random.pick(&[0, 1, 2, !0])),
        1 => header.set(DOORBELL_OFFSET + 128, *foe.random.pick(&[0, 1, !0])),
        2 => (0..100).for_each(|_| wake(header)),
        // Never waking: it is disarmed whenever it is seen to be armed.
        3 => (0..1000).for_each(|_| header.set(DOORBELL_OFFSET, 0)),
        _ => header.set(foe.random.below(HEADER_BYTES), foe.random.next()),
    }
}

fn directory(foe: &mut Foe) {
    if foe.kept.is_empty() {
        foe.kept = (0..foe.directory.words()).map(|at| foe.directory.get(at * 8)).collect();
    }
    let id = foe.random.below(9);
    let entry = ENTRIES + id * ENTRY;
    match foe.random.below(8) {
        // Nodes that are not there, other lives of those that are.
        0 | 1 => {
            for at in (8..80).step_by(8) {
                foe.directory.set(entry + at, forged(&mut foe.random, foe.directory.get(entry + at)));
            }
            foe.directory.set(entry + 8, 1 << 32 | std::process::id() as u64);
            foe.directory.set(entry, (foe.random.below(20) as u64) << 32 | 1);
        }
        2 => foe.directory.set(entry, forged(&mut foe.random, foe.directory.get(entry))),
        3 => foe.directory.set(entry, 0),
        4 => foe.directory.set(foe.random.below(ENTRIES), foe.random.next()),
        5 => foe.directory.set(entry + foe.random.below(ENTRY), foe.random.next()),
        // Another's entry in the place of one's own, and the other way round.
        6 => {
            let other = ENTRIES + foe.random.below(8) * ENTRY;
            (0..ENTRY).step_by(8).for_each(|at| foe.directory.set(entry + at, foe.directory.get(other + at)));
        }
        _ => {}
    }
    foe.directory.set(1024, foe.directory.get(1024).wrapping_add(1));
}

/// A node that claims to be the victim's process, so that the victim copies to and from its own memory.
fn impersonate(foe: &mut Foe) {
    // Not where the bytes come from: then nothing would change.
    let private = foe.words[at::PRIVATE].load(SeqCst) + SHIFT as u64;
    // Whatever it sends is to be put into its memory.
    for slot in 0..4 {
        let generation = foe.own_block.get(meeting(slot)) >> 50;
        if generation != 0 {
            let control = slot as u64 | generation << 16 | 1 << 32;
            let head = PacketHead { kind: PacketKind::Control, tag: 0, sequence: 0, total: 24 };
            push(foe, 0, &head, &words([control, 1, private]));
        }
    }
    // It is sent its own memory.
    if foe.random.chance(1) {
        let slot = foe.random.below(32);
        let ticket = slot as u64 | 1 << 16;
        foe.block.set(meeting(slot), 1 << 50);
        let head = PacketHead { kind: PacketKind::Rts, tag: crate::victim::TAG, sequence: foe.sequences[1], total: 40_000 };
        push(foe, 1, &head, &words([ticket, 16 << 10, 1, private]));
    }
    // As a target that reads nothing, and never says so: the victim's lanes are full soon.
    for priority in doorbell::Priority::ALL {
        let (mut head, place) = (0, foe.place(priority.index()));
        let lane = place.control;
        while foe.own_block.get(place.cells + (head % place.cell_count) * CELL_BYTES) as u32 == head as u32 + 1 {
            head += 1;
        }
        foe.own_block.set(lane, head as u64);
    }
    std::thread::yield_now();
}

fn bitflips(foe: &mut Foe) {
    if foe.kept.is_empty() {
        foe.kept = (0..foe.directory.words()).map(|at| foe.directory.get(at * 8)).collect();
    }
    let which = *foe.random.pick(&[0, 1, 1, 1, 2, 3, 3, 4, 5]);
    let raw = [&foe.header, &foe.block, &foe.own_header, &foe.own_block, &foe.directory, &foe.board][which];
    // The first pages of a block say more than the rest.
    let reach = if foe.random.chance(50) { raw.len.min(6 * PAGE) } else { raw.len };
    let word = raw.word(foe.random.below(reach));
    word.fetch_xor(1 << foe.random.below(64), SeqCst);
}

fn truncate(foe: &mut Foe) {
    let names = files();
    let Some(name) = names.get(foe.random.below(names.len())) else { return };
    // Without a domain segment nobody joins, and that is the end of the attack.
    if name.is_empty() && foe.random.chance(98) {
        return;
    }
    let Some(file) = open(name) else { return };
    let Ok(len) = file.metadata().map(|found| found.len()) else { return };
    let keep = *foe.random.pick(&[0, PAGE as u64, len / 2 / PAGE as u64 * PAGE as u64, len.saturating_sub(PAGE as u64)]);
    let _ = file.set_len(keep);
    if foe.random.chance(70) {
        let _ = file.set_len(len);
    }
}

fn extend(foe: &mut Foe) {
    let names = files();
    let Some(name) = names.get(foe.random.below(names.len())) else { return };
    let Some(file) = open(name) else { return };
    if let Ok(found) = file.metadata()
        && found.len() < 1 << 40
    {
        let _ = file.set_len(found.len() + *foe.random.pick(&[1, 4095, PAGE as u64, 1 << 30, 1 << 38]));
    }
}

fn locks(foe: &mut Foe) {
    let names = files();
    let held: Vec<_> = names.iter().filter_map(|name| open(name).filter(lock)).collect();
    // Kept so long that others wait, and for longer than they want to.
    let longest = *foe.random.pick(&[1, 20, 200, 1500]);
    let until = Instant::now() + Duration::from_millis(foe.random.below(longest) as u64);
    while Instant::now() < until && foe.words[at::STOP].load(SeqCst) == 0 && foe.words[at::PHASE].load(SeqCst) & STILL == 0 {
        std::thread::park_timeout(Duration::from_millis(5));
    }
    drop(held);
}

fn flood(foe: &mut Foe) {
    let priority = foe.random.below(3);
    let which = foe.random.below(6);
    for round in 0..200 {
        let sequence = foe.sequences[priority];
        let slot = round % 32;
        let ticket = slot | 1 << 16 | (foe.random.below(3) as u64) << 16;
        let (kind, tag, total, bytes) = match which {
            0 => (PacketKind::Whole, 99, 8, words([1])),
            1 => (PacketKind::Whole, 99, 4096, vec![1; 4096]),
            2 => {
                foe.block.set(meeting(slot as usize), (ticket >> 16) << 50);
                (PacketKind::Rts, 99, 1, words([ticket, 16 << 10, 0, 0]))
            }
            3 => (PacketKind::Control, 0, 24, words([ticket | 1 << 32, 0, 0])),
            4 => (PacketKind::First, 99, 1 << 39, vec![1; 4096]),
            _ => (PacketKind::Loan, 99, 32, words([u64::from(foe.number) | 1 << 32, 0, 64, 0])),
        };
        if !push(foe, priority, &PacketHead { kind, tag, sequence, total }, &bytes) {
            break;
        }
    }
}

/// Packets of streams and devices: with the numbers of existing ones, which are given first, and with others.
fn services(foe: &mut Foe) {
    let is_stream = foe.random.chance(50);
    let number = *foe.random.pick(&[0, 1, 1, 2, 3, 4, 5, 8, u32::MAX]);
    let tag = (foe.random.below(12) as u64) << 56 | u64::from(number) | if foe.random.chance(3) { 1 << 40 } else { 0 };
    let mut bytes = Vec::new();
    for _ in 0..foe.random.below(5) {
        let word: u64 = *foe.random.pick(&[0, 1, 2, 8, 1 << 32 | 8, 4096, 64 << 10, 256 << 10, 1 << 40, !0]);
        bytes.extend(word.to_le_bytes());
    }
    match foe.random.below(4) {
        0 => bytes.extend(crate::pair::SERVICE.as_bytes()),
        1 => bytes = crate::pair::DEVICE.as_bytes().to_vec(),
        2 => bytes.resize(bytes.len() + foe.random.below(3000), 7),
        _ => {}
    }
    let (kind, priority) = if is_stream { (PacketKind::Stream, 0) } else { (PacketKind::Device, 2) };
    let head = PacketHead { kind, tag, sequence: 0, total: bytes.len() as u64 };
    push(foe, priority, &head, &bytes);
}
