//! What a session and an endpoint count.

use super::LinkId;

/// Counted by one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Datagrams sent.
    pub datagrams_out: u64,
    /// Bytes of them.
    pub bytes_out: u64,
    /// Datagrams that were genuine and new.
    pub datagrams_in: u64,
    /// Bytes of them.
    pub bytes_in: u64,
    /// Packets handed to the driver.
    pub packets_in: u64,
    /// Packets taken from the driver.
    pub packets_out: u64,
    /// Datagrams counted as lost.
    pub lost: u64,
    /// Datagrams counted as lost that had only been late.
    pub spurious: u64,
    /// Bytes of packets and transfers sent again.
    pub bytes_again: u64,
    /// Datagrams that had come before.
    pub duplicates: u64,
    /// Datagrams whose tag or checksum was wrong.
    pub corrupted: u64,
    /// Times that nothing was heard for long and something was sent to find out.
    pub probe_timeouts: u64,
    /// Packets that the driver refused for the moment.
    pub refused: u64,
    /// Smoothed round trip, in nanoseconds.
    pub round_trip: u64,
    /// The shortest round trip, in nanoseconds.
    pub round_trip_least: u64,
    /// Bytes that may be under way.
    pub window: u64,
    /// Bytes under way.
    pub under_way: u64,
    /// Bytes of the largest datagram.
    pub mtu: u64,
    /// Paths that are known to lead to the peer, the one in use included.
    pub paths: u64,
    /// Times that the session went on by another path.
    pub path_changes: u64,
}

/// Counted by one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointStats {
    /// Datagrams sent, those of all sessions included.
    pub datagrams_out: u64,
    /// Bytes of them.
    pub bytes_out: u64,
    /// Datagrams received, junk included.
    pub datagrams_in: u64,
    /// Bytes of them.
    pub bytes_in: u64,
    /// Datagrams that are none of the protocol's, or damaged beyond recognition.
    pub junk: u64,
    /// Datagrams for sessions that there are not.
    pub stray: u64,
    /// Datagrams whose tag or checksum was wrong.
    pub corrupted: u64,
    /// Datagrams of a session from an address that is not its peer's.
    pub misplaced: u64,
    /// Requests answered with a cookie.
    pub retries: u64,
    /// Requests with a cookie that was wrong or too old.
    pub bad_cookies: u64,
    /// Requests refused.
    pub rejected: u64,
    /// Answers to strangers that were not sent, as too many wait.
    pub answers_dropped: u64,
    /// Sessions opened.
    pub connected: u64,
    /// Sessions closed.
    pub closed: u64,
}

/// What is under way on one lane of a session, and how it goes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outstanding {
    /// Packets that were pushed and are not acknowledged yet.
    pub packets: u64,
    /// Their bytes, with what goes before each.
    pub bytes: u64,
    /// Bytes that the lane holds in all: `bytes` never exceeds it, and much nearer means that a push soon finds no room.
    pub room: u64,
    /// The smoothed round trip of the path in use, in nanoseconds.
    pub round_trip: u64,
    /// The link by which the session goes now.
    pub link: LinkId,
}
