//! Finds living and dead nodes by the system's view of their files. It believes nothing that a node wrote.

use crate::error::ShmError;
use crate::space::{DomainLock, Names, Part, Space, parse};
use doorbell_fabric::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// The files of one domain.
#[derive(Debug, Default)]
pub(super) struct Census {
    /// The files of each node: its inbox, its board, and every other file that carries its id.
    pub nodes: BTreeMap<NodeId, Vec<String>>,
    /// The nodes whose inbox a living owner holds.
    pub living: BTreeSet<NodeId>,
    /// Devices, which belong to no node.
    pub devices: Vec<String>,
    /// Other files that belong to no node and are neither the domain segment nor the lock file.
    pub others: Vec<String>,
    /// Whether there is a domain segment.
    pub domain: bool,
    /// Whether there is a lock file.
    pub lock: bool,
}

impl Census {
    /// Examines the files of one domain. Without the domain's lock the result is valid for a moment only.
    pub fn take(space: &Space, names: &Names) -> Result<Self, ShmError> {
        let mut census = Self::default();
        for name in space.list()? {
            match parse(space.uid(), &name) {
                Some((domain, part)) if domain == names.domain_name() => census.count(space, name, part)?,
                _ => {}
            }
        }
        Ok(census)
    }

    fn count(&mut self, space: &Space, name: String, part: Part) -> Result<(), ShmError> {
        match part {
            Part::Domain => self.domain = true,
            Part::Lock => self.lock = true,
            Part::Inbox(id) => {
                if is_held(space, &name)? {
                    self.living.insert(id);
                }
                self.nodes.entry(id).or_default().push(name);
            }
            Part::OfNode(id) => self.nodes.entry(id).or_default().push(name),
            Part::Device => self.devices.push(name),
            Part::Other => self.others.push(name),
        }
        Ok(())
    }

    /// Whether there is any file at all.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.devices.is_empty() && self.others.is_empty() && !self.domain && !self.lock
    }

    /// Removes the files of dead nodes and returns their names.
    pub fn remove_dead(&mut self, lock: &DomainLock) -> Result<Vec<String>, ShmError> {
        let mut removed = Vec::new();
        for (id, files) in &mut self.nodes {
            if !self.living.contains(id) {
                // The inbox goes last: as long as it exists, the other files are known to belong to it.
                let inbox = lock.names().inbox(*id);
                files.sort_by_key(|name| *name == inbox);
                for name in files.iter() {
                    if lock.remove(name, None)? {
                        removed.push(name.clone());
                    }
                    fault_point!("reap.file");
                }
            }
        }
        self.nodes.retain(|id, _| self.living.contains(id));
        Ok(removed)
    }

    /// If no node lives, removes all files but the lock file and returns their names.
    pub fn remove_all(&mut self, lock: &DomainLock) -> Result<Vec<String>, ShmError> {
        if !self.living.is_empty() {
            return Ok(Vec::new());
        }
        let mut removed = self.remove_dead(lock)?;
        for name in self.devices.drain(..).chain(self.others.drain(..)) {
            if lock.remove(&name, None)? {
                removed.push(name);
            }
        }
        let name = lock.names().domain();
        if lock.remove(&name, None)? {
            removed.push(name);
        }
        self.domain = false;
        fault_point!("domain.removed");
        Ok(removed)
    }
}

/// Whether an owner holds a file. A missing file, or one that is not Doorbell's, is not held.
fn is_held(space: &Space, name: &str) -> Result<bool, ShmError> {
    match space.open(name) {
        Ok(Some(file)) => file.is_held().map_err(|error| ShmError::os("ask for the owner of", name, error)),
        Ok(None) | Err(ShmError::NotOurs { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
