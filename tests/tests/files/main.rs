//! Files of an I/O node.

mod io;
mod io_others;

doorbell_tests::roles! {
    "serves" => io::serves,
    "is killed" => io::is_killed,
    "has no io_uring" => io::has_no_io_uring,
    "has few descriptors" => io::has_few_descriptors,
}
