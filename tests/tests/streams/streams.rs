//! Streams compared with the system's own: one suite for Unix stream sockets, streams over shared memory, and streams over UDP.

use doorbell::Listener;
use doorbell::{Node, Stream};
use doorbell_tests::pair::{far, near};
use doorbell_tests::patience::{PATIENCE, eventually, finishes, running, soon, until};
use doorbell_tests::pattern::bytes;
use doorbell_tests::random::Random;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The calls that every kind of stream has.
trait Bytes: Read + Write + Send + 'static {
    fn shutdown(&self, how: Shutdown) -> io::Result<()>;
    fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()>;
    fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()>;
    fn set_nonblocking(&self, nonblocking: bool);
    /// Whether the error is a time-out.
    fn is_late(&self, error: &io::Error) -> bool;
}

impl Bytes for UnixStream {
    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        UnixStream::shutdown(self, how)
    }
    fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        UnixStream::set_read_timeout(self, timeout)
    }
    fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        UnixStream::set_write_timeout(self, timeout)
    }
    fn set_nonblocking(&self, nonblocking: bool) {
        UnixStream::set_nonblocking(self, nonblocking).unwrap();
    }
    fn is_late(&self, error: &io::Error) -> bool {
        error.kind() == ErrorKind::WouldBlock
    }
}

impl Bytes for Stream {
    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        Stream::close(self, how)
    }
    fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        Stream::set_read_timeout(self, timeout)
    }
    fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        Stream::set_write_timeout(self, timeout)
    }
    fn set_nonblocking(&self, nonblocking: bool) {
        Stream::set_nonblocking(self, nonblocking);
    }
    fn is_late(&self, error: &io::Error) -> bool {
        error.kind() == ErrorKind::TimedOut
    }
}

/// One end of a stream of any kind, so that the suite is compiled once.
type End = Box<dyn Bytes>;

/// Both ends of a stream, and what keeps them.
fn unix() -> (UnixStream, UnixStream, ()) {
    let (one, other) = UnixStream::pair().unwrap();
    (one, other, ())
}

fn shared() -> (Stream, Stream, [Node; 2]) {
    between(near())
}

fn network() -> (Stream, Stream, [Node; 2]) {
    between(far())
}

fn between(nodes: [Node; 2]) -> (Stream, Stream, [Node; 2]) {
    let listener = Listener::builder(&nodes[0], "suite").bind().unwrap();
    let connector = Stream::builder(&nodes[1], "suite");
    let connecting = running("connecting", move || connector.connect().unwrap());
    let (accepted, peer) = listener.accept_until(soon()).unwrap();
    assert_eq!(peer, nodes[1].id());
    (connecting.join(), accepted, nodes)
}

fn run<T: Bytes, K>(test: fn(End, End), (one, other, _keep): (T, T, K)) {
    test(Box::new(one), Box::new(other));
}

macro_rules! suite {
    ($($test:ident)*) => {
        mod over_unix_sockets { $(#[test] fn $test() { super::run(super::$test, super::unix()) })* }
        mod over_shared_memory { $(#[test] fn $test() { super::run(super::$test, super::shared()) })* }
        mod over_udp { $(#[test] fn $test() { super::run(super::$test, super::network()) })* }
    };
}

suite! {
    bytes_come_in_order_however_they_are_cut
    each_direction_ends_by_itself
    a_writer_waits_for_a_slow_reader
    nothing_is_read_into_nothing
    several_pieces_go_at_once
    time_outs_end_a_wait
    who_does_not_wait_is_told_so
    a_dropped_end_ends_both_directions
    who_writes_is_told_that_nobody_reads
    what_was_written_before_the_end_is_read
    both_sides_write_at_once
}

fn bytes_come_in_order_however_they_are_cut(mut one: End, mut other: End) {
    const TOTAL: usize = 3_000_000;
    let writing = running("writing", move || {
        let (data, mut random, mut at) = (bytes(TOTAL, 1), Random::new(1), 0);
        while at < TOTAL {
            let len = (1 + random.below(100_000)).min(TOTAL - at);
            at += one.write(&data[at..at + len]).unwrap();
        }
        one
    });
    let (data, mut random, mut at, mut buf) = (bytes(TOTAL, 1), Random::new(2), 0, vec![0; 70_000]);
    while at < TOTAL {
        let room = 1 + random.below(70_000);
        let got = other.read(&mut buf[..room]).unwrap();
        assert!(got > 0 && buf[..got] == data[at..at + got], "at {at}");
        at += got;
    }
    drop(writing.join());
    assert_eq!(other.read(&mut buf).unwrap(), 0);
}

fn each_direction_ends_by_itself(mut one: End, mut other: End) {
    one.write_all(b"question").unwrap();
    one.shutdown(Shutdown::Write).unwrap();
    assert_eq!(one.write(b"more").unwrap_err().kind(), ErrorKind::BrokenPipe);
    let mut text = String::new();
    other.read_to_string(&mut text).unwrap();
    assert_eq!(text, "question");
    assert_eq!(other.read(&mut [0; 8]).unwrap(), 0);
    other.write_all(b"answer").unwrap();
    other.shutdown(Shutdown::Write).unwrap();
    let mut text = String::new();
    one.read_to_string(&mut text).unwrap();
    assert_eq!(text, "answer");
}

fn a_writer_waits_for_a_slow_reader(mut one: End, mut other: End) {
    one.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    let block = bytes(100_000, 3);
    let mut written = 0;
    let late = loop {
        match one.write(&block[written % block.len()..]) {
            Ok(len) => written += len,
            Err(error) => break error,
        }
        assert!(written < 100 << 20, "nothing makes it wait");
    };
    assert!(one.write(&[1]).is_err() && one.is_late(&late), "{late:?}");
    // Room again, once something was read.
    one.set_write_timeout(Some(PATIENCE)).unwrap();
    let reading = running("reading", move || {
        let (mut read, mut buf) = (Vec::new(), vec![0; 50_000]);
        while read.len() < written {
            let got = other.read(&mut buf).unwrap();
            read.extend_from_slice(&buf[..got]);
        }
        (read, other)
    });
    let (read, mut other) = reading.join();
    assert!(read.iter().enumerate().all(|(at, byte)| *byte == block[at % block.len()]));
    one.write_all(b"after").unwrap();
    let mut buf = [0; 5];
    other.read_exact(&mut buf).unwrap();
    assert_eq!(&buf, b"after");
}

fn nothing_is_read_into_nothing(mut one: End, mut other: End) {
    assert_eq!(one.write(&[]).unwrap(), 0);
    one.write_all(b"x").unwrap();
    // There is something to read: where nothing is, systems differ in whether that is waited for.
    eventually("it is there", || other.read(&mut []).unwrap() == 0);
    let mut buf = [0; 4];
    assert_eq!(other.read(&mut buf).unwrap(), 1);
}

fn several_pieces_go_at_once(mut one: End, mut other: End) {
    let pieces = [b"first".as_slice(), b"", b"second", b"third"].map(IoSlice::new);
    assert_eq!(one.write_vectored(&pieces).unwrap(), 16);
    let (mut two, mut rest) = ([0; 2], [0; 20]);
    let mut got = 0;
    while got < 16 {
        let mut parts = [IoSliceMut::new(&mut two[got.min(2)..]), IoSliceMut::new(&mut rest[got.saturating_sub(2)..])];
        got += other.read_vectored(&mut parts).unwrap();
    }
    assert_eq!((&two, &rest[..14]), (b"fi", b"rstsecondthird".as_slice()));
}

fn time_outs_end_a_wait(mut one: End, mut other: End) {
    assert_eq!(one.set_read_timeout(Some(Duration::ZERO)).unwrap_err().kind(), ErrorKind::InvalidInput);
    one.set_read_timeout(Some(Duration::from_millis(30))).unwrap();
    let late = one.read(&mut [0; 8]).unwrap_err();
    assert!(one.is_late(&late), "{late:?}");
    // Nothing is lost by it.
    other.write_all(b"late").unwrap();
    one.set_read_timeout(None).unwrap();
    let mut buf = [0; 4];
    one.read_exact(&mut buf).unwrap();
    assert_eq!(&buf, b"late");
}

fn who_does_not_wait_is_told_so(mut one: End, mut other: End) {
    one.set_nonblocking(true);
    assert_eq!(one.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    let mut written = 0;
    while let Ok(len) = one.write(&[7; 10_000]) {
        written += len;
        assert!(written < 100 << 20, "it never says so");
    }
    other.write_all(b"now").unwrap();
    let mut buf = [0; 3];
    until("what was written is there", || one.read(&mut buf).ok());
    let mut buf = vec![0; written];
    other.read_exact(&mut buf).unwrap();
    assert!(buf.iter().all(|byte| *byte == 7));
}

fn a_dropped_end_ends_both_directions(mut one: End, other: End) {
    drop(other);
    assert_eq!(one.read(&mut [0; 8]).unwrap(), 0);
    let error = loop {
        if let Err(error) = one.write(&[0; 1000]) {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

fn who_writes_is_told_that_nobody_reads(mut one: End, mut other: End) {
    other.shutdown(Shutdown::Read).unwrap();
    // Bytes that were under way may still be taken.
    let error = finishes("a writer without a reader", move || {
        let error = loop {
            if let Err(error) = one.write(&[1; 4096]) {
                break error.kind();
            }
        };
        (error, one)
    });
    let (error, mut one) = error;
    assert_eq!(error, ErrorKind::BrokenPipe);
    // The other direction goes on.
    other.write_all(b"still here").unwrap();
    let mut text = [0; 10];
    one.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"still here");
}

fn what_was_written_before_the_end_is_read(mut one: End, mut other: End) {
    let data = bytes(50_000, 5);
    one.write_all(&data).unwrap();
    drop(one);
    let mut read = Vec::new();
    other.read_to_end(&mut read).unwrap();
    assert!(read == data);
}

fn both_sides_write_at_once(mut one: End, mut other: End) {
    const TOTAL: usize = 30_000;
    let data = bytes(TOTAL, 7);
    let mine = data.clone();
    let there = running("the other side", move || {
        other.write_all(&mine).unwrap();
        let mut read = vec![0; TOTAL];
        other.read_exact(&mut read).unwrap();
        (read, other)
    });
    one.write_all(&data).unwrap();
    let mut read = vec![0; TOTAL];
    one.read_exact(&mut read).unwrap();
    assert!(read == data && there.join().0 == data);
}

fn is_given_up((mut one, mut other, _keep): (Stream, Stream, [Node; 2])) {
    one.write_all(b"half of it").unwrap();
    // Bytes under way over a network may be lost, so wait until they have arrived.
    let mut start = [0; 4];
    other.read_exact(&mut start).unwrap();
    one.abort();
    let mut rest = Vec::new();
    let error = other.read_to_end(&mut rest).unwrap_err();
    assert_eq!((&rest[..], error.kind()), (&b" of it"[..], ErrorKind::ConnectionReset));
    assert_eq!(other.read(&mut start).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let broken = (0..).find_map(|_| other.write(b"more").err());
    assert_eq!(broken.unwrap().kind(), ErrorKind::BrokenPipe);
}

#[test]
fn an_end_that_is_given_up_is_no_good_end() {
    is_given_up(shared());
    is_given_up(network());
}

fn ends_well((mut one, mut other, _keep): (Stream, Stream, [Node; 2])) {
    one.write_all(b"all of it").unwrap();
    one.close(Shutdown::Write).unwrap();
    let mut text = String::new();
    other.read_to_string(&mut text).unwrap();
    one.abort();
    assert_eq!((&text[..], other.read(&mut [0; 4]).unwrap()), ("all of it", 0));
}

#[test]
fn what_was_said_whole_stays_whole_when_the_rest_is_given_up() {
    ends_well(shared());
    ends_well(network());
}

/// A service answers as soon as it is bound, even if no thread accepts.
#[test]
fn who_connects_is_answered_though_nobody_accepts_yet() {
    let nodes = near();
    let listener = Listener::builder(&nodes[0], "busy").bind().unwrap();
    let connector = Stream::builder(&nodes[1], "busy");
    let mut stream = finishes("somebody connects", move || connector.connect().unwrap());
    stream.write_all(b"first").unwrap();
    let (mut accepted, _) = listener.accept_until(soon()).unwrap();
    let mut text = [0; 5];
    accepted.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"first");
}
