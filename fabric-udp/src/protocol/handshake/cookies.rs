//! Cookies: a node answers a stranger without remembering it.

use super::Hello;
use crate::protocol::cipher::mac;
use crate::protocol::random::Random;
use crate::protocol::time::{MILLI, Nanos};
use crate::protocol::wire::{Address, IntoBytes};
use std::net::SocketAddr;

pub(crate) const COOKIE: usize = 24;
/// How long a cookie is good.
const LIFETIME: Nanos = 10_000 * MILLI;

/// Makes and checks cookies. A cookie carries a stranger's address, so that this endpoint need not remember it.
pub(crate) struct Cookies {
    secret: [u8; 32],
}

impl Cookies {
    pub fn new(random: &mut Random) -> Self {
        Self { secret: random.array() }
    }

    pub fn bake(&self, now: u64, from: SocketAddr, hello: &Hello) -> [u8; COOKIE] {
        let mut cookie = [0; COOKIE];
        cookie[..8].copy_from_slice(&now.to_le_bytes());
        cookie[8..].copy_from_slice(&self.tag(now, from, hello));
        cookie
    }

    fn tag(&self, time: u64, from: SocketAddr, hello: &Hello) -> [u8; 16] {
        let tag = mac(&self.secret, &[&time.to_le_bytes(), Address::from(from).as_bytes(), hello.as_bytes()]);
        *tag.first_chunk().expect("32 bytes")
    }

    /// The age of the cookie, if the cookie is valid.
    pub fn age(&self, now: u64, from: SocketAddr, hello: &Hello, cookie: &[u8; COOKIE]) -> Option<u64> {
        let time = u64::from_le_bytes(*cookie.first_chunk()?);
        let age = now.checked_sub(time).filter(|age| *age <= LIFETIME)?;
        aws_lc_rs::constant_time::verify_slices_are_equal(&cookie[8..], &self.tag(time, from, hello)).ok()?;
        Some(age)
    }
}
