//! The cost of streams compared with Unix stream sockets: two processes, each with a processor of its own, measured in turns.
//!
//! `cargo run --release --features tokio --example stream_figures -- [rounds] [calls]`
//!
//! - `blocking`: 64 bytes there and 64 back by `Read` and `Write`; half of that is one way.
//! - `async`: the same in tokio, on a runtime with one thread.
//! - `bulk`: blocks of 1 MiB one way.

use doorbell::Listener;
use doorbell::{Node, Stream};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

fn pin(processor: usize) {
    // SAFETY: the set is a local of the size that is given, made by the macros of libc.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

fn processor_time() -> Duration {
    // SAFETY: writes to a local of the type it expects.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let of = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}

const BLOCK: usize = 1 << 20;
const MESSAGE: usize = 64;

/// The first byte of a connection tells its purpose.
const ECHO: u8 = 0;
const SINK: u8 = 1;

fn serve(mut stream: impl Read + Write) -> std::io::Result<()> {
    let mut what = [0];
    stream.read_exact(&mut what)?;
    let mut buffer = vec![0; if what[0] == ECHO { MESSAGE } else { BLOCK }];
    loop {
        match stream.read_exact(&mut buffer) {
            Ok(()) if what[0] == ECHO => stream.write_all(&buffer)?,
            // The very last byte is answered.
            Ok(()) if buffer[0] == 1 => stream.write_all(&[1])?,
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

async fn serve_async(mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin) -> std::io::Result<()> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut buffer = [0; MESSAGE];
    loop {
        match stream.read_exact(&mut buffer).await {
            Ok(_) => stream.write_all(&buffer).await?,
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn server(domain: &str) -> std::io::Result<()> {
    pin(1);
    let path = format!("/tmp/{domain}.sock");
    let unix = UnixListener::bind(&path)?;
    let unix_async = std::os::unix::net::UnixListener::bind(format!("{path}.async"))?;
    let node = Node::builder(domain).join()?;
    let near = Listener::builder(&node, "blocking").bind()?;
    let near_async = Listener::builder(&node, "async").bind()?;
    println!("ready");
    for line in std::io::stdin().lines() {
        match line?.as_str() {
            "unix" => serve(unix.accept()?.0)?,
            "doorbell" => serve(near.accept()?.0)?,
            "unix async" => runtime().block_on(async {
                unix_async.set_nonblocking(true)?;
                let listener = tokio::net::UnixListener::from_std(unix_async.try_clone()?)?;
                serve_async(listener.accept().await?.0).await
            })?,
            _ => runtime().block_on(async { serve_async(near_async.accept_async().await?.0).await })?,
        }
        println!("{}", processor_time().as_nanos());
    }
    Ok(())
}

struct Server {
    child: std::process::Child,
    lines: std::io::Lines<std::io::BufReader<std::process::ChildStdout>>,
}

impl Server {
    fn say(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }
}

/// The median and the 99th percentile in nanoseconds.
fn quantiles(mut times: Vec<u64>) -> [u64; 2] {
    times.sort_unstable();
    [times[times.len() / 2], times[times.len() * 99 / 100]]
}

fn calls(mut stream: impl Read + Write, count: usize) -> std::io::Result<Vec<u64>> {
    stream.write_all(&[ECHO])?;
    let (question, mut answer) = ([7; MESSAGE], [0; MESSAGE]);
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begun = Instant::now();
        stream.write_all(&question)?;
        stream.read_exact(&mut answer)?;
        times.push(begun.elapsed().as_nanos() as u64);
    }
    Ok(times)
}

async fn calls_async(
    mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    count: usize,
) -> std::io::Result<Vec<u64>> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (question, mut answer) = ([7; MESSAGE], [0; MESSAGE]);
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let begun = Instant::now();
        stream.write_all(&question).await?;
        stream.read_exact(&mut answer).await?;
        times.push(begun.elapsed().as_nanos() as u64);
    }
    Ok(times)
}

/// MiB a second.
fn bulk(mut stream: impl Read + Write, blocks: usize) -> std::io::Result<f64> {
    stream.write_all(&[SINK])?;
    let mut block = vec![0; BLOCK];
    let begun = Instant::now();
    for at in 1..=blocks {
        block[0] = u8::from(at == blocks);
        stream.write_all(&block)?;
    }
    stream.read_exact(&mut [0])?;
    Ok(blocks as f64 / begun.elapsed().as_secs_f64())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, role, domain] = &arguments[..]
        && role == "serve"
    {
        return Ok(server(domain)?);
    }
    let number = |at: usize, default| arguments.get(at).map_or(Ok(default), |text| text.parse::<usize>());
    let (rounds, count) = (number(1, 5)?, number(2, 20_000)?);
    let domain = format!("figures-{}", std::process::id());
    let mut child = std::process::Command::new(std::env::current_exe()?)
        .args(["serve", &domain])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().ok_or("no output")?));
    let mut server = Server { child, lines };
    server.line();
    pin(0);
    let path = format!("/tmp/{domain}.sock");
    let node = Node::builder(&domain).join()?;
    let connect =
        |service: &str| -> std::io::Result<Stream> { Stream::builder(&node, service).buffer_bytes(256 << 10).connect() };
    let mut spent = 0;
    for _ in 0..rounds {
        for what in ["unix", "doorbell"] {
            server.say(what);
            let mine = processor_time();
            let times =
                if what == "unix" { calls(UnixStream::connect(&path)?, count)? } else { calls(connect("blocking")?, count)? };
            let [middle, high] = quantiles(times);
            let theirs: u128 = server.line().parse()?;
            let cpu = ((processor_time() - mine).as_nanos() + theirs - spent) / count as u128;
            spent = theirs;
            println!("blocking {what:9} p50 {middle:6} p99 {high:6} ns there and back, processor time {cpu:6} ns");
        }
        for what in ["unix async", "doorbell async"] {
            server.say(what);
            let mine = processor_time();
            let times = runtime().block_on(async {
                if what == "unix async" {
                    calls_async(tokio::net::UnixStream::connect(format!("{path}.async")).await?, count).await
                } else {
                    calls_async(Stream::builder(&node, "async").connect_async().await?, count).await
                }
            })?;
            let [middle, high] = quantiles(times);
            let theirs: u128 = server.line().parse()?;
            let cpu = ((processor_time() - mine).as_nanos() + theirs - spent) / count as u128;
            spent = theirs;
            println!("{what:18} p50 {middle:6} p99 {high:6} ns there and back, processor time {cpu:6} ns");
        }
        for what in ["unix", "doorbell"] {
            server.say(what);
            let rate = if what == "unix" { bulk(UnixStream::connect(&path)?, 1000)? } else { bulk(connect("blocking")?, 1000)? };
            spent = server.line().parse()?;
            println!("bulk {what:13} {rate:8.0} MiB/s");
        }
    }
    drop(server.child.stdin.take());
    server.child.wait()?;
    std::fs::remove_file(&path)?;
    std::fs::remove_file(format!("{path}.async"))?;
    Ok(())
}
