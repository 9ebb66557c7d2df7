//! The datagrams under way: acknowledged, lost, or asked about (after RFC 9002).

use super::frame::Ack;
use super::mtu::MTU_FLOOR;
use super::time::{MILLI, Nanos, Time};
use std::collections::VecDeque;

/// How many datagrams may overtake another before that one counts as lost.
const REORDER_START: u64 = 3;
/// The upper limit of that number, however often the guess was wrong.
const REORDER_MAX: u64 = 256;
/// The records kept beyond the datagrams that the window allows under way, and as many of the items that these carried.
pub(crate) const RECORDS_MAX: usize = 1 << 15;

/// The round trip as measured.
#[derive(Clone, Copy, Default)]
pub(crate) struct RoundTrip {
    pub latest: Nanos,
    pub least: Nanos,
    pub smoothed: Nanos,
    variation: Nanos,
    sampled: bool,
}

impl RoundTrip {
    pub fn new(guess: Nanos) -> Self {
        Self { latest: guess, least: guess, smoothed: guess, variation: guess / 2, sampled: false }
    }

    pub fn sample(&mut self, rtt: Nanos, delay: Nanos) {
        let rtt = rtt.max(1);
        self.latest = rtt;
        if !self.sampled {
            *self = Self { sampled: true, ..Self::new(rtt) };
            return;
        }
        self.least = self.least.min(rtt);
        let adjusted = if rtt >= self.least + delay { rtt - delay } else { rtt };
        self.variation = (3 * self.variation + self.smoothed.abs_diff(adjusted)) / 4;
        self.smoothed = (7 * self.smoothed + adjusted) / 8;
    }

    /// How long an answer may take before a ping is due.
    pub fn patience(&self, granularity: Nanos) -> Nanos {
        self.smoothed + (4 * self.variation).max(granularity)
    }

    fn loss_delay(&self, granularity: Nanos) -> Nanos {
        let longest = self.latest.max(self.smoothed);
        (longest + longest / 8).max(granularity)
    }
}

/// An item of a datagram that must arrive, with enough information to send it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carried {
    /// Whole packets of a lane.
    Packets {
        lane: u8,
        first: u64,
        count: u32,
    },
    /// A part of a packet.
    Fragment {
        lane: u8,
        sequence: u64,
        offset: u32,
        len: u32,
    },
    /// Bytes of a transfer.
    Data {
        transfer: u64,
        offset: u64,
        len: u32,
    },
    Credit {
        lane: u8,
    },
    Grant {
        transfer: u64,
    },
    Cancel {
        transfer: u64,
        by_receiver: bool,
    },
    Close,
    /// An acknowledgement of all numbers up to here. Once it arrived, it need not be repeated.
    Answer {
        largest: u64,
    },
    /// A probe of this size.
    Probe {
        size: u32,
    },
    /// A ping, or anything else that is not sent again.
    Nothing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    UnderWay,
    /// Counted as lost at some time.
    Lost,
    /// Acknowledged, or never to be.
    Done,
}

struct Sent {
    at: Time,
    /// The start of its part of `carried`.
    carried: u64,
    size: u32,
    count: u8,
    state: State,
    /// It neither counts against the window nor indicates congestion.
    probe: bool,
    /// It went by another path, so its order among the others means nothing.
    apart: bool,
}

/// The result of an acknowledgement.
#[derive(Default)]
pub(crate) struct Acked {
    pub bytes: u64,
    /// The number of the latest acknowledged datagram, and the time at which it was sent.
    pub latest: Option<(u64, Time)>,
    /// Size and number of the largest datagram above [`MTU_FLOOR`] bytes; of several, the latest.
    pub large: Option<(usize, u64)>,
    /// The number of datagrams that had counted as lost.
    pub spurious: u64,
    /// All datagrams that counted as lost since the last reduction have arrived.
    pub false_alarm: bool,
}

/// The datagrams that now count as lost.
#[derive(Default)]
pub(crate) struct Lost {
    pub datagrams: u64,
    /// The time at which the latest of those that indicate congestion was sent.
    pub latest: Option<Time>,
    pub persistent: bool,
}

/// All sent datagrams that were not acknowledged yet.
#[derive(Default)]
pub(crate) struct Flight {
    sent: VecDeque<Sent>,
    /// The number of the first entry in `sent`.
    base: u64,
    carried: VecDeque<Carried>,
    carried_base: u64,
    /// The bytes under way that count against the window.
    pub bytes: u64,
    /// The datagrams under way that want an acknowledgement.
    pub waiting: u32,
    /// The time since when there was any.
    pub waiting_since: Time,
    largest_acked: Option<u64>,
    /// The next time at which a datagram counts as lost.
    pub loss_at: Time,
    latest_sent: Time,
    /// Records were dropped since the last acknowledgement. `waiting_since` still counts, although for a moment nothing may be
    /// under way.
    given_up: bool,
    /// The number of pings in a row without an answer.
    pub questions: u32,
    reorder: u64,
    /// Datagrams lost since the last reduction, and those of them that arrived after all.
    alarm: (u64, u64),
    alarm_from: u64,
    /// Lower numbers went by a path that was left, so they tell nothing about the current one.
    path_from: u64,
    pub round_trip: RoundTrip,
    granularity: Nanos,
    /// The longest delay of the other end's acknowledgements.
    peer_delay: Nanos,
    /// The longest pause between two pings.
    pub pause_max: Nanos,
}

/// The items of a sent datagram.
#[inline]
fn items<'a>(carried: &'a VecDeque<Carried>, base: u64, sent: &Sent) -> impl Iterator<Item = Carried> + use<'a> {
    let first = (sent.carried - base) as usize;
    carried.range(first..first + usize::from(sent.count)).copied()
}

impl Flight {
    pub fn new(round_trip: RoundTrip, granularity: Nanos, peer_delay: Nanos, pause_max: Nanos) -> Self {
        let (loss_at, reorder) = (Time::NEVER, REORDER_START);
        Self { loss_at, reorder, round_trip, granularity, peer_delay, pause_max, ..Self::default() }
    }

    /// The number of the next datagram.
    #[inline]
    pub fn next_number(&self) -> u64 {
        self.base + self.sent.len() as u64
    }

    /// Records an item of the datagram being made. [`on_sent`](Self::on_sent) completes that datagram.
    #[inline]
    pub fn carry(&mut self, what: Carried) {
        self.carried.push_back(what);
    }

    /// Records that the datagram being made was sent. `wants_answer`: it holds more than an acknowledgement.
    #[inline]
    pub fn on_sent(&mut self, now: Time, size: usize, count: u8, wants_answer: bool, probe: bool) {
        let carried = self.carried_base + (self.carried.len() - usize::from(count)) as u64;
        let state = if wants_answer { State::UnderWay } else { State::Done };
        self.sent.push_back(Sent { at: now, carried, size: size as u32, count, state, probe, apart: false });
        if wants_answer {
            if self.waiting == 0 && !self.given_up {
                self.waiting_since = now;
            }
            self.waiting += 1;
            self.latest_sent = now;
            if !probe {
                self.bytes += size as u64;
            }
        } else {
            self.drop_done(now);
        }
    }

    /// Records that the datagram being made was sent by another path than the one in use. The caller handles its loss.
    pub fn on_sent_apart(&mut self, now: Time, size: usize) {
        let carried = self.carried_base + self.carried.len() as u64;
        let sent = Sent { at: now, carried, size: size as u32, count: 0, state: State::Done, probe: true, apart: true };
        self.sent.push_back(sent);
        self.drop_done(now);
    }

    #[cfg(test)]
    pub fn records(&self) -> (usize, usize) {
        (self.sent.len(), self.carried.len())
    }

    fn drop_done(&mut self, now: Time) {
        while let Some(first) = self.sent.front() {
            let keep = match first.state {
                State::UnderWay => true,
                // Remember it for a while, to recognise a datagram that was only late.
                State::Lost => now - first.at < 3 * self.round_trip.patience(self.granularity),
                State::Done => false,
            };
            if keep {
                break;
            }
            self.drop_first();
        }
    }

    /// Drops the oldest record.
    fn drop_first(&mut self) {
        let Some(first) = self.sent.pop_front() else { return };
        self.base += 1;
        self.carried_base += u64::from(first.count);
        self.carried.drain(..usize::from(first.count));
    }

    /// Stops waiting for a datagram under way, and passes its items to `each`.
    #[inline]
    fn conclude(&mut self, index: usize, state: State, each: impl FnMut(Carried)) {
        let sent = &mut self.sent[index];
        sent.state = state;
        self.waiting -= 1;
        if !sent.probe {
            self.bytes -= u64::from(sent.size);
        }
        items(&self.carried, self.carried_base, sent).for_each(each);
    }

    /// Processes an acknowledgement. Calls `arrived` for each item of the datagrams that it names.
    pub fn on_ack(&mut self, now: Time, ack: &Ack, mut arrived: impl FnMut(Carried)) -> Result<Acked, &'static str> {
        if ack.largest >= self.next_number() {
            return Err("an acknowledgement of what was never sent");
        }
        let mut acked = Acked::default();
        for (low, high) in ack.ranges() {
            if high < self.base {
                break;
            }
            for number in low.max(self.base)..=high {
                let index = (number - self.base) as usize;
                let sent = &mut self.sent[index];
                let (size, at, was) = (sent.size, sent.at, sent.state);
                match was {
                    State::Done => continue,
                    State::Lost => {
                        sent.state = State::Done;
                        items(&self.carried, self.carried_base, sent).for_each(&mut arrived);
                    }
                    State::UnderWay => {
                        self.conclude(index, State::Done, &mut arrived);
                        acked.bytes += u64::from(size);
                    }
                }
                let is_here = number >= self.path_from;
                if size as usize > MTU_FLOOR && is_here {
                    acked.large = acked.large.max(Some((size as usize, number)));
                }
                if acked.latest.is_none_or(|(latest, _)| number > latest) {
                    acked.latest = Some((number, at));
                }
                // One that was given up with its old path was sent again by the current one.
                if was == State::Lost && is_here {
                    acked.spurious += 1;
                    if number >= self.alarm_from {
                        self.alarm.1 += 1;
                    }
                    // This many datagrams overtook it; allow one more the next time.
                    let overtaken = self.largest_acked.map_or(0, |largest| largest.saturating_sub(number));
                    self.reorder = self.reorder.max(overtaken + 1).min(REORDER_MAX);
                }
            }
        }
        if let Some((number, at)) = acked.latest {
            let is_news = number >= self.path_from && self.largest_acked.is_none_or(|largest| number > largest);
            if number == ack.largest && is_news {
                self.round_trip.sample(now - at, u64::from(ack.delay).min(self.peer_delay.max(MILLI)));
            }
            self.questions = 0;
            self.given_up = false;
        }
        let largest = ack.largest.checked_sub(self.base).and_then(|index| self.sent.get(index as usize));
        let latest =
            if largest.is_some_and(|sent| sent.apart) { acked.latest.map(|(number, _)| number) } else { Some(ack.largest) };
        self.largest_acked = self.largest_acked.max(latest);
        if self.alarm.0 > 0 && self.alarm.0 == self.alarm.1 {
            self.alarm = (0, 0);
            acked.false_alarm = true;
        }
        self.drop_done(now);
        Ok(acked)
    }

    /// Counts datagrams as lost that were overtaken by many others or for a long time. Calls `lost` for each of their items, and
    /// with [`Carried::Nothing`] for the number and the size of each datagram that was no probe.
    pub fn find_lost(&mut self, now: Time, mut lost: impl FnMut(u64, usize, Carried)) -> Lost {
        let mut found = Lost::default();
        self.loss_at = Time::NEVER;
        let Some(largest) = self.largest_acked else { return found };
        let delay = self.round_trip.loss_delay(self.granularity);
        let mut span: Option<Time> = None;
        let trouble = 3 * (self.round_trip.patience(self.granularity) + self.peer_delay);
        for (index, sent) in self.sent.iter_mut().enumerate() {
            let number = self.base + index as u64;
            if number >= largest {
                break;
            }
            if sent.state != State::UnderWay {
                if sent.state == State::Done {
                    span = None;
                }
                continue;
            }
            if largest - number < self.reorder && sent.at + delay > now {
                self.loss_at = self.loss_at.min(sent.at + delay);
                continue;
            }
            sent.state = State::Lost;
            self.waiting -= 1;
            found.datagrams += 1;
            items(&self.carried, self.carried_base, sent).for_each(|carried| lost(number, 0, carried));
            if !sent.probe {
                lost(number, sent.size as usize, Carried::Nothing);
                self.bytes -= u64::from(sent.size);
                found.latest = found.latest.max(Some(sent.at));
                let since = *span.get_or_insert(sent.at);
                found.persistent |= sent.at - since > trouble;
                if number >= self.alarm_from {
                    self.alarm.0 += 1;
                }
            }
        }
        found
    }

    /// The window was reduced. A false alarm now concerns only datagrams lost from here on.
    pub fn begin_alarm(&mut self, lost: u64) {
        self.alarm = (lost, 0);
        self.alarm_from = self.base;
    }

    /// The time for the next ping.
    #[inline]
    pub fn question_at(&self) -> Time {
        if self.waiting == 0 {
            return Time::NEVER;
        }
        let patience = self.round_trip.patience(self.granularity) + self.peer_delay;
        let pause =
            if self.questions == 0 { patience } else { (patience << self.questions.min(20)).min(self.pause_max.max(patience)) };
        self.latest_sent + pause
    }

    /// Records a ping.
    pub fn asked(&mut self, now: Time) {
        self.questions += 1;
        self.latest_sent = now;
    }

    /// Calls `again` for the items of the oldest datagrams under way, to send them once more.
    pub fn oldest(&self, most: usize, mut again: impl FnMut(Carried)) {
        for sent in self.sent.iter().filter(|sent| sent.state == State::UnderWay && !sent.probe).take(most) {
            items(&self.carried, self.carried_base, sent).for_each(&mut again);
        }
    }

    /// Counts the oldest datagrams under way as lost, and calls `again` for their items. This bounds the records however long the
    /// other end is silent.
    pub fn retire(&mut self, now: Time, most: usize, mut again: impl FnMut(Carried)) {
        // Keep the last one, because the time since when something is under way must stay known.
        let most = most.min(self.waiting.saturating_sub(1) as usize);
        self.lose(most, &mut again);
        self.drop_done(now);
    }

    /// Counts this many of the oldest datagrams under way as lost.
    fn lose(&mut self, most: usize, mut again: impl FnMut(Carried)) {
        let keep = (self.waiting as usize).saturating_sub(most);
        for index in 0..self.sent.len() {
            if self.waiting as usize <= keep {
                break;
            }
            if self.sent[index].state == State::UnderWay {
                self.conclude(index, State::Lost, &mut again);
            }
        }
    }

    /// Whether there are more records than a peer that acknowledges ever causes. `window`: the bytes that may be under way.
    #[inline]
    pub fn is_crowded(&self, window: u64) -> bool {
        let records = self.sent.len().max(self.carried.len());
        records >= RECORDS_MAX && records - RECORDS_MAX >= window as usize / MTU_FLOOR
    }

    /// Drops the oldest records down to the limit. Calls `again` for the items of those that were under way. So a peer that
    /// acknowledges nothing costs bounded memory, whatever it makes this end send.
    pub fn thin(&mut self, now: Time, window: u64, mut again: impl FnMut(Carried)) {
        while self.is_crowded(window)
            && let Some(first) = self.sent.front()
        {
            if first.state == State::UnderWay {
                self.given_up = true;
                self.conclude(0, State::Lost, &mut again);
            }
            self.drop_first();
        }
        self.drop_done(now);
    }

    /// Leaves the path in use for another one with this measured round trip. Calls `again` for everything under way, to send it
    /// there.
    pub fn leave(&mut self, round_trip: RoundTrip, again: impl FnMut(Carried)) {
        self.lose(usize::MAX, again);
        (self.questions, self.given_up) = (0, false);
        (self.loss_at, self.alarm, self.reorder) = (Time::NEVER, (0, 0), REORDER_START);
        self.path_from = self.next_number();
        self.alarm_from = self.path_from;
        self.round_trip = round_trip;
    }

    /// The peer has moved, so the measurements are void.
    pub fn restart(&mut self, guess: Nanos) {
        self.round_trip = RoundTrip::new(guess);
        self.reorder = REORDER_START;
    }
}
