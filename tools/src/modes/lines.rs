//! An outcome for programs: one object a line.

use super::{Metrics, Outcome, Ratio};
use crate::experiment::rounded;
use serde_json::{Value, json};

/// The figures of each way, those of each of its phases, the verdict, and the timeline.
pub fn objects(outcome: &Outcome) -> Vec<Value> {
    let load = &outcome.load.name;
    let mut objects = Vec::new();
    for row in &outcome.rows {
        let way = json!({"load": load, "way": row.name, "is_policy": row.is_policy, "rounds": outcome.rounds});
        let used = json!({"spread": rounded(row.spread()), "used": row.used, "background_used": row.background});
        objects.push(joined([json!({"what": "way"}), way.clone(), metrics(&row.metrics), used]));
        let phases = outcome.load.phases.iter().zip(&row.phases);
        objects.extend(
            phases.map(|(phase, found)| joined([json!({"what": "phase", "phase": phase.name}), way.clone(), metrics(found)])),
        );
    }
    objects.extend(outcome.missing.iter().map(|(way, why)| json!({"what": "missing", "load": load, "way": way, "why": why})));
    let ratio = |of: Ratio| json!({"ratio": rounded(of.ratio), "is_met": of.is_met(), "goal": of.goal, "beside": of.beside});
    objects.push(json!({
        "what": "verdict", "load": load, "policy": outcome.policy, "links": outcome.links,
        "total": outcome.total_ratio().map(ratio), "p99": outcome.p99_ratio().map(ratio),
    }));
    let phases = outcome.load.phases.iter().zip(&outcome.starts);
    let phases: Vec<_> = phases.map(|(phase, start)| json!({"phase": phase.name, "start_ns": start})).collect();
    objects.push(json!({"what": "timeline", "load": load, "phases": phases, "timeline": outcome.timeline}));
    objects
}

fn metrics(of: &Metrics) -> Value {
    json!({
        "total_ns": rounded(of.total), "messages": of.messages as u64, "bytes": of.bytes as u64,
        "messages_per_s": rounded(of.messages_per_s()), "mb_per_s": rounded(of.mb_per_s()),
        "p50_ns": rounded(of.p50), "p99_ns": rounded(of.p99), "max_ns": rounded(of.max),
        "background_bytes": of.background as u64,
    })
}

fn joined<const N: usize>(objects: [Value; N]) -> Value {
    let members = objects.iter().filter_map(Value::as_object).flatten();
    members.map(|(name, value)| (name.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modes::outcome::tests::outcome;

    #[test]
    fn every_line_is_an_object_that_says_what_it_is() {
        let objects = objects(&outcome());
        let count = |what: &str| objects.iter().filter(|object| object["what"] == what).count();
        let counts = ["way", "phase", "missing", "verdict", "timeline"].map(count);
        assert_eq!((counts, objects.len()), ([3, 9, 1, 1, 1], 15));
        assert_eq!(objects[0]["used"]["shm/0/transfer"], objects[0]["messages"]);
        let verdict = objects.iter().find(|object| object["what"] == "verdict").unwrap();
        assert_eq!((&verdict["p99"]["ratio"], &verdict["p99"]["is_met"]), (&json!(0.25), &json!(true)));
    }
}
