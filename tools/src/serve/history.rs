//! What a domain did during the last minutes, for the charts of the page.

use super::latency::Spread;
use crate::top::watch::Look;
use doorbell::Metric;
use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

/// Looks that are kept of each domain.
pub const LOOKS: usize = 120;
/// Domains of which looks are kept.
pub const DOMAINS: usize = 32;

/// A domain at one look.
#[derive(Clone, Debug)]
pub struct Moment {
    pub at: Instant,
    pub messages_in: f64,
    pub messages_out: f64,
    pub bytes_in: f64,
    pub bytes_out: f64,
    /// The latencies of messages since the look before.
    pub recent: Spread,
}

/// The last looks, by domain.
#[derive(Debug, Default)]
pub struct History(BTreeMap<String, VecDeque<Moment>>);

impl History {
    /// Adds a look. A domain that is gone is forgotten.
    pub fn add(&mut self, look: &Look) {
        let now = Instant::now();
        let mut moments: BTreeMap<&str, Moment> = BTreeMap::new();
        for row in &look.rows {
            let moment = moments.entry(&row.domain).or_insert_with(|| Moment {
                at: now,
                messages_in: 0.0,
                messages_out: 0.0,
                bytes_in: 0.0,
                bytes_out: 0.0,
                recent: Spread::default(),
            });
            moment.messages_in += row.rate(Metric::MessagesIn);
            moment.messages_out += row.rate(Metric::MessagesOut);
            moment.bytes_in += row.rate(Metric::BytesIn);
            moment.bytes_out += row.rate(Metric::BytesOut);
            moment.recent.add(&row.recent);
        }
        self.0.retain(|domain, _| moments.contains_key(domain.as_str()));
        for (domain, moment) in moments {
            if self.0.len() < DOMAINS || self.0.contains_key(domain) {
                let kept = self.0.entry(domain.to_owned()).or_default();
                kept.push_back(moment);
                if kept.len() > LOOKS {
                    kept.pop_front();
                }
            }
        }
    }

    /// The looks at a domain, the oldest first.
    pub fn of(&self, domain: &str) -> impl Iterator<Item = &Moment> {
        self.0.get(domain).into_iter().flatten()
    }
}
