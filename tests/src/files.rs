//! A directory, a server of it, and a node without files: the base of the tests of I/O nodes.

use doorbell::io::{IoClient, IoServer, IoServerBuilder};
use doorbell::{FabricKind, Node, NodeBuilder, Role, Space};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::{fs, io};

/// A directory that is removed with the value: in memory, or on the medium of the build.
pub struct Room(pub PathBuf);

impl Room {
    /// In this directory.
    pub fn new(parent: &Path) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("doorbell-io-{}-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let path = parent.join(name);
        fs::create_dir_all(path.join("served")).unwrap();
        Self(path)
    }

    /// In memory.
    pub fn in_memory() -> Self {
        Self::new(Path::new("/dev/shm"))
    }

    /// The directory that is served. A test may put other files beside it.
    pub fn served(&self) -> PathBuf {
        self.0.join("served")
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server and a node without files, of this process.
pub struct Pair {
    /// It serves the room.
    pub server: IoServer,
    /// The node that serves.
    pub io: Node,
    /// The node without files.
    pub compute: Node,
    /// The directory.
    pub room: Room,
    /// The space in which further nodes may join.
    pub space: Option<Space>,
}

impl Pair {
    /// In one memory.
    pub fn new(room: Room, with: impl FnOnce(IoServerBuilder) -> IoServerBuilder) -> Self {
        let space = Space::heap();
        let builder = |role| Node::builder("io").role(role).space(space.clone());
        let pair = Self::of([builder(Role::Io), builder(Role::Host)], room, with);
        Self { space: Some(space), ..pair }
    }

    /// Over the loopback interface.
    pub fn over_udp(room: Room, with: impl FnOnce(IoServerBuilder) -> IoServerBuilder) -> Self {
        let builder = |role| Node::builder("io").fabric(FabricKind::Udp).role(role);
        let io = builder(Role::Io).listen(crate::LOOPBACK).join().unwrap();
        let server = with(IoServer::builder(&io, room.served())).start().unwrap();
        let compute = builder(Role::Host).connect(io.address().unwrap()).join().unwrap();
        Self { server, io, compute, room, space: None }
    }

    fn of([io, compute]: [NodeBuilder; 2], room: Room, with: impl FnOnce(IoServerBuilder) -> IoServerBuilder) -> Self {
        let io = io.join().unwrap();
        let server = with(IoServer::builder(&io, room.served())).start().unwrap();
        Self { server, io, compute: compute.join().unwrap(), room, space: None }
    }

    /// Another client.
    pub fn client(&self) -> IoClient {
        IoClient::connect(&self.compute, self.io.id()).unwrap()
    }

    /// The path of a name in the directory that is served.
    pub fn path(&self, name: &str) -> PathBuf {
        self.room.served().join(name)
    }
}
/// Changes no setting.
pub fn as_it_is(builder: IoServerBuilder) -> IoServerBuilder {
    builder
}

/// Panics unless the result is an error with this errno.
#[track_caller]
pub fn fails<T: std::fmt::Debug>(result: io::Result<T>, errno: i32) {
    let error = result.unwrap_err();
    assert_eq!(error.raw_os_error(), Some(errno), "{error:?}");
}
