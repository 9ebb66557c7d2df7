//! A parameter server: node 0 has the parameters of a model, and the other nodes have the data.
//!
//! ```text
//! cargo build --release -p doorbell --example parameter_server
//! cargo run --release -- run -n 4 -- target/release/examples/parameter_server 200
//! ```
//!
//! In each step the server lends the parameters to all workers, which read them in place: nothing is copied, however many
//! workers there are. Each worker adds its part of the gradient to sums in a region of the server, by remote atomics. The
//! server's processor does nothing for that. The model is a line through a cloud of points with a known result.

use doorbell::atomic::RemoteCell;
use doorbell::{Error, Key, Match, Node, NodeId, ReadWrite, atomic};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The number of parameters, and of points for each worker.
const WIDTH: usize = 64;
const POINTS: usize = 512;
const RATE: f64 = 0.5;

/// The tags of the messages.
const SUMS: u64 = 1;
const PARAMETERS: u64 = 2;
const ADDED: u64 = 3;
const END: u64 = 4;

fn main() -> ExitCode {
    match run() {
        Ok(told) => {
            print!("{told}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("parameter_server: error: {error}");
            ExitCode::from(if matches!(error, Error::Invalid { .. }) { 2 } else { 1 })
        }
    }
}

fn run() -> Result<String, Error> {
    let steps = match std::env::args().nth(1) {
        None => 100,
        Some(text) => {
            text.parse().map_err(|_| Error::Invalid { what: format!("the number of steps must be a number, not '{text}'") })?
        }
    };
    let count = std::env::var("DOORBELL_NODES").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let node = Node::from_env()?;
    let members = node.wait_for(count, Instant::now() + Duration::from_secs(10))?;
    let workers: Vec<NodeId> = members.iter().map(|member| member.id).filter(|id| *id != NodeId(0)).collect();
    if node.id() == NodeId(0) { serve(&node, &workers, steps) } else { work(&node).map(|()| String::new()) }
}

fn serve(node: &Node, workers: &[NodeId], steps: usize) -> Result<String, Error> {
    let sums = node.region::<f64>(WIDTH)?;
    sums.fill(0.0)?;
    for worker in workers {
        node.send(*worker, SUMS, &sums.key().to_bytes())?;
    }
    let mut parameters = vec![0.0; WIDTH];
    let mut losses = Vec::new();
    let begun = Instant::now();
    for _ in 0..steps {
        let mut loan = node.loan_slice::<f64>(WIDTH)?;
        loan.copy_from_slice(&parameters);
        loan.share().send_to(workers, PARAMETERS)?;
        let mut loss = 0.0;
        for worker in workers {
            let mut told = [0; 8];
            node.recv(Match::from(*worker).tag(ADDED), &mut told)?;
            loss += f64::from_ne_bytes(told);
        }
        // A worker has added its part before it sends its message.
        let points = (POINTS * workers.len()) as f64;
        let mut gradient = vec![0.0; WIDTH];
        sums.read(0, &mut gradient)?;
        sums.fill(0.0)?;
        parameters.iter_mut().zip(&gradient).for_each(|(parameter, sum)| *parameter -= RATE * sum / points);
        losses.push(loss / points);
    }
    let step = begun.elapsed() / u32::try_from(steps.max(1)).unwrap_or(u32::MAX);
    for worker in workers {
        node.send(*worker, END, &[])?;
    }
    let worst = parameters.iter().enumerate().map(|(at, parameter)| (parameter - truth(at)).abs()).fold(0.0, f64::max);
    let (first, last) = (losses.first().copied().unwrap_or_default(), losses.last().copied().unwrap_or_default());
    Ok(format!(
        "{} workers, {steps} steps of {step:.1?}: the loss fell from {first:.4} to {last:.2e}; no parameter is further than {worst:.2e} from the truth\n",
        workers.len()
    ))
}

fn work(node: &Node) -> Result<(), Error> {
    let server = NodeId(0);
    let mut bytes = [0; doorbell::KEY_BYTES];
    node.recv(Match::from(server).tag(SUMS), &mut bytes)?;
    let key = Key::<f64, ReadWrite>::from_bytes(&bytes)?;
    let sums: Vec<_> = (0..WIDTH).map(|at| RemoteCell::open(node, key.at(at))).collect::<Result<_, _>>()?;
    let (points, values) = data(u64::from(node.id().0));
    let mut parameters = vec![0.0; WIDTH];
    loop {
        // Either the next parameters or the end.
        let taken = node.take::<[f64]>(Match::from(server))?;
        if taken.envelope().tag == END {
            return Ok(());
        }
        taken.copy_to(&mut parameters);
        drop(taken);
        let mut gradient = vec![0.0; WIDTH];
        let mut loss = 0.0;
        for (point, value) in points.iter().zip(&values) {
            let error = point.iter().zip(&parameters).map(|(x, parameter)| x * parameter).sum::<f64>() - value;
            gradient.iter_mut().zip(point).for_each(|(sum, x)| *sum += error * x);
            loss += error * error;
        }
        for (sum, part) in sums.iter().zip(gradient) {
            atomic! { sum += part }?;
        }
        node.send(server, ADDED, &loss.to_ne_bytes())?;
    }
}

/// The value that the model must find.
fn truth(at: usize) -> f64 {
    (at as f64 * 0.7).sin()
}

/// A worker's points and their values: the same in each run.
fn data(worker: u64) -> (Vec<Vec<f64>>, Vec<f64>) {
    let mut state = worker.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1_u64 << 53) as f64 * 2.0 - 1.0
    };
    let points: Vec<Vec<f64>> = (0..POINTS).map(|_| (0..WIDTH).map(|_| random()).collect()).collect();
    let values = points.iter().map(|point| point.iter().enumerate().map(|(at, x)| x * truth(at)).sum()).collect();
    (points, values)
}
