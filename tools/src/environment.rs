//! The variables by which `doorbell run` tells a program its place. The commands read them as defaults, too.

use crate::exit::{Explain, Failure};
use crate::text::DIRECTORY;
use doorbell::{Address, FabricKind, NodeId, PortKind, Progress, Role, Space, Wait};
use doorbell_udp::fabric::ParseAddressError;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::OnceLock;
use tracing_subscriber::filter::LevelFilter;

/// The domain's name.
pub const DOMAIN: &str = "DOORBELL_DOMAIN";
/// The id of the node.
pub const NODE: &str = "DOORBELL_NODE";
/// The number of nodes that were started together.
pub const NODES: &str = "DOORBELL_NODES";
/// The role of the node.
pub const ROLE: &str = "DOORBELL_ROLE";
/// Which thread turns the engine.
pub const PROGRESS: &str = "DOORBELL_PROGRESS";
/// How threads wait.
pub const WAIT: &str = "DOORBELL_WAIT";
/// The fabrics to use.
pub const FABRIC: &str = "DOORBELL_FABRIC";
/// The UDP addresses at which the node listens.
pub const LISTEN: &str = "DOORBELL_LISTEN";
/// UDP addresses of nodes that must be up.
pub const CONNECT: &str = "DOORBELL_CONNECT";
/// UDP addresses of nodes that may be up.
pub const SEEK: &str = "DOORBELL_SEEK";
/// How to move datagrams.
pub const PORT: &str = "DOORBELL_PORT";
/// The file with the domain's key.
pub const KEY_FILE: &str = "DOORBELL_KEY_FILE";
/// The directory of the segments.
pub const SPACE: &str = "DOORBELL_SPACE";
/// The level of the libraries' messages.
const LOG: &str = "DOORBELL_LOG";

/// Refuses a malformed environment before the command does anything.
pub fn check() -> Result<(), Failure> {
    let _: Option<Domain> = variable(DOMAIN)?;
    let _: Option<NodeId> = variable(NODE)?;
    let _: Option<Nodes> = variable(NODES)?;
    let _: Option<Role> = variable(ROLE)?;
    let _: Option<Progress> = variable(PROGRESS)?;
    let _: Option<Wait> = variable(WAIT)?;
    let _: Option<FabricKind> = variable(FABRIC)?;
    let _: Option<PortKind> = variable(PORT)?;
    let _ = log()?;
    for addresses in [LISTEN, CONNECT, SEEK] {
        let _: Option<Addresses> = variable(addresses)?;
    }
    Ok(())
}

/// The value of the command line, else that of the environment variable, else the default.
pub fn chosen<T: FromStr<Err: Display> + Default>(given: Option<T>, name: &str) -> Result<T, Failure> {
    Ok(given.or(variable(name)?).unwrap_or_default())
}

/// The file with the domain's key, from the command line, else from the environment.
pub fn key_file(said: Option<PathBuf>) -> Result<Option<PathBuf>, Failure> {
    Ok(said.or(variable(KEY_FILE)?))
}

/// The directory that was chosen.
static CHOSEN: OnceLock<PathBuf> = OnceLock::new();

/// Chooses the directory of the segments: that of the command line, else that of the environment, else the usual one.
pub fn choose_space(said: Option<&Path>) -> Result<(), Failure> {
    let name = if said.is_some() { "--space" } else { SPACE };
    let Some(directory) = said.map(Path::to_owned).or_else(|| std::env::var_os(SPACE).map(PathBuf::from)) else { return Ok(()) };
    let what = format!("{name}: '{}' cannot have segments", directory.display());
    let hint = "name a directory on a tmpfs, in which this user may write";
    // Programs in other directories get the path, too.
    if said.is_none() && !directory.is_absolute() {
        return Err(Failure::usage(format!("{what}: it is no absolute path"), hint));
    }
    let found = directory
        .canonicalize()
        .and_then(|found| if found.is_dir() { Ok(found) } else { Err(io::Error::from_raw_os_error(libc::ENOTDIR)) });
    // The command chooses once.
    let _ = CHOSEN.set(found.or_usage(what, hint)?);
    Ok(())
}

/// The directory of the segments.
pub fn directory() -> &'static Path {
    CHOSEN.get().map_or(Path::new(DIRECTORY), PathBuf::as_path)
}

/// The place of the segments.
pub fn space() -> Space {
    Space::posix_at(directory())
}

/// Passes the directory of the segments on to a program.
pub fn pass_space(command: &mut Command) -> &mut Command {
    if let Some(directory) = CHOSEN.get() {
        command.env(SPACE, directory);
    }
    command
}

/// The level of the libraries' messages, if the environment sets it.
pub fn log() -> Result<Option<LevelFilter>, Failure> {
    Ok(variable(LOG)?.map(|Log(level)| level))
}

/// A level of messages.
struct Log(LevelFilter);

impl FromStr for Log {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        word.parse().map(Self).map_err(|_| format!("'{word}' is no level: off, error, warn, info, debug or trace"))
    }
}

/// Addresses, with commas between them.
struct Addresses;

impl FromStr for Addresses {
    type Err = ParseAddressError;

    fn from_str(words: &str) -> Result<Self, ParseAddressError> {
        words.split(',').try_for_each(|word| word.parse::<Address>().map(drop)).map(|()| Self)
    }
}

/// The name of a domain, from a command line or from the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain(pub String);

impl FromStr for Domain {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let fits = (1..=64).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        let why = || format!("'{word}' cannot name a domain: use 1 to 64 of the characters A-Z a-z 0-9 _ -");
        if fits { Ok(Self(word.to_owned())) } else { Err(why()) }
    }
}

/// A number of nodes.
struct Nodes;

impl FromStr for Nodes {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let why = || format!("'{word}' is not a number of nodes: from 1 to 1024");
        word.parse().ok().filter(|count| (1..=1024_u16).contains(count)).map(|_| Self).ok_or_else(why)
    }
}

/// The value of an environment variable, if it is set.
pub fn variable<T: FromStr<Err: Display>>(name: &str) -> Result<Option<T>, Failure> {
    let malformed = |why: &dyn Display| {
        Err(Failure::usage(
            format!("the environment variable {name} is malformed: {why}"),
            format!("set it to what it should be, or remove it with `unset {name}`"),
        ))
    };
    match std::env::var(name) {
        Ok(word) => word.parse().map(Some).or_else(|why: T::Err| malformed(&why)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => malformed(&"it is not text"),
    }
}
