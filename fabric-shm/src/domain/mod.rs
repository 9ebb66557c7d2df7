//! Membership of a domain: a node joins, finds its peers, and leaves. The others clean up after a node that died.
//!
//! [`Membership::join`] takes the domain's lock, opens or creates the domain segment, removes the leftovers of dead nodes, picks
//! an id and an incarnation, creates this node's inbox and board, and enters them in the directory. If a process is killed
//! anywhere on that path, the next one that joins sees a dead node. [`Membership::open_peer`] opens another node's inbox.
//! [`list_domains`] and [`clean`] work from outside.
//!
//! The kernel tells which nodes live. A node copies and checks everything that it reads from the directory. It trusts a value
//! only as far as a wrong one would harm its writer alone.

mod census;
mod clean;
mod device;
mod directory;
mod keys;
mod layout;
mod pair;
mod peer;
#[cfg(test)]
mod tests;

use crate::cma::{self, Beacon};
use crate::error::ShmError;
use crate::keys::OwnerId;
use crate::layout::{FIFOS_MAX, FLAG_FENCE, INBOX_BYTES, LAYOUT_VERSION, LaneGeometry, SegmentHeader, SegmentKind, board_bytes};
use crate::region::Registry;
use crate::segment::Segment;
use crate::space::{DomainLock, Hold, Identity, Names, Space, forked, valid_domain_name, watch};
use census::Census;
pub use clean::{CleanReport, DomainLayout, DomainStatus, Kept, NodeStatus, clean, files, list_domains};
pub use device::DeviceSegment;
pub use directory::Member;
use directory::{Directory, DirectoryFault};
use doorbell_fabric::sync::Barriers;
use doorbell_fabric::world;
use doorbell_fabric::{Incarnation, NodeId, Role};
pub use keys::{Key, OpenKey, Restored};
use layout::{DomainFacts, MAX_DOMAIN_BYTES, domain_bytes};
pub use layout::{MAX_LABEL, MAX_NODES, MIN_NODES};
pub use pair::Pair;
pub(crate) use pair::callers;
pub(crate) use peer::Owner;
pub use peer::PeerInbox;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The timeout for the domain's lock when leaving.
const LEAVE_PATIENCE: Duration = Duration::from_secs(1);

/// The domain to join, and the properties of the new node.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// The domain's name: 1 to 64 of `A-Z a-z 0-9 _ -`.
    pub domain: String,
    /// The space that holds its segments.
    pub space: Space,
    /// The id to take; `None` takes the lowest free id.
    pub id: Option<NodeId>,
    /// The node's role.
    pub role: Role,
    /// A label for people: at most [`MAX_LABEL`] bytes.
    pub label: String,
    /// The number of nodes that the domain can have, [`MIN_NODES`] to [`MAX_NODES`]. Only the creator of the domain sets it.
    pub max_nodes: usize,
    /// The size of its lanes. Only the creator of the domain sets it.
    pub lanes: LaneGeometry,
    /// The number of injection FIFOs for which the node's board has room, [`FIFOS_MAX`] at most.
    pub fifos: usize,
    /// The lowest allowed incarnation. It is for a node that is also known elsewhere, where this domain's numbers are not known.
    pub least_incarnation: Incarnation,
    /// Whether the node can also be reached over a network.
    pub networked: bool,
    /// The deadline for taking the domain's lock file.
    pub deadline: Instant,
}

impl JoinOptions {
    /// A host without a label, any id, 32 nodes, lanes of default size, and a timeout of ten seconds.
    pub fn new(domain: impl Into<String>, space: Space) -> Self {
        Self {
            domain: domain.into(),
            space,
            id: None,
            role: Role::default(),
            label: String::new(),
            max_nodes: 32,
            lanes: LaneGeometry::default(),
            fifos: 32,
            least_incarnation: Incarnation(0),
            networked: false,
            deadline: world::now() + Duration::from_secs(10),
        }
    }

    fn check(&self) -> Result<(), ShmError> {
        if !valid_domain_name(&self.domain) {
            return Err(ShmError::InvalidDomainName { name: self.domain.clone() });
        }
        let invalid = |option, value, rule| Err(ShmError::InvalidOption { domain: self.domain.clone(), option, value, rule });
        if self.label.len() > MAX_LABEL {
            return invalid("label", format!("'{}'", self.label), "a label has at most 31 bytes");
        }
        if !(MIN_NODES..=MAX_NODES).contains(&self.max_nodes) {
            return invalid("max_nodes", self.max_nodes.to_string(), "a domain has 2 to 1024 nodes");
        }
        if self.fifos > FIFOS_MAX {
            return invalid("fifos", self.fifos.to_string(), "a node has at most 1024 injection FIFOs");
        }
        self.lanes.validate().or_else(|rule| invalid("lanes", format!("{:?}", self.lanes), rule))
    }
}

/// This node's membership of a domain, and its segments. `Send` and `Sync`. Dropping it leaves the domain, and may block for up
/// to a second if another process holds the domain's lock.
///
/// A forked child does not inherit the membership: calls fail with [`ShmError::Forked`] or find nothing, and dropping it there
/// does not affect the parent. The child must not touch the inbox or the board.
#[derive(Debug)]
pub struct Membership {
    space: Space,
    names: Names,
    me: Member,
    directory: Directory,
    inbox: Segment,
    board: Segment,
    identities: [(String, Identity); 2],
    /// Makes this node count as alive; `None` once it left.
    holds: Mutex<Option<Holds>>,
    regions: Arc<Registry>,
    /// The lanes to this node that it has opened, by their sender.
    pairs: Mutex<BTreeMap<NodeId, Arc<Pair>>>,
    /// Other nodes probe this word: see [`crate::cma`].
    _beacon: Beacon,
}

/// The held files that make a node count as alive. Empty once it [resigned](Membership::resign).
#[derive(Debug, Default)]
struct Holds {
    _board: Option<Hold>,
    inbox: Option<Hold>,
}

impl Membership {
    /// Joins a domain, and creates it if no node lives in it. Blocks on the domain's lock file until the deadline.
    ///
    /// Fails if an option is out of range, the id is taken, the domain is full or has another layout, or there is no room for the
    /// segments. A failed call leaves nothing behind.
    pub fn join(options: JoinOptions) -> Result<Self, ShmError> {
        const OPERATION: &str = "join";
        if forked() {
            return Err(ShmError::Forked { operation: "join a domain" });
        }
        options.check()?;
        watch();
        let names = Names::new(options.space.uid(), &options.domain);
        let lock = options.space.lock(OPERATION, &names, options.deadline)?;
        fault_point!("join.locked");
        let joined = Self::join_locked(&lock, &options);
        if joined.is_err() {
            tidy(lock, None);
        }
        joined
    }

    fn join_locked(lock: &DomainLock, options: &JoinOptions) -> Result<Self, ShmError> {
        let mut census = Census::take(lock.space(), lock.names())?;
        let directory = open_directory(lock, &mut census, options)?;
        reap(lock, &mut census, &directory)?;
        fault_point!("join.reaped");

        let id = pick_id(options, &census, &directory)?;
        let in_use: BTreeSet<u32> =
            directory.ids().filter_map(|id| directory.incarnation(id)).map(|incarnation| incarnation.0).collect();
        let incarnation = directory.take_incarnation(options.least_incarnation.0, |number| in_use.contains(&number));

        let flags = if Barriers::join().machine { 0 } else { FLAG_FENCE };
        let beacon = Beacon::new();
        let create = |name: &str, kind, bytes| {
            let init = |segment: &Segment| {
                // SAFETY: page-aligned, writable, and alive as long as the reference is used here.
                let header = unsafe { SegmentHeader::init(segment.ptr(), kind, id, incarnation.0, bytes, flags) };
                if kind == SegmentKind::Inbox {
                    // SAFETY: an inbox begins with its header page.
                    unsafe { beacon.publish(segment.ptr()) };
                }
                header.publish();
            };
            lock.create(name, bytes, true, &init)
        };
        let (inbox_name, board_name) = (lock.names().inbox(id), lock.names().board(id));
        let inbox = create(&inbox_name, SegmentKind::Inbox, INBOX_BYTES)?;
        // SAFETY: an inbox begins with its header page.
        unsafe { cma::publish_hold(inbox.segment.ptr(), inbox.hold.as_ref().map_or(-1, Hold::descriptor)) };
        fault_point!("join.inbox");
        let board = create(&board_name, SegmentKind::Board, board_bytes(options.fifos))
            .inspect_err(|_| drop(lock.remove(&inbox_name, Some(inbox.identity))))?;
        fault_point!("join.board");

        let me = Member {
            id,
            incarnation,
            role: options.role,
            pid: std::process::id(),
            pid_namespace: pid_namespace(lock.space()),
            label: options.label.clone(),
            joined: now(),
            networked: options.networked,
        };
        directory.keys().forget_user(id);
        directory.write(&me);
        fault_point!("join.entered");
        directory.bump();
        tracing::debug!(domain = options.domain, %id, %incarnation, "joined");
        Ok(Self {
            space: options.space.clone(),
            names: lock.names().clone(),
            me,
            directory,
            inbox: inbox.segment,
            board: board.segment,
            identities: [(board_name, board.identity), (inbox_name, inbox.identity)],
            holds: Mutex::new(Some(Holds { _board: board.hold, inbox: inbox.hold })),
            regions: Arc::default(),
            pairs: Mutex::default(),
            _beacon: beacon,
        })
    }

    /// This node's id.
    #[inline]
    pub fn id(&self) -> NodeId {
        self.me.id
    }

    /// The incarnation of that id.
    #[inline]
    pub fn incarnation(&self) -> Incarnation {
        self.me.incarnation
    }

    /// A number in this node's inbox that no other inbox has.
    pub fn nonce(&self) -> u64 {
        // SAFETY: an inbox begins with its header, and is mapped as long as `self`.
        unsafe { SegmentHeader::at(self.inbox.ptr()) }.nonce()
    }

    /// This node's directory entry.
    pub fn me(&self) -> &Member {
        &self.me
    }

    /// This node's role.
    pub fn role(&self) -> Role {
        self.me.role
    }

    /// The label that it joined with.
    pub fn label(&self) -> &str {
        &self.me.label
    }

    /// The domain's name.
    pub fn domain(&self) -> &str {
        self.names.domain_name()
    }

    /// The number of nodes that the domain can have, as fixed by its creator. Ids are below it.
    #[inline]
    pub fn max_nodes(&self) -> usize {
        self.directory.facts().max_nodes
    }

    /// The size of the domain's lanes, as fixed by its creator.
    #[inline]
    pub fn lanes(&self) -> LaneGeometry {
        self.directory.facts().lanes
    }

    /// This node's inbox, of which peers write the first page.
    pub fn inbox(&self) -> &Segment {
        &self.inbox
    }

    /// This node's board: `board_bytes` bytes that only this node writes.
    pub fn board(&self) -> &Segment {
        &self.board
    }

    /// A number that changes when a node joins or leaves, or when a joining node finds a dead one. One acquire load.
    #[inline]
    pub fn generation(&self) -> u32 {
        self.directory.generation()
    }

    /// Sleeps while the generation is `seen`, for `timeout` at most (an hour at most). May return early for no reason.
    pub fn wait_change(&self, seen: u32, timeout: Duration) {
        if !forked() {
            self.directory.wait(seen, timeout);
        }
    }

    /// The directory entry of a node; `None` if no node with this id is attached. The node may be dead: ask
    /// [`PeerInbox::is_alive`].
    pub fn member(&self, id: NodeId) -> Option<Member> {
        (!forked()).then(|| self.directory.read(id)).flatten()
    }

    /// The entries of all attached nodes, this one included, by id.
    pub fn members(&self) -> Vec<Member> {
        if forked() { Vec::new() } else { self.directory.members() }
    }

    /// Opens the inbox of a node to send to it. This is a control path: it makes system calls and allocates, but does not wait
    /// for the peer.
    pub fn open_peer(&self, id: NodeId) -> Result<PeerInbox, ShmError> {
        self.check_call("open the inbox of a peer")?;
        PeerInbox::open(self, id)
    }

    /// Leaves the domain: removes this node's entry, segments and regions. The last node also removes everything else. Mappings
    /// stay until the value is dropped. A second call does nothing. Blocks on the domain's lock for up to a second. If that
    /// fails, the other nodes still see this node as dead, and the next one that joins cleans up.
    pub fn leave(&self) -> Result<(), ShmError> {
        if forked() {
            return Err(ShmError::Forked { operation: "leave a domain" });
        }
        let Some(holds) = self.holds().take() else { return Ok(()) };
        let lock = self.space.lock("leave", &self.names, world::now() + LEAVE_PATIENCE)?;
        fault_point!("leave.locked");
        self.directory.clear(self.me.id, Some(self.me.incarnation));
        fault_point!("leave.cleared");
        let mut result = self.regions.remove_all(&lock);
        for (name, identity) in &self.identities {
            result = result.and(lock.remove(name, Some(*identity)).map(drop));
            fault_point!("leave.removed");
        }
        // Behind the inbox: a peer that makes lanes from now on sees that the inbox is gone, and removes them itself.
        result = result.and(self.remove_pairs(&lock));
        drop(holds);
        self.directory.bump();
        tidy(lock, Some(&self.directory));
        tracing::debug!(domain = self.domain(), id = %self.me.id, "left");
        result
    }

    fn remove_pairs(&self, lock: &DomainLock) -> Result<(), ShmError> {
        // Those to earlier incarnations, too: a process may have died between making one and seeing that its target had gone.
        let names = self.space.list()?;
        let mut ours = names.iter().filter(|name| self.names.is_pair_to(self.id(), name));
        ours.try_for_each(|name| lock.remove(name, None).map(drop))
    }

    /// Makes this node look dead to the others, as if its process had been killed. Removes nothing. For tests.
    pub fn abandon(&self) {
        if !forked() {
            self.regions.abandon();
        }
        drop(self.holds().take());
    }

    /// Makes this node look dead to the others because it cannot do its part any more. They notice as they notice any death.
    /// [`leave`](Self::leave) still cleans up, unless a successor has done so. Before this call, nothing may be left that could
    /// write into a lane, because the lane may soon belong to another node. A second call does nothing.
    pub fn resign(&self) {
        if !forked()
            && let Some(holds) = &mut *self.holds()
        {
            *holds = Holds::default();
        }
    }

    fn holds(&self) -> MutexGuard<'_, Option<Holds>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn has_left(&self) -> bool {
        self.holds().as_ref().is_none_or(|holds| holds.inbox.is_none())
    }

    /// Checks that this process may use the node, which has not left.
    pub(crate) fn check_call(&self, operation: &'static str) -> Result<(), ShmError> {
        if forked() {
            return Err(ShmError::Forked { operation });
        }
        if self.has_left() {
            return Err(ShmError::Left { operation, domain: self.domain().to_owned() });
        }
        Ok(())
    }

    /// Takes the domain's lock for a call of a node that has not left, waiting until `deadline`. `call` names the call in errors.
    pub(crate) fn lock_domain(
        &self,
        operation: &'static str,
        call: &'static str,
        deadline: Instant,
    ) -> Result<DomainLock, ShmError> {
        self.check_call(call)?;
        let lock = self.space.lock(operation, &self.names, deadline)?;
        if let Err(error) = self.check_call(call) {
            // The node left meanwhile. If it was the last one, the lock's file is there again.
            tidy(lock, None);
            return Err(error);
        }
        Ok(lock)
    }

    /// The space that holds the domain's segments.
    pub fn space(&self) -> &Space {
        &self.space
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    pub(crate) fn registry(&self) -> &Arc<Registry> {
        &self.regions
    }

    /// Whether another process truncated this node's inbox, so that messages to it may be lost. One system call.
    pub fn is_severed(&self) -> bool {
        let holds = self.holds();
        self.inbox.is_cut() || holds.as_ref().is_some_and(|holds| holds.inbox.as_ref().is_some_and(|inbox| !inbox.is_whole()))
    }

    /// Names another segment of this node that was truncated, if this process has touched a missing page of it. Messages still
    /// work without it.
    pub fn truncated(&self) -> Option<&'static str> {
        let parts = [
            (self.board.is_cut(), "its board was truncated: other nodes cannot see its metrics"),
            (self.directory.is_cut(), "the domain's directory was truncated: this node does not see new nodes"),
            (self.regions.is_cut(), "one of its regions was truncated: the data in it is lost"),
        ];
        parts.into_iter().find_map(|(is_cut, what)| is_cut.then_some(what))
    }

    fn directory(&self) -> &Directory {
        &self.directory
    }

    fn pid_namespace(&self) -> u64 {
        self.me.pid_namespace
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if !forked()
            && let Err(error) = self.leave()
        {
            tracing::warn!(%error, "left without cleaning up");
        }
    }
}

/// The directory of the domain: the existing one if any node lives in it, else a new one.
fn open_directory(lock: &DomainLock, census: &mut Census, options: &JoinOptions) -> Result<Directory, ShmError> {
    const OPERATION: &str = "join";
    let found = find_directory(OPERATION, lock, census)?;
    let first = match found {
        Some(directory) if !census.living.is_empty() => return Ok(directory),
        // No node lives, so the old properties bind no one. Only the incarnations must not be reused.
        Some(directory) => directory.take_incarnation(0, |_| false),
        None => Incarnation(1),
    };
    census.remove_all(lock)?;
    let facts = DomainFacts { max_nodes: options.max_nodes, lanes: options.lanes };
    let init = |segment: &Segment| Directory::init(segment, &facts, first);
    let created = lock.create(&lock.names().domain(), domain_bytes(facts.max_nodes), false, &init)?;
    fault_point!("join.domain");
    created.segment.keep_on_fork();
    Directory::check(created.segment).map_err(|fault| refusal(OPERATION, lock.names(), census, fault))
}

/// The existing directory; `None` if it is missing or unusable and no living node needs it.
fn find_directory(operation: &'static str, lock: &DomainLock, census: &Census) -> Result<Option<Directory>, ShmError> {
    let name = lock.names().domain();
    let Some(file) = lock.space().open(&name)? else {
        if census.living.is_empty() {
            return Ok(None);
        }
        let domain = lock.names().domain_name().to_owned();
        return Err(ShmError::DomainLost { operation, domain, living: census.living.len() });
    };
    let checked = if file.len() == 0 {
        Err(DirectoryFault::Damaged("it is empty".to_owned()))
    } else {
        let len = usize::try_from(file.len()).unwrap_or(usize::MAX).min(MAX_DOMAIN_BYTES);
        let segment = file.map(0, len).map_err(|error| ShmError::os("map segment", name, error))?;
        segment.keep_on_fork();
        Directory::check(segment)
    };
    match checked {
        Ok(directory) => Ok(Some(directory)),
        Err(fault) if census.living.is_empty() => {
            tracing::info!(domain = lock.names().domain_name(), ?fault, "no node lives in the existing domain; creating it anew");
            Ok(None)
        }
        Err(fault) => Err(refusal(operation, lock.names(), census, fault)),
    }
}

fn refusal(operation: &'static str, names: &Names, census: &Census, fault: DirectoryFault) -> ShmError {
    match fault {
        DirectoryFault::Damaged(reason) => ShmError::Damaged { operation, segment: names.domain(), reason },
        DirectoryFault::OtherLayout { version, hash, ours } => ShmError::OtherLayout {
            operation,
            domain: names.domain_name().to_owned(),
            their_version: version,
            their_hash: hash,
            our_version: LAYOUT_VERSION as u64,
            our_hash: ours,
            living: census.living.len(),
        },
    }
}

/// Removes the leftovers of dead nodes in a living domain, notifies the living nodes, and returns the removed names.
fn reap(lock: &DomainLock, census: &mut Census, directory: &Directory) -> Result<Vec<String>, ShmError> {
    let mut removed = census.remove_dead(lock)?;
    removed.extend(device::reap(lock, census, directory)?);
    let mut changed = !removed.is_empty();
    for id in directory.ids().filter(|id| !census.living.contains(id)) {
        changed |= directory.clear(id, None);
    }
    if changed {
        let keys = directory.keys();
        let is_served = |who: OwnerId| keys.seat().serves(who.node(), who.incarnation());
        keys.waits().sweep(|who| directory.incarnation(who.node()) != Some(who.incarnation()) && !is_served(who));
        directory.bump();
    }
    Ok(removed)
}

/// Picks the id. An id is free if no living owner holds it, whatever the directory says.
fn pick_id(options: &JoinOptions, census: &Census, directory: &Directory) -> Result<NodeId, ShmError> {
    let DomainFacts { max_nodes, .. } = *directory.facts();
    let domain = || options.domain.clone();
    match options.id {
        Some(id) if id.index() >= max_nodes => {
            let rule = "the ids of this domain are smaller: see the max_nodes of its creator";
            Err(ShmError::InvalidOption { domain: domain(), option: "id", value: id.to_string(), rule })
        }
        Some(id) if census.living.contains(&id) => {
            let pid = directory.read(id).map_or(0, |member| member.pid);
            Err(ShmError::IdTaken { domain: domain(), id, pid })
        }
        Some(id) => Ok(id),
        None => directory
            .ids()
            .find(|id| !census.living.contains(id))
            .ok_or_else(|| ShmError::DomainFull { domain: domain(), max_nodes }),
    }
}

/// Removes everything of a domain in which no node lives, the lock file last. Otherwise removes devices that are no longer
/// needed.
fn tidy(lock: DomainLock, directory: Option<&Directory>) {
    let tidied = Census::take(lock.space(), lock.names()).and_then(|mut census| {
        if census.living.is_empty() {
            census.remove_all(&lock)?;
            lock.dissolve()?;
        } else if let Some(directory) = directory {
            device::reap(&lock, &mut census, directory)?;
        }
        Ok(())
    });
    if let Err(error) = tidied {
        tracing::warn!(%error, "could not clean up; leftovers stay until the next join or 'doorbell clean'");
    }
}

/// The pid namespace of this process; 0 where it is unknown or does not matter.
fn pid_namespace(space: &Space) -> u64 {
    use std::os::unix::fs::MetadataExt;
    match space {
        Space::Posix(_) => std::fs::metadata("/proc/self/ns/pid").map_or(0, |found| found.ino()),
        Space::Heap(_) => 0,
    }
}

/// The time of day, for people.
fn now() -> Duration {
    if cfg!(miri) {
        return Duration::ZERO;
    }
    std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}
