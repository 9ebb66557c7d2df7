//! Which thread carried what.

use super::super::script::{Report, answer, order};
use super::{FIRST, HOST, SECOND, Stage, unlike};
use crate::exit::Failure;
use crate::text::Table;
use doorbell::{Match, Progress};

/// The name that a node's poller has.
const POLLER: &str = "doorbell-poller";

pub fn play(stage: &mut Stage<'_>) -> Result<(), Failure> {
    let progress = stage.cast.progress;
    stage.say.title(format_args!("Who carried the messages (--progress {progress})"));
    let own = Report::new(&stage.done(stage.cast.node.stats())?);
    let mut reports = vec![(HOST, own)];
    for node in [FIRST, SECOND] {
        stage.send(node, order::REPORT, &[])?;
        let (_, message) = stage.recv(Match::from(node).tag(answer::REPORT))?;
        let report =
            serde_json::from_slice(message).map_err(|error| unlike(format_args!("the report of node {node}: {error}")))?;
        reports.push((node, report));
    }
    let mut table = Table::new(&[">node", "thread", ">number", ">took from lanes", ">parks of the node"]);
    for (node, report) in &reports {
        for (at, (number, name)) in report.threads.iter().enumerate() {
            let (whose, took) = match name.as_str() {
                POLLER => (name.clone(), report.by_poller),
                _ if at == 0 => ("the application's".into(), report.by_application),
                // It listens for signals.
                _ => continue,
            };
            let parks = if at == 0 { report.parks.to_string() } else { String::new() };
            table.row([node.to_string(), whose, number.to_string(), took.to_string(), parks]);
        }
    }
    table.lines().into_iter().for_each(|line| stage.say.line(line));
    let (application, poller) =
        reports.iter().fold((0, 0), |sum, (_, report)| (sum.0 + report.by_application, sum.1 + report.by_poller));
    stage.say.line(match progress {
        Progress::Poller => {
            format!("the poller of each node is its engine: of {} messages it carried {poller}", application + poller)
        }
        Progress::Inline => "there is no poller: the threads that call carry everything themselves".into(),
        Progress::Adaptive => "who waits, carries; the poller sleeps while nothing is pending that nobody waits for".into(),
    });
    stage.say.word("engine", "takes messages from lanes to where they are wanted; whoever holds the baton turns it");
    stage
        .say
        .word("baton", "the right to turn the engine: one thread at a time, and who comes again and again keeps it for free");
    Ok(())
}
