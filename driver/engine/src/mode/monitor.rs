//! What is seen of the modes of a node, and of a domain.

use super::{Call, Fabric, LINKS_MAX, Links, Mode, ModeRequest, Protocol, Reason, Receipt, Refusal};
use doorbell_fabric::{Incarnation, NodeId};
use doorbell_shm::board::{BoardCopy, Decided, DecisionRecord, LinkRow, ModeFigures, ModeParts, ModeWord};
use doorbell_shm::domain::list_domains;
use doorbell_shm::error::ShmError;
use doorbell_shm::space::Space;

pub use doorbell_shm::board::SIZE_CLASSES;

/// What a node shows of its links and of how its messages went.
///
/// Of [this node](crate::Node::monitor) it is fresh. Of another it is what lies on its board: nodes show it when they sleep, leave or look at it
/// themselves, and every 50 ms while they wait or poll. A board has room for 64 links; further ones are not seen.
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
    /// Whose it is.
    pub node: NodeId,
    /// Which life of that node.
    pub incarnation: Incarnation,
    /// The links by which it has sent something, by node, fabric and link.
    pub links: Vec<LinkShown>,
    /// How its messages went. Counted are those that were steered: for which a mode was asked, by the call or by the node's defaults, or
    /// about which a policy decided; puts and gets among them.
    pub counts: ModeCounts,
    /// The latest decisions that were other than as asked or as is usual, oldest first; up to 32.
    pub decisions: Vec<DecisionShown>,
}

/// A link by which a node sends to another, all priorities together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkShown {
    /// To which node.
    pub node: NodeId,
    /// To which life of it.
    pub incarnation: Incarnation,
    /// Its kind of fabric.
    pub fabric: Fabric,
    /// Which of that kind, from 0.
    pub link: u8,
    /// Messages and other packets that the target has not taken yet, as far as is known: in shared memory up to a quarter of the lane may
    /// have been taken since.
    pub depth: u32,
    /// Messages that wait in the sending node, for room on this link.
    pub queued: u32,
    /// Bytes that the target has not taken yet; in shared memory those that fit into a cell are not counted.
    pub bytes: u64,
    /// The bytes that there is room for.
    pub room: u64,
    /// What part of the memory holds what was written and not yet read, in thousandths: of its lanes, that of the fullest.
    pub occupancy: u16,
    /// DMA transfers that are not complete, those of which the link carries a part included.
    pub transfers: u32,
    /// Messages sent by it so far to this life.
    pub messages: u64,
    /// Their bytes, those moved by DMA included.
    pub bytes_sent: u64,
}

/// How messages went, of one node or of several: counts since they joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModeCounts(ModeFigures);

/// Sampled latencies: of each 16th steered send that waits, the time from the call until it returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencySum {
    /// How many were sampled.
    pub samples: u64,
    /// What they took together, in nanoseconds.
    pub ns: u64,
}

/// A decision, and when it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecisionShown {
    /// Its number: the first of a node has 1.
    pub number: u64,
    /// When, in nanoseconds of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// What was asked for, what was done, and why. A board has no room for words: why something was not possible, only the receipt says.
    /// It has none for bytes either: [`Receipt::moved`] is `None`.
    pub receipt: Receipt,
}

/// What the links of one kind have to do, on average; zeros without links.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkMeans {
    /// How many links there are.
    pub links: usize,
    /// Messages and packets that their targets have not taken yet.
    pub depth: f64,
    /// Messages that wait in the sending nodes.
    pub queued: f64,
    /// Their occupancy, in thousandths.
    pub occupancy: f64,
}

/// What several nodes show, together.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ModeAggregate {
    /// Of how many nodes.
    pub nodes: usize,
    /// The sums of their counts.
    pub counts: ModeCounts,
    /// Of each kind: how many, and sums of depths, queues and occupancies.
    links: [[u64; 4]; Fabric::ALL.len()],
}

impl ModeMonitor {
    pub(crate) fn new(
        node: NodeId,
        incarnation: Incarnation,
        links: Vec<LinkRow>,
        counts: ModeFigures,
        decisions: Vec<Decided>,
    ) -> Self {
        let mut links: Vec<LinkShown> = links.iter().filter_map(LinkShown::new).collect();
        links.sort_unstable_by_key(|link| (link.node, link.fabric, link.link));
        let decisions = decisions.iter().filter_map(DecisionShown::new).collect();
        Self { node, incarnation, links, counts: ModeCounts(counts), decisions }
    }

    /// What a board shows. Nothing there is trusted: what no node writes is left out.
    pub fn of(board: &BoardCopy) -> Self {
        Self::new(board.node(), board.incarnation(), board.links(), board.modes(), board.decisions())
    }

    /// What all nodes of a domain show that have a board in this space, by node: those that are dead and not removed, too. Copies their boards,
    /// and asks nobody.
    ///
    /// # Errors
    /// The space can't be read.
    pub fn of_domain(space: &Space, domain: &str) -> Result<Vec<Self>, ShmError> {
        let domains = list_domains(space)?;
        let nodes = domains.iter().filter(|found| found.name == domain).flat_map(|found| &found.nodes);
        Ok(nodes.filter_map(|node| node.board.as_ref()).map(Self::of).collect())
    }

    /// Several nodes together: sums of counts, and means over links of a kind.
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

impl LinkShown {
    fn new(row: &LinkRow) -> Option<Self> {
        let LinkRow { node, incarnation, link, depth, queued, bytes, room, transfers, occupancy, messages, bytes_sent, .. } =
            *row;
        let fabric = fabric(row.fabric).filter(|_| usize::from(link) < LINKS_MAX)?;
        Some(Self { node, incarnation, fabric, link, depth, queued, bytes, room, occupancy, transfers, messages, bytes_sent })
    }
}

impl ModeCounts {
    /// Messages for which this kind of fabric was asked for, or none.
    pub fn requests(&self, fabric: Option<Fabric>) -> u64 {
        self.0.get(ModeWord::Requested(fabric.map(|fabric| fabric as u8)))
    }

    /// Messages that took this mode, whatever the link: those that are over, by the protocol that moved most of their bytes.
    pub fn messages(&self, fabric: Fabric, protocol: Protocol) -> u64 {
        self.0.get(ModeWord::Used(fabric as u8, protocol as u8))
    }

    /// Messages that went as asked, or as is usual. One that was begun as asked, and that another protocol moved, counts as
    /// [`Refusal::Unavailable`] when it is over.
    pub fn honoured(&self) -> u64 {
        self.0.get(ModeWord::Honoured)
    }

    /// Messages that did not, for this kind of reason. Those that could not go at all count as [`Refusal::Unavailable`].
    pub fn refused(&self, refusal: Refusal) -> u64 {
        self.0.get(ModeWord::Refused(refusal as u8))
    }

    /// Latencies of a mode, whatever the length.
    pub fn latency(&self, fabric: Fabric, protocol: Protocol) -> LatencySum {
        (0..SIZE_CLASSES).map(|class| self.latency_of(fabric, protocol, class)).fold(LatencySum::default(), |sum, more| {
            LatencySum { samples: sum.samples.saturating_add(more.samples), ns: sum.ns.saturating_add(more.ns) }
        })
    }

    /// Latencies of a mode, of messages of one class of lengths, below [`SIZE_CLASSES`]: up to 64 bytes, up to 256, and so on by fours.
    pub fn latency_of(&self, fabric: Fabric, protocol: Protocol, class: usize) -> LatencySum {
        let (fabric, protocol, class) = (fabric as u8, protocol as u8, class.min(usize::from(u8::MAX)) as u8);
        let get = |word| self.0.get(word);
        LatencySum {
            samples: get(ModeWord::Samples(fabric, protocol, class)),
            ns: get(ModeWord::Nanoseconds(fabric, protocol, class)),
        }
    }

    /// The longest messages of a class of lengths, in bytes; `u64::MAX` for the last.
    pub fn class_bytes(class: usize) -> u64 {
        ModeWord::class_bytes(class.min(usize::from(u8::MAX)) as u8)
    }
}

impl LatencySum {
    /// The mean, in nanoseconds; `None` without samples.
    pub fn mean_ns(&self) -> Option<u64> {
        self.ns.checked_div(self.samples)
    }
}

impl DecisionShown {
    fn new(decided: &Decided) -> Option<Self> {
        let Decided { number, time_ns, record } = *decided;
        let DecisionRecord { to, call, len, in_region, requested, used, beside, reason, figures } = record;
        let call = [Call::Send, Call::Put, Call::Get].into_iter().find(|known| *known as u8 == call)?;
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
            reason: why(reason, figures)?,
        };
        Some(Self { number, time_ns, receipt })
    }
}

fn fabric(number: u8) -> Option<Fabric> {
    Fabric::ALL.into_iter().find(|fabric| *fabric as u8 == number)
}

fn request(parts: ModeParts) -> Option<ModeRequest> {
    let protocol = |number: u8| Protocol::ALL.into_iter().find(|protocol| *protocol as u8 == number);
    Some(ModeRequest {
        fabric: match parts.fabric {
            Some(number) => Some(fabric(number)?),
            None => None,
        },
        link: parts.link,
        protocol: match parts.protocol {
            Some(number) => Some(protocol(number)?),
            None => None,
        },
    })
}

/// The reason of a number, with its figures.
fn why(number: u8, [seen, limit]: [u64; 2]) -> Option<Reason> {
    let word = |value: u64| u32::try_from(value).ok();
    let share = |value: u64| u16::try_from(value).ok();
    Some(match Refusal::ALL.iter().find(|refusal| **refusal as u8 == number)? {
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
