//! A client's half of a connection: requests, and replies in any order.

use super::way::{Letter, Mailbox, Outlet};
use super::wire::{AT_END, HEAD, IN_MESSAGE, INLINE_MAX, Op, ROOM, Reply, Request, VERSION, Welcome, tag};
use doorbell_device::DeviceError;
use doorbell_engine::kit::{Error, Key, KeyFault, Node, NodeId, Peer, PeerId, ReadWrite, Result, Token, shared_of, world};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// The most requests in progress.
const WINDOW: usize = 8;
/// Reads and writes up to this many bytes go in the message, with shared memory and without.
const INLINE_NEAR: usize = 512;
const INLINE_FAR: usize = INLINE_MAX;
/// The length of a piece of a large read or write, with shared memory and without.
const PIECE_NEAR: usize = 128 << 10;
const PIECE_FAR: usize = 256 << 10;

/// How often a node asks to become a client, until it is one.
const HELLO_EVERY: Duration = Duration::from_secs(1);
/// How often a waiting client checks that the server is there.
const ASK: Duration = Duration::from_millis(50);
/// After how many of these checks it asks the server whether it still knows this client: a reply may be lost with the way that
/// it took.
const PING_EVERY: u32 = 20;

/// A connection to a server, used by one thread at a time.
pub(super) struct Connection {
    node: Node,
    server: PeerId,
    outlet: Outlet,
    peer: Peer,
    mailbox: Mailbox,
    thread: u32,
    client: u32,
    /// A random number by which the server identifies this client.
    token: u64,
    number: u32,
    /// `None`: there is no staging memory.
    staging: Option<Key<u8, ReadWrite>>,
    inline: usize,
    piece: usize,
    /// The most pieces in progress.
    window: usize,
    patience: Option<Duration>,
    /// A late reply may still write to memory that was given up, so no further request is allowed.
    broken: bool,
    room: Box<[u8]>,
}

/// A piece that was requested.
#[derive(Clone, Copy, Debug)]
struct Piece {
    number: u32,
    /// The slot of the staging memory that it goes through.
    slot: usize,
    /// Its offset in the caller's bytes.
    at: usize,
    len: usize,
    /// `None`: no reply yet.
    result: Option<i64>,
}

/// A descriptor of the server, and an offset in its file.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub descriptor: u16,
    pub offset: u64,
}

impl Connection {
    /// The two time limits are for the welcome and for each later reply.
    pub(super) fn open(
        node: &Node,
        server: NodeId,
        thread: u32,
        staging: usize,
        [welcome, patience]: [Option<Duration>; 2],
    ) -> io::Result<Self> {
        let peer = node.peer(server)?;
        let outlet = Outlet::to_server(node, server).map_err(|error| no_server(server, error))?;
        let who = PeerId { node: server, incarnation: peer.incarnation() };
        let mailbox = Mailbox::of_thread(node, who, thread).map_err(|error| no_server(server, error))?;
        let is_near = shared_of(node).is_near(Token::current(), server);
        let mut this = Self {
            node: node.clone(),
            server: who,
            outlet,
            peer,
            mailbox,
            thread,
            client: 0,
            token: token_of(thread),
            number: 0,
            staging: None,
            inline: if is_near { INLINE_NEAR } else { INLINE_FAR },
            piece: 0,
            window: 0,
            patience: welcome,
            broken: false,
            room: vec![0; ROOM].into(),
        };
        let length = u32::try_from(staging).unwrap_or(u32::MAX).into();
        let request = Request { offset: u64::from(VERSION).into(), length, ..Request::new(Op::Hello) };
        // The server may have made it a client even if that failed.
        let welcome = this.hello(request).inspect_err(|_| this.tell(Request::new(Op::Bye)))?;
        this.patience = patience;
        this.client = welcome.client.get();
        let bytes = welcome.staging.get() as usize;
        if bytes > 0 {
            let key = Key::from_bytes(&welcome.key)?;
            this.piece = bytes.min(if is_near { PIECE_NEAR } else { PIECE_FAR });
            this.window = (bytes / this.piece).min(WINDOW);
            this.staging = Some(key);
        } else {
            this.inline = INLINE_FAR;
        }
        Ok(this)
    }

    /// Asks to become a client, and asks again from time to time, since a busy server may drop a request. The server welcomes
    /// the same client only once.
    fn hello(&mut self, request: Request) -> io::Result<Welcome> {
        let deadline = self.deadline();
        let letter = loop {
            self.send(request, &[])?;
            let again = world::now() + HELLO_EVERY;
            match self.receive(Some(deadline.map_or(again, |deadline| deadline.min(again)))) {
                Ok(letter) => break letter,
                Err(error) if error.kind() != io::ErrorKind::TimedOut || deadline.is_some_and(|at| world::now() >= at) => {
                    return Err(error);
                }
                Err(_) => self.broken = false,
            }
        };
        let errno = reply(&self.room).result.get();
        if errno < 0 {
            return Err(of_errno(errno));
        }
        let welcome = Welcome::read_from_prefix(&self.room[HEAD..letter.len]);
        welcome.map(|(welcome, _)| welcome).map_err(|_| Errno::PROTO.into())
    }

    /// Sends a request and waits for its reply. Returns the reply and the bytes behind it.
    pub(super) fn call(&mut self, request: Request, follows: &[u8]) -> io::Result<(Reply, &[u8])> {
        let number = self.send(request, follows)?;
        let deadline = self.deadline();
        let letter = loop {
            let letter = self.receive(deadline)?;
            if letter.tag as u32 == number {
                break letter;
            }
        };
        let reply = reply(&self.room);
        match reply.result.get() {
            0.. => Ok((reply, &self.room[HEAD..letter.len])),
            errno => Err(of_errno(errno)),
        }
    }

    /// Sends a request that gets no reply.
    pub(super) fn tell(&mut self, request: Request) {
        let (tag, request) = self.signed(Request { quiet: 1, ..request });
        // A server that can't be reached learns of this node's death, or is dead itself.
        let _ = self.outlet.tell(tag, request.as_bytes());
    }

    /// Reads until `into` is full or the file ends. Returns how many bytes were read.
    pub(super) fn read(&mut self, at: At, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < into.len() {
            let further = At { offset: place(at.offset, done)?, ..at };
            let rest = &mut into[done..];
            let read = if rest.len() <= self.inline || self.staging.is_none() {
                self.read_in_message(further, rest)
            } else {
                self.read_in_pieces(further, rest).map(|got| (got, got == 0))
            };
            match read {
                Ok((got, at_end)) => {
                    done += got;
                    // A short read is not yet the end of the file.
                    if at_end {
                        break;
                    }
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Reads in one message. Returns how many bytes came, and whether the file ends there.
    fn read_in_message(&mut self, at: At, into: &mut [u8]) -> io::Result<(usize, bool)> {
        let len = into.len().min(INLINE_MAX);
        let (reply, bytes) = self.call(span(Op::Read, at.descriptor, at.offset, len, IN_MESSAGE), &[])?;
        let got = bytes.len().min(len);
        into[..got].copy_from_slice(&bytes[..got]);
        Ok((got, got == 0 || got < len && reply.value.get() == AT_END))
    }

    fn read_in_pieces(&mut self, at: At, into: &mut [u8]) -> io::Result<usize> {
        self.in_pieces(Op::Read, at, into.len(), |this, piece| {
            let (Some(key), Some(result)) = (this.staging, piece.result) else { return Ok(()) };
            let got = result.clamp(0, piece.len as i64) as usize;
            // Copied out before the slot is used again.
            this.peer.get(key.at(piece.slot * this.piece), &mut into[piece.at..piece.at + got])
        })
    }

    /// Writes all bytes, or as many as the server could before an error. Returns how many were written.
    pub(super) fn write(&mut self, at: At, from: &[u8]) -> io::Result<usize> {
        if from.len() <= self.inline || self.staging.is_none() {
            let mut done = 0;
            while done < from.len() {
                let len = (from.len() - done).min(INLINE_MAX);
                let offset = place(at.offset, done)?;
                let written = self.call(span(Op::Write, at.descriptor, offset, len, IN_MESSAGE), &from[done..done + len]);
                let got = match written {
                    Ok((reply, _)) => reply.result.get() as usize,
                    Err(error) if done == 0 => return Err(error),
                    Err(_) => break,
                };
                done += got.min(len);
                if got < len {
                    break;
                }
            }
            return Ok(done);
        }
        self.in_pieces(Op::Write, at, from.len(), |this, piece| match (this.staging, piece.result) {
            (Some(key), None) => this.peer.put(&from[piece.at..piece.at + piece.len], key.at(piece.slot * this.piece)),
            _ => Ok(()),
        })
    }

    /// Writes at the end of the file, or at the descriptor's cursor: at most the bytes of one message. Returns how many were
    /// written, and where the cursor is then.
    pub(super) fn append(&mut self, descriptor: u16, from: &[u8]) -> io::Result<(usize, u64)> {
        let from = &from[..from.len().min(INLINE_MAX)];
        let (reply, _) = self.call(span(Op::Write, descriptor, super::wire::AT_CURSOR, from.len(), IN_MESSAGE), from)?;
        Ok(((reply.result.get() as usize).min(from.len()), reply.value.get()))
    }

    /// Moves the bytes piece by piece through the slots of the staging memory, several pieces at a time. `carry` copies into a
    /// slot before a piece is requested (`result` is `None`), and out of it afterwards. Ends at the first piece that is short
    /// or fails, once all requested pieces have a reply.
    fn in_pieces(
        &mut self,
        op: Op,
        at: At,
        len: usize,
        mut carry: impl FnMut(&mut Self, Piece) -> Result<()>,
    ) -> io::Result<usize> {
        // So small that several are in progress even for a short transfer; whole pages.
        let size = (len.div_ceil(self.window * 2).next_multiple_of(4096)).clamp(self.piece.min(32 << 10), self.piece);
        let mut under_way = VecDeque::new();
        let (mut asked, mut next, mut done, mut failed, mut ended) = (0, 0, 0, None, false);
        loop {
            while !ended && next < len && under_way.len() < self.window {
                let piece = Piece { number: 0, slot: asked % self.window, at: next, len: size.min(len - next), result: None };
                let sent = place(at.offset, next).and_then(|offset| {
                    carry(self, piece).map_err(|error| self.fail_carrying(error))?;
                    self.send(span(op, at.descriptor, offset, piece.len, (piece.slot * self.piece) as u32), &[])
                });
                match sent {
                    Ok(number) => under_way.push_back(Piece { number, ..piece }),
                    Err(error) => (failed, ended) = (Some(error), true),
                }
                (asked, next) = (asked + 1, next + piece.len);
            }
            let Some(mut piece) = under_way.pop_front() else { break };
            let deadline = self.deadline();
            while piece.result.is_none() {
                let letter = self.receive(deadline)?;
                let result = reply(&self.room).result.get();
                let mut all = std::iter::once(&mut piece).chain(&mut under_way);
                if let Some(piece) = all.find(|piece| piece.number == letter.tag as u32 && piece.result.is_none()) {
                    piece.result = Some(result);
                }
            }
            if ended {
                continue;
            }
            match piece.result {
                Some(result @ 0..) => {
                    let got = (result as usize).min(piece.len);
                    if op == Op::Read
                        && let Err(error) = carry(self, piece)
                    {
                        (failed, ended) = (Some(self.fail_carrying(error)), true);
                        continue;
                    }
                    done += got;
                    ended = got < piece.len;
                }
                result => (failed, ended) = (Some(of_errno(result.unwrap_or(-i64::from(libc::EIO)))), true),
            }
        }
        match failed {
            Some(error) if done == 0 => Err(error),
            _ => Ok(done),
        }
    }

    /// Adds this client's number and token to a request. Also returns the tag of the request, which has the next number.
    #[inline]
    fn signed(&mut self, request: Request) -> (u64, Request) {
        self.number = self.number.wrapping_add(1);
        let request = Request { client: self.client.into(), token: self.token.into(), ..request };
        (tag(self.thread, self.number), request)
    }

    fn deadline(&self) -> Option<Instant> {
        self.patience.map(|patience| world::now() + patience)
    }

    #[inline]
    fn send(&mut self, request: Request, follows: &[u8]) -> io::Result<u32> {
        if self.broken {
            return Err(over(self.server.node, Over::GivenUp));
        }
        let (tag, request) = self.signed(request);
        let deadline = self.deadline();
        self.outlet.send(tag, request.as_bytes(), follows, deadline).map(|()| self.number).map_err(|error| self.fail(error))
    }

    /// Receives the next reply into `room`.
    #[inline]
    fn receive(&mut self, deadline: Option<Instant>) -> io::Result<Letter> {
        let (mut asked, mut ping) = (0_u32, None);
        loop {
            let ask = world::now() + ASK;
            match self.mailbox.receive_until(&mut self.room, deadline.map_or(ask, |deadline| deadline.min(ask))) {
                Ok(Some(letter)) if ping == Some(letter.tag as u32) => {
                    ping = None;
                    self.heard_of_requests(reply(&self.room).result.get())?;
                }
                Ok(Some(letter)) => return Ok(letter),
                Ok(None) if deadline.is_some_and(|deadline| world::now() >= deadline) => {
                    let node = Some(self.server.node);
                    return Err(self.fail(Error::Timeout { operation: "a request to an I/O node", node }));
                }
                Ok(None) => {
                    asked += 1;
                    if let Err(error) = self.check_there() {
                        // Messages that the server sent before it went have arrived by now.
                        return match self.mailbox.try_receive(&mut self.room) {
                            Ok(Some(letter)) if ping != Some(letter.tag as u32) => Ok(letter),
                            _ => Err(self.fail(error)),
                        };
                    }
                    if asked.is_multiple_of(PING_EVERY) && self.client != 0 {
                        ping = self.ping();
                    }
                }
                Err(error) => return Err(self.fail(error)),
            }
        }
    }

    /// Fails if the server is gone.
    #[cold]
    fn check_there(&self) -> Result<()> {
        let PeerId { node, incarnation } = self.server;
        shared_of(&self.node).why_over(Token::current(), node, incarnation).map_or(Ok(()), Err)?;
        self.outlet.check_there()
    }

    /// Asks whether the server still knows this client. Returns the number of the request.
    #[cold]
    fn ping(&mut self) -> Option<u32> {
        let (tag, request) = self.signed(Request::new(Op::Ping));
        // If there is no room now, the next `Ping` will do.
        matches!(self.outlet.try_send(tag, request.as_bytes()), Ok(true)).then_some(tag as u32)
    }

    /// Handles the reply to a `Ping`, which comes after all earlier replies. A request that it does not count is lost.
    #[cold]
    fn heard_of_requests(&mut self, under_way: i64) -> io::Result<()> {
        if under_way > 0 {
            return Ok(());
        }
        self.broken = true;
        Err(match under_way {
            0 => over(self.server.node, Over::Lost),
            errno if errno == -i64::from(libc::ENOTCONN) => over(self.server.node, Over::Forgotten),
            errno => of_errno(errno),
        })
    }

    /// The error for staging memory that can't be reached.
    #[cold]
    fn fail_carrying(&mut self, error: Error) -> io::Error {
        match self.check_there() {
            Err(gone) => self.fail(gone),
            Ok(()) if matches!(&error, Error::Key { why: KeyFault::Stale | KeyFault::Unknown, .. }) => {
                self.broken = true;
                over(self.server.node, Over::Forgotten)
            }
            Ok(()) => self.fail(error),
        }
    }

    /// After a failure on the way it is unknown which requests are still in progress.
    #[cold]
    fn fail(&mut self, error: Error) -> io::Error {
        self.broken = true;
        match error.downcast_ref() {
            Some(DeviceError::Absent) => over(self.server.node, Over::NoMore),
            _ => error.into(),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.client != 0 && !doorbell_shm::space::forked() && shared_of(&self.node).usable().is_ok() {
            self.tell(Request::new(Op::Bye));
        }
    }
}

/// A number that no other client has.
fn token_of(thread: u32) -> u64 {
    // Different each time, and in each process.
    world::random() ^ u64::from(thread)
}

fn reply(room: &[u8]) -> Reply {
    // The receiver has checked the length.
    Reply::read_from_prefix(room).map_or(Reply::new(-i64::from(libc::EPROTO), 0), |(reply, _)| reply)
}

fn span(op: Op, descriptor: u16, offset: u64, len: usize, place: u32) -> Request {
    Request {
        descriptor: descriptor.into(),
        offset: offset.into(),
        length: (len as u32).into(),
        place: place.into(),
        ..Request::new(op)
    }
}

/// An offset plus a length. Beyond the system's range there is no byte.
fn place(offset: u64, more: usize) -> io::Result<u64> {
    offset.checked_add(more as u64).filter(|at| *at <= i64::MAX as u64).ok_or_else(|| Errno::INVAL.into())
}

/// Why a connection is of no use any more.
enum Over {
    GivenUp,
    NoMore,
    Lost,
    Forgotten,
}

#[cold]
fn over(server: NodeId, why: Over) -> io::Error {
    let what = match why {
        Over::GivenUp => format!("an earlier request to node {server} was given up and may still take effect; connect again"),
        Over::NoMore => {
            format!("node {server} does not serve files any more; start `doorbell io serve` there, and connect again")
        }
        Over::Lost => format!(
            "a reply of node {server} was lost, so it is unknown what was done: the network failed, or this thread was stopped for too long; connect again"
        ),
        Over::Forgotten => format!(
            "node {server} does not know this client any more: it was restarted, or this client did not take its replies; connect again"
        ),
    };
    io::Error::new(io::ErrorKind::NotConnected, what)
}

#[cold]
fn no_server(server: NodeId, error: Error) -> io::Error {
    match error.downcast_ref() {
        Some(DeviceError::Absent) => {
            let what = format!("node {server} serves no files; start `doorbell io serve` there");
            io::Error::new(io::ErrorKind::NotFound, what)
        }
        Some(DeviceError::NoLane { .. } | DeviceError::Crowded { .. }) => Errno::USERS.into(),
        _ => error.into(),
    }
}

/// The error for a server's negative result. A number that is no errno breaks the protocol.
#[cold]
fn of_errno(errno: i64) -> io::Error {
    let errno = errno.checked_neg().and_then(|errno| i32::try_from(errno).ok()).filter(|errno| (1..=4095).contains(errno));
    io::Error::from_raw_os_error(errno.unwrap_or(libc::EPROTO))
}
