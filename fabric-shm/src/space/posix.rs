//! Segments as files of a directory, usually `/dev/shm`.
//!
//! A segment is created without a name, reserved, mapped, initialised, locked, and then linked. A process killed at any of these
//! steps leaves nothing behind, and an existing name always denotes a whole segment. Where files need a name at once, an unfinished
//! one may stay until the next node joins. A lock on a file's first byte (an "open file
//! description" lock) means that the file's owner lives. The kernel drops it however the owner dies.

use super::fork::{HeldFile, forked, gated};
use super::{Created, Hold, Identity, Names, NewSegment, OpenFile};
use crate::error::ShmError;
use crate::layout::random;
use crate::mapping::Mapping;
use crate::segment::Segment;
use doorbell_fabric::world;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, FallocateFlags, FcntlArg, RenameFlags, fcntl, renameat2};
use nix::sys::statfs::{Statfs, TMPFS_MAGIC, fstatfs, statfs};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A file, as its name shows it.
pub(super) struct Look {
    pub identity: Identity,
    pub len: u64,
    /// See [`reserved`].
    pub reserved: u64,
}

impl Look {
    /// Whether it has its first bytes, and memory for as many.
    pub fn has(&self, bytes: u64) -> bool {
        self.len >= bytes && self.reserved >= bytes
    }
}

/// A directory in which segments are files.
#[derive(Clone, Debug)]
pub struct PosixSpace {
    directory: Arc<Path>,
    /// Whether to try first to create files without a name.
    nameless: bool,
}

impl PosixSpace {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory: directory.into(), nameless: true }
    }

    /// A space that behaves as on a file system without `O_TMPFILE`.
    #[cfg(test)]
    pub(crate) fn without_nameless_files(directory: PathBuf) -> Self {
        Self { directory: directory.into(), nameless: false }
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    pub(super) fn list(&self, uid: u32) -> Result<Vec<String>, ShmError> {
        let fault = |error| ShmError::os("list", self.directory.display().to_string(), error);
        let prefix = format!("doorbell.{uid}.");
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(fault)? {
            if let Ok(name) = entry.map_err(fault)?.file_name().into_string()
                && name.starts_with(&prefix)
            {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    pub(super) fn open(&self, name: &str) -> Result<Option<OpenFile>, ShmError> {
        let path = self.path(name);
        // Where the directory is mounted read-only, a process can still read what others show.
        let open = || match existing().open(&path) {
            Err(error) if error.raw_os_error() == Some(libc::EROFS) => existing().write(false).open(&path),
            result => result,
        };
        match HeldFile::open(open) {
            Ok(file) => Ok(Some(OpenFile::Posix(PosixFile::new("open segment", name, file)?))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(open_error("open segment", name, error)),
        }
    }

    /// The file that has this name now.
    pub(super) fn look(&self, name: &str) -> Option<Look> {
        let path = self.path(name);
        let found = fs::symlink_metadata(&path).ok()?;
        let identity = Identity { device: found.dev(), inode: found.ino() };
        Some(Look { identity, len: found.len(), reserved: reserved(&found, || statfs(&path)) })
    }

    pub(super) fn remove(&self, name: &str, identity: Option<Identity>) -> Result<bool, ShmError> {
        if identity.is_some() && self.look(name).map(|look| look.identity) != identity {
            return Ok(false);
        }
        match fs::remove_file(self.path(name)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            // Another user's file or a directory cannot be a segment of ours, so it stays.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::EISDIR)) => Ok(false),
            Err(error) => Err(ShmError::os("remove segment", name, error)),
        }
    }

    /// If there is no lock file, `creates` decides whether it is created. If not, the result is `None`.
    pub(super) fn lock(
        &self,
        operation: &'static str,
        names: &Names,
        deadline: Instant,
        creates: bool,
    ) -> Result<Option<LockFile>, ShmError> {
        let name = names.lock();
        let path = self.path(&name);
        let mut pause = Duration::from_micros(100);
        'open: loop {
            let file = match HeldFile::open(|| existing().create(creates).open(&path)) {
                Ok(file) => file,
                Err(error) if !creates && error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(open_error("open lock file", &name, error)),
            };
            let file = PosixFile::new("open lock file", &name, file)?;
            loop {
                if set_lock(&file.file).map_err(|error| ShmError::os("lock", &name, error))? {
                    // The last node to leave removes the file. A lock on a file without a name locks nobody out, so check that
                    // the name still denotes this file.
                    if self.look(&name).is_some_and(|look| look.identity == file.identity) {
                        // For the error message of a waiter that times out. Nothing depends on it, so a full file system does no
                        // harm here.
                        let _ = file.file.write_at(format!("{:<11}\n", std::process::id()).as_bytes(), 0);
                        return Ok(Some(LockFile { file }));
                    }
                    continue 'open;
                }
                let left = deadline.saturating_duration_since(world::now());
                if left.is_zero() {
                    let (domain, holder) = (names.domain_name().to_owned(), last_holder(&file.file));
                    return Err(ShmError::LockTimeout { operation, domain, holder });
                }
                world::sleep(pause.min(left));
                pause = (pause * 2).min(Duration::from_millis(5));
            }
        }
    }

    pub(super) fn create(&self, names: &Names, new: &NewSegment<'_>) -> Result<Created, ShmError> {
        if self.nameless
            && let Some(created) = self.create_nameless(new)?
        {
            return Ok(created);
        }
        // Two processes may have the same number, each in its own namespace.
        let from = self.path(&names.unfinished(random() as u32));
        let fault = |error| ShmError::os("create segment", new.name, error);
        let file = HeldFile::open(|| existing().create_new(true).open(&from)).map_err(fault)?;
        fault_point!("segment.unfinished");
        let created = self.name(&from, file, new);
        if created.is_err() {
            let _ = fs::remove_file(&from);
        }
        created
    }

    /// Returns `None` if this file system has no nameless files, or cannot name them later.
    fn create_nameless(&self, new: &NewSegment<'_>) -> Result<Option<Created>, ShmError> {
        let name = new.name;
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_TMPFILE | libc::O_CLOEXEC).mode(0o600);
        let file = match HeldFile::open(|| options.open(&self.directory)) {
            Ok(file) => file,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) => {
                return Ok(None);
            }
            Err(error) => return Err(ShmError::os("create segment", name, error)),
        };
        let (file, segment) = self.fill(file, new)?;
        let to = self.path(name);
        let proc_path = format!("/proc/self/fd/{}", file.file.as_raw_fd());
        let linked =
            nix::unistd::linkat(AT_FDCWD, proc_path.as_str(), AT_FDCWD, &to, AtFlags::AT_SYMLINK_FOLLOW).or_else(|error| {
                match error {
                    // There is no /proc here: link by descriptor, which older kernels allow only to privileged processes.
                    Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES => {
                        nix::unistd::linkat(&*file.file, "", AT_FDCWD, &to, AtFlags::AT_EMPTY_PATH)
                    }
                    error => Err(error),
                }
            });
        match linked {
            Ok(()) => Ok(Some(file.created(segment, new.owned))),
            Err(Errno::ENOENT | Errno::EXDEV | Errno::EPERM | Errno::EOPNOTSUPP) => Ok(None),
            Err(error) => Err(ShmError::os("name segment", name, error)),
        }
    }

    /// Fills a file and gives it its name in place of its first one. Replaces no other file.
    fn name(&self, from: &Path, file: HeldFile, new: &NewSegment<'_>) -> Result<Created, ShmError> {
        let (file, segment) = self.fill(file, new)?;
        let to = self.path(new.name);
        match fs::hard_link(from, &to) {
            Ok(()) => _ = fs::remove_file(from),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(ShmError::os("name segment", new.name, error));
            }
            // A file system without links.
            Err(_) => renameat2(AT_FDCWD, from, AT_FDCWD, &to, RenameFlags::RENAME_NOREPLACE)
                .map_err(|error| ShmError::os("name segment", new.name, error))?,
        }
        Ok(file.created(segment, new.owned))
    }

    /// The steps between creating a file and naming it.
    fn fill(&self, file: HeldFile, new: &NewSegment<'_>) -> Result<(PosixFile, Segment), ShmError> {
        let NewSegment { name, bytes, owned, init } = *new;
        self.reserve(&file, name, bytes)?;
        let file = PosixFile::new("create segment", name, file)?;
        let segment = file.map(0, bytes, true).map_err(|error| ShmError::os("map segment", name, error))?;
        init(&segment);
        if owned && !set_lock(&file.file).map_err(|error| ShmError::os("lock segment", name, error))? {
            return Err(ShmError::os("lock segment", name, io::Error::from_raw_os_error(libc::EAGAIN)));
        }
        fault_point!("segment.nameless");
        Ok((file, segment))
    }

    /// Reserves all the memory now, so that a full file system is an error here and not a signal later.
    fn reserve(&self, file: &File, name: &str, bytes: usize) -> Result<(), ShmError> {
        // Filling the file system up before failing would disturb others.
        if self.free().is_some_and(|free| free < bytes as u64) {
            return Err(self.no_space(name, bytes));
        }
        let Ok(length) = libc::off_t::try_from(bytes) else { return Err(self.no_space(name, bytes)) };
        loop {
            match nix::fcntl::posix_fallocate(file, 0, length) {
                Ok(()) => return Ok(()),
                Err(Errno::EINTR) => continue,
                Err(error) => {
                    return Err(match error {
                        Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG => self.no_space(name, bytes),
                        error => ShmError::os("reserve memory for segment", name, error),
                    });
                }
            }
        }
    }

    /// Makes a file that is in use longer, and reserves that. Only what the system itself can do: the C library's emulation writes
    /// to bytes that others use.
    pub(super) fn extend(&self, file: &File, name: &str, bytes: usize) -> Result<(), ShmError> {
        let has = file.metadata().map_err(|error| ShmError::os("make longer", name, error))?.len();
        let more = (bytes as u64).saturating_sub(has);
        if self.free().is_some_and(|free| free < more) {
            return Err(self.no_space(name, more as usize));
        }
        let whole = FallocateFlags::empty();
        match nix::fcntl::fallocate(file, whole, 0, bytes as libc::off_t) {
            Ok(()) => Ok(()),
            Err(Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG) => Err(self.no_space(name, more as usize)),
            Err(error) => Err(ShmError::os("make longer", name, error)),
        }
    }

    /// The bytes free for this user; `None` if the file system has no limit or does not report it.
    pub fn free(&self) -> Option<u64> {
        let stat = nix::sys::statvfs::statvfs(&*self.directory).ok().filter(|stat| stat.blocks() > 0)?;
        Some(stat.blocks_available().saturating_mul(stat.fragment_size()))
    }

    fn no_space(&self, name: &str, bytes: usize) -> ShmError {
        ShmError::NoSpace {
            segment: name.to_owned(),
            wanted: bytes as u64,
            free: self.free().unwrap_or(0),
            directory: self.directory.to_path_buf(),
        }
    }
}

/// Options to open a file that should exist: follow no link, and do not wait if it is a pipe.
fn existing() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC).mode(0o600);
    options
}

fn open_error(operation: &'static str, name: &str, error: io::Error) -> ShmError {
    match error.raw_os_error() {
        Some(libc::ELOOP) => ShmError::NotOurs { operation, object: name.to_owned(), what: "a symbolic link".to_owned() },
        Some(libc::EISDIR | libc::ENXIO) => {
            ShmError::NotOurs { operation, object: name.to_owned(), what: "not a plain file".to_owned() }
        }
        // Any user can make a file with such a name. It must not hide the domains beside it from `ls` and its like.
        Some(libc::EACCES | libc::EPERM) => {
            ShmError::NotOurs { operation, object: name.to_owned(), what: "a file that this user may not open".to_owned() }
        }
        _ => ShmError::os(operation, name, error),
    }
}

fn first_byte() -> libc::flock {
    // SAFETY: a structure of integers, for which zero is a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_len = 1;
    lock
}

/// Locks a file's first byte unless another owner has it. Returns whether it did.
fn set_lock(file: &File) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&first_byte())) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Releases the lock on a file's first byte.
pub(super) fn unlock(file: &File) {
    let mut lock = first_byte();
    lock.l_type = libc::F_UNLCK as libc::c_short;
    if let Err(error) = fcntl(file, FcntlArg::F_OFD_SETLK(&lock)) {
        tracing::warn!(%error, "could not release a file lock; it stays until this process ends");
    }
}

/// Whether a descriptor of another process holds the lock on a file's first byte. The system reports locks by descriptor and not
/// by file. A node's claim about its process counts only once this confirms it.
pub(super) fn is_held_by(file: Identity, pid: libc::pid_t, fd: i32) -> bool {
    let Ok(facts) = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")) else { return false };
    facts.lines().filter_map(|line| line.strip_prefix("lock:")).any(|lock| {
        // The format is "1: OFDLCK ADVISORY  WRITE -1 00:1a:4711 0 0".
        let words: Vec<&str> = lock.split_whitespace().collect();
        let [_, "OFDLCK", _, "WRITE", _, place, "0", _] = words[..] else { return false };
        let mut parts = place.splitn(3, ':');
        let mut hex = || parts.next().and_then(|part| u32::from_str_radix(part, 16).ok());
        let (Some(major), Some(minor)) = (hex(), hex()) else { return false };
        let inode = parts.next().and_then(|part| part.parse().ok());
        file.device == libc::makedev(major, minor) && inode == Some(file.inode)
    })
}

/// The bytes of a file that have memory. They are fewer than its length if it has holes, and reading a hole allocates memory.
/// Only tmpfs counts like this. On other file systems blocks belong to a disk and may be compressed or allocated late, and the
/// system can reclaim what was read of a hole.
fn reserved(found: &Metadata, system: impl FnOnce() -> nix::Result<Statfs>) -> u64 {
    let is_tmpfs = system().is_ok_and(|system| system.filesystem_type() == TMPFS_MAGIC);
    if is_tmpfs { found.blocks().saturating_mul(512) } else { found.len() }
}

fn last_holder(file: &File) -> Option<u32> {
    let mut bytes = [0; 11];
    let read = file.read_at(&mut bytes, 0).ok()?;
    std::str::from_utf8(&bytes[..read]).ok()?.trim().parse().ok().filter(|pid| *pid > 0)
}

/// The lock of a domain, until it is dropped.
pub(super) struct LockFile {
    file: PosixFile,
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // Closing alone is not enough: a child made by a bare `clone` may have the file open too.
        if !forked() {
            unlock(&self.file.file);
        }
    }
}

/// An open segment file.
#[derive(Debug)]
pub(crate) struct PosixFile {
    file: HeldFile,
    identity: Identity,
    len: u64,
    reserved: u64,
}

impl PosixFile {
    fn new(operation: &'static str, name: &str, file: HeldFile) -> Result<Self, ShmError> {
        let found = file.metadata().map_err(|error| ShmError::os(operation, name, error))?;
        let not_ours = |what| Err(ShmError::NotOurs { operation, object: name.to_owned(), what });
        if !found.is_file() {
            return not_ours("not a plain file".to_owned());
        }
        if found.uid() != nix::unistd::geteuid().as_raw() {
            return not_ours(format!("owned by user {}", found.uid()));
        }
        let identity = Identity { device: found.dev(), inode: found.ino() };
        let reserved = reserved(&found, || fstatfs(&*file));
        Ok(Self { file, identity, len: found.len(), reserved })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it still has the length and the memory that it had when it was opened.
    pub fn is_whole(&self) -> io::Result<bool> {
        let found = self.file.metadata()?;
        Ok(found.len() >= self.len && reserved(&found, || fstatfs(&*self.file)) >= self.reserved)
    }

    pub fn is_held(&self) -> io::Result<bool> {
        let mut lock = first_byte();
        fcntl(&*self.file, FcntlArg::F_OFD_GETLK(&mut lock))?;
        Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
    }

    /// Maps a part of it. Without `writable`, a write faults.
    pub fn map(&self, offset: usize, len: usize, writable: bool) -> io::Result<Segment> {
        // No fork may come between mapping and advising: a mapping in a child keeps the open file, and so its owner's lock.
        gated(|| Mapping::new(&self.file, offset, len, writable)).map(Segment::mapped)
    }

    /// The bytes that had memory when it was opened: see [`reserved`].
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    pub fn identity(&self) -> Identity {
        self.identity
    }

    fn created(self, segment: Segment, owned: bool) -> Created {
        let identity = self.identity;
        Created { segment, identity, hold: owned.then_some(Hold::Posix(self)) }
    }
}
