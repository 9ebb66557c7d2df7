//! The calls of a compute node.

use super::connection::Connection;
use super::file::{IoEntry, IoFile, IoMetadata, entries, metadata};
use super::wire::{Op, PATH_MAX, Request};
use doorbell_engine::kit::{Node, NodeId, Role};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The options of a new client. Made by [`IoClient::builder`]; nothing happens before [`connect`](Self::connect).
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
    /// Sets the node that serves [default: the only node of role `io`].
    pub fn server(mut self, server: NodeId) -> Self {
        self.server = Some(server);
        self
    }

    /// Sets how much staging memory to ask for, in bytes [default: 1 MiB; at most 16 MiB]. With 0, all data goes in messages,
    /// 16 KiB at a time.
    pub fn staging_bytes(mut self, bytes: usize) -> Self {
        self.staging = bytes;
        self
    }

    /// Sets how long the server may take to reply [default: ten seconds to connect; afterwards no limit while the server lives,
    /// since a medium may take long]. A request that takes longer fails with [`TimedOut`](io::ErrorKind::TimedOut), and the
    /// client is unusable then. Over the network, the bytes of large reads and writes may take longer while the server's node
    /// lives.
    pub fn patience(mut self, patience: Duration) -> Self {
        (self.welcome, self.patience) = (patience, Some(patience));
        self
    }

    /// Connects. Blocks until the server has replied.
    ///
    /// # Errors
    /// There is no such node. It serves no files ([`NotFound`](io::ErrorKind::NotFound)). It has no place left for a client of
    /// this node (`EUSERS`). It does not reply ([`TimedOut`](io::ErrorKind::TimedOut)), or has another protocol version
    /// (`EPROTONOSUPPORT`).
    pub fn connect(self) -> io::Result<IoClient> {
        let Self { node, server, staging, welcome, patience } = self;
        let server = server.map_or_else(|| the_io_node(&node), Ok)?;
        // Counts the threads of this process, whichever of its nodes they use.
        static THREADS: AtomicU32 = AtomicU32::new(1);
        let thread = THREADS.fetch_add(1, Ordering::Relaxed);
        let connection = Connection::open(&node, server, thread, staging, [Some(welcome), patience])?;
        Ok(IoClient { link: Arc::new(Link { server, connection: Mutex::new(connection) }) })
    }
}

/// The only node of the role `io`.
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

/// The connection of a client, which it shares with its files.
pub(super) struct Link {
    pub server: NodeId,
    connection: Mutex<Connection>,
}

impl Link {
    /// Locks the connection for one request. The lock is uncontended if each thread has a client of its own.
    #[inline]
    pub(super) fn enter(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client of an I/O node. Paths are relative to the directory that the node serves. `Send` and `Sync`. Clones and their files
/// share one connection, which one thread at a time uses, so give each busy thread a client of its own. When the last of them
/// is dropped, the server forgets the client.
///
/// Calls block until the server has replied. If the server dies, they fail, and so does every later call
/// ([`ConnectionReset`](io::ErrorKind::ConnectionReset)).
#[derive(Clone)]
pub struct IoClient {
    link: Arc<Link>,
}

impl IoClient {
    /// Becomes a client of a node that serves files. Blocks until the server has replied.
    ///
    /// # Errors
    /// As [`IoClientBuilder::connect`].
    pub fn connect(node: &Node, server: NodeId) -> io::Result<Self> {
        Self::builder(node).server(server).connect()
    }

    /// Prepares to become a client.
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

    /// Opens a file for reading.
    ///
    /// # Errors
    /// As `open(2)`. `EXDEV`: the path leads out of the directory. `EOPNOTSUPP`: it names neither a regular file nor a directory.
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<IoFile> {
        self.options().read(true).open(path)
    }

    /// Opens a file for writing, and creates or empties it first.
    ///
    /// # Errors
    /// As [`open`](Self::open). `EROFS`: the directory is served read-only.
    pub fn create(&self, path: impl AsRef<Path>) -> io::Result<IoFile> {
        self.options().write(true).create(true).truncate(true).open(path)
    }

    /// The metadata of a file or directory. Links are followed while they stay in the directory.
    ///
    /// # Errors
    /// As `stat(2)`. `EXDEV`: the path leads out of the directory.
    pub fn metadata(&self, path: impl AsRef<Path>) -> io::Result<IoMetadata> {
        self.stat(path.as_ref(), 0)
    }

    /// As [`metadata`](Self::metadata), but if the path names a link, that of the link itself.
    ///
    /// # Errors
    /// As `lstat(2)`. `EXDEV`: the path leads out of the directory.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> io::Result<IoMetadata> {
        self.stat(path.as_ref(), 1)
    }

    fn stat(&self, path: &Path, nofollow: u32) -> io::Result<IoMetadata> {
        let request = Request { length: nofollow.into(), ..Request::new(Op::Stat) };
        let mut connection = self.link.enter();
        let (_, bytes) = connection.call(request, checked(path)?)?;
        metadata(bytes)
    }

    /// The entries of a directory, in the system's order and without `.` and `..`. Fetches all names at once.
    ///
    /// # Errors
    /// As `open(2)` and `getdents(2)`. `EXDEV`: the path leads out of the directory.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> io::Result<Vec<IoEntry>> {
        let directory = self.options().read(true).custom_flags(OFlags::DIRECTORY.bits()).open(path)?;
        let mut all = Vec::new();
        loop {
            let mut connection = self.link.enter();
            let (_, bytes) = connection.call(directory.request(Op::List), &[])?;
            if bytes.is_empty() {
                return Ok(all);
            }
            entries(bytes, &mut all)?;
        }
    }

    /// Removes a file, or a link itself.
    ///
    /// # Errors
    /// As `unlink(2)`. `EXDEV`: the path leads out of the directory. `EROFS`: the directory is served read-only.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.link.enter().call(Request::new(Op::Remove), checked(path.as_ref())?).map(drop)
    }
}

impl std::fmt::Debug for IoClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IoClient").field("server", &self.link.server).finish_non_exhaustive()
    }
}

/// Refuses a path that is too long for a message.
fn checked(path: &Path) -> io::Result<&[u8]> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= PATH_MAX {
        return Err(Errno::NAMETOOLONG.into());
    }
    Ok(bytes)
}

/// The options for opening a file, like [`std::fs::OpenOptions`].
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

    /// Opens for reading.
    pub fn read(mut self, read: bool) -> Self {
        self.read = read;
        self
    }

    /// Opens for writing.
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Opens for writing at the end of the file, wherever the end is at each write.
    pub fn append(mut self, append: bool) -> Self {
        self.append = append;
        self
    }

    /// Empties the file first.
    pub fn truncate(self, truncate: bool) -> Self {
        self.flag(OFlags::TRUNC, truncate)
    }

    /// Creates the file if it does not exist.
    pub fn create(self, create: bool) -> Self {
        self.flag(OFlags::CREATE, create)
    }

    /// Creates the file, and fails if it exists; `create` and `truncate` have no effect then.
    pub fn create_new(self, create_new: bool) -> Self {
        self.flag(OFlags::EXCL, create_new)
    }

    /// Sets the permissions of a created file, before the server's umask [default: 0o666].
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// Adds flags of `open(2)`. The server allows `O_NOFOLLOW`, `O_DIRECTORY`, `O_SYNC`, `O_DSYNC` and `O_NOATIME`.
    pub fn custom_flags(mut self, flags: u32) -> Self {
        self.flags |= OFlags::from_bits_retain(flags) - OFlags::ACCMODE;
        self
    }

    /// Opens the file.
    ///
    /// # Errors
    /// As [`IoClient::open`]. `EINVAL`: the options contradict each other.
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
        let how = u64::from((flags | access | appends).bits()) | u64::from(mode) << 32;
        let request = Request { offset: how.into(), ..Request::new(Op::Open) };
        let result = client.link.enter().call(request, checked(path.as_ref())?)?.0.result;
        let descriptor = u16::try_from(result.get()).map_err(|_| io::Error::from(Errno::PROTO))?;
        Ok(IoFile::new(client.link.clone(), descriptor, append))
    }
}
