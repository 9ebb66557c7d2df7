//! The exported directory, which paths can't leave.
//!
//! The system resolves every path (`openat2` with `RESOLVE_BENEATH` and `RESOLVE_NO_MAGICLINKS`). A path that leads out by
//! `..`, a link or because it is absolute fails with `EXDEV`, even if another process renames directories meanwhile. Removing
//! and inspecting work on a name in a directory that was opened in this way.

use super::wire::{Facts, PATH_MAX};
use io_uring::types::OpenHow;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::cell::Cell;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);
/// How often a path is tried again if another process renames a directory on the way.
pub(super) const TRIES: u32 = 16;
/// The flags that a client may use. All others are refused, so that new flags of a later system do not come in by chance.
const ALLOWED: OFlags = OFlags::RDWR
    .union(OFlags::WRONLY)
    .union(OFlags::APPEND)
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::TRUNC)
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::DSYNC)
    .union(OFlags::SYNC)
    .union(OFlags::NOATIME);

/// File systems whose files have effects when they are opened, read or written. The numbers are those of `statfs(2)`: proc,
/// sysfs, debugfs, tracefs, securityfs, configfs, both of cgroups, bpf, efivarfs, selinuxfs, pstore and devpts.
const OF_THE_KERNEL: [u32; 13] = [
    0x9fa0,
    0x6265_6572,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0x6265_6570,
    0x0027_e0eb,
    0x6367_7270,
    0xcafe_4a11,
    0xde5e_81e4,
    0xf97c_ff8c,
    0x6165_676c,
    0x1cd1,
];

/// The directory that is served.
#[derive(Debug)]
pub(super) struct Export {
    root: OwnedFd,
    read_only: bool,
    resolve: ResolveFlags,
    /// The file system that was queried last, and its kind.
    medium: Cell<Option<(u64, u32)>>,
}

/// The kind of an opened file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A file whose contents are in memory: no call on it waits for a medium.
    InMemory,
    /// Any other file.
    File,
    Directory,
}

impl Export {
    pub(super) fn open(directory: &Path, read_only: bool, other_file_systems: bool) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(directory, flags, Mode::empty())?;
        // Fails now, not at the first request, if the system lacks `openat2`.
        rustix::fs::openat2(&root, c".", flags, Mode::empty(), RESOLVE)?;
        if OF_THE_KERNEL.contains(&(rustix::fs::fstatfs(&root)?.f_type as u32)) {
            let what = format!(
                "{} is on a file system of the kernel, whose files have effects when they are read or written; serve another directory",
                directory.display()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let resolve = if other_file_systems { RESOLVE } else { RESOLVE.union(ResolveFlags::NO_XDEV) };
        Ok(Self { root, read_only, resolve, medium: Cell::new(None) })
    }

    /// The system's parameters for opening a file.
    pub(super) fn open_how(&self, (flags, mode): (OFlags, Mode)) -> OpenHow {
        OpenHow::new().flags(flags.bits().into()).mode(mode.bits().into()).resolve(self.resolve.bits())
    }

    /// Opens a path only to inspect it or to look up names in it.
    fn find(&self, path: impl rustix::path::Arg + Copy, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
        let mut found = Err(Errno::AGAIN);
        for _ in 0..TRIES {
            found = rustix::fs::openat2(&self.root, path, flags, Mode::empty(), self.resolve);
            if !matches!(found, Err(Errno::AGAIN)) {
                break;
            }
        }
        found
    }

    pub(super) fn root(&self) -> RawFd {
        self.root.as_raw_fd()
    }

    /// The flags and mode for opening a path, if they are allowed. An opened file never makes the server wait, and never
    /// becomes its terminal.
    pub(super) fn how(&self, value: u64) -> Result<(OFlags, Mode), Errno> {
        let flags = OFlags::from_bits_retain(value as u32);
        let mode = Mode::from_bits((value >> 32) as u32).filter(|mode| mode.bits() & !0o777 == 0).ok_or(Errno::INVAL)?;
        let access = flags & OFlags::ACCMODE;
        if !ALLOWED.contains(flags) || access == OFlags::ACCMODE {
            return Err(Errno::INVAL);
        }
        let changes = access != OFlags::RDONLY || flags.intersects(OFlags::CREATE | OFlags::TRUNC);
        if self.read_only && changes {
            return Err(Errno::ROFS);
        }
        let mode = if flags.contains(OFlags::CREATE) { mode } else { Mode::empty() };
        Ok((flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC, mode))
    }

    /// Fails if the directory is served read-only.
    pub(super) fn may_change(&self) -> Result<(), Errno> {
        if self.read_only { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// The kind of an opened file, if it is a regular file or a directory.
    pub(super) fn admit(&self, file: &OwnedFd) -> Result<Kind, Errno> {
        let Stat { st_mode, st_dev, .. } = rustix::fs::fstat(file)?;
        match FileType::from_raw_mode(st_mode) {
            FileType::Directory => Ok(Kind::Directory),
            FileType::RegularFile => {
                // With `O_NONBLOCK`, io_uring might refuse to wait for the medium.
                let flags = rustix::fs::fcntl_getfl(file)?;
                rustix::fs::fcntl_setfl(file, flags - OFlags::NONBLOCK)?;
                // `TMPFS_MAGIC` and `RAMFS_MAGIC`.
                Ok(if matches!(self.medium_of(file, st_dev)?, 0x0102_1994 | 0x8584_58f6) { Kind::InMemory } else { Kind::File })
            }
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// Whether a path that was inspected may be opened. `found` is its descriptor, or a negative errno.
    pub(super) fn may_open(&self, found: i64, flags: OFlags) -> Result<(), Errno> {
        let Ok(found) = i32::try_from(found) else { return Err(Errno::IO) };
        if found < 0 {
            let errno = Errno::from_raw_os_error(-found);
            return if errno == Errno::NOENT && flags.contains(OFlags::CREATE) { Ok(()) } else { Err(errno) };
        }
        // SAFETY: the system just made it, for nobody else.
        let found = unsafe { OwnedFd::from_raw_fd(found) };
        let Stat { st_mode, st_dev, .. } = rustix::fs::fstat(&found)?;
        match FileType::from_raw_mode(st_mode) {
            FileType::RegularFile if OF_THE_KERNEL.contains(&self.medium_of(&found, st_dev)?) => Err(Errno::OPNOTSUPP),
            // For a link that is not followed, the open itself reports the error.
            FileType::RegularFile | FileType::Directory | FileType::Symlink => Ok(()),
            _ => Err(Errno::OPNOTSUPP),
        }
    }

    /// The kind of file system that a file is on.
    fn medium_of(&self, file: &OwnedFd, st_dev: u64) -> Result<u32, Errno> {
        if let Some((_, medium)) = self.medium.get().filter(|(device, _)| *device == st_dev) {
            return Ok(medium);
        }
        let medium = rustix::fs::fstatfs(file)?.f_type as u32;
        self.medium.set(Some((st_dev, medium)));
        Ok(medium)
    }

    /// The metadata of a path. Links in it are followed while they stay in the directory.
    pub(super) fn stat(&self, path: &CStr, follow: bool) -> Result<Facts, Errno> {
        let last = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        facts(&self.find(path, last)?)
    }

    /// Removes a file by name. A link is removed itself, never its target.
    pub(super) fn remove(&self, path: &CStr) -> Result<(), Errno> {
        self.may_change()?;
        let bytes = path.to_bytes();
        let (parent, name) = match bytes.iter().rposition(|byte| *byte == b'/') {
            Some(0) => return Err(Errno::XDEV),
            Some(at) => (&bytes[..at], &bytes[at + 1..]),
            None => (&b"."[..], bytes),
        };
        if name.is_empty() || name == b"." || name == b".." {
            return Err(if bytes.is_empty() { Errno::NOENT } else { Errno::ISDIR });
        }
        let parent = self.find(parent, OFlags::DIRECTORY)?;
        rustix::fs::unlinkat(&parent, name, AtFlags::empty())
    }
}

/// The flags for inspecting a path before it is opened with these flags.
pub(super) fn look(flags: OFlags) -> OFlags {
    (flags & (OFlags::NOFOLLOW | OFlags::DIRECTORY)) | OFlags::PATH | OFlags::CLOEXEC
}

/// The metadata of an open file.
pub(super) fn facts(file: impl AsFd) -> Result<Facts, Errno> {
    let stat = rustix::fs::fstat(file)?;
    let Stat { st_size, st_blocks, st_ino, st_mode, st_nlink, st_uid, st_gid, .. } = stat;
    Ok(Facts {
        size: (st_size as u64).into(),
        blocks: (st_blocks as u64).into(),
        inode: st_ino.into(),
        mode: st_mode.into(),
        links: u32::try_from(st_nlink).unwrap_or(u32::MAX).into(),
        user: st_uid.into(),
        group: st_gid.into(),
        modified_s: stat.st_mtime.into(),
        accessed_s: stat.st_atime.into(),
        changed_s: stat.st_ctime.into(),
        modified_ns: (stat.st_mtime_nsec as u32).into(),
        accessed_ns: (stat.st_atime_nsec as u32).into(),
        changed_ns: (stat.st_ctime_nsec as u32).into(),
        spare: 0.into(),
    })
}

/// A path as the system takes it. `room` has space for one more byte.
pub(super) fn path(room: &mut [u8], len: usize) -> Result<&CStr, Errno> {
    if len >= PATH_MAX || len >= room.len() {
        return Err(Errno::NAMETOOLONG);
    }
    room[len] = 0;
    if len == 0 {
        return Err(Errno::NOENT);
    }
    // A NUL before the end: no name contains one.
    CStr::from_bytes_with_nul(&room[..=len]).map_err(|_| Errno::INVAL)
}
