//! The two ends of a bridge: it accepts connections at one and connects at the other.

use super::{Connection, Link, Listener, Place, Tally, add, cut};
use crate::exit::Failure;
use doorbell::{NodeId, StreamBuilder};
use std::fmt;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The first and the longest time between two attempts to reach a socket.
const AGAIN: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(500)];
/// The pause before accepting again when the system has no resources left.
const SHORTAGE: Duration = Duration::from_millis(100);

/// A service, of one node or of any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub node: Option<NodeId>,
    pub name: String,
}

/// Checks the name of a service.
pub fn name(word: &str) -> Result<String, String> {
    match word.len() {
        1..=255 => Ok(word.to_owned()),
        _ => Err("it is no name of a service; hint: 1 to 255 bytes".into()),
    }
}

impl FromStr for Service {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word.split_once(':') {
            Some((node, of)) if !node.is_empty() && node.bytes().all(|byte| byte.is_ascii_digit()) => {
                Ok(Self { node: Some(node.parse().map_err(|why| format!("{why}"))?), name: name(of)? })
            }
            _ => Ok(Self { node: None, name: name(word)? }),
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node {
            Some(node) => write!(f, "{node}:{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// Accepts at one side, and connects at the other.
pub enum Bridge {
    To { listener: Listener, connector: StreamBuilder },
    From { listener: doorbell::Listener, place: Place, patience: Duration },
}

/// The way to the other side of an accepted connection.
type Connecting = Pin<Box<dyn Future<Output = Result<Link, String>> + Send>>;

impl Bridge {
    /// Accepts connections, `most` at a time, and starts tasks that carry them. Returns when it can never accept again.
    pub async fn accept(&self, most: u32, tally: &Arc<Tally>, tasks: &mut JoinSet<()>) -> Failure {
        let room = Arc::new(Semaphore::new(most as usize));
        loop {
            let place = room.clone().acquire_owned().await;
            // Drops finished tasks.
            while tasks.try_join_next().is_some() {}
            let connecting = match self.next(tally).await {
                Ok(connecting) => connecting,
                Err(failure) => return failure,
            };
            let tally = tally.clone();
            tasks.spawn(async move {
                match connecting.await {
                    Ok(link) => {
                        add(&tally.connections);
                        if let Err(trouble) = link.carry(&tally).await {
                            tally.is_cut(&trouble);
                        }
                    }
                    Err(why) => tally.fails(why),
                }
                drop(place);
            });
        }
    }

    /// Waits for a connection. A connection whose other side cannot be reached is cut off.
    async fn next(&self, tally: &Tally) -> Result<Connecting, Failure> {
        match self {
            Bridge::To { listener, connector } => loop {
                let socket = match listener.accept().await {
                    Ok(socket) => socket,
                    Err(error) => {
                        tally.warn(format_args!("could not accept a connection: {error}; trying again"));
                        tokio::time::sleep(SHORTAGE).await;
                        continue;
                    }
                };
                let connector = connector.clone();
                return Ok(Box::pin(async move {
                    let stream = connector.connect_async().await.inspect_err(|_| cut(&socket));
                    stream.map(|stream| Link::new(socket, stream)).map_err(|error| error.to_string())
                }));
            },
            Bridge::From { listener, place, patience } => {
                let (stream, _) = listener.accept_async().await.map_err(|error| {
                    let what = format!("can't offer '{}' any more: {error}", listener.service());
                    Failure::failed(what, "start it again").see(&error)
                })?;
                let (place, patience) = (place.clone(), *patience);
                Ok(Box::pin(async move {
                    match reach(&place, patience).await {
                        Ok(socket) => Ok(Link::new(socket, stream)),
                        Err(why) => {
                            stream.abort();
                            Err(why)
                        }
                    }
                }))
            }
        }
    }
}

/// Connects to a socket. Tries again until the timeout, because the server may be starting.
async fn reach(place: &Place, patience: Duration) -> Result<Connection, String> {
    let deadline = Instant::now() + patience;
    let mut pause = AGAIN[0];
    loop {
        // At least once, even with a short timeout.
        let left = deadline.saturating_duration_since(Instant::now()).max(AGAIN[0]);
        let why = match tokio::time::timeout(left, place.connect()).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "nobody answers".into(),
        };
        tracing::debug!("could not connect to {place}: {why}");
        if Instant::now() + pause >= deadline {
            return Err(format!("nothing at {place} accepts connections within {patience:?}: {why}; start the server there"));
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(AGAIN[1]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_that_people_write() {
        let service = |node: Option<u16>, name: &str| Service { node: node.map(NodeId), name: name.into() };
        for (word, found) in [
            ("redis", service(None, "redis")),
            ("3:redis", service(Some(3), "redis")),
            ("0:a:b", service(Some(0), "a:b")),
            ("a:b", service(None, "a:b")),
            (":b", service(None, ":b")),
        ] {
            assert_eq!(word.parse(), Ok(found.clone()), "{word}");
            assert_eq!(found.to_string(), word);
        }
        for word in ["", "3:", "70000:x", &"x".repeat(256)] {
            assert!(word.parse::<Service>().is_err(), "{word}");
        }
    }
}
