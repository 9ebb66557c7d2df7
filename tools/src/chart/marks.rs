//! The words of the marks of axes.

use crate::nodes::short;

/// A time of an axis, which is a power of ten.
pub fn round_time(ns: f64) -> String {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")];
    // A power may be a little below its unit.
    let (unit, name) = units.into_iter().find(|(unit, _)| ns >= unit * 0.999).unwrap_or((1.0, "ns"));
    format!("{:.0} {name}", ns / unit)
}

/// A number of an axis, without digits behind the point that are zero.
pub fn round_number(value: f64) -> String {
    short(value).replace(".0", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_axes_are_short() {
        for (ns, text) in
            [(1.0, "1 ns"), (100.0, "100 ns"), (1e3, "1 µs"), (1e5, "100 µs"), (10_f64.powi(7), "10 ms"), (1e9, "1 s")]
        {
            assert_eq!(round_time(ns), text);
        }
        for (value, text) in [(0.0, "0"), (10_000.0, "10k"), (2500.0, "2.5k"), (0.5, "0.5")] {
            assert_eq!(round_number(value), text);
        }
    }
}
