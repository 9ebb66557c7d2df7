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

/// Half of a cache of so many bytes. A machine that tells no plausible size has none that could be filled.
pub fn half_of(cache: Option<usize>) -> usize {
    cache.filter(|bytes| *bytes >= 1 << 20).map_or(usize::MAX, |bytes| bytes / 2)
}

/// Whether several messages of `len` bytes fill this part of a cache: one, and `others`. A lone message does not: its receiver reads it next.
pub fn fills(part: usize, len: usize, others: usize) -> bool {
    others > 0 && len.saturating_mul(1 + others) >= part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_messages_fill_half_of_the_shared_cache() {
        let half = half_of(Some(32 << 20));
        assert_eq!([2, 3, 7].map(|others| fills(half, 4 << 20, others)), [false, true, true]);
        assert!(!fills(half, 1 << 30, 0) && fills(half, 16 << 20, 1) && !fills(half, 1 << 20, 8));
        for unknown in [None, Some(0), Some(1000)] {
            assert!(!fills(half_of(unknown), usize::MAX - 1, 0) && !fills(half_of(unknown), 1 << 40, 64), "{unknown:?}");
        }
    }
}
