//! Randomness from one seed, so that the run of a whole network can be repeated.

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// A stream of random numbers that cannot be predicted without the seed.
pub(crate) struct Random(ChaCha20Rng);

impl Random {
    pub fn new(seed: [u8; 32]) -> Self {
        Self(ChaCha20Rng::from_seed(seed))
    }

    pub fn u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.fill_bytes(&mut bytes);
        bytes
    }

    /// An independent stream.
    pub fn child(&mut self) -> Random {
        Random::new(self.array())
    }
}

impl snow::types::Random for Random {
    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), snow::Error> {
        self.0.fill_bytes(bytes);
        Ok(())
    }
}
