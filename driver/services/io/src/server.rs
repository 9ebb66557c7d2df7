//! The server: one thread that takes requests, carries them out, and replies.

use super::export::Export;
use super::files::{Files, IoEngine};
use super::way::{CLIENTS, Mailbox};
use super::worker::{JOBS, Limits, Shown, Worker};
use doorbell_engine::kit::{Error, Node, Result, world};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The options of a new server. Made by [`IoServer::builder`]; nothing happens before [`start`](Self::start).
#[derive(Clone, Debug)]
#[must_use = "nothing happens before start()"]
pub struct IoServerBuilder {
    node: Node,
    directory: PathBuf,
    limits: Limits,
    read_only: bool,
    other_file_systems: bool,
    engine: IoEngine,
}

impl IoServerBuilder {
    /// Sets whether every change fails with `EROFS` [default: false].
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Sets whether file systems mounted inside the directory are served, too [default: false: paths that lead there fail with
    /// `EXDEV`]. Files of the kernel's own file systems, such as `/proc`, are never opened (`EOPNOTSUPP`).
    pub fn other_file_systems(mut self, other_file_systems: bool) -> Self {
        self.other_file_systems = other_file_systems;
        self
    }

    /// Sets how many clients there can be at a time: 1 to 64 [default: 64]. More get `EUSERS`. A node gets another client only
    /// while more places are free than it has.
    pub fn clients(mut self, most: usize) -> Self {
        self.limits.clients = most;
        self
    }

    /// Sets how many descriptors one client can have: 1 to 65535 [default: 256]. More get `EMFILE`. All clients together get at
    /// most three quarters of the process's limit (`RLIMIT_NOFILE`), and a node gets another descriptor only while more are
    /// free than it has.
    pub fn descriptors(mut self, most: usize) -> Self {
        self.limits.descriptors = most;
        self
    }

    /// Sets how much shared memory the staging of all clients takes, in bytes [default: 64 MiB]. From what is left, the server
    /// subtracts what the client's node has already, and the client gets at most half of the rest. A client without staging memory
    /// reads and writes in messages, 16 KiB at a time.
    pub fn staging_bytes(mut self, most: usize) -> Self {
        self.limits.staging = most;
        self
    }

    /// Sets how files are read and written [default: [`IoEngine::Auto`]].
    pub fn engine(mut self, engine: IoEngine) -> Self {
        self.engine = engine;
        self
    }

    /// Starts to serve, on a thread of its own. Makes system calls.
    ///
    /// # Errors
    /// The directory can't be opened. The system lacks `openat2` (Linux 5.6). [`IoEngine::Uring`] was asked for, and the system
    /// does not offer it. A limit is out of range.
    pub fn start(self) -> std::io::Result<IoServer> {
        let Limits { clients, descriptors, .. } = self.limits;
        if !(1..=CLIENTS).contains(&clients) || !(1..=0xffff).contains(&descriptors) {
            let what = format!(
                "{clients} clients with {descriptors} descriptors each: 1 to {CLIENTS} clients are possible, and 1 to 65535 descriptors"
            );
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, what));
        }
        let export = Export::open(&self.directory, self.read_only, self.other_file_systems)?;
        let files = Files::new(self.engine, JOBS)?;
        let mailbox = Mailbox::of_server(&self.node)?;
        let shown = Arc::new(Shown::new(files.engine()));
        let of_process = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let limits = Limits { all: of_process - of_process / 4, ..self.limits };
        let (node, of_worker) = (self.node, shown.clone());
        let serve = move || {
            doorbell_shm::bus::unblock();
            let mut worker = Worker::new(node, export, files, limits, of_worker);
            let served = worker.run(mailbox);
            if let Err(error) = &served {
                tracing::error!(%error, "the I/O server has failed; start it again, and have clients connect again");
            }
            worker.end();
            served
        };
        let thread = world::spawn("doorbell-io", serve)?;
        Ok(IoServer { shown, thread: Some(thread) })
    }
}

/// A snapshot of what a server counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IoCounts {
    /// Present clients.
    pub clients: u64,
    /// Descriptors that they have open.
    pub descriptors: u64,
    /// Their staging memory, in bytes.
    pub staging_bytes: u64,
    /// Requests so far.
    pub requests: u64,
    /// Bytes read so far.
    pub bytes_read: u64,
    /// Bytes written so far.
    pub bytes_written: u64,
    /// Clients so far that died or did not take their replies.
    pub lost: u64,
}

/// A directory that is served to the nodes of a domain. Dropping it ends the service. Requests of clients then fail with
/// [`NotConnected`](std::io::ErrorKind::NotConnected), within about 50 ms over shared memory and some seconds over the network.
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
    /// Prepares to serve a directory. A node can have one server.
    pub fn builder(node: &Node, directory: impl AsRef<Path>) -> IoServerBuilder {
        IoServerBuilder {
            node: node.clone(),
            directory: directory.as_ref().to_owned(),
            limits: Limits { clients: CLIENTS, descriptors: 256, staging: 64 << 20, all: u64::MAX },
            read_only: false,
            other_file_systems: false,
            engine: IoEngine::Auto,
        }
    }

    /// What the server counts. Costs a few loads.
    pub fn counts(&self) -> IoCounts {
        let counts = &self.shown.counts;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        IoCounts {
            clients: of(&counts.clients),
            descriptors: of(&counts.descriptors),
            staging_bytes: of(&counts.staging),
            requests: of(&counts.requests),
            bytes_read: of(&counts.read),
            bytes_written: of(&counts.written),
            lost: of(&counts.lost),
        }
    }

    /// How the server reads and writes: [`IoEngine::Uring`] or [`IoEngine::Plain`].
    pub fn engine(&self) -> IoEngine {
        self.shown.engine
    }

    /// Whether it still serves. It stops when its node leaves or is severed.
    pub fn is_serving(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Stops serving. Waits for operations in progress, for five seconds at most.
    ///
    /// # Errors
    /// The error that had ended the service before.
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
            tracing::warn!(%error, "the I/O server had failed before it was dropped");
        }
    }
}

impl std::fmt::Debug for IoServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IoServer").field("engine", &self.engine()).field("counts", &self.counts()).finish()
    }
}
