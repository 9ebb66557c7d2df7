//! Two nodes talk.

use doorbell::{Error, Match, Node, NodeId, Role};
use std::time::{Duration, Instant};

fn main() -> Result<(), Error> {
    let node = Node::from_env()?; // `doorbell run` sets the domain and the node's id
    node.wait_for(2, Instant::now() + Duration::from_secs(10))?;
    let mut buf = [0; 64];
    if node.role() == Role::Host {
        let accelerator = node.peer(NodeId(1))?; // this thread's own handle to node 1
        accelerator.send(7, b"scale by two")?;
        let answer = accelerator.recv(Match::any().tag(8), &mut buf)?;
        println!("node {} says: {}", answer.source, String::from_utf8_lossy(&buf[..answer.len]));
    } else {
        let order = node.recv(Match::any().tag(7), &mut buf)?;
        node.send(order.source, 8, b"done")?;
    }
    Ok(())
}
