//! Ways to new clients. To find one over the network takes a while, and to end one may, too: threads of their own do that, so that nobody else waits.

use super::way::{Letter, Outlet};
use super::wire::Request;
use crate::Node;
use crate::engine::baton::Token;
use std::sync::mpsc::{Receiver, Sender, channel};

/// How many are looked for at a time. Whoever is one too many asks again.
const MOST: usize = 8;

/// Somebody to whom there is a way now.
pub(super) struct Introduced {
    pub letter: Letter,
    pub request: Request,
    pub outlet: Outlet,
}

/// Those that are looked for.
pub(super) struct Introductions {
    node: Node,
    under_way: usize,
    tell: Sender<Option<Box<Introduced>>>,
    told: Receiver<Option<Box<Introduced>>>,
}

impl Introductions {
    pub(super) fn new(node: &Node) -> Self {
        let (tell, told) = channel();
        Self { node: node.clone(), under_way: 0, tell, told }
    }

    /// Looks for a way to whoever sent this.
    #[cold]
    pub(super) fn introduce(&mut self, letter: Letter, request: Request) {
        let (node, tell) = (self.node.clone(), self.tell.clone());
        let find = move || {
            let outlet = Outlet::to_client(&node, letter.source, letter.incarnation);
            let _ = tell.send(outlet.ok().map(|outlet| Box::new(Introduced { letter, request, outlet })));
        };
        if self.node.shared().is_near(Token::current(), letter.source) {
            self.under_way += 1;
            find();
        } else if self.under_way < MOST && std::thread::Builder::new().name("doorbell-io-new".into()).spawn(find).is_ok() {
            self.under_way += 1;
        }
    }

    /// Whether nobody is looked for.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    /// The next one who was found.
    pub(super) fn next(&mut self) -> Option<Introduced> {
        while self.under_way > 0 {
            let found = self.told.try_recv().ok()?;
            self.under_way -= 1;
            if let Some(found) = found {
                return Some(*found);
            }
        }
        None
    }

    /// Ends a way.
    pub(super) fn dismiss(&self, outlet: Outlet) {
        if outlet.is_far(&self.node) {
            // Else it is dropped here, at the worst after some waiting.
            let _ = std::thread::Builder::new().name("doorbell-io-end".into()).spawn(move || drop(outlet));
        }
    }
}
