//! `doorbell clean`: removes the segments of dead nodes.

use crate::environment::{Domain, space};
use crate::exit::Failure;
use crate::ls::domains;
use crate::text::{bytes, counted, print};
use doorbell_shm::domain::{DomainLayout, DomainStatus, clean};

/// Remove what dead nodes left in shared memory
///
/// Nodes that end normally leave nothing. When a node joins a domain, it removes what killed nodes left there. This command removes the
/// rest. It never touches anything of a living node.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../help/clean.txt"))]
pub struct CleanArgs {
    /// Only this domain
    domain: Option<Domain>,
    /// Also remove domains of other builds that have no living node
    #[arg(long)]
    force: bool,
    /// Only show what would be removed
    #[arg(long)]
    dry_run: bool,
}

/// Cleans, or shows what would be removed.
pub fn run(args: &CleanArgs) -> Result<(), Failure> {
    let only = args.domain.as_ref().map(|Domain(name)| name.as_str());
    if args.dry_run {
        return preview(only, args.force);
    }
    let report = clean(&space(), only, args.force)
        .map_err(|error| Failure::failed(&error, "another `doorbell clean` can remove the rest").see(&error))?;
    let mut text: String = report.removed.iter().map(|name| format!("removed {name}\n")).collect();
    text += &match report.removed.len() {
        0 => "nothing to remove\n".to_owned(),
        count => format!("{} removed, {} given back\n", counted(count, "file"), bytes(report.bytes)),
    };
    print(&text);
    let idle: Vec<_> = report.kept.iter().filter(|kept| kept.living == 0).collect();
    let Some(kept) = idle.first() else { return Ok(()) };
    let more = if idle.len() == 1 { String::new() } else { format!("; and {} more", counted(idle.len() - 1, "domain")) };
    let what = format!("domain '{}' was kept: {}{more}", kept.domain, kept.reason);
    Err(Failure::failed(what, "see `doorbell ls`, and `doorbell clean --help`"))
}

fn preview(only: Option<&str>, force: bool) -> Result<(), Failure> {
    let domains = domains()?;
    let meant = domains.iter().filter(|domain| only.is_none_or(|name| domain.name == name));
    let lines: Vec<String> = meant.flat_map(|domain| would(domain, force)).collect();
    print(&if lines.is_empty() { "nothing to remove\n".to_owned() } else { lines.join("\n") + "\n" });
    Ok(())
}

fn would(domain: &DomainStatus, force: bool) -> Vec<String> {
    let name = &domain.name;
    if !domain.nodes.iter().any(|node| node.alive) {
        return vec![match domain.layout {
            DomainLayout::Other { .. } if !force => {
                format!("would keep domain '{name}': another build made it; --force removes it")
            }
            _ => {
                let nodes = counted(domain.nodes.len(), "dead node");
                format!("would remove domain '{name}' ({nodes}, {})", bytes(domain.bytes))
            }
        }];
    }
    let dead = domain.nodes.iter().filter(|node| !node.alive);
    dead.map(|node| format!("would remove node {} of domain '{name}' (dead, {})", node.id, bytes(node.bytes))).collect()
}
