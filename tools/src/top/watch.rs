//! Looks at domains, and the changes between two looks.

use crate::environment::directory;
use crate::exit::Failure;
use crate::links_shown;
use crate::ls::{domains, remark};
use crate::nodes::{counters, fifos, identity, latencies, metrics, nanoseconds, short, state};
use crate::text::{Style, Table, bytes};
use doorbell::mode::ModeMonitor;
use doorbell::{Metric, Metrics, Priority};
use doorbell_shm::board::{FigureKind, Latencies};
use doorbell_shm::domain::NodeStatus;
use doorbell_shm::keys::{LockFacts, OwnerId};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// Looks repeatedly at domains.
pub struct Watch {
    only: Option<String>,
    /// The metrics of each incarnation of each node at the last look.
    before: HashMap<(String, u16, u32), (Metrics, Latencies)>,
    looked: Option<Instant>,
}

/// One look.
#[derive(Default)]
pub struct Look {
    /// The time since the look before; zero at the first look.
    pub interval: Duration,
    /// The nodes, by domain and id.
    pub rows: Vec<Row>,
    /// What there is to say of the domains that this build can't read, by name.
    pub remarks: BTreeMap<String, String>,
}

/// A node.
pub struct Row {
    pub domain: String,
    pub node: NodeStatus,
    pub state: &'static str,
    /// Its metrics; zeros without a board.
    pub metrics: Metrics,
    /// Its links and the modes of its messages, if it has a board.
    pub modes: Option<ModeMonitor>,
    /// The locks that it holds, with the number of waiters of each.
    pub holds: Vec<(String, usize)>,
    /// The locks that its threads wait for.
    pub awaits: Vec<String>,
    /// How much each growing metric grows a second.
    rates: Vec<f64>,
    /// The latencies since the last look.
    pub recent: Latencies,
    /// All latencies of the node.
    pub all: Latencies,
}

impl Watch {
    /// Looks at one domain, or at all.
    pub fn new(only: Option<String>) -> Self {
        Self { only, before: HashMap::new(), looked: None }
    }

    /// Looks.
    pub fn look(&mut self) -> Result<Look, Failure> {
        let now = Instant::now();
        let interval = self.looked.map_or(Duration::ZERO, |looked| now - looked);
        let (mut rows, mut remarks) = (Vec::new(), BTreeMap::new());
        let mut seen = HashMap::new();
        for domain in domains()?.into_iter().filter(|domain| self.only.as_ref().is_none_or(|only| domain.name == *only)) {
            remarks.extend(remark(&domain).map(|remark| (domain.name.clone(), remark)));
            let keys = domain.keys;
            for node in domain.nodes {
                let shown = node.board.as_ref().map(|board| (board.board().metrics(), board.board().latencies()));
                let (metrics, all) = shown.unwrap_or_default();
                let incarnation = node.board.as_ref().map_or(0, |board| board.incarnation().0);
                let key = (domain.name.clone(), node.id.0, incarnation);
                let (earlier, earlier_latencies) = self.before.get(&key).copied().unwrap_or((metrics, all));
                seen.insert(key, (metrics, all));
                let is_its = |owner: &OwnerId| {
                    owner.node() == node.id
                        && node.member.as_ref().is_some_and(|member| member.incarnation == owner.incarnation())
                };
                let held = keys.iter().filter(|key| key.seen.owner().as_ref().is_some_and(is_its));
                let waits =
                    |key: &LockFacts| std::iter::repeat_n(key.name.clone(), key.waiting.iter().copied().filter(is_its).count());
                rows.push(Row {
                    modes: node.board.as_ref().map(ModeMonitor::of),
                    holds: held.map(|key| (key.name.clone(), key.waiting.len())).collect(),
                    awaits: keys.iter().flat_map(waits).collect(),
                    rates: rates(&metrics, &earlier, interval),
                    recent: all.since(&earlier_latencies),
                    domain: domain.name.clone(),
                    state: state(&node),
                    node,
                    metrics,
                    all,
                });
            }
        }
        self.before = seen;
        self.looked = Some(now);
        Ok(Look { interval, rows, remarks })
    }
}

fn rates(now: &Metrics, before: &Metrics, interval: Duration) -> Vec<f64> {
    let seconds = interval.as_secs_f64();
    let rate = |metric: Metric| match metric.kind() {
        FigureKind::Total if seconds > 0.0 => now[metric].saturating_sub(before[metric]) as f64 / seconds,
        _ => 0.0,
    };
    Metric::ALL.iter().map(|metric| rate(*metric)).collect()
}

/// A column: its name (`>` aligns it to the right), its cell, and the weight by which it is sorted, the largest first.
pub struct Column(pub &'static str, pub fn(&Row) -> String, pub fn(&Row) -> f64);

/// The columns of the table and of the screen.
pub const COLUMNS: &[Column] = &[
    Column("DOMAIN", |row| row.domain.clone(), |_| 0.0),
    Column(">NODE", |row| row.node.id.to_string(), |row| -f64::from(row.node.id.0)),
    Column("ROLE", Row::role, |_| 0.0),
    Column("STATE", |row| row.state.into(), |row| if row.state == "alive" { 0.0 } else { 1.0 }),
    Column(">IN/S", |row| short(row.rate(Metric::MessagesIn)), |row| row.rate(Metric::MessagesIn)),
    Column(">OUT/S", |row| short(row.rate(Metric::MessagesOut)), |row| row.rate(Metric::MessagesOut)),
    Column(">POOLED", |row| short(row.metric(Metric::Pooled)), |row| row.metric(Metric::Pooled)),
    Column(
        ">FIFO",
        |row| row.fifos().map(|depth| depth.to_string()).join("/"),
        |row| row.fifos().map(|depth| depth as f64).iter().sum(),
    ),
    Column(">CTR", |row| row.metrics[Metric::CountersUsed].to_string(), |row| row.metric(Metric::CountersUsed)),
    Column(">KEYS", Row::keys, |row| (row.holds.len() + row.awaits.len()) as f64),
    Column(">FIFO/S", |row| row.way(Metric::BytesFifo), |row| row.rate(Metric::BytesFifo)),
    Column(">PUT/S", |row| row.way(Metric::BytesPut), |row| row.rate(Metric::BytesPut)),
    Column(">PULL/S", |row| row.way(Metric::BytesPulled), |row| row.rate(Metric::BytesPulled)),
    Column(">KEY/S", |row| bytes_or_dash(row.by_key()), Row::by_key),
    Column(">LOAN/S", |row| row.way(Metric::BytesLoaned), |row| row.rate(Metric::BytesLoaned)),
    Column(">P50", |row| nanoseconds(row.latency(0.5)), |row| row.latency(0.5).unwrap_or(0) as f64),
    Column(">P99", |row| nanoseconds(row.latency(0.99)), |row| row.latency(0.99).unwrap_or(0) as f64),
    Column(">PARKS/S", |row| short(row.rate(Metric::Parks)), |row| row.rate(Metric::Parks)),
    Column(">COLL/S", Row::collectives, |row| row.rate(Metric::Collectives)),
];

fn bytes_or_dash(rate: f64) -> String {
    if rate == 0.0 { "-".into() } else { bytes(rate as u64) }
}

impl Row {
    /// How much a metric grows a second.
    pub fn rate(&self, metric: Metric) -> f64 {
        self.rates.get(metric as usize).copied().unwrap_or(0.0)
    }

    /// A latency in nanoseconds since the last look, or of all if no message was sampled since.
    pub fn latency(&self, share: f64) -> Option<u64> {
        self.recent.quantile(share).or_else(|| self.all.quantile(share))
    }

    /// Its role; a dash if it is not known.
    pub fn role(&self) -> String {
        self.node.member.as_ref().map_or("-".into(), |member| member.role.to_string())
    }

    fn metric(&self, metric: Metric) -> f64 {
        self.metrics[metric] as f64
    }

    fn fifos(&self) -> [u64; 3] {
        let fifos = self.node.board.as_ref().map(|board| board.board().fifos()).unwrap_or_default();
        Priority::ALL.map(|priority| {
            let its = fifos.iter().filter(|fifo| fifo.facts.priority == priority);
            its.map(|fifo| fifo.pending.len() as u64).sum()
        })
    }

    fn by_key(&self) -> f64 {
        self.rate(Metric::BytesPutByKey) + self.rate(Metric::BytesGotByKey)
    }

    fn keys(&self) -> String {
        if self.holds.is_empty() && self.awaits.is_empty() {
            return "-".into();
        }
        format!("{}/{}", self.holds.len(), self.awaits.len())
    }

    /// The locks that it holds and waits for, in words; empty if there are none.
    pub fn about_keys(&self) -> String {
        let held = self.holds.iter().map(|(name, waiting)| match waiting {
            0 => format!("'{name}'"),
            1 => format!("'{name}' (1 waits)"),
            many => format!("'{name}' ({many} wait)"),
        });
        let awaited = self.awaits.iter().map(|name| format!("'{name}'"));
        let list = |verb: &str, keys: Vec<String>| (!keys.is_empty()).then(|| format!("{verb} {}", keys.join(", ")));
        let all = [list("holds", held.collect()), list("waits for", awaited.collect())];
        all.into_iter().flatten().collect::<Vec<_>>().join("; ")
    }

    /// Collectives, and the share of turns of channels that were queued.
    fn collectives(&self) -> String {
        if self.metrics[Metric::Collectives] == 0 {
            return "-".into();
        }
        let [acquired, queued] = [Metric::TurnsAcquired, Metric::TurnsQueued].map(|metric| self.rate(metric));
        let percent = if queued > 0.0 { 100.0 * queued / (acquired + queued) } else { 0.0 };
        format!("{} {percent:.0}%", short(self.rate(Metric::Collectives)))
    }

    fn way(&self, metric: Metric) -> String {
        bytes_or_dash(self.rate(metric))
    }

    fn object(&self) -> Value {
        let mut object = identity(&self.node);
        let totals = Metric::ALL.iter().filter(|metric| metric.kind() == FigureKind::Total);
        let rates: Map<_, _> = totals.map(|metric| (metric.word().to_owned(), json!(self.rate(*metric)))).collect();
        object["metrics"] = metrics(&self.metrics);
        object["rates"] = rates.into();
        object["latency"] = latencies(&self.recent);
        object["latency_of_all"] = latencies(&self.all);
        object["counters"] = self.node.board.as_ref().map_or(json!([]), counters);
        object["fifos"] = self.node.board.as_ref().map_or(json!([]), fifos);
        let holds = self.holds.iter().map(|(name, waiting)| json!({ "key": name, "waiting": waiting }));
        object["holds"] = holds.collect();
        object["waits_for"] = json!(self.awaits);
        object["modes"] = json!(self.modes.as_ref().map(links_shown::object));
        object["records"] = json!(self.node.board.as_ref().map_or(0, |board| board.board().records().len()));
        object
    }
}

impl Look {
    /// The look as text for people.
    pub fn table(&self, style: Style) -> String {
        if self.rows.is_empty() {
            return format!("no domains of this user in {}\n", directory().display());
        }
        let names: Vec<&str> = COLUMNS.iter().map(|Column(name, ..)| *name).collect();
        let mut table = Table::new(&names);
        self.rows.iter().for_each(|row| table.row(COLUMNS.iter().map(|Column(_, cell, _)| cell(row))));
        let mut lines = table.lines();
        lines[0] = style.bold(&lines[0]);
        lines.push(style.bold("MODES"));
        lines.extend(links_shown::lines(&self.domains()));
        lines.extend(self.remarks.values().map(|remark| style.dim(remark)));
        lines.join("\n") + "\n"
    }

    /// The modes of all nodes, by domain and node.
    pub fn domains(&self) -> Vec<links_shown::Domain<'_>> {
        let mut domains: BTreeMap<&str, Vec<&ModeMonitor>> = BTreeMap::new();
        for row in &self.rows {
            domains.entry(&row.domain).or_default().extend(&row.modes);
        }
        domains.values_mut().for_each(|nodes| nodes.sort_by_key(|node| node.node));
        domains.into_iter().map(|(name, nodes)| links_shown::Domain { name, nodes }).collect()
    }

    /// The look as an object.
    pub fn object(&self) -> Value {
        let mut domains: BTreeMap<&str, (Vec<Value>, Vec<&ModeMonitor>)> = BTreeMap::new();
        for row in &self.rows {
            let (nodes, modes) = domains.entry(&row.domain).or_default();
            nodes.push(row.object());
            modes.extend(&row.modes);
        }
        let object = |(name, (nodes, seen)): (&str, (Vec<Value>, Vec<&ModeMonitor>))| json!({ "domain": name, "nodes": nodes, "modes": links_shown::whole_object(seen) });
        let domains: Vec<Value> = domains.into_iter().map(object).collect();
        json!({ "interval_s": self.interval.as_secs_f64(), "domains": domains, "remarks": self.remarks })
    }

    /// Sorts by a column, the largest first, or reversed. Equal nodes stay in their order.
    pub fn sort(&mut self, column: usize, round: bool) {
        let Some(Column(.., weight)) = COLUMNS.get(column) else { return };
        self.rows.sort_by(|a, b| (a.domain.as_str(), a.node.id).cmp(&(b.domain.as_str(), b.node.id)));
        self.rows.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
        if round {
            self.rows.reverse();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_what_only_grows() {
        let mut now = Metrics::default();
        (now[Metric::MessagesIn], now[Metric::Pooled]) = (300, 300);
        let mut before = now;
        before[Metric::MessagesIn] = 100;
        let found = rates(&now, &before, Duration::from_millis(500));
        assert_eq!((found[Metric::MessagesIn as usize], found[Metric::Pooled as usize]), (400.0, 0.0));
        // Another build may write anything there; and the first look has no rates.
        assert_eq!(rates(&before, &now, Duration::from_secs(1))[Metric::MessagesIn as usize], 0.0);
        assert_eq!(rates(&now, &before, Duration::ZERO)[Metric::MessagesIn as usize], 0.0);
    }
}
