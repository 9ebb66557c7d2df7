//! Two endpoints, and a network that behaves as a program says.

use super::player::Player;
use super::tape::Tape;
use super::world::{End, World};
use crate::protocol::sim::{Dice, Network, Node, Rules};
use crate::protocol::time::nanos;
use crate::protocol::{Config, DomainKey, Endpoint, Integrity, LinkConfig, Target, Time};
use doorbell_fabric::{Incarnation, NodeId, PRIORITIES, PacketKind, Priority};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;
/// A peer that is silent for this long is dead.
const DEAD: Duration = Duration::from_secs(10);
/// Everything must end within this time after the network became good: time to find an old session dead and to open a new one.
const ENOUGH: u64 = 60 * SECOND;
/// The longest hole that every session survives.
const HOLES: u64 = 2 * SECOND;
/// The longest duration of a program.
const LONGEST: u64 = 200 * SECOND;
/// The most instructions of one program.
const STEPS: usize = 1000;
/// Sizes of a packet's payload, of a transfer, and of a datagram.
const PACKETS: [usize; 8] = [0, 1, 60, 500, 1100, 1500, 9_000, 65_535];
const TRANSFERS: [u64; 8] = [0, 1, 200, 5_000, 40_000, 70_000, 200_000, 700_000];
const DATAGRAMS: [usize; 6] = [1_200, 1_300, 1_472, 4_000, 9_000, 65_507];

/// Runs a program for two endpoints.
///
/// # Panics
/// Pushed packets do not arrive in order and once; a byte of a transfer is placed twice, wrongly or not at all; a session ends
/// without cause; or something does not end although the network is good.
pub fn sessions(program: &[u8]) {
    let mut game = Game::new(program);
    for _ in 0..STEPS {
        if game.tape.is_empty() || game.network.now() > Time::from_nanos(LONGEST) {
            break;
        }
        game.step();
    }
    game.finish();
}

struct Game<'p> {
    tape: Tape<'p>,
    network: Network<Player>,
    world: Rc<RefCell<World>>,
    config: Config,
    /// The rules of each direction.
    rules: [Rules; 2],
    lives: [u32; 2],
    holes: u64,
    moves: u8,
    /// The bytes that were pushed, and those of transfers.
    bytes: u64,
}

impl<'p> Game<'p> {
    fn new(program: &'p [u8]) -> Self {
        let mut tape = Tape::new(program);
        let mut config = Config::new("program", NodeId(0), Incarnation(1));
        let (how, what) = (tape.byte(), tape.byte());
        config.key = (how & 1 != 0).then_some(DomainKey([5; 32]));
        config.integrity = if how & 2 != 0 { Integrity::Header } else { Integrity::Full };
        config.links = vec![match how >> 2 & 3 {
            0 => LinkConfig::LOOPBACK,
            1 => LinkConfig::interface(1_500),
            2 => LinkConfig::interface(9_000),
            _ => LinkConfig::UNKNOWN,
        }];
        if what >> 4 & 3 == 2 {
            config.links.push(config.links[0]);
        }
        config.lane_window = [8 << 10, 12_345, 64 << 10, 1 << 20][usize::from(how >> 4 & 3)];
        config.lane_buffer = [8 << 10, 300_000][usize::from(how >> 6 & 1)];
        config.dead_after = DEAD;
        config.ack_delay = Duration::from_micros([500, 0, 20_000, 100_000][usize::from(what & 3)]);
        config.ack_every = 1 + u32::from(what >> 2 & 3) * 4;
        config.idle_after = (what >> 4 & 3 == 3).then_some(Duration::from_secs(3));
        config.rekey_after_packets = [1 << 23, 100, 16, 16][usize::from(what >> 6)];
        config.initial_window = if how & 128 != 0 { 2_400 } else { 64 << 10 };
        let clean = Rules { lost_in_a_row: 3, ..Rules::clean([100 * MICRO, 5 * MILLI][tape.below(2)]) };
        let world = Rc::new(RefCell::new(World::default()));
        world.borrow_mut().has_idle = config.idle_after.is_some();
        world.borrow_mut().dead_after = nanos(DEAD);
        let mut game = Self {
            network: Network::new(tape.byte().into(), clean.clone()),
            tape,
            world,
            config,
            rules: [clean.clone(), clean],
            lives: [0; 2],
            holes: 0,
            moves: 0,
            bytes: 0,
        };
        game.network.record = Some(Vec::new());
        for node in 0..2 {
            let endpoint = game.endpoint(node);
            let player = Player::new(node as u16, 1, game.world.clone());
            let links = game.config.links.len() as u8;
            game.network.add_linked(endpoint, player, links);
        }
        game.connect(0);
        game
    }

    /// An endpoint for the next incarnation of a node.
    fn endpoint(&mut self, node: usize) -> Endpoint {
        self.lives[node] += 1;
        let mut config = self.config.clone();
        (config.node, config.incarnation) = (NodeId(node as u16), Incarnation(self.lives[node]));
        config.addresses = [Network::<Player>::address(node), Network::<Player>::further(node, 1)][..config.links.len()].to_vec();
        let mut dice = Dice::new((node as u64) << 32 | u64::from(self.lives[node]));
        let mut seed = [0; 32];
        seed.iter_mut().for_each(|byte| *byte = dice.number() as u8);
        Endpoint::new(config, seed).expect("a sound configuration")
    }

    fn connect(&mut self, node: usize) {
        let now = self.network.now();
        let driver = &self.network.nodes[node].driver;
        if driver.attempt.is_some() || driver.session.is_some() {
            return;
        }
        let peer = self.network.nodes[1 - node].address;
        let target = Target { path: crate::protocol::Path { peer, ..Network::<Player>::path_to(0) }, node: None };
        self.network.nodes[node].driver.attempt = self.network.endpoint(node).connect(now, target);
        self.network.wake(node);
        if self.network.nodes[1 - node].driver.attempt.is_some() {
            self.world.borrow_mut().both_asked = true;
        }
    }

    /// Lets a node do something at once.
    fn with<T>(&mut self, node: usize, act: impl FnOnce(Time, &mut Endpoint, &mut Player) -> T) -> T {
        let now = self.network.now();
        let place = &mut self.network.nodes[node];
        let done = act(now, place.endpoint.as_mut().expect("a living node"), &mut place.driver);
        self.network.wake(node);
        done
    }

    fn pass(&mut self, span: u64) {
        let until = self.network.now() + span;
        self.network.run(until, |_| false);
        if let Some(record) = &mut self.network.record {
            let old = record.len().saturating_sub(64);
            record.drain(..old);
        }
    }

    fn lay(&mut self) {
        self.network.lay(self.rules[0].clone(), &[(0, 1)]);
        self.network.lay(self.rules[1].clone(), &[(1, 0)]);
    }

    fn step(&mut self) {
        let byte = self.tape.byte();
        let node = usize::from(byte >> 7);
        match byte & 31 {
            0..=4 => self.push(node),
            5 | 6 => self.message(node),
            7 => {
                let (which, on) = (self.tape.below(3), self.tape.flag());
                self.with(node, |_, _, player| player.refuse[which] = on);
            }
            8 => {
                let every = self.tape.byte().into();
                self.with(node, |_, _, player| player.stop_every = every);
            }
            9 => self.with(node, |_, _, player| player.hold = !player.hold),
            10..=12 => self.expect(node),
            13 => {
                let priority = Priority::ALL[self.tape.below(3)];
                self.with(node, |now, endpoint, player| player.begin(now, endpoint, priority));
            }
            14 => {
                let further = TRANSFERS[self.tape.below(8)];
                self.with(node, |now, endpoint, player| player.grant(now, endpoint, further));
            }
            15 | 16 => {
                let (incoming, which) = (byte & 31 == 15, self.tape.below(4));
                self.with(node, |now, endpoint, player| player.give_up(now, endpoint, incoming, which));
            }
            17 => self.with(node, |_, _, player| player.unreadable = !player.unreadable),
            18 | 19 => self.weather(node),
            20..=23 => {
                let span = (1 + u64::from(self.tape.byte())) * [MICRO, 50 * MICRO, 2 * MILLI, 40 * MILLI][usize::from(byte & 3)];
                self.pass(span);
            }
            24 => {
                let code = self.tape.byte().min(239);
                self.with(node, |now, endpoint, player| player.close(now, endpoint, code));
            }
            25 => self.restart(node),
            26 => self.connect(node),
            27 => {
                let size = DATAGRAMS[self.tape.below(6)] + self.tape.below(2);
                self.with(node, |_, endpoint, player| {
                    let path = player.session.and_then(|session| endpoint.path(session));
                    path.map(|path| endpoint.too_large(path, size))
                });
            }
            28 => self.hole(),
            29 => self.go_elsewhere(),
            _ => self.again(node),
        }
    }

    fn push(&mut self, node: usize) {
        let (what, times) = (self.tape.byte(), 1 + self.tape.below(64));
        let (priority, len) = (Priority::ALL[usize::from(what >> 6) % 3], PACKETS[usize::from(what & 7)]);
        let kind = [PacketKind::Whole, PacketKind::Control, PacketKind::Chunk, PacketKind::Loan][usize::from(what >> 3 & 3)];
        if self.bytes > 4 << 20 {
            return;
        }
        self.bytes += (len * times) as u64;
        self.with(node, |now, endpoint, player| {
            let Some(session) = player.session else { return };
            let packet = len.min(endpoint.packet_bytes(session));
            let room = endpoint.has_room(session, priority, packet * times, packet) && packet > 0;
            let pushed = (0..times).filter(|_| player.push(now, endpoint, priority, kind, packet)).count();
            // A session that has ended may still have packets for its driver.
            let is_over = |end: End| endpoint.is_over(end.name) || !is_open(&player.world().borrow(), end);
            let closing = player.end().is_none_or(is_over);
            assert!(!room || pushed == times || closing, "{pushed} of {times} packets of {packet} bytes, and there was room");
        });
    }

    /// Pushes a message of several packets, which may be given up.
    fn message(&mut self, node: usize) {
        let (what, times) = (self.tape.byte(), self.tape.below(8));
        let (priority, len) = (Priority::ALL[usize::from(what >> 6) % 3], PACKETS[usize::from(what & 7)]);
        self.bytes += (len * times) as u64;
        self.with(node, |now, endpoint, player| {
            if !player.push(now, endpoint, priority, PacketKind::First, len) {
                return;
            }
            for _ in 0..times {
                player.push(now, endpoint, priority, PacketKind::Next, len);
            }
            if what & 8 != 0 {
                player.push(now, endpoint, priority, PacketKind::GivenUp, 0);
            }
        });
    }

    fn expect(&mut self, node: usize) {
        let (what, priority) = (self.tape.byte(), self.tape.byte());
        let total = TRANSFERS[usize::from(what & 7)];
        let limit = if what & 8 != 0 { total / 3 } else { total };
        if self.bytes > 4 << 20 {
            return;
        }
        self.bytes += total;
        let named = self.with(node, |now, endpoint, player| player.expect(now, endpoint, total, limit));
        if named.is_some() && what & 16 != 0 {
            let priority = Priority::ALL[usize::from(priority) % 3];
            self.with(1 - node, |now, endpoint, player| player.begin(now, endpoint, priority));
        }
    }

    /// Changes the rules of a direction.
    fn weather(&mut self, node: usize) {
        let (what, how) = (self.tape.byte(), self.tape.byte());
        let share = f64::from(how) / 256.0;
        let rules = &mut self.rules[node];
        // A checksum that does not cover everything lets some damage through by design.
        let may_corrupt = self.config.key.is_some() || self.config.integrity == Integrity::Full;
        match what % 8 {
            0 => rules.loss = share,
            1 => rules.duplicate = share,
            2 => rules.reorder = share,
            3 => rules.reorder_by = u64::from(how) * u64::from(how) * 10 * MICRO,
            4 => rules.corrupt = if may_corrupt { share / 4.0 } else { 0.0 },
            5 => rules.delay = u64::from(how) * u64::from(how) * 2 * MICRO,
            6 => rules.mtu = DATAGRAMS[usize::from(how) % 6],
            _ => {
                rules.bandwidth = (how > 0).then_some(u64::from(how) * 40_000);
                rules.queue = 200_000;
            }
        }
        self.try_patience();
        self.lay();
    }

    fn hole(&mut self) {
        let (which, how) = (self.tape.byte(), self.tape.byte());
        let span = (1 + u64::from(how)) * 8 * MILLI * if which & 4 != 0 { 8 } else { 1 };
        self.holes += span;
        if self.holes > HOLES {
            self.world.borrow_mut().may_die = true;
        }
        let now = self.network.now();
        for node in 0..2 {
            if which & 3 != node + 1 {
                self.rules[usize::from(node)].holes = vec![(now, now + span)];
            }
        }
        self.lay();
    }

    fn restart(&mut self, node: usize) {
        if self.lives[node] >= 5 {
            return;
        }
        let endpoint = self.endpoint(node);
        let (life, me) = (self.lives[node], node as u16);
        {
            let mut world = self.world.borrow_mut();
            world.restarted = true;
            // An incarnation that has ended takes nothing, and delivers only what was under way.
            world.ends.iter_mut().filter(|(end, _)| end.node == me).for_each(|(_, side)| side.ended = true);
        }
        self.network.nodes[node].endpoint = Some(endpoint);
        self.network.nodes[node].driver = Player::new(me, life, self.world.clone());
        self.connect(node);
    }

    /// Moves node 0 to another address.
    fn go_elsewhere(&mut self) {
        if self.config.key.is_none() || self.moves >= 20 {
            return;
        }
        self.moves += 1;
        let address: SocketAddr = ([10, 9, 9, self.moves], 999).into();
        self.network.nodes[0].address = address;
        self.try_patience();
    }

    /// Allows sessions to die after a move: the moved node gets one Challenge for each of its own pings, and with bad luck these
    /// are all lost until it is too late.
    fn try_patience(&mut self) {
        if self.moves > 0 && self.rules.iter().any(|rules| rules.loss > 0.0 || rules.corrupt > 0.0) {
            self.world.borrow_mut().may_die = true;
        }
    }

    /// Sends an earlier datagram again, perhaps from another address, or corrupted.
    fn again(&mut self, node: usize) {
        let (which, how) = (self.tape.below(64), self.tape.byte());
        let Some(record) = &self.network.record else { return };
        let Some((from, to, mut bytes)) = record.iter().rev().nth(which).cloned() else { return };
        let Some(target) = self.network.nodes.iter().position(|node| node.address == to) else { return };
        // Without a key a change may go unnoticed, and with Integrity::Header the bytes are not checked.
        let may_spoil = self.config.key.is_some() || self.config.integrity == Integrity::Full;
        if how & 1 != 0 && may_spoil {
            let at = usize::from(how >> 3) * bytes.len() / 32;
            bytes[at] ^= 1 << (how >> 1 & 3);
        }
        let from = if how & 2 != 0 { ([10, 7, 7, 7], 700 + u16::from(node as u8)).into() } else { from };
        let to = self.network.nodes[target].address;
        self.network.inject_to(from, to, bytes);
    }

    /// Makes the network good and all drivers dutiful: then everything must end.
    fn finish(&mut self) {
        let clean = Rules::clean(MILLI);
        self.rules = [clean.clone(), clean];
        self.lay();
        for node in 0..2 {
            self.with(node, |_, _, player| {
                player.refuse = [false; 3];
                (player.stop_every, player.hold, player.dutiful) = (0, false, true);
            });
        }
        self.settle("everything under way must end");
        // Credits may still be lost, and a session may be about to die of earlier losses.
        let mut left = [[3; PRIORITIES]; 2];
        for round in 0.. {
            self.meet();
            if self.use_session(&mut left) {
                break;
            }
            assert!(round < 60, "an established session takes nothing: {left:?}");
            self.pass(SECOND);
        }
        self.settle("everything begun at last must end");
        for node in 0..2 {
            self.with(node, |now, endpoint, player| player.close(now, endpoint, node as u8));
        }
        let until = self.network.now() + ENOUGH;
        let empty =
            self.network.run(until, |network| network.nodes.iter().all(|node| node.endpoint.as_ref().is_some_and(is_empty)));
        let world = self.world.borrow();
        let left = || world.ends.iter().filter(|(_, side)| !side.ended).collect::<Vec<_>>();
        assert!(empty, "sessions are left: {:?} {:?}", left(), self.network.nodes.each_stat());
    }

    /// Pushes the remaining packets on each lane, and runs a transfer in each direction. Returns whether all of that was taken.
    fn use_session(&mut self, left: &mut [[u32; PRIORITIES]; 2]) -> bool {
        for (node, lanes) in left.iter_mut().enumerate() {
            self.with(node, |now, endpoint, player| {
                player.unreadable = false;
                player.expect(now, endpoint, 10_000, 10_000);
                for (priority, left) in Priority::ALL.into_iter().zip(lanes) {
                    while *left > 0 && player.push(now, endpoint, priority, PacketKind::Whole, 100) {
                        *left -= 1;
                    }
                }
            });
        }
        for node in 0..2 {
            self.with(node, |now, endpoint, player| while player.begin(now, endpoint, Priority::High) {});
        }
        left.iter().flatten().all(|left| *left == 0)
    }

    fn settle(&mut self, what: &str) {
        let until = self.network.now() + ENOUGH;
        let world = self.world.clone();
        // Cancelled data need not arrive, but it takes room as long as it is under way.
        let is_flushed = |node: &Node<Player>| {
            let endpoint = node.endpoint.as_ref().expect("a living node");
            node.driver.session.is_none_or(|session| endpoint.is_flushed(session))
        };
        let settled = self.network.run(until, |network| world.borrow().is_through() && network.nodes.iter().all(is_flushed));
        let world = self.world.borrow();
        let left = || world.ends.iter().filter(|(_, side)| !side.ended).collect::<Vec<_>>();
        assert!(settled, "{what}: {:.3000}", format!("{:?}", left()));
    }

    /// Waits until both nodes have a session.
    fn meet(&mut self) {
        for _ in 0..10 {
            let both = |network: &Network<Player>| {
                let (one, two) = (network.nodes[0].driver.end(), network.nodes[1].driver.end());
                // An attempt that is still under way might lead to a session later.
                one.is_some() && two.is_some() && network.nodes.iter().all(|node| node.driver.attempt.is_none())
            };
            let world = self.world.clone();
            let met = |network: &Network<Player>| {
                both(network) && network.nodes[0].driver.end().is_some_and(|end| is_open(&world.borrow(), end))
            };
            if met(&self.network) {
                return;
            }
            self.connect(0);
            let until = self.network.now() + ENOUGH / 6;
            self.network.run(until, met);
            self.settle("everything under way must end");
        }
        let world = self.world.borrow();
        let left = || world.ends.iter().filter(|(_, side)| !side.ended).collect::<Vec<_>>();
        panic!("no session comes about: {:?}, {:?}", left(), self.network.nodes.each_stat());
    }
}

/// Whether both ends of a session live and neither closes it.
fn is_open(world: &World, end: End) -> bool {
    world.is_whole(end) && {
        let side = &world.ends[&end];
        side.closed.is_none() && world.ends[&side.peer].closed.is_none()
    }
}

fn is_empty(endpoint: &Endpoint) -> bool {
    endpoint.occupied() == 0 && endpoint.waiting().2 == 0
}

/// The counts of nodes, for messages.
trait EachStat {
    fn each_stat(&self) -> Vec<String>;
}

impl EachStat for Vec<Node<Player>> {
    fn each_stat(&self) -> Vec<String> {
        let endpoints = self.iter().filter_map(|node| node.endpoint.as_ref());
        endpoints.map(|endpoint| format!("{} sessions, {:?}", endpoint.occupied(), endpoint.stats())).collect()
    }
}
