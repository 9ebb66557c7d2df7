//! Processes that are killed, at random moments and at chosen instructions, and those that go on without them.
//!
//! `DOORBELL_KILLS` says how many die in a storm, `DOORBELL_SEED` seeds the choices.

mod coming_and_going;
mod dma_storm;
mod kill_storm;
mod loans;
mod lock_storm;
mod worker;

doorbell_tests::roles! {
    "worker" => worker::work,
    "visitor" => coming_and_going::visit,
    "echo" => coming_and_going::echo,
    "injector" => dma_storm::inject,
    "loan-writer" => loans::write,
    "loan-reader" => loans::read,
    "owner" => lock_storm::own,
    "maker" => lock_storm::make,
    "holder" => lock_storm::hold,
}
