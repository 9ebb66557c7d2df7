//! The state of a node that it publishes on its board.

use crate::board::CounterFile;
use doorbell_fabric::{Incarnation, NodeId, PRIORITIES, Priority};
use doorbell_shm::board::{Fifo, FifoFacts, Home, Injector, LatencyHistogram, Metrics, Record, RecordKind, Recorder, Tallies};
use doorbell_shm::domain::Membership;
use std::sync::Arc;

/// The number of injection FIFOs of every node.
pub const BUILT_IN: usize = 1 + PRIORITIES;

/// Metrics, flight recorder and DMA counters of one node. Any thread of the node may use it at any time; nothing here waits for
/// the baton. Must not be used in a forked child, where the board is not mapped.
#[derive(Debug)]
pub struct Monitor {
    /// The counts of everything that the engine does not count elsewhere.
    pub tallies: Arc<Tallies>,
    /// The DMA counters.
    pub counters: Arc<CounterFile>,
    /// The injection FIFOs of every node: that of remote gets, and those of the engine's messages by priority.
    pub fifos: [Arc<Fifo>; BUILT_IN],
    recorder: Arc<Recorder>,
    home: Home,
}

impl Monitor {
    /// For a node that has just joined.
    pub fn new(membership: &Arc<Membership>) -> Self {
        let home = Home::new(membership);
        let recorder = Arc::new(Recorder::new(home.clone()));
        let me = (membership.id(), membership.incarnation());
        recorder.record(&Record::new(RecordKind::Joined).incarnation(me.1));
        let tallies = Arc::<Tallies>::default();
        let counters = Arc::new(CounterFile::new(home.clone(), recorder.clone(), tallies.clone(), me));
        let fifos = std::array::from_fn(|number| {
            let (injector, priority) = match number {
                0 => (Injector::Peers, Priority::High),
                _ => (Injector::Engine, Priority::ALL[number - 1]),
            };
            let name = if number == 0 { "remote gets" } else { "messages" }.into();
            let fifo = Fifo::open(home.clone(), number, FifoFacts { name, injector, priority });
            fifo.unwrap_or_else(|| unreachable!("the board of a node has room for them (NodeBuilder)"))
        });
        Self { tallies, counters, fifos, recorder, home }
    }

    /// Writes a record for `doorbell autopsy`. Takes some 30 ns.
    #[inline]
    pub fn record(&self, record: &Record) {
        self.recorder.record(record);
    }

    /// Records an event of another node.
    pub fn record_peer(&self, kind: RecordKind, node: NodeId, incarnation: Incarnation) {
        self.record(&Record::new(kind).peer(node).incarnation(incarnation));
    }

    /// The node's board.
    pub fn home(&self) -> &Home {
        &self.home
    }

    /// Publishes metrics and everything else on the board.
    pub fn show(&self, metrics: &Metrics, latencies: &LatencyHistogram) {
        self.home.show(metrics, latencies, self.counters.register());
    }
}
