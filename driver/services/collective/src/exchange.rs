//! The part of one member in a collective that goes by a channel: it puts the bytes that others need into its slot, and takes those that it needs from theirs.
//!
//! A member's contribution goes in chunks, of which the slot holds several: chunk *k* has place *k* mod *depth*, and a ticket. A reader watches for that
//! ticket in the owner's post. The owner writes chunk *k* + *depth* when all readers of chunk *k* have said that they took it. Contributions that fit a post
//! go with it. Vectors are combined in the order of ranks, chunk by chunk, so that results are the same from run to run.
//!
//! Where lengths differ by member, each member says with its first chunk which lengths it expects: beside the post, or behind each reader's part.

use super::combine::ALIGN_MAX;
use super::kind::Kind;
use super::memory::{Layout, View};
use super::what::What;
use doorbell_shm::channel::SHORT_BYTES;
use doorbell_shm::choice::Choice;
use std::ops::Range;

/// Bytes that are combined at once, in private memory. No other process changes them meanwhile, and two such blocks stay in the nearest cache.
const BLOCK: usize = 16 << 10;
/// The most steps of one operation.
const STEPS_MAX: u64 = 1 << 24;
/// Parts of a slot begin at multiples of this.
const GRAIN: usize = 128;
/// Bytes of a length that a member says it expects.
const WORD: usize = 8;
/// Longer vectors are combined in shares, one by each member.
const SHARES_FROM: usize = 4096;

/// Members called different operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    /// The member whose operation differs from this member's.
    pub member: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It puts its next chunk.
    Put,
    /// It takes the chunks of others, from this member on.
    Get(usize),
    /// It combines its own share of the chunk.
    Share,
    /// It puts the chunk after the one that is combined. No member reads that place any more: a member that has put a chunk has collected the chunk before the
    /// last, and there are places for more than three.
    Ahead,
    /// It takes the shares of others, from this member on.
    Collect(usize),
}

/// One operation, as far as one member has come with it.
pub(super) struct Exchange {
    what: What,
    /// The ticket of chunk 0, less one.
    base: u64,
    /// Members compare it to know that they called the same operation.
    sign: u64,
    /// Whether contributions go with the posts.
    short: bool,
    /// Whether each member combines a share of every chunk, and all collect the shares.
    shares: bool,
    /// The length of a share is a multiple of this.
    grain: usize,
    chunk: usize,
    depth: u64,
    rounds: u64,
    at: u64,
    phase: Phase,
    awaited: Option<Awaited>,
}

/// A word of another member for which an exchange waits.
#[derive(Clone, Copy)]
enum Awaited {
    /// The member has to post this ticket.
    Post(usize, u64),
    /// The member has to take the chunk with this ticket.
    Taken(usize, u64),
}

impl Exchange {
    /// The part of member `me` in an operation. Its number is the same at all members, and greater than any before.
    #[inline]
    pub fn new(what: What, number: u64, me: usize, layout: Layout) -> Self {
        let Layout { members, slot, .. } = layout;
        let (kind, vary) = (what.kind, what.lengths.vary);
        let whole = what.lengths.send.of(me);
        let short = !vary && whole <= SHORT_BYTES && !kind.divides();
        // Whole elements, and whole lines as far as that goes.
        let element = what.element();
        let grain = if GRAIN.is_multiple_of(element) { GRAIN } else { element };
        let is_long = whole > SHARES_FROM.max(members * GRAIN) && slot / 4 >= grain;
        let shares = kind == Kind::AllReduce && members > 1 && is_long;
        let (chunk, depth) = if kind.divides() {
            ((slot / 2 / members) & !(GRAIN - 1), 2)
        } else if shares {
            (slot / 4, 4)
        } else {
            // Several chunks fit, so that one is taken while the next is put.
            let chunk = match kind {
                Kind::Broadcast | Kind::Gather | Kind::AllGather => (slot / 8) & !(GRAIN - 1),
                _ => slot / 2,
            };
            let chunk = chunk.max(GRAIN);
            (chunk, (slot / chunk) as u64)
        };
        let mut chunk = chunk - chunk % grain;
        if vary && says_in_slot(kind) {
            // The expected length stands behind the first chunk.
            chunk = chunk.saturating_sub(WORD);
        }
        let length = if vary { 0 } else { whole as u64 };
        let call = (kind as u64 + 1) | (what.root as u64) << 8 | length << 24;
        // Elements of another size are cut up in another way.
        let sign = call ^ (element as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let base = number * STEPS_MAX;
        let (rounds, at, phase, awaited) = (0, 0, Phase::Put, None);
        let mut exchange = Self { what, base, sign, short, shares, grain, chunk, depth, rounds, at, phase, awaited };
        let pieces = (0..members).map(|other| exchange.mine(me, other).max(exchange.theirs(me, other)));
        exchange.rounds = exchange.chunks(pieces.max().unwrap_or(0));
        if members > 1 {
            // One round even of empty vectors: by its first post each member says which operation it calls.
            exchange.rounds = exchange.rounds.max(1);
        }
        exchange
    }

    /// Says to all readers which lengths this member expects.
    fn say_lengths(&self, view: &View<'_>, room: &mut Room) {
        let lengths = &self.what.lengths;
        match self.what.kind {
            _ if !lengths.vary => (),
            kind if says_in_slot(kind) => {
                for reader in (0..view.members).filter(|other| self.what.reads(*other, view.me)) {
                    let at = self.place(0, view, reader) + self.chunk;
                    view.put(at, &(lengths.send.of(reader) as u64).to_ne_bytes(), &mut room.puts);
                }
            }
            Kind::Gather => view.words.put_short(&(lengths.send.of(self.what.root) as u64).to_ne_bytes()),
            Kind::ReduceScatter => view.words.put_short(&lengths.send.digest().to_ne_bytes()),
            _ => view.words.put_short(&lengths.get.digest().to_ne_bytes()),
        }
    }

    /// Whether another member expects the same lengths as this one.
    fn lengths_agree(&self, view: &View<'_>, from: usize, room: &mut Room) -> bool {
        let lengths = &self.what.lengths;
        if !lengths.vary {
            return true;
        }
        let mut said = [0; WORD];
        if says_in_slot(self.what.kind) {
            view.get(from, self.place(0, view, view.me) + self.chunk, &mut said, &mut room.gets[from]);
        } else {
            view.words.short(from, &mut said);
        }
        let expected = match self.what.kind {
            Kind::Scatter | Kind::AllToAll | Kind::Gather => lengths.get.of(from) as u64,
            Kind::ReduceScatter => lengths.send.digest(),
            _ => lengths.get.digest(),
        };
        u64::from_ne_bytes(said) == expected
    }

    fn chunks(&self, len: usize) -> u64 {
        len.div_ceil(self.chunk.max(1)) as u64
    }

    /// Whether no whole element fits its part of a slot, or the steps are too many to be counted. The first is so at all members, whatever their lengths.
    pub fn is_too_long(&self) -> bool {
        self.chunk == 0 || 2 * self.rounds + 2 >= STEPS_MAX
    }

    /// Bytes that this member has for another one.
    fn mine(&self, me: usize, other: usize) -> usize {
        if self.what.reads(other, me) { self.what.lengths.send.of(other) } else { 0 }
    }

    /// Bytes that another member has for this one.
    fn theirs(&self, me: usize, other: usize) -> usize {
        if self.what.reads(me, other) { self.what.lengths.get.of(other) } else { 0 }
    }

    /// Whether code of the application may run in it.
    #[inline]
    pub fn calls_the_application(&self) -> bool {
        self.what.combine.is_some()
    }

    /// The member that this exchange waited for when it was last advanced, if it still does.
    pub fn awaited(&self, view: &View<'_>) -> Option<usize> {
        let still = |awaited: &Awaited| match *awaited {
            Awaited::Post(member, ticket) => !view.words.has_posted(member, ticket),
            Awaited::Taken(member, ticket) => !view.words.has_taken(member, ticket),
        };
        self.awaited.filter(still).map(|(Awaited::Post(member, _) | Awaited::Taken(member, _))| member)
    }

    /// The member that has yet to take the chunk that lies in the place of the next one. A member that gets no more chunks does not say what it took, and has a
    /// place of its own.
    fn full_for(&self, view: &View<'_>) -> Option<usize> {
        let taken = self.ticket(self.at - self.depth);
        let is_full = |other: &usize| self.chunks(self.mine(view.me, *other)) > self.at && !view.words.has_taken(*other, taken);
        (0..view.members).find(is_full)
    }

    /// The ticket after all others.
    pub fn end_ticket(&self) -> u64 {
        self.base + STEPS_MAX - 1
    }

    fn ticket(&self, chunk: u64) -> u64 {
        self.base + if self.shares { 2 * chunk } else { chunk } + 1
    }

    /// Where a chunk lies in a slot. If each reader needs a different part, where the part of this reader lies.
    fn place(&self, chunk: u64, view: &View<'_>, reader: usize) -> usize {
        let at = (chunk % self.depth) as usize;
        if self.what.kind.divides() {
            at * (view.slot / 2) + reader * self.chunk.next_multiple_of(GRAIN)
        } else {
            at * self.chunk
        }
    }

    /// Where the part begins in the input that this member has for itself.
    fn own_at(&self, me: usize) -> usize {
        if self.what.kind.divides() { self.what.lengths.send.before(me) } else { 0 }
    }

    /// Where the bytes of a member belong in the output.
    fn output_at(&self, from: usize) -> usize {
        if self.what.kind.collects() { self.what.lengths.get.before(from) } else { 0 }
    }

    /// Goes on as far as it can. True when it is over. `said` is set if others were told something; `left` goes with posts.
    pub fn advance(&mut self, view: &View<'_>, left: u64, room: &mut Room, said: &mut bool) -> Result<bool, Mismatch> {
        loop {
            if self.at == self.rounds {
                self.keep_own(view);
                return Ok(true);
            }
            let on = match self.phase {
                Phase::Put | Phase::Ahead => self.put(view, left, room, said)?,
                Phase::Get(from) => self.get(view, from, room, said)?,
                Phase::Share => self.share(view, left, room, said)?,
                Phase::Collect(from) => self.collect(view, from, room)?,
            };
            if !on {
                return Ok(false);
            }
        }
    }

    /// Puts the next chunk of this member's contribution.
    fn put(&mut self, view: &View<'_>, left: u64, room: &mut Room, said: &mut bool) -> Result<bool, Mismatch> {
        let me = view.me;
        let k = self.at + u64::from(self.phase == Phase::Ahead);
        let begin = k as usize * self.chunk;
        let others = || (0..view.members).filter(|other| *other != me);
        if k >= self.depth
            && !self.shares
            && let Some(other) = self.full_for(view)
        {
            // A member that calls a different operation takes nothing.
            self.has_come(view, other, self.ticket(0))?;
            self.awaited = Some(Awaited::Taken(other, self.ticket(k - self.depth)));
            return Ok(false);
        }
        let What { input, lengths, .. } = &self.what;
        if k == 0 {
            self.say_lengths(view, room);
        }
        // By its first post each member says which operation it calls, even if it has nothing for others.
        let mut puts = k == 0;
        if self.what.kind.divides() {
            for other in others() {
                let len = self.mine(me, other).saturating_sub(begin).min(self.chunk);
                if len > 0 {
                    view.put(self.place(k, view, other), input.read(lengths.send.before(other) + begin, len), &mut room.puts);
                    puts = true;
                }
            }
        } else if let Some(other) = others().find(|other| self.mine(me, *other) > begin) {
            let len = (self.mine(me, other) - begin).min(self.chunk);
            let at = self.place(k, view, me);
            if self.short {
                view.words.put_short(input.read(0, len));
            } else if self.shares {
                // The others do not need the own share.
                let own = self.part(len, me, view.members);
                view.put(at, input.read(begin, own.start), &mut room.puts);
                view.put(at + own.end, input.read(begin + own.end, len - own.end), &mut room.puts);
            } else {
                view.put(at, input.read(begin, len), &mut room.puts);
            }
            puts = true;
        }
        if puts {
            view.words.post(self.ticket(k), self.sign, left);
            *said = true;
        }
        self.phase = match self.phase {
            Phase::Ahead => Phase::Collect(0),
            _ if self.shares => Phase::Share,
            _ => Phase::Get(0),
        };
        Ok(true)
    }

    /// Whether a member has posted this ticket.
    fn has_come(&mut self, view: &View<'_>, from: usize, ticket: u64) -> Result<bool, Mismatch> {
        if !view.words.has_posted(from, ticket) {
            self.awaited = Some(Awaited::Post(from, ticket));
            return Ok(false);
        }
        if view.words.agrees(from, self.sign) { Ok(true) } else { Err(Mismatch { member: from }) }
    }

    /// Takes the bytes of the chunk that this member needs of others.
    fn get(&mut self, view: &View<'_>, from: usize, room: &mut Room, said: &mut bool) -> Result<bool, Mismatch> {
        let (k, me, kind) = (self.at, view.me, self.what.kind);
        let begin = k as usize * self.chunk;
        let ticket = self.ticket(k);
        for other in from..view.members {
            let len = if kind == Kind::Barrier { usize::from(other != me) } else { self.theirs(me, other) };
            let is_first = k == 0 && self.what.reads(me, other);
            if len <= begin && !is_first {
                continue;
            }
            if !self.has_come(view, other, ticket)? {
                self.phase = Phase::Get(other);
                return Ok(false);
            }
            if is_first && !self.lengths_agree(view, other, room) {
                return Err(Mismatch { member: other });
            }
            if len > begin && kind != Kind::Barrier && !kind.combines() {
                let into = self.what.output.write(self.output_at(other) + begin, (len - begin).min(self.chunk));
                self.fetch(view, other, self.place(k, view, me), into, &mut room.gets[other]);
            }
        }
        if kind.combines() {
            self.combine(view, begin, room);
        }
        let last = (0..view.members).map(|other| self.theirs(me, other)).max().unwrap_or(0);
        if self.chunks(last) > k + self.depth {
            view.words.take(ticket);
            *said = true;
        }
        self.at += 1;
        self.phase = Phase::Put;
        Ok(true)
    }

    /// Copies bytes of a member that has put them: from its post, or from a place in its slot.
    fn fetch(&self, view: &View<'_>, from: usize, place: usize, into: &mut [u8], gets: &mut Choice) {
        if self.short { view.words.short(from, into) } else { view.get(from, place, into, gets) }
    }

    /// Combines the chunk, of all members whose vectors this one needs.
    fn combine(&self, view: &View<'_>, begin: usize, room: &mut Room) {
        let me = view.me;
        let sources = match self.what.kind {
            Kind::Reduce if self.what.root != me => return,
            Kind::Scan => 0..me + 1,
            _ => 0..view.members,
        };
        let len = self.what.lengths.get.of(me).saturating_sub(begin).min(self.chunk);
        let place = self.place(begin as u64 / self.chunk as u64, view, me);
        self.combine_range(view, room, sources, begin..begin + len, place, |_, _, _| {});
    }

    /// Combines a range of the vectors of some members, block by block and in the order of ranks, into the output. `place` is where the range lies in the slots
    /// of the others. Each block is shown to `show`, with its distance from the beginning of the range.
    fn combine_range(
        &self,
        view: &View<'_>,
        room: &mut Room,
        sources: Range<usize>,
        range: Range<usize>,
        place: usize,
        show: impl Fn(usize, &[u8], &mut Choice),
    ) {
        let What { input, output, combine: Some(combine), .. } = &self.what else { return };
        let own_at = self.own_at(view.me) + range.start;
        let Room { sum, other, puts, gets } = room;
        let most = BLOCK - BLOCK % self.what.element();
        for at in (0..range.len()).step_by(most) {
            let block = (range.len() - at).min(most);
            let mut fetch = |source: usize, into: &mut [u8]| {
                if source == view.me {
                    into.copy_from_slice(input.read(own_at + at, block));
                } else {
                    self.fetch(view, source, place + at, into, &mut gets[source]);
                }
            };
            let (sum, other) = (&mut sum[..block], &mut other[..block]);
            fetch(sources.start, sum);
            for source in sources.clone().skip(1) {
                fetch(source, other);
                combine.combine(sum, other, false);
            }
            output.write(range.start + at, block).copy_from_slice(sum);
            show(at, sum, puts);
        }
    }

    /// The share of a chunk that a member combines.
    fn part(&self, len: usize, member: usize, members: usize) -> Range<usize> {
        let each = len.div_ceil(members).next_multiple_of(self.grain);
        (member * each).min(len)..((member + 1) * each).min(len)
    }

    /// Where the chunk that is under way begins in the vector, and its length.
    fn shared_chunk(&self, me: usize) -> (usize, usize) {
        let begin = self.at as usize * self.chunk;
        (begin, (self.what.lengths.send.of(me) - begin).min(self.chunk))
    }

    /// Combines the own share of the chunk, of all members, and offers it.
    fn share(&mut self, view: &View<'_>, left: u64, room: &mut Room, said: &mut bool) -> Result<bool, Mismatch> {
        let (k, me) = (self.at, view.me);
        for other in 0..view.members {
            if other != me && !self.has_come(view, other, self.ticket(k))? {
                return Ok(false);
            }
        }
        let (begin, len) = self.shared_chunk(me);
        let own = self.part(len, me, view.members);
        let at = self.place(k, view, me) + own.start;
        // The others get each block while it is in the cache.
        let show = |offset: usize, sum: &[u8], puts: &mut Choice| view.put(at + offset, sum, puts);
        self.combine_range(view, room, 0..view.members, begin + own.start..begin + own.end, at, show);
        view.words.post(self.ticket(k) + 1, self.sign, left);
        *said = true;
        // The others can read the next chunk while this member waits for their shares of this one.
        self.phase = if k + 1 < self.rounds { Phase::Ahead } else { Phase::Collect(0) };
        Ok(true)
    }

    /// Takes the others' shares.
    fn collect(&mut self, view: &View<'_>, from: usize, room: &mut Room) -> Result<bool, Mismatch> {
        let (k, me) = (self.at, view.me);
        let (begin, len) = self.shared_chunk(me);
        for other in (from..view.members).filter(|other| *other != me) {
            if !self.has_come(view, other, self.ticket(k) + 1)? {
                self.phase = Phase::Collect(other);
                return Ok(false);
            }
            let part = self.part(len, other, view.members);
            let into = self.what.output.write(begin + part.start, part.len());
            view.get(other, self.place(k, view, other) + part.start, into, &mut room.gets[other]);
        }
        self.at += 1;
        self.phase = Phase::Share;
        Ok(true)
    }

    /// Copies the part that a member has for itself.
    fn keep_own(&self, view: &View<'_>) {
        let What { kind, root, input, output, lengths, .. } = &self.what;
        let me = view.me;
        let has = match kind {
            Kind::Barrier | Kind::Broadcast => false,
            // In a team of one there is nothing to combine with: the input is the result.
            kind if kind.combines() => view.members == 1,
            _ => kind.gives(*root, me, me),
        };
        if has {
            input.copy_to(self.own_at(me), output, self.output_at(me), lengths.get.of(me));
        }
    }
}

/// Whether a member says behind each reader's part which length it expects. Else it says so beside its post.
fn says_in_slot(kind: Kind) -> bool {
    matches!(kind, Kind::Scatter | Kind::AllToAll)
}

/// What all exchanges of a member use, one at a time: private memory in which vectors are combined, and the ways of its copies.
#[repr(C, align(128))]
pub(super) struct Room {
    sum: [u8; BLOCK],
    other: [u8; BLOCK],
    /// Into its own slots.
    puts: Choice,
    /// Out of the slot of each member: some may be nearer than others.
    gets: Vec<Choice>,
}

// Elements lie in both from the first byte on, so both begin where any element may.
const _: () = assert!(align_of::<Room>() == ALIGN_MAX && std::mem::offset_of!(Room, other).is_multiple_of(ALIGN_MAX));

impl Room {
    /// For a team of so many members.
    pub fn new(members: usize) -> Box<Self> {
        // A member compares its gets while the others, which put as often, keep to a way.
        let gets = (0..members).map(|_| Choice::later()).collect();
        Box::new(Self { sum: [0; BLOCK], other: [0; BLOCK], puts: Choice::default(), gets })
    }
}
