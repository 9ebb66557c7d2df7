//! Domains seen from outside: lists them and removes leftovers.

use super::census::Census;
use super::directory::{Directory, DirectoryFault, Member};
use super::layout::MAX_DOMAIN_BYTES;
use super::{device, find_directory, reap};
use crate::board::BoardCopy;
use crate::device::DeviceFacts;
use crate::error::ShmError;
use crate::keys::LockFacts;
use crate::layout::{FIFOS_MAX, board_bytes};
use crate::space::{Names, Space, parse, valid_domain_name};
use doorbell_fabric::NodeId;
use doorbell_fabric::world;
use std::collections::BTreeSet;
use std::time::Duration;

/// The timeout for the lock of a domain that is to be cleaned.
const PATIENCE: Duration = Duration::from_secs(2);

/// The state of a domain at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DomainStatus {
    /// Its name.
    pub name: String,
    /// Whether this program could join it.
    pub layout: DomainLayout,
    /// The number of nodes it can have, if this build knows its layout.
    pub max_nodes: Option<usize>,
    /// Its nodes, living and dead, by id.
    pub nodes: Vec<NodeStatus>,
    /// Bytes of all its segments.
    pub bytes: u64,
    /// The locks of its lock registry.
    pub keys: Vec<LockFacts>,
    /// Its shared devices.
    pub devices: Vec<DeviceFacts>,
}

/// Whether this program can read a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DomainLayout {
    /// This program can read it.
    Ours,
    /// Another build made it.
    Other {
        /// Its layout version.
        version: u64,
        /// Its layout hash.
        hash: u64,
    },
    /// The domain segment holds values that no build writes.
    Damaged {
        /// The reason.
        reason: String,
    },
    /// There is no domain segment, only other files.
    Missing,
}

/// The state of a node at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeStatus {
    /// Its id.
    pub id: NodeId,
    /// Whether its owner lives.
    pub alive: bool,
    /// Its directory entry, if the directory can be read.
    pub member: Option<Member>,
    /// Bytes of its segments.
    pub bytes: u64,
    /// A copy of its board; `None` if this incarnation has no board, or one of another layout.
    pub board: Option<BoardCopy>,
}

/// The result of cleaning.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CleanReport {
    /// The removed files.
    pub removed: Vec<String>,
    /// The freed bytes.
    pub bytes: u64,
    /// The domains that were kept in part or in whole.
    pub kept: Vec<Kept>,
}

/// A domain that was not removed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Kept {
    /// Its name.
    pub domain: String,
    /// The number of its living nodes.
    pub living: usize,
    /// Why it was kept.
    pub reason: String,
}

/// Lists all domains of this user. Takes no lock and changes nothing, so the result is valid for a moment only. Does not block.
pub fn list_domains(space: &Space) -> Result<Vec<DomainStatus>, ShmError> {
    domain_names(space)?.iter().map(|name| status(space, &Names::new(space.uid(), name))).collect()
}

/// The files of one domain and their sizes. Takes no lock and changes nothing.
///
/// # Errors
/// The directory cannot be read.
pub fn files(space: &Space, domain: &str) -> Result<Vec<(String, u64)>, ShmError> {
    let uid = space.uid();
    let names = space.list()?.into_iter().filter(|name| parse(uid, name).is_some_and(|(found, _)| found == domain));
    Ok(names.map(|name| (file_bytes(space, &name), name)).map(|(bytes, name)| (name, bytes)).collect())
}

/// Removes the leftovers of dead nodes, in one domain or in all of this user's. Removes a domain without living nodes together
/// with its lock file. Never touches files of living nodes. A domain of another layout is removed only with `force`, and only if
/// no node in it lives.
///
/// Blocks for up to two seconds for each domain whose lock is held. If that fails, the domain is kept, and the report says so.
pub fn clean(space: &Space, domain: Option<&str>, force: bool) -> Result<CleanReport, ShmError> {
    let domains = match domain {
        Some(name) if !valid_domain_name(name) => return Err(ShmError::InvalidDomainName { name: name.to_owned() }),
        Some(name) => BTreeSet::from([name.to_owned()]),
        None => domain_names(space)?,
    };
    let mut report = CleanReport::default();
    for domain in domains {
        clean_one(space, &domain, force, &mut report)?;
    }
    Ok(report)
}

fn clean_one(space: &Space, domain: &str, force: bool, report: &mut CleanReport) -> Result<(), ShmError> {
    const OPERATION: &str = "clean";
    let names = Names::new(space.uid(), domain);
    // Locking creates the lock file, which must not happen for a domain that does not exist.
    if Census::take(space, &names)?.is_empty() {
        return Ok(());
    }
    let mut keep = |living, reason| report.kept.push(Kept { domain: domain.to_owned(), living, reason });
    let lock = match space.lock(OPERATION, &names, world::now() + PATIENCE) {
        Ok(lock) => lock,
        Err(error @ ShmError::LockTimeout { .. }) => {
            keep(0, error.to_string());
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let mut census = Census::take(space, &names)?;
    let living = census.living.len();
    let before = census.bytes(space, &names);
    let removed = if living == 0 {
        if let DomainLayout::Other { version, hash } = look(space, &names)?.0
            && !force
        {
            keep(0, format!("no node lives in it, but it has another layout ({version}/{hash:016x}): force removes it"));
            return Ok(());
        }
        let mut removed = census.remove_all(&lock)?;
        if lock.dissolve()? {
            removed.push(names.lock());
        }
        removed
    } else {
        match find_directory(OPERATION, &lock, &census) {
            Ok(Some(directory)) => {
                keep(living, format!("{living} of its nodes live"));
                reap(&lock, &mut census, &directory)?
            }
            Ok(None) => Vec::new(),
            Err(error) => {
                keep(living, error.to_string());
                Vec::new()
            }
        }
    };
    report.bytes += before.saturating_sub(Census::take(space, &names)?.bytes(space, &names));
    report.removed.extend(removed);
    Ok(())
}

fn domain_names(space: &Space) -> Result<BTreeSet<String>, ShmError> {
    let uid = space.uid();
    Ok(space.list()?.iter().filter_map(|name| Some(parse(uid, name)?.0.to_owned())).collect())
}

fn status(space: &Space, names: &Names) -> Result<DomainStatus, ShmError> {
    let census = Census::take(space, names)?;
    let (layout, directory) = look(space, names)?;
    let mut ids: BTreeSet<NodeId> = census.nodes.keys().copied().collect();
    ids.extend(directory.iter().flat_map(Directory::members).map(|member| member.id));
    let nodes = ids.into_iter().map(|id| {
        let member = directory.as_ref().and_then(|directory| directory.read(id));
        NodeStatus {
            id,
            alive: census.living.contains(&id),
            board: board(space, names, id).filter(|board| member.as_ref().is_none_or(|m| m.incarnation == board.incarnation())),
            member,
            bytes: census.nodes.get(&id).map_or(0, |files| files.iter().map(|name| file_bytes(space, name)).sum()),
        }
    });
    Ok(DomainStatus {
        name: names.domain_name().to_owned(),
        layout,
        max_nodes: directory.as_ref().map(|directory| directory.facts().max_nodes),
        nodes: nodes.collect(),
        bytes: census.bytes(space, names),
        keys: directory.as_ref().map_or_else(Vec::new, |directory| directory.keys().all()),
        devices: device::look(space, names, &census),
    })
}

/// Reads a private copy of a domain's directory.
fn look(space: &Space, names: &Names) -> Result<(DomainLayout, Option<Directory>), ShmError> {
    let name = names.domain();
    let file = match space.open(&name) {
        Ok(Some(file)) => file,
        Ok(None) => return Ok((DomainLayout::Missing, None)),
        Err(error @ ShmError::NotOurs { .. }) => return Ok((DomainLayout::Damaged { reason: error.to_string() }, None)),
        Err(error) => return Err(error),
    };
    let copy = file.snapshot(MAX_DOMAIN_BYTES).map_err(|error| ShmError::os("read segment", name, error))?;
    Ok(match copy.map(Directory::check) {
        Some(Ok(directory)) => (DomainLayout::Ours, Some(directory)),
        Some(Err(DirectoryFault::OtherLayout { version, hash, .. })) => (DomainLayout::Other { version, hash }, None),
        Some(Err(DirectoryFault::Damaged(reason))) => (DomainLayout::Damaged { reason }, None),
        None => (DomainLayout::Damaged { reason: "it is empty".to_owned() }, None),
    })
}

/// Returns a copy of a node's board and not a mapping, so the bytes can neither change nor vanish while they are read.
fn board(space: &Space, names: &Names, id: NodeId) -> Option<BoardCopy> {
    let copy = space.open(&names.board(id)).ok()??.snapshot(board_bytes(FIFOS_MAX)).ok()??;
    BoardCopy::check(copy).ok().filter(|board| board.node() == id)
}

fn file_bytes(space: &Space, name: &str) -> u64 {
    space.open(name).ok().flatten().map_or(0, |file| file.len())
}

impl Census {
    /// Bytes of all files of the census, including the lock file.
    fn bytes(&self, space: &Space, names: &Names) -> u64 {
        let fixed = [names.domain(), names.lock()];
        self.nodes
            .values()
            .flatten()
            .chain(&self.devices)
            .chain(&self.others)
            .chain(&fixed)
            .map(|name| file_bytes(space, name))
            .sum()
    }
}
