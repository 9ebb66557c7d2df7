//! Remembers from which address to answer a peer.
//!
//! A socket that is bound to all addresses of a machine answers from the address that the routes prefer, which may differ from
//! the one that the peer wrote to. So a table of fixed size remembers that address for each peer. A stranger that sends from many
//! addresses can make it forget entries, so that an answer leaves from the preferred address, but cannot make it grow.

#![forbid(unsafe_code)]

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering, fence};

const ENTRIES: usize = 1024;

/// The entry of one peer. The thread that made its sequence odd writes it.
#[derive(Default)]
struct Entry {
    /// Odd while the rest is being written.
    sequence: AtomicU64,
    /// The hash of the peer's address under a secret key; 0 if the entry is empty.
    tag: AtomicU64,
    local: [AtomicU64; 2],
}

/// The table.
pub struct Sources {
    entries: Box<[Entry]>,
    hasher: RandomState,
}

impl Sources {
    pub fn new() -> Self {
        Self { entries: (0..ENTRIES).map(|_| Entry::default()).collect(), hasher: RandomState::new() }
    }

    /// The local address that the peer wrote to last.
    pub fn find(&self, peer: SocketAddr) -> Option<IpAddr> {
        let (tag, entry) = self.entry(peer);
        let before = entry.sequence.load(Ordering::Acquire);
        let (found, local) = (entry.tag.load(Ordering::Relaxed), entry.local.each_ref().map(|half| half.load(Ordering::Relaxed)));
        // Read the words before checking the sequence again; a writer makes the sequence odd before it writes them.
        fence(Ordering::Acquire);
        let whole = before.is_multiple_of(2) && entry.sequence.load(Ordering::Relaxed) == before;
        (whole && found == tag).then(|| {
            let bits = u128::from(local[0]) << 64 | u128::from(local[1]);
            Ipv6Addr::from(bits).to_canonical()
        })
    }

    /// Records that the peer wrote to this address.
    pub fn note(&self, peer: SocketAddr, local: IpAddr) {
        if self.find(peer) == Some(local) {
            return;
        }
        let (tag, entry) = self.entry(peer);
        let sequence = entry.sequence.load(Ordering::Relaxed);
        if !sequence.is_multiple_of(2) {
            return; // Another thread writes; the peer's next datagram tries again.
        }
        if entry.sequence.compare_exchange(sequence, sequence + 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return;
        }
        fence(Ordering::Release);
        let bits = match local {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        }
        .to_bits();
        entry.tag.store(tag, Ordering::Relaxed);
        entry.local[0].store((bits >> 64) as u64, Ordering::Relaxed);
        entry.local[1].store(bits as u64, Ordering::Relaxed);
        entry.sequence.store(sequence + 2, Ordering::Release);
    }

    fn entry(&self, peer: SocketAddr) -> (u64, &Entry) {
        let hash = self.hasher.hash_one(peer);
        (hash | 1, &self.entries[(hash >> 32) as usize % ENTRIES])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_found_until_it_changes() {
        let sources = Sources::new();
        let peer = SocketAddr::from(([10, 0, 0, 1], 7));
        assert_eq!(sources.find(peer), None);
        for local in [IpAddr::from([127, 0, 0, 2]), IpAddr::from([127, 0, 0, 3]), "fe80::1".parse().unwrap()] {
            sources.note(peer, local);
            assert_eq!(sources.find(peer), Some(local));
        }
        assert_eq!(sources.find(SocketAddr::from(([10, 0, 0, 2], 7))), None);
    }

    #[test]
    fn no_half_written_address_is_found() {
        let sources = Sources::new();
        let peer = SocketAddr::from(([10, 0, 0, 1], 7));
        let local = |n: u16| IpAddr::from(Ipv6Addr::from([0xfd00 | n, n, n, n, n, n, n, n]));
        std::thread::scope(|scope| {
            for n in 1..3 {
                let sources = &sources;
                scope.spawn(move || (0..20_000).for_each(|_| sources.note(peer, local(n))));
            }
            for _ in 0..20_000 {
                assert!(sources.find(peer).is_none_or(|found| found == local(1) || found == local(2)));
            }
        });
    }
}
