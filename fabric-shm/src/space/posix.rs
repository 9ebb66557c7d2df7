//! Segments as files of a directory, usually `/dev/shm`.
//!
//! A segment is made without a name, reserved, mapped, initialised, locked, and then linked: a process killed at any of
//! these steps leaves nothing, and a name that exists names a whole segment. A lock on a file's first byte (an "open file
//! description" lock) says that the file's owner lives; the kernel drops it however the owner dies.

use super::fork::{HeldFile, forked, gated};
use super::{Created, Hold, Identity, Names, OpenFile};
use crate::error::ShmError;
use crate::mapping::Mapping;
use crate::segment::Segment;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, FcntlArg, fcntl};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A directory in which segments are files.
#[derive(Clone, Debug)]
pub struct PosixSpace {
    directory: Arc<Path>,
    /// Whether to try to make files without a name first.
    nameless: bool,
}

impl PosixSpace {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self { directory: directory.into(), nameless: true }
    }

    /// As on a file system without `O_TMPFILE`.
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
        match HeldFile::open(|| existing().open(&path)) {
            Ok(file) => Ok(Some(OpenFile::Posix(PosixFile::new("open segment", name, file)?))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(open_error("open segment", name, error)),
        }
    }

    pub(super) fn remove(&self, name: &str, identity: Option<Identity>) -> Result<bool, ShmError> {
        let path = self.path(name);
        if let Some(wanted) = identity
            && !fs::symlink_metadata(&path).is_ok_and(|found| Identity { device: found.dev(), inode: found.ino() } == wanted)
        {
            return Ok(false);
        }
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            // Another user's file, or a directory: it can't be a segment of ours, and stays.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES | libc::EISDIR)) => Ok(false),
            Err(error) => Err(ShmError::os("remove segment", name, error)),
        }
    }

    pub(super) fn lock(&self, operation: &'static str, names: &Names, deadline: Instant) -> Result<LockFile, ShmError> {
        let name = names.lock();
        let path = self.path(&name);
        let mut pause = Duration::from_micros(100);
        'open: loop {
            let file = HeldFile::open(|| existing().create(true).open(&path))
                .map_err(|error| open_error("open lock file", &name, error))?;
            let file = PosixFile::new("open lock file", &name, file)?;
            loop {
                if set_lock(&file.file).map_err(|error| ShmError::os("lock", &name, error))? {
                    // The last to leave removes the file: a lock on a file without a name locks nobody out.
                    if fs::symlink_metadata(&path)
                        .is_ok_and(|now| file.identity == (Identity { device: now.dev(), inode: now.ino() }))
                    {
                        // For whoever waits in vain; nothing depends on it, so a full file system does no harm here.
                        let _ = file.file.write_at(format!("{:<11}\n", std::process::id()).as_bytes(), 0);
                        return Ok(LockFile { file });
                    }
                    continue 'open;
                }
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    let (domain, holder) = (names.domain_name().to_owned(), last_holder(&file.file));
                    return Err(ShmError::LockTimeout { operation, domain, holder });
                }
                thread::sleep(pause.min(left));
                pause = (pause * 2).min(Duration::from_millis(5));
            }
        }
    }

    pub(super) fn create(
        &self,
        names: &Names,
        name: &str,
        bytes: usize,
        owned: bool,
        init: &dyn Fn(&Segment),
    ) -> Result<Created, ShmError> {
        if self.nameless
            && let Some(created) = self.create_nameless(name, bytes, owned, init)?
        {
            return Ok(created);
        }
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let unfinished = names.unfinished(NUMBER.fetch_add(1, Ordering::Relaxed));
        let from = self.path(&unfinished);
        let created = self.create_named(&from, name, bytes, owned, init);
        if created.is_err() {
            let _ = fs::remove_file(&from);
        }
        created
    }

    /// `None` if this file system has no nameless files, or no way to name them later.
    fn create_nameless(
        &self,
        name: &str,
        bytes: usize,
        owned: bool,
        init: &dyn Fn(&Segment),
    ) -> Result<Option<Created>, ShmError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_TMPFILE | libc::O_CLOEXEC).mode(0o600);
        let file = match HeldFile::open(|| options.open(&self.directory)) {
            Ok(file) => file,
            Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) => {
                return Ok(None);
            }
            Err(error) => return Err(ShmError::os("create segment", name, error)),
        };
        let (file, segment) = self.fill(file, name, bytes, owned, init)?;
        let to = self.path(name);
        let proc_path = format!("/proc/self/fd/{}", file.file.as_raw_fd());
        let linked =
            nix::unistd::linkat(AT_FDCWD, proc_path.as_str(), AT_FDCWD, &to, AtFlags::AT_SYMLINK_FOLLOW).or_else(|error| {
                match error {
                    // No /proc here: ask by descriptor, which older kernels allow to the privileged only.
                    Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES => {
                        nix::unistd::linkat(&*file.file, "", AT_FDCWD, &to, AtFlags::AT_EMPTY_PATH)
                    }
                    error => Err(error),
                }
            });
        match linked {
            Ok(()) => Ok(Some(file.created(segment, owned))),
            Err(Errno::ENOENT | Errno::EXDEV | Errno::EPERM | Errno::EOPNOTSUPP) => Ok(None),
            Err(error) => Err(ShmError::os("name segment", name, error)),
        }
    }

    fn create_named(
        &self,
        from: &Path,
        name: &str,
        bytes: usize,
        owned: bool,
        init: &dyn Fn(&Segment),
    ) -> Result<Created, ShmError> {
        let fault = |error| ShmError::os("create segment", name, error);
        let file = HeldFile::open(|| existing().create_new(true).open(from)).map_err(fault)?;
        fault_point!("segment.unfinished");
        let (file, segment) = self.fill(file, name, bytes, owned, init)?;
        let to = self.path(name);
        if fs::symlink_metadata(&to).is_ok() {
            return Err(ShmError::os("name segment", name, io::Error::from_raw_os_error(libc::EEXIST)));
        }
        fs::rename(from, &to).map_err(fault)?;
        Ok(file.created(segment, owned))
    }

    /// Everything between making a file and naming it.
    fn fill(
        &self,
        file: HeldFile,
        name: &str,
        bytes: usize,
        owned: bool,
        init: &dyn Fn(&Segment),
    ) -> Result<(PosixFile, Segment), ShmError> {
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

    /// Takes all the memory now, so that a full file system is an error here and not a signal later.
    fn reserve(&self, file: &File, name: &str, bytes: usize) -> Result<(), ShmError> {
        // To fill the file system up only to find that it does not suffice would disturb others.
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

    /// Bytes free for this user; `None` if the file system has no limit or does not say.
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

/// How to open a file that should be there: not through a link, and without waiting should it be a pipe.
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

/// Locks a file's first byte if nobody else has; says whether it did.
fn set_lock(file: &File) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&first_byte())) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Gives the lock on a file's first byte back.
pub(super) fn unlock(file: &File) {
    let mut lock = first_byte();
    lock.l_type = libc::F_UNLCK as libc::c_short;
    if let Err(error) = fcntl(file, FcntlArg::F_OFD_SETLK(&lock)) {
        tracing::warn!(%error, "a lock stays until this process ends");
    }
}

/// Whether a descriptor of another process has the lock on the first byte of a file. The system says so of descriptors, and not of
/// files: what a node says of its process is not believed before.
pub(super) fn is_held_by(file: Identity, pid: libc::pid_t, fd: i32) -> bool {
    let Ok(facts) = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")) else { return false };
    facts.lines().filter_map(|line| line.strip_prefix("lock:")).any(|lock| {
        // As in "1: OFDLCK ADVISORY  WRITE -1 00:1a:4711 0 0".
        let words: Vec<&str> = lock.split_whitespace().collect();
        let [_, "OFDLCK", _, "WRITE", _, place, "0", _] = words[..] else { return false };
        let mut parts = place.splitn(3, ':');
        let mut hex = || parts.next().and_then(|part| u32::from_str_radix(part, 16).ok());
        let (Some(major), Some(minor)) = (hex(), hex()) else { return false };
        let inode = parts.next().and_then(|part| part.parse().ok());
        file.device == libc::makedev(major, minor) && inode == Some(file.inode)
    })
}

/// Bytes of a file for which there is memory: fewer than its length if it has holes, which take memory when they are read. Only tmpfs
/// counts like this: elsewhere blocks are of a disk, compressed or allocated late, and what is read of a hole can be given up again.
fn reserved(file: &File, found: &Metadata) -> u64 {
    let is_tmpfs = nix::sys::statfs::fstatfs(file).is_ok_and(|system| system.filesystem_type() == nix::sys::statfs::TMPFS_MAGIC);
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
        // Not by closing alone: a child made by a bare `clone` may have the file open too.
        if !forked() {
            unlock(&self.file.file);
        }
    }
}

/// An open file of ours.
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
        let reserved = reserved(&file, &found);
        Ok(Self { file, identity, len: found.len(), reserved })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has lost nothing of its length and its memory since it was opened.
    pub fn is_whole(&self) -> io::Result<bool> {
        let found = self.file.metadata()?;
        Ok(found.len() >= self.len && reserved(&self.file, &found) >= self.reserved)
    }

    pub fn is_held(&self) -> io::Result<bool> {
        let mut lock = first_byte();
        fcntl(&*self.file, FcntlArg::F_OFD_GETLK(&mut lock))?;
        Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
    }

    /// Maps a part of it; what is not `writable` is a fault to write.
    pub fn map(&self, offset: usize, len: usize, writable: bool) -> io::Result<Segment> {
        // No fork between mapping and advising: a mapping in a child keeps the open file, and so its owner's lock.
        gated(|| Mapping::new(&self.file, offset, len, writable)).map(Segment::mapped)
    }

    /// Bytes for which there was memory when it was opened: see [`reserved`].
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
