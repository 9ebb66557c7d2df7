//! Messages with tags, there and back, which the receiver takes in an order of its own.

use super::{FIRST, SECOND, Stage, unlike};
use crate::demo::{Order, decode, encode, tag};
use crate::exit::Failure;
use crate::text::bytes;
use doorbell::Match;

const VALUES: usize = 1000;

pub fn play(stage: &mut Stage<'_>) -> Result<(), Failure> {
    work(stage)?;
    choose(stage)
}

/// The host hands out work and collects results.
fn work(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("Work goes out, results come back");
    let vector: Vec<f64> = (0..VALUES).map(|i| i as f64).collect();
    for (node, factor) in [(FIRST, 2.0), (SECOND, 3.0)] {
        let message = encode(&[&[factor], &vector[..]].concat());
        stage.send(node, tag::SCALE, &message)?;
        let size = bytes(message.len() as u64);
        stage.line(format_args!("0 -> {node}  tag {:<3}  {size:>8}  scale this vector by {factor}", tag::SCALE));
    }
    for _ in 0..2 {
        let (envelope, message) = stage.recv(Match::any().tag(tag::RESULT))?;
        let factor = f64::from(envelope.source.0) + 1.0;
        let size = bytes(envelope.len as u64);
        let right = decode(message).iter().zip(&vector).filter(|(scaled, value)| **scaled == **value * factor).count();
        if right != VALUES {
            return Err(unlike(format_args!("{right} of {VALUES} values are right")));
        }
        stage.line(format_args!(
            "{} -> 0  tag {:<3}  {size:>8}  {right} values, all of them right",
            envelope.source, envelope.tag
        ));
    }
    Ok(())
}

/// Six messages come. The host takes them in an order of its own.
fn choose(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("The receiver chooses: by tag, by node, or the next message");
    stage.order(FIRST, &Order::Paint)?;
    stage.order(SECOND, &Order::Paint)?;
    stage.line("nodes 1 and 2 each send red (tag 111), green (112) and blue (113), in this order");
    let (_, blue) = tag::COLOURS[2];
    take(stage, Match::any().tag(tag::COLOURS[2].0), "any().tag(113)", |_, word| word == blue)?;
    take(stage, Match::from(SECOND), "from(2)", |source, _| source == SECOND.0)?;
    let stats = stage.done(stage.cast.node.stats())?;
    stage.line(format_args!(
        "(meanwhile {} wait in the pool, which holds messages that no receive has asked for yet)",
        stats.pooled
    ));
    for _ in 0..4 {
        take(stage, Match::any(), "any()", |_, _| true)?;
    }
    stage.line("the remaining messages of each sender come in the order in which they were sent");
    Ok(())
}

fn take(stage: &mut Stage<'_>, accepts: Match, spelled: &str, right: impl Fn(u16, &str) -> bool) -> Result<(), Failure> {
    let (envelope, message) = stage.recv(accepts)?;
    let word = String::from_utf8_lossy(message).into_owned();
    if !right(envelope.source.0, &word) {
        return Err(unlike(format_args!("{spelled} gave '{word}' of node {}", envelope.source)));
    }
    let call = format!("recv({spelled})");
    stage.line(format_args!("{call:<20}  =>  {word:<5} of node {}", envelope.source));
    Ok(())
}
