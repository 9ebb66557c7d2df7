//! The secret of a domain, and the proofs and checksums of datagrams.

use crate::protocol::cipher::mac;
use crate::protocol::config::Config;
use twox_hash::XxHash3_64;

const PROOF: usize = 16;
const CHECK: usize = 8;

/// A public key: its proofs only detect damage.
pub(super) const OPEN_PROOF: [u8; 32] = [0; 32];

/// A secret that only the nodes of a domain know; without a key, a public one.
pub(crate) struct DomainSecret {
    pub domain: u64,
    pub key: Option<[u8; 32]>,
    proof: [u8; 32],
}

impl DomainSecret {
    pub fn new(config: &Config) -> Self {
        let name = mac(&OPEN_PROOF, &[b"doorbell domain", config.domain.as_bytes()]);
        let key = config.key.as_ref().map(|key| key.0);
        Self {
            domain: u64::from_le_bytes(*name.first_chunk().expect("32 bytes")),
            proof: key.map_or(OPEN_PROOF, |key| mac(&key, &[b"doorbell proof"])),
            key,
        }
    }

    /// A datagram of these parts and their proof. `openly`: for a receiver without the key.
    pub(super) fn prove(&self, openly: bool, parts: &[&[u8]]) -> Vec<u8> {
        let mut datagram = parts.concat();
        let tag = mac(if openly { &OPEN_PROOF } else { &self.proof }, &[&datagram]);
        datagram.extend_from_slice(&tag[..PROOF]);
        let check = XxHash3_64::oneshot(&datagram);
        datagram.extend_from_slice(&check.to_le_bytes());
        datagram
    }

    /// The proven bytes of a datagram that is [`undamaged`], if the proof is right.
    pub(super) fn check<'d>(&self, datagram: &'d [u8], openly: bool) -> Option<&'d [u8]> {
        let (body, proof) = datagram.split_at_checked(datagram.len().checked_sub(PROOF)?)?;
        let tag = mac(if openly { &OPEN_PROOF } else { &self.proof }, &[body]);
        aws_lc_rs::constant_time::verify_slices_are_equal(&tag[..PROOF], proof).ok()?;
        Some(body)
    }
}

/// The datagram without its checksum. The checksum tells damage from strangers.
pub(super) fn undamaged(datagram: &[u8]) -> Option<&[u8]> {
    let (rest, check) = datagram.split_last_chunk::<CHECK>()?;
    (XxHash3_64::oneshot(rest).to_le_bytes() == *check).then_some(rest)
}
