//! TCP and Unix sockets: their places, listeners and connections.

use crate::exit::Failure;
use crate::paths::{directory, kind};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::fmt;
use std::fs::{self, TryLockError};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixDatagram, UnixListener as StdUnixListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpStream, UnixStream};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;
/// The hint for an address that is in use.
const IN_USE: &str = "another process listens there; choose another place, or end that process";
/// How long to wait for the lock of a directory, and the pause between two attempts.
const LOCKED_MOST: Duration = Duration::from_secs(2);
const LOCKED_AGAIN: Duration = Duration::from_millis(5);

/// The place of a socket.
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

impl Place {
    /// A place of this host and port.
    pub fn tcp(word: &str) -> Result<Self, String> {
        match word.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(Self::Tcp(word.to_owned())),
            _ => Err("it is no address with a port; hint: write it like 127.0.0.1:6379, [::1]:6379 or localhost:6379".into()),
        }
    }

    /// Listens there.
    pub fn bind(&self) -> Result<Bound, Failure> {
        let bound = match self {
            Place::Tcp(address) => bind_tcp(&found(address)?).and_then(|socket| {
                let at = socket.local_addr()?.as_socket().map_or_else(|| "?".into(), |at| at.to_string());
                Bound::new(None, socket, Place::Tcp(at))
            }),
            Place::Unix(path) => {
                let listener = match StdUnixListener::bind(path) {
                    Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(self.take_over(path)?),
                    bound => bound,
                };
                let file = || File { path: path.to_owned(), id: identity(path) };
                listener.and_then(|listener| Bound::new(Some(file()), listener.into(), self.clone()))
            }
        };
        bound.map_err(|error| self.cannot_listen(&error))
    }

    fn cannot_listen(&self, error: &io::Error) -> Failure {
        let hint = match error.kind() {
            ErrorKind::AddrInUse => IN_USE,
            ErrorKind::PermissionDenied => "this user may not; choose a port from 1024 on, or a directory that is writable",
            ErrorKind::AddrNotAvailable => "it is no address of this machine; 127.0.0.1 and 0.0.0.0 are",
            ErrorKind::NotFound => "its directory has to be there",
            ErrorKind::InvalidInput => "the path of a Unix socket has 107 bytes at most",
            _ => "see `--help` for the forms of an address",
        };
        Failure::usage(format!("cannot listen at {self}: {error}"), hint)
    }

    /// Listens at a path that exists. Replaces a socket that no process has open, and refuses everything else.
    fn take_over(&self, path: &Path) -> Result<StdUnixListener, Failure> {
        let refused = |what: &str, hint| Err(Failure::usage(format!("cannot listen at {self}: {what}"), hint));
        // If two bridges find the same abandoned socket, the second one must see the socket of the first.
        let locked = lock(directory(path));
        let _lock = locked.map_err(|error| {
            let what = format!("cannot listen at {self}: its directory cannot be locked: {error}");
            Failure::usage(what, "choose a path in another directory, or remove what is at this one")
        })?;
        // Does not follow a symbolic link, because removing would remove the link itself.
        match fs::symlink_metadata(path).map(|found| found.file_type()) {
            Ok(found) if found.is_socket() && is_abandoned(path) => {
                fs::remove_file(path).map_err(|error| self.cannot_listen(&error))?;
            }
            Ok(found) if found.is_socket() => return refused("the path is in use", IN_USE),
            Ok(found) if found.is_dir() => return refused("a directory is there", "name a path in that directory"),
            Ok(found) if found.is_symlink() => {
                return refused("a symbolic link is there", "name the path that the link leads to, or remove the link");
            }
            Ok(found) => {
                let what = format!("{} is there", kind(found));
                return refused(&what, "choose another path, or remove that file if nobody needs it");
            }
            // The file was removed meanwhile.
            Err(_) => {}
        }
        match StdUnixListener::bind(path) {
            // Another bridge began to listen meanwhile. A bridge takes no lock if the path does not exist.
            Err(error) if error.kind() == ErrorKind::AddrInUse => refused("the path is in use", IN_USE),
            bound => bound.map_err(|error| self.cannot_listen(&error)),
        }
    }

    /// Refuses a path that can never accept a connection. A path that does not exist may get a server later.
    pub fn may_accept(&self) -> Result<(), Failure> {
        let Place::Unix(path) = self else { return Ok(()) };
        match fs::metadata(path).map(|found| found.file_type()) {
            Ok(found) if !found.is_socket() => {
                let what = format!("cannot connect to {self}: {} is there", kind(found));
                Err(Failure::usage(what, "name the path of the server's socket"))
            }
            _ => Ok(()),
        }
    }

    /// Connects to the listener at the place.
    pub async fn connect(&self) -> io::Result<Connection> {
        match self {
            Place::Tcp(address) => connected(TcpStream::connect(address).await?.into_std()?.into()),
            Place::Unix(path) => UnixStream::connect(path).await,
        }
    }
}

/// The addresses of a host and port.
fn found(address: &str) -> Result<Vec<SocketAddr>, Failure> {
    let name = address.rsplit_once(':').map_or(address, |(name, _)| name);
    let found = address.to_socket_addrs().map_err(|error| unknown(name, &error))?;
    Ok(found.collect())
}

/// The failure of a name that the system's resolver does not know.
pub fn unknown(name: &str, why: &impl fmt::Display) -> Failure {
    let hint = format!("check the name with `getent hosts {name}`, or give an IP address");
    Failure::usage(format!("cannot find '{name}': {why}"), hint)
}

/// A socket at the first of the addresses that can be listened at.
fn bind_tcp(addresses: &[SocketAddr]) -> io::Result<Socket> {
    let mut failed = Vec::new();
    for at in addresses {
        match bind_at(*at) {
            Ok(bound) => return Ok(bound),
            Err(error) => failed.push((at, error)),
        }
    }
    // Of several addresses, the message names each.
    let all = || failed.iter().map(|(at, error)| format!("{at}: {error}")).collect::<Vec<_>>().join("; ");
    Err(match &failed[..] {
        [] => io::Error::new(ErrorKind::AddrNotAvailable, "the name has no address"),
        [(_, error)] => io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EADDRNOTAVAIL)),
        [.., (_, error)] => io::Error::new(error.kind(), all()),
    })
}

fn bind_at(at: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&at.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// Locks a directory for as long as the returned file lives. Other bridges hold the lock only for a moment.
fn lock(directory: &Path) -> io::Result<fs::File> {
    let directory = fs::File::open(directory)?;
    let deadline = Instant::now() + LOCKED_MOST;
    loop {
        match directory.try_lock() {
            Ok(()) => return Ok(directory),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(LOCKED_AGAIN),
            Err(TryLockError::WouldBlock) => return Err(io::Error::new(ErrorKind::TimedOut, "another process keeps it locked")),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Whether no process has the socket open. Connecting with another socket type does not disturb a listener.
fn is_abandoned(path: &Path) -> bool {
    let connected = UnixDatagram::unbound().and_then(|socket| socket.connect(path));
    connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// The device and inode of a file.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// The file of a Unix socket. Dropping it removes the file, unless another file has taken the path. It must be dropped before the socket is
/// closed: until then no other bridge replaces the file, and no other file gets its inode.
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

/// A listening socket that belongs to no runtime yet. The fields are dropped in this order.
#[derive(Debug)]
pub struct Bound {
    file: Option<File>,
    socket: Socket,
    /// The place, with the port that the system chose.
    pub place: Place,
}

impl Bound {
    fn new(file: Option<File>, socket: Socket, place: Place) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { file, socket, place })
    }

    /// Enters the current runtime.
    pub fn enter(self) -> io::Result<Listener> {
        // SAFETY: a socket keeps its descriptor until it is dropped.
        Ok(Listener { _file: self.file, socket: unsafe { AsyncFd::register(self.socket) }? })
    }
}

/// A listening socket. The fields are dropped in this order.
#[derive(Debug)]
pub struct Listener {
    _file: Option<File>,
    socket: AsyncFd<Socket>,
}

impl Listener {
    /// The next connection.
    pub async fn accept(&self) -> io::Result<Connection> {
        let (socket, _) = self.socket.async_io(Interest::READABLE, Socket::accept).await?;
        connected(socket)
    }
}

/// A connected socket of any family. The system calls that read, write and shut down are the same for all of them, so the runtime's type for Unix
/// sockets carries TCP, too.
pub type Connection = UnixStream;

fn connected(socket: Socket) -> io::Result<Connection> {
    // Small messages go out at once, and a vanished machine is noticed at some time. Without these options, as on a Unix socket, the bridge still works.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_keepalive(true);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket.into())
}

/// Makes dropping a TCP connection reset it (RST) instead of ending it normally.
pub fn cut(connection: &Connection) {
    let _ = SockRef::from(connection).set_linger(Some(Duration::ZERO));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};

    const BRIDGES: usize = 4;
    const ROUNDS: usize = 500;

    struct Directory(PathBuf);

    impl Directory {
        fn new(what: &str) -> Self {
            let path = std::env::temp_dir().join(format!("doorbell-socket-{what}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    /// Closes the socket and leaves its file, as a bridge does that is killed.
    fn abandon(bound: Bound) {
        std::mem::forget(bound.file);
    }

    #[test]
    fn of_bridges_that_start_together_one_has_the_path() {
        let directory = Directory::new("together");
        let path = directory.0.join("socket");
        let (place, barrier) = (Place::Unix(path.clone()), Barrier::new(BRIDGES));
        // How many had the path in a round, and how many of these were not found there.
        let (had, lost) = ([(); ROUNDS].map(|()| AtomicU32::new(0)), AtomicU32::new(0));
        let bridge = |number: usize| {
            for had in &had {
                if number == 0 {
                    abandon(place.bind().unwrap());
                }
                barrier.wait();
                let bound = place.bind();
                barrier.wait();
                if bound.is_ok() {
                    had.fetch_add(1, Ordering::SeqCst);
                    lost.fetch_add(u32::from(UnixStream::connect(&path).is_err()), Ordering::SeqCst);
                }
                barrier.wait();
                drop(bound);
                barrier.wait();
            }
        };
        std::thread::scope(|scope| (0..BRIDGES).for_each(|number| drop(scope.spawn(move || bridge(number)))));
        assert!(had.iter().all(|had| had.load(Ordering::SeqCst) == 1), "{had:?}");
        assert_eq!(lost.into_inner(), 0);
    }

    #[test]
    fn a_bridge_that_ends_leaves_the_next_one_its_path() {
        let directory = Directory::new("next");
        let path = directory.0.join("socket");
        let (place, barrier) = (Place::Unix(path.clone()), Barrier::new(2));
        let lost = std::thread::scope(|scope| {
            let (place, barrier) = (&place, &barrier);
            let ends = scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let bound = place.bind();
                    barrier.wait();
                    drop(bound);
                    barrier.wait();
                    barrier.wait();
                }
            });
            let mut lost = 0;
            for _ in 0..ROUNDS {
                barrier.wait();
                let deadline = Instant::now() + Duration::from_secs(10);
                let next = std::iter::from_fn(|| (Instant::now() < deadline).then(|| place.bind())).find_map(Result::ok);
                barrier.wait();
                lost += u32::from(UnixStream::connect(&path).is_err());
                drop(next);
                barrier.wait();
            }
            ends.join().unwrap();
            lost
        });
        assert_eq!(lost, 0, "of {ROUNDS}");
    }

    #[test]
    fn a_directory_that_stays_locked_is_said() {
        let directory = Directory::new("locked");
        let place = Place::Unix(directory.0.join("socket"));
        abandon(place.bind().unwrap());
        let locked = fs::File::open(&directory.0).unwrap();
        locked.lock().unwrap();
        let said = place.bind().unwrap_err().to_string();
        assert!(said.contains("its directory cannot be locked: another process keeps it locked; hint: "), "{said}");
        drop(locked);
        place.bind().unwrap();
    }
}
