//! Host names and wildcards in place of addresses.

use super::support::{Ended, domain, doorbell, ended, nothing_is_left, ring, send};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;

/// A name that the resolver asks nobody about: a part of a name has 63 characters at most.
fn unknown() -> String {
    "x".repeat(64)
}

/// A directory with a key and a file, which goes with this value.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        let place = Self(std::env::temp_dir().join(domain("names")));
        fs::create_dir_all(place.0.join("served")).unwrap();
        fs::write(place.0.join("served/file"), "text").unwrap();
        fs::write(place.0.join("key"), [5; 32]).unwrap();
        fs::set_permissions(place.0.join("key"), fs::Permissions::from_mode(0o600)).unwrap();
        place
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A command that runs until it is dropped, and its first line.
struct Server {
    child: Child,
    said: String,
}

impl Server {
    fn start(args: &[&str]) -> Self {
        let mut child = doorbell(args).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        Self { child, said }
    }

    /// The port in its first line.
    fn port(&self) -> u16 {
        let digits =
            |word: &str| word.rsplit(':').next().and_then(|port| port.trim_matches(|c: char| !c.is_ascii_digit()).parse().ok());
        self.said
            .split([' ', '/', ','])
            .filter(|word| word.contains(':'))
            .find_map(digits)
            .unwrap_or_else(|| panic!("{}", self.said))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        send(libc::SIGINT, self.child.id());
        let _ = self.child.wait();
    }
}

#[track_caller]
fn fails(ended: &Ended, code: i32, mention: &str) {
    assert_eq!(ended.code, Some(code), "{mention}: {}", ended.stderr);
    let is_clear = ended.stderr.lines().count() == 1 && ended.stderr.contains("; hint: ") && ended.stderr.contains(mention);
    assert!(is_clear, "{mention}: {}", ended.stderr);
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    UdpSocket::bind("0.0.0.0:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_name_leads_to_a_node_as_an_address_does() {
    let (place, name) = (Place::new(), domain("name"));
    let served = place.path("served");
    let common = ["--domain", &name, "--fabric", "udp"];
    let server = Server::start(&[&["io", "serve", &served, "--listen", "localhost:0"], &common[..]].concat());
    let port = server.port();
    assert!(port > 0 && !server.said.contains("localhost"), "the line has the address itself: {}", server.said);
    let list = ended(&[&["io", "ls", "io:.", "--connect", &format!("localhost:{port}")], &common[..]].concat());
    assert!(list.code == Some(0) && list.stdout.contains("file"), "{}{}", list.stdout, list.stderr);

    let bridge = Server::start(
        &[&["bridge", "--from", "s", "--tcp", "localhost:9", "--connect", &format!("localhost:{port}")], &common[..]].concat(),
    );
    assert!(bridge.said.contains("the service s to localhost:9"), "{}", bridge.said);
    let serve = Server::start(&["serve", "--listen", "localhost:0"]);
    assert!(serve.port() > 0, "{}", serve.said);
    drop((bridge, server));
    nothing_is_left(&name);
}

#[test]
fn the_nodes_of_a_run_meet_by_a_name_and_by_a_wildcard() {
    let (place, ring) = (Place::new(), ring());
    let key = place.path("key");
    for (listens, connects) in [("localhost", "localhost"), ("0.0.0.0", "127.0.0.5"), ("0.0.0.0", "localhost")] {
        let port = free_port();
        let program = ["--key-file", &key, "--", "env", "DOORBELL_FABRIC=udp", "DOORBELL_NODES=4", ring, "20"];
        // The usual name of the domain is the same whatever the two call the address.
        let at = format!("{listens}:{port}");
        let mut listening = doorbell(&[&["run", "-n", "2", "--listen", &at], &program[..]].concat());
        let listening = listening.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let to = format!("{connects}:{port}");
        let connected = ended(&[&["run", "-n", "2", "--connect", &to], &program[..]].concat());
        let listened = Ended::from(listening.wait_with_output().unwrap());
        assert_eq!((connected.code, connected.stderr.as_str()), (Some(0), ""), "{at} {to}: {}", listened.stderr);
        assert_eq!((listened.code, listened.stderr.as_str()), (Some(0), ""), "{at} {to}");
        assert!(listened.stdout.contains("the token went around 20 times"), "{at} {to}: {}", listened.stdout);
        nothing_is_left(&format!("run-udp-{port}"));
    }
}

#[test]
fn a_node_at_the_wildcard_answers_from_the_address_that_was_asked() {
    let (place, name) = (Place::new(), domain("any"));
    let (served, key) = (place.path("served"), place.path("key"));
    let common = ["--domain", &name, "--fabric", "udp", "--key-file", &key];
    let has_six = UdpSocket::bind("[::1]:0").is_ok();
    // A wildcard to connect to means this machine.
    let four = ["127.0.0.1", "127.0.0.7", "localhost", "0.0.0.0"];
    let six = ["127.0.0.1", "127.0.0.9", "[::1]", "[::]"];
    for (wildcard, addresses) in [("0.0.0.0:0", four), ("[::]:0", six)].into_iter().take(1 + usize::from(has_six)) {
        let server = Server::start(&[&["io", "serve", &served, "--listen", wildcard], &common[..]].concat());
        for address in addresses {
            let to = format!("{address}:{}", server.port());
            let list = ended(&[&["io", "ls", "io:.", "--connect", &to], &common[..]].concat());
            assert!(list.code == Some(0) && list.stdout.contains("file"), "{wildcard} {to}: {}", list.stderr);
        }
    }
    nothing_is_left(&name);
}

#[test]
fn a_name_that_nobody_knows_is_named() {
    let name = unknown();
    let (place, at) = (Place::new(), format!("{}:7000", name));
    let (served, cannot) = (place.path("served"), format!("cannot find '{name}': "));
    let domain = domain("unknown");
    let cases: [&[&str]; 8] = [
        &["latency", "--listen", &at],
        &["latency", "--connect", &at],
        &["io", "serve", &served, "--listen", &at],
        &["io", "ls", "io:.", "--connect", &at],
        &["bridge", "--from", "s", "--tcp", "127.0.0.1:9", "--listen", &at],
        &["bridge", "--to", "s", "--tcp", "127.0.0.1:0", "--connect", &at],
        &["bridge", "--to", "s", "--tcp", &at],
        &["serve", "--listen", &at],
    ];
    // All at once, because a command that connects tries for seconds to find the name.
    let (domain, cannot) = (&domain, &cannot);
    thread::scope(|scope| {
        for args in cases {
            let of_domain: &[&str] = if args[0] == "serve" { &[] } else { &["--domain", domain] };
            let args = [args, of_domain].concat();
            scope.spawn(move || fails(&ended(&args), 2, cannot));
        }
    });
    // Also where the environment has it, which the library reads.
    for variable in ["DOORBELL_LISTEN", "DOORBELL_CONNECT"] {
        let output = doorbell(&["run", "-n", "1", "--domain", domain, "--", ring(), "1"]).env(variable, &at).output().unwrap();
        let ended = Ended::from(output);
        assert!(ended.code == Some(1) && ended.stderr.contains(cannot), "{variable}: {}", ended.stderr);
    }
    nothing_is_left(domain);
}

#[test]
fn malformed_names_are_refused_at_once() {
    for word in ["hostx", "host x:1", "10.0.0:7000", "10.0.0.256:7000", "hostx:70000"] {
        fails(&ended(&["latency", "--connect", word]), 2, &format!("'{word}' is no address with a port: write it like "));
    }
}

/// Runs a script for which the resolver has these hosts.
fn with_hosts(hosts: &str, place: &Place, script: &str) -> Option<Ended> {
    fs::write(place.path("hosts"), hosts).unwrap();
    fs::write(place.path("host.conf"), "multi on\n").unwrap();
    fs::write(place.path("nsswitch.conf"), "hosts: files\n").unwrap();
    let mounts =
        ["hosts", "host.conf", "nsswitch.conf"].map(|name| format!("mount --bind {} /etc/{name} || exit 77\n", place.path(name)));
    unshared(&["-rm"], &format!("{}{script}", mounts.concat()))
}

/// Runs a script with namespaces of its own. `None` if this machine does not allow them to this user.
fn unshared(which: &[&str], script: &str) -> Option<Ended> {
    let whole = format!("doorbell={}\n{script}", env!("CARGO_BIN_EXE_doorbell"));
    let mut command = Command::new("unshare");
    let variables = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DOORBELL_"));
    for (name, _) in variables {
        command.env_remove(name);
    }
    let output = command.args(which).args(["sh", "-c", &whole]).output().ok()?;
    let ended = Ended::from(output);
    if ended.code == Some(77) || ended.stderr.starts_with("unshare: ") {
        eprintln!("not tested, because the machine does not allow it: {}", ended.stderr);
        return None;
    }
    Some(ended)
}

#[test]
fn all_addresses_of_a_name_are_tried() {
    let (place, name) = (Place::new(), domain("several"));
    let served = place.path("served");
    // Nobody answers at the first address of `two`, and this machine can listen at the second of `own` alone.
    let hosts =
        "127.0.0.1 localhost\n127.0.0.9 two\n127.0.0.1 two\n203.0.113.7 own\n127.0.0.1 own\n127.0.0.8 none\n127.0.0.9 none\n";
    let common = format!("--domain {name} --fabric udp");
    let script = format!(
        "$doorbell io serve {served} {common} --listen own:0 >{said} & server=$!
         until grep -qs serves {said}; do kill -0 $server || exit 1; sleep 0.01; done
         port=$(sed 's/.* at 127.0.0.1:\\([0-9]*\\) .*/\\1/' {said})
         $doorbell io ls io:. {common} --connect two:$port
         $doorbell bridge --from s --tcp two:9 --patience 300ms {common} --connect none:$port
         echo code $?
         kill $server; wait $server",
        said = place.path("said")
    );
    let Some(ended) = with_hosts(hosts, &place, &script) else { return };
    assert!(ended.stdout.contains("file  file") && ended.stdout.ends_with("code 1\n"), "{}{}", ended.stdout, ended.stderr);
    let error = &ended.stderr;
    for part in ["no node of the domain answers at none:", "127.0.0.8:", "127.0.0.9:", "no answer", "--listen none:"] {
        assert!(error.lines().count() == 1 && error.contains(part), "'{part}' is missing in {error}");
    }
    nothing_is_left(&name);
}

#[test]
fn a_node_beside_the_one_at_the_wildcard_is_met_from_another_machine() {
    let (place, name, ring) = (Place::new(), domain("machines"), ring());
    let [near, far] = ["near", "far"].map(|space| format!("/dev/shm/{name}-{space}"));
    let _spaces = [&near, &far].map(|space| {
        fs::create_dir(space).unwrap();
        Place(space.into())
    });
    // Two networks with a cable between them. Node 2 comes when the others have joined and wait for it, so that node 0 has to tell it of node 1, which
    // it knows by a loopback address.
    let script = format!(
        "ip link set lo up || exit 77
         unshare -n sleep 600 & far=$!
         trap 'kill $far' EXIT
         until [ $(readlink /proc/$far/ns/net) != $(readlink /proc/$$/ns/net) ]; do kill -0 $far || exit 77; done
         ip link add cable type veth peer name cable netns $far || exit 77
         ip addr add 10.77.0.1/24 dev cable; ip link set cable up
         there=\"nsenter -t $far -n\"
         $there ip addr add 10.77.0.2/24 dev cable; $there ip link set cable up; $there ip link set lo up
         common=\"--domain {name} --key-file {key} -- env DOORBELL_NODES=3\"
         $doorbell --space {near} run -n 2 --listen 0.0.0.0:7000 $common {ring} 20 & near=$!
         parks() {{ $doorbell --space {near} ls {name} --format json | grep -o '\"parks\":[1-9]' | wc -l; }}
         until [ \"$(parks)\" = 2 ]; do kill -0 $near || exit 1; sleep 0.01; done
         $there $doorbell --space {far} run -n 1 --connect 10.77.0.1:7000 $common DOORBELL_NODE=2 {ring} 20
         wait $near; echo code $?",
        key = place.path("key")
    );
    let Some(ended) = unshared(&["-rn"], &script) else { return };
    let all = [
        "the token went around 20 times",
        "node 1 passed the token on 20 times",
        "node 2 passed the token on 20 times",
        "code 0\n",
    ];
    for part in all {
        assert!(ended.stdout.contains(part), "'{part}' is missing in {}{}", ended.stdout, ended.stderr);
    }
}
