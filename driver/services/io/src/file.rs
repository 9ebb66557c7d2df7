//! An open file on another node, and the metadata of files.

use super::client::Link;
use super::connection::At;
use super::wire::{EntryHead, Facts, Op, Request};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use zerocopy::FromBytes;

/// A file that an I/O node has open for this one. Dropping it closes the file. `Send` and `Sync`; calls of several threads take
/// turns.
///
/// [`Read`], [`Write`] and [`Seek`] use a cursor that this value keeps. A file opened for appending is written at its end.
/// Large reads and writes go in pieces. If one piece fails, pieces behind it may have been written nevertheless. Calls block
/// until the server has replied.
pub struct IoFile {
    link: Arc<Link>,
    descriptor: u16,
    cursor: u64,
    appends: bool,
    open: bool,
}

impl IoFile {
    pub(super) fn new(link: Arc<Link>, descriptor: u16, appends: bool) -> Self {
        Self { link, descriptor, cursor: 0, appends, open: true }
    }

    /// The number of the file at the server, among those of this client.
    pub fn descriptor(&self) -> u16 {
        self.descriptor
    }

    pub(super) fn request(&self, op: Op) -> Request {
        Request { descriptor: self.descriptor.into(), ..Request::new(op) }
    }

    /// Sends a request, and waits for its reply. Returns the result.
    fn call(&self, request: Request) -> io::Result<u64> {
        Ok(self.link.enter().call(request, &[])?.0.result.get() as u64)
    }

    fn at(&self, offset: u64) -> At {
        At { descriptor: self.descriptor, offset }
    }

    /// Reads from `offset` on, without moving the cursor, until `into` is full or the file ends. Returns how many bytes were
    /// read.
    ///
    /// # Errors
    /// As `pread(2)`.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        checked(offset)?;
        self.link.enter().read(self.at(offset), into)
    }

    /// Reads from `offset` on until `into` is full, without moving the cursor.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at); [`UnexpectedEof`](io::ErrorKind::UnexpectedEof) if the file ends before.
    pub fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        if self.read_at(into, offset)? < into.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    /// Writes at `offset`, without moving the cursor. Returns how many bytes were written, which are fewer if an error occurred
    /// after the first of them.
    ///
    /// # Errors
    /// As `pwrite(2)`. A file opened for appending is written at its end, whatever `offset` is.
    pub fn write_at(&self, from: &[u8], offset: u64) -> io::Result<usize> {
        checked(offset)?;
        if self.appends {
            // One piece after the other. Several at a time could be appended in any order.
            return self.link.enter().append(self.descriptor, from).map(|(done, _)| done);
        }
        self.link.enter().write(self.at(offset), from)
    }

    /// Writes all bytes at `offset`, without moving the cursor.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    pub fn write_all_at(&self, mut from: &[u8], mut offset: u64) -> io::Result<()> {
        while !from.is_empty() {
            match self.write_at(from, offset)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                done => {
                    from = &from[done..];
                    offset += done as u64;
                }
            }
        }
        Ok(())
    }

    /// The metadata of the file.
    ///
    /// # Errors
    /// As `fstat(2)`.
    pub fn metadata(&self) -> io::Result<IoMetadata> {
        let mut connection = self.link.enter();
        let (_, bytes) = connection.call(self.request(Op::Inspect), &[])?;
        metadata(bytes)
    }

    /// Sets the length of the file, in bytes.
    ///
    /// # Errors
    /// As `ftruncate(2)`.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        self.call(Request { offset: len.into(), ..self.request(Op::Resize) }).map(drop)
    }

    /// Waits until all that was written is on the server's medium.
    ///
    /// # Errors
    /// As `fsync(2)`.
    pub fn sync_all(&self) -> io::Result<()> {
        self.call(self.request(Op::Sync)).map(drop)
    }

    /// As [`sync_all`](Self::sync_all), but leaves out metadata such as times.
    ///
    /// # Errors
    /// As `fdatasync(2)`.
    pub fn sync_data(&self) -> io::Result<()> {
        self.call(Request { length: 1.into(), ..self.request(Op::Sync) }).map(drop)
    }

    /// Closes the file and returns the system's error, which a drop ignores.
    ///
    /// # Errors
    /// As `close(2)`. The file is closed nevertheless.
    pub fn close(mut self) -> io::Result<()> {
        self.open = false;
        self.call(self.request(Op::Close)).map(drop)
    }
}

impl Drop for IoFile {
    fn drop(&mut self) {
        if self.open && !doorbell_shm::space::forked() {
            let request = self.request(Op::Close);
            self.link.enter().tell(request);
        }
    }
}

impl Read for IoFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let done = self.read_at(into, self.cursor)?;
        self.cursor += done as u64;
        Ok(done)
    }
}

impl Write for IoFile {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        if self.appends {
            let (done, cursor) = self.link.enter().append(self.descriptor, from)?;
            self.cursor = cursor;
            return Ok(done);
        }
        let done = self.write_at(from, self.cursor)?;
        self.cursor += done as u64;
        Ok(done)
    }

    /// Does nothing: writes are not buffered here.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for IoFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let to = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.cursor.checked_add_signed(by),
            SeekFrom::End(by) => {
                let whence = libc::SEEK_END as u32;
                Some(self.call(Request { offset: (by as u64).into(), length: whence.into(), ..self.request(Op::Seek) })?)
            }
        };
        self.cursor = to.filter(|to| *to <= i64::MAX as u64).ok_or_else(|| io::Error::from(Errno::INVAL))?;
        Ok(self.cursor)
    }
}

impl std::fmt::Debug for IoFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IoFile").field("server", &self.link.server).field("descriptor", &self.descriptor).finish_non_exhaustive()
    }
}

/// Refuses offsets beyond the system's range, as the system does.
fn checked(offset: u64) -> io::Result<()> {
    if offset > i64::MAX as u64 { Err(Errno::INVAL.into()) } else { Ok(()) }
}

/// The metadata of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoMetadata(Facts);

pub(super) fn metadata(bytes: &[u8]) -> io::Result<IoMetadata> {
    Facts::read_from_prefix(bytes).map(|(facts, _)| IoMetadata(facts)).map_err(|_| Errno::PROTO.into())
}

// An empty file is nothing special.
#[allow(clippy::len_without_is_empty)]
impl IoMetadata {
    /// The length in bytes.
    pub fn len(&self) -> u64 {
        self.0.size.get()
    }

    fn kind(&self) -> u32 {
        self.mode() & libc::S_IFMT
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == libc::S_IFREG
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind() == libc::S_IFLNK
    }

    /// Type and permissions, as `st_mode`.
    pub fn mode(&self) -> u32 {
        self.0.mode.get()
    }

    /// The number in the file system.
    pub fn inode(&self) -> u64 {
        self.0.inode.get()
    }

    /// The number of hard links.
    pub fn links(&self) -> u32 {
        self.0.links.get()
    }

    /// How much space the file takes, in blocks of 512 bytes.
    pub fn blocks(&self) -> u64 {
        self.0.blocks.get()
    }

    /// The user id and group id of the owner, on the server.
    pub fn owner(&self) -> (u32, u32) {
        (self.0.user.get(), self.0.group.get())
    }

    /// When the contents last changed, by the server's clock.
    pub fn modified(&self) -> SystemTime {
        time(self.0.modified_s.get(), self.0.modified_ns.get())
    }

    /// When the contents were last read, as far as the file system records that.
    pub fn accessed(&self) -> SystemTime {
        time(self.0.accessed_s.get(), self.0.accessed_ns.get())
    }
}

fn time(s: i64, ns: u32) -> SystemTime {
    let whole = Duration::from_secs(s.unsigned_abs());
    let base = if s >= 0 { SystemTime::UNIX_EPOCH.checked_add(whole) } else { SystemTime::UNIX_EPOCH.checked_sub(whole) };
    // A time that this system's clock can't represent is shown as 1970-01-01.
    base.and_then(|base| base.checked_add(Duration::from_nanos(ns.into()))).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IoEntry {
    name: OsString,
    inode: u64,
    kind: u8,
}

impl IoEntry {
    /// The name, without the directory.
    pub fn file_name(&self) -> &OsStr {
        &self.name
    }

    /// The number in the file system.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Whether it is a regular file. If the file system does not report types, this and the calls below return false.
    pub fn is_file(&self) -> bool {
        self.kind == libc::DT_REG
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == libc::DT_DIR
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind == libc::DT_LNK
    }
}

/// Adds the entries of a reply. A name that leads out of the directory is an error.
pub(super) fn entries(mut bytes: &[u8], all: &mut Vec<IoEntry>) -> io::Result<()> {
    while !bytes.is_empty() {
        let (head, rest) = EntryHead::read_from_prefix(bytes).map_err(|_| Errno::PROTO)?;
        let (name, rest) = rest.split_at_checked(head.len.into()).ok_or(Errno::PROTO)?;
        if name.is_empty() || name.contains(&b'/') || name.contains(&0) || name == b"." || name == b".." {
            return Err(Errno::PROTO.into());
        }
        all.push(IoEntry { name: OsString::from_vec(name.to_vec()), inode: head.inode.get(), kind: head.kind });
        bytes = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;
    use zerocopy::IntoBytes;

    #[test]
    fn entries_that_are_cut_or_lead_elsewhere_are_refused() {
        let entry = |name: &[u8]| {
            let head = EntryHead { inode: 7.into(), kind: libc::DT_REG, len: name.len() as u8 };
            [head.as_bytes(), name].concat()
        };
        let good = [entry(b"a"), entry("ü".as_bytes())].concat();
        let mut all = Vec::new();
        entries(&good, &mut all).unwrap();
        assert_eq!(all.iter().map(|entry| entry.file_name().as_bytes()).collect::<Vec<_>>(), [b"a", "ü".as_bytes()]);
        for cut in (1..good.len()).filter(|cut| *cut != entry(b"a").len()) {
            assert!(entries(&good[..cut], &mut Vec::new()).is_err(), "{cut}");
        }
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0"] {
            assert!(entries(&entry(name), &mut Vec::new()).is_err(), "{name:?}");
        }
    }
}
