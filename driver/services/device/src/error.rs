//! Errors of devices.

use doorbell_engine::kit::{Certainty, Error, ServiceError};
use doorbell_shm::keys::OwnerId;
use std::io::ErrorKind;

/// Why a call on a device failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, strum::EnumDiscriminants)]
#[strum_discriminants(
    name(DeviceErrorAnchor),
    vis(pub(self)),
    derive(strum::IntoStaticStr),
    strum(serialize_all = "kebab-case", prefix = "device-")
)]
#[non_exhaustive]
pub enum DeviceError {
    /// No living process is attached to a device of this name.
    ///
    /// See `errors.md#device-absent`.
    #[error(
        "no living process is attached to it; check the name, attach a process before others send, and open the device again if all its processes had left"
    )]
    Absent,
    /// A living thread has this id.
    ///
    /// See `errors.md#device-taken`.
    #[error("{owner} already is thread {thread} of it; take another id, or drop that thread first")]
    Taken {
        /// The thread id.
        thread: u32,
        /// The owner of the id.
        owner: OwnerId,
    },
    /// The device has as many threads as it can serve.
    ///
    /// See `errors.md#device-crowded`.
    #[error(
        "it already serves {threads} threads, which is its limit; let the process that creates it allow more, with DeviceBuilder::threads"
    )]
    Crowded {
        /// The most threads.
        threads: usize,
    },
    /// All its lanes are taken, or the rest is reserved for other nodes.
    ///
    /// See `errors.md#device-no-lane`.
    #[error(
        "none of its {senders} lanes is left for this node: a node gets another lane only while more lanes are free than it has; drop a sender, or let the process that creates the device allow more, with DeviceBuilder::senders"
    )]
    NoLane {
        /// The number of lanes.
        senders: usize,
    },
    /// The message is longer than the device allows. It was not sent.
    ///
    /// See `errors.md#device-too-long`.
    #[error(
        "a message of {len} bytes is longer than the {max} it takes; send it in parts, put it into a region, or let the process that creates the device allow more, with DeviceBuilder::message_max"
    )]
    TooLong {
        /// The length of the message in bytes.
        len: usize,
        /// The most bytes of a message.
        max: usize,
    },
    /// The buffer is shorter than the message. The message is not lost: the next call with a longer buffer gets it.
    ///
    /// See `errors.md#device-too-small`.
    #[error(
        "the next message has {len} bytes, but the buffer only {capacity}; the message is kept: call again with a longer buffer"
    )]
    TooSmall {
        /// The length of the message in bytes.
        len: usize,
        /// The length of the buffer in bytes.
        capacity: usize,
    },
    /// Another process overwrote or truncated its memory.
    ///
    /// See `errors.md#device-damaged`.
    #[error("another process overwrote or truncated its memory; let all processes detach and attach again")]
    Damaged,
}

impl ServiceError for DeviceError {
    fn anchor(&self) -> &'static str {
        DeviceErrorAnchor::from(self).into()
    }

    fn certainty(&self) -> Certainty {
        match self {
            DeviceError::Taken { .. }
            | DeviceError::Crowded { .. }
            | DeviceError::NoLane { .. }
            | DeviceError::TooLong { .. }
            | DeviceError::TooSmall { .. } => Certainty::DidNotHappen,
            DeviceError::Absent | DeviceError::Damaged => Certainty::Unknown,
        }
    }

    fn io_kind(&self) -> ErrorKind {
        match self {
            DeviceError::Absent => ErrorKind::NotFound,
            DeviceError::Taken { .. } => ErrorKind::AddrInUse,
            DeviceError::Crowded { .. } | DeviceError::NoLane { .. } => ErrorKind::QuotaExceeded,
            DeviceError::TooLong { .. } | DeviceError::TooSmall { .. } => ErrorKind::InvalidInput,
            DeviceError::Damaged => ErrorKind::InvalidData,
        }
    }
}

/// The error of a call on a device.
pub fn fault(operation: &'static str, device: &str, why: DeviceError) -> Error {
    Error::cannot(format_args!("{operation} the device '{device}'"), why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_failed_and_what_it_means() {
        let small = fault("receive from", "d", DeviceError::TooSmall { len: 2, capacity: 1 });
        assert_eq!(
            small.to_string(),
            "cannot receive from the device 'd': the next message has 2 bytes, but the buffer only 1; the message is kept: call \
             again with a longer buffer"
        );
        assert_eq!(small.anchor(), "device-too-small");
        assert_eq!((small.certainty(), small.is_retryable()), (Certainty::DidNotHappen, false));
        assert_eq!(std::io::Error::from(small).kind(), ErrorKind::InvalidInput);
        assert_eq!(fault("send to", "d", DeviceError::Damaged).certainty(), Certainty::Unknown);
    }
}
