//! The state that all handles of a node share, and the wait loop of their threads.

pub mod install;
mod parking;
pub mod poller;
mod stats;
mod waits;
mod watch;
mod work;

pub use stats::Stats;
pub use waits::Moment;
pub use watch::Begun;
pub use work::{Updating, Work, Working};

use crate::Result;
use crate::board::monitor::Monitor;
use crate::error::Error;
use crate::links::{Fabrics, Network, own_bell};
use crate::memory::table::RegionTable;
use crate::message::lending::Lender;
use crate::message::outbound::Outbound;
use crate::message::service::Class;
use crate::message::ways::Ways;
use crate::mode::Modes;
use crate::sync::baton::{AtOnce, Baton, BatonGuard, Token};
use crate::sync::op::Op;
use crate::sync::parking::Parking;
use crate::sync::pool::BlockingPool;
use crate::sync::reactor::ReactorWord;
use crate::sync::wait::{Backoff, Step, Wait};
use crate::transfer::TransferReport;
use crate::turn::later::Later;
use crate::turn::{Engine, EngineSettings};
use crossbeam_utils::CachePadded;
use doorbell_fabric::sync::{AtomicBool, AtomicU64, AtomicUsize, Barriers, Ordering};
use doorbell_fabric::{Incarnation, NodeId, Priority};
use doorbell_shm::board::{Metric, Record, RecordKind};
use doorbell_shm::domain::{Member, Membership};
use doorbell_shm::doorbell::Bell;
use doorbell_shm::fabric::ShmFabric;
use doorbell_shm::space::Permission;
use poller::{PollerWord, Progress, Turned};
use std::any::Any;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The most turns in a row before the clock is read.
pub const TURNS_MAX: usize = 64;
/// The most looks at the busy lanes, with a pause behind each, before the baton is released for a moment.
pub const SPIN_ROUNDS: u32 = 64;

/// How long a wait for a joining node sleeps if both the directory and the network may report one.
const LOOK_AROUND: Duration = Duration::from_millis(10);

/// The state that the handles of a node share.
pub struct Shared {
    /// In cache lines of its own: the thread that turns the engine writes there all the time, and others read what follows.
    baton: CachePadded<Baton<Engine>>,
    later: Arc<Later>,
    parking: Parking,
    poller: PollerWord,
    ways: Arc<Ways>,
    turns: Arc<CachePadded<AtomicU64>>,
    monitor: Arc<Monitor>,
    wait: Wait,
    progress: Progress,
    /// Whether threads of this node must fence before they look whether the bell is armed.
    fenced: bool,
    /// Threads of the program turn the engine. Not once the node is closed, nor in a forked child.
    callers: Permission,
    /// A thread that gives services work need only ring the bell. Not once the node is closed.
    rings: AtomicBool,
    closed: AtomicBool,
    /// The number of threads that may hold the lock of a value.
    updating: AtomicUsize,
    /// Handles that may be in use; may include some that are gone.
    works: Mutex<Vec<Weak<CachePadded<AtomicBool>>>>,
    regions: Arc<RegionTable>,
    lender: Arc<Lender>,
    membership: Arc<Membership>,
    network: Option<Network>,
    modes: Arc<Modes>,
    copiers: Arc<BlockingPool>,
    /// The state of services for the threads of this node, outside the engine.
    kept: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
    reactor: ReactorWord,
}

impl Shared {
    pub(crate) fn new(
        shm: ShmFabric,
        network: Option<Network>,
        wait: Wait,
        progress: Progress,
        settings: EngineSettings,
    ) -> Self {
        let membership = shm.membership().clone();
        let net = network.as_ref().map(|network| network.net(membership.max_nodes()));
        let fabric = Fabrics::new(shm, net);
        let ways = Arc::new(Ways::new(membership.max_nodes(), settings.bulk_bytes, settings.modes.steer_all()));
        let turns = Arc::new(CachePadded::new(AtomicU64::new(0)));
        let regions: Arc<RegionTable> = Arc::default();
        let monitor = Arc::new(Monitor::new(&membership));
        settings.modes.belong(monitor.home().clone());
        let lender = Arc::new(Lender::new(membership.clone(), regions.clone(), settings.loan_bytes));
        let modes = settings.modes.clone();
        let engine = Engine::new(fabric, ways.clone(), turns.clone(), monitor.clone(), regions.clone(), lender.clone(), settings);
        let later = engine.later().clone();
        let fenced = !Barriers::join().machine;
        Self {
            baton: CachePadded::new(Baton::new(engine)),
            later,
            parking: Parking::default(),
            poller: PollerWord::default(),
            ways,
            turns,
            monitor,
            wait,
            progress,
            fenced,
            callers: if progress == Progress::Poller { Permission::to_nobody() } else { Permission::to_this_process() },
            rings: AtomicBool::new(!fenced && progress != Progress::Adaptive),
            closed: AtomicBool::new(false),
            updating: AtomicUsize::new(0),
            works: Mutex::default(),
            regions,
            lender,
            membership,
            network,
            modes,
            copiers: Arc::default(),
            kept: Mutex::default(),
            reactor: ReactorWord::default(),
        }
    }

    /// Whether nodes that this one seeks may not have had the time to answer.
    pub fn is_settling(&self) -> bool {
        self.network.as_ref().is_some_and(Network::is_settling)
    }

    /// Adds a service to the node.
    ///
    /// # Errors
    /// [`Error::Invalid`]: another service has packets of its class; [`Error::Reentrant`].
    pub fn register<S: Class>(&self, service: S) -> Result<()> {
        self.enter(Token::current(), "register a service")?.register(service)
    }

    /// A service's state for the threads of this node, outside the engine. There is one of each type.
    pub fn kept<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = kept.iter().find_map(|one| one.clone().downcast().ok()) {
            return found;
        }
        let new = Arc::<T>::default();
        kept.push(new.clone());
        new
    }

    /// Makes sure that gathered packets are sent in time, even without further calls.
    pub(crate) fn heed_gathering(self: &Arc<Self>) {
        let Some(network) = &self.network else { return };
        let shared = Arc::downgrade(self);
        let call = move || {
            if let Some(shared) = shared.upgrade() {
                shared.poller.gathering();
                shared.bell().wake();
                // The bell may be disarmed since the poller went to sleep.
                shared.rouse_poller();
            }
        };
        network.on_gather(call);
    }

    /// The node at an address of the network.
    pub(crate) fn node_at(&self, address: SocketAddr) -> Option<NodeId> {
        self.network.as_ref()?.node_at(address)
    }

    /// The settings for modes.
    pub(crate) fn modes(&self) -> &Modes {
        &self.modes
    }

    /// Whether the node is on a network.
    pub fn has_network(&self) -> bool {
        self.network.is_some()
    }

    /// The addresses at which other nodes reach this one on a network.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        self.network.as_ref().map_or(&[], Network::addresses)
    }

    /// The node's membership of the domain, shared.
    pub fn membership_arc(&self) -> Arc<Membership> {
        self.membership.clone()
    }

    /// The node's membership: the directory, and which nodes live.
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// The regions of this node, and the mapped regions of others.
    pub fn regions(&self) -> &Arc<RegionTable> {
        &self.regions
    }

    /// The loans of this node.
    #[inline(always)]
    pub(crate) fn lender(&self) -> &Lender {
        &self.lender
    }

    /// Metrics, flight recorder and DMA counters.
    #[inline]
    pub(crate) fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// The same, shared.
    pub(crate) fn monitor_arc(&self) -> Arc<Monitor> {
        self.monitor.clone()
    }

    /// Call after completing an operation outside the engine: wakes the thread that sleeps on the bell if it waits for that
    /// operation. Within the engine, the turn does so.
    pub fn wake_parked(&self, me: Token) {
        if let Some(mut engine) = self.baton.enter(me) {
            engine.wake_if_done();
        }
    }

    /// The send queues of this node.
    pub fn ways(&self) -> &Ways {
        &self.ways
    }

    /// The state shared with the poller thread.
    pub fn poller(&self) -> &PollerWord {
        &self.poller
    }

    /// How threads of this node wait.
    pub fn wait(&self) -> Wait {
        self.wait
    }

    /// The backoff for a thread of this node.
    #[inline(always)]
    pub fn backoff(&self, deadline: Option<Instant>) -> Backoff {
        Backoff::new(self.wait, deadline).on_network(self.network.is_some())
    }

    /// Which thread turns the engine when no call does.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Checks that this process may use the node, and returns the calling thread's token. Two loads.
    #[inline(always)]
    pub fn check(&self) -> Result<Token> {
        self.usable()?;
        Ok(Token::current())
    }

    /// The blocking pool: threads that move data for callers that may not wait themselves.
    pub fn copiers(&self) -> &Arc<BlockingPool> {
        &self.copiers
    }

    /// Whether the node has left.
    #[inline(always)]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Whether this process may use the node, and the program's threads turn its engine.
    #[inline(always)]
    pub fn program_turns(&self) -> bool {
        self.callers.is_granted()
    }

    /// Checks that this process may use the node.
    #[inline(always)]
    pub fn usable(&self) -> Result<()> {
        if doorbell_shm::space::forked() {
            return Err(Error::Forked);
        }
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::Closed);
        }
        Ok(())
    }

    /// Whether this call comes from within the engine's turn.
    pub fn is_within(&self, me: Token) -> bool {
        self.baton.is_mine(me)
    }

    /// How this incarnation of a node ended, if it has, and if this thread is not within a callback of this node. Asks the
    /// kernel.
    pub(crate) fn ended(&self, me: Token, node: NodeId, incarnation: Incarnation) -> Option<Error> {
        let mut engine = self.baton.enter(me)?;
        engine.check_peers();
        engine.has_ended(node, incarnation).then(|| engine.unreachable(node, Some(incarnation)))
    }

    /// Whether this incarnation of a node is over: it left or died. Another one may have joined under its id. False if that
    /// can't be checked now.
    pub fn is_over(&self, me: Token, node: NodeId, incarnation: Incarnation) -> bool {
        self.why_over(me, node, incarnation).is_some()
    }

    /// Why this incarnation of a node can't be reached any more, if so.
    #[cold]
    pub fn why_over(&self, me: Token, node: NodeId, incarnation: Incarnation) -> Option<Error> {
        let mut engine = self.baton.enter(me)?;
        engine.check_peers();
        (engine.fabric().live(node) != Some(incarnation)).then(|| engine.unreachable(node, Some(incarnation)))
    }

    /// Whether this incarnation of a node shares memory with this one.
    pub fn is_near(&self, me: Token, node: NodeId) -> bool {
        self.baton.enter(me).is_some_and(|mut engine| !engine.fabric().is_remote(node))
    }

    /// Takes the baton.
    #[inline(always)]
    pub fn enter(&self, me: Token, operation: &'static str) -> Result<BatonGuard<'_, Engine>> {
        match self.baton.enter(me) {
            Some(engine) => Ok(engine),
            None => Err(Error::Reentrant { operation }),
        }
    }

    /// Takes the baton if this thread has the bias: see [`Baton::enter_at_once`]. Call nothing by this guard that could change what
    /// [`Engine::may_take_short`] asks: the answer holds on.
    #[inline(always)]
    pub fn enter_at_once(&self) -> Option<AtOnce<'_, Engine>> {
        self.baton.enter_at_once(Token::at_hand())
    }

    fn bell(&self) -> &Bell {
        own_bell(&self.membership)
    }

    /// One turn of the engine. Notes the work that is left over.
    pub fn turn(&self, me: Token) -> usize {
        self.baton.enter(me).map_or(0, |mut engine| engine.turn(me, false))
    }

    /// The poller's turn.
    pub(crate) fn turn_poller(&self, me: Token) -> Turned {
        let turned = self.baton.enter(me).map(|mut engine| {
            let work = engine.turn(me, true);
            Turned { work, is_news: engine.is_news(work), serves: engine.is_hurried() }
        });
        turned.unwrap_or_default()
    }

    /// Checks that the peers live, and tells services and waiting threads about those that do not. Makes system calls.
    pub fn check_peers(&self, me: Token) {
        if let Some(mut engine) = self.baton.enter(me) {
            engine.check_peers();
        }
    }

    /// The directory without members that died and were not removed yet. Within a callback, a member whose death was not
    /// noticed before is included.
    pub fn living_members(&self, me: Token) -> Vec<Member> {
        let mut members = self.membership.members();
        if let Some(mut engine) = self.baton.enter(me) {
            engine.check_peers();
            members.retain(|member| !engine.has_ended(member.id, member.incarnation));
            members.extend(engine.fabric().remote_members());
            members.sort_unstable_by_key(|member| member.id);
        }
        members
    }

    /// The send queue to a node's present incarnation, made if necessary. A slow call.
    pub(crate) fn way(&self, me: Token, node: NodeId, priority: Priority) -> Result<(Arc<Outbound>, Incarnation)> {
        let Some(outbound) = self.ways.get(node, priority) else { return Err(Error::NoSuchNode { node }) };
        let mut engine = self.enter(me, "peer")?;
        engine.refresh_peers();
        let Some(incarnation) = engine.fabric().live(node) else { return Err(engine.unreachable(node, None)) };
        if let Some(mut state) = outbound.state.enter(me) {
            engine.connect(outbound, &mut state, incarnation)?;
        }
        Ok((outbound.clone(), incarnation))
    }

    /// The send queue to a node at normal priority, and the incarnation it leads to: the path of
    /// [`Node::send`](super::Node::send).
    #[inline]
    pub(crate) fn known_way(&self, me: Token, node: NodeId) -> Result<(&Arc<Outbound>, Incarnation)> {
        if let Some(outbound) = self.ways.known(node, Priority::Normal)
            && let Some(state) = outbound.state.enter(me)
            && state.link.is_some()
        {
            let incarnation = state.incarnation;
            drop(state);
            return Ok((outbound, incarnation));
        }
        let (_, incarnation) = self.way(me, node, Priority::Normal)?;
        self.ways.known(node, Priority::Normal).map(|outbound| (outbound, incarnation)).ok_or(Error::NoSuchNode { node })
    }

    /// Turns the engine or sleeps until `op` is done. False if the deadline passed first, or if `stuck` returned that it can
    /// never end.
    pub fn drive(
        &self,
        me: Token,
        op: &Arc<Op>,
        deadline: Option<Instant>,
        mut stuck: impl FnMut(&mut Engine) -> bool,
    ) -> Result<bool> {
        let mut backoff = self.backoff(deadline);
        let mut parking = self.parking_hold();
        loop {
            if op.is_done() {
                return Ok(true);
            }
            if self.progress != Progress::Poller {
                let mut engine = self.enter(me, "wait")?;
                // The loop is bounded: a flood from a peer must not delay the check of the deadline.
                for _ in 0..TURNS_MAX {
                    if op.is_done() {
                        break;
                    }
                    let work = engine.turn(me, false);
                    if work == 0 {
                        break;
                    }
                    if engine.is_news(work) {
                        backoff.awake();
                    }
                }
                if op.is_done() {
                    return Ok(true);
                }
                if stuck(&mut engine) {
                    return Ok(false);
                }
                if self.wait != Wait::Park && engine.spin(SPIN_ROUNDS) {
                    backoff.awake();
                }
            }
            match backoff.step() {
                Step::Again => {}
                Step::Check => {
                    if self.progress != Progress::Poller {
                        self.check_peers(me);
                    } else if let Some(mut engine) = self.baton.enter(me)
                        && stuck(&mut engine)
                    {
                        return Ok(false);
                    }
                }
                Step::Park(timeout) => {
                    self.park(me, op, timeout, &mut parking)?;
                    if self.progress != Progress::Poller {
                        if backoff.check_due() {
                            self.check_peers(me);
                        }
                    } else if stuck(&mut *self.enter(me, "wait")?) {
                        return Ok(false);
                    }
                    backoff.woke();
                }
                Step::Expired => return Ok(op.is_done()),
            }
        }
    }

    pub(crate) fn stats(&self, me: Token) -> Result<Stats> {
        let metrics = self.enter(me, "stats")?.show();
        Ok(Stats {
            messages_in: metrics[Metric::MessagesIn],
            bytes_in: metrics[Metric::BytesIn],
            by_poller: metrics[Metric::ByPoller],
            unexpected: metrics[Metric::Unexpected],
            messages_out: metrics[Metric::MessagesOut],
            bytes_out: metrics[Metric::BytesOut],
            pooled: metrics[Metric::Pooled] as usize,
            pooled_bytes: metrics[Metric::PooledBytes] as usize,
            pooled_bytes_most: metrics[Metric::PooledBytesMost] as usize,
            parks: metrics[Metric::Parks],
        })
    }

    /// The reports of the latest transfers.
    pub(crate) fn transfers(&self, me: Token) -> Result<Vec<TransferReport>> {
        Ok(self.enter(me, "transfers")?.reports())
    }

    /// Ends everything that is pending. The first half of leaving.
    pub(crate) fn close(&self, in_good_order: bool) {
        self.callers.end();
        self.rings.store(false, Ordering::Relaxed);
        self.closed.store(true, Ordering::SeqCst);
        self.poller.stop();
        if doorbell_shm::space::forked() {
            return;
        }
        let me = Token::current();
        if let Some(mut engine) = self.baton.enter(me) {
            engine.close(me, in_good_order);
            engine.monitor().record(&Record::new(RecordKind::Left));
            engine.show();
        }
        self.monitor.counters.end_waits(|| Error::Closed);
        self.rouse();
        self.bell().wake();
    }

    /// Ends as if the process had been killed.
    pub(crate) fn abandon(&self) {
        if let Some(network) = &self.network {
            network.abandon();
        }
        self.membership.abandon();
    }

    /// Leaves the domain. The second half of leaving.
    pub(crate) fn depart(&self) -> Result<()> {
        if doorbell_shm::space::forked() {
            return Ok(());
        }
        if let Some(network) = &self.network {
            network.shut();
        }
        self.bell().depart();
        Ok(self.membership.leave()?)
    }
}
