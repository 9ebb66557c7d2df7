//! Carries out requests.

use super::clients::Descriptor;
use super::export::{self, Kind};
use super::files::{Begun, Span};
use super::wire::{AT_CURSOR, AT_END, EntryHead, HEAD, IN_MESSAGE, INLINE_MAX, Op, ROOM, Request};
use super::worker::{Worker, add};
use doorbell_engine::kit::elements_of;
use io_uring::types::OpenHow;
use rustix::fs::{FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use zerocopy::IntoBytes;

/// A request, from its arrival until its reply is sent.
#[derive(Default)]
pub(super) struct Job {
    /// The request and the bytes behind it; later the reply and the bytes behind that.
    pub room: Box<[u8]>,
    pub how: Box<OpenHow>,
    pub client: u32,
    pub tag: u64,
    pub op: Op,
    pub quiet: bool,
    /// The bytes behind the reply lie in `room`.
    pub in_message: bool,
    pub at_cursor: bool,
    /// Done by a plain call, which reads less than was asked for only at the end of a file.
    pub was_plain: bool,
    /// The flags and mode for opening the path after it was inspected.
    pub looks_for: Option<(OFlags, Mode)>,
    /// How often it was tried again because another process renamed a directory on the way.
    pub tries: u32,
    /// How many bytes are to be read.
    pub wanted: u32,
    pub descriptor: u16,
    /// The length of a reply that waits for room, in bytes.
    pub reply: usize,
}

impl Job {
    pub fn new() -> Self {
        // One more byte, for the NUL of a path.
        Self { room: vec![0; ROOM + 1].into(), ..Self::default() }
    }
}

/// A reply: the result, the cursor, and how many bytes follow.
pub(super) struct Answer {
    pub result: i64,
    pub value: u64,
    pub follows: usize,
}

impl Answer {
    pub fn of(result: i64) -> Self {
        Self { result, value: 0, follows: 0 }
    }
}

impl From<Errno> for Answer {
    fn from(errno: Errno) -> Self {
        Self::of(-i64::from(errno.raw_os_error()))
    }
}

impl Worker {
    /// Carries out the request, or hands it to the ring and returns `None`.
    #[inline]
    pub(super) fn carry_out(&mut self, job: usize, op: Op, request: &Request, follows: usize) -> Result<Option<i64>, Errno> {
        let Self { clients, jobs, export, files, limits, shown, is_alone, .. } = self;
        let to = &mut jobs[job];
        let client = clients.get(to.client).ok_or(Errno::NOTCONN)?;
        let begun = match op {
            Op::Read | Op::Write => {
                let descriptor = client.descriptor(request.descriptor.get())?;
                let (offset, len) = (request.offset.get(), request.length.get() as usize);
                let offset = (offset != AT_CURSOR).then_some(offset);
                // A file ends where the system's offsets end.
                if offset.is_some_and(|offset| offset.checked_add(len as u64).is_none_or(|end| end > i64::MAX as u64)) {
                    return Err(Errno::INVAL);
                }
                (to.at_cursor, to.wanted) = (offset.is_none(), len as u32);
                to.in_message = request.place.get() == IN_MESSAGE;
                let memory = if to.in_message {
                    if len > INLINE_MAX || (op == Op::Write && len != follows) {
                        return Err(Errno::INVAL);
                    }
                    to.room[HEAD..].as_mut_ptr()
                } else {
                    let staging = client.staging.as_ref().ok_or(Errno::FAULT)?;
                    elements_of(staging, "stage", request.place.get() as usize, len).map_err(|_| Errno::FAULT)?
                };
                // A write usually goes to memory first, but not always, so other clients must not have to wait for it.
                let is_plain = descriptor.kind == Kind::InMemory || op == Op::Write && *is_alone;
                let span = Span { memory, len, offset, is_plain };
                let file = descriptor.file.as_raw_fd();
                // SAFETY: `len` bytes of the job's room, or of a region that its client keeps as long as it has jobs; the job
                // keeps both until its reply is sent. Others may write the region meanwhile, which only the kernel has to cope
                // with.
                unsafe { if op == Op::Read { files.read(file, span, job as u64) } else { files.write(file, span, job as u64) } }
            }
            Op::Open => {
                let (flags, mode) = export.how(request.offset.get())?;
                let (own, node) = (client.open(), client.name.who.node);
                // Of the descriptors of the process a node gets another one only while more are free than it has.
                let has = clients.of_node(node).map(|client| client.open()).sum::<usize>() as u64;
                if own >= limits.descriptors || has >= limits.all.saturating_sub(shown.counts.descriptors.load(Relaxed)) {
                    return Err(Errno::MFILE);
                }
                export::path(&mut to.room[HEAD..], follows)?;
                // A file that is created can't be a device, so it needs no inspection.
                let (first, then) = if flags.contains(OFlags::EXCL) {
                    ((flags, mode), None)
                } else {
                    ((export::look(flags), Mode::empty()), Some((flags, mode)))
                };
                to.looks_for = then;
                *to.how = export.open_how(first);
                return Ok(match self.open_now(job) {
                    Begun::Over(result) => self.go_on(job, result),
                    Begun::UnderWay => None,
                });
            }
            Op::Close => {
                // Requests that name the descriptor are submitted before another file can get its number.
                files.submit();
                let Descriptor { file, .. } = client.release(request.descriptor.get())?;
                // SAFETY: owned until now.
                let result = unsafe { libc::close(file.into_raw_fd()) };
                add(&shown.counts.descriptors, u64::MAX);
                return Ok(Some(if result == 0 { 0 } else { Answer::from(last()).result }));
            }
            Op::Sync => {
                let Descriptor { file, kind } = client.descriptor(request.descriptor.get())?;
                files.sync(file.as_raw_fd(), request.length.get() == 1, *kind == Kind::InMemory, job as u64)
            }
            Op::Seek => {
                let Descriptor { file, .. } = client.descriptor(request.descriptor.get())?;
                let whence = i32::try_from(request.length.get()).map_err(|_| Errno::INVAL)?;
                // SAFETY: names no memory.
                let at = unsafe { libc::lseek64(file.as_raw_fd(), request.offset.get() as i64, whence) };
                return if at < 0 { Err(last()) } else { Ok(Some(at)) };
            }
            Op::Resize => {
                export.may_change()?;
                let Descriptor { file, .. } = client.descriptor(request.descriptor.get())?;
                let len = request.offset.get();
                if len > i64::MAX as u64 {
                    return Err(Errno::INVAL);
                }
                rustix::fs::ftruncate(file, len)?;
                return Ok(Some(0));
            }
            Op::Stat => {
                let path = export::path(&mut to.room[HEAD..], follows)?;
                let facts = export.stat(path, request.length.get() == 0)?;
                return Ok(Some(put(&mut to.room, facts.as_bytes())));
            }
            Op::Inspect => {
                let facts = export::facts(&client.descriptor(request.descriptor.get())?.file)?;
                return Ok(Some(put(&mut to.room, facts.as_bytes())));
            }
            Op::List => {
                let Descriptor { file, .. } = client.descriptor(request.descriptor.get())?;
                return Ok(Some(list(file, &mut to.room[HEAD..])?));
            }
            Op::Remove => {
                let path = export::path(&mut to.room[HEAD..], follows)?;
                export.remove(path)?;
                return Ok(Some(0));
            }
            Op::Ping => return Ok(Some(client.jobs as i64 - 1)),
            Op::Hello | Op::Bye => return Err(Errno::PROTO),
        };
        match begun {
            Begun::Over(result) => {
                to.was_plain = true;
                Ok(Some(result))
            }
            Begun::UnderWay => Ok(None),
        }
    }

    /// Opens or inspects the path of a job.
    fn open_now(&mut self, job: usize) -> Begun {
        let Self { jobs, export, files, .. } = self;
        let to = &mut jobs[job];
        let Ok(path) = CStr::from_bytes_until_nul(&to.room[HEAD..]) else {
            return Begun::Over(Answer::from(Errno::INVAL).result);
        };
        // SAFETY: both lie in boxes of the job, which keeps them until it is answered; the reply is not written yet.
        unsafe { files.open(export.root(), path, &to.how, job as u64) }
    }

    /// Continues a job after this result. A path that was inspected is opened. A path that failed because another process
    /// renamed a directory is tried again. `Some`: the job is done, with this result.
    #[inline]
    pub(super) fn go_on(&mut self, job: usize, result: i64) -> Option<i64> {
        if self.jobs[job].op == Op::Open { self.go_on_opening(job, result) } else { Some(result) }
    }

    fn go_on_opening(&mut self, job: usize, mut result: i64) -> Option<i64> {
        loop {
            let to = &mut self.jobs[job];
            if result == Answer::from(Errno::AGAIN).result && to.tries < export::TRIES {
                to.tries += 1;
            } else if let Some(how) = to.looks_for.take() {
                if let Err(errno) = self.export.may_open(result, how.0) {
                    return Some(Answer::from(errno).result);
                }
                *to.how = self.export.open_how(how);
            } else {
                return Some(result);
            }
            match self.open_now(job) {
                Begun::Over(next) => result = next,
                Begun::UnderWay => return None,
            }
        }
    }

    /// The reply to send when the system has done the operation.
    #[inline]
    pub(super) fn finish(&mut self, job: usize, result: i64) -> Answer {
        let Self { clients, jobs, export, limits, shown, .. } = self;
        let to = &mut jobs[job];
        let done = u64::try_from(result).unwrap_or(0);
        match to.op {
            Op::Read => {
                add(&shown.counts.read, done);
                let follows = if to.in_message { done as usize } else { 0 };
                let at_end = to.was_plain && done < to.wanted.into();
                Answer { result, value: if at_end { AT_END } else { 0 }, follows }
            }
            Op::Write => {
                add(&shown.counts.written, done);
                let mut value = 0;
                if to.at_cursor
                    && let Some(client) = clients.get(to.client)
                    && let Ok(Descriptor { file, .. }) = client.descriptor(to.descriptor)
                {
                    value = rustix::fs::tell(file).unwrap_or(0);
                }
                Answer { result, value, follows: 0 }
            }
            Op::Stat | Op::Inspect | Op::List => Answer { result, value: 0, follows: done as usize },
            Op::Open if result >= 0 => {
                // SAFETY: the system has just created it, and nothing else owns it.
                let file = unsafe { OwnedFd::from_raw_fd(result as i32) };
                let kept = export.admit(&file).and_then(|kind| {
                    let client = clients.get(to.client).filter(|client| !client.gone).ok_or(Errno::NOTCONN)?;
                    client.keep(Descriptor { file, kind }, limits.descriptors)
                });
                match kept {
                    Ok(number) => {
                        add(&shown.counts.descriptors, 1);
                        Answer::of(i64::from(number))
                    }
                    Err(errno) => errno.into(),
                }
            }
            _ => Answer::of(result),
        }
    }
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Puts bytes behind a reply. Returns how many.
pub(super) fn put(room: &mut [u8], bytes: &[u8]) -> i64 {
    room[HEAD..HEAD + bytes.len()].copy_from_slice(bytes);
    bytes.len() as i64
}

/// The next names of a directory, as bytes. An entry takes fewer bytes than in the system's own form.
fn list(directory: &OwnedFd, room: &mut [u8]) -> Result<i64, Errno> {
    let mut entries = [MaybeUninit::uninit(); 8192];
    let mut listed = RawDir::new(directory, &mut entries);
    let mut at = 0;
    while let Some(entry) = listed.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            let head = EntryHead { inode: entry.ino().into(), kind: kind_number(entry.file_type()), len: name.len() as u8 };
            for bytes in [head.as_bytes(), name] {
                room.get_mut(at..at + bytes.len()).ok_or(Errno::OVERFLOW)?.copy_from_slice(bytes);
                at += bytes.len();
            }
        }
        if listed.is_buffer_empty() && at > 0 {
            break;
        }
    }
    Ok(at as i64)
}

/// A kind as `d_type` of the system.
fn kind_number(kind: FileType) -> u8 {
    if kind == FileType::Unknown { libc::DT_UNKNOWN } else { (kind.as_raw_mode() >> 12) as u8 }
}
