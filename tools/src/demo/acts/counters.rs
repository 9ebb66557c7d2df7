//! A DMA counter tells when all bytes have arrived, from any node.

use super::{FIRST, SECOND, Stage, patience, unlike};
use crate::demo::Order;
use crate::exit::Failure;
use crate::text::bytes;

const WORDS: usize = 4096;

pub fn play(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("A counter tells when all bytes have arrived");
    let region = stage.done(stage.cast.node.region::<u64>(WORDS))?;
    let counter = stage.done(stage.cast.node.counter())?;
    let total = (WORDS * size_of::<u64>()) as u64;
    stage.done(counter.init(total))?;
    let index = counter.index();
    let before = stage.cast.node.counter_status()[index / 64];
    stage.line(format_args!(
        "node 0 sets counter {index} to {}; its bit in the counter status register is {}",
        bytes(total),
        bit(before, index)
    ));
    let halves = [(FIRST, 0..WORDS / 2), (SECOND, WORDS / 2..WORDS)];
    for (node, half) in halves.clone() {
        let (memory, counter) = (region.key().range(half).to_bytes().into(), counter.key().to_bytes().into());
        stage.order(node, &Order::Fill { memory, counter })?;
    }
    stage.line("nodes 1 and 2 get a key to one half of a region each, and the counter's: put_notify, in four pieces each");
    stage.done(counter.wait_by(patience()))?;
    let after = stage.cast.node.counter_status()[index / 64];
    let mut all = vec![0; WORDS];
    stage.done(region.read(0, &mut all))?;
    if bit(after, index) != 1 || halves.iter().any(|(node, half)| all[half.clone()].iter().any(|word| *word != u64::from(node.0)))
    {
        return Err(unlike(format_args!("the counter is at zero, and the bytes are not there (status {after:#x})")));
    }
    stage.line(format_args!(
        "node 0: counter.wait()  =>  all {} are there, the counter is at {}, its bit is {}",
        bytes(total),
        counter.value(),
        bit(after, index)
    ));
    stage.done(counter.clear())?;
    let cleared = stage.cast.node.counter_status()[index / 64];
    stage.line(format_args!("node 0: counter.clear() =>  its bit is {} again: each use reaches zero once", bit(cleared, index)));
    stage
        .say
        .word("DMA counter", "bytes still to move; at zero it sets its bit, wakes waiting threads, and triggers its interrupt");
    Ok(())
}

fn bit(word: u64, index: usize) -> u64 {
    word >> (index % 64) & 1
}
