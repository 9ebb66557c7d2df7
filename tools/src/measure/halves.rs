//! Two halves of a measurement, each a command of its own, on two machines or on one. The half that connects says what is measured.

use super::args::PUT_UNIT;
use super::bandwidth::WINDOW_BYTES;
use super::carrier::CarrierError;
use super::net;
use super::pairs::Outcome;
use super::plan::{Finding, Leg, Plan, Test};
use super::sections::{Driver, Floors, Sections};
use super::size::{self, Size};
use super::together::{Apart, Together, receive};
use super::worker::{builder, memory};
use crate::exit::{Failure, warn};
use crate::experiment::Trouble;
use crate::experiment::place::pin;
use crate::processes::requests_to_end;
use doorbell::{Error, Match, Node, NodeId, Role};
use doorbell_benches::clock::Clock;
use doorbell_benches::exchange::Side;
use doorbell_benches::floor::Patience;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The half that listens.
const LISTENER: NodeId = NodeId(0);
/// Tags of the first two messages.
const HELLO: u64 = 1 << 32;
const ANSWER: u64 = HELLO + 1;
/// Bytes of these, at most.
const WORDS: usize = 64 << 10;
/// How long the half that listens may take to answer: longer if it measures with another one.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// What one half does for another, at most.
const LEGS_MOST: usize = 100;
const MESSAGES_MOST: usize = 2_000_000_000;
const WINDOW_MOST: usize = 512;

/// What the half that connects wants.
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

/// What the half that listens says to that: why not, if it will not.
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

    /// What a half that was started with `own` does at this word.
    fn plan(self, own: &Plan) -> Result<Plan, String> {
        let Self { version, test, put, legs, window, both_ways, touched } = self;
        let own_version = env!("CARGO_PKG_VERSION");
        if version != own_version {
            return Err(format!("the half that listens is of release {own_version}, and the one that connects of {version}"));
        }
        if test != own.test {
            let [one, other] = [own.test, test].map(Test::name);
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
        // Only whole words are put, and no streams.
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

/// Signals that end a half.
struct Signals {
    number: Arc<AtomicUsize>,
    patience: Patience,
}

impl Signals {
    fn take(plan: &Plan) -> Result<Self, Failure> {
        let (number, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        for signal in requests_to_end().map(|signal| signal as i32) {
            signal_hook::flag::register_usize(signal, number.clone(), signal as usize)
                .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
                .map_err(|error| Failure::usage(format!("could not set a signal handler: {error}"), ""))?;
        }
        Ok(Self { number, patience: Patience::new(stop, plan.setting.crowded) })
    }

    /// What the user is told.
    fn failure(&self, trouble: Trouble) -> Failure {
        match (self.number.load(Ordering::SeqCst), trouble) {
            (0, Trouble::Unable(failure)) => failure,
            (0, trouble) => {
                let hint = "nothing was measured: see what the other half says, and run both again";
                Failure::failed(format!("the other half is gone, or cannot go on: {trouble}"), hint)
            }
            (signal, _) => Failure::interrupted(signal as i32),
        }
    }
}

/// Connects to the other half, measures, and gives what was found.
pub fn measure(plan: &Plan, to: SocketAddr) -> Result<Outcome, Failure> {
    let signals = Signals::take(plan)?;
    pin(plan.setting.processor(0))?;
    let clock = Clock::calibrate();
    let node = builder(plan, Role::Host).and_then(|builder| builder.connect(to).join()).map_err(net::failure)?;
    let findings = greet(plan, &node, &signals.patience).map_err(|trouble| signals.failure(trouble))?;
    Ok(Outcome { pairs: vec![findings], clock })
}

fn greet(plan: &Plan, node: &Node, patience: &Patience) -> Result<Vec<Finding>, Trouble> {
    let other = Apart { node, to: LISTENER, patience };
    let hello = serde_json::to_vec(&Hello::of(plan)).map_err(|error| Trouble::Unable(Failure::failed(error, "")))?;
    let mut words = vec![0; WORDS];
    node.wait_for(2, Instant::now() + ANSWER_WITHIN)?;
    node.send(LISTENER, HELLO, &hello)?;
    let len = match other.hear(ANSWER, &mut words, Some(Instant::now() + ANSWER_WITHIN)) {
        Err(CarrierError::Driver(Error::Timeout { .. })) => {
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
pub fn answer(plan: &Plan, at: SocketAddr, keep: bool) -> Result<(), Failure> {
    let signals = Signals::take(plan)?;
    pin(plan.setting.processor(0))?;
    let mut at = at;
    let mut known = false;
    loop {
        // A node of its own for each measurement: nothing that an earlier one left is taken for a message of the next.
        let join = || builder(plan, Role::Accelerator)?.id(LISTENER).listen(at).join();
        let node = join().map_err(net::failure)?;
        at = node.address().unwrap_or(at);
        if !std::mem::replace(&mut known, true) {
            eprintln!("doorbell: listening at {at}");
        }
        let ended = serve(plan, &node, &signals.patience).map_err(|trouble| signals.failure(trouble));
        let left = node.leave().map_err(|error| Failure::failed(error, ""));
        match ended.and(left) {
            ended if !keep => return ended,
            // Even if it came when all was done: nobody listens any more.
            _ if signals.patience.stopped() => return Err(Failure::interrupted(signals.number.load(Ordering::SeqCst) as i32)),
            Err(failure) => warn(failure.to_string().trim_start_matches("doorbell: error: ")),
            Ok(()) => {}
        }
    }
}

fn serve(plan: &Plan, node: &Node, patience: &Patience) -> Result<(), Trouble> {
    let mut words = vec![0; WORDS];
    let (from, len) = receive(node, Match::any().tag(HELLO), &mut words, None, patience)?;
    let hello: Hello = serde_json::from_slice(&words[..len]).map_err(|error| strange(&error))?;
    let agreed = hello.plan(plan);
    let answer: Answer = agreed.as_ref().map(drop).map_err(Clone::clone);
    let answer = serde_json::to_vec(&answer).map_err(|error| Trouble::Unable(Failure::failed(error, "")))?;
    node.send(from, ANSWER, &answer)?;
    let plan =
        agreed.map_err(|why| Trouble::Unable(Failure::failed(why, "start both halves alike, and from the same release")))?;
    work(&plan, Side::Pong, Apart { node, to: from, patience }).map(drop)
}

fn strange(error: &serde_json::Error) -> Trouble {
    let what = format!("what the other half says is not understood: {error}");
    Trouble::Unable(Failure::failed(what, "use the same release on both sides"))
}

fn work(plan: &Plan, side: Side, other: Apart<'_>) -> Result<Vec<Finding>, Trouble> {
    let Apart { node, to, patience } = other;
    let (buffers, messages, landing) = memory(plan, node, to, patience)?;
    let peer = if plan.shared { None } else { Some(node.peer(to)?) };
    let driver = Driver { node, peer: peer.as_ref(), to, from: Match::from(to), patience, landing, loan: false, mode: None };
    let together = Together::Apart(other);
    let sections = Sections { plan, side, together, driver, floors: Floors::None, patience, buffers, messages };
    Ok(sections.work()?)
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Copier, Place};
    use super::*;
    use crate::experiment::setting::Setting;

    fn own() -> Plan {
        Plan {
            test: Test::Latency,
            setting: Setting { progress: "adaptive".into(), wait: "auto".into(), ..Setting::default() },
            pairs: 1,
            put: false,
            window: 1,
            both_ways: false,
            buffers: Place::Private,
            copy: Copier::Auto,
            legs: vec![Leg { bytes: 8, rounds: 1, warmup: 0, count: 10 }],
            floor: false,
            touched: true,
            loan: false,
            mode: None,
            shared: true,
        }
    }

    #[test]
    fn the_half_that_connects_says_what_is_measured_and_no_more() {
        let leg = Leg { bytes: 64, rounds: 2, warmup: 1, count: 5 };
        let setting = Setting { wait: "park".into(), ..own().setting };
        let theirs = Plan { setting, legs: vec![leg], touched: false, shared: false, ..own() };
        let agreed = Hello::of(&theirs).plan(&own()).unwrap();
        assert_eq!((agreed.legs, agreed.touched, agreed.shared, agreed.setting.wait), (vec![leg], false, true, "auto".into()));
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
