//! Teams and their collectives, with members that fail.

mod channels;
mod collectives;
mod elements;
mod lossy;
mod reductions;
mod team_faults;
mod team_storm;

doorbell_tests::roles! {
    "collectives: member" => lossy::member,
    "team storm: member" => team_storm::member,
}
