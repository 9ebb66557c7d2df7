//! An accelerator of the demo: does what the host orders.

use super::script::{LONGEST, Report, answer, decode, encode, now, number, order};
use crate::exit::Failure;
use crate::processes::take_name;
use doorbell::{Error, Event, Match, Node, NodeId, Peer, Progress, Role, Wait};
use std::thread;
use std::time::{Duration, Instant};

/// The name under which the demo starts an accelerator.
pub const COMMAND: &str = "demo-accelerator";
/// Messages that nobody asks for take this many bytes at most: little, so that the demo sees what happens then.
const POOL: usize = 256 << 10;

#[derive(Debug, clap::Args)]
pub struct AcceleratorArgs {
    domain: String,
    node: u16,
    progress: Progress,
    wait: Wait,
}

/// Joins, serves, and leaves when it is told to or when the host is gone.
pub fn run(args: &AcceleratorArgs) -> Result<(), Failure> {
    take_name();
    let served = join(args).and_then(|node| {
        let host = node.peer(NodeId(0))?;
        serve(&node, &host)
    });
    match served {
        // Nobody is left to be served.
        Ok(()) | Err(Error::PeerLeft { .. } | Error::PeerDied { .. }) => Ok(()),
        Err(error) => Err(Failure::failed(format!("node {}: {error}", args.node), "see `doorbell info`")),
    }
}

fn join(args: &AcceleratorArgs) -> Result<Node, Error> {
    let builder = Node::builder(&args.domain).id(args.node).role(Role::Accelerator).label("demo");
    builder.progress(args.progress).wait(args.wait).pool_bytes(POOL).join()
}

fn serve(node: &Node, host: &Peer) -> Result<(), Error> {
    let mut buf = vec![0; LONGEST];
    loop {
        let envelope = host.recv(Match::any(), &mut buf)?;
        let message = &buf[..envelope.len];
        match envelope.tag {
            order::PING => host.send(answer::PONG, message)?,
            order::SCALE => {
                let values = decode(message);
                let scaled: Vec<f64> = values.iter().skip(1).map(|value| value * values[0]).collect();
                host.send(answer::RESULT, &encode(&scaled))?;
            }
            order::PAINT => answer::COLOURS.iter().try_for_each(|(tag, word)| host.send(*tag, word.as_bytes()))?,
            order::SLEEP => {
                thread::sleep(Duration::from_millis(number(message)));
                host.send(answer::TIME, &now().to_ne_bytes())?;
            }
            order::STALL => {
                thread::sleep(Duration::from_millis(number(message)));
                let mut count = 1_u64;
                while host.recv(Match::any(), &mut buf)?.tag != order::FLOOD_ENDS {
                    count += 1;
                }
                host.send(answer::COUNT, &count.to_ne_bytes())?;
            }
            order::REPORT => {
                let report = serde_json::to_vec(&Report::new(&node.stats()?)).unwrap_or_default();
                host.send(answer::REPORT, &report)?;
            }
            order::WATCH => {
                let dead = NodeId(number(message) as u16);
                let deadline = Instant::now() + Duration::from_secs(10);
                while !matches!(node.event(deadline)?, Event::Died { node, .. } if node == dead) {}
                host.send(answer::TIME, &now().to_ne_bytes())?;
            }
            order::FAREWELL => {
                host.send(answer::WORDS, b"tell them I was here")?;
                loop {
                    thread::park();
                }
            }
            order::LEAVE => return Ok(()),
            _ => {}
        }
    }
}
