//! Teams and their collectives, with members that fail.

mod channels;
mod collectives;
mod elements;
mod team_faults;
mod team_storm;

doorbell_tests::roles! {
    "collectives: member" => collectives::member,
    "team storm: member" => team_storm::member,
}
