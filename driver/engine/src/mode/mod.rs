//! Modes: how data goes, as requested and as chosen.
//!
//! A **mode** is a fabric, one of its links, and a protocol: shared memory transfer, DMA put, remote get. Each call has a
//! default mode (`send`: shared memory transfer; `put`: DMA put). A program may [request](ModeRequest) another, completely or
//! in part. A [`Policy`] decides from the present [state of the links](LinkMetrics) whether to follow the request. The
//! [`Receipt`] of a message tells what was requested, what was decided and why, with the figures, and which protocol moved how
//! many of its bytes.
//!
//! A node without a policy needs no decisions, and the path of a small message is as short as ever. A request by name is then
//! followed, or is an error.
//!
//! [`Thresholds`] is the policy that comes with Doorbell:
//!
//! ```
//! use doorbell::mode::{Dma, Fabric, Thresholds};
//! // The lengths that `doorbell tune` found here, and other queue limits.
//! let policy = Thresholds::tuned().depth_high(512).depth_low(256);
//! // Always use DMA from regions where possible, and follow each request by name, however long the queues are.
//! let strict = Thresholds::new().dma(Fabric::Shm, true, Dma::From(0)).strict(true);
//! ```
//!
//! A long message may go over several links of a network at once, with a part of it on each: [`Decision::beside`] names them.
//!
//! Messages keep their order whatever modes they take. Each message has a number among those of its two nodes and priority, and
//! the target delivers what comes over several links in the order of the numbers.

mod links;
#[cfg(not(loom))]
mod log;
mod means;
#[cfg(not(loom))]
mod modes;
#[cfg(not(loom))]
mod monitor;
mod policy;
mod reason;
mod receipt;
mod thresholds;
mod what;

pub use links::Links;
#[cfg(not(loom))]
pub(crate) use links::NETWORK_LINKS;
pub use means::Mean;
#[cfg(not(loom))]
pub(crate) use modes::Modes;
#[cfg(not(loom))]
pub use monitor::{DecisionShown, LatencySum, LinkMeans, LinkShown, ModeAggregate, ModeCounts, ModeMonitor, SIZE_CLASSES};
pub use policy::{Decision, LinkView, Policy, Question};
pub use reason::{Reason, Refusal};
pub use receipt::{MovedBytes, Receipt};
pub use thresholds::Thresholds;
pub use what::{Call, Dma, Fabric, LINKS_MAX, LinkMetrics, Mode, ModeRequest, Protocol};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        // Many cases: not for Miri.
        #[cfg_attr(miri, ignore)]
        fn a_request_is_read_as_it_is_written(fabric in 0..3_usize, link in proptest::option::of(any::<u8>()), protocol in 0..5_usize) {
            let fabric = [None, Some(Fabric::Shm), Some(Fabric::Udp)][fabric];
            let protocol = Protocol::ALL.get(protocol).copied();
            let request = ModeRequest { fabric, link, protocol };
            prop_assert_eq!(request.to_string().parse::<ModeRequest>(), Ok(request));
        }
    }

    #[test]
    fn a_request_that_says_something_twice_or_nothing_known_is_refused() {
        for words in ["", "shm/udp", "1/2", "put/get", "udp/", "udp/256", "tcp", "any/udp"] {
            assert!(words.parse::<ModeRequest>().is_err(), "{words}");
        }
        assert_eq!("put/udp".parse(), Ok(ModeRequest::fabric(Fabric::Udp).protocol(Protocol::Put)));
    }

    #[test]
    fn occupancy_is_of_what_is_scarcer() {
        let metrics = LinkMetrics { depth: 8, bytes: 1, room: 100, places: 16, transfers: 0, still: 0 };
        assert_eq!((metrics.occupancy(), LinkMetrics::default().occupancy()), (500, 0));
        assert_eq!(LinkMetrics { bytes: u64::MAX, room: 7, ..metrics }.occupancy(), 1000);
    }
}
