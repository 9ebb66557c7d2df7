//! Sizes on a command line: `8`, `64KiB`, `1MB`.

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Bytes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub usize);

/// The longest message that can be measured.
pub const MOST: usize = 1 << 30;

const UNITS: [(&str, usize); 7] =
    [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("kB", 1_000), ("MB", 1_000_000), ("GB", 1_000_000_000)];

/// Why a word is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The word does not begin with a number.
    #[error("it does not begin with a number; hint: sizes look like 8, 64KiB or 1MB")]
    NoNumber,
    /// The letters are no unit.
    #[error("'{0}' is not a unit; hint: units are B, KiB, MiB and GiB, and kB, MB and GB for powers of ten")]
    UnknownUnit(String),
    /// The size is larger than any message that can be measured.
    #[error("that is too much; hint: messages have 1GiB at most")]
    TooLarge,
}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(word: &str) -> Result<Self, SizeError> {
        let word = word.trim();
        let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
        if digits == 0 {
            return Err(SizeError::NoNumber);
        }
        let unit = match word[digits..].trim() {
            "" => 1,
            unit => {
                let known = UNITS.iter().find(|(name, _)| *name == unit);
                known.ok_or_else(|| SizeError::UnknownUnit(unit.into()))?.1
            }
        };
        // Digits fail to parse only if there are too many of them.
        let bytes = word[..digits].parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
        bytes.filter(|bytes| *bytes <= MOST).map(Size).ok_or(SizeError::TooLarge)
    }
}

impl Size {
    /// A size from a number, which may be larger than any size.
    pub fn saturating(bytes: u64) -> Self {
        Self(usize::try_from(bytes).unwrap_or(usize::MAX))
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A number of bytes, or a word: `64` or `"64KiB"`. A number may be larger than any size.
impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as 64 or \"64KiB\"")
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size::saturating(bytes))
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Size, E> {
                word.parse().map_err(|_| E::invalid_value(de::Unexpected::Str(word), &self))
            }
        }
        deserializer.deserialize_any(Number)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, unit) =
            UNITS[..4].iter().rev().find(|(_, unit)| self.0 >= *unit && self.0.is_multiple_of(*unit)).unwrap_or(&UNITS[0]);
        f.pad(&format!("{} {name}", self.0 / unit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_people_write() {
        for (word, bytes) in [
            ("0", 0),
            ("8", 8),
            ("8B", 8),
            ("4KiB", 4096),
            ("4 KiB", 4096),
            ("2MiB", 2 << 20),
            ("1GiB", 1 << 30),
            ("64kB", 64_000),
            ("1MB", 1_000_000),
            ("1GB", 1_000_000_000),
        ] {
            assert_eq!(word.parse(), Ok(Size(bytes)), "{word}");
        }
    }

    #[test]
    fn words_that_are_no_sizes() {
        for (word, error) in [
            ("", SizeError::NoNumber),
            ("KiB", SizeError::NoNumber),
            ("-1", SizeError::NoNumber),
            ("4kib", SizeError::UnknownUnit("kib".into())),
            ("4K", SizeError::UnknownUnit("K".into())),
            ("1.5MiB", SizeError::UnknownUnit(".5MiB".into())),
            ("2GiB", SizeError::TooLarge),
            ("99999999999999999999999", SizeError::TooLarge),
            ("99999999999999999GiB", SizeError::TooLarge),
        ] {
            assert_eq!(word.parse::<Size>(), Err(error), "{word}");
        }
    }

    #[test]
    fn sizes_are_written_in_the_largest_unit_that_fits() {
        for (bytes, word) in [
            (0, "0 B"),
            (8, "8 B"),
            (1000, "1000 B"),
            (1024, "1 KiB"),
            (1536, "1536 B"),
            (64 << 10, "64 KiB"),
            (4 << 20, "4 MiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), word);
        }
        assert_eq!(format!("{:>8}", Size(8)), "     8 B");
    }
}
