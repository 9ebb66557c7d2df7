//! What the accelerators do for the descriptors of the host: one owns bytes and sleeps, and one wants them.

use super::{BULK_BYTES, Order, PATIENCE, check_bulk, fill_bulk, now, tag};
use crate::environment::space;
use crate::ls::fifos;
use doorbell::dma::{FifoKey, ReceptionFifo};
use doorbell::{Counter, Error, Match, Node, Peer};
use doorbell_shm::domain::list_domains;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes that the host itself puts.
pub const PUT_BYTES: usize = 256 << 10;
/// Bytes of its packet.
pub const PACKET_BYTES: usize = 8 << 10;
/// The tag of that packet.
pub const PACKET_TAG: u64 = 42;
/// Each of the host's bytes.
pub const OF_HOST: u8 = 7;
/// The bytes that arrive at the node that wants them.
pub const ARRIVING: usize = BULK_BYTES + PUT_BYTES + PACKET_BYTES;

/// Keys, as bytes: of memory, of a counter, and of the FIFO for remote gets or packets.
#[derive(Debug, Serialize, Deserialize)]
pub struct Offer {
    pub memory: Vec<u8>,
    pub counter: Vec<u8>,
    pub fifo: [u8; FifoKey::BYTES],
}

impl Offer {
    fn send(host: &Peer, memory: &[u8], counter: &Counter, fifo: FifoKey) -> Result<(), Error> {
        let offer = Self { memory: memory.into(), counter: counter.key().to_bytes().into(), fifo: fifo.to_bytes() };
        host.send(tag::ANSWER, json!(offer).to_string().as_bytes())
    }
}

/// Obeys [`Order::Own`] and [`Order::Want`].
pub fn offer(order: &Order, node: &Node, host: &Peer) -> Result<(), Error> {
    match order {
        Order::Own(ms) => own(node, host, Duration::from_millis(*ms)),
        _ => want(node, host),
    }
}

fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// The host looks at this node's board until then.
fn until_seen(host: &Peer) -> Result<(), Error> {
    host.recv_until(Match::any().tag(tag::SEEN), &mut [], soon()).map(drop)
}

/// Offers bytes, and sleeps while they are moved.
fn own(node: &Node, host: &Peer, pause: Duration) -> Result<(), Error> {
    let (region, sent) = (node.region::<u8>(BULK_BYTES)?, node.counter()?);
    let mut bytes = vec![0; BULK_BYTES];
    fill_bulk(&mut bytes);
    region.write(0, &bytes)?;
    sent.init(BULK_BYTES as u64)?;
    // Now an adaptive poller has something to look after.
    sent.interrupt()?;
    Offer::send(host, &region.read_key().to_bytes(), &sent, node.remote_get_fifo())?;
    thread::sleep(pause);
    host.send(tag::ANSWER, json!(now()).to_string().as_bytes())?;
    sent.wait_until(soon())?;
    until_seen(host)
}

/// Offers room, waits for the bytes, and tells whether all are right. Then it tells what it sees of the FIFOs of the domain.
fn want(node: &Node, host: &Peer) -> Result<(), Error> {
    let (region, arrived) = (node.region::<u8>(BULK_BYTES + PUT_BYTES)?, node.counter()?);
    let packets = ReceptionFifo::builder(node).open()?;
    arrived.init(ARRIVING as u64)?;
    Offer::send(host, &region.key().to_bytes(), &arrived, packets.key())?;
    arrived.wait_until(soon())?;
    let mut packet = Vec::new();
    let mut is_tagged = true;
    while packet.len() < PACKET_BYTES {
        packets.wait_until(soon(), |envelope, _, part| {
            is_tagged &= envelope.tag == PACKET_TAG;
            packet.extend(part.to_vec());
        })?;
    }
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes)?;
    let (bulk, put) = bytes.split_at(BULK_BYTES);
    let is_right = is_tagged && check_bulk(bulk) && [put, &packet].iter().all(|of| of.iter().all(|byte| *byte == OF_HOST));
    host.send(tag::ANSWER, json!(is_right).to_string().as_bytes())?;
    until_seen(host)?;
    let domains = list_domains(&space())?;
    let nodes = domains.iter().filter(|domain| domain.name == node.domain()).flat_map(|domain| &domain.nodes);
    let rows: Vec<_> = nodes.flat_map(fifos::used).collect();
    host.send(tag::ANSWER, json!(rows).to_string().as_bytes())
}
