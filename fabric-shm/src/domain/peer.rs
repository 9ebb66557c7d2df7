//! The parts of another node's inbox that this node uses.

use super::pair::Way;
use super::{Membership, Pair};
use crate::cma::Reach;
use crate::doorbell::Bell;
use crate::error::ShmError;
use crate::layout::{FLAG_FENCE, HEADER_BYTES, HeaderFacts, HeaderFault, INBOX_BYTES, SegmentHeader, SegmentKind};
use crate::segment::Segment;
use crate::space::{HeldFile, Identity, OpenFile, forked};
use doorbell_fabric::sync::Barriers;
use doorbell_fabric::{Incarnation, NodeId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// The inbox of a peer, and the lanes from this node to the peer once they are used. `Send` and `Sync`. All of it stays mapped
/// until the value is dropped, whether or not the peer lives.
#[derive(Debug)]
pub struct PeerInbox {
    id: NodeId,
    incarnation: Incarnation,
    flags: u64,
    nonce: u64,
    header: Segment,
    way: Way,
    pair: OnceLock<Arc<Pair>>,
    owner: Arc<Owner>,
    /// Its process, if that number is valid in this pid namespace.
    pid: Option<u32>,
    here: bool,
    reach: OnceLock<Option<Reach>>,
}

/// Tells whether one incarnation of a peer lives.
#[derive(Debug)]
pub(crate) struct Owner {
    file: OpenFile,
    process: Option<HeldFile>,
    pub(crate) dead: AtomicBool,
}

impl Owner {
    /// Whether this process holds the inbox through this descriptor.
    pub fn is_process(&self, pid: libc::pid_t, descriptor: i32) -> bool {
        self.file.is_held_by(pid, descriptor)
    }

    /// As [`PeerInbox::is_alive`].
    pub fn is_alive(&self) -> bool {
        if self.dead.load(Ordering::Acquire) || forked() {
            return false;
        }
        // If the system does not answer, the peer does not count as dead.
        let alive = self.file.is_held().unwrap_or(true) && !self.process.as_ref().is_some_and(has_exited);
        if !alive {
            self.dead.store(true, Ordering::Release);
        }
        alive
    }
}

impl PeerInbox {
    pub(super) fn open(membership: &Membership, id: NodeId) -> Result<Self, ShmError> {
        const OPERATION: &str = "open the inbox of a peer";
        let domain = || membership.domain().to_owned();
        let dead = |incarnation| ShmError::NodeDead { operation: OPERATION, domain: domain(), id, incarnation };
        // The file is opened without the domain's lock, so entry and file may belong to two incarnations. Then look again.
        for _ in 0..4 {
            let Some(member) = membership.member(id) else {
                return Err(ShmError::NoSuchNode { operation: OPERATION, domain: domain(), id });
            };
            let name = membership.names().inbox(id);
            let Some(file) = membership.space().open(&name)? else {
                if membership.directory().incarnation(id) == Some(member.incarnation) {
                    return Err(dead(member.incarnation));
                }
                continue;
            };
            let damaged = |reason: String| ShmError::Damaged { operation: OPERATION, segment: name.clone(), reason };
            let fault = |error| ShmError::os("map segment", name.clone(), error);
            if file.len() < INBOX_BYTES as u64 {
                let short = HeaderFault::TooShort { found: file.len() as usize, expected: INBOX_BYTES };
                return Err(damaged(short.to_string()));
            }
            let header = file.map(0, HEADER_BYTES).map_err(fault)?;
            // SAFETY: page-aligned, and mapped for its length.
            let facts = unsafe { SegmentHeader::check(header.ptr(), header.len(), file.len() as usize, SegmentKind::Inbox) }
                .map_err(|fault| damaged(fault.to_string()))?;
            if facts.node != id || facts.incarnation != member.incarnation.0 {
                if membership.directory().incarnation(id) == Some(member.incarnation) {
                    return Err(damaged(format!("its header names node {}, incarnation {}", facts.node, facts.incarnation)));
                }
                continue;
            }
            // A pid is valid only in its own namespace and only while its owner is known to live: see below.
            let namespace = membership.pid_namespace();
            let process = (namespace != 0 && namespace == member.pid_namespace).then(|| process_of(member.pid)).flatten();
            let incarnation = member.incarnation;
            let pid = process.is_some().then_some(member.pid);
            let here = matches!(file, OpenFile::Heap(_));
            let owner = Arc::new(Owner { file, process, dead: AtomicBool::new(false) });
            let (pair, reach, way) = (OnceLock::new(), OnceLock::new(), Way::from(membership));
            let HeaderFacts { flags, nonce, .. } = facts;
            let peer = Self { id, incarnation, flags, nonce, header, way, pair, owner, pid, here, reach };
            // The owner still held its file after the process was opened, so that process is the owner and not a later one.
            if !peer.is_alive() {
                return Err(dead(incarnation));
            }
            return Ok(peer);
        }
        Err(ShmError::NodeChanging { operation: OPERATION, domain: domain(), id })
    }

    /// The owner of the inbox.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// The incarnation of that node.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The `FLAG_…` bits of its header at the time of opening.
    pub fn flags(&self) -> u64 {
        self.flags
    }

    /// The nonce of its header at the time of opening. No other inbox has the same.
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// The header page: `HEADER_BYTES` bytes.
    #[inline]
    pub fn header(&self) -> *mut u8 {
        self.header.ptr()
    }

    /// The lanes from this node to the peer. The first call opens or creates them; it makes system calls, and does not wait.
    ///
    /// # Errors
    /// There is no room for them, or the peer is gone.
    pub fn pair(&self) -> Result<&Arc<Pair>, ShmError> {
        if let Some(pair) = self.pair.get() {
            return Ok(pair);
        }
        let pair = Arc::new(self.way.open(self)?);
        Ok(self.pair.get_or_init(|| pair))
    }

    /// Whether another process truncated it or the lanes to it, and this process touched a missing page. Two loads.
    pub fn is_cut(&self) -> bool {
        self.header.is_cut() || self.pair.get().is_some_and(|pair| pair.is_cut())
    }

    /// Whether the lanes to it have all their memory: see [`Pair::is_whole`]. One load if there are none.
    pub fn has_whole_lanes(&self) -> bool {
        self.pair.get().is_none_or(|pair| pair.is_whole())
    }

    pub(super) fn identity(&self) -> Identity {
        self.owner.file.identity()
    }

    /// Wakes the peer if it sleeps. Call it after changing anything in the memory shared with the peer.
    pub fn ring(&self) {
        // SAFETY: the header page is mapped as long as `self`.
        unsafe { Bell::at(self.header.ptr()) }.ring(!Barriers::join().machine || self.flags & FLAG_FENCE != 0);
    }

    /// Whether the peer lives: it has neither left nor died. Once false, it stays false, and everything that the peer wrote
    /// before is visible. Two system calls, half a microsecond; never blocks; thread-safe. Always `false` in a forked child.
    pub fn is_alive(&self) -> bool {
        self.owner.is_alive()
    }

    /// Whether [`is_alive`](Self::is_alive) has already found the peer dead. One load.
    #[inline]
    pub fn is_known_dead(&self) -> bool {
        self.owner.dead.load(Ordering::Acquire)
    }

    /// Access to the peer's private memory; `None` if the system refuses it, or in a forked child. The first call probes with a
    /// few system calls; later calls are one load. Thread-safe.
    pub fn reach(&self) -> Option<&Reach> {
        if forked() {
            return None;
        }
        // SAFETY: the header page is mapped as long as `self`.
        self.reach.get_or_init(|| unsafe { Reach::probe(self.header.ptr(), &self.owner, self.pid, self.here) }).as_ref()
    }

    /// A descriptor that becomes readable when the peer's process exits; `None` if the peer is in another pid namespace, or in
    /// the heap. It does not notice a peer that leaves its domain and lives on.
    pub fn process(&self) -> Option<BorrowedFd<'_>> {
        self.owner.process.as_ref().filter(|_| !forked()).map(|process| process.as_fd())
    }
}

fn process_of(pid: u32) -> Option<HeldFile> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
    HeldFile::open(|| Ok(pidfd_open(pid, PidfdFlags::empty())?.into())).ok()
}

fn has_exited(process: &HeldFile) -> bool {
    let mut ask = [PollFd::new(process, PollFlags::IN)];
    matches!(poll(&mut ask, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..)) && ask[0].revents().contains(PollFlags::IN)
}
