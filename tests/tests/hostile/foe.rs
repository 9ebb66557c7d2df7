//! The hostile node: it joins by the library, and maps the files that it attacks by itself. It lives one life after another, because its victim soon
//! stops listening to each.

use crate::{HOSTILE, STILL, VICTIM, at, ways};
use doorbell::{LaneGeometry, Match, Node, NodeBuilder, NodeId, Progress, Region};
use doorbell_shm::lane::{Producer, RawMemory};
use doorbell_shm::layout::{CALLERS_OFFSET, HEADER_BYTES, INBOX_BYTES, LanePlace, SegmentHeader, SegmentKind};
use doorbell_tests::process::told;
use doorbell_tests::random::Random;
use doorbell_tests::words::Words;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// A part of a file, mapped without the library.
pub struct Raw {
    ptr: *mut u8,
    pub len: usize,
}

// SAFETY: an address of words that are only ever reached as atomics.
unsafe impl Send for Raw {}

impl Raw {
    /// `None` if there is no such file, or no such part of it.
    pub fn map(file: &File, offset: usize, len: usize) -> Option<Self> {
        let there = file.metadata().ok()?.len() as usize;
        if len == 0 || offset + len > there {
            return None;
        }
        // SAFETY: a new mapping of a file that is that long.
        let ptr = unsafe {
            let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            libc::mmap(std::ptr::null_mut(), len, protection, flags, file.as_raw_fd(), offset as i64)
        };
        (ptr != libc::MAP_FAILED).then_some(Self { ptr: ptr.cast(), len })
    }

    /// The word at an offset, which is brought into range.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        let at = offset % self.len / 8 * 8;
        // SAFETY: within the mapping, aligned; other processes write there, too, so it is an atomic.
        unsafe { &*self.ptr.add(at).cast() }
    }

    pub fn set(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Relaxed);
    }

    pub fn get(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Relaxed)
    }

    pub fn words(&self) -> usize {
        self.len / 8
    }

    pub fn ptr(&self) -> *mut u8 {
        self.ptr
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`; no reference outlives the value.
        unsafe { libc::munmap(self.ptr.cast(), self.len) };
    }
}

/// The state of the hostile node in one life.
pub struct Foe {
    pub node: Node,
    pub words: Words,
    pub random: Random,
    pub lanes: LaneGeometry,
    /// Of the victim's inbox: the header page, and the block of the hostile node. This is what it was given.
    pub header: Raw,
    pub block: Raw,
    /// Of its own inbox: the header page, and the block of the victim.
    pub own_header: Raw,
    pub own_block: Raw,
    pub directory: Raw,
    pub board: Raw,
    pub region: Region<u8>,
    pub number: u32,
    /// Its ways to the victim, by priority; claimed when first used.
    pub producers: [Option<Producer<RawMemory>>; 3],
    pub sequences: [u32; 3],
    /// What its block held at some time.
    pub kept: Vec<u64>,
    /// Its id and incarnation.
    pub id: u16,
    pub incarnation: u32,
    /// Held for as long as a node that was made by hand is to live.
    pub hold: Option<File>,
}

pub fn path(name: &str) -> PathBuf {
    let prefix = format!("doorbell.{}.{}", nix::unistd::geteuid(), told("DOORBELL_DOMAIN"));
    PathBuf::from("/dev/shm").join(if name.is_empty() { prefix } else { format!("{prefix}.{name}") })
}

pub fn open(name: &str) -> Option<File> {
    OpenOptions::new().read(true).write(true).open(path(name)).ok()
}

/// Files of the domain whose names end like this.
pub fn files() -> Vec<String> {
    let prefix = path("").file_name().unwrap().to_string_lossy().into_owned();
    let names = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.strip_prefix(&prefix).map(|rest| rest.trim_start_matches('.').to_owned())).collect()
}

/// The lanes from one node to an incarnation of another, at their full length, made if they do not exist.
pub fn pair(target: u16, incarnation: u32, source: u16) -> Option<Raw> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(true).truncate(false);
    let file = options.open(path(&format!("{target}.{incarnation}-from-{source}"))).ok()?;
    let len = LaneGeometry::default().pair_bytes();
    nix::fcntl::posix_fallocate(&file, 0, len as i64).ok()?;
    Raw::map(&file, 0, len)
}

/// Tells the owner of an inbox that a node made lanes to it.
pub fn announce(header: &Raw, source: u16) {
    header.word(CALLERS_OFFSET + usize::from(source) / 64 * 8).fetch_or(1 << (source % 64), SeqCst);
}

impl Foe {
    /// `None` if it can't join or find its victim now.
    fn join(words: Words, mut random: Random) -> Result<Self, Words> {
        let progress = *random.pick(&[Progress::Adaptive, Progress::Inline]);
        let builder = NodeBuilder::from_env().unwrap().id(HOSTILE).progress(progress).copy(doorbell::CopySide::Both);
        let Ok(node) = builder.patience(Duration::from_millis(500)).join() else { return Err(words) };
        let join = || -> Option<_> {
            let region = node.region::<u8>(64 << 10).ok()?;
            let number = files().iter().filter_map(|name| name.strip_prefix(&format!("{HOSTILE}.r"))?.parse().ok()).max()?;
            // As the domain's creator said; the foe believes its own copy.
            let lanes = LaneGeometry::default();
            let (victim, own) = (open(&format!("{VICTIM}.inbox"))?, open(&format!("{HOSTILE}.inbox"))?);
            let to_victim = pair(VICTIM, node.peer(NodeId(VICTIM)).ok()?.incarnation().0, HOSTILE)?;
            let header = Raw::map(&victim, 0, HEADER_BYTES)?;
            announce(&header, HOSTILE);
            let directory = open("")?;
            let whole = directory.metadata().ok()?.len() as usize;
            Some((
                region,
                number,
                lanes,
                header,
                to_victim,
                Raw::map(&own, 0, HEADER_BYTES)?,
                pair(HOSTILE, node.incarnation().0, VICTIM)?,
                Raw::map(&directory, 0, whole)?,
                Raw::map(&open(&format!("{HOSTILE}.board"))?, 0, doorbell_shm::layout::BOARD_BYTES)?,
            ))
        };
        match join() {
            Some((region, number, lanes, header, block, own_header, own_block, directory, board)) => Ok(Self {
                node,
                words,
                random,
                lanes,
                header,
                block,
                own_header,
                own_block,
                directory,
                board,
                region,
                number,
                producers: [None, None, None],
                sequences: [0; 3],
                kept: Vec::new(),
                id: HOSTILE,
                incarnation: 0,
                hold: None,
            }),
            None => {
                let _ = node.leave();
                Err(words)
            }
        }
    }

    /// Makes a node by hand: its inbox, its lock and its entry, which name another process.
    pub fn forge_node(&mut self, id: u16, pid: u64) -> Option<()> {
        use doorbell_shm::layout::{PAGE, REACH_OFFSET};
        let name = format!("{id}.inbox");
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).open(path(&name)).ok()?;
        file.set_len(INBOX_BYTES as u64).ok()?;
        lock(&file);
        let incarnation = 1000 + self.random.below(1 << 20) as u32;
        self.own_header = Raw::map(&file, 0, HEADER_BYTES)?;
        self.own_block = pair(id, incarnation, VICTIM)?;
        self.block = pair(VICTIM, self.node.peer(NodeId(VICTIM)).ok()?.incarnation().0, id)?;
        announce(&self.header, id);
        let (header, kind) = (self.own_header.ptr(), SegmentKind::Inbox);
        // SAFETY: page-aligned, and mapped for a page.
        unsafe { SegmentHeader::init(header, kind, NodeId(id), incarnation, INBOX_BYTES, 0) }.publish();
        // Where the victim's own memory is probed, and what is there.
        for at in [0, 8, 16] {
            self.own_header.set(REACH_OFFSET + at, self.header.get(REACH_OFFSET + at));
        }
        let (entry, own) = (PAGE + usize::from(id) * 256, PAGE + usize::from(VICTIM) * 256);
        for at in (8..256).step_by(8) {
            self.directory.set(entry + at, self.directory.get(own + at));
        }
        self.directory.set(entry + 8, self.directory.get(entry + 8) & !0xffff_ffff | pid);
        self.directory.set(entry, u64::from(incarnation) << 32 | 1);
        self.directory.set(1024, self.directory.get(1024).wrapping_add(1));
        (self.id, self.incarnation, self.hold) = (id, incarnation, Some(file));
        Some(())
    }

    /// Its way to the victim, claimed by itself.
    pub fn producer(&mut self, priority: usize) -> Option<&mut Producer<RawMemory>> {
        if self.producers[priority].is_none() {
            let priority_of = doorbell::Priority::ALL[priority];
            let (first, full) = (self.lanes.first_lane(priority_of), self.lanes.lane(priority_of));
            // SAFETY: the lanes are mapped whole for as long as the foe lives, and its producers with it.
            let [first, full] = [first, full].map(|place| unsafe { RawMemory::new(self.block.ptr(), place) });
            self.producers[priority] = Producer::claim(first, self.incarnation);
            // Some lanes stay small for their whole life, and some move at once.
            if self.random.chance(70)
                && let Some(producer) = &mut self.producers[priority]
            {
                producer.move_to(full);
            }
        }
        self.producers[priority].as_mut()
    }

    /// The place of one ring of a lane: of the one that its producer uses, or the other.
    pub fn place(&mut self, priority: usize) -> LanePlace {
        let (lanes, priority) = (self.lanes, doorbell::Priority::ALL[priority]);
        if self.random.chance(30) { lanes.first_lane(priority) } else { lanes.lane(priority) }
    }

    /// Ordinary operations, so that its writes hit operations under way. They use other lanes than those that it fills by hand.
    fn behave(&mut self) {
        let soon = Instant::now() + Duration::from_micros(500);
        let (victim, tag) = (NodeId(VICTIM), crate::victim::TAG);
        let mut buf = vec![0; 100 << 10];
        let len = self.random.below(buf.len());
        match self.random.below(8) {
            0 if self.producers[1].is_none() => drop(self.node.send_until(victim, tag, &buf[..len], soon)),
            1 if self.producers[1].is_none() => {
                let _ = self.node.send_until(victim, crate::victim::KEY, &self.region.key().to_bytes(), soon);
            }
            2 if self.producers[1].is_none() => {
                if let Ok(loan) = self.node.loan_bytes(1 + len) {
                    let _ = loan.share().send_until(victim, tag, soon);
                }
            }
            3 if self.producers[1].is_none() => {
                if let Ok(counter) = self.node.counter() {
                    let _ = self.node.send_until(victim, crate::victim::COUNTER, &counter.key().to_bytes(), soon);
                }
            }
            4 => drop(self.node.recv_until(Match::any(), &mut buf, soon)),
            5 => drop(self.node.take_until::<[u8]>(Match::any(), soon)),
            6 => drop(self.node.try_recv(Match::any(), &mut buf)),
            _ => {}
        }
    }
}

/// Locks the first byte of a file, as an owner does. False if another has.
pub fn lock(file: &File) -> bool {
    // SAFETY: a structure of integers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_len) = (libc::F_WRLCK as libc::c_short, 1);
    // SAFETY: an open file, and a lock that lives through the call.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) == 0 }
}

pub fn attack() {
    let (way, seed) = crate::part();
    let mut words = Words::inherited();
    let mut random = Random::new(seed ^ 0x0f0e);
    let began = Instant::now();
    // It waits for no victim for ever: its parent may have failed.
    let forever = Duration::from_secs(doorbell_tests::number("DOORBELL_HOSTILE_SECONDS", 1)) + 4 * crate::HANG;
    let mut blow = Duration::ZERO;
    while words[at::STOP].load(SeqCst) == 0 && began.elapsed() < forever {
        let next = Random::new(random.next());
        let incarnation = words[at::PHASE].load(SeqCst) / 2;
        let mut foe = match Foe::join(words, next) {
            Ok(foe) => foe,
            Err(back) => {
                words = back;
                std::thread::yield_now();
                continue;
            }
        };
        foe.incarnation = foe.node.incarnation().0;
        ways::begin(&way, &mut foe);
        foe.words[at::LIVES].fetch_add(1, SeqCst);
        let blows = 1 + foe.random.below(*random.pick(&[10, 100, 3000]));
        for _ in 0..blows {
            let phase = foe.words[at::PHASE].load(SeqCst);
            // What it mapped of its victim's is of this life.
            if foe.words[at::STOP].load(SeqCst) != 0 || phase / 2 != incarnation {
                break;
            }
            foe.words[at::HEARD].store(phase, SeqCst);
            if foe.random.chance(30) {
                foe.behave();
            }
            if phase & STILL != 0 {
                ways::rest(&way, blow);
                continue;
            }
            let began = ways::processor_time();
            ways::strike(&way, &mut foe);
            foe.words[at::BLOWS].fetch_add(1, SeqCst);
            blow = ways::processor_time() - began;
        }
        ways::end(&way, &mut foe);
        let Foe { node, region, words: back, .. } = foe;
        words = back;
        if random.chance(50) {
            drop(region);
            let _ = node.leave();
        } else {
            std::mem::forget(region);
            node.abandon();
        }
    }
}
