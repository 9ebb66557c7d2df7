//! The parts that the programs share: the command line and the runtime.

use crate::bench::{self, Bench};
use crate::over::{Connector, Listener, Over};
use crate::pattern;
use bytes::Bytes;
use clap::{Args, CommandFactory, FromArgMatches, Parser, ValueEnum};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use std::process::ExitCode;
use std::time::Instant;
use tokio::signal::unix::{SignalKind, signal};

/// Any error.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
/// A result with any error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A service, and its client.
pub trait Program: 'static {
    /// The name of the program and of its service.
    const NAME: &'static str;
    /// One line for `--help`.
    const ABOUT: &'static str;
    /// The client, over one connection.
    type Client: Send;

    /// Serves every client that connects.
    fn serve(listener: Listener) -> impl Future<Output = Result<()>> + Send;

    /// Connects.
    fn connect(connector: Connector) -> impl Future<Output = Result<Self::Client>> + Send;

    /// One call, whose reply holds the bytes of the request.
    fn echo(client: &mut Self::Client, payload: Bytes) -> impl Future<Output = Result<Bytes>> + Send;

    /// Calls of another kind than [`Kind::Unary`]. `seen` gets each reply and its number.
    fn call(
        client: &mut Self::Client,
        kind: Kind,
        ask: Ask,
        seen: impl FnMut(u32, Bytes) -> Result<()> + Send,
    ) -> impl Future<Output = Result<()>> + Send;
}

/// How messages make calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// One call a message, one after another
    Unary,
    /// One call a message, 64 at once
    Together,
    /// One call, whose reply is all messages
    Stream,
    /// One call, in which each message gets its reply before the next is sent
    Chat,
}

impl Kind {
    /// The error that the protocol has no calls of this kind.
    pub fn is_unknown<P: Program>(self) -> Error {
        format!("calls of the kind {self:?} are not in {}; see --help for others", P::NAME).into()
    }
}

/// The request.
#[derive(Args, Clone, Copy, Debug)]
pub struct Ask {
    /// Messages
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub count: u32,
    /// Bytes of each, such as 64 or 4MiB
    #[arg(long, default_value = "64", value_name = "BYTES", value_parser = bytes)]
    pub size: usize,
}

/// Reads a number of bytes: plain, or in KiB or MiB.
pub(crate) fn bytes(text: &str) -> Result<usize, String> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit = match unit.trim_start() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        _ => return Err("say a number of bytes, as 64, 16KiB or 4MiB".into()),
    };
    let number: usize = digits.parse().map_err(|_| "say a number of bytes, as 64, 16KiB or 4MiB")?;
    number.checked_mul(unit).filter(|bytes| *bytes <= 1 << 30).ok_or_else(|| "1024MiB at most".into())
}

#[derive(Parser)]
#[command(max_term_width = 100)]
enum Arguments {
    /// Serve until told to stop (SIGINT, SIGTERM); prints 'ready' when it can be called
    Serve {
        #[command(flatten)]
        place: Place,
        /// Stop when standard input ends, too
        #[arg(long)]
        attended: bool,
    },
    /// Call a server, and check each answer
    Call {
        /// How messages make calls
        kind: Kind,
        #[command(flatten)]
        ask: Ask,
        #[command(flatten)]
        place: Place,
    },
    /// Measure calls, one after another; starts the server as a process of its own
    Bench(Bench),
}

#[derive(Args)]
struct Place {
    /// The transport
    #[arg(long, default_value = "doorbell")]
    over: Over,
    /// The name of the domain, or of the socket
    #[arg(long, default_value = "plug-in")]
    name: String,
    #[command(flatten)]
    machine: Machine,
    /// Run on this processor
    #[arg(long, value_name = "CPU")]
    pin: Option<usize>,
}

/// The runtime of the program, the same for both transports.
#[derive(Args, Clone, Copy, Debug)]
pub struct Machine {
    /// Threads of the tokio runtime; with one it is of the kind that runs in the calling thread
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: u32,
}

impl Machine {
    pub(crate) fn runtime(self) -> std::io::Result<tokio::runtime::Runtime> {
        match self.threads {
            1 => tokio::runtime::Builder::new_current_thread().enable_all().build(),
            more => tokio::runtime::Builder::new_multi_thread().worker_threads(more as usize).enable_all().build(),
        }
    }
}

/// Binds this thread, and all threads that it starts from now on, to one processor.
pub(crate) fn pin(processor: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(processor).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)).map_err(|error| {
        format!("can't run on processor {processor}: {error}; say one that this process may use (see taskset -cp $$)").into()
    })
}

/// The whole of a program.
pub fn run<P: Program>() -> ExitCode {
    let matches = Arguments::command().name(P::NAME).about(P::ABOUT).get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match carry_out::<P>(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = error.to_string();
            let mut cause = error.source();
            while let Some(error) = cause {
                text += &format!(": {error}");
                cause = error.source();
            }
            eprintln!("{}: {text}", P::NAME);
            ExitCode::FAILURE
        }
    }
}

fn carry_out<P: Program>(arguments: Arguments) -> Result<()> {
    match arguments {
        Arguments::Serve { place, attended } => {
            if let Some(processor) = place.pin {
                pin(processor)?;
            }
            place.machine.runtime()?.block_on(async {
                let listener = Listener::bind(place.over, &place.name, P::NAME)?;
                let stopped = stopped(attended)?;
                println!("ready");
                tokio::select! {
                    ended = P::serve(listener) => ended,
                    () = stopped => Ok(()),
                }
            })
        }
        Arguments::Call { kind, ask, place } => {
            if let Some(processor) = place.pin {
                pin(processor)?;
            }
            place.machine.runtime()?.block_on(call::<P>(kind, ask, &place))
        }
        Arguments::Bench(bench) => bench::run::<P>(&bench),
    }
}

/// Ends when the server is told to.
fn stopped(attended: bool) -> std::io::Result<impl Future<Output = ()>> {
    let (mut interrupted, mut terminated) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (attends, mut nobody_attends) = tokio::sync::mpsc::channel::<()>(1);
    let mut attends = Some(attends);
    if attended {
        let attends = attends.take();
        // A thread of its own: the runtime would wait for one of its threads that reads.
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            drop(attends);
        });
    }
    Ok(async move {
        let _attends = attends;
        tokio::select! {
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
            _ = nobody_attends.recv() => {}
        }
    })
}

async fn call<P: Program>(kind: Kind, ask: Ask, place: &Place) -> Result<()> {
    let connector = Connector::new(place.over, &place.name, P::NAME)?;
    let mut client = P::connect(connector.clone()).await?;
    let begun = Instant::now();
    let mut count = 0;
    let mut seen = |number, payload: Bytes| {
        if payload != pattern(number, ask.size) {
            return Err(format!("the answer to message {number} is not what was said, of {} bytes", payload.len()).into());
        }
        if count == 0 {
            println!("the first answer took {:.1?}", begun.elapsed());
        }
        count += 1;
        Ok(())
    };
    if kind == Kind::Unary {
        for number in 0..ask.count {
            seen(number, P::echo(&mut client, pattern(number, ask.size)).await?)?;
        }
    } else {
        P::call(&mut client, kind, ask, seen).await?;
    }
    if count != ask.count {
        return Err(format!("{count} answers and not {}: the server ended early", ask.count).into());
    }
    println!("{count} answers of {} bytes in {:.1?}", ask.size, begun.elapsed());
    Ok(())
}
