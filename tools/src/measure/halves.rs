//! Two halves of a measurement, each a command of its own, on two machines or on one. The half that connects chooses the measurement.

use super::bandwidth::WINDOW_BYTES;
use super::size;
use super::worker::{builder, memory};
use super::{Apart, Driver, Finding, Floors, Leg, Outcome, PUT_UNIT, Plan, Sections, Size, Test, Together, net, receive};
use crate::exit::{Explain, Failure, warn};
use crate::experiment::{Trouble, pin};
use crate::processes::EndRequest;
use crate::text::word;
use doorbell::{Address, Error, Match, Node, NodeId, Role};
use doorbell_benches::{Clock, Patience, Side};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// The half that listens.
const LISTENER: NodeId = NodeId(0);
/// Tags of the first two messages.
const HELLO: u64 = 1 << 32;
const ANSWER: u64 = HELLO + 1;
/// Bytes of these, at most.
const WORDS: usize = 64 << 10;
/// How long the half that connects waits for an answer. A half that measures with another one answers later.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The most that one half does for another.
const LEGS_MOST: usize = 100;
const MESSAGES_MOST: usize = 2_000_000_000;
const WINDOW_MOST: usize = 512;

/// The request of the half that connects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Hello {
    version: String,
    test: Test,
    put: bool,
    legs: Vec<Leg>,
    window: usize,
    both_ways: bool,
    touched: bool,
}

/// The answer of the half that listens: agreed, or why not.
type Answer = Result<(), String>;

impl Hello {
    fn of(plan: &Plan) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            test: plan.test,
            put: plan.put,
            legs: plan.legs.clone(),
            window: plan.window,
            both_ways: plan.both_ways,
            touched: plan.touched,
        }
    }

    /// The plan of a half that was started with `own` and gets this request.
    fn plan(self, own: &Plan) -> Result<Plan, String> {
        let Self { version, test, put, legs, window, both_ways, touched } = self;
        let own_version = env!("CARGO_PKG_VERSION");
        if version != own_version {
            return Err(format!("the half that listens is of release {own_version}, and the one that connects of {version}"));
        }
        if test != own.test {
            let [one, other] = [own.test, test].map(|test| word(&test));
            return Err(format!("the half that listens is `doorbell {one}`, and the one that connects `doorbell {other}`"));
        }
        let fits = |leg: &Leg| {
            let messages = leg.count.checked_add(leg.warmup).and_then(|count| count.checked_mul(leg.rounds));
            leg.bytes <= size::MOST
                && leg.count >= 1
                && leg.rounds >= 1
                && leg.bytes.saturating_mul(window) <= WINDOW_BYTES
                && messages.is_some_and(|messages| messages <= MESSAGES_MOST)
        };
        let is_right = legs.len() <= LEGS_MOST && legs.iter().all(fits) && (1..=WINDOW_MOST).contains(&window);
        // Only whole words can be put, and bandwidths are not measured by puts.
        let can_put = test != Test::Bandwidth && legs.iter().all(|leg| leg.bytes > 0 && leg.bytes.is_multiple_of(PUT_UNIT));
        if put && !can_put {
            return Err(format!("the half that listens puts multiples of {PUT_UNIT} bytes, for a latency or a rate"));
        }
        if !is_right {
            return Err(format!("the half that listens does no more than {LEGS_MOST} sizes up to {}", Size(size::MOST)));
        }
        Ok(Plan { put, legs, window, both_ways, touched, ..own.clone() })
    }
}

/// The failure of a half.
fn failure(request: &EndRequest, trouble: Trouble) -> Failure {
    match (request.check(), trouble) {
        (Err(interrupted), _) => interrupted,
        (Ok(()), Trouble::Unable(failure)) => failure,
        (Ok(()), trouble) => {
            let hint = "nothing was measured: see the messages of the other half, and run both again";
            Failure::failed(format!("the other half is gone, or cannot go on: {trouble}"), hint).at(trouble.anchor())
        }
    }
}

/// Takes the signals that end a half, and moves to the processor of the half.
fn begin(plan: &Plan) -> Result<(EndRequest, Patience), Failure> {
    let request = EndRequest::listen()?;
    pin(plan.setting.processor(0))?;
    let patience = Patience::new(request.stop.clone(), plan.setting.crowded);
    Ok((request, patience))
}

/// Connects to the other half, measures, and returns the findings.
pub fn measure(plan: &Plan, to: Address) -> Result<Outcome, Failure> {
    let (request, patience) = begin(plan)?;
    let clock = Clock::calibrate();
    let node = builder(plan, Role::Host).and_then(|builder| builder.connect(to).join()).map_err(net::failure)?;
    let findings = greet(plan, &node, &patience).map_err(|trouble| failure(&request, trouble))?;
    Ok(Outcome { pairs: vec![findings], clock })
}

fn greet(plan: &Plan, node: &Node, patience: &Patience) -> Result<Vec<Finding>, Trouble> {
    let other = Apart { node, to: LISTENER, patience };
    let hello = serde_json::to_vec(&Hello::of(plan)).or_failed("could not write a message", "")?;
    let mut words = vec![0; WORDS];
    node.wait_for(2, Instant::now() + ANSWER_WITHIN)?;
    node.send(LISTENER, HELLO, &hello)?;
    let len = match other.hear(ANSWER, &mut words, Some(Instant::now() + ANSWER_WITHIN)) {
        Err(Trouble::Driver(Error::Timeout { .. })) => {
            let hint = "it may be measuring with another one: try again later";
            return Err(Trouble::Unable(Failure::failed("the half that listens does not answer", hint)));
        }
        heard => heard?,
    };
    match serde_json::from_slice::<Answer>(&words[..len]) {
        Ok(Ok(())) => {}
        Ok(Err(why)) => {
            let why: String = why.chars().filter(|char| !char.is_control()).take(200).collect();
            return Err(Trouble::Unable(Failure::failed(why, "start both halves alike, and from the same release")));
        }
        Err(error) => return Err(strange(&error)),
    }
    work(plan, Side::Ping, other)
}

/// Waits at an address for the other half, and answers it.
pub fn answer(plan: &Plan, at: Address, keep: bool) -> Result<(), Failure> {
    let (request, patience) = begin(plan)?;
    let mut at = at;
    let mut known = false;
    loop {
        // A new node for each measurement, which cannot take a message of the last measurement for one of its own.
        let join = || builder(plan, Role::Accelerator)?.id(LISTENER).listen(at.clone()).join();
        let node = join().map_err(net::failure)?;
        at = node.address().map_or(at, Address::from);
        if !std::mem::replace(&mut known, true) {
            eprintln!("doorbell: listening at {at}");
        }
        let ended = serve(plan, &node, &patience).map_err(|trouble| failure(&request, trouble));
        let left = node.leave().map_err(|error| Failure::failed(&error, "").see(&error));
        let ended = ended.and(left);
        if !keep {
            return ended;
        }
        // Also when the signal came after the measurement.
        request.check()?;
        if let Err(failure) = ended {
            warn(failure.plain());
        }
    }
}

fn serve(plan: &Plan, node: &Node, patience: &Patience) -> Result<(), Trouble> {
    let mut words = vec![0; WORDS];
    let (from, len) = receive(node, Match::any().tag(HELLO), &mut words, None, patience)?;
    let hello: Hello = serde_json::from_slice(&words[..len]).map_err(|error| strange(&error))?;
    let agreed = hello.plan(plan);
    let answer: Answer = agreed.as_ref().map(drop).map_err(Clone::clone);
    let answer = serde_json::to_vec(&answer).or_failed("could not write a message", "")?;
    node.send(from, ANSWER, &answer)?;
    let plan =
        agreed.map_err(|why| Trouble::Unable(Failure::failed(why, "start both halves alike, and from the same release")))?;
    work(&plan, Side::Pong, Apart { node, to: from, patience }).map(drop)
}

fn strange(error: &serde_json::Error) -> Trouble {
    let what = format!("the message of the other half is malformed: {error}");
    Trouble::Unable(Failure::failed(what, "use the same release on both sides"))
}

fn work(plan: &Plan, side: Side, other: Apart<'_>) -> Result<Vec<Finding>, Trouble> {
    let Apart { node, to, patience } = other;
    let (buffers, messages, landing) = memory(plan, node, to, patience)?;
    let peer = if plan.shared { None } else { Some(node.peer(to)?) };
    let driver = Driver {
        node,
        peer: peer.as_ref(),
        to,
        from: Match::from(to),
        patience,
        landing,
        loan: false,
        mode: None,
        batch: plan.batch,
    };
    let together = Together::Apart(other);
    let sections = Sections { plan, side, together, driver, floors: Floors::None, patience, buffers, messages };
    sections.work()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Setting;
    use doorbell::Wait;

    fn own() -> Plan {
        let legs = vec![Leg { bytes: 8, rounds: 1, warmup: 0, count: 10 }];
        Plan { shared: true, ..Plan::new(Test::Latency, Setting::default(), legs) }
    }

    #[test]
    fn the_half_that_connects_says_what_is_measured_and_no_more() {
        let leg = Leg { bytes: 64, rounds: 2, warmup: 1, count: 5 };
        let setting = Setting { wait: Wait::Park, ..own().setting };
        let theirs = Plan { setting, legs: vec![leg], touched: false, shared: false, ..own() };
        let agreed = Hello::of(&theirs).plan(&own()).unwrap();
        assert_eq!((agreed.legs, agreed.touched, agreed.shared, agreed.setting.wait), (vec![leg], false, true, Wait::Auto));
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let hello = Hello::of(&own());
        let leg = hello.legs[0];
        let with = |leg: Leg| Hello { legs: vec![leg], ..hello.clone() };
        let cases = [
            (Hello { version: "0.0.0".into(), ..hello.clone() }, "of release"),
            (Hello { test: Test::Rate, ..hello.clone() }, "`doorbell rate`"),
            (with(Leg { bytes: usize::MAX, ..leg }), "up to 1 GiB"),
            (with(Leg { count: usize::MAX, warmup: 1, ..leg }), "up to 1 GiB"),
            (with(Leg { count: usize::MAX / 2, rounds: 3, ..leg }), "up to 1 GiB"),
            (with(Leg { count: 0, ..leg }), "up to 1 GiB"),
            (with(Leg { rounds: 0, ..leg }), "up to 1 GiB"),
            (Hello { put: true, ..with(Leg { bytes: 12, ..leg }) }, "multiples of 8 bytes"),
            (Hello { put: true, ..with(Leg { bytes: 0, ..leg }) }, "multiples of 8 bytes"),
            (Hello { window: 0, ..hello.clone() }, "100 sizes"),
            (Hello { window: 513, ..hello.clone() }, "100 sizes"),
            (Hello { legs: vec![leg; 101], ..hello.clone() }, "100 sizes"),
            (Hello { legs: vec![Leg { bytes: 1 << 30, ..leg }], window: 3, ..hello.clone() }, "100 sizes"),
        ];
        for (hello, why) in cases {
            let refused = hello.clone().plan(&own()).unwrap_err();
            assert!(refused.contains(why), "{hello:?}: {refused}");
        }
    }
}
