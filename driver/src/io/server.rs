//! The server: one thread that takes requests, has them done, and answers.

use super::clients::{Client, Clients, Descriptor};
use super::export::{self, Export, Kind};
use super::files::{Begun, Files, IoEngine, Span};
use super::way::{Got, Letter, Mailbox, Outlet};
use super::wire::{AT_CURSOR, EntryHead, HEAD, IN_MESSAGE, INLINE_MAX, Op, ROOM, Reply, Request, VERSION, Welcome};
use crate::engine::baton::Token;
use crate::error::Error;
use crate::{Node, Result};
use io_uring::types::OpenHow;
use rustix::fs::RawDir;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// Requests that are under way or not yet answered, of all clients.
const JOBS: usize = 128;
/// Of one client. Who has more does not take its answers.
const JOBS_OF_ONE: usize = 32;
/// How often the server looks who is gone.
const SWEEP: Duration = Duration::from_millis(50);
/// After so many requests it looks at the clock, however busy it is.
const CLOCK_EVERY: u32 = 1024;
/// Prepared operations that are handed over though more requests are there.
const BATCH: usize = 16;
/// How long the ring is waited for while requests may come.
const NAP: Duration = Duration::from_micros(50);
/// How soon a reply that found no room is tried again.
const RESEND: Duration = Duration::from_millis(1);
/// How long an end waits for operations that are under way.
const END_MOST: Duration = Duration::from_secs(5);
/// The most staging memory of one client.
const STAGING_OF_ONE: usize = 16 << 20;

/// How a directory is served. Made by [`IoServer::builder`]; nothing happens before [`start`](Self::start).
#[derive(Clone, Debug)]
#[must_use = "nothing happens before start()"]
pub struct IoServerBuilder {
    node: Node,
    directory: PathBuf,
    limits: Limits,
    read_only: bool,
    engine: IoEngine,
}

#[derive(Clone, Copy, Debug)]
struct Limits {
    clients: usize,
    descriptors: usize,
    staging: usize,
}

impl IoServerBuilder {
    /// Whether whatever would change something fails with `EROFS`.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Clients at a time, from 1 to 65535 [default: 256]; more are told `EUSERS`.
    pub fn clients(mut self, most: usize) -> Self {
        self.limits.clients = most;
        self
    }

    /// Descriptors of one client, from 1 to 65535 [default: 256]; more are told `EMFILE`.
    pub fn descriptors(mut self, most: usize) -> Self {
        self.limits.descriptors = most;
        self
    }

    /// Bytes of shared memory for the staging of all clients [default: 64 MiB]. Who finds none reads and writes in messages, 16 KiB at a time.
    pub fn staging_bytes(mut self, most: usize) -> Self {
        self.limits.staging = most;
        self
    }

    /// How files are read and written.
    pub fn engine(mut self, engine: IoEngine) -> Self {
        self.engine = engine;
        self
    }

    /// Serves from now on, by a thread of its own. Control path.
    ///
    /// # Errors
    /// The directory can't be opened, the system lacks `openat2` (Linux 5.6), or [`IoEngine::Uring`] was asked for and can't be had. A limit is out of
    /// range.
    pub fn start(self) -> std::io::Result<IoServer> {
        let Limits { clients, descriptors, .. } = self.limits;
        if !(1..=0xffff).contains(&clients) || !(1..=0xffff).contains(&descriptors) {
            let what = format!("{clients} clients with {descriptors} descriptors each: from 1 to 65535 are possible");
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, what));
        }
        let export = Export::open(&self.directory, self.read_only)?;
        let files = Files::new(self.engine, JOBS)?;
        let mailbox = Mailbox::of_server(&self.node)?;
        let shown = Arc::new(Shown { engine: files.engine(), stop: AtomicBool::new(false), counts: Default::default() });
        let (node, limits, counts) = (self.node, self.limits, shown.clone());
        let serve = move || {
            doorbell_shm::bus::unblock();
            let jobs = (0..JOBS).map(|_| Job::new()).collect();
            let free = (0..JOBS).rev().collect();
            let mut worker = Worker {
                node,
                export,
                files,
                limits,
                jobs,
                free,
                stuck: VecDeque::new(),
                clients: Clients::default(),
                staging: 0,
                shown: counts,
            };
            let served = worker.run(mailbox);
            worker.end();
            served
        };
        let thread = std::thread::Builder::new().name("doorbell-io".into()).spawn(serve)?;
        Ok(IoServer { shown, thread: Some(thread) })
    }
}

/// What a server counts: a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IoCounts {
    /// Clients that are there now.
    pub clients: u64,
    /// Descriptors that they have open now.
    pub descriptors: u64,
    /// Bytes of staging memory that they have now.
    pub staging_bytes: u64,
    /// Requests that were done.
    pub requests: u64,
    /// Bytes that were read.
    pub bytes_read: u64,
    /// Bytes that were written.
    pub bytes_written: u64,
    /// Clients that died, or did not take their answers.
    pub lost: u64,
}

struct Shown {
    engine: IoEngine,
    stop: AtomicBool,
    counts: Counts,
}

/// Written by the server's thread alone.
#[derive(Default)]
struct Counts {
    clients: AtomicU64,
    descriptors: AtomicU64,
    staging: AtomicU64,
    requests: AtomicU64,
    read: AtomicU64,
    written: AtomicU64,
    lost: AtomicU64,
}

fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

/// A directory that is served to the nodes of a domain. Dropped, it is served no more: what clients ask for then fails when they find that the node has left,
/// or by their deadlines.
///
/// ```
/// use doorbell::{Node, Role, Space, io::{IoClient, IoServer}};
/// use std::io::{Read, Write};
///
/// # fn main() -> std::io::Result<()> {
/// # let directory = std::env::temp_dir().join(format!("doorbell-io-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&directory)?;
/// let space = Space::heap();
/// let io = Node::builder("files").role(Role::Io).space(space.clone()).join()?;
/// let server = IoServer::builder(&io, &directory).start()?;
///
/// let compute = Node::builder("files").space(space).join()?;
/// let client = IoClient::connect(&compute, io.id())?;
/// client.create("result")?.write_all(b"42")?;
/// let mut text = String::new();
/// client.open("result")?.read_to_string(&mut text)?;
/// assert_eq!(text, "42");
/// assert_eq!(client.open("../etc/passwd").unwrap_err().raw_os_error(), Some(libc::EXDEV));
/// # std::fs::remove_dir_all(&directory)
/// # }
/// ```
pub struct IoServer {
    shown: Arc<Shown>,
    thread: Option<std::thread::JoinHandle<Result<()>>>,
}

impl IoServer {
    /// Prepares to serve a directory by a node, one server a node.
    pub fn builder(node: &Node, directory: impl AsRef<Path>) -> IoServerBuilder {
        IoServerBuilder {
            node: node.clone(),
            directory: directory.as_ref().to_owned(),
            limits: Limits { clients: 256, descriptors: 256, staging: 64 << 20 },
            read_only: false,
            engine: IoEngine::Auto,
        }
    }

    /// What it counts. Some loads.
    pub fn counts(&self) -> IoCounts {
        let Counts { clients, descriptors, staging, requests, read, written, lost } = &self.shown.counts;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        IoCounts {
            clients: of(clients),
            descriptors: of(descriptors),
            staging_bytes: of(staging),
            requests: of(requests),
            bytes_read: of(read),
            bytes_written: of(written),
            lost: of(lost),
        }
    }

    /// How it reads and writes: [`IoEngine::Uring`] or [`IoEngine::Plain`].
    pub fn engine(&self) -> IoEngine {
        self.shown.engine
    }

    /// Whether it still serves: not after its node was severed or left.
    pub fn is_serving(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Serves no more. Waits for what is under way, for five seconds at most.
    ///
    /// # Errors
    /// What ended the service before.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.shown.stop.store(true, Ordering::Relaxed);
        match self.thread.take().map(std::thread::JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err(Error::Closed),
            None => Ok(()),
        }
    }
}

impl Drop for IoServer {
    fn drop(&mut self) {
        if !doorbell_shm::space::forked()
            && let Err(error) = self.end()
        {
            tracing::warn!(%error, "files were served no more before the end");
        }
    }
}

impl std::fmt::Debug for IoServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IoServer").field("engine", &self.engine()).field("counts", &self.counts()).finish()
    }
}

/// A request, from its arrival until it is answered.
struct Job {
    /// The request and what follows it; later the reply and what follows that.
    room: Box<[u8]>,
    how: Box<OpenHow>,
    client: u32,
    tag: u64,
    op: Op,
    quiet: bool,
    /// What follows the reply lies in the room.
    in_message: bool,
    at_cursor: bool,
    descriptor: u16,
    /// Bytes of the reply that waits for room.
    reply: usize,
}

impl Job {
    fn new() -> Self {
        // A byte more, for the NUL of a path.
        let room = vec![0; ROOM + 1].into();
        let (client, tag, op) = (0, 0, Op::Bye);
        Self {
            room,
            how: Box::default(),
            client,
            tag,
            op,
            quiet: false,
            in_message: false,
            at_cursor: false,
            descriptor: 0,
            reply: 0,
        }
    }
}

struct Worker {
    node: Node,
    export: Export,
    files: Files,
    limits: Limits,
    jobs: Vec<Job>,
    free: Vec<usize>,
    /// Jobs whose reply found no room.
    stuck: VecDeque<usize>,
    clients: Clients,
    /// Bytes of staging memory of all.
    staging: usize,
    shown: Arc<Shown>,
}

/// What is answered now, if anything: a result, the cursor, and bytes that follow.
struct Answer {
    result: i64,
    value: u64,
    follows: usize,
}

impl Answer {
    fn of(result: i64) -> Self {
        Self { result, value: 0, follows: 0 }
    }
}

impl From<Errno> for Answer {
    fn from(errno: Errno) -> Self {
        Self::of(-i64::from(errno.raw_os_error()))
    }
}

impl Worker {
    fn run(&mut self, mut mailbox: Mailbox) -> Result<()> {
        let mut sweep_at = Instant::now() + SWEEP;
        let mut handled = 0_u32;
        while !self.shown.stop.load(Ordering::Relaxed) {
            let job = match self.free.pop() {
                Some(job) => job,
                None => {
                    self.make_room();
                    continue;
                }
            };
            let room = &mut self.jobs[job].room[..ROOM];
            let got = match (self.files.under_way(), self.stuck.is_empty()) {
                (0, true) => mailbox.receive(room, Some(sweep_at)),
                (0, false) => mailbox.receive(room, Some(Instant::now() + RESEND)),
                _ => mailbox.try_receive(room),
            };
            match got {
                Ok(Got::Letter(letter)) => {
                    handled = handled.wrapping_add(1);
                    self.begin(job, letter);
                    if self.files.prepared() >= BATCH {
                        self.files.submit();
                    }
                }
                Ok(Got::TooLong) => self.free.push(job),
                Ok(Got::Nothing) => {
                    self.free.push(job);
                    if self.files.prepared() > 0 {
                        self.files.submit();
                    } else if self.files.under_way() > 0 {
                        self.files.wait(1, NAP);
                    }
                    self.resend();
                    handled = 0;
                }
                Err(error) => {
                    self.free.push(job);
                    return if matches!(error, Error::Closed) { Ok(()) } else { Err(error) };
                }
            }
            self.reap();
            if handled.is_multiple_of(CLOCK_EVERY) {
                let now = Instant::now();
                if now >= sweep_at {
                    sweep_at = now + SWEEP;
                    self.sweep();
                }
            }
        }
        Ok(())
    }

    /// All jobs are taken: waits for one to end, or gives up those of a client that does not take its answers.
    #[cold]
    fn make_room(&mut self) {
        self.files.submit();
        self.reap();
        self.resend();
        if !self.free.is_empty() {
            return;
        }
        if self.files.under_way() > 0 {
            self.files.wait(1, SWEEP);
            self.reap();
        } else if let Some(job) = self.stuck.front() {
            self.lose(self.jobs[*job].client);
        }
        self.sweep();
    }

    /// Takes in what is over.
    #[inline]
    fn reap(&mut self) {
        while let Some((job, result)) = self.files.next() {
            let job = job as usize;
            let answer = self.finish(job, result);
            self.answer(job, answer);
        }
    }

    /// Begins what a letter asks for.
    fn begin(&mut self, job: usize, letter: Letter) {
        let Ok((request, _)) = Request::read_from_prefix(&self.jobs[job].room[..letter.len.min(ROOM)]) else {
            self.free.push(job);
            return;
        };
        let Some(op) = Op::from_number(request.op) else {
            self.free.push(job);
            return;
        };
        let to = &mut self.jobs[job];
        (to.client, to.tag, to.op, to.quiet) = (request.client.get(), letter.tag, op, request.quiet != 0);
        (to.in_message, to.at_cursor, to.descriptor) = (false, false, request.descriptor.get());
        add(&self.shown.counts.requests, 1);
        if op == Op::Hello {
            self.hello(job, &letter, &request);
            return;
        }
        let number = request.client.get();
        let found = self
            .clients
            .get(number)
            .filter(|client| (client.node, client.life) == (letter.source, letter.incarnation) && !client.gone);
        let Some(client) = found else {
            // Whoever it is: it is none that was welcomed, or one that was lost.
            if !self.jobs[job].quiet
                && let Ok(outlet) = Outlet::to_client(&self.node, letter.source, letter.incarnation)
            {
                let reply = Reply::new(Answer::from(Errno::NOTCONN).result, 0);
                let _ = outlet.try_send(letter.tag, reply.as_bytes());
            }
            self.free.push(job);
            return;
        };
        client.jobs += 1;
        if client.jobs > JOBS_OF_ONE {
            self.lose(number);
            self.let_go(job);
            return;
        }
        if op == Op::Bye {
            self.dismiss(number);
            self.let_go(job);
            return;
        }
        match self.carry_out(job, op, &request, letter.len - HEAD) {
            Ok(Some(result)) => {
                let answer = self.finish(job, result);
                self.answer(job, answer);
            }
            Ok(None) => {}
            Err(errno) => self.answer(job, errno.into()),
        }
    }

    /// Does it, or hands it to the ring: then `None`.
    #[inline]
    fn carry_out(&mut self, job: usize, op: Op, request: &Request, follows: usize) -> Result<Option<i64>, Errno> {
        let Self { clients, jobs, export, files, limits, .. } = self;
        let to = &mut jobs[job];
        let client = clients.get(to.client).ok_or(Errno::NOTCONN)?;
        let begun = match op {
            Op::Read | Op::Write => {
                let descriptor = client.descriptor(request.descriptor.get())?;
                let (offset, len) = (request.offset.get(), request.length.get() as usize);
                let offset = (offset != AT_CURSOR).then_some(offset);
                // A file ends where the numbers of the system do.
                if offset.is_some_and(|offset| offset.checked_add(len as u64).is_none_or(|end| end > i64::MAX as u64)) {
                    return Err(Errno::INVAL);
                }
                to.at_cursor = offset.is_none();
                to.in_message = request.place.get() == IN_MESSAGE;
                let memory = if to.in_message {
                    if len > INLINE_MAX || (op == Op::Write && len != follows) {
                        return Err(Errno::INVAL);
                    }
                    to.room[HEAD..].as_mut_ptr()
                } else {
                    let staging = client.staging.as_ref().ok_or(Errno::FAULT)?;
                    staging.part("stage", request.place.get() as usize, len).map_err(|_| Errno::FAULT)?
                };
                let in_memory = descriptor.kind == Kind::InMemory;
                let span = Span { memory, len, offset, in_memory };
                let file = descriptor.file.as_raw_fd();
                // SAFETY: `len` bytes of the job's room, or of a region that its client keeps as long as it has jobs; the job keeps both until it is answered.
                // Others may write the region meanwhile, which is the kernel's to endure.
                unsafe { if op == Op::Read { files.read(file, span, job as u64) } else { files.write(file, span, job as u64) } }
            }
            Op::Open => {
                let (flags, mode) = export.how(request.value.get())?;
                if client.open() >= limits.descriptors {
                    return Err(Errno::MFILE);
                }
                let path = export::path(&mut to.room[HEAD..], follows)?;
                let how = OpenHow::new().flags(u64::from(flags.bits())).mode(u64::from(mode.bits()));
                *to.how = how.resolve(u64::from(export::RESOLVE.bits()));
                // SAFETY: both lie in boxes of the job, which keeps them until it is answered.
                unsafe { files.open(export.root(), path, &to.how, job as u64) }
            }
            Op::Close => {
                // What names the descriptor is handed over before the number is another file's.
                files.submit();
                let Descriptor { file, .. } = client.release(request.descriptor.get())?;
                // SAFETY: owned until now.
                let result = unsafe { libc::close(file.into_raw_fd()) };
                add(&self.shown.counts.descriptors, u64::MAX);
                let errno = || std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
                return Ok(Some(if result == 0 { 0 } else { -i64::from(errno()) }));
            }
            Op::Sync => {
                let Descriptor { file, kind } = client.descriptor(request.descriptor.get())?;
                files.sync(file.as_raw_fd(), request.value.get() == 1, *kind == Kind::InMemory, job as u64)
            }
            Op::Seek => {
                let Descriptor { file, .. } = client.descriptor(request.descriptor.get())?;
                let whence = i32::try_from(request.value.get()).map_err(|_| Errno::INVAL)?;
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
                let facts = export.stat(path, request.value.get() == 0)?;
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
            Op::Hello | Op::Bye => return Err(Errno::PROTO),
        };
        match begun {
            Begun::Over(result) => Ok(Some(result)),
            Begun::UnderWay => Ok(None),
        }
    }

    /// What is to be answered when the system has done it.
    #[inline]
    fn finish(&mut self, job: usize, result: i64) -> Answer {
        let Self { clients, jobs, export, limits, shown, .. } = self;
        let to = &mut jobs[job];
        let done = u64::try_from(result).unwrap_or(0);
        match to.op {
            Op::Read => {
                add(&shown.counts.read, done);
                let follows = if to.in_message { done as usize } else { 0 };
                Answer { result, value: 0, follows }
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
                // SAFETY: the system just made it, for nobody else.
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

    /// Sends the reply, and ends the job when it is sent.
    #[inline]
    fn answer(&mut self, job: usize, answer: Answer) {
        let Self { jobs, clients, .. } = self;
        let to = &mut jobs[job];
        let Answer { result, value, follows } = answer;
        if !to.quiet
            && let Some(client) = clients.get(to.client).filter(|client| !client.gone)
        {
            to.room[..HEAD].copy_from_slice(Reply::new(result, value).as_bytes());
            to.reply = HEAD + follows;
            match client.outlet.try_send(to.tag, &to.room[..HEAD + follows]) {
                Ok(false) => {
                    self.stuck.push_back(job);
                    return;
                }
                // Who can't be reached is gone, which the next sweep finds.
                Ok(true) | Err(_) => {}
            }
        }
        self.let_go(job);
    }

    /// Tries replies again that found no room.
    fn resend(&mut self) {
        for _ in 0..self.stuck.len() {
            let Some(job) = self.stuck.pop_front() else { return };
            let to = &self.jobs[job];
            let client = self.clients.get(to.client).filter(|client| !client.gone);
            let sent = client.map(|client| client.outlet.try_send(to.tag, &to.room[..to.reply]));
            match sent {
                Some(Ok(false)) => self.stuck.push_back(job),
                _ => self.let_go(job),
            }
        }
    }

    /// A job is over.
    #[inline]
    fn let_go(&mut self, job: usize) {
        self.free.push(job);
        let number = self.jobs[job].client;
        if let Some(client) = self.clients.get(number) {
            client.jobs -= 1;
            if client.gone && client.jobs == 0 {
                self.bury(number);
            }
        }
    }

    #[cold]
    fn hello(&mut self, job: usize, letter: &Letter, request: &Request) {
        // What fails here the client learns by a reply, if it can be reached at all.
        let known = self.clients.iter().find(|(_, client)| (client.node, client.life) == (letter.source, letter.incarnation));
        let outlet = match known {
            Some((_, client)) => client.outlet.clone(),
            None => match Outlet::to_client(&self.node, letter.source, letter.incarnation) {
                Ok(outlet) => Rc::new(outlet),
                Err(_) => return self.free.push(job),
            },
        };
        let reply = match self.welcome(letter, request, outlet.clone()) {
            Ok(welcome) => {
                put(&mut self.jobs[job].room, welcome.as_bytes());
                Answer { result: 0, value: 0, follows: size_of::<Welcome>() }
            }
            Err(errno) => errno.into(),
        };
        let room = &mut self.jobs[job].room;
        room[..HEAD].copy_from_slice(Reply::new(reply.result, u64::from(VERSION)).as_bytes());
        let _ = outlet.try_send(letter.tag, &room[..HEAD + reply.follows]);
        self.free.push(job);
    }

    fn welcome(&mut self, letter: &Letter, request: &Request, outlet: Rc<Outlet>) -> Result<Welcome, Errno> {
        if request.value.get() != u64::from(VERSION) {
            return Err(Errno::PROTONOSUPPORT);
        }
        if self.clients.len() >= self.limits.clients {
            return Err(Errno::USERS);
        }
        let wanted = (request.length.get() as usize).min(STAGING_OF_ONE).min(self.limits.staging - self.staging);
        // Whole pages; less than one is none.
        let wanted = wanted & !4095;
        let staging = if wanted == 0 {
            None
        } else {
            match self.node.region::<u8>(wanted) {
                Ok(region) => Some(region),
                Err(error) => {
                    tracing::warn!(%error, "no staging memory for a client, which reads and writes in messages");
                    None
                }
            }
        };
        let (bytes, key) = staging.as_ref().map_or((0, [0; _]), |region| (region.len(), region.key().to_bytes()));
        self.staging += bytes;
        let client = self.clients.add(Client::new(letter.source, letter.incarnation, outlet, staging));
        self.show();
        Ok(Welcome { client: U32::new(client), staging: U32::new(bytes as u32), key })
    }

    /// Looks who is gone.
    fn sweep(&mut self) {
        let shared = self.node.shared();
        let me = Token::current();
        let gone = |client: &Client| !client.gone && shared.is_over(me, client.node, client.life);
        let lost: Vec<u32> = self.clients.iter().filter(|(_, client)| gone(client)).map(|(number, _)| number).collect();
        for number in lost {
            self.lose(number);
        }
    }

    /// A client that is gone without a word, or has to be.
    #[cold]
    fn lose(&mut self, number: u32) {
        add(&self.shown.counts.lost, 1);
        self.dismiss(number);
    }

    fn dismiss(&mut self, number: u32) {
        self.files.submit();
        let Some(client) = self.clients.get(number) else { return };
        client.gone = true;
        client.release_all();
        if client.jobs == 0 {
            self.bury(number);
        }
        self.show();
    }

    fn bury(&mut self, number: u32) {
        if let Some(client) = self.clients.remove(number) {
            self.staging -= client.staging_bytes();
        }
        self.show();
    }

    fn show(&self) {
        let counts = &self.shown.counts;
        let descriptors: usize = self.clients.iter().map(|(_, client)| client.open()).sum();
        counts.clients.store(self.clients.iter().filter(|(_, client)| !client.gone).count() as u64, Ordering::Relaxed);
        counts.descriptors.store(descriptors as u64, Ordering::Relaxed);
        counts.staging.store(self.staging as u64, Ordering::Relaxed);
    }

    /// Waits for what is under way: the memory it names has to stay until it is over.
    fn end(&mut self) {
        let until = Instant::now() + END_MOST;
        self.files.submit();
        while self.files.under_way() > 0 && Instant::now() < until {
            self.files.wait(1, SWEEP);
            self.reap();
        }
        if self.files.under_way() > 0 {
            tracing::warn!("a medium does not answer: what waits for it keeps its memory until the process ends");
            std::mem::forget((std::mem::take(&mut self.jobs), std::mem::take(&mut self.clients)));
        }
        let numbers: Vec<u32> = self.clients.iter().map(|(number, _)| number).collect();
        for number in numbers {
            self.dismiss(number);
        }
        self.show();
    }
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// What follows a reply.
fn put(room: &mut [u8], bytes: &[u8]) -> i64 {
    room[HEAD..HEAD + bytes.len()].copy_from_slice(bytes);
    bytes.len() as i64
}

/// The next names of a directory, as bytes. The bytes of one entry are fewer than those in which the system tells it.
fn list(directory: &OwnedFd, room: &mut [u8]) -> Result<i64, Errno> {
    let mut entries = [MaybeUninit::uninit(); 8192];
    let mut listed = RawDir::new(directory, &mut entries);
    let mut at = 0;
    while let Some(entry) = listed.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            let head = EntryHead { inode: U64::new(entry.ino()), kind: kind_number(entry.file_type()), len: name.len() as u8 };
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

fn kind_number(kind: rustix::fs::FileType) -> u8 {
    use rustix::fs::FileType;
    match kind {
        FileType::RegularFile => libc::DT_REG,
        FileType::Directory => libc::DT_DIR,
        FileType::Symlink => libc::DT_LNK,
        FileType::Fifo => libc::DT_FIFO,
        FileType::Socket => libc::DT_SOCK,
        FileType::CharacterDevice => libc::DT_CHR,
        FileType::BlockDevice => libc::DT_BLK,
        FileType::Unknown => libc::DT_UNKNOWN,
    }
}
