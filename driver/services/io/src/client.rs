//! What a compute node calls.

use super::connection::Connection;
use super::file::{IoEntry, IoFile, IoMetadata, entries, metadata};
use super::wire::{Op, PATH_MAX, Request};
use doorbell_engine::{Node, NodeId, Role};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zerocopy::byteorder::little_endian::{U16, U32, U64};

/// How a node becomes a client. Made by [`IoClient::builder`]; nothing happens before [`connect`](Self::connect).
#[derive(Clone, Debug)]
#[must_use = "nothing happens before connect()"]
pub struct IoClientBuilder {
    node: Node,
    server: Option<NodeId>,
    staging: usize,
    welcome: Duration,
    patience: Option<Duration>,
}

impl IoClientBuilder {
    /// The node that serves [default: the only one of role `io`].
    pub fn server(mut self, server: NodeId) -> Self {
        self.server = Some(server);
        self
    }

    /// How much staging memory to ask of the server, in bytes [default: 1 MiB, and 16 MiB at most]. None: everything goes in messages, 16 KiB at a time.
    pub fn staging_bytes(mut self, bytes: usize) -> Self {
        self.staging = bytes;
        self
    }

    /// How long the server may take to answer [default: ten seconds for the first time, and as long as it lives afterwards, as a medium may]. A request that
    /// took longer ends with [`TimedOut`](io::ErrorKind::TimedOut), and the client with it. Over the network the bytes of large reads and writes may take longer than that,
    /// as long as the server's node lives.
    pub fn patience(mut self, patience: Duration) -> Self {
        (self.welcome, self.patience) = (patience, Some(patience));
        self
    }

    /// Connects. Control path.
    ///
    /// # Errors
    /// There is no such node, it serves no files ([`NotFound`](io::ErrorKind::NotFound)), it serves no more clients or this node has its half of them already (`EUSERS`), or it does not
    /// answer ([`TimedOut`](io::ErrorKind::TimedOut)) or not in this version (`EPROTONOSUPPORT`).
    pub fn connect(self) -> io::Result<IoClient> {
        let Self { node, server, staging, welcome, patience } = self;
        let server = server.map_or_else(|| the_io_node(&node), Ok)?;
        // Threads of this process, whichever of its nodes they use.
        static THREADS: AtomicU32 = AtomicU32::new(1);
        let thread = THREADS.fetch_add(1, Ordering::Relaxed);
        let connection = Connection::open(&node, server, thread, staging, [Some(welcome), patience])?;
        Ok(IoClient { link: Arc::new(Link { server, connection: Mutex::new(connection) }) })
    }
}

/// The only node that is there for I/O.
fn the_io_node(node: &Node) -> io::Result<NodeId> {
    let members = node.members()?;
    let mut found = members.iter().filter(|member| member.role == Role::Io).map(|member| member.id);
    let what = match (found.next(), found.next()) {
        (Some(one), None) => return Ok(one),
        (None, _) => format!("no node of the domain '{}' has the role io; start one with `doorbell io serve`", node.domain()),
        (Some(one), Some(other)) => format!("nodes {one} and {other} both have the role io; say which"),
    };
    Err(io::Error::new(io::ErrorKind::NotFound, what))
}

/// One client's conversation, and its files'.
pub(super) struct Link {
    pub server: NodeId,
    connection: Mutex<Connection>,
}

impl Link {
    /// The conversation, for one request. The lock is uncontended where each thread has a client of its own.
    #[inline]
    pub(super) fn enter(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client of an I/O node: paths are relative to the directory that it serves. `Send` and `Sync`; clones and their files share one conversation, of which
/// one thread at a time has a turn, so threads that do much give themselves a client each. When the last of them is dropped the server forgets it.
///
/// Calls block until the server has answered. If it dies they fail, and so does every later one ([`ConnectionReset`](io::ErrorKind::ConnectionReset)).
#[derive(Clone)]
pub struct IoClient {
    link: Arc<Link>,
}

impl IoClient {
    /// Becomes a client of a node that serves files.
    ///
    /// # Errors
    /// As [`IoClientBuilder::connect`].
    pub fn connect(node: &Node, server: NodeId) -> io::Result<Self> {
        Self::builder(node).server(server).connect()
    }

    /// Prepares to be a client.
    pub fn builder(node: &Node) -> IoClientBuilder {
        let welcome = Duration::from_secs(10);
        IoClientBuilder { node: node.clone(), server: None, staging: 1 << 20, welcome, patience: None }
    }

    /// The node that serves.
    pub fn server(&self) -> NodeId {
        self.link.server
    }

    /// Prepares to open a file.
    pub fn options(&self) -> IoOpenOptions<'_> {
        IoOpenOptions { client: self, flags: OFlags::empty(), read: false, write: false, append: false, mode: 0o666 }
    }

    /// Opens a file to read it.
    ///
    /// # Errors
    /// As `open(2)`; `EXDEV` for a path that leads out of the directory, `EOPNOTSUPP` for what is neither file nor directory.
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<IoFile> {
        self.options().read(true).open(path)
    }

    /// Opens a file to write it anew, whether it was there or not.
    ///
    /// # Errors
    /// As [`open`](Self::open), and `EROFS` where nothing may be changed.
    pub fn create(&self, path: impl AsRef<Path>) -> io::Result<IoFile> {
        self.options().write(true).create(true).truncate(true).open(path)
    }

    /// What there is to know of a file or directory; links are followed as long as they stay in the directory.
    ///
    /// # Errors
    /// As `stat(2)`, and `EXDEV`.
    pub fn metadata(&self, path: impl AsRef<Path>) -> io::Result<IoMetadata> {
        self.stat(path.as_ref(), 0)
    }

    /// The same of a link itself, if the path names one.
    ///
    /// # Errors
    /// As `lstat(2)`, and `EXDEV`.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> io::Result<IoMetadata> {
        self.stat(path.as_ref(), 1)
    }

    fn stat(&self, path: &Path, nofollow: u32) -> io::Result<IoMetadata> {
        let mut request = Request::new(Op::Stat);
        request.length = U32::new(nofollow);
        let mut connection = self.link.enter();
        let (_, bytes) = connection.call(request, checked(path)?)?;
        metadata(bytes)
    }

    /// What is in a directory, in the order in which the system tells it, without `.` and `..`. All names are fetched at once.
    ///
    /// # Errors
    /// As `open(2)` and `getdents(2)`, and `EXDEV`.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> io::Result<Vec<IoEntry>> {
        let directory = self.options().read(true).custom_flags(OFlags::DIRECTORY.bits()).open(path)?;
        let mut all = Vec::new();
        loop {
            let mut request = Request::new(Op::List);
            request.descriptor = U16::new(directory.descriptor());
            let mut connection = self.link.enter();
            let (_, bytes) = connection.call(request, &[])?;
            if bytes.is_empty() {
                return Ok(all);
            }
            entries(bytes, &mut all)?;
        }
    }

    /// Removes a file, or a link itself.
    ///
    /// # Errors
    /// As `unlink(2)`, `EXDEV`, and `EROFS` where nothing may be changed.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.link.enter().call(Request::new(Op::Remove), checked(path.as_ref())?).map(drop)
    }
}

impl std::fmt::Debug for IoClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IoClient").field("server", &self.link.server).finish_non_exhaustive()
    }
}

/// A path that can be one: what is too long for a message is not sent.
fn checked(path: &Path) -> io::Result<&[u8]> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= PATH_MAX {
        return Err(Errno::NAMETOOLONG.into());
    }
    Ok(bytes)
}

/// How a file is opened: as [`std::fs::OpenOptions`].
#[derive(Clone, Debug)]
pub struct IoOpenOptions<'a> {
    client: &'a IoClient,
    flags: OFlags,
    read: bool,
    write: bool,
    append: bool,
    mode: u32,
}

impl IoOpenOptions<'_> {
    fn flag(mut self, flag: OFlags, is_set: bool) -> Self {
        self.flags.set(flag, is_set);
        self
    }

    /// To read it.
    pub fn read(mut self, read: bool) -> Self {
        self.read = read;
        self
    }

    /// To write it.
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// To write at its end, wherever that is then.
    pub fn append(mut self, append: bool) -> Self {
        self.append = append;
        self
    }

    /// To empty it first.
    pub fn truncate(self, truncate: bool) -> Self {
        self.flag(OFlags::TRUNC, truncate)
    }

    /// To make it if it is not there.
    pub fn create(self, create: bool) -> Self {
        self.flag(OFlags::CREATE, create)
    }

    /// To make it, and to fail if it is there; then `create` and `truncate` say nothing.
    pub fn create_new(self, create_new: bool) -> Self {
        self.flag(OFlags::EXCL, create_new)
    }

    /// The permissions of a file that is made, before the server's umask [default: 0o666].
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// Further flags of `open(2)`: `O_NOFOLLOW`, `O_DIRECTORY`, `O_SYNC`, `O_DSYNC` and `O_NOATIME` are possible.
    pub fn custom_flags(mut self, flags: u32) -> Self {
        self.flags |= OFlags::from_bits_retain(flags) - OFlags::ACCMODE;
        self
    }

    /// Opens it.
    ///
    /// # Errors
    /// As [`IoClient::open`]; `EINVAL` for options that make no sense together.
    pub fn open(self, path: impl AsRef<Path>) -> io::Result<IoFile> {
        let Self { client, flags, read, write, append, mode } = self;
        let access = match (read, write || append) {
            (true, false) => OFlags::RDONLY,
            (false, true) => OFlags::WRONLY,
            (true, true) => OFlags::RDWR,
            (false, false) => return Err(Errno::INVAL.into()),
        };
        let flags = if flags.contains(OFlags::EXCL) { (flags - OFlags::TRUNC) | OFlags::CREATE } else { flags };
        let changes = OFlags::TRUNC | OFlags::CREATE;
        let is_odd = flags.intersects(changes) && !(write || append) || append && flags.contains(OFlags::TRUNC);
        if is_odd {
            return Err(Errno::INVAL.into());
        }
        let appends = if append { OFlags::APPEND } else { OFlags::empty() };
        let mut request = Request::new(Op::Open);
        request.offset = U64::new(u64::from((flags | access | appends).bits()) | u64::from(mode) << 32);
        let result = client.link.enter().call(request, checked(path.as_ref())?)?.0.result;
        let descriptor = u16::try_from(result.get()).map_err(|_| io::Error::from(Errno::PROTO))?;
        Ok(IoFile::new(client.link.clone(), descriptor, append))
    }
}
