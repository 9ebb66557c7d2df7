use super::support::{Ended, domain, doorbell, ended, eventually, kill, node, nothing_is_left, segments, send};
use doorbell::{Match, Node};
use serde_json::Value;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::process::{Child, Stdio};
use std::time::Duration;

/// A server of a test. Dropping it kills it.
pub struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// Serves one domain at a free port.
    pub fn start(name: &str) -> Self {
        let mut command = doorbell(&["serve", name, "--listen", "127.0.0.1:0", "--interval", "50ms", "--format", "json"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).expect(&line);
        Self { child, address: said["address"].as_str().unwrap().to_owned() }
    }

    /// Sends bytes and reads until the server closes the connection.
    fn raw(&self, request: &[u8]) -> String {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        // The server may refuse a request before it has read all of it.
        let _ = socket.write_all(request);
        let mut bytes = Vec::new();
        let _ = socket.read_to_end(&mut bytes);
        String::from_utf8(bytes).expect("text")
    }

    /// The head and the body of an answer.
    pub fn get(&self, path: &str, accept: &str) -> (String, String) {
        let answer = self.raw(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n").as_bytes());
        let (head, body) = answer.split_once("\r\n\r\n").expect(&answer);
        (head.to_owned(), body.to_owned())
    }

    fn metrics(&self) -> String {
        let (head, body) = self.get("/metrics", "*/*");
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/plain; version=0.0.4"), "{head}");
        body
    }

    /// The value of a metric of a node.
    fn of(&self, name: &str, metric: &str, node: u16) -> Option<f64> {
        value(&self.metrics(), &format!("doorbell_{metric}{{domain=\"{name}\",node=\"{node}\"}}"))
    }

    /// Ends it by a signal, and gives what it said then.
    fn end(mut self, signal: i32) -> Ended {
        send(signal, self.child.id());
        let child = std::mem::replace(&mut self.child, doorbell(&["info"]).stdout(Stdio::null()).spawn().unwrap());
        child.wait_with_output().unwrap().into()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The number behind a name with labels.
fn value(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn messages_that_are_sent_are_counted() {
    let name = domain("serve");
    let [a, b] = [0, 1].map(|id| Node::builder(&name).id(id).join().unwrap());
    let server = Server::start(&name);
    let mut buf = [0; 64];
    let mut pass = |count: usize, bytes: usize| {
        for _ in 0..count {
            a.send(b.id(), 7, &vec![1; bytes]).unwrap();
            b.recv(Match::any().tag(7), &mut buf).unwrap();
        }
        // The nodes show their metrics.
        a.metrics().unwrap();
        b.metrics().unwrap();
    };
    pass(3, 8);
    let read = |metric: &str, node| server.of(&name, metric, node).expect(metric);
    let before = [read("messages_out_total", 0), read("messages_in_total", 1), read("messages_in_bytes_total", 1)];
    assert_eq!(before, [3.0, 3.0, 24.0]);
    pass(1000, 10);
    assert_eq!(
        [read("messages_out_total", 0), read("messages_in_total", 1), read("messages_in_bytes_total", 1)],
        [1003.0, 1003.0, 10_024.0]
    );
    assert_eq!((read("node_alive", 0), read("messages_in_total", 0)), (1.0, 0.0));

    let samples = read("latency_seconds_count", 1);
    let text = server.metrics();
    assert!((1.0..=16.0).contains(&samples), "one of 1003 messages in 64 has a time stamp: {samples}");
    let all = format!("doorbell_latency_seconds_bucket{{domain=\"{name}\",node=\"1\",le=\"+Inf\"}}");
    assert_eq!(value(&text, &all), Some(samples), "{text}");
    let link = format!("doorbell_link_messages_total{{domain=\"{name}\",node=\"0\",to=\"1\",fabric=\"shm\",link=\"0\"}}");
    assert_eq!(value(&text, &link), Some(1003.0));
    is_well_formed(&text);
    drop((a, b));
    assert_eq!(server.of(&name, "node_alive", 0), None, "nodes that left are gone");
}

/// Each sample belongs to the family whose type was named last, no sample comes twice, and buckets do not go down.
fn is_well_formed(text: &str) {
    let (mut family, mut kind, mut seen) = ("", "", std::collections::BTreeSet::new());
    let mut last = (String::new(), 0.0);
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            (family, kind) = rest.split_once(' ').expect(line);
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(text.contains(&format!("# HELP {family} ")), "{family} has no words");
            assert_eq!(kind == "counter", family.ends_with("_total"), "{line}");
        } else if !line.starts_with('#') {
            let (name, number) = line.rsplit_once(' ').expect(line);
            let number: f64 = number.parse().expect(line);
            assert!(seen.insert(name.to_owned()), "twice: {line}");
            let bare = name.split('{').next().unwrap();
            let parts = ["_sum", "_count", "_bucket"].map(|part| format!("{family}{part}"));
            assert!(if kind == "histogram" { parts.contains(&bare.to_owned()) } else { bare == family }, "{line} in {family}");
            if bare.ends_with("_bucket") {
                let node = name.rsplit_once("node=").expect(line).1.to_owned();
                assert!(last.0 != node || last.1 <= number, "{line}");
                last = (node, number);
            }
        }
    }
    assert!(seen.len() > 50);
}

#[test]
fn a_node_that_dies_is_shown_as_dead() {
    let name = domain("serve-dead");
    let server = Server::start(&name);
    // In this process: one of `ring` would end when the other dies.
    let first = Node::builder(&name).id(0).join().unwrap();
    let second = node(&name, 1, 2);
    eventually("that both live", || [0, 1].iter().all(|id| server.of(&name, "node_alive", *id) == Some(1.0)));
    kill(second);
    eventually("that one is dead", || server.of(&name, "node_alive", 1) == Some(0.0));
    let text = server.metrics();
    let alive = format!("doorbell_node_alive{{domain=\"{name}\",node=\"0\"}}");
    assert_eq!(value(&text, &alive), Some(1.0), "the other lives: {text}");
    eventually("that the page shows it", || server.get("/live", "*/*").1.contains("<td class=\"word\">dead</td>"));
    let (_, page) = server.get("/", "text/html");
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("<svg") && !page.contains("http://"), "{page}");
    drop(first);
    assert_eq!(server.end(libc::SIGTERM).code, Some(0));
    assert_eq!(ended(&["clean", &name]).code, Some(0));
    nothing_is_left(&name);
}

#[test]
fn a_damaged_board_does_no_harm() {
    let name = domain("serve-damaged");
    let server = Server::start(&name);
    let mut child = node(&name, 0, 2);
    eventually("that it is shown", || server.of(&name, "node_alive", 0) == Some(1.0));
    send(libc::SIGSTOP, child.id());
    eventually("that it is stopped", || server.of(&name, "node_stopped", 0) == Some(1.0));
    let board = segments(&format!("{name}.0.board")).pop().expect("a board");
    let file = OpenOptions::new().read(true).write(true).open(format!("/dev/shm/{board}")).unwrap();
    let length = file.metadata().unwrap().len() as usize;
    // The header stays, and everything behind it, with the metrics first, gets the same value.
    for byte in [0xff_u8, 0x01, 0x7f, 0x00] {
        file.write_all_at(&vec![byte; length - 1024], 1024).unwrap();
        is_well_formed(&server.metrics());
        assert!(server.get("/live", "*/*").0.starts_with("HTTP/1.1 200 "));
    }
    file.set_len(100).unwrap();
    assert_eq!(server.of(&name, "node_alive", 0), Some(1.0), "it lives, and its board cannot be read");
    child.kill().unwrap();
    child.wait().unwrap();
    let done = server.end(libc::SIGTERM);
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    assert_eq!(ended(&["clean", &name]).code, Some(0));
    nothing_is_left(&name);
}

#[test]
fn requests_are_bounded_and_a_signal_ends_it() {
    let server = Server::start(&domain("serve-odd"));
    let status = |request: &[u8]| server.raw(request).split(' ').nth(1).unwrap_or_default().to_owned();
    assert_eq!(server.get("/healthz", "*/*").1, "ok\n");
    assert!(server.get("/metrics", "application/openmetrics-text").1.ends_with("# EOF\n"));
    assert_eq!(status(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"), "404");
    assert_eq!(status(b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"), "405");
    assert_eq!(status(b"no HTTP at all\r\n\r\n"), "400");
    let long = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    assert_eq!(status(long.as_bytes()), "431");
    let many = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X: y\r\n".repeat(1000));
    assert_eq!(status(many.as_bytes()), "431");
    // Clients that say nothing hold no answer up, and do not delay the end.
    let _silent: Vec<_> = (0..20).map(|_| TcpStream::connect(&server.address).unwrap()).collect();
    assert_eq!(server.get("/healthz", "*/*").1, "ok\n");
    let done = server.end(libc::SIGINT);
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
}

#[test]
fn a_page_of_a_stranger_that_names_this_machine_reads_nothing() {
    let name = domain("serve-host");
    let server = Server::start(&name);
    let port = server.address.rsplit_once(':').unwrap().1;
    for path in ["/", "/live", "/metrics", "/healthz"] {
        let answer = |host: &str| server.raw(format!("GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n").as_bytes());
        for host in ["localhost", "127.0.0.1", "[::1]"] {
            assert!(answer(host).starts_with("HTTP/1.1 200 "), "{host}{path}");
        }
        let refused = answer("evil.example");
        assert!(refused.starts_with("HTTP/1.1 421 ") && refused.contains("the header Host names another machine"), "{refused}");
        assert!(!refused.contains("doorbell_") && !refused.contains("<html"), "{refused}");
    }
}

#[test]
fn an_address_that_cannot_be_had_is_said() {
    let server = Server::start(&domain("serve-twice"));
    for (address, mention) in [
        (server.address.as_str(), "another process listens there"),
        ("192.0.2.1:9464", "it is no address of this machine"),
        ("nowhere", "it is no address with a port"),
    ] {
        let refused = ended(&["serve", "--listen", address]);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""), "{address}: {}", refused.stderr);
        assert!(refused.stderr.contains(address) && refused.stderr.contains(mention), "{}", refused.stderr);
        assert_eq!(refused.stderr.lines().count(), 1);
    }
}
