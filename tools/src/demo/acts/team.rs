//! Four nodes sum a vector, and compute meanwhile.

use super::super::script::{Overlap, SUMMED, TEAM, answer, order};
use super::{FIRST, HOST, SECOND, Stage, told, unlike};
use crate::exit::Failure;
use crate::text::{Table, bytes, counted};
use doorbell::{Match, NodeId};
use std::time::Duration;

const THIRD: NodeId = NodeId(3);

pub fn play(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("Four nodes sum a vector, and compute meanwhile");
    stage.cast.start(SECOND)?;
    stage.cast.start(THIRD)?;
    let others = [FIRST, SECOND, THIRD];
    for node in others {
        stage.send(node, order::SUM, &[])?;
    }
    let team: Vec<u16> = TEAM.iter().map(|node| node.0).collect();
    stage
        .say
        .line(format_args!("all four: Team::builder(&node).members({team:?}).form(): they share a few channels from now on"));
    stage.say.line(format_args!(
        "team.start_allreduce(Sum, {} of numbers); compute; wait, {} times. In each round another node computes {} times as much:",
        bytes((SUMMED * size_of::<f64>()) as u64),
        Overlap::ROUNDS,
        Overlap::MORE
    ));
    let mut all = vec![(HOST, stage.done(Overlap::play(&stage.cast.node))?)];
    for node in others {
        let (_, message) = stage.recv(Match::from(node).tag(answer::OVERLAP))?;
        let overlap =
            serde_json::from_slice(message).map_err(|error| unlike(format_args!("the tale of node {node}: {error}")))?;
        all.push((node, overlap));
    }
    let mut table = Table::new(&[">node", ">computing alone", ">sum, then computing", ">sum meanwhile", ">hidden"]);
    for (node, overlap) in &all {
        let Overlap { computing, after, meanwhile, .. } = *overlap;
        let hidden = told(overlap.hidden());
        table.row([node.to_string(), told(computing), told(after), told(meanwhile), hidden]);
    }
    table.lines().into_iter().for_each(|line| stage.say.line(line));
    if let Some((node, _)) = all.iter().find(|(_, overlap)| !overlap.is_right) {
        return Err(unlike(format_args!("a sum of node {node} is not that of a plain computation")));
    }
    stage.say.line("each node has the sum of all four vectors, and every one of its numbers is right");
    let sum = |time: fn(&Overlap) -> Duration| all.iter().map(|(_, overlap)| time(overlap)).sum::<Duration>().as_secs_f64();
    let percent = 100.0 * sum(Overlap::hidden) / sum(Overlap::sum).max(f64::MIN_POSITIVE);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let why = if processors < TEAM.len() { "; four nodes share them, so little of it is waiting" } else { "" };
    stage.say.line(format_args!(
        "{percent:.0} % of the time of the sums was hidden behind the computing, on {}{why}",
        counted(processors, "processor")
    ));
    stage.say.word(
        "channel",
        "memory that the team uses for one operation after the other; it is made ready again behind everybody's back",
    );
    stage.say.line("how long collectives take, beside the least that is possible: doorbell collective --nodes 4 --floor");
    for node in [SECOND, THIRD] {
        stage.send(node, order::LEAVE, &[])?;
        stage.cast.part_with(node)?;
    }
    Ok(())
}
