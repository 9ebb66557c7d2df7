//! Operations that lower a counter as their bytes move.

use super::Counter;
use crate::board::Counting;
use crate::error::{Error, Result};
use crate::memory::key::{Access, Key, Plain, ReadWrite};
use crate::message::Match;
use crate::node::{Completion, Operation, Received, owned};
use crate::sync::baton::Token;
use crate::sync::op::Op;
use crate::{Node, Peer};

/// Operations of this node that lower the counter as their bytes move, whichever side moves them and by whichever way. The counter
/// goes down by as many bytes as the operation has in all, unless it is cancelled or fails: then the counter stays where it is.
/// Several operations may share one use of a counter.
///
/// ```
/// # use doorbell::{Match, Node, Space};
/// # fn main() -> Result<(), doorbell::Error> {
/// # let space = Space::heap();
/// # let a = Node::builder("counted").space(space.clone()).join()?;
/// # let b = Node::builder("counted").space(space).join()?;
/// let arrived = b.counter()?;
/// arrived.init(2 * 100_000)?;
/// let receives = [(); 2].map(|()| arrived.start_recv(Match::any(), vec![0; 100_000]));
/// let (sent, to_b) = (a.counter()?, a.peer(b.id())?);
/// sent.init(2 * 100_000)?;
/// let sends = [(); 2].map(|()| sent.start_send(&to_b, 1, vec![7; 100_000]));
/// sent.wait()?;
/// arrived.wait()?;
/// # for send in sends { send?.wait().result?; }
/// # for receive in receives { assert_eq!(receive?.wait().buffer.unwrap(), [7; 100_000]); }
/// # Ok(())
/// # }
/// ```
impl Counter {
    fn counted(&self) -> std::sync::Arc<Op> {
        let counting = Counting::new(&self.shared().monitor().counters, self.index);
        Op::counted(move |bytes| counting.moved(bytes))
    }

    fn is_of(&self, node: &Node) -> Result<()> {
        if (self.node.id(), self.node.incarnation()) == (node.id(), node.incarnation()) {
            return Ok(());
        }
        let what = "the counter of one node can't count what another node moves; take a counter of the node of the peer".into();
        Err(Error::Invalid { what })
    }

    /// Begins to send a message, as [`Peer::start_send`]. The counter goes down as bytes of the buffer have been moved.
    ///
    /// # Errors
    /// As [`Peer::start_send`]; [`Error::Invalid`] if the peer belongs to another node of this process.
    pub fn start_send<B: AsRef<[u8]> + Send + 'static>(
        &self,
        peer: &Peer,
        tag: u64,
        buffer: B,
    ) -> Result<Operation<Completion<B>>> {
        self.is_of(peer.node())?;
        let incarnation = Some(peer.incarnation());
        let sending = owned::send_or_begin(&self.node, peer.outbound(), incarnation, tag, buffer, Some(self.counted()))?;
        self.wake_at_zero();
        Ok(sending)
    }

    /// Begins to receive a message, as [`Node::start_recv`]. The counter goes down as bytes of the message arrive in the buffer.
    ///
    /// # Errors
    /// As [`Node::start_recv`].
    pub fn start_recv<B: AsMut<[u8]> + Send + 'static>(&self, accepts: Match, buffer: B) -> Result<Operation<Received<B>>> {
        let receiving = owned::receive(self.node.clone(), accepts, buffer, self.counted())?;
        self.wake_at_zero();
        Ok(receiving)
    }

    /// Puts elements, as [`Peer::put`], and lowers the counter by their bytes.
    ///
    /// # Errors
    /// As [`Peer::put`]: the counter is not lowered. [`Error::Invalid`] if the peer belongs to another node of this process.
    pub fn put<T: Plain>(&self, peer: &Peer, from: &[T], to: Key<T, ReadWrite>) -> Result<()> {
        self.is_of(peer.node())?;
        peer.put(from, to)?;
        self.lower(size_of_val(from) as u64).map(drop)
    }

    /// Gets elements, as [`Peer::get`], and lowers the counter by their bytes.
    ///
    /// # Errors
    /// As [`Peer::get`]: the counter is not lowered. [`Error::Invalid`] if the peer belongs to another node of this process.
    pub fn get<T: Plain, A: Access>(&self, peer: &Peer, from: Key<T, A>, into: &mut [T]) -> Result<()> {
        self.is_of(peer.node())?;
        peer.get(from, into)?;
        self.lower(size_of_val(into) as u64).map(drop)
    }

    /// The thread that sleeps on the bell may wait for this counter, which went down outside the engine's turn.
    fn wake_at_zero(&self) {
        if self.is_zero() {
            self.shared().wake_parked(Token::current());
        }
    }
}
