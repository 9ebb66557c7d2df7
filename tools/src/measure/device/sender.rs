//! The process that sends.

use super::{COPIED, DEVICE, Leg, Load, Member, Scheme, Sent, end, tag};
use crate::exit::Explain;
use crate::experiment::{Trouble, unless_stopped};
use doorbell::{DeviceSender, Error, LoanMut, Peer};
use doorbell_benches::{Finish, touch};
use std::time::Duration;

/// Messages of a stream between two looks at the clock.
const LOOK_EVERY: u64 = 64;
/// A sleeping sender wakes at least so long before a message is due.
const AWAKE_NS: u64 = 30_000;

/// Sends in all sections.
pub fn work(member: &Member) -> Result<Vec<Vec<Vec<Sent>>>, Trouble> {
    member.meet()?;
    // Behind the gate the receiving processes have made the device.
    member.gate()?;
    nix::sys::prctl::set_timerslack(1).or_usage("could not ask for exact sleeps", "")?;
    let mut sender = Sender::new(member)?;
    member.plan.sections(|turn| {
        member.gate()?;
        let sent = sender.section(member.plan.legs[turn.leg], member.plan.schemes[turn.scheme])?;
        member.gate()?;
        Ok(sent)
    })
}

struct Sender<'a> {
    member: &'a Member,
    device: DeviceSender,
    /// Peers to the process of each thread, and to each thread.
    homes: Vec<Peer>,
    threads: Vec<Peer>,
    /// By these each thread tells that it has read a message.
    read: Vec<Finish<'a>>,
    message: Vec<u8>,
    random: u64,
    numbered: u64,
}

impl<'a> Sender<'a> {
    fn new(member: &'a Member) -> Result<Self, Trouble> {
        let plan = &member.plan;
        let all = || 0..plan.threads;
        Ok(Self {
            device: DeviceSender::open(&member.node, DEVICE)?,
            homes: all().map(|thread| member.node.peer(member.home(thread))).collect::<Result<_, _>>()?,
            threads: all().map(|thread| member.node.peer(member.itself(thread))).collect::<Result<_, _>>()?,
            read: all().map(|thread| Finish::new(&member.place.mapping.pair(thread), &member.place.patience)).collect(),
            message: vec![0; plan.longest()],
            member,
            random: 0x9E37_79B9_7F4A_7C15,
            numbered: 0,
        })
    }

    /// The thread that gets the next message.
    #[inline(always)]
    fn next(&mut self, load: Load) -> usize {
        self.numbered += 1;
        let threads = self.threads.len() as u64;
        if load == Load::Turn {
            return (self.numbered % threads) as usize;
        }
        // xorshift64.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 32) % threads) as usize
    }

    fn section(&mut self, leg: Leg, scheme: Scheme) -> Result<Sent, Trouble> {
        let plan = &self.member.plan;
        let began_ns = self.member.now();
        let until = plan.count.map_or(began_ns + plan.section_ns, |_| u64::MAX);
        let most = plan.count.unwrap_or(u64::MAX);
        let mut messages = 0;
        while messages < most {
            let thread = self.next(leg.load);
            let mut sent_ns = 0;
            if leg.load.is_timed() || messages.is_multiple_of(LOOK_EVERY) {
                sent_ns = self.member.now();
                if leg.load == Load::Paced {
                    let due = began_ns + (messages as f64 * 1e9 / f64::from(plan.rate)) as u64;
                    if due < until {
                        self.sleep_until(due)?;
                    }
                    sent_ns = due;
                }
                if sent_ns >= until {
                    break;
                }
                unless_stopped(&self.member.place.patience)?;
            }
            self.send(scheme, thread, tag(thread, sent_ns), leg.bytes)?;
            messages += 1;
            if leg.load == Load::Alone {
                self.read[thread].wait()?;
            }
        }
        for thread in 0..self.threads.len() {
            self.send_as(scheme, thread, end(thread), &[])?;
        }
        Ok(Sent { began_ns, messages })
    }

    #[inline(always)]
    fn send(&mut self, scheme: Scheme, thread: usize, tag: u64, bytes: usize) -> Result<(), Trouble> {
        if scheme == Scheme::Dispatcher && bytes > COPIED {
            let mut loan = self.loan(bytes)?;
            touch::write(&mut loan, self.numbered);
            return Ok(loan.send(&self.homes[thread], tag)?);
        }
        touch::write(&mut self.message[..bytes], self.numbered);
        self.send_as(scheme, thread, tag, &self.message[..bytes])
    }

    #[inline(always)]
    fn send_as(&self, scheme: Scheme, thread: usize, tag: u64, message: &[u8]) -> Result<(), Trouble> {
        match scheme {
            Scheme::Claimed => self.device.send(thread as u32, tag, message),
            Scheme::Dispatcher => self.homes[thread].send(tag, message),
            Scheme::Fifo => self.threads[thread].send(tag, message),
        }
        .map_err(Trouble::from)
    }

    /// A loan. If all memory is lent, it waits until a reader gives some back.
    #[inline(always)]
    fn loan(&self, bytes: usize) -> Result<LoanMut<[u8]>, Trouble> {
        loop {
            match self.member.node.loan_bytes(bytes) {
                Err(Error::LoansOut { .. }) if !self.member.place.patience.stopped() => std::thread::yield_now(),
                lent => return Ok(lent?),
            }
        }
    }

    fn sleep_until(&self, due: u64) -> Result<(), Trouble> {
        loop {
            let now = self.member.now();
            if now >= due {
                return Ok(());
            }
            unless_stopped(&self.member.place.patience)?;
            match (due - now).saturating_sub(AWAKE_NS) {
                0 => std::hint::spin_loop(),
                // Short enough to notice a request to stop.
                rest => std::thread::sleep(Duration::from_nanos(rest.min(100_000_000))),
            }
        }
    }
}
