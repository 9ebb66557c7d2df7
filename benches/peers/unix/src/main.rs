//! A Unix socket as a peer of Doorbell: what most programs on one machine use. One stream, with calls that block.
//!
//! A byte stream has no messages: both sides know the lengths, and there is only one tag. The socket's buffers have the size that the
//! system gives.

use doorbell_benches::exchange::{self, Buffers, Carrier, Part, Section};
use doorbell_benches::stream::{self, Flow};
use doorbell_peers::order::{Over, Work};
use doorbell_peers::transport::{AtOnce, Fault, Result, Setup, StreamBuffers, Transport, unknown};
use doorbell_peers::worker;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::ExitCode;
use std::time::Duration;

/// The timeout for the other process.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    worker::main::<Unix>()
}

struct Unix {
    socket: UnixStream,
    buffers: Buffers,
    messages: StreamBuffers,
}

impl Transport for Unix {
    fn open(setup: &Setup<'_>) -> Result<Self> {
        let order = setup.order;
        if order.over != Over::Memory || !matches!(order.work, Work::Latency | Work::Rate | Work::OneWay) {
            return Err(unknown("the Unix socket", order.work, order.over));
        }
        let path = setup.place.dir().join("socket");
        let socket = if setup.node == 0 {
            let listener = UnixListener::bind(&path)?;
            setup.place.leave("listens", &[])?;
            listener.accept()?.0
        } else {
            setup.place.find("listens", 0)?;
            UnixStream::connect(&path)?
        };
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { socket, buffers: setup.buffers()?, messages: StreamBuffers::new(order) })
    }

    fn version(&self) -> String {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        format!("a stream, Linux {}", kernel.trim())
    }

    fn play(&mut self, part: Part<'_>, section: Section) -> Result<()> {
        exchange::play(Way(&self.socket), part, section, &mut self.buffers)?;
        Ok(())
    }

    fn stream(&mut self, bytes: usize, flow: Flow) -> Result<()> {
        stream::run(&mut AtOnce(Way(&self.socket)), flow, self.messages.of(bytes)?)
    }
}

struct Way<'a>(&'a UnixStream);

impl Carrier for Way<'_> {
    type Error = Fault;

    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.0.write_all(message)?;
        Ok(())
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<()> {
        self.0.read_exact(into)?;
        Ok(())
    }
}
