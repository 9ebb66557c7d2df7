//! How values become places on an axis, and which values have a mark.

/// How values become places.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scale {
    /// Equal steps, beginning at the lowest value.
    Linear,
    /// Equal steps, beginning at zero.
    FromZero,
    /// Equal ratios, with marks at powers of this base. Only positive values have a place.
    Log(f64),
}

/// The part of an axis that is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    scale: Scale,
    low: f64,
    high: f64,
}

/// The most powers between the ends of an axis. A hostile value must not make a chart without end.
const POWERS: i32 = 64;
/// The largest value that has a place, and the inverse of the smallest one on an axis of ratios.
const MOST: f64 = 1e30;

impl Scale {
    /// Whether a value has a place.
    pub fn takes(self, value: f64) -> bool {
        match self {
            Self::Linear => value.abs() <= MOST,
            Self::FromZero => (0.0..=MOST).contains(&value),
            Self::Log(_) => (1.0 / MOST..=MOST).contains(&value),
        }
    }

    /// A range with room for these values.
    pub fn range(self, values: impl Iterator<Item = f64>) -> Range {
        let (low, high) = values
            .filter(|value| self.takes(*value))
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (value.min(low), value.max(high)));
        let (low, high) = if low > high { (1.0, 1.0) } else { (low, high) };
        let (low, high) = match self {
            Self::Linear => (low, if high > low { high } else { low + low.abs().max(1.0) }),
            Self::FromZero => (0.0, round_up(high)),
            Self::Log(base) => {
                let (below, above) = (low.log(base), high.log(base));
                let (below, above) = ((below + 1e-9).floor().max(above - f64::from(POWERS)), (above - 1e-9).ceil());
                (base.powf(below), base.powf(above.max(below + 1.0)))
            }
        };
        Range { scale: self, low, high }
    }
}

/// The next value from here on that is 1, 2 or 5 times a power of ten, or 1 for zero.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|times| times * power)
        .find(|round| *round >= value * (1.0 - 1e-9))
        .unwrap_or(value)
}

impl Range {
    /// The place of a value: 0 at one end of the axis, 1 at the other.
    pub fn place(&self, value: f64) -> f64 {
        let place = match self.scale {
            Scale::Log(_) => (value / self.low).ln() / (self.high / self.low).ln(),
            _ => (value - self.low) / (self.high - self.low),
        };
        place.clamp(0.0, 1.0)
    }

    /// Some round values, at most about so many.
    pub fn marks(&self, most: usize) -> Vec<f64> {
        let most = most.max(2);
        match self.scale {
            Scale::Log(base) => {
                let first = self.low.log(base).round() as i32;
                let last = (self.high.log(base).round() as i32).min(first.saturating_add(POWERS));
                let step = ((last - first) as usize).div_ceil(most - 1).max(1);
                (first..=last).step_by(step).map(|power| base.powi(power)).collect()
            }
            _ => {
                let step = round_up((self.high - self.low) / (most - 1) as f64);
                let first = (self.low / step - 1e-9).ceil();
                let mark = |number: usize| (first + number as f64) * step;
                (0..most).map(mark).take_while(|mark| *mark <= self.high * (1.0 + 1e-9)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_few_and_inside() {
        for (scale, values, marks) in [
            (Scale::FromZero, vec![3.0, 97.0], vec![0.0, 25.0, 50.0, 75.0, 100.0]),
            (Scale::FromZero, vec![0.0], vec![0.0, 0.25, 0.5, 0.75, 1.0]),
            (Scale::Log(10.0), vec![120.0, 80_000.0], vec![100.0, 1e3, 1e4, 1e5]),
            (Scale::Log(2.0), vec![8.0, 64.0], vec![8.0, 16.0, 32.0, 64.0]),
            (Scale::Linear, vec![-120.0, 0.0], vec![-100.0, -50.0, 0.0]),
        ] {
            assert_eq!(scale.range(values.into_iter()).marks(5), marks, "{scale:?}");
        }
    }

    #[test]
    fn no_value_breaks_an_axis() {
        let odd = [f64::MIN_POSITIVE, f64::MAX, 0.0, -1.0, f64::NAN, f64::INFINITY, u64::MAX as f64, 1.0];
        for scale in [Scale::Linear, Scale::FromZero, Scale::Log(2.0), Scale::Log(10.0)] {
            for values in [&odd[..], &odd[..1], &odd[1..2], &odd[2..3], &odd[6..]] {
                let range = scale.range(values.iter().copied());
                assert!(range.marks(5).len() <= 6, "{scale:?} {values:?}");
                for value in odd.into_iter().filter(|value| scale.takes(*value)) {
                    let place = range.place(value);
                    assert!((0.0..=1.0).contains(&place), "{scale:?} {value}: {place}");
                }
            }
        }
    }

    #[test]
    fn places_go_from_end_to_end() {
        let range = Scale::Log(10.0).range([10.0, 1000.0].into_iter());
        assert_eq!([10.0, 100.0, 1000.0].map(|value| (range.place(value) * 10.0).round()), [0.0, 5.0, 10.0]);
    }
}
