//! A token goes around a ring of processes.
//!
//! ```text
//! cargo build --release -p doorbell --example ring
//! cargo run --release -- run -n 4 -- target/release/examples/ring 1000
//! ```
//!
//! Each process is one node. `doorbell run` tells it which one, in the environment.

use doorbell::{Error, Match, Node, NodeId};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const TOKEN: u64 = 1;

fn main() -> ExitCode {
    match ring() {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("ring: error: {error}");
            ExitCode::from(if matches!(error, Error::Invalid { .. }) { 2 } else { 1 })
        }
    }
}

fn ring() -> Result<String, Error> {
    let rounds = number(std::env::args().nth(1), 1000, "the number of rounds")?;
    let count = number(std::env::var("DOORBELL_NODES").ok(), 2, "DOORBELL_NODES")?.max(2);

    let node = Node::from_env()?;
    // In the order of their ids. The ids have gaps if the domain assigned them over a network.
    let mut ids: Vec<NodeId> =
        node.wait_for(count as usize, Instant::now() + Duration::from_secs(10))?.iter().map(|member| member.id).collect();
    ids.sort_unstable();
    ids.truncate(count as usize);
    let too_many = || Error::Invalid { what: format!("there are more nodes than DOORBELL_NODES allows: {count}") };
    let me = ids.iter().position(|id| *id == node.id()).ok_or_else(too_many)?;
    let next = node.peer(ids[(me + 1) % ids.len()])?;
    let previous = Match::from(ids[(me + ids.len() - 1) % ids.len()]).tag(TOKEN);

    let mut token = [0; 8];
    let start = Instant::now();
    for round in 0..rounds {
        if me == 0 {
            next.send(TOKEN, &(round * count).to_ne_bytes())?;
        }
        node.recv(previous, &mut token)?;
        let hops = u64::from_ne_bytes(token) + 1;
        if me != 0 {
            next.send(TOKEN, &hops.to_ne_bytes())?;
        } else if hops != (round + 1) * count {
            return Err(Error::Invalid { what: format!("the token has made {hops} hops in {} rounds of {count}", round + 1) });
        }
    }
    let hop = start.elapsed().as_nanos() as f64 / (rounds * count).max(1) as f64;
    Ok(match me {
        0 => format!("the token went around {rounds} times, {hop:.0} ns a hop"),
        _ => format!("node {} passed the token on {rounds} times", node.id()),
    })
}

fn number(word: Option<String>, default: u64, what: &str) -> Result<u64, Error> {
    let Some(word) = word else { return Ok(default) };
    word.parse()
        .ok()
        .filter(|number| *number <= 1 << 32)
        .ok_or_else(|| Error::Invalid { what: format!("'{word}' is not {what}: a number") })
}
