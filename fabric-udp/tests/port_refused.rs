//! Refusals of the system, each of which an error names: io_uring and addresses; and an interface that takes only short datagrams.

use doorbell_udp::Run;
use doorbell_udp::port::{Kind, OpenError, Options, Park, Room, Sent, TroubleKind, UringError, is_loopback_only, open};
use std::fs::File;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Collects warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Message(String);
        impl tracing::field::Visit for Message {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(message.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// From now on a system call fails with an error, for this thread and those it starts.
fn forbid(call: libc::c_long, errno: i32) {
    let step = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: a local program with its length; the kernel copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

/// Held by each test that may cause a warning. A warning that is first reached without a subscriber, while another thread gets one, may stay
/// silent in that thread.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a test in a thread of its own, whose filters and namespaces go with it.
fn apart(test: impl FnOnce() + Send + 'static) {
    std::thread::spawn(test).join().unwrap();
}

fn loopback(kind: Kind) -> Options {
    Options { kind, ..Options::new("127.0.0.1:0".parse().unwrap()) }
}

#[test]
fn where_io_uring_is_forbidden_plain_calls_take_its_place() {
    let _one = one_at_a_time();
    for (errno, words) in [(libc::EPERM, "forbidden"), (libc::ENOSYS, "no io_uring")] {
        apart(move || {
            forbid(libc::SYS_io_uring_setup, errno);
            let warnings = Warnings::default();
            let mut port = tracing::subscriber::with_default(warnings.clone(), || open(&loopback(Kind::Auto)).unwrap());
            let said = warnings.0.lock().unwrap().clone();
            assert_eq!(said.len(), 1, "{said:?}");
            assert!(said[0].contains(words) && said[0].contains("plain"), "{said:?}");
            assert_eq!(port.kind(), Kind::Plain);
            // It works.
            let address = port.direct().local();
            assert_eq!(port.direct().send(&Run { peer: address, bytes: &mut [1; 9], segment: 9 }), Sent::Sent);
            let park = Park { bell: &AtomicU32::new(1), expected: 1, timeout: Duration::from_secs(20), writable: false };
            assert!(port.park(park).unwrap().datagram);
            let mut each = |run: Run<'_>| assert_eq!((run.peer, &*run.bytes), (address, &[1; 9][..]));
            assert_eq!(port.direct().receive(&mut Room::default(), 2, &mut each).unwrap(), 1);
            // A program that insists on io_uring gets an error.
            let error = open(&loopback(Kind::Uring)).err().unwrap();
            assert!(matches!(error, OpenError::Uring(UringError::Forbidden | UringError::Missing)), "{error:?}");
            assert!(error.to_string().contains(words), "{error}");
        });
    }
}

#[test]
fn where_io_uring_lacks_something_plain_calls_take_its_place() {
    let _one = one_at_a_time();
    apart(|| {
        forbid(libc::SYS_io_uring_register, libc::EINVAL);
        for kind in [Kind::Auto, Kind::Calls] {
            assert_eq!(open(&loopback(kind)).unwrap().kind(), Kind::Plain);
            assert_eq!(kind.here(), Kind::Plain);
        }
        let error = open(&loopback(Kind::Uring)).err().unwrap();
        assert!(matches!(error, OpenError::Uring(UringError::TooOld)), "{error:?}");
    });
}

#[test]
fn where_io_uring_is_served_no_longer_calls_take_its_place() {
    apart(|| {
        let port = open(&loopback(Kind::Uring)).unwrap();
        let (direct, mut room) = (port.direct(), Room::default());
        let mut exchange = |bytes: &mut [u8]| {
            let len = bytes.len();
            assert_eq!(direct.send(&Run { peer: direct.local(), bytes, segment: 1000 }), Sent::Sent);
            let mut came = 0;
            while came < len {
                direct.receive(&mut room, 64, &mut |run: Run<'_>| came += run.bytes.len()).unwrap();
            }
        };
        exchange(&mut [1; 100_000]);
        let before = direct.statistics();
        assert_eq!((before.sent.calls, before.received.calls), (0, 0));
        forbid(libc::SYS_io_uring_enter, libc::EPERM);
        exchange(&mut [2; 100_000]);
        exchange(&mut [3; 10]);
        let after = direct.statistics();
        assert!(after.sent.calls > 0 && after.received.calls > 0, "{after:?}");
        assert_eq!((after.sent.enters, after.received.enters), (before.sent.enters, before.received.enters));
    });
}

#[test]
fn where_there_is_io_uring_nothing_is_said() {
    let _one = one_at_a_time();
    apart(|| {
        let warnings = Warnings::default();
        let port = tracing::subscriber::with_default(warnings.clone(), || open(&loopback(Kind::Auto)).unwrap());
        assert_eq!(warnings.0.lock().unwrap().is_empty(), port.kind() != Kind::Plain);
    });
}

#[test]
fn an_address_that_cannot_be_had_is_told_by_what_is_wrong() {
    let first = open(&loopback(Kind::Plain)).unwrap();
    let taken = first.direct().local();
    for kind in [Kind::Auto, Kind::Uring, Kind::Plain] {
        let error = open(&Options { address: taken, bind_timeout: Duration::ZERO, ..loopback(kind) }).err().unwrap();
        assert!(matches!(error, OpenError::AddressInUse { address } if address == taken), "{error:?}");
        assert!(error.to_string().contains(&taken.to_string()) && error.to_string().contains("in use"), "{error}");
        // An address that is set aside for documents.
        let foreign: SocketAddr = "203.0.113.7:4000".parse().unwrap();
        let error = open(&Options { address: foreign, ..loopback(kind) }).err().unwrap();
        assert!(matches!(error, OpenError::AddressNotAvailable { address } if address == foreign), "{error:?}");
        apart(move || {
            forbid(libc::SYS_bind, libc::EACCES);
            let error = open(&loopback(kind)).err().unwrap();
            assert!(matches!(error, OpenError::NotPermitted { .. }), "{error:?}");
            assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::PermissionDenied);
        });
    }
}

#[test]
fn an_address_that_is_released_in_time_can_be_taken() {
    let first = open(&loopback(Kind::Plain)).unwrap();
    let address = first.direct().local();
    let later = std::thread::spawn(move || open(&Options { address, ..loopback(Kind::Plain) }).map(drop));
    // Long enough for the other thread to be refused, in most runs.
    std::thread::sleep(Duration::from_millis(100));
    drop(first);
    later.join().unwrap().unwrap();
}

#[test]
fn loopback_is_told_from_the_rest() {
    for (address, alone) in [
        ("127.0.0.1:1", true),
        ("127.9.9.9:1", true),
        ("[::1]:1", true),
        ("[::ffff:127.0.0.1]:1", true),
        ("0.0.0.0:1", false),
        ("[::]:1", false),
        ("10.0.0.1:1", false),
        ("[::ffff:10.0.0.1]:1", false),
    ] {
        assert_eq!(is_loopback_only(address.parse().unwrap()), alone, "{address}");
    }
}

/// Two network namespaces joined by a cable, for as long as this lives.
struct Cable([String; 2]);

impl Cable {
    /// None, with a printed reason, where the system does not allow it.
    fn new() -> Option<Self> {
        let id = std::process::id();
        let cable = Self([format!("db{id}a"), format!("db{id}b")]);
        let [a, b] = &cable.0;
        let all = format!(
            "netns add {a}\nnetns add {b}\n\
             link add v{id}a netns {a} mtu 1500 type veth peer name v{id}b netns {b} mtu 1500\n\
             -n {a} addr add 10.77.0.1/24 dev v{id}a\n-n {b} addr add 10.77.0.2/24 dev v{id}b\n\
             -n {a} link set v{id}a up\n-n {b} link set v{id}b up\n-n {a} link set lo up\n-n {b} link set lo up"
        );
        for line in all.lines() {
            match Command::new("ip").args(line.split(' ')).output() {
                Ok(output) if output.status.success() => {}
                failed => {
                    eprintln!("SKIPPED: no network namespaces here: `ip {line}`: {failed:?}");
                    return None;
                }
            }
        }
        Some(cable)
    }

    /// Moves this thread to one end.
    fn enter(&self, end: usize) {
        use std::os::fd::AsRawFd;
        let namespace = File::open(format!("/run/netns/{}", self.0[end])).unwrap();
        // SAFETY: an open descriptor; the call affects only this thread.
        assert_eq!(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }, 0);
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

#[test]
fn an_interface_says_what_is_too_long_for_it() {
    let Some(cable) = Cable::new() else { return };
    apart(move || {
        for kind in [Kind::Uring, Kind::Calls, Kind::Plain] {
            let end = |end: usize| {
                cable.enter(end);
                open(&Options { kind, ..Options::new(format!("10.77.0.{}:0", end + 1).parse().unwrap()) }).unwrap()
            };
            let (from, mut to) = (end(0), end(1));
            let peer = to.direct().local();
            // 1500 bytes less 28 of headers.
            for (len, segment, fits) in
                [(1472, 1472, true), (1473, 1473, false), (30 * 1472, 1472, true), (30 * 1473, 1473, false), (9000, 9000, false)]
            {
                match from.direct().send(&Run { peer, bytes: &mut vec![1; len], segment }) {
                    Sent::Sent => assert!(fits, "{len} in {segment} went, uncut"),
                    Sent::Failed { gone: 0, trouble } => {
                        assert!(!fits && trouble.peer == peer, "{trouble}");
                        assert!(matches!(trouble.kind, TroubleKind::TooLong { .. }), "{trouble}");
                        // The kernel says which length fits for a lone datagram, but not for a run.
                        if len == segment {
                            let said = from.direct().trouble().expect("the kernel says what fits");
                            assert_eq!(said.kind, TroubleKind::TooLong { mtu: Some(1500) }, "{said}");
                        }
                        while from.direct().trouble().is_some() {}
                    }
                    sent => panic!("{sent:?}"),
                }
            }
            // The datagrams that were sent arrived, in runs.
            let (mut datagrams, mut room) = (0, Room::default());
            while datagrams < 31 {
                let park = Park { bell: &AtomicU32::new(1), expected: 1, timeout: Duration::from_secs(20), writable: false };
                assert!(!to.park(park).unwrap().timeout, "{datagrams} came");
                let mut each = |mut run: Run<'_>| {
                    assert_eq!(run.peer, from.direct().local());
                    datagrams += run.datagrams().inspect(|datagram| assert_eq!(datagram.len(), 1472)).count();
                };
                to.direct().receive(&mut room, 64, &mut each).unwrap();
            }
            let received = to.direct().statistics().received;
            assert!(received.calls + received.enters < 31, "{received:?}");
        }
    });
}
