//! Circles of imports: files that reach each other.

use crate::Arrow;
use std::collections::{BTreeMap, BTreeSet};

/// The circles among the arrows: each set of two or more files of which every one imports every other, directly or through others.
#[must_use]
pub fn circles(arrows: &[Arrow]) -> Vec<BTreeSet<String>> {
    let mut onward: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut backward: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for arrow in arrows {
        onward.entry(&arrow.from).or_default().insert(&arrow.to);
        backward.entry(&arrow.to).or_default().insert(&arrow.from);
    }
    let mut found = Vec::new();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for start in onward.keys() {
        if seen.contains(start) {
            continue;
        }
        let both: BTreeSet<&str> = reached(start, &onward).intersection(&reached(start, &backward)).copied().collect();
        seen.extend(&both);
        if both.len() > 1 {
            found.push(both.into_iter().map(str::to_owned).collect());
        }
    }
    found
}

/// The files that `start` reaches by these arrows, with itself.
fn reached<'a>(start: &'a str, arrows: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::from([start]);
    let mut next = vec![start];
    while let Some(file) = next.pop() {
        for to in arrows.get(file).into_iter().flatten() {
            if reached.insert(to) {
                next.push(to);
            }
        }
    }
    reached
}
