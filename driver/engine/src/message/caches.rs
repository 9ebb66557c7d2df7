//! The sizes of the first processor's caches, as the system tells them.

use doorbell_fabric::world;
use std::path::Path;

/// The level of a cache that one core has for itself.
pub const OWN: u8 = 2;
/// The level of a cache that several cores share.
pub const SHARED: u8 = 3;

/// The bytes of the cache of this level.
pub fn bytes(level: u8) -> Option<usize> {
    const TEXT_MOST: u64 = 32;
    // Miri has no files.
    if cfg!(miri) {
        return None;
    }
    let read = |index: usize, name: &str| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}");
        String::from_utf8(world::read(Path::new(&path), TEXT_MOST).ok()?).ok()
    };
    let is_it = |index: &usize| read(*index, "level").is_some_and(|text| text.trim().parse() == Ok(level));
    kibibytes(&read((0..8).find(is_it)?, "size")?)
}

/// A size as the system writes it: `512K`.
pub fn kibibytes(text: &str) -> Option<usize> {
    text.trim().strip_suffix('K')?.parse::<usize>().ok()?.checked_mul(1024)
}
