//! An accelerator of the demo, which obeys the orders of the host.

use super::cast::PATIENCE;
use super::script::{
    BULK_BYTES, Contest, FRAME, LATE, LONGEST, Moves, Overlap, Report, answer, check_bulk, decode, encode, fill_bulk, now,
    number, order,
};
use crate::exit::Failure;
use crate::processes::take_name;
use doorbell::LockKey;
use doorbell::transfer::Side;
use doorbell::{
    Copy, CounterKey, Error, Event, KEY_BYTES, Key, Match, Node, NodeId, Peer, Progress, ReadWrite, Region, Role, Wait,
};
use serde::Serialize;
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
        Err(error) => Err(Failure::failed(format!("node {}: {error}", args.node), "see `doorbell info`")),
    }
}

fn join(args: &AcceleratorArgs) -> Result<Node, Error> {
    // Both sides copy, even where the kernel's copy is slow: the demo shows that.
    let builder = Node::builder(&args.domain).id(args.node).role(Role::Accelerator).label("demo").copy(Copy::Both);
    builder.progress(args.progress).wait(args.wait).pool_bytes(POOL).join()
}

fn serve(node: &Node, host: &Peer) -> Result<(), Error> {
    let mut buf = vec![0; LONGEST];
    let mut lent: Option<Region<u64>> = None;
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
                reply(host, answer::REPORT, &Report::new(&node.stats()?))?;
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
            order::LEND => {
                let region = node.region::<u64>(LENT)?;
                host.send(answer::KEYS, &[region.key().to_bytes(), region.read_key().to_bytes()].concat())?;
                lent = Some(region);
            }
            order::SHOW => {
                let mut words = [0; LENT];
                lent.as_ref().map_or(Ok(()), |region| region.read(0, &mut words))?;
                host.send(answer::RESULT, &words.map(u64::to_ne_bytes).concat())?;
            }
            order::WITHDRAW => {
                lent.take().map_or(Ok(()), |region| region.withdraw())?;
                host.send(answer::DONE, &[])?;
            }
            order::FILL => fill(node, message)?,
            order::TAKE => {
                let mut into = vec![1; BULK_BYTES];
                host.send(answer::READY, &[])?;
                thread::sleep(LATE);
                host.recv(Match::any().tag(order::BULK), &mut into)?;
                let mut moves = Moves::of(node, Side::Target, order::BULK, Instant::now() + Duration::from_secs(10))?;
                moves.whole &= check_bulk(&into);
                reply(host, answer::MOVES, &moves)?;
            }
            order::GIVE => {
                let mut message = vec![0; BULK_BYTES];
                fill_bulk(&mut message);
                let pause = Duration::from_millis(number(&buf));
                host.send(answer::READY, &[])?;
                let request = host.start_send(answer::BULK, message)?;
                thread::sleep(pause);
                request.wait().result?;
                let moves = Moves::of(node, Side::Origin, answer::BULK, Instant::now() + Duration::from_secs(10))?;
                reply(host, answer::MOVES, &moves)?;
            }
            order::CONTEND => {
                let contest = Contest::play(node, &LockKey::find(node, FRAME)?, Key::from_bytes(message)?)?;
                reply(host, answer::CONTEST, &contest)?;
            }
            order::HOLD => {
                LockKey::find(node, FRAME)?.lock_by(Instant::now() + PATIENCE)?.keep();
                host.send(answer::DONE, &[])?;
            }
            order::INHERIT => {
                let key = LockKey::find(node, FRAME)?;
                let mut guard = key.lock_by(Instant::now() + PATIENCE)?;
                let dead = guard.inherited_from().map(|dead| dead.to_string());
                guard.mark_repaired()?;
                guard.unlock()?;
                host.send(answer::HEIR, dead.unwrap_or_default().as_bytes())?;
            }
            order::SUM => {
                let overlap = Overlap::play(node)?;
                reply(host, answer::OVERLAP, &overlap)?;
            }
            order::LEAVE => return Ok(()),
            _ => {}
        }
    }
}

/// Answers in JSON.
fn reply(host: &Peer, tag: u64, answer: &impl Serialize) -> Result<(), Error> {
    host.send(tag, &serde_json::to_vec(answer).unwrap_or_default())
}

/// Fills the memory of a key with this node's number, in a few pieces. The key is followed by that of a counter, which counts the bytes.
fn fill(node: &Node, message: &[u8]) -> Result<(), Error> {
    let Some((key, counter)) = message.split_at_checked(KEY_BYTES) else { return Ok(()) };
    let (key, Some(counter)) = (Key::<u64, ReadWrite>::from_bytes(key)?, CounterKey::from_bytes(counter)) else { return Ok(()) };
    let piece = vec![u64::from(node.id().0); key.len().div_ceil(PIECES).max(1)];
    for at in (0..key.len()).step_by(piece.len()) {
        let part = key.range(at..at + piece.len());
        node.put_notify(&piece[..part.len()], part, counter)?;
    }
    Ok(())
}
