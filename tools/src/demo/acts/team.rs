//! Four nodes sum a vector, and compute meanwhile.

use super::{FIRST, SECOND, Stage, told, unlike};
use crate::demo::{Order, Overlap, SUMMED, TEAM};
use crate::exit::Failure;
use crate::text::{Table, bytes, counted};
use doorbell::NodeId;
use std::time::Duration;

const THIRD: NodeId = NodeId(3);

pub fn play(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("Four nodes sum a vector, and compute meanwhile");
    stage.cast.start(SECOND)?;
    stage.cast.start(THIRD)?;
    let others = [FIRST, SECOND, THIRD];
    for node in others {
        stage.order(node, &Order::Sum)?;
    }
    let team: Vec<u16> = TEAM.iter().map(|node| node.0).collect();
    stage.line(format_args!("all four: Team::builder(&node).members({team:?}).form(): they share a few channels from now on"));
    stage.line(format_args!(
        "team.start_allreduce(Sum, {} of numbers); compute; wait, {} times. In each round another node computes {} times as much:",
        bytes((SUMMED * size_of::<f64>()) as u64),
        Overlap::ROUNDS,
        Overlap::MORE
    ));
    let own = stage.done(Overlap::play(&stage.cast.node))?;
    let all = stage.gather(own, &others)?;
    let mut table = Table::new(&[">node", ">computing alone", ">sum, then computing", ">sum meanwhile", ">hidden"]);
    for (node, overlap @ Overlap { computing, after, meanwhile, .. }) in &all {
        table.row([node.to_string()].into_iter().chain([*computing, *after, *meanwhile, overlap.hidden()].map(told)));
    }
    stage.say.table(&table);
    if let Some((node, _)) = all.iter().find(|(_, overlap)| !overlap.is_right) {
        return Err(unlike(format_args!("a sum of node {node} differs from a plain computation")));
    }
    stage.line("each node has the sum of all four vectors, and every one of its numbers is right");
    let sum = |time: fn(&Overlap) -> Duration| all.iter().map(|(_, overlap)| time(overlap)).sum::<Duration>().as_secs_f64();
    let percent = 100.0 * sum(Overlap::hidden) / sum(Overlap::sum).max(f64::MIN_POSITIVE);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let why = if processors < TEAM.len() { "; four nodes share them, so little of that time is waiting" } else { "" };
    stage.line(format_args!(
        "{percent:.0} % of the time of the sums was hidden behind the computing, on {}{why}",
        counted(processors, "processor")
    ));
    stage
        .say
        .word("channel", "memory that the team uses for one operation after the other; it is made ready again in the background");
    stage.line("the time of collectives, beside the bare barrier: doorbell collective --nodes 4 --floor");
    for node in [SECOND, THIRD] {
        stage.order(node, &Order::Leave)?;
        stage.cast.part_with(node)?;
    }
    Ok(())
}
