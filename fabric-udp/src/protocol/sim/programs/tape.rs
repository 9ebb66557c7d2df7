//! The bytes of a program, read one by one.

/// The rest of a program. Zeros follow its end.
pub(super) struct Tape<'p>(&'p [u8]);

impl<'p> Tape<'p> {
    pub fn new(program: &'p [u8]) -> Self {
        Self(program)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    /// A number below `end`, which is at most 256.
    pub fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    pub fn flag(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    /// The next bytes, at most `len`.
    pub fn bytes(&mut self, len: usize) -> &'p [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A number with about as many bits as a byte says, so that all lengths are equally likely.
    pub fn number(&mut self) -> u64 {
        let byte = self.byte();
        match byte {
            0..64 => u64::from(byte),
            64..128 => 1 << (byte - 64),
            128..192 => (1 << (byte - 128)) - 1,
            // The limits of 8, 16, 32 and 64 bits.
            192..224 => u64::MAX >> ((byte & 3) * 16) >> (u64::from(byte >> 2) & 7),
            224.. => u64::from(byte) << 8 | u64::from(self.byte()),
        }
    }
}
