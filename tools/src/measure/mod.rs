//! The measuring commands.
//!
//! The command itself does not measure. An [`Experiment`](crate::experiment::Experiment) starts processes that do. The processes of [`pairs`] run the
//! loops of [`doorbell_benches::exchange`] and [`doorbell_benches::stream`] in short sections, over the driver and over the machine's floor in turns:
//! a change of the machine's speed affects both alike. A [`lock`], a [`collective`], a [`device`] and [`dma`] are experiments of their own.
//!
//! Over the [`net`]work two commands can be the [`halves`] of a measurement. Then each command measures itself.
//!
//! [`args`] become a [`plan`], which [`pairs`] of [`worker`]s carry out with a [`carrier`], in [`sections`]. The workers keep step [`together`]. A
//! [`report`] prints the findings: as a [`table`] with [`bars`], or in a form for programs.

pub mod args;
pub mod bandwidth;
pub mod bars;
pub mod carrier;
pub mod collective;
pub mod device;
pub mod dma;
pub mod halves;
pub mod latency;
pub mod lock;
pub mod net;
pub mod pairs;
pub mod plan;
pub mod ports;
pub mod rate;
pub mod report;
pub mod sections;
pub mod size;
pub mod table;
pub mod together;
pub mod worker;

pub use args::{MeasureArgs, PUT_UNIT, TransferArgs};
pub use carrier::{By, LANDING_BYTES, Landing, NodeCalls, PeerCalls, PutStream, Puts, Requests};
pub use net::{Fabric, Half, Net, NetArgs, PassingKey, UdpArgs};
pub use pairs::{Outcome, Pairs};
pub use plan::{Arrival, Finding, Leg, Over, Place, Plan, Test, stream_leg, usual_stream};
pub use sections::{Driver, Floors, Sections};
pub use size::Size;
pub use table::time;
pub use together::{Apart, Together, receive};
pub use worker::buffer;

use report::Row;

/// Carries out a plan as the command line says, and prints a row for each of its legs.
fn carry_out(measure: &MeasureArgs, transfer: Option<&TransferArgs>, plan: Plan) -> Result<(), crate::exit::Failure> {
    let (plan, _key) = measure.over_network(plan)?;
    let plan = transfer.map_or(Ok(plan.clone()), |transfer| transfer.apply(plan))?;
    let outcome = match measure.net.half() {
        None => pairs::carry_out(&plan)?,
        Some(Half::Connects { to }) => halves::measure(&plan, to)?,
        Some(Half::Listens { at, keep }) => return halves::answer(&plan, at, keep),
    };
    let rows: Vec<Row> = (0..plan.legs.len()).map(|leg| Row::new(&plan, leg, &outcome)).collect();
    report::print(measure.format, &plan, &rows);
    Ok(())
}
