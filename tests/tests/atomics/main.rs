//! Atomic updates and cells, on one machine and over the network.

mod atomic_storm;
mod atomics;
mod remote_atomics;

doorbell_tests::roles! {
    "atomics: updater" => atomics::update,
    "atomic storm: updater" => atomic_storm::update,
    "owner" => remote_atomics::own,
    "endless" => remote_atomics::update_without_end,
}
