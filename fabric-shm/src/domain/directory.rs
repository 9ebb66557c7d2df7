//! The directory of attached nodes: the entries of a domain segment. They are written under the domain's lock and can be read at
//! any time.

use super::layout::{DIRECTORY_HASH, DomainFacts, ENTRIES_OFFSET, Entry, Head, MAX_LABEL, PRESENT, domain_bytes, keys_offset};
use crate::doorbell::{futex_wait, futex_wake};
use crate::keys::KeyTable;
use crate::layout::{HeaderFault, LAYOUT_HASH, LAYOUT_VERSION, SegmentHeader, SegmentKind};
use crate::segment::Segment;
use doorbell_fabric::{Incarnation, NodeId, Role};
use std::mem::size_of;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

/// A checked copy of a node's directory entry. The process behind it may be dead.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its id in the domain.
    pub id: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Its role.
    pub role: Role,
    /// Its process id, in its own pid namespace.
    pub pid: u32,
    /// The inode number of that pid namespace; 0 if unknown.
    pub pid_namespace: u64,
    /// A label for people: no control characters, at most 31 bytes as written.
    pub label: String,
    /// When it joined, as the time since 1970.
    pub joined: Duration,
    /// Whether it can also be reached over a network.
    pub networked: bool,
}

impl Member {
    /// A node that is in no directory of this machine. Its join time is set to now.
    pub fn remote(id: NodeId, incarnation: Incarnation, role: Role, pid: u32, label: String) -> Self {
        let joined = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Self { id, incarnation, role, pid, pid_namespace: 0, label, joined, networked: true }
    }
}

/// Why a segment is not a valid directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DirectoryFault {
    /// Another build made it.
    OtherLayout { version: u64, hash: u64, ours: u64 },
    /// No build writes such values.
    Damaged(String),
}

/// A domain segment whose facts were checked.
#[derive(Debug)]
pub(super) struct Directory {
    segment: Segment,
    facts: DomainFacts,
}

impl Directory {
    /// Initialises a new domain segment of `domain_bytes(facts.max_nodes)` zeroed bytes.
    pub fn init(segment: &Segment, facts: &DomainFacts, first: Incarnation) {
        // SAFETY: page-aligned, and at least as long as a head.
        let (header, head) = unsafe {
            let ptr = segment.ptr();
            let header = SegmentHeader::init(ptr, SegmentKind::Domain, NodeId(0), 0, segment.len(), 0);
            (header, &*ptr.cast::<Head>())
        };
        head.facts.write(facts);
        head.generation.0.store(1, Ordering::Relaxed);
        head.next_incarnation.0.store(first.0, Ordering::Relaxed);
        header.publish();
    }

    /// Checks a whole domain segment.
    pub fn check(segment: Segment) -> Result<Self, DirectoryFault> {
        // SAFETY: page-aligned, and readable for its length.
        match unsafe { SegmentHeader::check(segment.ptr(), segment.len(), segment.len(), SegmentKind::Domain) } {
            Ok(_) => {}
            Err(HeaderFault::OtherLayout { found_version, found_hash }) => {
                return Err(DirectoryFault::OtherLayout { version: found_version, hash: found_hash, ours: LAYOUT_HASH });
            }
            Err(fault) => return Err(DirectoryFault::Damaged(fault.to_string())),
        }
        if segment.len() < size_of::<Head>() {
            return Err(DirectoryFault::Damaged(format!("it has only {} bytes", segment.len())));
        }
        // SAFETY: page-aligned, and long enough (checked); all fields are atomics or unused.
        let head = unsafe { &*segment.ptr().cast::<Head>() };
        let hash = head.facts.hash();
        if hash != DIRECTORY_HASH {
            return Err(DirectoryFault::OtherLayout { version: LAYOUT_VERSION as u64, hash, ours: DIRECTORY_HASH });
        }
        let facts = head.facts.read().map_err(|reason| DirectoryFault::Damaged(reason.to_owned()))?;
        if segment.len() < domain_bytes(facts.max_nodes) {
            let (found, expected) = (segment.len(), domain_bytes(facts.max_nodes));
            return Err(DirectoryFault::Damaged(format!("it has {found} bytes where {expected} are needed")));
        }
        Ok(Self { segment, facts })
    }

    pub fn is_cut(&self) -> bool {
        self.segment.is_cut()
    }

    pub fn facts(&self) -> &DomainFacts {
        &self.facts
    }

    #[inline]
    fn head(&self) -> &Head {
        // SAFETY: checked in `check`.
        unsafe { &*self.segment.ptr().cast::<Head>() }
    }

    fn entry(&self, id: NodeId) -> Option<&Entry> {
        if id.index() >= self.facts.max_nodes {
            return None;
        }
        // SAFETY: aligned, and within the segment: its length was checked against `max_nodes`, and `facts` is a private copy of
        // that.
        Some(unsafe { &*self.segment.ptr().add(ENTRIES_OFFSET).cast::<Entry>().add(id.index()) })
    }

    /// The lock registry.
    #[inline(always)]
    pub fn keys(&self) -> KeyTable<'_> {
        // SAFETY: a page within the segment, whose length was checked against `max_nodes`; the segment is mapped as long as
        // `self`.
        unsafe { KeyTable::at(self.segment.ptr().add(keys_offset(self.facts.max_nodes))) }
    }

    #[inline]
    pub fn generation(&self) -> u32 {
        self.head().generation.0.load(Ordering::Acquire)
    }

    /// Tells all waiting nodes that the directory changed.
    pub fn bump(&self) {
        let word = &self.head().generation.0;
        word.fetch_add(1, Ordering::Release);
        futex_wake(word);
    }

    /// Sleeps while the generation is `seen`, for `timeout` at most.
    pub fn wait(&self, seen: u32, timeout: Duration) {
        let word = &self.head().generation.0;
        if word.load(Ordering::Acquire) == seen {
            futex_wait(word, seen, timeout);
        }
    }

    /// Takes the next incarnation from `least` on for which `in_use` is false. Under the domain's lock. The shared counter may
    /// hold anything.
    pub fn take_incarnation(&self, least: u32, in_use: impl Fn(u32) -> bool) -> Incarnation {
        let counter = &self.head().next_incarnation.0;
        let mut next = counter.load(Ordering::Relaxed).max(least);
        // The loop ends: at most as many numbers are in use as there are nodes.
        while next == 0 || in_use(next) {
            next = next.wrapping_add(1);
        }
        counter.store(next.wrapping_add(1), Ordering::Relaxed);
        Incarnation(next)
    }

    /// Writes an entry and publishes it. Under the domain's lock.
    pub fn write(&self, member: &Member) {
        let Some(entry) = self.entry(member.id) else { return };
        entry.state.store(0, Ordering::Relaxed);
        // Pairs with the fence in `read`: a reader that saw any of the new words sees the state cleared.
        fence(Ordering::Release);
        entry.pid.store(member.pid, Ordering::Relaxed);
        entry.role.store(member.role as u32, Ordering::Relaxed);
        entry.pid_namespace.store(member.pid_namespace, Ordering::Relaxed);
        entry.joined.store(u64::try_from(member.joined.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        entry.networked.store(member.networked.into(), Ordering::Relaxed);
        let mut label = [0; 32];
        let len = member.label.len().min(MAX_LABEL);
        label[..len].copy_from_slice(&member.label.as_bytes()[..len]);
        for (word, bytes) in entry.label.iter().zip(label.as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        entry.label_len.store(len as u64, Ordering::Relaxed);
        entry.state.store((member.incarnation.0 as u64) << 32 | PRESENT, Ordering::Release);
    }

    /// Empties an entry; with `incarnation`, only if the entry still belongs to that incarnation. Returns whether there was
    /// anything to empty. Under the domain's lock.
    pub fn clear(&self, id: NodeId, incarnation: Option<Incarnation>) -> bool {
        let Some(entry) = self.entry(id) else { return false };
        let state = entry.state.load(Ordering::Relaxed);
        if state == 0 || incarnation.is_some_and(|mine| (state >> 32) as u32 != mine.0) {
            return false;
        }
        entry.state.store(0, Ordering::Release);
        true
    }

    /// The incarnation in the entry, or `None` if the entry is empty.
    pub fn incarnation(&self, id: NodeId) -> Option<Incarnation> {
        let state = self.entry(id)?.state.load(Ordering::Acquire);
        (state as u32 as u64 == PRESENT && state >> 32 != 0).then_some(Incarnation((state >> 32) as u32))
    }

    /// A checked copy of an entry. `None` if the entry is empty, holds values that no node writes, or keeps changing.
    pub fn read(&self, id: NodeId) -> Option<Member> {
        let entry = self.entry(id)?;
        for _ in 0..8 {
            let incarnation = self.incarnation(id)?;
            let state = (incarnation.0 as u64) << 32 | PRESENT;
            let member = Member {
                id,
                incarnation,
                role: match u8::try_from(entry.role.load(Ordering::Relaxed)).ok().and_then(Role::from_number) {
                    Some(role) => role,
                    None if entry.state.load(Ordering::Acquire) == state => return None,
                    None => continue,
                },
                pid: entry.pid.load(Ordering::Relaxed),
                pid_namespace: entry.pid_namespace.load(Ordering::Relaxed),
                label: read_label(entry),
                joined: Duration::from_nanos(entry.joined.load(Ordering::Relaxed)),
                networked: entry.networked.load(Ordering::Relaxed) != 0,
            };
            fence(Ordering::Acquire);
            // An incarnation is never reused, so an unchanged state means that the entry was not rewritten meanwhile.
            if entry.state.load(Ordering::Relaxed) == state {
                return Some(member);
            }
        }
        None
    }

    /// All attached nodes, by id.
    pub fn members(&self) -> Vec<Member> {
        self.ids().filter_map(|id| self.read(id)).collect()
    }

    /// All ids of the domain.
    pub fn ids(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.facts.max_nodes as u16).map(NodeId)
    }
}

fn read_label(entry: &Entry) -> String {
    let mut bytes = [0; 32];
    for (word, bytes) in entry.label.iter().zip(bytes.as_chunks_mut::<8>().0) {
        *bytes = word.load(Ordering::Relaxed).to_le_bytes();
    }
    let len = usize::try_from(entry.label_len.load(Ordering::Relaxed)).unwrap_or(usize::MAX).min(MAX_LABEL);
    // The label will be shown on terminals.
    String::from_utf8_lossy(&bytes[..len]).chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
