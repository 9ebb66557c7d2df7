//! Sockets of the system: where they are, who connects to them, and to whom this process connects.

use crate::exit::Failure;
use nix::sys::stat::stat;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::fmt;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::net::{UnixDatagram, UnixListener as StdUnixListener};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// How many may wait to be accepted.
const BACKLOG: i32 = 1024;

/// Where a socket is.
#[derive(Clone, Debug)]
pub enum Place {
    /// Host and port.
    Tcp(String),
    Unix(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Tcp(address) => f.write_str(address),
            Place::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Checks that a word is a host and a port.
pub fn tcp(word: &str) -> Result<String, String> {
    let has_port = word.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    if has_port {
        Ok(word.to_owned())
    } else {
        Err("it is no address with a port; hint: write it like 127.0.0.1:6379, [::1]:6379 or localhost:6379".into())
    }
}

impl Place {
    /// Listens there.
    pub fn bind(&self) -> Result<Bound, Failure> {
        let failed = |error: io::Error| {
            let hint = match error.kind() {
                ErrorKind::AddrInUse => "somebody else listens there; choose another place, or end it",
                ErrorKind::PermissionDenied => "this user may not; choose a port from 1024 on, or a directory that is writable",
                ErrorKind::AddrNotAvailable => "it is no address of this machine; 127.0.0.1 and 0.0.0.0 are",
                ErrorKind::NotFound => "its directory has to be there",
                _ => "see --tcp and --unix in --help",
            };
            Failure::usage(format!("cannot listen at {self}: {error}"), hint)
        };
        match self {
            Place::Tcp(address) => bind_tcp(address).map(Bound::Tcp),
            Place::Unix(path) => bind_unix(path),
        }
        .map_err(failed)
    }

    /// Connects to whoever listens there.
    pub async fn connect(&self) -> io::Result<Connection> {
        match self {
            Place::Tcp(address) => TcpStream::connect(address).await.map(Connection::tcp),
            Place::Unix(path) => UnixStream::connect(path).await.map(Connection::Unix),
        }
    }
}

fn bind_tcp(address: &str) -> io::Result<std::net::TcpListener> {
    let mut why = io::Error::new(ErrorKind::AddrNotAvailable, "the name has no address");
    for at in address.to_socket_addrs()? {
        match bind_at(at) {
            Ok(bound) => return Ok(bound),
            Err(error) => why = error,
        }
    }
    Err(why)
}

fn bind_at(at: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&at.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

fn bind_unix(path: &Path) -> io::Result<Bound> {
    let bound = match StdUnixListener::bind(path) {
        // Left by one that was killed.
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_abandoned(path) => {
            fs::remove_file(path)?;
            StdUnixListener::bind(path)?
        }
        bound => bound?,
    };
    bound.set_nonblocking(true)?;
    Ok(Bound::Unix(bound, File { path: path.to_owned(), id: identity(path) }))
}

/// Whether it is a socket that nobody has any more. One of another type is told so without disturbing who listens.
fn is_abandoned(path: &Path) -> bool {
    let connected = UnixDatagram::unbound().and_then(|socket| socket.connect(path));
    connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// Which file it is.
fn identity(path: &Path) -> Option<(u64, u64)> {
    stat(path).ok().map(|found| (found.st_dev, found.st_ino))
}

/// The file of a Unix socket. Dropped, it is removed, unless another is there by now.
#[derive(Debug)]
pub struct File {
    path: PathBuf,
    id: Option<(u64, u64)>,
}

impl Drop for File {
    fn drop(&mut self) {
        if self.id.is_some() && self.id == identity(&self.path) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A socket that listens, of no runtime yet.
#[derive(Debug)]
pub enum Bound {
    Tcp(std::net::TcpListener),
    Unix(StdUnixListener, File),
}

impl Bound {
    /// Where it is: with the port that the system chose.
    pub fn place(&self) -> Place {
        match self {
            Bound::Tcp(listener) => Place::Tcp(listener.local_addr().map_or_else(|_| "?".into(), |address| address.to_string())),
            Bound::Unix(_, file) => Place::Unix(file.path.clone()),
        }
    }

    /// In the present runtime.
    pub fn enter(self) -> io::Result<Listener> {
        Ok(match self {
            Bound::Tcp(listener) => Listener::Tcp(TcpListener::from_std(listener)?),
            Bound::Unix(listener, file) => Listener::Unix(UnixListener::from_std(listener)?, file),
        })
    }
}

/// A socket that listens.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, #[expect(dead_code, reason = "removes the file when it is dropped")] File),
}

impl Listener {
    /// The next connection.
    pub async fn accept(&self) -> io::Result<Connection> {
        match self {
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| Connection::tcp(stream)),
            Listener::Unix(listener, _) => listener.accept().await.map(|(stream, _)| Connection::Unix(stream)),
        }
    }
}

/// A connected socket.
#[derive(Debug)]
pub enum Connection {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Connection {
    fn tcp(stream: TcpStream) -> Self {
        // Small messages go at once; and whose machine vanished is noticed some day. Without them it is slower, and works.
        let _ = stream.set_nodelay(true);
        let _ = SockRef::from(&stream).set_keepalive(true);
        Self::Tcp(stream)
    }

    /// When it is dropped its other side is told that it was cut off (RST), and not that all was said.
    pub fn cut(&self) {
        if let Connection::Tcp(stream) = self {
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
        }
    }
}
