//! Measures both transports in turns: the same program, the same runtime, one run.

use crate::over::{Connector, Over};
use crate::pattern;
use crate::program::{Machine, Program, Result, bytes, pin};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;
use serde::Serialize;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The measurements.
#[derive(Args, Debug)]
pub struct Bench {
    /// The transport
    #[arg(long, default_value = "both")]
    over: Which,
    /// Calls by each transport, in all rounds
    #[arg(long, default_value_t = 20_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Bytes of a request and of its reply, such as 64 or 4MiB
    #[arg(long, default_value = "64", value_name = "BYTES", value_parser = bytes)]
    size: usize,
    /// Rounds; each measures both transports
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Processors of the client and of the server, such as 0,1 [default: where the system puts them]
    #[arg(long, value_name = "A,B", value_parser = processors)]
    pin: Option<[usize; 2]>,
    #[command(flatten)]
    machine: Machine,
    /// How figures are printed
    #[arg(long, default_value = "table")]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Which {
    Unix,
    Doorbell,
    /// In turns
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Table,
    Json,
}

fn processors(text: &str) -> Result<[usize; 2], String> {
    let two = text.split_once(',').and_then(|(a, b)| Some([a.trim().parse().ok()?, b.trim().parse().ok()?]));
    two.ok_or_else(|| "say two processors, as 0,1".into())
}

/// The figures of one transport.
struct Metrics {
    over: Over,
    /// Nanoseconds of a call.
    times: Histogram<u64>,
    /// Processor time of client and server, in all calls.
    spent: [Duration; 2],
}

/// The same for JSON.
#[derive(Serialize)]
struct Row {
    program: &'static str,
    over: &'static str,
    bytes: usize,
    calls: u64,
    p50_ns: u64,
    p99_ns: u64,
    client_cpu_ns: u64,
    server_cpu_ns: u64,
}

/// Measures and prints.
pub(crate) fn run<P: Program>(bench: &Bench) -> Result<()> {
    if let Some([client, _]) = bench.pin {
        pin(client)?;
    }
    let transports: &[Over] = match bench.over {
        Which::Unix => &[Over::Unix],
        Which::Doorbell => &[Over::Doorbell],
        Which::Both => &[Over::Unix, Over::Doorbell],
    };
    let mut all = Vec::new();
    for over in transports {
        all.push(Metrics { over: *over, times: Histogram::new(3)?, spent: [Duration::ZERO; 2] });
    }
    for round in 0..bench.rounds {
        let count = bench.count / bench.rounds + u32::from(round < bench.count % bench.rounds);
        // Each transport goes first in half of the rounds.
        if round % 2 == 1 {
            all.iter_mut().rev().try_for_each(|metrics| turn::<P>(bench, count, metrics))?;
        } else {
            all.iter_mut().try_for_each(|metrics| turn::<P>(bench, count, metrics))?;
        }
    }
    let rows: Vec<Row> = all.iter().map(|metrics| metrics.row::<P>(bench.size)).collect();
    match bench.format {
        Format::Json => println!("{}", serde_json::to_string_pretty(&rows)?),
        Format::Table => print(bench, &rows),
    }
    Ok(())
}

/// Makes `count` calls of a server of their own.
fn turn<P: Program>(bench: &Bench, count: u32, metrics: &mut Metrics) -> Result<()> {
    let name = format!("plug-in-bench-{}", std::process::id());
    let server = Server::start(bench, metrics.over, &name)?;
    let runtime = bench.machine.runtime()?;
    let connector = Connector::new(metrics.over, &name, P::NAME)?;
    let (size, clock) = (bench.size, server.clock()?);
    // Calls run in a task, as in a real caller: only a task shares its thread with the connection that it waits for.
    let calls = runtime.spawn(calls::<P>(connector, count, size, clock));
    let (times, spent) = runtime.block_on(calls)??;
    metrics.times.add(times)?;
    for (sum, spent) in metrics.spent.iter_mut().zip(spent) {
        *sum += spent;
    }
    server.stop()
}

/// The duration of each call, and the processor time of both processes for all calls.
async fn calls<P: Program>(
    connector: Connector,
    count: u32,
    size: usize,
    clock: ClockId,
) -> Result<(Histogram<u64>, [Duration; 2])> {
    let mut client = P::connect(connector).await?;
    let payload = pattern(0, size);
    for _ in 0..(count / 10).clamp(1, 1000) {
        echo::<P>(&mut client, &payload).await?;
    }
    let mut times = Histogram::new(3)?;
    let before = spent(clock)?;
    for _ in 0..count {
        let begun = Instant::now();
        echo::<P>(&mut client, &payload).await?;
        times.record(begun.elapsed().as_nanos() as u64)?;
    }
    let after = spent(clock)?;
    Ok((times, [after[0] - before[0], after[1] - before[1]]))
}

/// Processor time of this process and of the server so far.
fn spent(server: ClockId) -> Result<[Duration; 2]> {
    Ok([ClockId::CLOCK_PROCESS_CPUTIME_ID.now()?.into(), server.now()?.into()])
}

async fn echo<P: Program>(client: &mut P::Client, payload: &Bytes) -> Result<()> {
    let answer = P::echo(client, payload.clone()).await?;
    if answer.len() == payload.len() {
        return Ok(());
    }
    Err(format!("an answer of {} bytes to {}", answer.len(), payload.len()).into())
}

/// This program as its own server. The drop kills it.
struct Server(Child);

impl Server {
    fn start(bench: &Bench, over: Over, name: &str) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["serve", "--attended", "--over", over.name(), "--name", name]);
        command.args(["--threads", &bench.machine.threads.to_string()]);
        if let Some([_, server]) = bench.pin {
            command.args(["--pin", &server.to_string()]);
        }
        let mut server = Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?);
        let mut line = String::new();
        let said = server.0.stdout.take().ok_or("the server has no output")?;
        BufReader::new(said).read_line(&mut line)?;
        if line.trim_end() == "ready" { Ok(server) } else { Err("the server did not start; see its error above".into()) }
    }

    /// Its processor time.
    fn clock(&self) -> Result<ClockId> {
        Ok(clock_getcpuclockid(Pid::from_raw(self.0.id().try_into()?))?)
    }

    fn stop(mut self) -> Result<()> {
        drop(self.0.stdin.take());
        let status = self.0.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the server ended with {status}").into()) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Metrics {
    fn row<P: Program>(&self, bytes: usize) -> Row {
        let calls = self.times.len();
        let [client_cpu_ns, server_cpu_ns] = self.spent.map(|spent| (spent.as_nanos() / u128::from(calls.max(1))) as u64);
        let [p50_ns, p99_ns] = [0.5, 0.99].map(|part| self.times.value_at_quantile(part));
        Row { program: P::NAME, over: self.over.name(), bytes, calls, p50_ns, p99_ns, client_cpu_ns, server_cpu_ns }
    }
}

fn print(bench: &Bench, rows: &[Row]) {
    let where_ = bench.pin.map_or_else(String::new, |[a, b]| format!(", client on processor {a}, server on {b}"));
    let threads = if bench.machine.threads == 1 { "1 thread".into() } else { format!("{} threads", bench.machine.threads) };
    println!(
        "{}: {} calls by each, one after another, of {} bytes there and back; {} rounds, {threads} a process{where_}",
        rows[0].program, bench.count, bench.size, bench.rounds,
    );
    println!("{:10}{:>12}{:>12}{:>22}{:>22}", "over", "p50", "p99", "processor, client", "server, a call");
    for row in rows {
        let [p50, p99, client, server] =
            [row.p50_ns, row.p99_ns, row.client_cpu_ns, row.server_cpu_ns].map(|ns| format!("{:.1} µs", ns as f64 / 1000.0));
        println!("{:10}{p50:>12}{p99:>12}{client:>22}{server:>22}", row.over);
    }
}
