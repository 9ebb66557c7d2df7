//! The commands that measure.
//!
//! The command itself does not measure: it starts two [`worker`] processes a pair, waits until they are done or one of them is
//! gone, and prints. The workers run the loops of [`doorbell_benches::exchange`] and [`doorbell_benches::stream`] in short
//! sections, over the driver and over the machine's floor in turns, so that both see the same moods of the machine.
//!
//! [`args`] are turned into a [`plan`], [`pairs`] has it carried out by [`worker`]s with their [`carrier`]s, and what comes back
//! is shown by [`report`]: as a [`table`] with [`bars`], or in a form for programs.

pub mod args;
pub mod bandwidth;
pub mod bars;
pub mod carrier;
pub mod latency;
pub mod pairs;
pub mod plan;
pub mod rate;
pub mod report;
pub mod size;
pub mod table;
pub mod worker;
