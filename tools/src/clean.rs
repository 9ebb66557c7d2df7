//! `doorbell clean`: removes what dead nodes left.

use crate::environment::Domain;
use crate::exit::Failure;
use crate::ls::domains;
use crate::text::{bytes, counted, print};
use doorbell::Space;
use doorbell_shm::domain::{DomainLayout, DomainStatus, clean};

/// Remove what dead nodes left in shared memory
///
/// Nodes that end in good order leave nothing, and what a killed one left goes when another joins its domain. This is for the
/// rest. What belongs to living nodes is never touched.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  doorbell clean --dry-run     what would go
  doorbell clean               what dead nodes of this user left, in all domains
  doorbell clean grid          in one domain
  doorbell clean --force       also domains of other builds of Doorbell, if nobody lives in them

Exit code: 0 if nothing is left that could go, 1 if something was kept although nobody lives in it.")]
pub struct CleanArgs {
    /// Only this domain
    domain: Option<Domain>,
    /// Remove domains of other builds, too, if nobody lives in them
    #[arg(long)]
    force: bool,
    /// Only say what would be removed
    #[arg(long)]
    dry_run: bool,
}

/// Cleans, or says what would be cleaned.
pub fn run(args: &CleanArgs) -> Result<(), Failure> {
    let only = args.domain.as_ref().map(|Domain(name)| name.as_str());
    if args.dry_run {
        return preview(only, args.force);
    }
    let report = clean(&Space::posix(), only, args.force)
        .map_err(|error| Failure::failed(error, "what is left can be removed by another `doorbell clean`"))?;
    let mut text: String = report.removed.iter().map(|name| format!("removed {name}\n")).collect();
    text += &match report.removed.len() {
        0 => "nothing to remove\n".to_owned(),
        count => format!("{} removed, {} given back\n", counted(count, "file"), bytes(report.bytes)),
    };
    print(&text);
    let idle: Vec<_> = report.kept.iter().filter(|kept| kept.living == 0).collect();
    match idle.first() {
        None => Ok(()),
        Some(kept) if idle.len() == 1 => Err(kept_idle(&kept.domain, &kept.reason)),
        Some(kept) => Err(kept_idle(&kept.domain, &format!("{}; and {} more", kept.reason, counted(idle.len() - 1, "domain")))),
    }
}

fn kept_idle(domain: &str, reason: &str) -> Failure {
    Failure::failed(format!("domain '{domain}' was kept: {reason}"), "see `doorbell ls`, and `doorbell clean --help`")
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
