//! Shows a segment of Doorbell: `cargo run -p doorbell-outsider -- grid.0.board`.

use doorbell_outsider::{Kind, Segment};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), None) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: doorbell-outsider DOMAIN.NODE.board | DOMAIN.NODE.rNUMBER\n`ls /dev/shm` shows the segments.");
        return ExitCode::from(2);
    };
    let segment = match Segment::open(&name) {
        Ok(segment) => segment,
        Err(trouble) => {
            eprintln!("{trouble}");
            return ExitCode::FAILURE;
        }
    };
    let (node, incarnation) = segment.owner();
    println!("node {node}, incarnation {incarnation}, layout {:016x}", segment.layout_hash());
    match segment.kind() {
        Kind::Board => segment.metrics().iter().for_each(|(name, value)| println!("{name:>14} {value}")),
        Kind::Region => segment.data(8).iter().enumerate().for_each(|(at, word)| println!("{:>14} {word:016x}", at * 8)),
    }
    ExitCode::SUCCESS
}
