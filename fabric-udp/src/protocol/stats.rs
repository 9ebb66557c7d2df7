//! The counts of a session and of an endpoint.

use super::LinkId;

/// The counts of one session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Datagrams sent.
    pub datagrams_out: u64,
    /// Packets handed to the driver.
    pub packets_in: u64,
    /// Datagrams counted as lost.
    pub lost: u64,
    /// Datagrams counted as lost that were only late.
    pub spurious: u64,
    /// Bytes of packets and transfers that were sent again.
    pub bytes_again: u64,
    /// Datagrams that had arrived before.
    pub duplicates: u64,
    /// The number of pings after a long silence.
    pub probe_timeouts: u64,
    /// Packets that the driver refused for the moment.
    pub refused: u64,
    /// The bytes that may be under way.
    pub window: u64,
    /// Bytes under way.
    pub under_way: u64,
    /// The size of the largest datagram.
    pub mtu: u64,
    /// Paths that are known to lead to the peer, including the one in use.
    pub paths: u64,
    /// The number of moves to another path.
    pub path_changes: u64,
}

/// The counts of one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointStats {
    /// Datagrams sent, including those of all sessions.
    pub datagrams_out: u64,
    /// Bytes of them.
    pub bytes_out: u64,
    /// Datagrams received, including junk.
    pub datagrams_in: u64,
    /// Bytes of them.
    pub bytes_in: u64,
    /// Datagrams that do not belong to the protocol, or are damaged beyond recognition.
    pub junk: u64,
    /// Datagrams for sessions that do not exist.
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
    /// Answers to strangers that were not sent because too many wait.
    pub answers_dropped: u64,
    /// Sessions opened.
    pub connected: u64,
    /// Sessions closed.
    pub closed: u64,
}

/// The traffic under way on one lane of a session, and its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outstanding {
    /// Packets that were pushed and are not acknowledged yet.
    pub packets: u64,
    /// Their bytes, including the head of each.
    pub bytes: u64,
    /// The capacity of the lane in bytes. `bytes` never exceeds it; when it comes near, a push soon finds no room.
    pub room: u64,
    /// The smoothed round trip of the path in use, in nanoseconds.
    pub round_trip: u64,
    /// The link that the session uses now.
    pub link: LinkId,
}
