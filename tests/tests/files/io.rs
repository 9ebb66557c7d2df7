//! Files of an I/O node, as nodes without files use them.

use doorbell::Node;
use doorbell::io::{IoClient, IoEngine, IoFile, IoServer};
use doorbell_tests::files::{Pair, Room, as_it_is, fails};
use doorbell_tests::number;
use doorbell_tests::patience::{PATIENCE, eventually, until};
use doorbell_tests::pattern::bytes;
use doorbell_tests::process::{Process, forbid_io_uring};
use doorbell_tests::random::Random;
use nix::sys::resource::{Resource, setrlimit};
use rustix::fs::inotify;
use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

const MIB: usize = 1 << 20;

fn on_a_medium() -> Room {
    Room::new(Path::new(env!("CARGO_TARGET_TMPDIR")))
}

/// Every way in which a server may work.
fn each(test: impl Fn(&Pair)) {
    test(&Pair::new(Room::in_memory(), as_it_is));
    test(&Pair::new(on_a_medium(), as_it_is));
    test(&Pair::new(on_a_medium(), |server| server.engine(IoEngine::Plain)));
    test(&Pair::new(on_a_medium(), |server| server.staging_bytes(0)));
    test(&Pair::over_udp(Room::in_memory(), as_it_is));
}

// ---- as std does it

#[test]
fn a_file_is_written_and_read_as_any_other() {
    each(|pair| {
        let client = pair.client();
        let mut file = client.options().read(true).write(true).create_new(true).mode(0o640).create(false).open("f").unwrap();
        fails(client.options().write(true).create_new(true).truncate(true).open("f"), libc::EEXIST);
        fails(client.options().read(true).create_new(true).open("g"), libc::EINVAL);
        file.write_all(b"hello, file").unwrap();
        assert_eq!(file.stream_position().unwrap(), 11);
        file.seek(SeekFrom::Start(7)).unwrap();
        file.write_all(b"world").unwrap();
        assert_eq!(fs::read(pair.path("f")).unwrap(), b"hello, world");
        file.seek(SeekFrom::End(-5)).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "world");
        assert_eq!(file.seek(SeekFrom::Current(-12)).unwrap(), 0);
        fails(file.seek(SeekFrom::Current(-1)), libc::EINVAL);
        assert_eq!(file.stream_position().unwrap(), 0);
        // What others write is there at once.
        fs::File::options().write(true).open(pair.path("f")).unwrap().write_all_at(b"HELLO", 0).unwrap();
        let mut five = [0; 5];
        file.read_exact(&mut five).unwrap();
        assert_eq!(&five, b"HELLO");
        assert_eq!(file.read_at(&mut five, 12).unwrap(), 0);
        assert_eq!(file.read_at(&mut five, 10).unwrap(), 2);
        assert_eq!(file.read_exact_at(&mut five, 10).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        file.sync_all().unwrap();
        file.sync_data().unwrap();
        file.set_len(3).unwrap();
        let facts = file.metadata().unwrap();
        assert_eq!((facts.len(), facts.is_file(), facts.mode() & 0o777), (3, true, 0o640));
        assert_eq!(client.metadata("f").unwrap().inode(), facts.inode());
        assert!(facts.modified().elapsed().unwrap() < PATIENCE);
        file.close().unwrap();
        fails(client.options().write(true).create_new(true).open("f"), libc::EEXIST);
        let mut file = client.options().append(true).open("f").unwrap();
        file.write_all(b"-a").unwrap();
        fs::File::options().append(true).open(pair.path("f")).unwrap().write_all(b"-b").unwrap();
        file.write_all(b"-c").unwrap();
        assert_eq!(fs::read(pair.path("f")).unwrap(), b"HEL-a-b-c");
        assert_eq!(file.stream_position().unwrap(), 9);
        fails(file.read(&mut [0; 4]), libc::EBADF);
        drop(file);
        client.create("f").unwrap();
        assert_eq!(client.metadata("f").unwrap().len(), 0);
        client.remove_file("f").unwrap();
        fails(client.remove_file("f"), libc::ENOENT);
        assert!(!pair.path("f").exists());
        eventually("all closed", || pair.server.counts().descriptors == 0);
    });
}

#[test]
fn large_reads_and_writes_arrive_whole_wherever_they_begin() {
    each(|pair| {
        let client = pair.client();
        let file = client.options().read(true).write(true).create(true).open("large").unwrap();
        let mut model = bytes(3 * MIB + 777, 1);
        file.write_all_at(&model, 0).unwrap();
        assert_eq!(fs::read(pair.path("large")).unwrap(), model);
        let mut random = Random::new(number("DOORBELL_SEED", 1));
        for round in 0..60 {
            let most = [300, 5000, 70_000, 2 * MIB][round % 4];
            let (at, len) = (random.below(model.len()), random.below(most));
            if round % 3 == 0 {
                let part = bytes(len, round as u64);
                file.write_all_at(&part, at as u64).unwrap();
                model.resize(model.len().max(at + len), 0);
                model[at..at + len].copy_from_slice(&part);
            }
            let mut read = vec![0; len];
            let got = file.read_at(&mut read, at as u64).unwrap();
            assert_eq!(got, len.min(model.len() - at));
            assert!(read[..got] == model[at..at + got], "round {round}: {len} bytes at {at}");
        }
        assert!(fs::read(pair.path("large")).unwrap() == model);
    });
}

#[test]
fn directories_are_listed_whole() {
    let pair = Pair::new(Room::in_memory(), as_it_is);
    let client = pair.client();
    let mut expected: Vec<OsString> = (0..1000).map(|number| format!("{number}-{}", "x".repeat(number % 200)).into()).collect();
    expected.push(OsString::from_vec(vec![0xff, b'\n', 0x80]));
    for name in &expected {
        fs::write(pair.room.served().join(name), b"").unwrap();
    }
    fs::create_dir(pair.path("d")).unwrap();
    symlink("d", pair.path("l")).unwrap();
    let entries = client.read_dir("").unwrap_err();
    assert_eq!(entries.raw_os_error(), Some(libc::ENOENT));
    let entries = client.read_dir(".").unwrap();
    let mut files: Vec<_> = entries.iter().filter(|entry| entry.is_file()).map(|entry| entry.file_name().to_owned()).collect();
    files.sort();
    expected.sort();
    assert_eq!(files, expected);
    let of = |name: &str| entries.iter().find(|entry| entry.file_name() == name).unwrap();
    assert!(of("d").is_dir() && of("l").is_symlink());
    assert!(client.metadata("l").unwrap().is_dir() && client.symlink_metadata("l").unwrap().is_symlink());
    assert!(client.read_dir("l").unwrap().is_empty());
    fails(client.read_dir("0-"), libc::ENOTDIR);
    fails(client.remove_file("d"), libc::EISDIR);
    client.remove_file("l").unwrap();
    assert!(pair.path("d").is_dir());
}

// ---- what can't be had

#[test]
fn the_directory_cannot_be_left() {
    each(|pair| {
        let client = pair.client();
        let outside = pair.room.0.join("secret");
        fs::write(&outside, b"secret").unwrap();
        fs::create_dir(pair.path("d")).unwrap();
        fs::write(pair.path("d/inside"), b"inside").unwrap();
        let links: [(&str, &Path); 5] = [
            ("absolute", &outside),
            ("relative", Path::new("../secret")),
            ("root", Path::new("/")),
            ("up", Path::new("..")),
            ("magic", Path::new("/proc/self/root")),
        ];
        for (name, target) in links {
            symlink(target, pair.path(name)).unwrap();
        }
        let outside_path = outside.to_str().unwrap();
        let up = [
            "../secret",
            "d/../../secret",
            "up/secret",
            "absolute",
            "relative",
            "d/../up/secret",
            outside_path,
            "/",
            "..",
            "root",
        ];
        for path in up.into_iter().chain(["magic/etc/passwd", "root/etc/passwd", "/proc/self/environ"]) {
            let says = |result: io::Result<()>| match result.unwrap_err().raw_os_error() {
                Some(libc::EXDEV | libc::ELOOP) => {}
                other => panic!("{path}: {other:?}"),
            };
            says(client.open(path).map(drop));
            says(client.create(path).map(drop));
            says(client.metadata(path).map(drop));
            says(client.read_dir(path).map(drop));
        }
        for path in ["../secret", "up/secret", "d/../../secret", outside_path, "root/etc/passwd"] {
            fails(client.remove_file(path), libc::EXDEV);
        }
        assert_eq!(fs::read(&outside).unwrap(), b"secret");
        // The link goes, not what it means.
        client.remove_file("absolute").unwrap();
        assert!(outside.exists());
        let mut text = String::new();
        client.open("d/../d/inside").unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "inside");
        assert_eq!(pair.server.counts().lost, 0);
    });
}

#[test]
fn what_makes_no_sense_has_the_errno_of_the_system() {
    each(|pair| {
        let client = pair.client();
        let file = client.options().read(true).write(true).create(true).open("f").unwrap();
        let mut buf = [0; 8];
        for offset in [u64::MAX, u64::MAX - 3, i64::MAX as u64 + 1] {
            fails(file.read_at(&mut buf, offset), libc::EINVAL);
            fails(file.write_at(&buf, offset), libc::EINVAL);
            fails(file.set_len(offset), libc::EINVAL);
        }
        fails(file.read_at(&mut buf, i64::MAX as u64 - 2), libc::EINVAL);
        let mut large = vec![0; 2 * MIB];
        fails(file.write_at(&large, i64::MAX as u64 - 2), libc::EINVAL);
        assert_eq!(file.read_at(&mut large, 1 << 50).unwrap(), 0);
        assert_eq!(file.read_at(&mut [], 0).unwrap(), 0);
        assert_eq!(file.write_at(&[], 0).unwrap(), 0);
        fails(client.open("a\0b"), libc::EINVAL);
        fails(client.metadata("a\0b"), libc::EINVAL);
        fails(client.remove_file("a\0b"), libc::EINVAL);
        for len in [256, 4095, 4096, 5000, 1 << 20] {
            fails(client.open("x".repeat(len)), libc::ENAMETOOLONG);
            fails(client.metadata("x".repeat(len)), libc::ENAMETOOLONG);
            fails(client.remove_file("x".repeat(len)), libc::ENAMETOOLONG);
        }
        fails(client.open(""), libc::ENOENT);
        fails(client.open("f/g"), libc::ENOTDIR);
        fails(client.open("nothing/g"), libc::ENOENT);
        fails(client.remove_file("."), libc::EISDIR);
        fails(client.options().open("f"), libc::EINVAL);
        fails(client.options().read(true).truncate(true).open("f"), libc::EINVAL);
        fails(client.options().read(true).custom_flags(libc::O_PATH as u32).open("f"), libc::EINVAL);
        fails(client.options().write(true).custom_flags(libc::O_TMPFILE as u32).open("."), libc::EINVAL);
        symlink("loop", pair.path("loop")).unwrap();
        fails(client.open("loop"), libc::ELOOP);
        let directory = client.open(".").unwrap();
        fails(directory.read_at(&mut buf, 0), libc::EISDIR);
        fails(client.options().write(true).open("."), libc::EISDIR);
        // The same client still works.
        file.write_all_at(b"still", 0).unwrap();
    });
}

#[test]
fn pipes_and_devices_are_refused_and_make_nobody_wait() {
    let pair = Pair::new(on_a_medium(), as_it_is);
    let client = pair.client();
    let fifo = pair.path("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(pair.path("s")).unwrap();
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&watch, &fifo, inotify::WatchFlags::OPEN).unwrap();
    let was_opened = || rustix::io::read(&watch, &mut [0; 4096]).is_ok();
    for name in ["fifo", "s"] {
        fails(client.open(name), libc::EOPNOTSUPP);
        fails(client.options().write(true).open(name), libc::EOPNOTSUPP);
        fails(client.options().read(true).write(true).open(name), libc::EOPNOTSUPP);
        fails(client.options().write(true).create(true).truncate(true).open(name), libc::EOPNOTSUPP);
        fails(client.options().write(true).create_new(true).open(name), libc::EEXIST);
    }
    // To open something may have it do something already.
    assert!(!was_opened());
    drop(fs::File::options().read(true).write(true).open(&fifo).unwrap());
    assert!(was_opened());
    assert!(!client.metadata("fifo").unwrap().is_file());
    assert_eq!(pair.server.counts().descriptors, 0);
    drop(socket);
}

#[test]
fn nothing_changes_what_is_served_to_read_only() {
    let pair = Pair::new(Room::in_memory(), |server| server.read_only(true));
    fs::write(pair.path("f"), b"as it was").unwrap();
    let client = pair.client();
    fails(client.create("f"), libc::EROFS);
    fails(client.create("g"), libc::EROFS);
    fails(client.options().append(true).open("f"), libc::EROFS);
    fails(client.options().read(true).write(true).open("f"), libc::EROFS);
    fails(client.remove_file("f"), libc::EROFS);
    let mut file = client.open("f").unwrap();
    fails(file.set_len(0), libc::EROFS);
    fails(file.write(b"x"), libc::EBADF);
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "as it was");
    assert!(!pair.path("g").exists());
}

#[test]
fn descriptors_and_clients_have_limits() {
    let pair = Pair::new(Room::in_memory(), |server| server.descriptors(5).clients(3));
    fs::write(pair.path("f"), b"").unwrap();
    let (one, two) = (pair.client(), pair.client());
    let files: Vec<IoFile> = (0..5).map(|_| one.open("f").unwrap()).collect();
    assert_eq!(files.iter().map(IoFile::descriptor).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    fails(one.open("f"), libc::EMFILE);
    // Another client has numbers of its own.
    assert_eq!(two.open("f").unwrap().descriptor(), 0);
    fails(IoClient::connect(&pair.compute, pair.io.id()), libc::EUSERS);
    let mut files = files;
    files.remove(2).close().unwrap();
    assert_eq!(one.open("f").unwrap().descriptor(), 2);
    drop(files);
    drop(two);
    let three = until("a place", || IoClient::connect(&pair.compute, pair.io.id()).ok());
    three.open("f").unwrap();
    drop((one, three));
    eventually("all is given back", || {
        let counts = pair.server.counts();
        (counts.clients, counts.descriptors, counts.staging_bytes) == (0, 0, 0)
    });
    assert_eq!(pair.server.counts().lost, 0);
}

#[test]
fn who_opens_too_much_is_told_and_the_others_are_served() {
    Process::start("has few descriptors").go().end_well(PATIENCE);
}

pub fn has_few_descriptors() {
    setrlimit(Resource::RLIMIT_NOFILE, 200, 200).unwrap();
    let pair = Pair::new(Room::in_memory(), |server| server.descriptors(5000));
    fs::write(pair.path("f"), b"f").unwrap();
    let client = pair.client();
    let mut files = Vec::new();
    let error = loop {
        match client.open("f") {
            Ok(file) => files.push(file),
            Err(error) => break error,
        }
    };
    // Three quarters of what the process may have, and of that half for one node.
    assert_eq!((error.raw_os_error(), files.len()), (Some(libc::EMFILE), 75));
    let other = pair.client();
    fails(other.open("f"), libc::EMFILE);
    assert_eq!(other.metadata("f").unwrap().len(), 1);
    let node = Node::builder("io").space(pair.space.clone().unwrap()).join().unwrap();
    let another = IoClient::connect(&node, pair.io.id()).unwrap();
    let of_another: Vec<_> = (0..37).map(|_| another.open("f").unwrap()).collect();
    drop(of_another);
    files.pop().unwrap().close().unwrap();
    // The files of the other node are closed behind its back: until then they take away from what is free.
    until("a place", || other.open("f").ok());
}

#[test]
fn what_is_of_the_kernel_is_not_served() {
    let pair = Pair::new(Room::in_memory(), as_it_is);
    for directory in ["/proc", "/proc/self", "/sys"] {
        let error = IoServer::builder(&pair.compute, directory).start().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains(directory), "{error}");
    }
    // Other file systems in the directory are served on request, except these.
    for (other_file_systems, errno) in [(false, libc::EXDEV), (true, libc::EOPNOTSUPP)] {
        let builder = IoServer::builder(&pair.compute, "/").read_only(true).other_file_systems(other_file_systems);
        let server = builder.start().unwrap();
        let client = IoClient::connect(&pair.io, pair.compute.id()).unwrap();
        fails(client.open("proc/self/environ"), errno);
        assert_eq!(client.open("etc/passwd").map(drop).map_err(|error| error.kind()), Ok(()));
        drop(client);
        server.stop().unwrap();
    }
}

#[test]
fn what_is_appended_comes_in_its_order_however_it_is_written() {
    each(|pair| {
        let client = pair.client();
        let mut file = client.options().append(true).create(true).open("log").unwrap();
        let data = bytes(700_000, 9);
        file.write_all_at(&data[..400_000], 0).unwrap();
        file.write_all(&data[400_000..500_000]).unwrap();
        // At its end, whatever the offset.
        file.write_all_at(&data[500_000..], 7).unwrap();
        assert!(fs::read(pair.path("log")).unwrap() == data);
    });
}

#[test]
fn threads_have_clients_of_their_own_or_share_one() {
    let pair = Pair::new(on_a_medium(), as_it_is);
    let shared = pair.client();
    std::thread::scope(|scope| {
        for thread in 0..6_u64 {
            let (pair, shared) = (&pair, &shared);
            scope.spawn(move || {
                let own = pair.client();
                let name = format!("of-{thread}");
                for round in 0..20 {
                    let client = if round % 2 == 0 { &own } else { shared };
                    let data = bytes(1 + (round * 37_331 + thread as usize * 7919) % 400_000, thread * 100 + round as u64);
                    client.create(&name).unwrap().write_all(&data).unwrap();
                    let mut read = Vec::new();
                    client.open(&name).unwrap().read_to_end(&mut read).unwrap();
                    assert!(read == data, "thread {thread}, round {round}");
                }
            });
        }
    });
}

// ---- no io_uring

#[test]
fn without_io_uring_files_are_served_by_plain_calls() {
    // SAFETY: between fork and exec, two system calls.
    unsafe { Process::start("has no io_uring").before(forbid_io_uring) }.go().end_well(PATIENCE);
}

pub fn has_no_io_uring() {
    let pair = Pair::new(on_a_medium(), as_it_is);
    assert_eq!(pair.server.engine(), IoEngine::Plain);
    let data = bytes(MIB, 1);
    let client = pair.client();
    client.create("f").unwrap().write_all(&data).unwrap();
    let mut read = Vec::new();
    client.open("f").unwrap().read_to_end(&mut read).unwrap();
    assert!(read == data);
    let error = IoServer::builder(&pair.compute, pair.room.served()).engine(IoEngine::Uring).start().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{error:?}");
}
