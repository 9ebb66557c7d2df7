//! The packet of a loan: the place of the message, and how to return it.

use doorbell_fabric::Payload;
use doorbell_shm::returns::RETURNS;

/// Blocks begin at multiples of this: a cache line.
pub(crate) const LINE: u64 = 64;

/// The length of a lease in a packet: it fits a cell.
pub(crate) const LEASE_BYTES: usize = 32;

/// One message, lent to one reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    /// The owner's region that has the message.
    pub arena: u32,
    /// The reader's slot, and the generation that returns it.
    pub slot: u16,
    pub generation: u32,
    /// The offset of the message in the region.
    pub offset: u64,
    /// The length of the message in bytes.
    pub len: u64,
}

impl Lease {
    #[inline(always)]
    pub fn encode(&self) -> [u8; LEASE_BYTES] {
        let mut bytes = [0; LEASE_BYTES];
        bytes[0..4].copy_from_slice(&self.arena.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.generation.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.len.to_ne_bytes());
        bytes[24..32].copy_from_slice(&u64::from(self.slot).to_ne_bytes());
        bytes
    }

    /// Decodes a lease. `None` if no correct owner writes it. Does not check whether the arena has these bytes.
    #[inline(always)]
    pub fn decode(payload: Payload<'_>) -> Option<Lease> {
        if payload.len() != LEASE_BYTES {
            return None;
        }
        let mut bytes = [0; LEASE_BYTES];
        payload.copy_to(&mut bytes);
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]));
        let half = |at: usize| u32::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]));
        let slot = u16::try_from(word(24)).ok().filter(|slot| usize::from(*slot) < RETURNS)?;
        let lease = Lease { arena: half(0), slot, generation: half(4), offset: word(8), len: word(16) };
        (lease.generation != 0 && lease.offset.is_multiple_of(LINE)).then_some(lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        // Files and many cases: not for Miri.
        #[cfg_attr(miri, ignore)]
        fn leases_are_what_they_were_or_nothing(arena: u32, slot in 0_u16..RETURNS as u16, generation in 1_u32.., line in 0_u64..1 << 50, len: u64, at in 0_usize..LEASE_BYTES, byte: u8) {
            let lease = Lease { arena, slot, generation, offset: line * LINE, len };
            let mut bytes = lease.encode();
            prop_assert_eq!(Lease::decode(Payload::private(&bytes)), Some(lease));
            prop_assert_eq!(Lease::decode(Payload::private(&bytes[1..])), None);
            bytes[at] = byte;
            if let Some(other) = Lease::decode(Payload::private(&bytes)) {
                prop_assert!(usize::from(other.slot) < RETURNS && other.generation != 0 && other.offset % LINE == 0);
            }
        }
    }
}
