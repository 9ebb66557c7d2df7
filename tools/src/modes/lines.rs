//! An outcome for programs: one object a line.

use super::outcome::{Figures, Outcome, Ratio};
use crate::experiment::report;
use serde_json::{Map, Value, json};

/// Two decimal places.
fn rounded(value: f64) -> Value {
    report::rounded(value, 2)
}

/// The figures of each way, those of each of its phases, the verdict, and the timeline.
pub fn render(outcome: &Outcome) -> String {
    let load = &outcome.load.name;
    let mut objects = Vec::new();
    for row in &outcome.rows {
        let way = json!({"load": load, "way": row.name, "is_policy": row.is_policy, "rounds": outcome.rounds});
        let used = json!({"spread": rounded(row.spread()), "used": row.used, "background_used": row.background});
        objects.push(joined(&[json!({"what": "way"}), way.clone(), figures(&row.figures), used]));
        for (phase, found) in outcome.load.phases.iter().zip(&row.phases) {
            objects.push(joined(&[json!({"what": "phase", "phase": phase.name}), way.clone(), figures(found)]));
        }
    }
    objects.extend(outcome.missing.iter().map(|(way, why)| json!({"what": "missing", "load": load, "way": way, "why": why})));
    let ratio = |ratio: Option<Ratio>| {
        ratio.map(
            |ratio| json!({"ratio": rounded(ratio.ratio), "beside": ratio.beside, "goal": ratio.goal, "is_met": ratio.is_met()}),
        )
    };
    objects.push(json!({
        "what": "verdict", "load": load, "policy": outcome.policy, "links": outcome.links,
        "total": ratio(outcome.total_ratio()), "p99": ratio(outcome.p99_ratio()),
    }));
    let phases = outcome.load.phases.iter().zip(&outcome.starts);
    let phases: Vec<_> = phases.map(|(phase, start)| json!({"phase": phase.name, "start_ns": start})).collect();
    objects.push(json!({"what": "timeline", "load": load, "phases": phases, "timeline": outcome.timeline}));
    report::lines(objects)
}

fn figures(of: &Figures) -> Value {
    json!({
        "total_ns": rounded(of.total), "messages": of.messages as u64, "bytes": of.bytes as u64,
        "messages_per_s": rounded(of.messages_per_s()), "mb_per_s": rounded(of.mb_per_s()),
        "p50_ns": rounded(of.p50), "p99_ns": rounded(of.p99), "max_ns": rounded(of.max),
        "background_bytes": of.background as u64,
    })
}

fn joined(objects: &[Value]) -> Value {
    let members = objects.iter().filter_map(Value::as_object).flatten();
    Value::Object(members.map(|(name, value)| (name.clone(), value.clone())).collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modes::outcome::tests::outcome;

    #[test]
    fn every_line_is_an_object_that_says_what_it_is() {
        let text = render(&outcome());
        let objects: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let count = |what: &str| objects.iter().filter(|object| object["what"] == what).count();
        let counts = ["way", "phase", "missing", "verdict", "timeline"].map(count);
        assert_eq!((counts, objects.len()), ([3, 9, 1, 1, 1], 15));
        assert_eq!(objects[0]["used"]["shm/0/transfer"], objects[0]["messages"]);
        let verdict = objects.iter().find(|object| object["what"] == "verdict").unwrap();
        assert_eq!((&verdict["p99"]["ratio"], &verdict["p99"]["is_met"]), (&json!(0.25), &json!(true)));
    }
}
