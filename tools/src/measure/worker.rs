//! One of the two processes of a pair. It joins the domain, and does its part of each section.

use super::{Driver, Finding, Floors, LANDING_BYTES, Landing, Pairs, Place as Where, Plan, Sections, Test, Together};
use crate::exit::{Explain, Failure};
use crate::experiment::{Place, Trouble};
use crate::text::word;
use doorbell::{Error, Match, Node, NodeBuilder, NodeId, Region, Role};
use doorbell_benches::{Buffers, Finish, Floor, HopProbe, Memory, Messages, Patience, Side, UdpEnd};
use doorbell_fabric::ParseIdError;

/// Joins the domain, and does this process's part of each section.
pub fn work(pairs: &Pairs, place: &Place) -> Result<Vec<Finding>, Trouble> {
    let Pairs { plan, sockets } = pairs;
    let Place { process, mapping, patience, .. } = place;
    let (pair, to) = (mapping.pair(process / 2), NodeId(*process as u16 ^ 1));
    let (side, role) = if process.is_multiple_of(2) { (Side::Ping, Role::Host) } else { (Side::Pong, Role::Accelerator) };
    // SAFETY: the descriptor was made for this process, and nothing has used it yet.
    let socket = sockets.get(process / 2).map(|ends| unsafe { UdpEnd::inherit(ends[process % 2]) });
    let node = place.join(&plan.setting, builder(plan, role), 2 * plan.pairs, 2 * plan.pairs)?;
    let peer = if plan.shared { None } else { Some(node.peer(to)?) };
    let (buffers, messages, landing) = memory(plan, &node, to, patience)?;
    let mode = plan.mode.as_deref().map(str::parse).transpose();
    let mode = mode.map_err(|error: ParseIdError| Error::Invalid { what: error.to_string() })?;
    // The probe spins even on crowded processors: all other processes sleep meanwhile.
    let probing = Patience::new(place.stop.clone(), false);
    let probes = *process <= 1 && plan.is_spread();
    let together = Together::Here {
        mapping,
        parties: 2 * plan.pairs,
        finish: Finish::new(&pair, patience),
        probe: probes.then(|| (HopProbe::new(&pair, side, &probing), place.ns_per_tick)),
        patience,
    };
    // A node takes streams from any sender.
    let from = Match::any();
    let driver =
        Driver { node: &node, peer: peer.as_ref(), to, from, patience, landing, loan: plan.loan, mode, batch: plan.batch };
    let floors = socket.map_or_else(|| Floors::Memory(Floor::new(&pair, side, patience)), Floors::Udp);
    let sections = Sections { plan, side, together, driver, floors, patience, buffers, messages };
    // The node leaves its domain before the worker answers.
    sections.work().map_err(|error| match error {
        Trouble::Driver(Error::Invalid { what }) if mode.is_some() => Trouble::Unable(Failure::usage(what, "")),
        error => error,
    })
}

/// The memory of messages, and that of puts if the plan is by puts.
type Memories = (Buffers, Vec<Messages>, Option<Landing>);

/// Memory for a measurement with another node.
pub fn memory(plan: &Plan, node: &Node, to: NodeId, patience: &Patience) -> Result<Memories, Trouble> {
    if !plan.put {
        return room(plan, node).map(|(buffers, messages)| (buffers, messages, None));
    }
    let (buffers, region) = landing(plan, node)?;
    let landing = Landing::exchange(region, node, to, plan.arrival(), patience)?;
    Ok((buffers, Vec::new(), Some(landing)))
}

/// A buffer in private memory, or in a region of its own.
pub fn buffer(node: &Node, in_region: bool, bytes: usize) -> Result<Memory, Trouble> {
    if !in_region {
        return Ok(Memory::private(bytes).or_usage("could not allocate buffers", "")?);
    }
    let region = node.region::<u8>(bytes.max(1)).or_usage("could not make a region for buffers", "")?;
    // SAFETY: the only slice of the region, which the box keeps. Peers touch it only for sends and receives.
    let start = unsafe { region.as_mut_slice() }.as_mut_ptr();
    // SAFETY: as above.
    Ok(unsafe { Memory::lent(start, bytes, Box::new(region)) })
}

/// Memory for messages: two buffers for messages one by one, or the buffers of each leg of streams.
fn room(plan: &Plan, node: &Node) -> Result<(Buffers, Vec<Messages>), Trouble> {
    let make = |bytes: usize| buffer(node, plan.buffers == Where::Registered, bytes);
    if plan.test != Test::Bandwidth {
        let bytes = plan.shape().bytes;
        return Ok((Buffers::new(make(bytes)?, make(bytes)?), Vec::new()));
    }
    let messages = plan.legs.iter().map(|leg| Messages::new(plan.window, || make(leg.bytes))).collect::<Result<_, _>>()?;
    let none = || buffer(node, false, 0);
    Ok((Buffers::new(none()?, none()?), messages))
}

/// Memory for puts: a private buffer for the messages that are sent, and a region for those that arrive.
fn landing(plan: &Plan, node: &Node) -> Result<(Buffers, Region<u64>), Trouble> {
    let bytes = plan.shape().bytes;
    let source = buffer(node, false, bytes)?;
    let room = if plan.test == Test::Rate { bytes.max(LANDING_BYTES) } else { bytes };
    let region = node.region::<u64>(room.div_ceil(size_of::<u64>())).or_usage("could not make a region for puts", "")?;
    // SAFETY: the only slice of the region, which the clone keeps.
    let start = unsafe { region.as_mut_slice() }.as_mut_ptr();
    // SAFETY: lives as long as the region. The peer, which gets the key later, writes while this process waits, and this process reads
    // only the last word of a message until that word announces the message.
    let target = unsafe { Memory::lent(start.cast(), bytes, Box::new(region.clone())) };
    Ok((Buffers::new(source, target), region))
}

/// A builder of a node with this role, as the plan says.
pub fn builder(plan: &Plan, role: Role) -> Result<NodeBuilder, Error> {
    let builder = plan.setting.builder(&word(&plan.test))?.role(role);
    Ok(builder.loan_bytes((16 * plan.shape().bytes).max(64 << 20)).copy(plan.copy))
}
