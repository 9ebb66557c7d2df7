//! The honest node: it echoes all messages, in all ways.

use crate::{VICTIM, at};
use doorbell::{Error, Match, Node, NodeBuilder, NodeId};
use doorbell_tests::patience::soon;
use doorbell_tests::words::Words;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// The tag of echoed messages.
pub const ECHO: u64 = 1;
/// The longest echoed message.
pub const LONGEST: usize = 200 << 10;

pub fn echo() {
    let words = Words::inherited();
    let builder = || NodeBuilder::from_env().unwrap().id(crate::HONEST).copy(doorbell::CopySide::Both).max_nodes(8);
    let mut node = builder().join().unwrap();
    node.wait_for(2, soon()).unwrap();
    words[at::READY].fetch_add(1, SeqCst);
    let mut buf = vec![0; LONGEST];
    while words[at::STOP].load(SeqCst) == 0 {
        match answer(&node, &mut buf) {
            Ok(()) | Err(Error::Timeout { .. } | Error::NoSuchNode { .. }) => {}
            // The victim is through.
            Err(Error::PeerLeft { .. } | Error::PeerDied { .. }) => std::thread::yield_now(),
            // To make memory for loans takes the domain's lock, which others may have.
            Err(Error::Shm(error)) if error.is_retryable() => {}
            Err(Error::Severed { .. }) if crate::part().0 == "truncate" => {
                if let Ok(next) = builder().patience(Duration::from_millis(500)).join() {
                    crate::victim::leave(std::mem::replace(&mut node, next));
                }
            }
            Err(_) if crate::part().0 == "truncate" => {}
            Err(error) => panic!("the honest node: {error}"),
        }
    }
    crate::victim::leave(node);
}

fn answer(node: &Node, buf: &mut [u8]) -> Result<(), Error> {
    let brief = Instant::now() + Duration::from_millis(100);
    let envelope = node.recv_until(Match::from(NodeId(VICTIM)).tag(ECHO), buf, brief)?;
    let deadline = Instant::now() + crate::HANG;
    if buf[0] % 4 == 3
        && let Ok(mut loan) = node.loan_bytes(envelope.len)
    {
        loan.copy_from_slice(&buf[..envelope.len]);
        return loan.share().send_until(NodeId(VICTIM), ECHO, deadline);
    }
    node.send_until(NodeId(VICTIM), ECHO, &buf[..envelope.len], deadline)
}
