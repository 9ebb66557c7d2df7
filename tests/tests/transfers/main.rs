//! Large messages, and the ways that they take.

mod bulk_ring;
mod counters;
mod dma;
mod flow_charts;
mod grants;
mod idle_target;
mod links;
mod modes;
mod modes_hazards;
mod modes_policies;
mod monitor;
mod stripes;
mod transfers;

doorbell_tests::roles! {
    "waits for its receive" => transfers::waits_for_its_receive,
    "sends and sleeps" => transfers::sends_and_sleeps,
    "sends in bulk and in haste" => transfers::sends_in_bulk_and_in_haste,
    "sends what nobody else may read" => transfers::sends_what_nobody_else_may_read,
    "copies too late" => transfers::copies_too_late,
    "sends what one end copies alone" => transfers::sends_what_one_end_copies_alone,
    "has the bytes" => dma::has_the_bytes,
    "wants the bytes" => dma::wants_the_bytes,
    "counts its send" => dma::counts_its_send,
    "counts its receive" => dma::counts_its_receive,
    "overwrites a board" => dma::overwrites_a_board,
    "sends by each mode" => grants::sends_by_each_mode,
    "stops in a put" => grants::stops_in_a_put,
    "moves until killed" => counters::moves_until_killed,
    "sends long messages" => bulk_ring::sends_long_messages,
}
