//! `doorbell bridge`, as a user runs it: programs that know nothing of Doorbell on both sides of two bridges.

mod as_usual;
mod bridges;

use bridges::{Bridge, PATIENCE, Pair, Process, Way, doorbell, eventually, fails, finishes, fixed};
use doorbell::Listener;
use doorbell::Node;
use serde_json::Value;
use socket2::SockRef;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

macro_rules! both_ways {
    ($($test:ident)*) => {
        mod over_shared_memory { $(#[test] fn $test() { super::$test(super::Way::Shm); })* }
        mod over_udp { $(#[test] fn $test() { super::$test(super::Way::Udp); })* }
    };
}

both_ways! {
    many_clients_are_served_at_once
    each_direction_ends_by_itself
    a_reset_is_a_reset_on_the_other_side
    a_slow_reader_makes_the_writer_wait
    a_killed_bridge_is_an_end_for_all_and_a_new_one_takes_its_place
    whoever_is_not_there_yet_is_waited_for
    one_that_is_asked_to_end_lets_connections_end
    redis_knows_nothing_of_it
}

/// A server that sends back every byte.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    address
}

/// Bytes that are told apart by where they are, and by a seed.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 31 + seed * 17) ^ (at >> 8)) as u8).collect()
}

fn many_clients_are_served_at_once(way: Way) {
    const CLIENTS: usize = 40;
    let pair = Pair::start("many", way, &echo().to_string(), &[], &[]);
    let address = pair.address();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|seed| {
            thread::spawn(move || {
                let data = pattern([1, 1000, 100_000, 1_000_000][seed % 4], seed);
                let client = bridges::connect(address);
                thread::scope(|scope| {
                    scope.spawn(|| {
                        (&client).write_all(&data).unwrap();
                        client.shutdown(Shutdown::Write).unwrap();
                    });
                    let mut back = Vec::new();
                    (&client).read_to_end(&mut back).unwrap();
                    assert!(back == data, "client {seed}: {} of {} bytes", back.len(), data.len());
                });
                data.len()
            })
        })
        .collect();
    let total: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();
    for said in pair.end() {
        assert_eq!((&said["connections"], &said["failed"], &said["cut"]), (&fixed(CLIENTS), &fixed(0), &fixed(0)), "{said}");
        assert_eq!((&said["to_service_bytes"], &said["from_service_bytes"]), (&fixed(total), &fixed(total)), "{said}");
    }
}

fn each_direction_ends_by_itself(way: Way) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let pair = Pair::start("half", way, &server.local_addr().unwrap().to_string(), &[], &[]);
    // The client first.
    let mut client = bridges::connect(pair.address());
    let mut served = bridges::accept(&server);
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut text = String::new();
    served.read_to_string(&mut text).unwrap();
    assert_eq!(text, "question");
    served.write_all(b"answer").unwrap();
    let mut start = [0; 3];
    client.read_exact(&mut start).unwrap();
    served.write_all(b" and more").unwrap();
    drop(served);
    text.clear();
    client.read_to_string(&mut text).unwrap();
    assert_eq!((&start, &text[..]), (b"ans", "wer and more"));
    // The server first.
    let mut client = bridges::connect(pair.address());
    let mut served = bridges::accept(&server);
    served.write_all(b"welcome").unwrap();
    served.shutdown(Shutdown::Write).unwrap();
    text.clear();
    client.read_to_string(&mut text).unwrap();
    assert_eq!(text, "welcome");
    client.write_all(b"thanks").unwrap();
    drop(client);
    text.clear();
    served.read_to_string(&mut text).unwrap();
    assert_eq!(text, "thanks");
    for said in pair.end() {
        assert_eq!((&said["connections"], &said["cut"]), (&fixed(2), &fixed(0)), "{said}");
    }
}

fn a_reset_is_a_reset_on_the_other_side(way: Way) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let pair = Pair::start("reset", way, &server.local_addr().unwrap().to_string(), &[], &[]);
    for client_resets in [true, false] {
        let mut one = bridges::connect(pair.address());
        let mut other = bridges::accept(&server);
        if !client_resets {
            std::mem::swap(&mut one, &mut other);
        }
        one.write_all(b"half of").unwrap();
        other.read_exact(&mut [0; 7]).unwrap();
        SockRef::from(&one).set_linger(Some(Duration::ZERO)).unwrap();
        drop(one);
        assert_eq!(other.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset, "by the client: {client_resets}");
    }
    for said in pair.end() {
        assert_eq!((&said["connections"], &said["cut"]), (&fixed(2), &fixed(2)), "{said}");
    }
}

fn a_slow_reader_makes_the_writer_wait(way: Way) {
    // More than all buffers on the way together.
    const TOTAL: usize = 96 << 20;
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let pair = Pair::start("slow", way, &server.local_addr().unwrap().to_string(), &[], &["--buffer", "256KiB"]);
    let mut client = bridges::connect(pair.address());
    let mut served = bridges::accept(&server);
    client.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let data = pattern(TOTAL, 1);
    let mut at = 0;
    let error = loop {
        match client.write(&data[at..]) {
            Ok(put) => at += put,
            Err(error) => break error,
        }
    };
    assert!(error.kind() == ErrorKind::WouldBlock && at < TOTAL, "{error}: {at}");
    let total = data.len();
    let writing = thread::spawn(move || {
        client.set_write_timeout(Some(PATIENCE)).unwrap();
        client.write_all(&data[at..]).unwrap();
        drop(client);
        data
    });
    let mut came = Vec::with_capacity(total);
    served.read_to_end(&mut came).unwrap();
    drop(served);
    assert!(came == writing.join().unwrap());
    for said in pair.end() {
        assert_eq!((&said["to_service_bytes"], &said["cut"]), (&fixed(total), &fixed(0)), "{said}");
    }
}

/// Whatever it is that ends the connection, it is not the end of patience.
fn has_ended(stream: &mut TcpStream) {
    match stream.read(&mut [0; 8]) {
        Ok(got) => assert_eq!(got, 0),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
}

fn a_killed_bridge_is_an_end_for_all_and_a_new_one_takes_its_place(way: Way) {
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = server.local_addr().unwrap().to_string();
    let mut pair = Pair::start("killed", way, &target, &[], &[]);
    let talk = |pair: &Pair| {
        let mut client = bridges::connect(pair.address());
        client.write_all(b"x").unwrap();
        let mut served = bridges::accept(&server);
        served.read_exact(&mut [0]).unwrap();
        (client, served)
    };
    let (mut client, mut served) = talk(&pair);
    pair.from.kill();
    has_ended(&mut client);
    has_ended(&mut served);
    pair.restart_from(&target);
    let (mut client, mut served) = talk(&pair);
    pair.to.kill();
    has_ended(&mut client);
    has_ended(&mut served);
    pair.restart_to();
    drop(talk(&pair));
    pair.end();
}

fn whoever_is_not_there_yet_is_waited_for(way: Way) {
    // A port without a listener: this one is given back.
    let target = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let pair = Pair::start("late", way, &target.to_string(), &["--patience", "60s"], &["--patience", "60s"]);
    let mut client = bridges::connect(pair.address());
    client.write_all(b"hello").unwrap();
    // The bridge has it, and tries.
    eventually("an attempt", || pair.from.said_on_stderr().contains("could not connect"));
    let server = TcpListener::bind(target).unwrap();
    let mut served = bridges::accept(&server);
    let mut text = [0; 5];
    served.read_exact(&mut text).unwrap();
    assert_eq!(&text, b"hello");
    drop((client, served));
    pair.end();
}

fn one_that_is_asked_to_end_lets_connections_end(way: Way) {
    let pair = Pair::start("ends", way, &echo().to_string(), &[], &["--drain", "60s"]);
    let mut client = bridges::connect(pair.address());
    let mut idle = bridges::connect(pair.address());
    for client in [&mut client, &mut idle] {
        client.write_all(b"x").unwrap();
        client.read_exact(&mut [0]).unwrap();
    }
    pair.to.send(libc::SIGTERM);
    // A connection would be one more that the second signal might cut. To bind the port succeeds once no socket listens there.
    eventually("that nobody listens any more", || TcpListener::bind(pair.address()).is_ok());
    // It goes on.
    client.write_all(b"still").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut text = String::new();
    client.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still");
    // And a second time ends it at once.
    pair.to.send(libc::SIGINT);
    has_ended(&mut idle);
    let [_, to] = pair.end();
    assert_eq!(to["cut"], fixed(1), "{to}");
}

#[test]
fn nobody_offers_the_service() {
    let bridge =
        Bridge::start(&["--tcp", "127.0.0.1:0", "--to", "nobody", "--patience", "200ms", "--domain", &bridges::domain("nobody")]);
    let mut client = bridges::connect(bridge.address());
    has_ended(&mut client);
    bridge.send(libc::SIGINT);
    let (said, stderr) = bridge.ended();
    assert_eq!((&said["connections"], &said["failed"]), (&fixed(0), &fixed(1)), "{said}");
    assert!(stderr.contains("no node of the domain offers 'nobody' within 200ms"), "{stderr}");
}

#[test]
fn of_two_that_offer_a_service_the_second_takes_over() {
    let servers = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let domain = bridges::domain("two");
    let [mut first, second] = servers.each_ref().map(|server| {
        let target = server.local_addr().unwrap().to_string();
        Bridge::start(&["--from", "service", "--tcp", &target, "--domain", &domain])
    });
    let to = Bridge::start(&["--tcp", "127.0.0.1:0", "--to", "service", "--domain", &domain]);
    for (at, server) in servers.iter().enumerate() {
        let mut client = bridges::connect(to.address());
        client.write_all(b"x").unwrap();
        let mut served = bridges::accept(server);
        served.read_exact(&mut [0]).unwrap();
        if at == 0 {
            first.kill();
            has_ended(&mut client);
        }
    }
    for bridge in [to, second] {
        bridge.send(libc::SIGINT);
        bridge.ended();
    }
}

#[test]
fn nobody_listens_at_the_other_socket() {
    let target = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let pair = Pair::start("refused", Way::Shm, &target, &["--patience", "100ms"], &[]);
    has_ended(&mut bridges::connect(pair.address()));
    pair.from.send(libc::SIGINT);
    let ([from, to], stderr) = pair.end_saying();
    assert_eq!((&from["failed"], &to["failed"], &to["cut"]), (&fixed(1), &fixed(0), &fixed(1)), "{from} {to}");
    assert!(stderr.contains(&target) && stderr.contains("start the server there"), "{stderr}");
}

#[test]
fn more_connections_than_may_be_have_to_wait() {
    let pair = Pair::start("most", Way::Shm, &echo().to_string(), &[], &["--connections", "2"]);
    let served = || {
        let mut client = bridges::connect(pair.address());
        client.write_all(b"x").unwrap();
        client.read_exact(&mut [0]).unwrap();
        client
    };
    let (one, other) = (served(), served());
    let mut third = bridges::connect(pair.address());
    third.write_all(b"x").unwrap();
    third.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert_eq!(third.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(one);
    third.set_read_timeout(Some(PATIENCE)).unwrap();
    third.read_exact(&mut [0]).unwrap();
    drop((other, third));
    pair.end();
}

#[test]
fn unix_sockets_do_as_well() {
    let directory = bridges::directory("unix");
    let [near, far] = ["near", "far"].map(|name| directory.path().join(name).to_str().unwrap().to_owned());
    let server = UnixListener::bind(&far).unwrap();
    let domain = bridges::domain("unix");
    let from = Bridge::start(&["--from", "echo", "--unix", &far, "--domain", &domain]);
    let args = ["--unix", &near, "--to", "0:echo", "--domain", &domain];
    let mut killed = Bridge::start(&args);
    // The socket of a killed bridge is replaced, and that of a living one is not.
    killed.kill();
    assert!(fs::exists(&near).unwrap());
    let to = Bridge::start(&args);
    fails(&doorbell(&["bridge"]).args(args).output().unwrap(), 2, "another process listens there");
    let mut client = UnixStream::connect(&near).unwrap();
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let (mut served, _) = server.accept().unwrap();
    let mut text = String::new();
    served.read_to_string(&mut text).unwrap();
    served.write_all(b"answer").unwrap();
    drop(served);
    client.read_to_string(&mut text).unwrap();
    assert_eq!(text, "questionanswer");
    for bridge in [to, from] {
        bridge.send(libc::SIGINT);
        let (said, _) = bridge.ended();
        assert_eq!((&said["connections"], &said["cut"]), (&fixed(1), &fixed(0)), "{said}");
    }
    assert!(!fs::exists(&near).unwrap() && fs::exists(&far).unwrap());
}

#[test]
fn of_two_bridges_that_start_together_one_serves() {
    let directory = bridges::directory("together");
    let path = directory.path().join("socket").to_str().unwrap().to_owned();
    let domain = bridges::domain("together");
    for round in 0..10 {
        // The socket of a killed bridge, or nothing.
        if round % 2 == 0 {
            drop(UnixListener::bind(&path).unwrap());
        }
        let start = || Process::heard(&["--unix", &path, "--to", "x"], &domain);
        let mut pair = [start(), start()];
        let mut ended = None;
        eventually("that one of them has ended", || {
            ended = pair.iter_mut().position(Process::has_ended);
            ended.is_some()
        });
        let [one, other] = pair;
        let (loser, mut winner) = if ended == Some(0) { (one, other) } else { (other, one) };
        fails(&loser.ended(), 2, "the path is in use; hint: another process listens there");
        let line = winner.first_line();
        assert!(line.contains(&path), "{line}");
        UnixStream::connect(&path).unwrap();
        winner.send(libc::SIGINT);
        assert!(winner.ended().status.success() && !fs::exists(&path).unwrap());
    }
}

#[test]
fn what_is_no_socket_stays_as_it_is() {
    let directory = bridges::directory("no-socket");
    let at = |name: &str| directory.path().join(name);
    fs::write(at("notes.txt"), "notes").unwrap();
    nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::create_dir(at("directory")).unwrap();
    // The target of the link is an abandoned socket. Neither the link nor the socket is removed.
    drop(UnixListener::bind(at("abandoned")).unwrap());
    std::os::unix::fs::symlink("abandoned", at("link")).unwrap();
    for (name, there, to_do) in [
        ("notes.txt", "a regular file is there", "choose another path"),
        ("fifo", "a FIFO is there", "choose another path"),
        ("directory", "a directory is there", "name a path in that directory"),
        ("link", "a symbolic link is there", "name the path that the link leads to"),
    ] {
        let kind =
            || fs::symlink_metadata(at(name)).map(|found| (found.file_type(), std::os::unix::fs::MetadataExt::ino(&found)));
        let before = kind().unwrap();
        let path = at(name).to_str().unwrap().to_owned();
        let domain = bridges::domain("no-socket");
        let bridge = Process::heard(&["--unix", &path, "--to", "db"], &domain);
        fails(&bridge.ended(), 2, &format!("cannot listen at {path}: {there}; hint: {to_do}"));
        assert_eq!(kind().unwrap(), before, "{name}");
    }
    assert!(fs::read_to_string(at("notes.txt")).unwrap() == "notes" && fs::exists(at("abandoned")).unwrap());
}

#[test]
fn a_program_with_streams_of_its_own_needs_no_bridge() {
    let domain = bridges::domain("own");
    let node = Node::builder(&domain).join().unwrap();
    let listener = Listener::builder(&node, "greeter").bind().unwrap();
    let to = Bridge::start(&["--tcp", "127.0.0.1:0", "--to", "0:greeter", "--domain", &domain]);
    let address = to.address();
    let client = finishes("a client that is answered before it has said all", move || {
        let client = bridges::connect(address);
        thread::scope(|scope| {
            let writing = scope.spawn(|| {
                // The other side does not read most of it, and the writer does not wait for that.
                (&client).write_all(&vec![b'x'; 32 << 20]).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
            });
            let mut answer = String::new();
            (&client).read_to_string(&mut answer).unwrap();
            assert_eq!(answer, "too much");
            writing.join().unwrap();
        });
    });
    let (mut stream, _) = listener.accept_until(Instant::now() + PATIENCE).unwrap();
    stream.read_exact(&mut [0; 100]).unwrap();
    stream.write_all(b"too much").unwrap();
    drop(stream);
    client.join().unwrap();
    to.send(libc::SIGINT);
    to.ended();
}

#[test]
fn what_is_not_right_is_said() {
    let run = |args: &[&str]| doorbell(&["bridge"]).args(args).output().unwrap();
    fails(&run(&["--to", "x"]), 2, "--tcp");
    fails(&run(&["--tcp", "127.0.0.1:0"]), 2, "--to");
    fails(&run(&["--tcp", "127.0.0.1:0", "--to", "x", "--from", "y"]), 2, "--from");
    fails(&run(&["--tcp", "6379", "--to", "x"]), 2, "127.0.0.1:6379");
    fails(&run(&["--tcp", "127.0.0.1:0", "--to", "3:"]), 2, "name of a service");
    fails(&run(&["--tcp", "192.0.2.1:1", "--to", "x"]), 2, "no address of this machine");
    fails(&run(&["--unix", "/nothing/here", "--to", "x"]), 2, "/nothing/here");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let connect = ["--from", "x", "--tcp", &taken, "--connect", "127.0.0.1:9", "--fabric", "udp", "--patience", "300ms"];
    fails(&run(&connect), 1, "--listen 127.0.0.1:9");
}

fn redis_knows_nothing_of_it(way: Way) {
    if ["redis-server", "redis-cli", "redis-benchmark"].iter().any(|name| Command::new(name).arg("--version").output().is_err()) {
        eprintln!("SKIPPED: there is no Redis; `apt-get install redis-server` has it");
        return;
    }
    let directory = bridges::directory("redis");
    let socket = directory.path().join("socket").to_str().unwrap().to_owned();
    let mut redis = bridges::Process::spawn(
        Command::new("redis-server")
            .args(["--port", "0", "--unixsocket", &socket, "--save", "", "--appendonly", "no", "--daemonize", "no"])
            .args(["--dir", directory.path().to_str().unwrap()]),
    );
    let domain = bridges::domain("redis");
    let [listen, fabric] = way.options();
    let from = Bridge::start(&[&["--from", "redis", "--unix", &socket, "--domain", &domain], &listen[..], &fabric[..]].concat());
    let connect = from.connect();
    let to = Bridge::start(
        &[
            &["--tcp", "127.0.0.1:0", "--to", "redis", "--domain", &domain],
            &connect.each_ref().map(String::as_str)[..way.words()],
            &fabric[..],
        ]
        .concat(),
    );
    let port = to.address().port().to_string();
    let run = |program: &str, args: &[&str]| {
        let output = Command::new("timeout").args(["60", program, "-p", &port]).args(args).output().unwrap();
        assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(run("redis-cli", &["ping"]), "PONG");
    let value = "v".repeat(100_000);
    assert_eq!(run("redis-cli", &["set", "key", &value]), "OK");
    assert_eq!(run("redis-cli", &["get", "key"]), value);
    assert_eq!(run("redis-cli", &["eval", "return string.rep('w', 3000000)", "0"]).len(), 3_000_000);
    for pipeline in ["1", "16"] {
        let table = run("redis-benchmark", &["-t", "set,get,incr", "-n", "4800", "-c", "30", "-P", pipeline, "--csv"]);
        assert_eq!(
            table.lines().filter(|line| ["\"SET\"", "\"GET\"", "\"INCR\""].iter().any(|name| line.starts_with(name))).count(),
            3,
            "{table}"
        );
    }
    assert_eq!(run("redis-cli", &["get", "counter:__rand_int__"]), "9600");
    for bridge in [to, from] {
        bridge.send(libc::SIGINT);
        let (said, _): (Value, _) = bridge.ended();
        assert!(said["connections"].as_u64() > Some(180) && said["failed"] == 0, "{said}");
    }
    redis.kill();
}
