//! What all handles of a node share, and how their threads drive and wait.

use super::{Stats, way_index};
use crate::Result;
use crate::engine::baton::{Baton, BatonGuard, Token};
use crate::engine::helm::Helm;
use crate::engine::op::Op;
use crate::engine::poller::{PollerWord, Progress};
use crate::engine::turn::{Engine, Ways};
use crate::engine::wait::{Gear, Step, Wait};
use crate::error::Error;
use crate::message::outbound::Outbound;
use doorbell_fabric::sync::{AtomicBool, AtomicU64, Ordering};
use doorbell_fabric::{Incarnation, NodeId, Priority};
use doorbell_shm::board::{Board, Figures};
use doorbell_shm::domain::Membership;
use doorbell_shm::doorbell::Bell;
use doorbell_shm::fabric::ShmFabric;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Turns in a row before the clock is looked at.
pub(crate) const TURNS_MAX: usize = 64;
/// Looks at the busy lanes before the baton is given to others for a moment.
pub(crate) const SPIN_ROUNDS: u32 = 64;

/// The common part of a node.
pub struct Shared {
    baton: Baton<Engine>,
    helm: Helm,
    poller: PollerWord,
    ways: Arc<Ways>,
    turns: Arc<AtomicU64>,
    parks: AtomicU64,
    wait: Wait,
    progress: Progress,
    closed: AtomicBool,
    membership: Arc<Membership>,
}

impl Shared {
    pub(crate) fn new(fabric: ShmFabric, pool_bytes: usize, wait: Wait, progress: Progress) -> Self {
        let membership = fabric.membership().clone();
        let ways: Arc<Ways> =
            (0..way_index(NodeId(membership.max_nodes() as u16), Priority::High)).map(|_| OnceLock::new()).collect();
        let turns = Arc::new(AtomicU64::new(0));
        Self {
            baton: Baton::new(Engine::new(fabric, pool_bytes, ways.clone(), turns.clone(), wait != Wait::Spin)),
            helm: Helm::default(),
            poller: PollerWord::default(),
            ways,
            turns,
            parks: AtomicU64::new(0),
            wait,
            progress,
            closed: AtomicBool::new(false),
            membership,
        }
    }

    pub(crate) fn membership(&self) -> &Membership {
        &self.membership
    }

    pub(crate) fn ways(&self) -> &Ways {
        &self.ways
    }

    pub(crate) fn poller(&self) -> &PollerWord {
        &self.poller
    }

    pub(crate) fn wait(&self) -> Wait {
        self.wait
    }

    pub(crate) fn progress(&self) -> Progress {
        self.progress
    }

    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Whether this process may use the node at all; and the calling thread's token. Two loads.
    #[inline(always)]
    pub(crate) fn check(&self) -> Result<Token> {
        if doorbell_shm::space::forked() {
            return Err(Error::Forked);
        }
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::Closed);
        }
        Ok(Token::current())
    }

    /// Takes the baton.
    #[inline(always)]
    pub(crate) fn enter(&self, me: Token, operation: &'static str) -> Result<BatonGuard<'_, Engine>> {
        match self.baton.enter(me) {
            Some(engine) => Ok(engine),
            None => Err(Error::Reentrant { operation }),
        }
    }

    fn bell(&self) -> &Bell {
        // SAFETY: the inbox begins with the header page and is mapped as long as the membership.
        unsafe { Bell::at(self.membership.inbox().ptr()) }
    }

    /// One turn of the engine, with what is left to be shown on the board.
    pub(crate) fn turn(&self, me: Token, poller: bool) -> usize {
        self.baton.enter(me).map_or(0, |mut engine| engine.turn(me, poller))
    }

    pub(crate) fn check_peers(&self, me: Token) {
        if let Some(mut engine) = self.baton.enter(me) {
            engine.check_peers();
        }
    }

    /// The way to a node's present life, made if need be. Control path.
    pub(crate) fn way(&self, me: Token, node: NodeId, priority: Priority) -> Result<(Arc<Outbound>, Incarnation)> {
        let Some(slot) = self.ways.get(way_index(node, priority)) else { return Err(Error::NoSuchNode { node }) };
        let mut engine = self.enter(me, "peer")?;
        engine.glance();
        let Some(incarnation) = engine.fabric().live(node) else { return Err(engine.unreachable(node, None)) };
        let outbound = slot.get_or_init(|| Arc::new(Outbound::new(node, priority)));
        if let Some(mut state) = outbound.state.enter(me) {
            engine.connect(outbound, &mut state, incarnation)?;
        }
        Ok((outbound.clone(), incarnation))
    }

    /// The way to a node at normal priority, with the life it leads to: the path of [`Node::send`](super::Node::send).
    #[inline]
    pub(crate) fn known_way(&self, me: Token, node: NodeId) -> Result<(&Arc<Outbound>, Incarnation)> {
        let slot = self.ways.get(way_index(node, Priority::Normal)).ok_or(Error::NoSuchNode { node })?;
        if let Some(outbound) = slot.get()
            && let Some(state) = outbound.state.enter(me)
            && state.link.is_some()
        {
            let incarnation = state.incarnation;
            drop(state);
            return Ok((outbound, incarnation));
        }
        let (_, incarnation) = self.way(me, node, Priority::Normal)?;
        slot.get().map(|outbound| (outbound, incarnation)).ok_or(Error::NoSuchNode { node })
    }

    /// Drives until `op` is done. False if the deadline passed first, or if `stuck` said that it can't come to an end.
    pub(crate) fn drive(
        &self,
        me: Token,
        op: &Arc<Op>,
        deadline: Option<Instant>,
        mut stuck: impl FnMut(&mut Engine) -> bool,
    ) -> Result<bool> {
        let mut gear = Gear::new(self.wait, deadline);
        let mut helm = self.helm_hold();
        loop {
            if op.is_done() {
                return Ok(true);
            }
            if self.progress != Progress::Poller {
                let mut engine = self.enter(me, "wait")?;
                // Bounded: a flood from a peer must not hide the deadline.
                for _ in 0..TURNS_MAX {
                    if op.is_done() || engine.turn(me, false) == 0 {
                        break;
                    }
                    gear.awake();
                }
                if op.is_done() {
                    return Ok(true);
                }
                if stuck(&mut engine) {
                    return Ok(false);
                }
                if self.wait != Wait::Park && engine.fabric().spin(SPIN_ROUNDS) {
                    gear.awake();
                }
            }
            match gear.step() {
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
                    self.park(me, op, timeout, &mut helm)?;
                    if self.progress != Progress::Poller {
                        if gear.check_due() {
                            self.check_peers(me);
                        }
                    } else if stuck(&mut *self.enter(me, "wait")?) {
                        return Ok(false);
                    }
                    gear.slept();
                }
                Step::Expired => return Ok(op.is_done()),
            }
        }
    }

    /// Sleeps until `op` is done, something arrives, or the time is up.
    pub(crate) fn park(&self, me: Token, op: &Arc<Op>, timeout: Duration, helm: &mut HelmHold<'_>) -> Result<()> {
        if self.progress == Progress::Poller {
            if op.will_sleep() {
                op.sleep(timeout);
            }
            return Ok(());
        }
        if !helm.held {
            match self.helm.take() {
                Some(from_poller) => {
                    helm.held = true;
                    if from_poller {
                        self.bell().wake();
                    }
                }
                None => {
                    helm.slept = true;
                    self.helm.sleep_on(op, || op.sleep(timeout));
                    return Ok(());
                }
            }
        }
        let sleep = self.enter(me, "wait")?.park(me, op, timeout);
        if let Some(timeout) = sleep {
            self.parks.fetch_add(1, Ordering::Relaxed);
            self.bell().sleep(timeout);
            let mut engine = self.enter(me, "wait")?;
            engine.awake();
            self.show(&mut engine);
        }
        Ok(())
    }

    /// The poller's sleep on the bell, unless a thread of the application sleeps there.
    pub(crate) fn park_poller(&self, me: Token, timeout: Duration) {
        if !self.helm.take_as_poller() {
            std::thread::park_timeout(Duration::from_millis(1));
            return;
        }
        let sleep = self.baton.enter(me).and_then(|mut engine| {
            if !self.helm.is_pollers() {
                // A thread of the application took it meanwhile, and the bell with it.
                return None;
            }
            engine.check_peers();
            self.show(&mut engine);
            engine.arm(me, timeout)
        });
        if let Some(timeout) = sleep
            && !self.poller.stopped()
        {
            self.parks.fetch_add(1, Ordering::Relaxed);
            self.bell().sleep(timeout);
        }
        // If a thread of the application took the helm meanwhile, the bell is its own by now.
        if self.helm.leave_as_poller() {
            self.bell().disarm();
        }
    }

    /// Tells the poller that there is something to do, where it alone drives.
    pub(crate) fn hand_over(&self) {
        if self.progress == Progress::Poller {
            self.bell().ring(true);
        }
    }

    pub(crate) fn helm_hold(&self) -> HelmHold<'_> {
        HelmHold { shared: self, held: false, slept: false }
    }

    pub(crate) fn stats(&self, me: Token) -> Result<Stats> {
        let mut engine = self.enter(me, "stats")?;
        self.show(&mut engine);
        let tally = engine.tally();
        let (messages_out, bytes_out) = self.sent(me);
        let (pooled_bytes, pooled_bytes_most) = engine.pool().bytes();
        Ok(Stats {
            messages_in: tally.messages,
            bytes_in: tally.bytes,
            by_poller: tally.by_poller,
            unexpected: tally.unexpected,
            messages_out,
            bytes_out,
            pooled: engine.pool().len(),
            pooled_bytes,
            pooled_bytes_most,
            parks: self.parks.load(Ordering::Relaxed),
        })
    }

    fn sent(&self, me: Token) -> (u64, u64) {
        let states = self.ways.iter().filter_map(OnceLock::get).filter_map(|way| way.state.enter(me));
        states.fold((0, 0), |(messages, bytes), state| (messages + state.messages, bytes + state.bytes))
    }

    /// Shows the figures on the board. Cheap beside the sleep or the call that it comes with.
    fn show(&self, engine: &mut Engine) {
        let tally = engine.tally();
        let (messages_out, bytes_out) = self.sent(Token::current());
        // SAFETY: the board is BOARD_BYTES long, ours to write, and mapped as long as the membership.
        unsafe { Board::at(self.membership.board().ptr()) }.show(&Figures {
            messages_in: tally.messages,
            bytes_in: tally.bytes,
            messages_out,
            bytes_out,
            pooled: engine.pool().len() as u64,
            pooled_bytes: engine.pool().bytes().0 as u64,
            parks: self.parks.load(Ordering::Relaxed),
        });
    }

    /// Ends everything that is pending. The first half of leaving.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.poller.stop();
        if doorbell_shm::space::forked() {
            return;
        }
        let me = Token::current();
        if let Some(mut engine) = self.baton.enter(me) {
            self.show(&mut engine);
            engine.close(me);
        }
        self.bell().wake();
    }

    /// Leaves the domain. The second half of leaving.
    pub(crate) fn depart(&self) -> Result<()> {
        if doorbell_shm::space::forked() {
            return Ok(());
        }
        self.bell().depart();
        Ok(self.membership.leave()?)
    }
}

/// Leaves the helm when the wait is over, however it ends.
pub(crate) struct HelmHold<'a> {
    shared: &'a Shared,
    held: bool,
    /// It slept beside the helm, so it may be the one who was woken to take it.
    slept: bool,
}

impl Drop for HelmHold<'_> {
    fn drop(&mut self) {
        if self.held {
            self.shared.helm.leave();
        } else if self.slept {
            self.shared.helm.pass_on();
        }
    }
}
