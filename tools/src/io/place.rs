//! Names of files on a command line.

use crate::exit::Failure;
use doorbell::NodeId;
use doorbell::io::{IoClient, IoClientBuilder};
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A file: of this machine, or of an I/O node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A path of this machine.
    Here(PathBuf),
    /// A path in the directory that a node serves.
    There(There),
}

/// A path in the directory that a node serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct There {
    /// The node; `None`: the only node with the role io.
    pub node: Option<NodeId>,
    /// The path.
    pub path: PathBuf,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let Some((node, path)) = word.split_once(':') else { return Ok(Self::Here(word.into())) };
        let there = |node, path: &str| Ok(Self::There(There { node, path: if path.is_empty() { "." } else { path }.into() }));
        match node {
            "io" => there(None, path),
            _ if !node.is_empty() && node.bytes().all(|byte| byte.is_ascii_digit()) => match node.parse() {
                Ok(node) => there(Some(node), path),
                Err(error) => Err(format!("{error}; hint: write ./{word} for a file of this machine")),
            },
            _ => Ok(Self::Here(word.into())),
        }
    }
}

impl FromStr for There {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word.parse()? {
            Place::There(there) => Ok(there),
            Place::Here(_) => {
                Err("it is a file of this machine; hint: io:PATH is one of the I/O node, 3:PATH one of node 3".into())
            }
        }
    }
}

impl fmt::Display for There {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node {
            Some(node) => write!(f, "{node}:{}", self.path.display()),
            None => write!(f, "io:{}", self.path.display()),
        }
    }
}

impl There {
    /// Another path of the same node.
    pub fn at(&self, path: impl AsRef<Path>) -> Self {
        Self { node: self.node, path: path.as_ref().to_owned() }
    }

    /// Becomes a client of the node.
    pub fn connect(&self, builder: IoClientBuilder) -> Result<IoClient, Failure> {
        let builder = self.node.into_iter().fold(builder, IoClientBuilder::server);
        builder.connect().map_err(|error| {
            let hint = match (error.kind(), error.raw_os_error()) {
                (ErrorKind::NotFound, _) => "start one with `doorbell io serve DIR`; `doorbell ls` shows the nodes",
                (_, Some(libc::EUSERS)) => {
                    "it has as many clients as it serves, or this node has its half of them; use fewer clients here, or serve more with `doorbell io serve --clients`"
                }
                (_, Some(libc::EPROTONOSUPPORT)) => "it is of another version; use the same on both sides",
                (ErrorKind::TimedOut, _) => "it may be stopped, or have much to do; try again, or give it more --patience",
                _ => "",
            };
            Failure::failed(format!("cannot become a client of {self}: {error}"), hint).see(&error)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_that_people_write() {
        let there = |node: Option<u16>, path: &str| Place::There(There { node: node.map(NodeId), path: path.into() });
        let here = |path: &str| Place::Here(path.into());
        for (word, place) in [
            ("io:a/b", there(None, "a/b")),
            ("io:", there(None, ".")),
            ("3:x", there(Some(3), "x")),
            ("0:", there(Some(0), ".")),
            ("io:a:b", there(None, "a:b")),
            ("a", here("a")),
            ("./3:x", here("./3:x")),
            ("/tmp/io:x", here("/tmp/io:x")),
            ("c:x", here("c:x")),
            (":x", here(":x")),
        ] {
            assert_eq!(word.parse(), Ok(place), "{word}");
        }
        assert!("1024:x".parse::<Place>().is_err() && "99999999:x".parse::<Place>().is_err());
        assert!("x".parse::<There>().is_err());
    }
}
