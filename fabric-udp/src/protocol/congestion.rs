//! Limits the bytes under way: CUBIC (RFC 9438) with the gentle end of slow start of HyStart++ (RFC 9406).

use super::time::{MILLI, Nanos, Time};

const BETA: f64 = 0.7;
const C: f64 = 0.4;
/// The growth of Reno that gives a CUBIC flow its fair share beside Reno flows.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
const WINDOW_MAX: u64 = 1 << 28;

const HYSTART_SAMPLES: u32 = 8;
const HYSTART_LOW: Nanos = 4 * MILLI;
const HYSTART_HIGH: Nanos = 16 * MILLI;
const HYSTART_ROUNDS: u32 = 5;

/// CUBIC. Windows are in bytes.
#[derive(Default)]
pub(crate) struct Cubic {
    window: f64,
    threshold: f64,
    mtu: f64,
    /// The window at the last loss.
    peak: f64,
    /// The time since when the window grows along the curve, and the time that the curve then takes to the old peak.
    epoch: Option<(Time, f64)>,
    /// The window that Reno would have.
    reno: f64,
    recovery: Option<Time>,
    /// Window, threshold and peak to return to if the loss was a false alarm.
    before_loss: Option<(f64, f64, f64)>,
    slow_start: SlowStart,
}

#[derive(Default)]
struct SlowStart {
    round: Time,
    minimum: Option<Nanos>,
    previous: Option<Nanos>,
    samples: u32,
    /// For gentle growth: the rounds left, and the round trip above which gentle growth is right.
    gentle: Option<(u32, Nanos)>,
}

impl SlowStart {
    /// Whether slow start must end.
    fn on_ack(&mut self, now: Time, sent: Time, latest: Nanos) -> bool {
        if sent >= self.round {
            self.round = now;
            self.previous = self.minimum.take();
            self.samples = 0;
            if let Some((rounds, _)) = &mut self.gentle {
                *rounds = rounds.saturating_sub(1);
                if *rounds == 0 {
                    return true;
                }
            }
        }
        let minimum = self.minimum.map_or(latest, |m| m.min(latest));
        self.minimum = Some(minimum);
        self.samples += 1;
        if self.samples >= HYSTART_SAMPLES
            && let Some(previous) = self.previous
        {
            match self.gentle {
                None if minimum >= previous + (previous / 8).clamp(HYSTART_LOW, HYSTART_HIGH) => {
                    self.gentle = Some((HYSTART_ROUNDS, minimum));
                }
                // The delay was only momentary.
                Some((_, baseline)) if minimum < baseline => self.gentle = None,
                _ => {}
            }
        }
        false
    }
}

impl Cubic {
    pub fn new(window: u64, mtu: usize) -> Self {
        Self { window: window as f64, threshold: f64::INFINITY, mtu: mtu as f64, ..Self::default() }
    }

    fn least(&self) -> f64 {
        2.0 * self.mtu
    }

    fn grow_along_the_curve(&mut self, now: Time, bytes: f64, smoothed: Nanos) {
        let (since, to_peak) = *self.epoch.get_or_insert_with(|| {
            let to_peak = ((self.peak - self.window).max(0.0) / self.mtu / C).cbrt();
            self.peak = self.peak.max(self.window);
            self.reno = self.window;
            (now, to_peak)
        });
        let at = |nanos: Nanos| C * (nanos as f64 / 1e9 - to_peak).powi(3) * self.mtu + self.peak;
        let alpha = if self.reno >= self.peak { 1.0 } else { ALPHA };
        self.reno += alpha * self.mtu * bytes / self.window;
        if at(now - since) < self.reno {
            self.window = self.window.max(self.reno);
        } else {
            let target = at((now - since) + smoothed).clamp(self.window, 1.5 * self.window);
            self.window += (target - self.window) / self.window * bytes;
        }
    }

    /// The number of bytes that may be under way.
    #[inline]
    pub fn window(&self) -> u64 {
        self.window as u64
    }

    /// `bytes` were acknowledged; the latest of them was sent at `sent`. `limited`: the window was in use, so it may grow.
    #[inline]
    pub fn on_ack(&mut self, now: Time, sent: Time, bytes: u64, limited: bool, latest: Nanos, smoothed: Nanos) {
        if !limited {
            // Time in which the window is not needed does not count on the curve.
            self.epoch = None;
            return;
        }
        if self.recovery.is_some_and(|since| sent <= since) || self.window >= WINDOW_MAX as f64 {
            return;
        }
        if self.window < self.threshold {
            if self.slow_start.on_ack(now, sent, latest) {
                self.threshold = self.window;
            }
            self.window += bytes as f64 / if self.slow_start.gentle.is_some() { 4.0 } else { 1.0 };
        } else {
            self.grow_along_the_curve(now, bytes as f64, smoothed);
        }
    }

    /// Datagrams were lost; the latest of them was sent at `sent`. Returns whether the window was reduced for that.
    pub fn on_loss(&mut self, now: Time, sent: Time) -> bool {
        if self.recovery.is_some_and(|since| sent <= since) {
            return false;
        }
        self.before_loss = Some((self.window, self.threshold, self.peak));
        self.recovery = Some(now);
        // A flow that never returned to its old peak leaves room for new flows.
        self.peak = if self.window < self.peak { self.window * (1.0 + BETA) / 2.0 } else { self.window };
        self.window = (self.window * BETA).max(self.least());
        self.threshold = self.window;
        self.epoch = None;
        true
    }

    /// The datagrams that counted as lost since the last reduction were only late.
    pub fn on_false_alarm(&mut self) {
        if let Some(before) = self.before_loss.take()
            && before.0 > self.window
        {
            (self.window, self.threshold, self.peak) = before;
            self.epoch = None;
        }
    }

    /// No datagram got through for a long time.
    pub fn on_persistent_congestion(&mut self) {
        self.window = self.least();
        self.epoch = None;
        self.recovery = None;
        self.before_loss = None;
        self.slow_start = SlowStart::default();
    }

    /// The size of a datagram changed.
    pub fn set_mtu(&mut self, mtu: usize) {
        self.mtu = mtu as f64;
        self.window = self.window.max(self.least());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(cubic: &mut Cubic, at: Nanos, bytes: u64) {
        let now = Time::from_nanos(at);
        cubic.on_ack(now, Time::from_nanos(at - 10 * MILLI), bytes, true, 10 * MILLI, 10 * MILLI);
    }

    #[test]
    fn slow_start_doubles_and_a_loss_takes_three_tenths() {
        let mut cubic = Cubic::new(14_000, 1400);
        ack(&mut cubic, 20 * MILLI, 14_000);
        assert_eq!(cubic.window(), 28_000);
        cubic.on_loss(Time::from_nanos(30 * MILLI), Time::from_nanos(29 * MILLI));
        assert_eq!(cubic.window(), 19_600);
        cubic.on_loss(Time::from_nanos(31 * MILLI), Time::from_nanos(30 * MILLI));
        assert_eq!(cubic.window(), 19_600, "one reduction a round trip");
        cubic.on_false_alarm();
        assert_eq!(cubic.window(), 28_000);
    }

    #[test]
    fn the_curve_comes_back_to_the_peak_and_goes_on() {
        // A round trip so long that Reno would be slower.
        let mut cubic = Cubic::new(1_400_000, 1400);
        let round = 100 * MILLI;
        cubic.on_loss(Time::from_nanos(2 * round), Time::from_nanos(round));
        assert!(cubic.window().abs_diff(980_000) < 10);
        let start = 4 * round;
        let to_peak = ((300.0f64 / C).cbrt() * 1e9) as Nanos;
        let (mut at, mut at_peak) = (start, 0);
        while at < 20_000 * MILLI {
            let window = cubic.window();
            cubic.on_ack(Time::from_nanos(at), Time::from_nanos(at - round), window, true, round, round);
            at += round;
            if at < start + to_peak {
                at_peak = cubic.window();
            }
        }
        assert!((1_330_000..1_430_000).contains(&at_peak), "{at_peak}");
        assert!(cubic.window() > 1_500_000);
    }
}
