//! What only tests and the simulator may ask of a session.

use super::Session;
use crate::protocol::header::HEADER;
use crate::protocol::time::Time;

impl Session {
    /// A datagram with this body and perhaps this number, that no session would send.
    pub fn forge(&mut self, now: Time, number: Option<u64>, body: &[u8]) -> Vec<u8> {
        let mut datagram = vec![0; HEADER + body.len() + self.cipher.tag()];
        datagram[HEADER..HEADER + body.len()].copy_from_slice(body);
        match number {
            Some(number) => self.cipher.seal(&mut datagram, self.remote, number, 0),
            None => self.finish(now, &mut datagram, 0, None, 0, false, false),
        }
        datagram
    }

    #[cfg(test)]
    pub fn records(&self) -> (usize, usize) {
        self.flight.records()
    }

    pub fn named_there(&self) -> u32 {
        self.remote
    }
}
