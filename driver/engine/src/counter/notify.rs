//! Notifying another node that bytes its counter counts have been moved.

use super::CounterKey;
use crate::Result;
use crate::error::Error;
use crate::node::Node;
use crate::region::{Key, Plain, ReadWrite};
use crate::sync::wait::Step;
use crate::transfer::descriptor::Lower;
use doorbell_fabric::Priority;
use doorbell_fabric::world;
use std::time::{Duration, Instant};

impl Node {
    /// Lowers a counter of another node, or of this one, by `bytes`. That node's engine lowers it at its next turn. By then,
    /// everything that this thread put before is in place.
    ///
    /// Waits while the lane has no room, and turns this node's engine meanwhile. A key of an earlier use or of a counter that
    /// is gone, or a key that its owner did not make, lowers nothing and is no error.
    ///
    /// # Errors
    /// [`Error::PeerDied`], [`Error::PeerLeft`], [`Error::NoSuchNode`], [`Error::Damaged`], [`Error::Severed`]; [`Error::Closed`], [`Error::Forked`], [`Error::Reentrant`].
    pub fn notify(&self, key: CounterKey, bytes: u64) -> Result<()> {
        self.notify_at_most(key, bytes, None)
    }

    /// As [`notify`](Self::notify), waiting for room until `deadline` at most.
    ///
    /// # Errors
    /// [`Error::Timeout`]: the counter is not lowered; otherwise as [`notify`](Self::notify).
    pub fn notify_until(&self, key: CounterKey, bytes: u64, deadline: Instant) -> Result<()> {
        self.notify_at_most(key, bytes, Some(deadline))
    }

    fn notify_at_most(&self, key: CounterKey, bytes: u64, deadline: Option<Instant>) -> Result<()> {
        let shared = self.shared();
        let me = shared.check()?;
        if (key.node, key.incarnation) == (self.id(), self.incarnation()) {
            let _ = shared.lower_counter(me, |file| file.lower_by_key(&key, bytes));
            return Ok(());
        }
        let word = Lower { key, bytes }.encode();
        let mut backoff = shared.backoff(deadline);
        loop {
            {
                let mut engine = shared.enter(me, "notify")?;
                shared.check()?;
                if engine.fabric().live(key.node) != Some(key.incarnation) {
                    engine.refresh_peers();
                }
                if engine.fabric().live(key.node) != Some(key.incarnation) {
                    return Err(engine.unreachable(key.node, Some(key.incarnation)));
                }
                if engine.send_control(me, key.node, Priority::High, key.incarnation, &word)? {
                    return Ok(());
                }
                engine.turn(me, false);
            }
            match backoff.step() {
                Step::Again => {}
                Step::Check => shared.check_peers(me),
                Step::Expired => return Err(Error::Timeout { operation: "notify", node: Some(key.node) }),
                // The target rings no bell for this, so sleep a little and look again.
                Step::Park(_) => {
                    shared.check_peers(me);
                    world::sleep(Duration::from_micros(200));
                }
            }
        }
    }

    /// Writes elements where the key points, and then lowers a counter of that node by as many bytes. So that node learns when
    /// all the data it expects has arrived.
    ///
    /// ```
    /// # use doorbell::{Node, Space};
    /// # fn main() -> Result<(), doorbell::Error> {
    /// # let space = Space::heap();
    /// # let a = Node::builder("notify").space(space.clone()).join()?;
    /// # let b = Node::builder("notify").space(space).join()?;
    /// let region = b.region::<u64>(100)?;
    /// let arrived = b.counter()?;
    /// arrived.init(800)?;
    /// a.put_notify(&[7; 100], region.key(), arrived.key())?;
    /// arrived.wait()?;
    /// # let mut all = [0; 100];
    /// # region.read(0, &mut all)?;
    /// # assert_eq!(all, [7; 100]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`put`](Self::put): the counter is not lowered. Those of [`notify`](Self::notify).
    pub fn put_notify<T: Plain>(&self, from: &[T], to: Key<T, ReadWrite>, counter: CounterKey) -> Result<()> {
        self.put(from, to)?;
        self.notify(counter, size_of_val(from) as u64)
    }

    /// As [`put_notify`](Self::put_notify), waiting for room for the notification until `deadline` at most.
    ///
    /// # Errors
    /// [`Error::Timeout`]: the elements are in place, and the counter is not lowered. Otherwise as
    /// [`put_notify`](Self::put_notify).
    pub fn put_notify_until<T: Plain>(
        &self,
        from: &[T],
        to: Key<T, ReadWrite>,
        counter: CounterKey,
        deadline: Instant,
    ) -> Result<()> {
        self.put(from, to)?;
        self.notify_until(counter, size_of_val(from) as u64, deadline)
    }
}
