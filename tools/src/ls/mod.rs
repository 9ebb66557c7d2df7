//! `doorbell ls`: domains with their nodes, locks, links and shared devices.

mod devices;
pub mod fifos;
mod locks;
mod modes;

use crate::environment::{Domain, directory, space};
use crate::exit::Failure;
use crate::nodes::metrics;
use crate::text::{FormArgs, Style, Table, bytes, counted};
use doorbell::Metric;
use doorbell_shm::domain::{DomainLayout, DomainStatus, NodeStatus, list_domains};
use doorbell_shm::layout::{LAYOUT_HASH, LAYOUT_VERSION};
use serde_json::{Value, json};

/// Show domains and their nodes
///
/// Reads shared memory, and asks the kernel which nodes live. The nodes take no part, so the command works on nodes that hang, and on the
/// segments of dead nodes.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../../help/ls.txt"))]
pub struct LsArgs {
    /// Only this domain
    domain: Option<Domain>,
    /// Show the locks of the lock registry, and their owners
    #[arg(long)]
    locks: bool,
    /// Show the links of nodes, their waiting messages, and the modes of messages
    #[arg(long, conflicts_with = "locks")]
    modes: bool,
    /// Show the shared devices
    #[arg(long, conflicts_with_all = ["locks", "modes"])]
    devices: bool,
    /// Show the injection FIFOs of nodes, and their oldest descriptors
    #[arg(long, conflicts_with_all = ["locks", "modes", "devices"])]
    fifos: bool,
    #[command(flatten)]
    form: FormArgs,
}

/// Lists and prints.
pub fn run(args: &LsArgs) -> Result<(), Failure> {
    let mut domains = domains()?;
    if let Some(Domain(name)) = &args.domain {
        domains.retain(|domain| domain.name == *name);
        if domains.is_empty() {
            return Err(Failure::failed(format!("there is no domain '{name}'"), "`doorbell ls` shows all of this user's"));
        }
    }
    let view = match args {
        LsArgs { locks: true, .. } => locks::VIEW,
        LsArgs { modes: true, .. } => modes::VIEW,
        LsArgs { devices: true, .. } => devices::VIEW,
        LsArgs { fifos: true, .. } => fifos::VIEW,
        _ => View { lines: |domains| table(domains, &NAMES, "nobody", cells), notes, more: |_| None },
    };
    let text = || {
        if domains.is_empty() {
            return format!("no domains of this user in {}\n", directory().display());
        }
        let (mut lines, style) = ((view.lines)(&domains), Style::of(&std::io::stdout()));
        lines[0] = style.bold(&lines[0]);
        let notes = domains.iter().filter_map(remark).chain((view.notes)(&domains));
        lines.extend(notes.map(|note| style.dim(note)));
        lines.join("\n") + "\n"
    };
    let object = |domain| {
        let mut object = object(domain);
        if let Some((name, more)) = (view.more)(domain) {
            object[name] = more;
        }
        object
    };
    args.form.print(text, domains.iter().map(object));
    Ok(())
}

/// What `ls` shows of domains.
struct View {
    /// The lines for people, and the notes below them.
    lines: fn(&[DomainStatus]) -> Vec<String>,
    notes: fn(&[DomainStatus]) -> Vec<String>,
    /// A further field of a domain for programs.
    more: fn(&DomainStatus) -> Option<(&'static str, Value)>,
}

/// A line for each row of each domain. `nothing` stands for the rows of a domain that has none.
fn table(domains: &[DomainStatus], names: &[&str], nothing: &str, cells: fn(&DomainStatus) -> Vec<Vec<String>>) -> Vec<String> {
    let mut table = Table::new(names);
    for domain in domains {
        let mut rows = cells(domain);
        if rows.is_empty() {
            rows.push(vec!["-".into(), nothing.into()]);
        }
        rows.into_iter().for_each(|row| table.row([domain.name.clone()].into_iter().chain(row)));
    }
    table.lines()
}

/// A word of a row; a dash if it is not known.
fn known(text: Option<String>) -> String {
    text.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".into())
}

/// All domains of this user.
pub fn domains() -> Result<Vec<DomainStatus>, Failure> {
    list_domains(&space()).map_err(|error| Failure::failed(&error, "see with `doorbell info` what is wrong there").see(&error))
}

const NAMES: [&str; 12] =
    ["DOMAIN", ">NODE", "ROLE", ">PID", "STATE", ">LIFE", "LABEL", ">MEMORY", ">IN", ">OUT", ">POOLED", ">PARKS"];

fn cells(domain: &DomainStatus) -> Vec<Vec<String>> {
    let cells = |node: &NodeStatus| {
        let member = node.member.as_ref();
        let shown = node.board.as_ref().map(|board| board.board().metrics());
        let metric = |metric| known(shown.as_ref().map(|metrics| metrics[metric].to_string()));
        vec![
            node.id.to_string(),
            known(member.map(|member| member.role.to_string())),
            known(member.map(|member| member.pid.to_string())),
            if node.alive { "alive" } else { "dead" }.into(),
            known(member.map(|member| member.incarnation.to_string())),
            known(member.map(|member| member.label.clone())),
            bytes(node.bytes),
            metric(Metric::MessagesIn),
            metric(Metric::MessagesOut),
            metric(Metric::Pooled),
            metric(Metric::Parks),
        ]
    };
    domain.nodes.iter().map(cells).collect()
}

fn notes(domains: &[DomainStatus]) -> Vec<String> {
    let with_keys = domains.iter().filter(|domain| !domain.keys.is_empty());
    let keys = |DomainStatus { name, keys, .. }: &DomainStatus| {
        format!("'{name}' has {} in its lock registry: see `doorbell ls --locks`", counted(keys.len(), "key"))
    };
    let is_dead = domains.iter().flat_map(|domain| &domain.nodes).any(|node| !node.alive);
    let dead = "dead nodes are removed by the next node that joins their domain, or by `doorbell clean`";
    with_keys.map(keys).chain(is_dead.then(|| dead.into())).collect()
}

/// What there is to say of a domain that this build can't read.
pub fn remark(domain: &DomainStatus) -> Option<String> {
    let name = &domain.name;
    match &domain.layout {
        DomainLayout::Ours => None,
        DomainLayout::Other { version, hash } => {
            let (theirs, ours) = (format!("{version}/{hash:016x}"), format!("{LAYOUT_VERSION}/{LAYOUT_HASH:016x}"));
            Some(format!(
                "'{name}' has another layout ({theirs}, here {ours}): another build of Doorbell made it, and its command can read it"
            ))
        }
        DomainLayout::Damaged { reason } => Some(format!("'{name}' has a damaged directory: {reason}")),
        DomainLayout::Missing => Some(format!("'{name}' has no directory, only other files")),
        _ => None,
    }
}

fn object(domain: &DomainStatus) -> Value {
    let layout = match &domain.layout {
        DomainLayout::Ours => json!("ours"),
        DomainLayout::Other { .. } => json!("other"),
        DomainLayout::Damaged { .. } => json!("damaged"),
        _ => json!("missing"),
    };
    let nodes: Vec<Value> = domain.nodes.iter().map(node_object).collect();
    json!({
        "domain": domain.name,
        "layout": layout,
        "max_nodes": domain.max_nodes,
        "bytes": domain.bytes,
        "nodes": nodes,
        "keys": domain.keys.len(),
        "device_count": domain.devices.len(),
    })
}

fn node_object(node: &NodeStatus) -> Value {
    let member = node.member.as_ref();
    let metrics = node.board.as_ref().map(|board| metrics(&board.board().metrics()));
    json!({
        "node": node.id.0,
        "alive": node.alive,
        "role": member.map(|member| member.role.word()),
        "pid": member.map(|member| member.pid),
        "incarnation": member.map(|member| member.incarnation.0),
        "label": member.map(|member| member.label.clone()),
        "joined_unix_seconds": member.map(|member| member.joined.as_secs()),
        "bytes": node.bytes,
        "metrics": metrics,
    })
}
