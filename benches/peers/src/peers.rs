//! The peers, and whether they are installed.

use crate::plan::{self, Table};
use doorbell_peers::order::{Leg, Over, Player, Work};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The longest active message, in bytes.
const ACTIVE_BYTES: usize = 1 << 10;

/// A transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, Serialize, Deserialize)]
pub enum Who {
    /// The transport that all others are compared with
    #[value(skip)]
    Doorbell,
    /// Doorbell whose teams synchronise before a call returns; collectives only
    Foreground,
    /// Tagged messages and puts of UCX
    Ucx,
    /// Active messages of UCX, up to 1 KiB
    UcxActive,
    /// UCX whose computing process has a helper thread; overlap only
    UcxHelped,
    /// Open MPI
    Mpi,
    /// Open MPI whose computing process has a helper thread; overlap only
    MpiHelped,
    /// Intel MPI
    Impi,
    /// Intel MPI whose computing process has a helper thread; overlap only
    ImpiHelped,
    /// MPICH; collectives only
    Mpich,
    /// iceoryx2
    Iceoryx2,
    /// Aeron over IPC, and over UDP
    Aeron,
    /// A ring of bytes that a program would write for itself
    Ring,
    /// A Unix socket
    Unix,
    /// QUIC, which encrypts, over UDP
    Quinn,
    /// The bare counter barrier
    Floor,
}

impl Who {
    /// All, in the order of the columns.
    pub const ALL: [Who; 16] = [
        Who::Doorbell,
        Who::Foreground,
        Who::Ucx,
        Who::UcxActive,
        Who::UcxHelped,
        Who::Mpi,
        Who::MpiHelped,
        Who::Impi,
        Who::ImpiHelped,
        Who::Mpich,
        Who::Iceoryx2,
        Who::Aeron,
        Who::Ring,
        Who::Unix,
        Who::Quinn,
        Who::Floor,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Who::Doorbell => "Doorbell",
            Who::Foreground => "in the foreground",
            Who::Ucx => "UCX",
            Who::UcxActive => "UCX active messages",
            Who::UcxHelped => "UCX with a helper",
            Who::Mpi => "Open MPI",
            Who::MpiHelped => "Open MPI with a helper",
            Who::Impi => "Intel MPI",
            Who::ImpiHelped => "Intel MPI with a helper",
            Who::Mpich => "MPICH",
            Who::Iceoryx2 => "iceoryx2",
            Who::Aeron => "Aeron",
            Who::Ring => "plain ring",
            Who::Unix => "Unix socket",
            Who::Quinn => "quinn",
            Who::Floor => "bare barrier",
        }
    }

    /// Whether Doorbell is compared with it: it is neither Doorbell nor a floor.
    pub fn is_other(self) -> bool {
        !matches!(self, Who::Doorbell | Who::Foreground | Who::Floor)
    }

    /// Whether a helper thread drives the library while the process computes.
    pub fn is_helped(self) -> bool {
        matches!(self, Who::UcxHelped | Who::MpiHelped | Who::ImpiHelped)
    }

    /// Whether it takes part with messages of this length. Eager active messages are short ones.
    pub fn takes(self, bytes: usize) -> bool {
        self != Who::UcxActive || bytes <= ACTIVE_BYTES
    }

    /// Its name in `install`.
    fn word(self) -> &'static str {
        match self {
            Who::Doorbell | Who::Foreground | Who::Floor => "doorbell",
            Who::Ucx | Who::UcxActive | Who::UcxHelped => "ucx",
            Who::Mpi | Who::MpiHelped => "mpi",
            Who::Impi | Who::ImpiHelped => "impi",
            Who::Mpich => "mpich",
            Who::Iceoryx2 => "iceoryx2",
            Who::Aeron => "aeron",
            Who::Ring => "ring",
            Who::Unix => "unix",
            Who::Quinn => "quinn",
        }
    }
}

/// The program that its processes run.
#[derive(Clone, Debug)]
pub enum Program {
    /// This program.
    This(Player),
    /// This program with a library, started by a launcher.
    Launched {
        /// The launcher.
        launcher: PathBuf,
        /// The library.
        library: PathBuf,
    },
    /// A program of its own.
    Own(PathBuf),
}

/// A transport and its state on this machine.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The transport.
    pub who: Who,
    /// The program to run.
    pub program: Program,
    /// Why it is not installed.
    pub missing: Option<String>,
}

impl Peer {
    /// Whether it is installed and takes part in this table.
    pub fn can(&self, table: Table) -> bool {
        self.missing.is_none() && self.knows(table)
    }

    /// Whether it takes part in any table over this carrier.
    pub fn goes_over(&self, over: Over) -> bool {
        match over {
            Over::Memory => self.who != Who::Quinn,
            Over::Udp => matches!(self.who, Who::Doorbell | Who::Aeron),
            Over::Sealed => matches!(self.who, Who::Doorbell | Who::Quinn),
        }
    }

    /// Whether it takes part in a few tables only.
    pub fn is_special(&self) -> bool {
        matches!(self.who, Who::Foreground | Who::UcxActive | Who::Mpich | Who::Floor) || self.who.is_helped()
    }

    /// Whether it takes part in this table.
    pub fn knows(&self, table: Table) -> bool {
        let does = match table.work {
            Work::Loan => matches!(self.who, Who::Doorbell | Who::Iceoryx2),
            Work::Put => matches!(self.who, Who::Doorbell | Who::Ucx | Who::Mpi | Who::Impi),
            Work::Barrier => matches!(self.who, Who::Doorbell | Who::Mpi | Who::Impi | Who::Mpich | Who::Floor),
            Work::Allreduce | Work::Broadcast => matches!(self.who, Who::Doorbell | Who::Mpi | Who::Impi | Who::Mpich),
            Work::Computing => matches!(self.who, Who::Doorbell | Who::Foreground | Who::Mpi | Who::Impi | Who::Mpich),
            Work::PutOverlap | Work::SendOverlap | Work::ReceiveOverlap => {
                matches!(self.who, Who::Doorbell | Who::Ucx | Who::Mpi | Who::Impi) || self.who.is_helped()
            }
            _ if self.who == Who::Unix => matches!(table.work, Work::Latency | Work::Rate | Work::OneWay),
            Work::Handler => matches!(self.who, Who::Doorbell | Who::UcxActive | Who::Aeron),
            Work::Latency | Work::Batch => !self.is_special() || self.who == Who::UcxActive,
            _ => !self.is_special(),
        };
        does && self.goes_over(table.over)
    }
}

/// The messages of a table that a peer takes part in.
pub fn legs(who: Who, table: Table, quick: bool) -> Vec<Leg> {
    plan::legs(table, quick).into_iter().filter(|leg| who.takes(leg.bytes)).collect()
}

/// Doorbell and the requested others, or all of them.
pub fn find(installed: &Path, only: &[Who]) -> Vec<Peer> {
    let wanted = |who: &Who| *who == Who::Doorbell || only.is_empty() || only.contains(who);
    Who::ALL.into_iter().filter(wanted).map(|who| peer(installed, who)).collect()
}

fn peer(installed: &Path, who: Who) -> Peer {
    let library = |name: &str| installed.join("lib").join(name);
    let program = match who {
        Who::Doorbell => Program::This(Player::Doorbell),
        Who::Foreground => Program::This(Player::Foreground),
        Who::Floor => Program::This(Player::Floor),
        Who::Ucx | Who::UcxActive | Who::UcxHelped => Program::This(Player::Library(library("libpeer-ucx.so"))),
        Who::Mpi | Who::MpiHelped => {
            Program::Launched { launcher: installed.join("venv/bin/mpirun"), library: library("libpeer-mpi.so") }
        }
        Who::Impi | Who::ImpiHelped => {
            Program::Launched { launcher: installed.join("impi/bin/mpiexec"), library: library("libpeer-impi.so") }
        }
        Who::Mpich => Program::Launched { launcher: installed.join("mpich/bin/mpirun"), library: library("libpeer-mpich.so") },
        Who::Iceoryx2 => Program::Own(installed.join("bin/peer-iceoryx2")),
        Who::Aeron => Program::Own(installed.join("bin/peer-aeron")),
        Who::Ring => Program::Own(installed.join("bin/peer-ring")),
        Who::Unix => Program::Own(installed.join("bin/peer-unix")),
        Who::Quinn => Program::Own(installed.join("bin/peer-quinn")),
    };
    let file = match &program {
        Program::This(Player::Library(library)) | Program::Launched { library, .. } => Some(library.clone()),
        Program::This(_) => None,
        Program::Own(path) => Some(path.clone()),
    };
    let missing = match file {
        Some(file) if !file.exists() => Some(
            std::fs::read_to_string(installed.join("missing").join(who.word()))
                .map_or_else(|_| "not installed: run benches/peers/install".into(), |why| why.trim().to_string()),
        ),
        _ => None,
    };
    Peer { who, program, missing }
}
