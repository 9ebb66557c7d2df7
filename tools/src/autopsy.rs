//! `doorbell autopsy`: the last records of a node's engine.

use crate::environment::{DOMAIN, Domain};
use crate::exit::Failure;
use crate::ls::domains;
use crate::nodes::{
    RECORD_COLUMNS, counters, fifos, identity, latencies, metrics, nanoseconds, next_descriptor, priority, record, record_cells,
    state,
};
use crate::text::{FormArgs, Style, Table, bytes, counted};
use doorbell::NodeId;
use doorbell_shm::board::{BoardCopy, Metric, RECORDS, Recorded};
use doorbell_shm::domain::{DomainStatus, NodeStatus};
use serde_json::json;

/// Show what a node did last, even if it was killed
///
/// Reads the flight recorder on the board of a living, stopped or killed node. The node takes no part. The board of a dead node stays until
/// the next node joins its domain, or until `doorbell clean`.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../help/autopsy.txt"))]
pub struct AutopsyArgs {
    /// The id of the node
    node: NodeId,
    /// Its domain [default: the one that has such a node]
    #[arg(long, value_name = "NAME", env = DOMAIN)]
    domain: Option<Domain>,
    #[command(flatten)]
    form: FormArgs,
    /// The most records to show
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=RECORDS as i64))]
    last: u16,
}

/// Reads the board and prints.
pub fn run(args: &AutopsyArgs) -> Result<(), Failure> {
    let domains = domains()?;
    let (domain, node) = find(&domains, args)?;
    let Some(board) = &node.board else {
        let what = format!("node {} of domain '{}' has no board that can be read", node.id, domain.name);
        return Err(Failure::failed(what, "another build of Doorbell may have made it: see `doorbell ls`"));
    };
    let mut records = board.board().records();
    records.drain(..records.len().saturating_sub(args.last.into()));
    let object = || {
        let mut object = identity(node);
        object["domain"] = json!(domain.name);
        object["metrics"] = metrics(&board.board().metrics());
        object["latency"] = latencies(&board.board().latencies());
        object["counters"] = counters(board);
        object["fifos"] = fifos(board);
        object["records"] = records.iter().map(record).collect();
        object
    };
    args.form.print(|| table(domain, node, board, &records, Style::of(&std::io::stdout())), std::iter::once_with(object));
    Ok(())
}

fn find<'a>(domains: &'a [DomainStatus], args: &AutopsyArgs) -> Result<(&'a DomainStatus, &'a NodeStatus), Failure> {
    let meant = |domain: &&DomainStatus| args.domain.as_ref().is_none_or(|Domain(name)| domain.name == *name);
    let found: Vec<_> = (domains.iter().filter(meant))
        .flat_map(|domain| domain.nodes.iter().filter(|node| node.id == args.node).map(move |node| (domain, node)))
        .collect();
    match (found.as_slice(), &args.domain) {
        ([found], _) => Ok(*found),
        ([], domain) => {
            let what = match domain {
                Some(Domain(name)) => format!("nothing is left of a node {} of a domain '{name}'", args.node),
                None => format!("no domain of this user has a node {}", args.node),
            };
            Err(Failure::failed(what, "a node that leaves normally leaves nothing; `doorbell ls` shows what there is"))
        }
        (several, _) => {
            let names: Vec<_> = several.iter().map(|(domain, _)| domain.name.as_str()).collect();
            let what = format!("{} have a node {}: {}", counted(several.len(), "domain"), args.node, names.join(", "));
            Err(Failure::usage(what, format!("say which one: --domain {}", names[0])))
        }
    }
}

fn table(domain: &DomainStatus, node: &NodeStatus, board: &BoardCopy, records: &[Recorded], style: Style) -> String {
    let process = node.member.as_ref().map_or("role and process not known".to_owned(), |member| {
        format!("{}, process {}{}", member.role, member.pid, labelled(&member.label))
    });
    let title = format!("node {} of domain '{}', life {}", node.id, domain.name, board.incarnation());
    let shown = board.board().metrics();
    let size = |metric| bytes(shown[metric]);
    let [inward, outward, pooled] = [Metric::MessagesIn, Metric::MessagesOut, Metric::Pooled].map(|metric| shown[metric]);
    let [bytes_in, bytes_out, bytes_pooled] = [Metric::BytesIn, Metric::BytesOut, Metric::PooledBytes].map(size);
    let [high, normal, low] = [Metric::FifoHigh, Metric::FifoNormal, Metric::FifoLow].map(|metric| shown[metric]);
    let most = [Metric::FifoHighMost, Metric::FifoNormalMost, Metric::FifoLowMost].map(|metric| shown[metric].to_string());
    let mut lines = vec![
        format!("{}: {}, {process}", style.bold(title), state(node)),
        format!("messages  {inward} in ({bytes_in}), {outward} out ({bytes_out}), {pooled} wait ({bytes_pooled})"),
        format!("FIFOs     {high} high, {normal} normal, {low} low; at most {}", most.join(", ")),
    ];
    let latencies = board.board().latencies();
    lines.push(format!(
        "latency   p50 {}, p99 {} of {}",
        nanoseconds(latencies.quantile(0.5)),
        nanoseconds(latencies.quantile(0.99)),
        counted(latencies.count() as usize, "sample")
    ));
    for counter in board.board().counters() {
        let zero = if counter.zero { ", at zero" } else { "" };
        lines.push(format!("counter   {}: {} of {} left{zero}", counter.index, bytes(counter.value), bytes(counter.size)));
    }
    for fifo in board.board().fifos().iter().filter(|fifo| fifo.injected > 0) {
        let (name, priority, left) = (&fifo.facts.name, priority(fifo.facts.priority), fifo.pending.len());
        let faults = if fifo.faults > 0 { format!(", {}", counted(fifo.faults as usize, "fault")) } else { String::new() };
        let next = if left > 0 { format!("; next: {}", next_descriptor(fifo)) } else { String::new() };
        lines.push(format!(
            "FIFO      {} '{name}', {priority}: {left} of {} descriptors left, {} moved{faults}{next}",
            fifo.number,
            fifo.injected,
            bytes(fifo.bytes)
        ));
    }
    lines.push(String::new());
    if records.is_empty() {
        lines.push("nothing was recorded".into());
    } else {
        let mut table = Table::new(&RECORD_COLUMNS);
        records.iter().for_each(|recorded| table.row(record_cells(recorded)));
        let mut rows = table.lines();
        rows[0] = style.bold(&rows[0]);
        lines.extend(rows);
    }
    lines.join("\n") + "\n"
}

fn labelled(label: &str) -> String {
    if label.is_empty() { String::new() } else { format!(", '{label}'") }
}
