//! The commands that measure.
//!
//! The command itself does not measure: an [`Experiment`](crate::experiment::Experiment) has processes that do. Those of [`pairs`] run the loops of
//! [`doorbell_benches::exchange`] and [`doorbell_benches::stream`] in short sections, over the driver and over the machine's floor in turns, so that both
//! see the same moods of the machine. What a [`lock`] takes, a [`collective`], and threads that receive by a [`device`] are experiments of their own.
//!
//! Over the [`net`]work two commands can be the [`halves`] of a measurement: then each of them measures itself.
//!
//! [`args`] are turned into a [`plan`], [`pairs`] has it carried out by [`worker`]s with their [`carrier`]s, in [`sections`]
//! for which they keep step [`together`], and what comes back is shown by [`report`]: as a [`table`] with [`bars`], or in a form for programs.

pub mod args;
pub mod bandwidth;
pub mod bars;
pub mod carrier;
pub mod collective;
pub mod device;
pub mod halves;
pub mod latency;
pub mod lock;
pub mod net;
pub mod pairs;
pub mod plan;
pub mod rate;
pub mod report;
pub mod sections;
pub mod size;
pub mod table;
pub mod together;
pub mod worker;

use args::{MeasureArgs, TransferArgs};
use net::Half;
use pairs::Outcome;
use plan::Plan;
use report::{Header, Row};

/// Carries out a plan as the command line says, and prints a row for each of its legs.
fn carry_out(
    measure: &MeasureArgs,
    transfer: Option<&TransferArgs>,
    plan: Plan,
    row: fn(&Plan, usize, &Outcome) -> Row,
) -> Result<(), crate::exit::Failure> {
    let (plan, _key) = measure.over_network(plan)?;
    let plan = transfer.map_or(Ok(plan.clone()), |transfer| transfer.apply(plan))?;
    let outcome = match measure.half() {
        None => pairs::carry_out(&plan)?,
        Some(Half::Connects { to }) => halves::measure(&plan, to)?,
        Some(Half::Listens { at, keep }) => return halves::answer(&plan, at, keep),
    };
    let rows: Vec<Row> = (0..plan.legs.len()).map(|leg| row(&plan, leg, &outcome)).collect();
    report::print(measure.format, &Header::of(&plan), &rows);
    Ok(())
}
