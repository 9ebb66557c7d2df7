//! The threads that carried the messages.

use super::{FIRST, SECOND, Stage};
use crate::demo::{Order, Report};
use crate::exit::Failure;
use crate::text::Table;
use doorbell::Progress;

/// The name that a node's poller has.
const POLLER: &str = "doorbell-poller";

pub fn play(stage: &mut Stage<'_>) -> Result<(), Failure> {
    let progress = stage.cast.progress;
    stage.say.title(format_args!("The threads that carried the messages (--progress {progress})"));
    let own = Report::new(&stage.done(stage.cast.node.stats())?);
    for node in [FIRST, SECOND] {
        stage.order(node, &Order::Report)?;
    }
    let reports = stage.gather(own, &[FIRST, SECOND])?;
    let mut table = Table::new(&[">node", "thread", ">number", ">took from lanes", ">parks of the node"]);
    for (node, report) in &reports {
        for (at, (number, name)) in report.threads.iter().enumerate() {
            let (thread, took) = match name.as_str() {
                POLLER => (name.clone(), report.by_poller),
                _ if at == 0 => ("the application's".into(), report.by_application),
                // The thread that waits for signals.
                _ => continue,
            };
            let parks = if at == 0 { report.parks.to_string() } else { String::new() };
            table.row([node.to_string(), thread, number.to_string(), took.to_string(), parks]);
        }
    }
    stage.say.table(&table);
    let (application, poller) =
        reports.iter().fold((0, 0), |sum, (_, report)| (sum.0 + report.by_application, sum.1 + report.by_poller));
    stage.line(match progress {
        Progress::Poller => {
            format!("the poller of each node is its engine: of {} messages it carried {poller}", application + poller)
        }
        Progress::Inline => "there is no poller: the threads that call carry everything themselves".into(),
        Progress::Adaptive => {
            "a waiting thread carries messages; the poller sleeps unless work is pending that no thread waits for".into()
        }
    });
    stage.say.word("engine", "takes messages from lanes to their receivers; the thread that holds the baton turns it");
    stage.say.word(
        "baton",
        "the right to turn the engine: one thread at a time; a thread that uses it repeatedly keeps it at no cost",
    );
    Ok(())
}
