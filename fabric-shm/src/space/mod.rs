//! The place where segments live: as files of a directory in memory (`/dev/shm`), or in the heap of one process.
//!
//! In both, segments have names, lengths, identities and owners that live or do not, and each domain has a lock. A segment is
//! created, named or removed only under the lock of its domain. The one exception is the file of a pair of nodes: its two ends
//! create it without the lock, for which a sender could not wait.

mod fork;
mod heap;
mod name;
mod posix;

use crate::error::ShmError;
use crate::segment::{HeapBlock, Segment};
pub(crate) use fork::word as fork_word;
pub(crate) use fork::{HeldFile, watch};
pub use fork::{Permission, forked};
pub use heap::HeapSpace;
pub(crate) use name::{Names, Part, parse, valid_device_name, valid_domain_name};
pub use posix::PosixSpace;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// The place where segments live. Nodes that are to meet must use the same space. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Space {
    /// In a directory, for all processes of one user; see [`Space::posix`].
    Posix(PosixSpace),
    /// In the heap of one process, for tests. The nodes are threads, and everything above is the same code.
    Heap(Arc<HeapSpace>),
}

impl Space {
    /// `/dev/shm`.
    pub fn posix() -> Self {
        Self::posix_at("/dev/shm")
    }

    /// Another directory. It should be on a tmpfs: elsewhere everything works, but the system writes the memory back to a disk.
    pub fn posix_at(directory: impl Into<PathBuf>) -> Self {
        Self::Posix(PosixSpace::new(directory.into()))
    }

    /// A new space in the heap, unlimited in size.
    pub fn heap() -> Self {
        Self::Heap(Arc::new(HeapSpace::with_capacity(usize::MAX)))
    }

    /// The free bytes; `None` if the space has no limit, or does not report it.
    pub fn free_bytes(&self) -> Option<u64> {
        match self {
            Self::Posix(space) => space.free(),
            Self::Heap(_) => None,
        }
    }

    /// The user that owns these domains. Part of every name.
    pub(crate) fn uid(&self) -> u32 {
        match self {
            Self::Posix(_) => nix::unistd::geteuid().as_raw(),
            Self::Heap(_) => 0,
        }
    }

    /// Takes the lock of a domain, waiting until `deadline`.
    pub(crate) fn lock(&self, operation: &'static str, names: &Names, deadline: Instant) -> Result<DomainLock, ShmError> {
        self.lock_or(operation, names, deadline, true).map(|lock| lock.expect("created if there was none"))
    }

    /// Like [`lock`](Self::lock), but `None` if the domain has no lock file, which its last node removes. A heap always has the lock.
    pub(crate) fn lock_if_any(
        &self,
        operation: &'static str,
        names: &Names,
        deadline: Instant,
    ) -> Result<Option<DomainLock>, ShmError> {
        self.lock_or(operation, names, deadline, false)
    }

    fn lock_or(
        &self,
        operation: &'static str,
        names: &Names,
        deadline: Instant,
        creates: bool,
    ) -> Result<Option<DomainLock>, ShmError> {
        let kind = match self {
            Self::Posix(space) => space.lock(operation, names, deadline, creates)?.map(|lock| LockKind::Posix { _lock: lock }),
            Self::Heap(space) => Some(LockKind::Heap { _lock: space.lock(operation, names, deadline)? }),
        };
        Ok(kind.map(|kind| DomainLock { space: self.clone(), names: names.clone(), kind }))
    }

    /// Opens the segment with this name; `None` if there is none.
    pub(crate) fn open(&self, name: &str) -> Result<Option<OpenFile>, ShmError> {
        match self {
            Self::Posix(space) => space.open(name),
            Self::Heap(space) => Ok(space.open(name).map(OpenFile::Heap)),
        }
    }

    /// Opens the file of a pair, and creates it with `bytes` zeroed bytes if there is none. Takes no lock: of several processes that
    /// create it at once, one succeeds, and the others open its file. The file can [grow](Self::grow) to `most` bytes.
    pub(crate) fn open_or_create(&self, names: &Names, name: &str, bytes: usize, most: usize) -> Result<OpenFile, ShmError> {
        // In the heap a segment cannot grow.
        let bytes = if matches!(self, Self::Heap(_)) { most } else { bytes };
        for _ in 0..4 {
            if let Some(file) = self.open(name)? {
                if file.len() >= bytes as u64 {
                    return Ok(file);
                }
                // Another process truncated it. A process that has it mapped notices, and opens this one's successor.
                self.remove(name, file.identity())?;
            }
            let new = NewSegment { name, bytes, owned: false, init: &|_| () };
            let created = match self {
                Self::Posix(space) => space.create(names, &new),
                Self::Heap(space) => space.create(&new),
            };
            match created {
                Err(error) if !error.is_os(libc::EEXIST) => return Err(error),
                _ => {}
            }
        }
        // Another process removes it again and again.
        Err(ShmError::os("open lanes", name, io::Error::from_raw_os_error(libc::ENOENT)))
    }

    /// Removes a name outside the domain's lock, if it still names that segment.
    pub(crate) fn remove(&self, name: &str, identity: Identity) -> Result<bool, ShmError> {
        match self {
            Self::Posix(space) => space.remove(name, Some(identity)),
            Self::Heap(space) => Ok(space.remove(name, Some(identity))),
        }
    }

    /// The segment that has this name now.
    pub(crate) fn identity(&self, name: &str) -> Option<Identity> {
        match self {
            Self::Posix(space) => space.look(name).map(|look| look.identity),
            Self::Heap(space) => space.open(name).map(|file| file.identity()),
        }
    }

    /// Makes a segment at least `bytes` bytes long, and reserves their memory. Two processes may do that at once.
    pub(crate) fn grow(&self, name: &str, identity: Identity, bytes: usize) -> Result<(), ShmError> {
        let Self::Posix(space) = self else { return Ok(()) };
        // The other end may have done it, and then this process needs no descriptor.
        if space.look(name).is_some_and(|look| look.identity == identity && look.has(bytes as u64)) {
            return Ok(());
        }
        match space.open(name)? {
            Some(OpenFile::Posix(file)) if file.identity() == identity => space.extend(file.file(), name, bytes),
            _ => Err(ShmError::os("make longer", name, io::Error::from_raw_os_error(libc::ENOENT))),
        }
    }

    /// Whether a segment lacks a part of its first `bytes` bytes, so that another process truncated it. False if it has no name any
    /// more. One or two system calls.
    pub(crate) fn lacks(&self, name: &str, identity: Identity, bytes: u64) -> bool {
        let Self::Posix(space) = self else { return false };
        space.look(name).is_some_and(|look| look.identity == identity && !look.has(bytes))
    }

    /// The names of all files of this user's domains.
    pub(crate) fn list(&self) -> Result<Vec<String>, ShmError> {
        match self {
            Self::Posix(space) => space.list(self.uid()),
            Self::Heap(space) => Ok(space.names()),
        }
    }
}

/// The right to create, name and remove the segments of one domain. It ends when the value is dropped.
pub(crate) struct DomainLock {
    space: Space,
    names: Names,
    kind: LockKind,
}

enum LockKind {
    Posix { _lock: posix::LockFile },
    Heap { _lock: heap::LockFlag },
}

impl DomainLock {
    pub fn names(&self) -> &Names {
        &self.names
    }

    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Creates a segment of `bytes` zeroed bytes, lets `init` fill it in, and only then gives it its name: any process that can
    /// open it sees it whole. With `owned`, it counts as held until the [`Hold`] is dropped or the process dies.
    pub fn create(&self, name: &str, bytes: usize, owned: bool, init: &dyn Fn(&Segment)) -> Result<Created, ShmError> {
        let new = NewSegment { name, bytes, owned, init };
        match &self.space {
            Space::Posix(space) => space.create(&self.names, &new),
            Space::Heap(space) => space.create(&new),
        }
    }

    /// Removes a name; with `identity`, only if it still names that segment. Returns whether it did.
    pub fn remove(&self, name: &str, identity: Option<Identity>) -> Result<bool, ShmError> {
        match &self.space {
            Space::Posix(space) => space.remove(name, identity),
            Space::Heap(space) => Ok(space.remove(name, identity)),
        }
    }

    /// Releases the lock and removes its file. For the last node of a domain. Waiters for the lock notice.
    pub fn dissolve(self) -> Result<bool, ShmError> {
        match &self.kind {
            LockKind::Posix { .. } => self.remove(&self.names.lock(), None),
            LockKind::Heap { .. } => Ok(false),
        }
    }
}

/// Tells a segment from a later one with the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub device: u64,
    pub inode: u64,
}

/// A segment to be created: see [`DomainLock::create`].
pub(crate) struct NewSegment<'a> {
    name: &'a str,
    bytes: usize,
    owned: bool,
    init: &'a dyn Fn(&Segment),
}

/// A segment that was just created and named.
#[derive(Debug)]
pub(crate) struct Created {
    pub segment: Segment,
    pub identity: Identity,
    pub hold: Option<Hold>,
}

/// While it exists, the segment's owner counts as alive.
#[derive(Debug)]
pub(crate) enum Hold {
    /// The open file whose first byte is locked.
    Posix(posix::PosixFile),
    /// The flag that the owner lives.
    Heap(Arc<AtomicBool>),
}

impl Hold {
    /// The descriptor by which the system can tell which process holds the segment; -1 if there is none.
    pub fn descriptor(&self) -> i32 {
        match self {
            Self::Posix(file) => file.file().as_raw_fd(),
            Self::Heap(_) => -1,
        }
    }

    /// Whether the segment has its original length and all its memory, so that no process truncated it, not even for a moment.
    /// Only tmpfs shows a momentary truncation. One system call; if the system does not answer, the segment counts as whole.
    pub fn is_whole(&self) -> bool {
        match self {
            Self::Posix(file) => file.is_whole().unwrap_or(true),
            Self::Heap(_) => true,
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        match self {
            // Release: a process that sees the owner dead sees everything that it wrote.
            Self::Heap(alive) => alive.store(false, Ordering::Release),
            // Closing the descriptor is not enough: a mapping keeps the open file, and so the lock.
            Self::Posix(file) if !forked() => posix::unlock(file.file()),
            Self::Posix(_) => {}
        }
    }
}

/// A segment opened by name.
#[derive(Debug)]
pub(crate) enum OpenFile {
    Posix(posix::PosixFile),
    Heap(heap::HeapFile),
}

impl OpenFile {
    /// Its length in bytes, according to the system.
    pub fn len(&self) -> u64 {
        match self {
            Self::Posix(file) => file.len(),
            Self::Heap(file) => file.block.len() as u64,
        }
    }

    /// The bytes that had memory when it was opened. They are fewer than its length if it has holes and the file system can tell.
    pub fn reserved(&self) -> u64 {
        match self {
            Self::Posix(file) => file.reserved(),
            Self::Heap(_) => self.len(),
        }
    }

    /// Tells it from a later one with the same name.
    pub fn identity(&self) -> Identity {
        match self {
            Self::Posix(file) => file.identity(),
            Self::Heap(file) => file.identity(),
        }
    }

    /// Maps its first `len` bytes, of which the file may have fewer: those behind its end may not be touched before it
    /// [grows](Space::grow).
    pub fn map_ahead(&self, len: usize) -> io::Result<Segment> {
        match self {
            Self::Posix(file) => file.map(0, len, true),
            Self::Heap(_) => self.map(0, len),
        }
    }

    /// Whether process `pid` holds it by its descriptor `fd`, according to the system.
    pub fn is_held_by(&self, pid: libc::pid_t, fd: i32) -> bool {
        match self {
            Self::Posix(file) => posix::is_held_by(file.identity(), pid, fd),
            Self::Heap(_) => false,
        }
    }

    /// Whether its owner lives. Never blocks.
    pub fn is_held(&self) -> io::Result<bool> {
        match self {
            Self::Posix(file) => file.is_held(),
            Self::Heap(file) => Ok(file.owner.as_ref().is_some_and(|alive| alive.load(Ordering::Acquire))),
        }
    }

    /// Maps a part of it, which must be within its length; `offset` must be a multiple of a page.
    pub fn map(&self, offset: usize, len: usize) -> io::Result<Segment> {
        self.check_part(offset, len)?;
        match self {
            Self::Posix(file) => file.map(offset, len, true),
            Self::Heap(file) => {
                Segment::heap(file.block.clone(), offset, len).ok_or(io::Error::from(io::ErrorKind::InvalidInput))
            }
        }
    }

    /// Like [`map`](Self::map), but read-only. In the heap only the caller's discipline ensures that.
    pub fn map_read(&self, offset: usize, len: usize) -> io::Result<Segment> {
        match self {
            Self::Heap(_) => self.map(offset, len),
            Self::Posix(file) => {
                self.check_part(offset, len)?;
                file.map(offset, len, false)
            }
        }
    }

    fn check_part(&self, offset: usize, len: usize) -> io::Result<()> {
        if offset.checked_add(len).is_none_or(|end| end as u64 > self.len()) || len == 0 {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        Ok(())
    }

    /// A copy of its first bytes, `limit` at most, so that no process can truncate them away meanwhile.
    pub fn snapshot(&self, limit: usize) -> io::Result<Option<Segment>> {
        let len = usize::try_from(self.len()).unwrap_or(usize::MAX).min(limit);
        match self {
            Self::Heap(file) => Ok(Segment::heap(file.block.clone(), 0, len)),
            Self::Posix(file) => {
                use std::os::unix::fs::FileExt;
                let Some(mut block) = HeapBlock::new(len) else { return Ok(None) };
                let file: &File = file.file();
                let (bytes, mut done) = (block.bytes_mut(), 0);
                while done < len {
                    match file.read_at(&mut bytes[done..], done as u64)? {
                        0 => break,
                        read => done += read,
                    }
                }
                Ok(Segment::heap(Arc::new(block), 0, len))
            }
        }
    }
}
