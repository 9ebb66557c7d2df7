//! One of the two processes of a pair: joins the domain, and plays its part in section after section.

use super::carrier::{CarrierError, LANDING_BYTES, Landing};
use super::pairs::Pairs;
use super::plan::{Finding, Place as Where, Plan, Test};
use super::sections::{Driver, Floors, Sections};
use super::together::Together;
use crate::exit::Failure;
use crate::experiment::Trouble;
use crate::experiment::place::Place;
use doorbell::{Error, Match, Node, NodeBuilder, NodeId, Region, Role};
use doorbell_benches::exchange::{Buffers, Side};
use doorbell_benches::floor::{Finish, Floor, HopProbe, Patience, UdpEnd};
use doorbell_benches::memory::Memory;
use doorbell_benches::stream::Messages;
use doorbell_fabric::ParseIdError;

/// Joins the domain, and plays its part in section after section.
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
    // The probe spins however crowded the processors are: all others sleep meanwhile.
    let probing = Patience::new(place.stop.clone(), false);
    let probes = *process <= 1 && plan.is_spread();
    let together = Together::Here {
        mapping,
        parties: 2 * plan.pairs,
        finish: Finish::new(&pair, patience),
        probe: probes.then(|| (HopProbe::new(&pair, side, &probing), place.ns_per_tick)),
        patience,
    };
    // A node takes streams from anybody.
    let from = Match::any();
    let driver = Driver { node: &node, peer: peer.as_ref(), to, from, patience, landing, loan: plan.loan, mode };
    let floors = socket.map_or_else(|| Floors::Memory(Floor::new(&pair, side, patience)), Floors::Udp);
    let sections = Sections { plan, side, together, driver, floors, patience, buffers, messages };
    // By the time of the answer the node has left its domain.
    sections.work().map_err(|error| match error {
        CarrierError::Driver(Error::Invalid { what }) if mode.is_some() => Trouble::Unable(Failure::usage(what, "")),
        error => error.into(),
    })
}

/// Where messages lie, and where puts go if it is by puts.
type Memories = (Buffers, Vec<Messages>, Option<Landing>);

/// Memory for what is measured with another node.
pub fn memory(plan: &Plan, node: &Node, to: NodeId, patience: &Patience) -> Result<Memories, Trouble> {
    if !plan.put {
        return room(plan, node).map(|(buffers, messages)| (buffers, messages, None));
    }
    let (buffers, region) = landing(plan, node)?;
    let landing = Landing::exchange(region, node, to, plan.arrival(), patience)?;
    Ok((buffers, Vec::new(), Some(landing)))
}

/// Memory for messages: for those of one by one, or for each leg of streams.
fn room(plan: &Plan, node: &Node) -> Result<(Buffers, Vec<Messages>), Trouble> {
    let make = |bytes: usize| match plan.buffers {
        Where::Private => Memory::private(bytes).map_err(|error| Trouble::unable("could not allocate buffers", error)),
        Where::Registered => {
            let region =
                node.region::<u8>(bytes.max(1)).map_err(|error| Trouble::unable("could not make a region for buffers", error))?;
            // SAFETY: the only slice of the region, which the clone keeps; peers touch it on behalf of sends and receives alone.
            let start = unsafe { region.as_mut_slice() }.as_mut_ptr();
            // SAFETY: as above.
            Ok(unsafe { Memory::lent(start, bytes, Box::new(region)) })
        }
    };
    if plan.test != Test::Bandwidth {
        let bytes = plan.shape().bytes;
        return Ok((Buffers::new(make(bytes)?, make(bytes)?), Vec::new()));
    }
    let messages = plan.legs.iter().map(|leg| Messages::new(plan.window, || make(leg.bytes))).collect::<Result<_, _>>()?;
    let none = || Memory::private(0).map_err(|error| Trouble::unable("could not allocate buffers", error));
    Ok((Buffers::new(none()?, none()?), messages))
}

/// Memory for puts: what is sent is private, what arrives lies in a region.
fn landing(plan: &Plan, node: &Node) -> Result<(Buffers, Region<u64>), Trouble> {
    let bytes = plan.shape().bytes;
    let source = Memory::private(bytes).map_err(|error| Trouble::unable("could not allocate buffers", error))?;
    let room = if plan.test == Test::Rate { bytes.max(LANDING_BYTES) } else { bytes };
    let region = node
        .region::<u64>(room.div_ceil(size_of::<u64>()))
        .map_err(|error| Trouble::unable("could not make a region for puts", error))?;
    // SAFETY: the only slice of the region, which the clone keeps.
    let start = unsafe { region.as_mut_slice() }.as_mut_ptr();
    // SAFETY: as long as the region; the peer, which gets the key later, writes while this process waits for it, and it reads
    // nothing but the last word of a message until that says that all is there.
    let target = unsafe { Memory::lent(start.cast(), bytes, Box::new(region.clone())) };
    Ok((Buffers::new(source, target), region))
}

/// A node as the plan says, but for who it is.
pub fn builder(plan: &Plan, role: Role) -> Result<NodeBuilder, Error> {
    let malformed = |error: ParseIdError| Error::Invalid { what: error.to_string() };
    let builder = plan.setting.builder(plan.test.name())?.role(role).loan_bytes((16 * plan.shape().bytes).max(64 << 20));
    Ok(builder.copy(plan.copy.name().parse().map_err(malformed)?))
}
