//! Files of an I/O node.

mod io;
mod io_others;
mod io_servers;

doorbell_tests::roles! {
    "serves" => io_servers::serves,
    "is killed" => io_servers::is_killed,
    "has no io_uring" => io::has_no_io_uring,
    "has few descriptors" => io::has_few_descriptors,
}
