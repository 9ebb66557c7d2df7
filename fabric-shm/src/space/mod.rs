//! Where segments live: as files of a directory that is memory (`/dev/shm`), or in the heap of one process.
//!
//! Both have names, lengths, identities, owners that live or don't, and a lock for each domain. Whatever is made, named
//! or removed is so under the lock of its domain, and not otherwise.

mod fork;
mod heap;
mod name;
mod posix;

use crate::error::ShmError;
use crate::segment::{HeapBlock, Segment};
pub use fork::forked;
pub(crate) use fork::word as fork_word;
pub(crate) use fork::{HeldFile, watch};
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

/// Where segments live. Nodes that are to meet must name the same space. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Space {
    /// In a directory, for all processes of one user; see [`Space::posix`].
    Posix(PosixSpace),
    /// In the heap of one process, for tests: nodes are threads, and everything above is the same code.
    Heap(Arc<HeapSpace>),
}

impl Space {
    /// `/dev/shm`.
    pub fn posix() -> Self {
        Self::posix_at("/dev/shm")
    }

    /// Another directory. It should be on a tmpfs: elsewhere everything works, but memory is written back to a disk.
    pub fn posix_at(directory: impl Into<PathBuf>) -> Self {
        Self::Posix(PosixSpace::new(directory.into()))
    }

    /// A new space in the heap, unlimited in size.
    pub fn heap() -> Self {
        Self::Heap(Arc::new(HeapSpace::new()))
    }

    /// Bytes that are free in it; `None` if it has no limit, or does not say.
    pub fn free_bytes(&self) -> Option<u64> {
        match self {
            Self::Posix(space) => space.free(),
            Self::Heap(_) => None,
        }
    }

    /// The user whose domains these are: part of every name.
    pub(crate) fn uid(&self) -> u32 {
        match self {
            Self::Posix(_) => nix::unistd::geteuid().as_raw(),
            Self::Heap(_) => 0,
        }
    }

    /// Takes the lock of a domain, waiting for it until `deadline`.
    pub(crate) fn lock(&self, operation: &'static str, names: &Names, deadline: Instant) -> Result<DomainLock, ShmError> {
        let kind = match self {
            Self::Posix(space) => LockKind::Posix { _lock: space.lock(operation, names, deadline)? },
            Self::Heap(space) => LockKind::Heap { _lock: space.lock(operation, names, deadline)? },
        };
        Ok(DomainLock { space: self.clone(), names: names.clone(), kind })
    }

    /// Opens what has this name; `None` if nothing has.
    pub(crate) fn open(&self, name: &str) -> Result<Option<OpenFile>, ShmError> {
        match self {
            Self::Posix(space) => space.open(name),
            Self::Heap(space) => Ok(space.open(name).map(OpenFile::Heap)),
        }
    }

    /// The names of everything of this user's domains.
    pub(crate) fn list(&self) -> Result<Vec<String>, ShmError> {
        match self {
            Self::Posix(space) => space.list(self.uid()),
            Self::Heap(space) => Ok(space.names()),
        }
    }
}

/// The right to make, name and remove the segments of one domain, until it is dropped.
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

    /// Makes a segment of `bytes` zeroed bytes, lets `init` fill it in, and only then gives it its name: whoever can open
    /// it sees it whole. With `owned`, it counts as held until the [`Hold`] is dropped or the process dies.
    pub fn create(&self, name: &str, bytes: usize, owned: bool, init: &dyn Fn(&Segment)) -> Result<Created, ShmError> {
        match &self.space {
            Space::Posix(space) => space.create(&self.names, name, bytes, owned, init),
            Space::Heap(space) => space.create(name, bytes, owned, init),
        }
    }

    /// Removes a name; with `identity`, only if it still names that segment. Says whether it did.
    pub fn remove(&self, name: &str, identity: Option<Identity>) -> Result<bool, ShmError> {
        match &self.space {
            Space::Posix(space) => space.remove(name, identity),
            Space::Heap(space) => Ok(space.remove(name, identity)),
        }
    }

    /// Gives the lock back and removes its file: for the last of a domain. Who waits for the lock notices.
    pub fn dissolve(self) -> Result<bool, ShmError> {
        match &self.kind {
            LockKind::Posix { .. } => self.remove(&self.names.lock(), None),
            LockKind::Heap { .. } => Ok(false),
        }
    }
}

/// Tells one segment from another that later has its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub device: u64,
    pub inode: u64,
}

/// A segment just made and named.
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
    /// The flag that says so.
    Heap(Arc<AtomicBool>),
}

impl Hold {
    /// The descriptor by which the system can be asked who holds it; -1 if there is none.
    pub fn descriptor(&self) -> i32 {
        match self {
            Self::Posix(file) => file.file().as_raw_fd(),
            Self::Heap(_) => -1,
        }
    }

    /// Whether the segment is as long as it was made, and has all its memory: nobody truncated it, not even for a moment. A moment is
    /// seen on tmpfs only. One system call; if the system does not answer, nothing says that it is not.
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
            // Release: who sees the owner dead sees all that it wrote.
            Self::Heap(alive) => alive.store(false, Ordering::Release),
            // To close the descriptor is not enough: a mapping keeps the open file, and so the lock.
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
    /// Its length in bytes, as the system knows it.
    pub fn len(&self) -> u64 {
        match self {
            Self::Posix(file) => file.len(),
            Self::Heap(file) => file.block.len() as u64,
        }
    }

    /// Bytes for which there was memory when it was opened: fewer than its length if it has holes, where the file system can tell.
    pub fn reserved(&self) -> u64 {
        match self {
            Self::Posix(file) => file.reserved(),
            Self::Heap(_) => self.len(),
        }
    }

    /// Whether this process holds it by its descriptor `fd`: whether it is the owner, as far as the system says.
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

    /// Maps a part of it, which must be within its length; `offset` in whole pages.
    pub fn map(&self, offset: usize, len: usize) -> io::Result<Segment> {
        self.check_part(offset, len)?;
        match self {
            Self::Posix(file) => file.map(offset, len, true),
            Self::Heap(file) => {
                Segment::heap(file.block.clone(), offset, len).ok_or(io::Error::from(io::ErrorKind::InvalidInput))
            }
        }
    }

    /// As [`map`](Self::map), but only to be read. In the heap that is the caller's word.
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

    /// Its first bytes, `limit` at most, to look at from outside: nobody can truncate them away meanwhile.
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
