//! Boards as metrics for Prometheus, in its own text format and in OpenMetrics.

use super::latency::Spread;
use crate::nodes::{injector, priority, state};
use doorbell::Metric;
use doorbell::mode::{Fabric, ModeMonitor, Protocol, Refusal};
use doorbell_shm::board::{BoardCopy, FifoShown, FigureKind};
use doorbell_shm::domain::{DomainLayout, DomainStatus, NodeStatus};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, NoLabelSet, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// The most bytes of an answer. Hostile boards can show many FIFOs and links.
const MOST_BYTES: usize = 32 << 20;
/// The most injection FIFOs that are shown of a node.
const MOST_FIFOS: usize = 64;

/// The form of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The text format of Prometheus.
    Prometheus,
    /// OpenMetrics.
    OpenMetrics,
}

impl Form {
    /// The form that a scraper asks for.
    pub fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") { Self::OpenMetrics } else { Self::Prometheus }
    }

    /// The type of the content.
    pub fn content(self) -> &'static str {
        match self {
            Self::Prometheus => prometheus_text::CONTENT_TYPE,
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The text of these domains, or why there is none. `took` is the time that reading them took.
pub fn render(domains: Vec<DomainStatus>, took: Duration, form: Form) -> Result<String, String> {
    let mut registry = Registry::with_prefix("doorbell");
    registry.register_collector(Box::new(Boards { domains, took }));
    let mut text = Bounded(String::new());
    let done = match form {
        Form::Prometheus => prometheus_text::encode(&mut text, &registry),
        Form::OpenMetrics => text::encode(&mut text, &registry),
    };
    done.map(|()| text.0).map_err(|_| format!("the metrics take more than {} MiB; name one domain", MOST_BYTES >> 20))
}

/// A text that fails when it becomes too long.
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MOST_BYTES {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
struct Boards {
    domains: Vec<DomainStatus>,
    took: Duration,
}

/// A node with its labels.
struct Place<'a> {
    labels: Labels,
    node: &'a NodeStatus,
}

impl Place<'_> {
    fn and(&self, more: impl IntoIterator<Item = (&'static str, String)>) -> Labels {
        self.labels.iter().cloned().chain(more).collect()
    }
}

impl Collector for Boards {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut to = Writer(encoder);
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        to.info("build", "The version of the command that serves these metrics.", [version])?;
        to.gauge("look", "How long it took to read all boards.", Some(Unit::Seconds), [(Vec::new(), self.took.as_secs_f64())])?;
        self.domains(&mut to)?;
        let places: Vec<Place<'_>> = (self.domains.iter())
            .flat_map(|domain| {
                domain
                    .nodes
                    .iter()
                    .map(|node| Place { labels: vec![("domain", domain.name.clone()), ("node", node.id.to_string())], node })
            })
            .collect();
        nodes(&mut to, &places)?;
        figures(&mut to, &places)?;
        latencies(&mut to, &places)?;
        fifos(&mut to, &places)?;
        let modes: Vec<(&Place<'_>, ModeMonitor)> =
            places.iter().filter_map(|place| Some((place, ModeMonitor::of(place.node.board.as_ref()?)))).collect();
        links(&mut to, &modes)?;
        self::modes(&mut to, &modes)?;
        self.locks(&mut to)?;
        self.devices(&mut to)
    }
}

impl Boards {
    fn domains(&self, to: &mut Writer<'_>) -> fmt::Result {
        let one = |domain: &DomainStatus| vec![("domain", domain.name.clone())];
        let layout = |domain: &DomainStatus| {
            let word = match domain.layout {
                DomainLayout::Ours => "ours",
                DomainLayout::Other { .. } => "other",
                DomainLayout::Damaged { .. } => "damaged",
                _ => "missing",
            };
            [one(domain), vec![("layout", word.to_owned())]].concat()
        };
        let help = "A domain. Its layout is that of this build, of another one, damaged, or missing.";
        to.info("domain", help, self.domains.iter().map(layout))?;
        let states = |domain: &DomainStatus| {
            ["alive", "stopped", "dead"].map(|word| {
                let count = domain.nodes.iter().filter(|node| state(node) == word).count() as u64;
                ([one(domain), vec![("state", word.to_owned())]].concat(), count)
            })
        };
        to.gauge("nodes", "Nodes by state.", None, self.domains.iter().flat_map(states))?;
        let most = |domain: &DomainStatus| Some((one(domain), domain.max_nodes? as u64));
        to.gauge("nodes_most", "The number of nodes that the domain can have.", None, self.domains.iter().filter_map(most))?;
        let bytes = self.domains.iter().map(|domain| (one(domain), domain.bytes));
        to.gauge("domain_memory", "Bytes of all segments of the domain.", Some(Unit::Bytes), bytes)
    }

    fn locks(&self, to: &mut Writer<'_>) -> fmt::Result {
        // The registry has each name once, unless it is damaged.
        let mut seen = BTreeSet::new();
        let locks = self.domains.iter().flat_map(|domain| domain.keys.iter().map(move |lock| (&domain.name, lock)));
        let locks: Vec<_> = locks.filter(|(domain, lock)| seen.insert((*domain, &lock.name))).collect();
        let all = |value: &dyn Fn(&doorbell::LockFacts) -> u64| -> Vec<(Labels, u64)> {
            let labels = |domain: &str, name: &str| vec![("domain", domain.to_owned()), ("lock", name.to_owned())];
            locks.iter().map(|(domain, lock)| (labels(domain, &lock.name), value(lock))).collect()
        };
        to.gauge("lock_held", "Whether a node holds the lock.", None, all(&|lock| lock.seen.owner().is_some().into()))?;
        to.gauge("lock_waiting", "Threads that wait for the lock.", None, all(&|lock| lock.waiting.len() as u64))?;
        to.gauge("lock_users", "Nodes that have opened the lock.", None, all(&|lock| lock.users.len() as u64))?;
        let damaged = all(&|lock| (lock.dead.is_some() || lock.seen.is_damaged()).into());
        to.gauge("lock_damaged", "Whether an owner died with the lock, and its resource is not repaired.", None, damaged)
    }

    fn devices(&self, to: &mut Writer<'_>) -> fmt::Result {
        let mut seen = BTreeSet::new();
        let devices = self.domains.iter().flat_map(|domain| domain.devices.iter().map(move |device| (&domain.name, device)));
        let devices: Vec<_> = devices.filter(|(domain, device)| seen.insert((*domain, &device.name))).collect();
        let all = |value: &dyn Fn(&doorbell_shm::device::DeviceFacts) -> u64| -> Vec<(Labels, u64)> {
            let labels = |domain: &str, name: &str| vec![("domain", domain.to_owned()), ("device", name.to_owned())];
            devices.iter().map(|(domain, device)| (labels(domain, &device.name), value(device))).collect()
        };
        let sum = |values: &mut dyn Iterator<Item = u64>| values.fold(0, u64::saturating_add);
        let stored = all(&|device| sum(&mut device.threads.iter().map(|thread| thread.stored)));
        to.gauge("device_stored", "Messages that wait for a receiving thread of the shared device.", None, stored)?;
        let waiting = all(&|device| sum(&mut device.lanes.iter().map(|lane| lane.waiting)));
        to.gauge("device_waiting", "Bytes in the lanes of the shared device.", Some(Unit::Bytes), waiting)?;
        to.counter("device_received", "Messages that the shared device received.", None, all(&|device| device.counts.received))?;
        to.counter("device_dropped", "Messages that the shared device dropped.", None, all(&|device| device.counts.dropped))
    }
}

fn nodes(to: &mut Writer<'_>, places: &[Place<'_>]) -> fmt::Result {
    let about = |place: &Place<'_>| {
        let member = place.node.member.as_ref();
        let text = |text: Option<String>| text.unwrap_or_default();
        let more = [
            ("role", text(member.map(|member| member.role.word().to_owned()))),
            ("label", text(member.map(|member| member.label.clone()))),
            ("pid", text(member.map(|member| member.pid.to_string()))),
        ];
        place.and(more)
    };
    to.info("node", "A node, with what does not change while it lives.", places.iter().map(about))?;
    let alive = places.iter().map(|place| (place.and([]), u64::from(place.node.alive)));
    to.gauge("node_alive", "Whether the process of the node lives.", None, alive)?;
    let stopped = places.iter().map(|place| (place.and([]), u64::from(state(place.node) == "stopped")));
    to.gauge("node_stopped", "Whether the process of the node was stopped by a signal.", None, stopped)?;
    let incarnation = |place: &Place<'_>| {
        let (member, board) = (place.node.member.as_ref(), place.node.board.as_ref());
        let incarnation = member.map(|member| member.incarnation).or(board.map(BoardCopy::incarnation))?;
        Some((place.and([]), u64::from(incarnation.0)))
    };
    let help = "The incarnation of the node. A node that joins again gets a higher one, and its counters begin at zero.";
    to.gauge("node_incarnation", help, None, places.iter().filter_map(incarnation))?;
    let joined = |place: &Place<'_>| Some((place.and([]), place.node.member.as_ref()?.joined.as_secs_f64()));
    let help = "When the node joined, in seconds since 1970.";
    to.gauge("node_joined_timestamp", help, Some(Unit::Seconds), places.iter().filter_map(joined))?;
    let memory = places.iter().map(|place| (place.and([]), place.node.bytes));
    to.gauge("node_memory", "Bytes of the segments of the node.", Some(Unit::Bytes), memory)
}

/// All metrics of the boards.
fn figures(to: &mut Writer<'_>, places: &[Place<'_>]) -> fmt::Result {
    let shown = |place: &Place<'_>| Some((place.and([]), place.node.board.as_ref()?.board().metrics()));
    let shown: Vec<_> = places.iter().filter_map(shown).collect();
    for metric in Metric::ALL.iter().copied() {
        let rows = shown.iter().map(|(labels, metrics)| (labels.clone(), metrics[metric]));
        let unit = metric.is_bytes().then_some(Unit::Bytes);
        match metric.kind() {
            FigureKind::Total => to.counter(&name(metric), help(metric), unit, rows)?,
            _ => to.gauge(&name(metric), help(metric), unit, rows)?,
        }
    }
    Ok(())
}

/// The name of a metric without its unit. OpenMetrics wants the unit at the end.
fn name(metric: Metric) -> String {
    match metric {
        Metric::BytesIn => "messages_in".into(),
        Metric::BytesOut => "messages_out".into(),
        Metric::BytesFifo => "transfers_by_fifo".into(),
        Metric::BytesPut => "transfers_put".into(),
        Metric::BytesPulled => "transfers_pulled".into(),
        metric => metric.word().split('_').filter(|part| *part != "bytes").collect::<Vec<_>>().join("_"),
    }
}

/// What a metric says, in one sentence.
fn help(metric: Metric) -> &'static str {
    use Metric::*;
    match metric {
        MessagesIn => "Messages that arrived in full.",
        BytesIn => "Bytes of the messages that arrived in full.",
        MessagesOut => "Messages sent.",
        BytesOut => "Bytes of the messages sent.",
        Pooled => "Messages that wait for a matching receive.",
        PooledBytes => "Bytes of the messages that wait for a matching receive.",
        Parks => "Times a thread slept on the doorbell.",
        PooledBytesMost => "The most bytes that waiting messages ever occupied.",
        Unexpected => "Messages that arrived before a matching receive was posted.",
        ByPoller => "Messages that the poller thread received.",
        Turns => "Turns of the engine.",
        FifoHigh => "Descriptors in the injection FIFO of high priority.",
        FifoNormal => "Descriptors in the injection FIFO of normal priority.",
        FifoLow => "Descriptors in the injection FIFO of low priority.",
        FifoHighMost => "The most descriptors that the injection FIFO of high priority ever held.",
        FifoNormalMost => "The most descriptors that the injection FIFO of normal priority ever held.",
        FifoLowMost => "The most descriptors that the injection FIFO of low priority ever held.",
        MemoryFifos => "Memory-FIFO descriptors executed.",
        DirectPuts => "Direct-put descriptors executed.",
        RemoteGets => "Remote-get descriptors executed.",
        Rts => "Request-to-send descriptors executed.",
        BytesFifo => "Bytes of transfers that travelled as memory-FIFO packets.",
        BytesPut => "Bytes of transfers that this node put as their origin.",
        BytesPulled => "Bytes of transfers that this node pulled as their target.",
        BytesPutByKey => "Bytes put by key.",
        BytesGotByKey => "Bytes got by key.",
        BytesLoaned => "Bytes of the loans sent.",
        Transfers => "Transfers that this node completed, as origin or as target.",
        CountersUsed => "DMA counters in use.",
        CounterZeros => "Times a DMA counter reached zero.",
        Descriptors => "Descriptors that the DMA engine executed for FIFOs of the program and of peers.",
        DescriptorFaults => "Descriptors that failed.",
        PeersDied => "Peers that died.",
        Collectives => "Collectives that completed on this node.",
        TurnsAcquired => "Turns of team channels that were acquired at once.",
        TurnsQueued => "Turns that found no channel available, and were queued.",
        TurnsSynchronised => "Background synchronisations that were posted.",
        TurnsForeseen => "Turns whose channel the other members had reported available in their posts.",
        _ => "A metric of the board that this command has no words for.",
    }
}

fn latencies(to: &mut Writer<'_>, places: &[Place<'_>]) -> fmt::Result {
    let rows = places.iter().filter_map(|place| {
        let mut spread = Spread::default();
        spread.add(&place.node.board.as_ref()?.board().latencies());
        Some((place.and([]), spread))
    });
    to.histogram(
        "latency",
        "From publishing to taking a message, of one packet of a lane in 64, at most one a millisecond. The sum is estimated.",
        Unit::Seconds,
        rows,
    )
}

fn fifos(to: &mut Writer<'_>, places: &[Place<'_>]) -> fmt::Result {
    let of = |place: &Place<'_>| -> Vec<(Labels, FifoShown)> {
        let fifos = place.node.board.as_ref().map(|board| board.board().fifos()).unwrap_or_default();
        let labels = |fifo: &FifoShown| {
            place.and([
                ("fifo", fifo.number.to_string()),
                ("name", fifo.facts.name.clone()),
                ("priority", priority(fifo.facts.priority).to_owned()),
                ("injector", injector(fifo).to_owned()),
            ])
        };
        fifos.into_iter().take(MOST_FIFOS).map(|fifo| (labels(&fifo), fifo)).collect()
    };
    let fifos: Vec<_> = places.iter().flat_map(of).collect();
    let all = |value: fn(&FifoShown) -> u64| fifos.iter().map(move |(labels, fifo)| (labels.clone(), value(fifo)));
    to.counter("injection_fifo_injected", "Descriptors injected into the FIFO.", None, all(|fifo| fifo.injected))?;
    to.counter("injection_fifo_executed", "Descriptors of the FIFO that are over.", None, all(|fifo| fifo.executed))?;
    to.counter("injection_fifo_faults", "Descriptors of the FIFO that failed.", None, all(|fifo| fifo.faults))?;
    to.counter("injection_fifo", "Bytes that the descriptors of the FIFO moved.", Some(Unit::Bytes), all(|fifo| fifo.bytes))?;
    to.gauge("injection_fifo_depth", "Descriptors of the FIFO that wait.", None, all(|fifo| fifo.pending.len() as u64))
}

fn links(to: &mut Writer<'_>, monitors: &[(&Place<'_>, ModeMonitor)]) -> fmt::Result {
    // A board shows a link once for each incarnation of its target. The latest one counts.
    let mut links = BTreeMap::new();
    for (place, monitor) in monitors {
        for link in &monitor.links {
            let labels =
                place.and([("to", link.node.to_string()), ("fabric", link.fabric.to_string()), ("link", link.link.to_string())]);
            let known = links.entry(labels).or_insert(*link);
            if known.incarnation.0 < link.incarnation.0 {
                *known = *link;
            }
        }
    }
    type Link = doorbell::mode::LinkShown;
    let all = |value: fn(&Link) -> u64| links.iter().map(move |(labels, link)| (labels.clone(), value(link)));
    to.gauge("link_depth", "Packets that the target has not taken yet.", None, all(|link| link.depth.into()))?;
    to.gauge("link_queued", "Messages that wait in the sending node for room.", None, all(|link| link.queued.into()))?;
    to.gauge("link_waiting", "Bytes that the target has not taken yet.", Some(Unit::Bytes), all(|link| link.bytes))?;
    to.gauge("link_room", "Bytes that the link has room for.", Some(Unit::Bytes), all(|link| link.room))?;
    let occupancy = links.iter().map(|(labels, link)| (labels.clone(), f64::from(link.occupancy) / 1000.0));
    to.gauge("link_occupancy", "The part of the link's memory that is written and not read.", Some(Unit::Ratios), occupancy)?;
    to.gauge("link_transfers", "DMA transfers under way.", None, all(|link| link.transfers.into()))?;
    to.counter("link_messages", "Messages sent over the link.", None, all(|link| link.messages))?;
    to.counter("link_sent", "Bytes sent over the link.", Some(Unit::Bytes), all(|link| link.bytes_sent))
}

fn modes(to: &mut Writer<'_>, monitors: &[(&Place<'_>, ModeMonitor)]) -> fmt::Result {
    let kinds = [(Some(Fabric::Shm), "shm"), (Some(Fabric::Udp), "udp"), (None, "none")];
    let requests = monitors.iter().flat_map(|(place, monitor)| {
        kinds.map(|(fabric, word)| (place.and([("fabric", word.to_owned())]), monitor.counts.requests(fabric)))
    });
    let help = "Messages with a requested or chosen mode, by the fabric that was asked for.";
    to.counter("mode_requests", help, None, requests)?;
    let used = monitors.iter().flat_map(|(place, monitor)| {
        let all = Fabric::ALL.into_iter().flat_map(|fabric| Protocol::ALL.map(|protocol| (fabric, protocol)));
        all.map(|(fabric, protocol)| {
            let labels = place.and([("fabric", fabric.to_string()), ("protocol", protocol.to_string())]);
            (labels, monitor.counts.messages(fabric, protocol))
        })
    });
    to.counter("mode_messages", "Messages with a requested or chosen mode, by the mode that they took.", None, used)?;
    let honoured = monitors.iter().map(|(place, monitor)| (place.and([]), monitor.counts.honoured()));
    to.counter("mode_honoured", "Messages that went as asked for, or as usual.", None, honoured)?;
    let refused = monitors.iter().flat_map(|(place, monitor)| {
        let all = Refusal::ALL.iter();
        all.map(|refusal| (place.and([("reason", refusal.word().to_owned())]), monitor.counts.refused(*refusal)))
    });
    to.counter("mode_refused", "Messages that did not go as asked for, by reason.", None, refused)
}

/// Writes families of metrics.
struct Writer<'a>(DescriptorEncoder<'a>);

impl Writer<'_> {
    fn gauge<V: EncodeGaugeValue>(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        rows: impl IntoIterator<Item = (Labels, V)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
        rows.into_iter().try_for_each(|(labels, value)| family.encode_family(&labels)?.encode_gauge(&value))
    }

    /// Facts as labels.
    fn info(&mut self, name: &str, help: &str, rows: impl IntoIterator<Item = Labels>) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Info)?;
        rows.into_iter().try_for_each(|labels| family.encode_info(&labels))
    }

    fn counter(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        rows: impl IntoIterator<Item = (Labels, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
        rows.into_iter()
            .try_for_each(|(labels, value)| family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&value, None))
    }

    fn histogram(&mut self, name: &str, help: &str, unit: Unit, rows: impl Iterator<Item = (Labels, Spread)>) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, Some(&unit), MetricType::Histogram)?;
        for (labels, spread) in rows {
            let found = spread.histogram();
            family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(found.sum, found.count, &found.buckets, None)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metric_of_the_board_has_a_name_and_words_of_its_own() {
        let mut names = BTreeSet::new();
        for metric in Metric::ALL.iter().copied() {
            assert!(!help(metric).contains("no words"), "{metric:?} needs its sentence in `help`");
            assert!(names.insert((name(metric), metric.is_bytes())), "{metric:?}");
            assert!(!name(metric).contains("bytes") && !name(metric).ends_with("total"), "{metric:?}");
        }
        for name in ["injection_fifo", "link_sent", "latency", "node", "nodes", "domain", "build"] {
            assert!(!names.contains(&(name.to_owned(), true)) && !names.contains(&(name.to_owned(), false)), "{name}");
        }
    }

    #[test]
    fn a_text_that_becomes_too_long_is_refused() {
        use fmt::Write;
        let mut text = Bounded(String::new());
        let much = "x".repeat(MOST_BYTES / 2);
        assert!(text.write_str(&much).is_ok() && text.write_str(&much).is_ok() && text.write_str("x").is_err());
    }

    #[test]
    fn a_scraper_gets_the_form_that_it_asks_for() {
        let asks = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        assert_eq!(
            (Form::accepted(asks), Form::accepted("*/*"), Form::accepted("")),
            (Form::OpenMetrics, Form::Prometheus, Form::Prometheus)
        );
        let text = |form| render(Vec::new(), Duration::from_millis(5), form).unwrap();
        assert!(text(Form::OpenMetrics).ends_with("# EOF\n") && !text(Form::Prometheus).contains("# EOF"));
        assert!(text(Form::Prometheus).contains("doorbell_look_seconds 0.005\n"), "{}", text(Form::Prometheus));
    }
}
