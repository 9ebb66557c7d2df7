//! The server's thread: it takes requests, carries them out, and replies.

use super::carry::{Answer, Job};
use super::clients::{Client, Clients, Name};
use super::export::Export;
use super::files::{Files, IoEngine};
use super::introduce::{Introductions, Newcomer};
use super::way::{Letter, Mailbox, Outlet};
use super::wire::{HEAD, Op, ROOM, Reply, Request, VERSION};
use doorbell_engine::kit::{Error, Node, Result, Token, shared_of, world};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// The most requests of all clients without a reply.
pub(super) const JOBS: usize = 128;
/// The most of one client. A client with more does not take its replies.
const JOBS_OF_ONE: usize = 16;
/// How often the server checks which clients are gone.
const SWEEP: Duration = Duration::from_millis(50);
/// After this many requests the server looks at the clock, however busy it is.
const CLOCK_EVERY: u32 = 1024;
/// After this many requests in a row, other pending work gets a turn.
const BATCH: u32 = 16;
/// How long to wait for the ring while requests may arrive, at first and at most.
const NAP: Duration = Duration::from_micros(50);
const NAP_MOST: Duration = Duration::from_micros(800);
/// How soon a reply that found no room is sent again.
const RESEND: Duration = Duration::from_millis(1);
/// How long a client may take to make room for a reply.
const STUCK_MOST: Duration = Duration::from_secs(30);
/// How long the server waits at its end for operations in progress.
const END_MOST: Duration = Duration::from_secs(5);
/// The most staging memory of one client, in bytes.
const STAGING_OF_ONE: usize = 16 << 20;

#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub clients: usize,
    pub descriptors: usize,
    pub staging: usize,
    /// The most descriptors of all clients together.
    pub all: u64,
}

/// What the server's thread shares with the handle: its engine, its counts, and the request to stop.
pub(super) struct Shown {
    pub engine: IoEngine,
    pub stop: AtomicBool,
    pub counts: Counts,
}

impl Shown {
    pub(super) fn new(engine: IoEngine) -> Self {
        Self { engine, stop: AtomicBool::new(false), counts: Counts::default() }
    }
}

/// Only the server's thread writes these.
#[derive(Default)]
pub(super) struct Counts {
    pub clients: AtomicU64,
    pub descriptors: AtomicU64,
    pub staging: AtomicU64,
    pub requests: AtomicU64,
    pub read: AtomicU64,
    pub written: AtomicU64,
    pub lost: AtomicU64,
}

pub(super) fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

pub(super) struct Worker {
    node: Node,
    pub export: Export,
    pub files: Files,
    pub limits: Limits,
    pub jobs: Vec<Job>,
    free: Vec<usize>,
    /// Jobs whose reply found no room, and since when.
    stuck: VecDeque<(usize, Instant)>,
    /// An operation did not end in time when the server ended.
    given_up: bool,
    pub clients: Clients,
    /// The staging memory of all clients, in bytes.
    staging: usize,
    introductions: Introductions,
    /// There is one client at most, so no other client waits when the thread waits.
    pub is_alone: bool,
    pub shown: Arc<Shown>,
}

impl Worker {
    pub(super) fn new(node: Node, export: Export, files: Files, limits: Limits, shown: Arc<Shown>) -> Self {
        Self {
            introductions: Introductions::new(&node),
            node,
            export,
            files,
            limits,
            jobs: (0..JOBS).map(|_| Job::new()).collect(),
            given_up: false,
            free: (0..JOBS).rev().collect(),
            stuck: VecDeque::new(),
            clients: Clients::default(),
            staging: 0,
            is_alone: true,
            shown,
        }
    }

    pub(super) fn run(&mut self, mut mailbox: Mailbox) -> Result<()> {
        let mut sweep_at = world::now() + SWEEP;
        let (mut handled, mut nap) = (0_u32, NAP);
        while !self.shown.stop.load(Ordering::Relaxed) {
            let job = match self.free.pop() {
                Some(job) => job,
                None => {
                    self.make_room();
                    continue;
                }
            };
            let room = &mut self.jobs[job].room[..ROOM];
            let got = match (self.files.under_way(), self.stuck.is_empty() && self.introductions.is_idle()) {
                (0, true) => mailbox.receive_until(room, sweep_at),
                (0, false) => mailbox.receive_until(room, world::now() + RESEND),
                _ => mailbox.try_receive(room),
            };
            match got {
                Ok(Some(letter)) => {
                    (handled, nap) = (handled.wrapping_add(1), NAP);
                    if !self.begin(job, letter, &mailbox) {
                        self.free.push(job);
                    }
                    // However busy the server is, pending work of others gets a turn.
                    if handled.is_multiple_of(BATCH) {
                        self.see_to_others();
                    }
                }
                Ok(None) => {
                    self.free.push(job);
                    if self.files.prepared() > 0 {
                        self.files.submit();
                    } else if self.files.under_way() > 0 {
                        // The wait gets longer while nothing happens.
                        self.files.wait(1, nap);
                        nap = (2 * nap).min(NAP_MOST);
                    }
                    self.see_to_others();
                    handled = 0;
                }
                Err(error) => {
                    self.free.push(job);
                    return if matches!(error, Error::Closed) { Ok(()) } else { Err(error) };
                }
            }
            self.reap();
            if handled.is_multiple_of(CLOCK_EVERY) {
                let now = world::now();
                if now >= sweep_at {
                    sweep_at = now + SWEEP;
                    self.sweep();
                }
            }
        }
        Ok(())
    }

    /// Submits what is prepared, and retries what had to wait.
    fn see_to_others(&mut self) {
        self.files.submit();
        self.resend();
        self.meet_all();
    }

    /// All jobs are in use: waits until one ends, or drops a client that does not take its replies.
    #[cold]
    fn make_room(&mut self) {
        self.files.submit();
        self.reap();
        self.resend();
        if !self.free.is_empty() {
            return;
        }
        if self.files.under_way() > 0 {
            self.files.wait(1, SWEEP);
            self.reap();
        } else if let Some((job, _)) = self.stuck.front() {
            self.lose_of(*job);
        }
        self.sweep();
    }

    /// Handles operations that have ended.
    #[inline]
    fn reap(&mut self) {
        while let Some((job, result)) = self.files.next() {
            let job = job as usize;
            let Some(result) = self.go_on(job, result) else { continue };
            let answer = self.finish(job, result);
            self.answer(job, answer);
        }
    }

    /// Begins the operation of a request. False if the job is not needed: the request is for no client, or no valid one.
    fn begin(&mut self, job: usize, letter: Letter, mailbox: &Mailbox) -> bool {
        let request = Request::read_from_prefix(&self.jobs[job].room[..letter.len.min(ROOM)]);
        let Some((request, op)) = request.ok().and_then(|(request, _)| Some((request, Op::from_number(request.op)?))) else {
            return false;
        };
        let to = &mut self.jobs[job];
        (to.client, to.tag, to.op, to.quiet) = (request.client.get(), letter.tag, op, request.quiet != 0);
        (to.in_message, to.at_cursor, to.was_plain, to.tries) = (false, false, false, 0);
        to.looks_for = None;
        to.descriptor = request.descriptor.get();
        add(&self.shown.counts.requests, 1);
        let (name, number) = (Name::of(&letter, &request), request.client.get());
        if op == Op::Hello {
            // Later requests must come by the same lane, so this check settles which node they come from.
            if mailbox.is_from(&letter) {
                self.hello(name, letter.tag, &request);
            }
            return false;
        }
        if op == Op::Bye && number == 0 {
            // The client gave up before it had its number.
            self.introductions.forget(name);
            if let Some(number) = self.clients.of(name) {
                self.dismiss(number);
            }
            return false;
        }
        let found = self.clients.get(number).filter(|client| client.name == name && !client.gone);
        let Some(client) = found else {
            // Not a client, or one that was dropped. A client that waits for long asks with `Ping`.
            if op == Op::Ping && self.introductions.has_room_for(name) {
                self.answer_newcomer(name, letter.tag, Err(Errno::NOTCONN));
            }
            return false;
        };
        client.jobs += 1;
        if client.jobs > JOBS_OF_ONE || op == Op::Bye {
            if op == Op::Bye {
                self.dismiss(number)
            } else {
                self.lose(number)
            }
            self.let_go(job);
            return true;
        }
        match self.carry_out(job, op, &request, letter.len - HEAD) {
            Ok(Some(result)) => {
                let answer = self.finish(job, result);
                self.answer(job, answer);
            }
            Ok(None) => {}
            Err(errno) => self.answer(job, errno.into()),
        }
        true
    }

    /// Sends the reply, and frees the job once it is sent.
    #[inline]
    fn answer(&mut self, job: usize, answer: Answer) {
        let Self { jobs, clients, .. } = self;
        let to = &mut jobs[job];
        let Answer { result, value, follows } = answer;
        if !to.quiet
            && let Some(client) = clients.get(to.client).filter(|client| !client.gone)
        {
            to.room[..HEAD].copy_from_slice(Reply::new(result, value).as_bytes());
            to.reply = HEAD + follows;
            match client.outlet.try_send(to.tag, &to.room[..HEAD + follows]) {
                Ok(true) => {}
                Ok(false) => {
                    self.stuck.push_back((job, world::now()));
                    return;
                }
                // The reply is lost, so the client is dropped. It learns that from its next `Ping`.
                Err(_) => self.lose_of(job),
            }
        }
        self.let_go(job);
    }

    #[cold]
    fn lose_of(&mut self, job: usize) {
        self.lose(self.jobs[job].client);
    }

    /// Sends replies again that found no room.
    fn resend(&mut self) {
        for _ in 0..self.stuck.len() {
            let Some((job, since)) = self.stuck.pop_front() else { return };
            let to = &self.jobs[job];
            let client = self.clients.get(to.client).filter(|client| !client.gone);
            let sent = client.map(|client| client.outlet.try_send(to.tag, &to.room[..to.reply]));
            match sent {
                Some(Ok(false)) if world::since(since) < STUCK_MOST => self.stuck.push_back((job, since)),
                Some(Ok(false) | Err(_)) => {
                    self.lose_of(job);
                    self.let_go(job);
                }
                _ => self.let_go(job),
            }
        }
    }

    /// Frees a job.
    #[inline]
    fn let_go(&mut self, job: usize) {
        self.free.push(job);
        let number = self.jobs[job].client;
        if let Some(client) = self.clients.get(number) {
            client.jobs -= 1;
            if client.gone && client.jobs == 0 {
                self.bury(number);
            }
        }
    }

    /// Handles a node's request to become a client.
    #[cold]
    fn hello(&mut self, name: Name, tag: u64, request: &Request) {
        // A client that asks again did not get the welcome.
        if let Some(number) = self.clients.of(name)
            && let Some(client) = self.clients.get(number)
        {
            if client.outlet.check_there().is_ok() {
                client.welcome(number, tag);
            } else {
                // The way to the client is gone. It will ask again, and gets another.
                self.lose(number);
            }
            return;
        }
        if !self.introductions.has_room_for(name) {
            return;
        }
        let answer = if request.offset.get() != u64::from(VERSION) {
            Err(Errno::PROTONOSUPPORT)
        } else if !self.has_place_for(name) {
            Err(Errno::USERS)
        } else {
            let wanted = (request.length.get() as usize).min(STAGING_OF_ONE).min(self.staging_for(name));
            // Whole pages; less than one counts as none.
            Ok(wanted & !4095)
        };
        self.answer_newcomer(name, tag, answer);
    }

    /// Whether one more thread of a node can be a client: only while more places are free than that node has, so that no node
    /// takes all.
    fn has_place_for(&self, name: Name) -> bool {
        let [of_node, all] = self.introductions.clients(name.who.node);
        let free = self.limits.clients.saturating_sub(self.clients.len() + all);
        self.clients.of_node(name.who.node).count() + of_node < free
    }

    /// The staging memory for one more client of a node. As much is left as the node has then.
    fn staging_for(&self, name: Name) -> usize {
        let node = name.who.node;
        let has = self.clients.of_node(node).map(Client::staging_bytes).sum::<usize>() + self.introductions.staging(node);
        (self.limits.staging - self.staging).saturating_sub(has) / 2
    }

    /// Replies to a node to which there may be no way yet.
    #[cold]
    fn answer_newcomer(&mut self, name: Name, tag: u64, answer: Result<usize, Errno>) {
        let outlet = self.way_to(name);
        let has_all = outlet.is_some() && answer.unwrap_or(0) == 0;
        self.staging += answer.unwrap_or(0);
        let newcomer = Newcomer { name, tag, answer, outlet, staging: None, gave_up: false };
        if has_all {
            self.meet(newcomer);
        } else {
            self.introductions.introduce(newcomer);
        }
    }

    /// The way to a node that has a client already.
    fn way_to(&self, name: Name) -> Option<Rc<Outlet>> {
        let is_it = |client: &Client| client.name.who == name.who && !client.gone && client.outlet.check_there().is_ok();
        self.clients.iter().find(|(_, client)| is_it(client)).map(|(_, client)| client.outlet.clone())
    }

    /// Replies to the newcomers that are ready.
    fn meet_all(&mut self) {
        while let Some(newcomer) = self.introductions.next() {
            self.meet(newcomer);
        }
    }

    #[cold]
    fn meet(&mut self, newcomer: Newcomer) {
        let Newcomer { name, tag, answer, outlet, staging, gave_up } = newcomer;
        // Another client of that node may have been faster.
        let outlet = match self.way_to(name) {
            Some(known) => {
                self.introductions.dismiss(name, outlet, None);
                Some(known)
            }
            None => outlet,
        };
        self.staging -= answer.unwrap_or(0);
        match (answer, outlet) {
            (Ok(_), Some(outlet)) if !gave_up => {
                let client = Client::new(name, outlet, staging);
                self.staging += client.staging_bytes();
                let number = self.clients.add(client);
                if let Some(client) = self.clients.get(number) {
                    client.welcome(number, tag);
                }
                self.show();
            }
            (Err(errno), Some(outlet)) => {
                let reply = Reply::new(Answer::from(errno).result, VERSION.into());
                // A node that takes no reply now will ask again.
                let _ = outlet.try_send(tag, reply.as_bytes());
                self.introductions.dismiss(name, Some(outlet), staging);
            }
            (_, outlet) => self.introductions.dismiss(name, outlet, staging),
        }
    }

    /// Drops the clients that are gone.
    fn sweep(&mut self) {
        let shared = shared_of(&self.node);
        let me = Token::current();
        let gone = |client: &Client| !client.gone && shared.is_over(me, client.name.who.node, client.name.who.incarnation);
        let lost: Vec<u32> = self.clients.iter().filter(|(_, client)| gone(client)).map(|(number, _)| number).collect();
        for number in lost {
            self.lose(number);
        }
    }

    /// Drops a client that died, or that broke the rules.
    #[cold]
    fn lose(&mut self, number: u32) {
        add(&self.shown.counts.lost, 1);
        self.dismiss(number);
    }

    fn dismiss(&mut self, number: u32) {
        self.files.submit();
        let Some(client) = self.clients.get(number) else { return };
        client.gone = true;
        client.release_all();
        if client.jobs == 0 {
            self.bury(number);
        }
        self.show();
    }

    fn bury(&mut self, number: u32) {
        if let Some(client) = self.clients.remove(number) {
            self.staging -= client.staging_bytes();
            self.introductions.dismiss(client.name, Some(client.outlet), client.staging);
        }
        self.show();
    }

    fn show(&mut self) {
        self.is_alone = self.clients.len() <= 1;
        let counts = &self.shown.counts;
        let descriptors: usize = self.clients.iter().map(|(_, client)| client.open()).sum();
        counts.clients.store(self.clients.iter().filter(|(_, client)| !client.gone).count() as u64, Ordering::Relaxed);
        counts.descriptors.store(descriptors as u64, Ordering::Relaxed);
        counts.staging.store(self.staging as u64, Ordering::Relaxed);
    }

    /// Ends all clients.
    pub(super) fn end(&mut self) {
        self.settle();
        self.introductions.end(world::now() + END_MOST);
        let numbers: Vec<u32> = self.clients.iter().map(|(number, _)| number).collect();
        for number in numbers {
            self.dismiss(number);
        }
        self.show();
    }

    /// Waits for operations in progress. Their memory has to stay until they end.
    fn settle(&mut self) {
        if self.given_up {
            return;
        }
        let until = world::now() + END_MOST;
        self.files.submit();
        while self.files.under_way() > 0 && world::now() < until {
            self.files.wait(1, SWEEP);
            self.reap();
        }
        if self.files.under_way() > 0 {
            tracing::warn!("a medium does not answer: the operations that wait for it keep their memory until this process ends");
            self.given_up = true;
            std::mem::forget((std::mem::take(&mut self.jobs), std::mem::take(&mut self.clients)));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Also after a panic.
        self.settle();
    }
}
