//! An accelerator of the demo, which obeys the orders of the host.

use super::{
    BULK_BYTES, Contest, FLOOD_BYTES, FRAME, LATE, LONGEST, Moves, Order, Overlap, PATIENCE, Report, check_bulk, decode, encode,
    fill_bulk, now, offers, tag,
};
use crate::environment::space;
use crate::exit::Failure;
use crate::processes::take_name;
use doorbell::Lock;
use doorbell::transfer::Side;
use doorbell::{CopySide, CounterKey, Error, Event, Key, Match, Node, NodeId, Peer, Progress, ReadWrite, Region, Role, Wait};
use serde_json::{Value, json};
use std::thread;
use std::time::{Duration, Instant};

/// The name under which the demo starts an accelerator.
pub const COMMAND: &str = "demo-accelerator";
/// The most bytes of unexpected messages: few, so that the demo shows what happens then.
const POOL: usize = 256 << 10;
/// Words of the region to which the accelerator gives keys.
const LENT: usize = 8;
/// The number of pieces in which it fills memory.
const PIECES: usize = 4;

#[derive(Debug, clap::Args)]
pub struct AcceleratorArgs {
    domain: String,
    node: u16,
    progress: Progress,
    wait: Wait,
}

/// Joins, obeys orders, and leaves when the host says so or is gone.
pub fn run(args: &AcceleratorArgs) -> Result<(), Failure> {
    take_name();
    let served = join(args).and_then(|node| {
        let host = node.peer(NodeId(0))?;
        serve(&node, &host)
    });
    match served {
        // Without the host there is nothing left to do.
        Ok(()) | Err(Error::PeerLeft { .. } | Error::PeerDied { .. }) => Ok(()),
        Err(error) => Err(Failure::failed(format!("node {}: {error}", args.node), "see `doorbell info`").see(&error)),
    }
}

fn join(args: &AcceleratorArgs) -> Result<Node, Error> {
    // Both sides copy, even where the kernel's copy is slow: the demo shows that.
    let builder = Node::builder(&args.domain).id(args.node).role(Role::Accelerator).label("demo").copy(CopySide::Both);
    builder.space(space()).progress(args.progress).wait(args.wait).pool_bytes(POOL).join()
}

fn serve(node: &Node, host: &Peer) -> Result<(), Error> {
    let mut buf = vec![0; LONGEST];
    let mut lent: Option<Region<u64>> = None;
    loop {
        let envelope = host.recv(Match::any(), &mut buf)?;
        let message = &buf[..envelope.len];
        match envelope.tag {
            tag::PING => host.send(tag::PONG, message)?,
            tag::SCALE => {
                let values = decode(message);
                let scaled: Vec<f64> = values.iter().skip(1).map(|value| value * values[0]).collect();
                host.send(tag::RESULT, &encode(&scaled))?;
            }
            tag::ORDER => match serde_json::from_slice(message).map_err(invalid)? {
                Order::Leave => return Ok(()),
                order => obey(order, node, host, &mut lent)?,
            },
            _ => {}
        }
    }
}

fn invalid(error: serde_json::Error) -> Error {
    Error::Invalid { what: error.to_string() }
}

fn obey(order: Order, node: &Node, host: &Peer, lent: &mut Option<Region<u64>>) -> Result<(), Error> {
    let answer = |answer: Value| host.send(tag::ANSWER, answer.to_string().as_bytes());
    let soon = || Instant::now() + PATIENCE;
    match order {
        Order::Paint => tag::COLOURS.iter().try_for_each(|(tag, word)| host.send(*tag, word.as_bytes())),
        Order::Sleep(ms) => {
            thread::sleep(Duration::from_millis(ms));
            answer(json!(now()))
        }
        Order::Stall(ms) => {
            thread::sleep(Duration::from_millis(ms));
            let (mut count, mut buf) = (1_u64, [0; FLOOD_BYTES]);
            while host.recv(Match::any(), &mut buf)?.tag != tag::FLOOD_ENDS {
                count += 1;
            }
            answer(json!(count))
        }
        Order::Report => answer(json!(Report::new(&node.stats()?))),
        Order::Watch(id) => {
            while !matches!(node.event(soon())?, Event::Died { node, .. } if node == NodeId(id)) {}
            answer(json!(now()))
        }
        Order::Farewell => {
            answer(json!("tell them I was here"))?;
            loop {
                thread::park();
            }
        }
        Order::Lend => {
            let region = lent.insert(node.region::<u64>(LENT)?);
            answer(json!((&region.key().to_bytes()[..], &region.read_key().to_bytes()[..])))
        }
        Order::Show => {
            let mut words = [0; LENT];
            lent.as_ref().map_or(Ok(()), |region| region.read(0, &mut words))?;
            answer(json!(words))
        }
        Order::Withdraw => {
            lent.take().map_or(Ok(()), |region| region.withdraw())?;
            answer(json!(()))
        }
        Order::Fill { memory, counter } => fill(node, &memory, &counter),
        Order::Take => {
            let mut into = vec![1; BULK_BYTES];
            answer(json!(()))?;
            thread::sleep(LATE);
            host.recv(Match::any().tag(tag::BULK), &mut into)?;
            let mut moves = Moves::of(node, Side::Target, soon())?;
            moves.whole &= check_bulk(&into);
            answer(json!(moves))
        }
        Order::Give(ms) => {
            let mut message = vec![0; BULK_BYTES];
            fill_bulk(&mut message);
            answer(json!(()))?;
            let request = host.start_send(tag::BULK, message)?;
            thread::sleep(Duration::from_millis(ms));
            request.wait().result?;
            answer(json!(Moves::of(node, Side::Origin, soon())?))
        }
        Order::Own(_) | Order::Want => offers::offer(&order, node, host),
        Order::Contend(counters) => answer(json!(Contest::play(node, &Lock::find(node, FRAME)?, Key::from_bytes(&counters)?)?)),
        Order::Hold => {
            Lock::find(node, FRAME)?.lock_until(soon())?.keep();
            answer(json!(()))
        }
        Order::Inherit => {
            let key = Lock::find(node, FRAME)?;
            let mut guard = key.lock_until(soon())?;
            let dead = guard.inherited_from().map(|dead| dead.to_string());
            guard.mark_repaired()?;
            guard.unlock()?;
            answer(json!(dead.unwrap_or_default()))
        }
        Order::Sum => answer(json!(Overlap::play(node)?)),
        Order::Leave => Ok(()),
    }
}

/// Fills the memory of a key with this node's number, in a few pieces. The counter of the other key counts the bytes.
fn fill(node: &Node, memory: &[u8], counter: &[u8]) -> Result<(), Error> {
    let (key, Some(counter)) = (Key::<u64, ReadWrite>::from_bytes(memory)?, CounterKey::from_bytes(counter)) else {
        return Ok(());
    };
    let piece = vec![u64::from(node.id().0); key.len().div_ceil(PIECES).max(1)];
    for at in (0..key.len()).step_by(piece.len()) {
        let part = key.range(at..at + piece.len());
        node.put_notify(&piece[..part.len()], part, counter)?;
    }
    Ok(())
}
