//! `doorbell ls`: which domains there are, who is in them, what they lock, and the devices they share.

mod devices;
mod locks;
mod modes;

use crate::environment::Domain;
use crate::exit::Failure;
use crate::nodes::figures;
use crate::text::{DIRECTORY, Style, Table, bytes, counted, print};
use doorbell::{Figure, Space};
use doorbell_shm::domain::{DomainLayout, DomainStatus, NodeStatus, list_domains};
use serde_json::{Value, json};

/// Show domains and their nodes
///
/// Reads what lies in shared memory, and asks the kernel who lives. Nodes are not asked, and not disturbed: it works on nodes
/// that hang, and on what dead ones left.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  doorbell ls                                          all domains of this user
  doorbell ls grid                                     one of them
  watch -n 1 doorbell ls grid                          its figures, as they grow
  doorbell ls grid --locks                             the keys of its lock registry
  doorbell ls grid --modes                             the links between its nodes, and the modes of messages
  doorbell ls grid --devices                           its shared devices: who receives, who sends, what waits
  doorbell ls --format json | jq '.nodes[] | select(.alive | not)'

LIFE tells the lives of one node number apart: who joins anew gets a new one. IN and OUT are messages, POOLED those that
wait because nobody has asked for them yet, PARKS how often a thread went to sleep on the doorbell; JSON has all figures.
Nodes write them when they sleep, leave, or look at them themselves, and every 50 ms while they wait or poll.

With --locks, a line for each key. VALUE is who holds it: a node, in brackets which life of it, and a thread of that, or a number that the
program chose; ROLE and LABEL are that node's. STATE is `damaged` from the death of an owner until a later one says that the
resource is repaired, and names who died with it. USERS are the nodes that have opened the key and not released it,
WAITING how many threads have stood in line for longer than a moment.

With --modes, a line for each link by which a node has sent. DEPTH is how many messages and packets the target has not taken yet, as
far as is known: in shared memory up to a quarter of the lane may have been taken since. QUEUED are messages that wait in the sending
node for room, TRANSFERS DMA transfers that are not complete. Below: of messages for which a mode was asked or a policy decided, how many
took which, why others went otherwise, the latest of these, and each domain as a whole.

With --devices, a line for each shared device. NODES are attached to it; THREADS are the ids that somebody has, and how many it serves;
SENDERS the lanes that somebody has, and how many there are. STORED headers wait for threads that have not fetched them, WAITING are bytes in
the lanes. RECEIVED and DROPPED are messages since it was made. PORT is the node that feeds it from the network. JSON has each id and lane.")]
pub struct LsArgs {
    /// Only this domain
    domain: Option<Domain>,
    /// Show the keys of the lock registry, and who holds them
    #[arg(long)]
    locks: bool,
    /// Show the links by which nodes send, what waits there, and how messages went
    #[arg(long, conflicts_with = "locks")]
    modes: bool,
    /// Show the shared devices
    #[arg(long, conflicts_with_all = ["locks", "modes"])]
    devices: bool,
    /// Form of the output
    #[arg(long, value_enum, value_name = "FORM", default_value_t = Format::Table)]
    format: Format,
}

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// One object a line
    Json,
}

/// Looks and prints.
pub fn run(args: &LsArgs) -> Result<(), Failure> {
    let mut domains = domains()?;
    if let Some(Domain(name)) = &args.domain {
        domains.retain(|domain| domain.name == *name);
        if domains.is_empty() {
            return Err(Failure::failed(format!("there is no domain '{name}'"), "`doorbell ls` shows all of this user's"));
        }
    }
    match args.format {
        Format::Table => {
            let style = Style::of(&std::io::stdout());
            let view = match args {
                LsArgs { locks: true, .. } => locks::table,
                LsArgs { modes: true, .. } => modes::table,
                LsArgs { devices: true, .. } => devices::table,
                _ => table,
            };
            print(&view(&domains, style));
        }
        Format::Json => {
            let object = |domain| match args {
                LsArgs { locks: true, .. } => locks::object(domain, object(domain)),
                LsArgs { modes: true, .. } => modes::object(domain, object(domain)),
                LsArgs { devices: true, .. } => devices::object(domain, object(domain)),
                _ => object(domain),
            };
            print(&domains.iter().map(|domain| format!("{}\n", object(domain))).collect::<String>());
        }
    }
    Ok(())
}

/// All domains of this user.
pub fn domains() -> Result<Vec<DomainStatus>, Failure> {
    list_domains(&Space::posix()).map_err(|error| Failure::failed(error, "see with `doorbell info` what is wrong there"))
}

fn nothing() -> String {
    format!("no domains of this user in {DIRECTORY}\n")
}

fn table(domains: &[DomainStatus], style: Style) -> String {
    if domains.is_empty() {
        return nothing();
    }
    let names = ["DOMAIN", ">NODE", "ROLE", ">PID", "STATE", ">LIFE", "LABEL", ">MEMORY", ">IN", ">OUT", ">POOLED", ">PARKS"];
    let mut table = Table::new(&names);
    let mut notes = Vec::new();
    for domain in domains {
        domain.nodes.iter().for_each(|node| table.row(cells(domain, node)));
        if domain.nodes.is_empty() {
            table.row([domain.name.clone(), "-".into(), "nobody".into()]);
        }
        notes.extend(remark(domain));
        if !domain.keys.is_empty() {
            notes.push(format!(
                "'{}' has {} in its lock registry: see `doorbell ls --locks`",
                domain.name,
                counted(domain.keys.len(), "key")
            ));
        }
    }
    let dead: usize = domains.iter().map(|domain| domain.nodes.iter().filter(|node| !node.alive).count()).sum();
    if dead > 0 {
        notes.push("dead nodes are removed by the next node that joins their domain, or by `doorbell clean`".into());
    }
    finish(&table, notes, style)
}

fn finish(table: &Table, notes: Vec<String>, style: Style) -> String {
    finish_lines(table.lines(), notes, style)
}

fn finish_lines(mut lines: Vec<String>, notes: Vec<String>, style: Style) -> String {
    lines[0] = style.bold(&lines[0]);
    lines.extend(notes.into_iter().map(|note| style.dim(note)));
    lines.join("\n") + "\n"
}

fn cells(domain: &DomainStatus, node: &NodeStatus) -> Vec<String> {
    let known = |text: Option<String>| text.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".into());
    let member = node.member.as_ref();
    let shown = node.board.as_ref().map(|board| board.figures());
    let figure = |figure| known(shown.as_ref().map(|figures| figures[figure].to_string()));
    vec![
        domain.name.clone(),
        node.id.to_string(),
        known(member.map(|member| member.role.to_string())),
        known(member.map(|member| member.pid.to_string())),
        if node.alive { "alive" } else { "dead" }.into(),
        known(member.map(|member| member.incarnation.to_string())),
        known(member.map(|member| member.label.clone())),
        bytes(node.bytes),
        figure(Figure::MessagesIn),
        figure(Figure::MessagesOut),
        figure(Figure::Pooled),
        figure(Figure::Parks),
    ]
}

fn remark(domain: &DomainStatus) -> Option<String> {
    let name = &domain.name;
    match &domain.layout {
        DomainLayout::Ours => None,
        DomainLayout::Other { version, hash } => {
            Some(format!("'{name}' has another layout ({version}/{hash:016x}): another build of Doorbell made it"))
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
    let figures = node.board.as_ref().map(|board| figures(&board.figures()));
    json!({
        "node": node.id.0,
        "alive": node.alive,
        "role": member.map(|member| member.role.word()),
        "pid": member.map(|member| member.pid),
        "incarnation": member.map(|member| member.incarnation.0),
        "label": member.map(|member| member.label.clone()),
        "joined_unix_seconds": member.map(|member| member.joined.as_secs()),
        "bytes": node.bytes,
        "figures": figures,
    })
}
