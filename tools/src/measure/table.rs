//! Times as text for people.

/// A time in a unit that suits it, with about three significant digits.
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns < 9_999.5 => format!("{ns:.*} ns", usize::from(ns < 999.95)),
        ns if ns < 9_999_500.0 => format!("{:.*} µs", usize::from(ns < 999_950.0), ns / 1e3),
        ns if ns < 9_999_500_000.0 => format!("{:.*} ms", usize::from(ns < 999_950_000.0), ns / 1e6),
        ns => format!("{:.1} s", ns / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_fitting_unit() {
        for (ns, text) in [
            (0.0, "0.0 ns"),
            (66.54, "66.5 ns"),
            (999.96, "1000 ns"),
            (1234.5, "1234 ns"),
            (12_345.0, "12.3 µs"),
            (999_960.0, "1000 µs"),
            (12_345_678.0, "12.3 ms"),
            (3e10, "30.0 s"),
        ] {
            assert_eq!(time(ns), text);
        }
    }
}
