//! The published state of the modes of a node, and of a domain.

use super::{Call, Fabric, LINKS_MAX, Links, Mode, ModeRequest, Protocol, Reason, Receipt, Refusal};
use doorbell_fabric::{Incarnation, NodeId};
use doorbell_shm::board::{Board, BoardCopy, Decided, DecisionRecord, LinkRow, ModeFigures, ModeParts, ModeWord};
use doorbell_shm::domain::list_domains;
use doorbell_shm::error::ShmError;
use doorbell_shm::space::Space;

pub use doorbell_shm::board::SIZE_CLASSES;

/// What a node publishes about its links and about how its messages went.
///
/// For [this node](crate::Node::monitor) it is up to date. For another node it is read from its board. A node updates its board
/// when it sleeps, when it leaves, when it reads its own monitor, and every 50 ms while it waits or polls. A board has room for
/// 64 links; further links are not shown.
///
/// ```
/// use doorbell::mode::{Fabric, ModeMonitor, ModeRequest, Protocol};
/// # use doorbell::{Node, Space};
/// # fn main() -> Result<(), doorbell::Error> {
/// # let space = Space::heap();
/// # let a = Node::builder("seen").space(space.clone()).join()?;
/// # let b = Node::builder("seen").space(space.clone()).join()?;
/// a.send_as(b.id(), 1, b"who reads this?", ModeRequest::fabric(Fabric::Shm))?;
/// let seen = a.monitor()?;
/// assert_eq!((seen.links[0].node, seen.links[0].depth, seen.links[0].messages), (b.id(), 1, 1));
/// assert_eq!(seen.counts.messages(Fabric::Shm, Protocol::Transfer), 1);
/// let domain = ModeMonitor::aggregate(&ModeMonitor::of_domain(&space, "seen")?);
/// assert_eq!(domain.counts.requests(Some(Fabric::Shm)), 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ModeMonitor {
    /// The node.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The links over which it has sent something, by node, fabric and link.
    pub links: Vec<LinkShown>,
    /// Counts of the node's steered messages, including puts and gets. A message is steered if the call or the node's defaults
    /// requested a mode, or if a policy decided.
    pub counts: ModeCounts,
    /// The latest decisions that departed from the request or the default, oldest first; up to 32.
    pub decisions: Vec<DecisionShown>,
}

/// A link over which a node sends to another, all priorities together.
pub type LinkShown = LinkRow<Fabric>;

/// Counts of how the messages of one node or of several went since they joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModeCounts(ModeFigures);

/// Sampled latencies. Each 16th steered send that waits is timed, from the call until it returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencySum {
    /// The number of samples.
    pub samples: u64,
    /// The sum of the samples, in nanoseconds.
    pub ns: u64,
}

/// A decision, and when it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionShown {
    /// Its number. The first decision of a node has 1.
    pub number: u64,
    /// The time in nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// The request, the decision, and the reason. A board has no room for texts, so only the message's own receipt tells why
    /// something was not possible. Nor has it room for bytes: [`Receipt::moved`] is `None`.
    pub receipt: Receipt,
}

/// The mean load of the links of one kind; zeros without links.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkMeans {
    /// The number of links.
    pub links: usize,
    /// The mean number of messages and packets that the targets have not taken yet.
    pub depth: f64,
    /// The mean number of messages that wait in the sending nodes.
    pub queued: f64,
    /// The mean occupancy, in thousandths.
    pub occupancy: f64,
}

/// The combined state of several nodes.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ModeAggregate {
    /// The number of nodes.
    pub nodes: usize,
    /// The sums of their counts.
    pub counts: ModeCounts,
    /// By kind of link: the number, and the sums of depths, queues and occupancies.
    links: [[u64; 4]; Fabric::ALL.len()],
}

impl ModeMonitor {
    pub(crate) fn new(node: NodeId, incarnation: Incarnation, board: Board<'_>) -> Self {
        let known = |row: LinkRow| {
            let fabric = Fabric::from_repr(row.fabric).filter(|_| usize::from(row.link) < LINKS_MAX)?;
            Some(row.with_fabric(fabric))
        };
        let mut links: Vec<LinkShown> = board.links().into_iter().filter_map(known).collect();
        links.sort_unstable_by_key(|link| (link.node, link.fabric, link.link));
        let decisions = board.decisions().iter().filter_map(DecisionShown::new).collect();
        Self { node, incarnation, links, counts: ModeCounts(board.modes()), decisions }
    }

    /// Reads a copy of a board. Its contents are not trusted: values that no correct node writes are left out.
    pub fn of(board: &BoardCopy) -> Self {
        Self::new(board.node(), board.incarnation(), board.board())
    }

    /// The state of all nodes of a domain with a board in this space, by node, including dead nodes that were not removed.
    /// Copies their boards and asks no node.
    ///
    /// # Errors
    /// The space can't be read.
    pub fn of_domain(space: &Space, domain: &str) -> Result<Vec<Self>, ShmError> {
        let domains = list_domains(space)?;
        let nodes = domains.iter().filter(|found| found.name == domain).flat_map(|found| &found.nodes);
        Ok(nodes.filter_map(|node| node.board.as_ref()).map(Self::of).collect())
    }

    /// Combines several nodes: sums of counts, and means over the links of a kind.
    pub fn aggregate<'a>(nodes: impl IntoIterator<Item = &'a ModeMonitor>) -> ModeAggregate {
        let mut all = ModeAggregate::default();
        for node in nodes {
            all.nodes += 1;
            all.counts.0.add(&node.counts.0);
            for link in &node.links {
                let sums = &mut all.links[link.fabric as usize];
                let values = [1, link.depth.into(), link.queued.into(), link.occupancy.into()];
                sums.iter_mut().zip(values).for_each(|(sum, value): (_, u64)| *sum += value);
            }
        }
        all
    }
}

impl ModeAggregate {
    /// The links of one kind.
    pub fn links(&self, fabric: Fabric) -> LinkMeans {
        let [links, depth, queued, occupancy] = self.links[fabric as usize];
        let mean = |sum: u64| if links == 0 { 0.0 } else { sum as f64 / links as f64 };
        LinkMeans { links: links as usize, depth: mean(depth), queued: mean(queued), occupancy: mean(occupancy) }
    }
}

impl ModeCounts {
    /// Messages for which this kind of fabric was requested; with `None`, those for which none was.
    pub fn requests(&self, fabric: Option<Fabric>) -> u64 {
        self.0.get(ModeWord::Requested(fabric.map(|fabric| fabric as u8)))
    }

    /// Messages that took this mode, on any link. A finished message counts for the protocol that moved most of its bytes.
    pub fn messages(&self, fabric: Fabric, protocol: Protocol) -> u64 {
        self.0.get(ModeWord::Used(fabric as u8, protocol as u8))
    }

    /// Messages that went as requested, or by default. A message that was begun as requested, but was moved by another
    /// protocol, counts as [`Refusal::Unavailable`] when it is finished.
    pub fn honoured(&self) -> u64 {
        self.0.get(ModeWord::Honoured)
    }

    /// Messages that did not go as requested, for this kind of reason. Those that could not go at all count as
    /// [`Refusal::Unavailable`].
    pub fn refused(&self, refusal: Refusal) -> u64 {
        self.0.get(ModeWord::Refused(refusal as u8))
    }

    /// Latencies of a mode, for all lengths.
    pub fn latency(&self, fabric: Fabric, protocol: Protocol) -> LatencySum {
        (0..SIZE_CLASSES).map(|class| self.latency_of(fabric, protocol, class)).fold(LatencySum::default(), |sum, more| {
            LatencySum { samples: sum.samples.saturating_add(more.samples), ns: sum.ns.saturating_add(more.ns) }
        })
    }

    /// Latencies of a mode, for messages of one class of lengths. `class` is below [`SIZE_CLASSES`]. The classes reach up to 64
    /// bytes, up to 256, and so on by factors of four.
    pub fn latency_of(&self, fabric: Fabric, protocol: Protocol, class: usize) -> LatencySum {
        let (fabric, protocol, class) = (fabric as u8, protocol as u8, class.min(usize::from(u8::MAX)) as u8);
        let get = |word| self.0.get(word);
        LatencySum {
            samples: get(ModeWord::Samples(fabric, protocol, class)),
            ns: get(ModeWord::Nanoseconds(fabric, protocol, class)),
        }
    }

    /// The length in bytes of the longest messages of a class; `u64::MAX` for the last class.
    pub fn class_bytes(class: usize) -> u64 {
        ModeWord::class_bytes(class.min(usize::from(u8::MAX)) as u8)
    }
}

impl LatencySum {
    /// The mean in nanoseconds; `None` without samples.
    pub fn mean_ns(&self) -> Option<u64> {
        self.ns.checked_div(self.samples)
    }
}

impl DecisionShown {
    fn new(decided: &Decided) -> Option<Self> {
        let Decided { number, time_ns, record } = *decided;
        let DecisionRecord { to, call, len, in_region, requested, used, beside, reason, metrics } = record;
        let call = Call::from_repr(call)?;
        let ModeRequest { fabric: Some(fabric), link: Some(link), protocol: Some(protocol) } = request(used)? else {
            return None;
        };
        let receipt = Receipt {
            to,
            call,
            len,
            in_region,
            requested: request(requested)?,
            decided: Mode { fabric, link, protocol },
            used: Mode { fabric, link, protocol },
            moved: None,
            beside: Links::of_bits(beside),
            reason: why(reason, metrics)?,
        };
        Some(Self { number, time_ns, receipt })
    }
}

/// `None`: a number stands for nothing.
fn request(ModeParts { fabric, link, protocol }: ModeParts) -> Option<ModeRequest> {
    let (known_fabric, known_protocol) = (fabric.and_then(Fabric::from_repr), protocol.and_then(Protocol::from_repr));
    let is_known = known_fabric.is_some() == fabric.is_some() && known_protocol.is_some() == protocol.is_some();
    is_known.then_some(ModeRequest { fabric: known_fabric, link, protocol: known_protocol })
}

/// Decodes a reason from its number and figures.
fn why(number: u8, [seen, limit]: [u64; 2]) -> Option<Reason> {
    let word = |value: u64| u32::try_from(value).ok();
    let share = |value: u64| u16::try_from(value).ok();
    Some(match Refusal::from_repr(number)? {
        Refusal::Queue => Reason::Queue { depth: word(seen)?, limit: word(limit)? },
        Refusal::Occupancy => Reason::Occupancy { occupancy: share(seen)?, limit: share(limit)? },
        Refusal::Size => Reason::Size { limit },
        Refusal::Balance => Reason::Balance { bytes: seen, instead: limit },
        Refusal::Latency => Reason::Latency { asked: word(seen)?, instead: word(limit)? },
        Refusal::Trial => Reason::Trial { every: word(limit)? },
        Refusal::AtWork => Reason::AtWork,
        Refusal::Unavailable => Reason::Unavailable("its receipt says why"),
        Refusal::AllBusy => Reason::AllBusy,
    })
}
