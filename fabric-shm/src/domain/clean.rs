//! Domains seen from outside: what there is, who lives, and what can go.

use super::census::Census;
use super::directory::{Directory, DirectoryFault, Member};
use super::layout::MAX_DOMAIN_BYTES;
use super::{device, find_directory, reap};
use crate::board::BoardCopy;
use crate::device::DeviceFacts;
use crate::error::ShmError;
use crate::keys::KeyFacts;
use crate::layout::BOARD_BYTES;
use crate::space::{Names, Space, parse, valid_domain_name};
use doorbell_fabric::NodeId;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// How long to wait for the lock of a domain that is to be cleaned.
const PATIENCE: Duration = Duration::from_secs(2);

/// A domain as it was a moment ago.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DomainStatus {
    /// Its name.
    pub name: String,
    /// Whether this program could join it.
    pub layout: DomainLayout,
    /// How many nodes it can have, if its layout is ours.
    pub max_nodes: Option<usize>,
    /// Its nodes, living and dead, by id.
    pub nodes: Vec<NodeStatus>,
    /// Bytes of all its segments.
    pub bytes: u64,
    /// The keys of its lock registry, as they were a moment ago.
    pub keys: Vec<KeyFacts>,
    /// Its shared devices, as they were a moment ago.
    pub devices: Vec<DeviceFacts>,
}

/// Whether a domain can be read by this program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DomainLayout {
    /// It can.
    Ours,
    /// Made by another build.
    Other {
        /// Its layout version.
        version: u64,
        /// Its layout hash.
        hash: u64,
    },
    /// The domain segment holds what no build writes.
    Damaged {
        /// What is wrong with it.
        reason: String,
    },
    /// There is no domain segment, only other files.
    Missing,
}

/// A node as it was a moment ago.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeStatus {
    /// Its id.
    pub id: NodeId,
    /// Whether its owner lives.
    pub alive: bool,
    /// What it says of itself, if the directory can be read.
    pub member: Option<Member>,
    /// Bytes of its segments.
    pub bytes: u64,
    /// What it shows of itself, as copied a moment ago; `None` if there is no board of this life, or one of another layout.
    pub board: Option<BoardCopy>,
}

/// What was cleaned.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CleanReport {
    /// The files that were removed.
    pub removed: Vec<String>,
    /// Bytes given back.
    pub bytes: u64,
    /// The domains of which something was kept.
    pub kept: Vec<Kept>,
}

/// A domain that was not removed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Kept {
    /// Its name.
    pub domain: String,
    /// How many of its nodes live.
    pub living: usize,
    /// Why it was kept.
    pub reason: String,
}

/// All domains of this user. Takes no lock and changes nothing, so what it tells is true for a moment only; does not block.
pub fn list_domains(space: &Space) -> Result<Vec<DomainStatus>, ShmError> {
    domain_names(space)?.iter().map(|name| status(space, &Names::new(space.uid(), name))).collect()
}

/// The files of one domain by name, with their bytes. Takes no lock and changes nothing.
///
/// # Errors
/// The directory cannot be read.
pub fn files(space: &Space, domain: &str) -> Result<Vec<(String, u64)>, ShmError> {
    let uid = space.uid();
    let names = space.list()?.into_iter().filter(|name| parse(uid, name).is_some_and(|(found, _)| found == domain));
    Ok(names.map(|name| (file_bytes(space, &name), name)).map(|(bytes, name)| (name, bytes)).collect())
}

/// Removes what dead nodes left behind, in one domain or in all of this user's; and domains in which nobody lives, with
/// their lock files. Never touches what belongs to the living. A domain of another layout is left alone unless `force`, and
/// then only removed if nobody lives in it.
///
/// Blocks for up to two seconds a domain if its lock is held; such a domain is kept, and the report says so.
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
    // To lock makes the lock file: not for a domain that does not exist.
    if Census::take(space, &names)?.is_empty() {
        return Ok(());
    }
    let mut keep = |living, reason| report.kept.push(Kept { domain: domain.to_owned(), living, reason });
    let lock = match space.lock(OPERATION, &names, Instant::now() + PATIENCE) {
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
            keep(0, format!("nobody lives in it, but it has another layout ({version}/{hash:016x}): force removes it"));
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

/// Looks at a private copy of a domain's directory.
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

/// A copy of a node's board, and not a mapping: what was read can neither change nor vanish under the reader.
fn board(space: &Space, names: &Names, id: NodeId) -> Option<BoardCopy> {
    let copy = space.open(&names.board(id)).ok()??.snapshot(BOARD_BYTES).ok()??;
    BoardCopy::check(copy).ok().filter(|board| board.node() == id)
}

fn file_bytes(space: &Space, name: &str) -> u64 {
    space.open(name).ok().flatten().map_or(0, |file| file.len())
}

impl Census {
    /// Bytes of all files counted, the lock file too.
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
