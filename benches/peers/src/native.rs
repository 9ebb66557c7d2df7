//! Doorbell as a peer, through its library.

mod small;
mod steps;

use crate::batch;
use crate::collective::{self, Calls, Members, ROOT, elements};
use crate::order::{Over, Player, Work};
use crate::transport::{BATCH, Result, Setup, StreamBuffers, TAG, Transport};
use doorbell::collective::reduction::Sum;
use doorbell::collective::{Synchronisation, Team};
use doorbell::zerocopy::FromBytes;
use doorbell::{
    Completion, Error, FabricKind, KEY_BYTES, Key, Match, Node, NodeId, Operation, Peer, Progress, ReadWrite, Region, Role,
};
use doorbell_benches::exchange::{self, Buffers, Carrier, Part, Section, Side};
use doorbell_benches::memory::Memory;
use doorbell_benches::stream::{self, Flow, Window};
use doorbell_benches::touch;
use small::{Handled, Several};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use steps::Steps;

/// The timeout for the other processes to join.
const START: Duration = Duration::from_secs(20);
/// The silence over the network after which the other process counts as dead. A process that is stopped for a while must not.
const SILENCE: Duration = Duration::from_secs(10);
/// The key of a network on which nothing is secret.
const SECRET: [u8; 32] = [7; 32];

/// The longest message of a stream through memory for which no buffer is posted.
const LONG: usize = 1 << 20;

const NO_STEPS: &str = "the order asks for no transfer in two steps";

/// A node and its peer.
#[derive(Debug)]
pub struct Doorbell {
    /// The team of all processes and the memory that they combine, where collectives are measured.
    team: Option<(Team, Memory)>,
    // The peer is dropped before the node.
    peer: Peer,
    node: Node,
    work: Work,
    over: Over,
    crowded: bool,
    buffers: Buffers,
    messages: StreamBuffers,
    landing: Option<Landing>,
    steps: Option<Steps>,
    /// The source of messages that the carrier itself writes: one message, or a batch.
    source: Memory,
    /// The number of messages so far that the carrier itself wrote.
    count: u64,
}

/// The destination of puts: this process's region, and the key to the other's.
#[derive(Debug)]
struct Landing {
    own: Region<u64>,
    theirs: Key<u64, ReadWrite>,
    sent: u64,
    received: u64,
}

impl Transport for Doorbell {
    fn open(setup: &Setup<'_>) -> Result<Self> {
        let order = setup.order;
        let nodes = 2 * order.pairs;
        let mut builder = Node::builder(&order.prefix)
            .id(NodeId(setup.node as u16))
            .role(if setup.side() == Side::Ping { Role::Host } else { Role::Accelerator })
            .max_nodes(nodes)
            .loan_bytes((16 * order.bytes()).max(64 << 20));
        if order.work.is_overlap() && setup.side() == Side::Ping {
            builder = builder.progress(Progress::Poller);
        }
        if order.over != Over::Memory {
            builder = builder.fabric(FabricKind::Udp).dead_after(SILENCE);
            if order.over == Over::Sealed {
                builder = builder.key(SECRET);
            }
            builder = match setup.node {
                0 => builder.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
                _ => builder.connect(String::from_utf8(setup.place.find("address", 0)?)?),
            };
        }
        let node = builder.join()?;
        if let Some(address) = node.address().filter(|_| setup.node == 0) {
            setup.place.leave("address", address.to_string().as_bytes())?;
        }
        node.wait_for(nodes, Instant::now() + START)?;
        let peer = node.peer(NodeId(setup.other() as u16))?;
        let (buffers, landing) = match order.work {
            Work::Put => {
                let (buffers, landing) = landing(setup, &node)?;
                (buffers, Some(landing))
            }
            _ => (setup.buffers()?, None),
        };
        let steps = if order.work.is_overlap() { Some(Steps::new(setup, &node)?) } else { None };
        let team = if order.work.is_collective() { Some((team(setup, &node)?, Memory::private(order.bytes())?)) } else { None };
        let (work, crowded, messages) = (order.work, order.crowded(), StreamBuffers::new(order));
        let source = Memory::private(if work == Work::Batch { BATCH * order.bytes() } else { order.bytes() })?;
        Ok(Self { team, peer, node, work, over: order.over, crowded, buffers, messages, landing, steps, source, count: 0 })
    }

    fn version(&self) -> String {
        env!("CARGO_PKG_VERSION").into()
    }

    fn play(&mut self, part: Part<'_>, section: Section) -> Result<()> {
        let Self { peer, buffers, crowded, .. } = self;
        match (&mut self.landing, self.work) {
            (Some(landing), _) => {
                let puts = exchange::play(Puts::new(peer, landing, section.bytes, *crowded), part, section, buffers)?;
                (landing.sent, landing.received) = (puts.sent, puts.received);
            }
            (None, Work::Loan) => {
                // Lines are touched where the message lies.
                let untouched = Section { touched: false, ..section };
                let loans = OnLoan { peer, touched: section.touched, count: self.count };
                self.count = exchange::play(loans, part, untouched, buffers)?.count;
            }
            (None, Work::Handler) => {
                let untouched = Section { touched: false, ..section };
                let handled = Handled { peer, source: &mut self.source, touched: section.touched, count: self.count };
                self.count = exchange::play(handled, part, untouched, buffers)?.count;
            }
            (None, _) => {
                exchange::play(Sent { peer }, part, section, buffers)?;
            }
        }
        Ok(())
    }

    fn batches(&mut self, side: Side, section: Section) -> Result<()> {
        batch::play(&mut Several { peer: &self.peer, source: &mut self.source }, side, section)
    }

    fn stream(&mut self, bytes: usize, flow: Flow) -> Result<()> {
        let Self { node, peer, messages, over, .. } = self;
        Ok(stream::run(&mut Requests { node, peer, posts: *over != Over::Memory || bytes > LONG }, flow, messages.of(bytes)?)?)
    }

    fn memory(&mut self) -> Result<&mut [u8]> {
        self.steps.as_mut().ok_or(NO_STEPS)?.memory()
    }

    fn start(&mut self) -> Result<()> {
        self.steps.as_mut().ok_or(NO_STEPS)?.start(&self.node, &self.peer)
    }

    fn finish(&mut self) -> Result<()> {
        self.steps.as_mut().ok_or(NO_STEPS)?.finish()
    }

    fn collect(&mut self, calls: Calls) -> Result<u64> {
        let (team, memory) = self.team.as_mut().ok_or("no team was formed")?;
        let vector = elements(memory, calls.bytes)?;
        calls.prepare(vector);
        let ticks = collective::run(team, calls, vector)?;
        calls.check(vector)?;
        Ok(ticks)
    }
}

/// The team of all processes, in the order of their numbers.
fn team(setup: &Setup<'_>, node: &Node) -> Result<Team> {
    let ids: Vec<NodeId> = (0..setup.order.processes()).map(|id| NodeId(id as u16)).collect();
    let sync = if setup.order.player == Player::Foreground { Synchronisation::Foreground } else { Synchronisation::Background };
    Ok(Team::builder(node).members(&ids).sync(sync).form_until(Instant::now() + START)?)
}

impl Members for Team {
    type Error = Error;

    #[inline(always)]
    fn barrier(&mut self) -> std::result::Result<(), Error> {
        Team::barrier(self)
    }

    #[inline(always)]
    fn allreduce(&mut self, vector: &mut [i64]) -> std::result::Result<(), Error> {
        Team::allreduce(self, Sum, vector)
    }

    #[inline(always)]
    fn broadcast(&mut self, vector: &mut [i64]) -> std::result::Result<(), Error> {
        Team::broadcast(self, ROOT, vector)
    }
}

/// Memory for puts: the source is private, and the target lies in a region.
fn landing(setup: &Setup<'_>, node: &Node) -> Result<(Buffers, Landing)> {
    let bytes = setup.order.bytes();
    let own = node.region::<u64>(bytes.div_ceil(size_of::<u64>()).max(1))?;
    // SAFETY: this is the only slice of the region, which the clone keeps mapped. The peer, which gets the key later, writes
    // while this process waits for it; until the last word of a message says that the message is complete, this process reads
    // only that word.
    let target = unsafe {
        let start = own.as_mut_slice().as_mut_ptr().cast();
        Memory::lent(start, bytes, Box::new(own.clone()))
    };
    let theirs = setup.place.swap("key", &own.key().to_bytes())?;
    let theirs: [u8; KEY_BYTES] = theirs.try_into().map_err(|_| "the other process left a key of the wrong length")?;
    let landing = Landing { theirs: Key::from_bytes(&theirs)?, own, sent: 0, received: 0 };
    Ok((Buffers::new(Memory::private(bytes)?, target), landing))
}

struct Sent<'a> {
    peer: &'a Peer,
}

impl Carrier for Sent<'_> {
    type Error = Error;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> std::result::Result<(), Error> {
        self.peer.send(TAG, message)
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [u8]) -> std::result::Result<(), Error> {
        self.peer.recv(Match::any().tag(TAG), into).map(drop)
    }
}

/// The buffers of the exchange stay untouched; this carrier touches the loan itself.
struct OnLoan<'a> {
    peer: &'a Peer,
    touched: bool,
    count: u64,
}

impl Carrier for OnLoan<'_> {
    type Error = Error;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> std::result::Result<(), Error> {
        let mut loan = self.peer.node().loan_bytes(message.len())?;
        if self.touched {
            self.count += 1;
            touch::write(&mut loan, self.count);
        }
        loan.send(self.peer, TAG)
    }

    #[inline(always)]
    fn receive(&mut self, _: &mut [u8]) -> std::result::Result<(), Error> {
        let taken = self.peer.take::<[u8]>(Match::any().tag(TAG))?;
        if self.touched {
            // SAFETY: the other process does not write to a loan that it has sent.
            touch::read(unsafe { taken.as_slice() });
        }
        Ok(())
    }
}

/// Marks the word that announces a message, so that no content is mistaken for it. The same as in `c/loops.h`.
const ARRIVED: u64 = 1 << 63;

struct Puts<'a> {
    peer: &'a Peer,
    own: &'a Region<u64>,
    key: Key<u64, ReadWrite>,
    /// The key to the place of a message's last word.
    last: Key<u64, ReadWrite>,
    words: usize,
    crowded: bool,
    sent: u64,
    received: u64,
}

impl<'a> Puts<'a> {
    fn new(peer: &'a Peer, landing: &'a Landing, bytes: usize, crowded: bool) -> Self {
        let Landing { own, theirs, sent, received } = landing;
        let words = (bytes / size_of::<u64>()).max(1);
        let last = theirs.at(words - 1);
        Self { peer, own, key: *theirs, last, words, crowded, sent: *sent, received: *received }
    }
}

impl Carrier for Puts<'_> {
    type Error = Error;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> std::result::Result<(), Error> {
        self.sent += 1;
        if self.words > 1 {
            // Buffers begin at a page, and sizes are multiples of eight.
            let words = <[u64]>::ref_from_bytes(message).unwrap_or_default();
            self.peer.put(&words[..self.words - 1], self.key)?;
            // Flush, so that a reader that sees the last word sees the others.
            self.peer.flush()?;
        }
        self.peer.put(&[ARRIVED | self.sent], self.last)
    }

    /// The message is read where it arrives.
    #[inline(always)]
    fn receive(&mut self, _: &mut [u8]) -> std::result::Result<(), Error> {
        self.received += 1;
        let (own, at, expected) = (self.own, self.words - 1, ARRIVED | self.received);
        let mut word = [0];
        crate::transport::until_pausing(self.crowded, || {
            own.read(at, &mut word)?;
            Ok((word[0] == expected).then_some(()))
        })
    }
}

/// Sends that are under way, and receives.
struct Requests<'a> {
    node: &'a Node,
    peer: &'a Peer,
    /// Whether buffers are posted before their messages come. Through memory that is more work, and messages of up to [`LONG`] bytes wait in
    /// the lane until a call receives them. Streams of longer ones were faster with posted buffers, which the engine fills while this
    /// process waits for a send.
    posts: bool,
}

/// A buffer for a message.
enum Receive {
    Posted(Operation<doorbell::Received<Memory>>),
    Later(Memory),
}

fn finish<B, R>(request: Operation<Completion<B, R>>) -> std::result::Result<B, Error> {
    let completion = request.wait();
    completion.result?;
    Ok(completion.buffer)
}

impl Window for Requests<'_> {
    type Error = Error;
    type Sent = Operation<Completion<Memory>>;
    type Received = Receive;

    #[inline(always)]
    fn start_send(&mut self, message: Memory) -> std::result::Result<Operation<Completion<Memory>>, Error> {
        self.peer.start_send(TAG, message)
    }

    #[inline(always)]
    fn finish_send(&mut self, sent: Operation<Completion<Memory>>) -> std::result::Result<Memory, Error> {
        finish(sent)
    }

    #[inline(always)]
    fn start_receive(&mut self, into: Memory) -> std::result::Result<Receive, Error> {
        if !self.posts {
            return Ok(Receive::Later(into));
        }
        self.node.start_recv(Match::from(self.peer.id()).tag(TAG), into).map(Receive::Posted)
    }

    #[inline(always)]
    fn finish_receive(&mut self, receive: Receive) -> std::result::Result<Memory, Error> {
        match receive {
            // A receive without an error returns its buffer.
            Receive::Posted(operation) => finish(operation)?.ok_or(Error::Cancelled),
            Receive::Later(mut into) => {
                self.peer.recv(Match::any().tag(TAG), &mut into)?;
                Ok(into)
            }
        }
    }
}
