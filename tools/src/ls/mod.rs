//! `doorbell ls`: domains with their nodes, locks, links and shared devices.

mod devices;
mod locks;
mod modes;

use crate::environment::Domain;
use crate::exit::Failure;
use crate::experiment::report::lines;
use crate::nodes::figures;
use crate::text::{DIRECTORY, Style, Table, bytes, counted, print};
use doorbell::{Figure, Space};
use doorbell_shm::domain::{DomainLayout, DomainStatus, NodeStatus, list_domains};
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

/// Lists and prints.
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
            print(&lines(domains.iter().map(object)));
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
