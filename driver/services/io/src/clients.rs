//! The clients of a server, and the files that each has open.

use super::export::Kind;
use super::way::{Letter, Outlet};
use super::wire::{HEAD, Reply, Request, VERSION, Welcome, thread_of};
use doorbell_engine::kit::{NodeId, PeerId, Region};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use zerocopy::IntoBytes;

/// A file or directory that a client has open.
pub(super) struct Descriptor {
    pub file: OwnedFd,
    pub kind: Kind,
}

/// Identifies a client: the node and its incarnation, the thread, and a random number of the client's own that each request
/// contains. Also the lane of all its requests, since other processes can read that number in the memory of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub who: PeerId,
    thread: u32,
    token: u64,
    lane: usize,
}

impl Name {
    /// The client that sent this request.
    #[inline]
    pub(super) fn of(letter: &Letter, request: &Request) -> Self {
        let who = (letter.source, letter.incarnation).into();
        Self { who, thread: thread_of(letter.tag), token: request.token.get(), lane: letter.lane() }
    }
}

/// One client. A node may have several.
pub(super) struct Client {
    pub name: Name,
    pub outlet: Rc<Outlet>,
    /// The memory for large reads and writes.
    pub staging: Option<Region<u8>>,
    descriptors: Vec<Option<Descriptor>>,
    open: usize,
    /// Requests of the client without a reply.
    pub jobs: usize,
    /// The client is gone. It is removed when its last operation has ended, since that needs its memory.
    pub gone: bool,
}

impl Client {
    pub(super) fn new(name: Name, outlet: Rc<Outlet>, staging: Option<Region<u8>>) -> Self {
        Self { name, outlet, staging, descriptors: Vec::new(), open: 0, jobs: 0, gone: false }
    }

    pub(super) fn staging_bytes(&self) -> usize {
        self.staging.as_ref().map_or(0, Region::len)
    }

    /// Welcomes the client. If it takes no message now, it asks again, or is gone by the next sweep.
    pub(super) fn welcome(&self, number: u32, tag: u64) {
        let key = self.staging.as_ref().map_or([0; _], |region| region.key().to_bytes());
        let welcome = Welcome { client: number.into(), staging: (self.staging_bytes() as u32).into(), key };
        let mut room = [0; HEAD + size_of::<Welcome>()];
        room[..HEAD].copy_from_slice(Reply::new(0, VERSION.into()).as_bytes());
        room[HEAD..].copy_from_slice(welcome.as_bytes());
        let _ = self.outlet.try_send(tag, &room);
    }

    pub(super) fn open(&self) -> usize {
        self.open
    }

    #[inline]
    pub(super) fn descriptor(&self, number: u16) -> Result<&Descriptor, Errno> {
        self.descriptors.get(usize::from(number)).and_then(Option::as_ref).ok_or(Errno::BADF)
    }

    /// Stores a descriptor under the lowest free number, as the system does.
    pub(super) fn keep(&mut self, descriptor: Descriptor, most: usize) -> Result<u16, Errno> {
        let at = self.descriptors.iter().position(Option::is_none).unwrap_or(self.descriptors.len());
        let number = u16::try_from(at).ok().filter(|_| at < most).ok_or(Errno::MFILE)?;
        if at == self.descriptors.len() {
            self.descriptors.push(None);
        }
        self.descriptors[at] = Some(descriptor);
        self.open += 1;
        Ok(number)
    }

    pub(super) fn release(&mut self, number: u16) -> Result<Descriptor, Errno> {
        let found = self.descriptors.get_mut(usize::from(number)).and_then(Option::take).ok_or(Errno::BADF)?;
        self.open -= 1;
        Ok(found)
    }

    /// Closes all descriptors.
    pub(super) fn release_all(&mut self) -> usize {
        self.descriptors.clear();
        std::mem::take(&mut self.open)
    }
}

/// All clients, by their numbers.
#[derive(Default)]
pub(super) struct Clients {
    all: BTreeMap<u32, Client>,
    latest: u32,
}

impl Clients {
    /// All clients, with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Client)> {
        self.all.iter().map(|(number, client)| (*number, client))
    }

    /// The number of a client.
    pub(super) fn of(&self, name: Name) -> Option<u32> {
        self.iter().find(|(_, client)| client.name == name && !client.gone).map(|(number, _)| number)
    }

    /// The clients of a node, of any incarnation.
    pub(super) fn of_node(&self, node: NodeId) -> impl Iterator<Item = &Client> {
        self.all.values().filter(move |client| client.name.who.node == node)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Adds a client under a number that none had for long. 0 is no client's number.
    pub(super) fn add(&mut self, client: Client) -> u32 {
        self.latest = self.latest.wrapping_add(1).max(1);
        while self.all.contains_key(&self.latest) {
            self.latest = self.latest.wrapping_add(1).max(1);
        }
        self.all.insert(self.latest, client);
        self.latest
    }

    #[inline]
    pub(super) fn get(&mut self, number: u32) -> Option<&mut Client> {
        self.all.get_mut(&number)
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<Client> {
        self.all.remove(&number)
    }
}
