//! Fault points: places at which a test can make this process, or the thread that arrives there, die, stop or wait.
//!
//! `DOORBELL_FAULT` selects the faults. It holds one or several of these forms, separated by commas:
//!
//! - `PLACE:N:WHAT`: at the `N`-th arrival at a place of [`PLACES`];
//! - `PLACE:all:WHAT`: at each arrival there;
//! - `any:SEED:ONE_IN:WHAT`: at one in `ONE_IN` arrivals on average, at any place; the same seed selects the same arrivals.
//!
//! `WHAT` is one of `kill` (the default): SIGKILL to the process; `stop`: SIGSTOP to the process, until another process sends
//! SIGCONT; `delay=MS`: this thread sleeps. An invalid value is an error on stderr and ends the process, because a test that
//! asked for a fault must not run without it.

use std::str::FromStr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// All places, in the order in which a node reaches them.
pub const PLACES: [&str; 58] = [
    "join.locked",
    "join.domain",
    "join.reaped",
    "join.inbox",
    "join.board",
    "join.entered",
    "segment.nameless",
    "segment.unfinished",
    "reap.file",
    "pair.named",
    "lane.claimed",
    "lane.written",
    "lane.published",
    "lane.moving",
    "lane.moved",
    "lane.opened",
    "lane.blanked",
    "bell.claimed",
    "bell.sleeping",
    "meeting.opened",
    "meeting.claimed",
    "meeting.putting",
    "meeting.put",
    "meeting.pulled",
    "meeting.revoked",
    "meeting.finished",
    "meeting.closed",
    "cma.copying",
    "cma.copied",
    "loan.returning",
    "loan.returned",
    "key.made",
    "key.taken",
    "key.inherited",
    "key.released",
    "value.locked",
    "value.written",
    "value.flipped",
    "region.named",
    "region.withdrawn",
    "device.named",
    "device.published",
    "device.locked",
    "device.stored",
    "device.copied",
    "device.scanned",
    "device.cleared",
    "device.unlocking",
    "pipe.written",
    "fifo.written",
    "fifo.injected",
    "fifo.executed",
    "counter.lowered",
    "leave.region",
    "leave.locked",
    "leave.cleared",
    "leave.removed",
    "domain.removed",
];

struct Fault {
    place: Place,
    what: What,
    arrivals: AtomicU64,
}

enum Place {
    /// At one arrival, or at all.
    Named {
        name: String,
        nth: Option<u64>,
    },
    Any {
        seed: u64,
        one_in: u64,
    },
}

#[derive(Clone, Copy)]
enum What {
    Kill,
    Stop,
    Delay(Duration),
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("DOORBELL_FAULT: \"{text}\": {why}");
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let mut number = |what: &str| parts.next().and_then(|part| part.parse().ok()).ok_or_else(|| wrong(what));
        let place = match name {
            "any" => Place::Any { seed: number("any:SEED:ONE_IN")?, one_in: number("any:SEED:ONE_IN")?.max(1) },
            name if PLACES.contains(&name) => {
                let nth = parts.next().unwrap_or_default();
                let all = nth == "all";
                let nth = if all { None } else { Some(nth.parse().map_err(|_| wrong("a place, and a number or \"all\""))?) };
                Place::Named { name: name.into(), nth }
            }
            _ => return Err(wrong(&format!("there is no place of that name; the places are {}", PLACES.join(", ")))),
        };
        let what = match parts.next() {
            None | Some("kill") => What::Kill,
            Some("stop") => What::Stop,
            Some(other) => match other.strip_prefix("delay=").and_then(|ms| ms.parse().ok()) {
                Some(ms) => What::Delay(Duration::from_millis(ms)),
                None => return Err(wrong("kill, stop or delay=MS")),
            },
        };
        Ok(Self { place, what, arrivals: AtomicU64::new(0) })
    }
}

impl Fault {
    fn is_due(&self, name: &str) -> bool {
        match &self.place {
            Place::Named { name: named, nth } => {
                named == name && nth.is_none_or(|nth| self.arrivals.fetch_add(1, Ordering::Relaxed) + 1 == nth)
            }
            Place::Any { seed, one_in } => {
                let arrival = self.arrivals.fetch_add(1, Ordering::Relaxed);
                mixed(seed.wrapping_add(arrival.wrapping_mul(0x9e37_79b9_7f4a_7c15))).is_multiple_of(*one_in)
            }
        }
    }
}

/// The last step of splitmix64.
fn mixed(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The target of `fault_point!`.
pub fn arrive(name: &'static str) {
    static FAULTS: LazyLock<Vec<Fault>> = LazyLock::new(|| {
        let faults = std::env::var("DOORBELL_FAULT").unwrap_or_default();
        let faults = faults.split(',').filter(|fault| !fault.is_empty()).map(str::parse);
        faults.collect::<Result<_, _>>().unwrap_or_else(|error| {
            eprintln!("{error}");
            std::process::exit(2)
        })
    });
    debug_assert!(PLACES.contains(&name), "{name} is not in the list");
    for fault in FAULTS.iter().filter(|fault| fault.is_due(name)) {
        match fault.what {
            What::Kill => signal(libc::SIGKILL),
            What::Stop => signal(libc::SIGSTOP),
            What::Delay(time) => std::thread::sleep(time),
        }
    }
}

fn signal(signal: libc::c_int) {
    // To this very thread, so that it gets no further; both signals end or stop the whole process. SAFETY: a signal to this
    // process; no memory is involved.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_due_where_and_when_they_were_asked_for() {
        let named: Fault = "lane.written:3".parse().unwrap();
        let due: Vec<bool> = (0..5).map(|_| named.is_due("lane.published") || named.is_due("lane.written")).collect();
        assert_eq!(due, [false, false, true, false, false]);
        let all: Fault = "lane.written:all:delay=1".parse().unwrap();
        assert!((0..5).all(|_| all.is_due("lane.written") && !all.is_due("lane.published")));
        let any = || "any:7:10:delay=5".parse::<Fault>().unwrap();
        let due = |fault: Fault| (0..10_000).filter(|_| fault.is_due("lane.written")).collect::<Vec<_>>();
        assert_eq!(due(any()), due(any()));
        assert!((800..1200).contains(&due(any()).len()));
    }

    #[test]
    fn what_is_no_fault_is_told_by_name() {
        for (text, why) in [
            ("lane.writen:1", "there is no place of that name"),
            ("lane.written", "a place, and a number"),
            ("lane.written:x", "a place, and a number"),
            ("any:1", "any:SEED:ONE_IN"),
            ("lane.written:1:hang", "kill, stop or delay=MS"),
        ] {
            let error = text.parse::<Fault>().map(drop).unwrap_err();
            assert!(error.contains(why) && error.contains(text), "{error}");
        }
    }
}
