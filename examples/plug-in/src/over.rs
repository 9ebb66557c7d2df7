//! The transport, which is all that Doorbell changes in a program.

use clap::ValueEnum;
use doorbell::Node;
use futures::Stream;
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tonic::transport::server::Connected;

/// The transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Over {
    /// A Unix socket, in the directory for temporary files
    Unix,
    /// A stream of Doorbell, through shared memory
    Doorbell,
}

impl Over {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unix => "unix",
            Self::Doorbell => "doorbell",
        }
    }
}

fn socket(name: &str, service: &str) -> PathBuf {
    std::env::temp_dir().join(format!("{name}.{service}.sock"))
}

/// Where a service waits for connections.
pub enum Listener {
    /// A socket, and its file.
    Unix(UnixListener, SocketFile),
    /// A service of a node. The node is kept because its streams end with it.
    Doorbell(doorbell::Listener, Node),
}

impl Listener {
    /// Offers a service: in the domain `name`, or at a socket of that name.
    ///
    /// # Errors
    /// Another server listens there already, or the system refuses the listener.
    pub fn bind(over: Over, name: &str, service: &str) -> io::Result<Self> {
        match over {
            Over::Unix => {
                let path = socket(name, service);
                // The socket file of a killed server.
                if std::os::unix::net::UnixStream::connect(&path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
                    std::fs::remove_file(&path)?;
                }
                Ok(Self::Unix(UnixListener::bind(&path)?, SocketFile(path)))
            }
            Over::Doorbell => {
                let node = Node::builder(name).join()?;
                Ok(Self::Doorbell(doorbell::Listener::builder(&node, service).bind()?, node))
            }
        }
    }

    /// The next connection.
    ///
    /// # Errors
    /// The listener is closed.
    pub async fn accept(&self) -> io::Result<Connection> {
        match self {
            Self::Unix(listener, _) => Ok(Connection::Unix(listener.accept().await?.0)),
            Self::Doorbell(listener, _) => Ok(Connection::Doorbell(listener.accept_async().await?.0)),
        }
    }

    /// All connections, one after another.
    pub fn incoming(self) -> impl Stream<Item = io::Result<Connection>> + Send {
        futures::stream::unfold(self, |listener| async move { Some((listener.accept().await, listener)) })
    }
}

/// A socket file that is removed with its listener.
pub struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Connects a client to a service, as often as needed. The last clone keeps the node, and connections over Doorbell end with the node.
#[derive(Clone, Debug)]
pub enum Connector {
    /// The path of the socket.
    Unix(PathBuf),
    /// The service, and the node.
    Doorbell(doorbell::StreamBuilder),
}

impl Connector {
    /// A connector to the service that [`Listener::bind`] offers.
    ///
    /// # Errors
    /// The domain can't be joined.
    pub fn new(over: Over, name: &str, service: &str) -> io::Result<Self> {
        Ok(match over {
            Over::Unix => Self::Unix(socket(name, service)),
            Over::Doorbell => Self::Doorbell(doorbell::Stream::builder(&Node::builder(name).join()?, service)),
        })
    }

    /// Connects.
    ///
    /// # Errors
    /// No server offers the service.
    pub async fn connect(&self) -> io::Result<Connection> {
        match self {
            Self::Unix(path) => match UnixStream::connect(path).await {
                Ok(stream) => Ok(Connection::Unix(stream)),
                Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}; start the server", path.display()))),
            },
            Self::Doorbell(connector) => Ok(Connection::Doorbell(connector.connect_async().await?)),
        }
    }
}

/// Bytes in both directions.
pub enum Connection {
    /// Over a socket.
    Unix(UnixStream),
    /// Over Doorbell.
    Doorbell(doorbell::Stream),
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_read(context, into),
            Self::Doorbell(stream) => AsyncRead::poll_read(Pin::new(stream), context, into),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_write(context, from),
            Self::Doorbell(stream) => AsyncWrite::poll_write(Pin::new(stream), context, from),
        }
    }

    fn poll_write_vectored(self: Pin<&mut Self>, context: &mut Context<'_>, from: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(context, from),
            Self::Doorbell(stream) => AsyncWrite::poll_write_vectored(Pin::new(stream), context, from),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Unix(stream) => stream.is_write_vectored(),
            Self::Doorbell(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
            Self::Doorbell(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Doorbell(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// For tonic: nothing is known of the caller.
impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

/// For axum.
impl axum::serve::Listener for Listener {
    type Io = Connection;
    type Addr = ();

    async fn accept(&mut self) -> (Connection, ()) {
        match Listener::accept(self).await {
            Ok(connection) => (connection, ()),
            // No more connections come. axum has no way to say so.
            Err(_) => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}
