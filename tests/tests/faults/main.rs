//! Processes, networks and peers that fail or are held back.

mod cable;
mod denied;
mod forged;
mod handed_over;
mod interrupted;
mod network;
mod processes;
mod room;
mod seccomp;
mod truncated;

doorbell_tests::roles! {
    "accelerator" => processes::accelerator,
    "forks and goes on" => processes::forks_and_goes_on,
    "forks a sleeper" => processes::forks_a_sleeper,
    "has little room" => processes::has_little_room,
    "joins by environment" => processes::joins_by_environment,
    "writes where nothing is offered" => processes::writes_where_nothing_is_offered,
    "puts until it is refused" => interrupted::puts_until_it_is_refused,
    "sends much" => interrupted::sends_much,
    "receives much" => interrupted::receives_much,
    "has no io_uring" => network::has_no_io_uring,
    "exchanges" => room::exchanges,
    "is killed" => network::is_killed,
    "looks on" => network::looks_on,
    "home" => || cable::home(&doorbell_tests::words::Words::inherited()),
    "away" => cable::away,
    "near end" => cable::near_end,
    "far end" => cable::far_end,
    "near end of two" => cable::near_end_of_two,
    "far end of two" => cable::far_end_of_two,
    "is denied" => denied::is_denied,
    "waits in turns" => handed_over::waits_in_turns,
    "left" => || seccomp::talk(0),
    "right" => || seccomp::talk(1),
}
