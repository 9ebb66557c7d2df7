//! The driver as a carrier of messages: through a `Peer`, or through a `Node` that threads share.

use doorbell::{Error, Match, Node, NodeId, Peer};
use doorbell_benches::exchange::Carrier;
use doorbell_benches::floor::{Patience, Stopped};

const TAG: u64 = 1;

/// Why a message was not carried.
#[derive(Debug, thiserror::Error)]
pub enum CarrierError {
    /// The process was told to stop.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The driver says why.
    #[error(transparent)]
    Driver(#[from] Error),
}

/// Through a thread's own way to the other node.
#[derive(Debug)]
pub struct ThroughPeer<'a> {
    /// The way.
    pub peer: &'a Peer,
    /// Says when to stop.
    pub patience: &'a Patience,
}

impl Carrier for ThroughPeer<'_> {
    type Error = CarrierError;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), CarrierError> {
        Ok(self.peer.send(TAG, message)?)
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [u8]) -> Result<(), CarrierError> {
        if self.patience.stopped() {
            return Err(Stopped.into());
        }
        self.peer.recv(Match::any(), into)?;
        Ok(())
    }
}

/// Through a handle that other threads of the process have, too.
#[derive(Debug)]
pub struct ThroughNode<'a> {
    /// The handle.
    pub node: &'a Node,
    /// The node at the other end.
    pub to: NodeId,
    /// Says when to stop.
    pub patience: &'a Patience,
}

impl Carrier for ThroughNode<'_> {
    type Error = CarrierError;

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<(), CarrierError> {
        Ok(self.node.send(self.to, TAG, message)?)
    }

    #[inline(always)]
    fn receive(&mut self, into: &mut [u8]) -> Result<(), CarrierError> {
        if self.patience.stopped() {
            return Err(Stopped.into());
        }
        self.node.recv(Match::any(), into)?;
        Ok(())
    }
}
