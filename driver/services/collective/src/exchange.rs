//! What one member does for a collective in a channel: puts what others need into its slot, and takes what it needs from theirs.
//!
//! A member's contribution goes in chunks, of which the slot holds several: chunk *k* has place *k* mod *depth*, and a ticket. Whoever needs it watches for that ticket
//! in its owner's post; the owner writes chunk *k* + *depth* when all who needed chunk *k* said that they have taken it. What fits a post goes with that.
//! Vectors are combined in the order of ranks, chunk by chunk, so that results are the same from run to run.
//!
//! Where lengths differ by member all say with the first chunk what they count on: beside the post, or behind each reader's part.

use super::memory::{Span, View};
use doorbell_shm::channel::SHORT_BYTES;

/// The largest elements that can be combined.
pub(super) const ELEMENT_MAX: usize = 4096;
/// The largest alignment of elements that can be combined: that of all memory where they are.
pub(super) const ALIGN_MAX: usize = 128;
/// Bytes that are combined at once, in private memory: nobody changes them meanwhile, and two such stay in the nearest cache.
const BLOCK: usize = 16 << 10;
/// Steps of one operation at most.
pub(super) const STEPS_MAX: u64 = 1 << 24;
/// Where parts of a slot begin.
const GRAIN: usize = 128;
/// Bytes of a length that is said.
const WORD: usize = 8;

/// Combines vectors of some type, as bytes.
pub(super) trait Folder: Send {
    /// `into = into ⊕ from`: as long as each other, whole elements, aligned.
    fn fold(&self, into: &mut [u8], from: &[u8]);

    /// `into = from ⊕ into`.
    fn fold_left(&self, into: &mut [u8], from: &[u8]);

    /// Whether the order of the operands may be changed.
    fn commutes(&self) -> bool;

    /// Bytes of an element: not more than [`ELEMENT_MAX`].
    fn element(&self) -> usize;
}

/// Who needs what of whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Barrier,
    Broadcast { root: usize },
    Gather { root: usize },
    Scatter { root: usize },
    AllGather,
    AllToAll,
    Reduce { root: usize },
    AllReduce,
    Scan,
    ReduceScatter,
}

impl Kind {
    /// Whether each reader needs another part of what a member contributes.
    fn divides(self) -> bool {
        matches!(self, Kind::Scatter { .. } | Kind::AllToAll | Kind::ReduceScatter)
    }

    fn folds(self) -> bool {
        matches!(self, Kind::Reduce { .. } | Kind::AllReduce | Kind::Scan | Kind::ReduceScatter)
    }

    /// Whether one member needs something of another one.
    fn reads(self, reader: usize, source: usize) -> bool {
        if reader == source {
            return false;
        }
        match self {
            Kind::Broadcast { root } | Kind::Scatter { root } => source == root,
            Kind::Gather { root } | Kind::Reduce { root } => reader == root,
            Kind::Scan => source < reader,
            Kind::Barrier | Kind::AllGather | Kind::AllToAll | Kind::AllReduce | Kind::ReduceScatter => true,
        }
    }

    /// Of all that members have to agree in: which operation, by which root, of how many bytes.
    fn sign(self, bytes: usize) -> u64 {
        let (number, root) = match self {
            Kind::Barrier => (1, 0),
            Kind::Broadcast { root } => (2, root),
            Kind::Gather { root } => (3, root),
            Kind::Scatter { root } => (4, root),
            Kind::AllGather => (5, 0),
            Kind::AllToAll => (6, 0),
            Kind::Reduce { root } => (7, root),
            Kind::AllReduce => (8, 0),
            Kind::Scan => (9, 0),
            Kind::ReduceScatter => (10, 0),
        };
        number | (root as u64) << 8 | (bytes as u64) << 24
    }
}

/// How many bytes each member contributes or gets.
#[derive(Clone, Debug)]
pub(super) enum Lengths {
    /// All the same.
    Each(usize),
    /// To, or of, each member, as the kind has it: what this member sends to each, and what it gets of each.
    Of { send: Box<[usize]>, get: Box<[usize]> },
}

impl Lengths {
    pub fn send(&self, to: usize) -> usize {
        match self {
            Lengths::Each(each) => *each,
            Lengths::Of { send, .. } => send[to],
        }
    }

    pub fn get(&self, from: usize) -> usize {
        match self {
            Lengths::Each(each) => *each,
            Lengths::Of { get, .. } => get[from],
        }
    }

    /// What stands for a list of lengths that is the same at all members.
    fn digest(lengths: &[usize]) -> u64 {
        let prime = 0x0000_0100_0000_01b3;
        lengths.iter().fold(0xcbf2_9ce4_8422_2325, |digest: u64, len| (digest.rotate_left(29) ^ *len as u64).wrapping_mul(prime))
    }

    /// Where what goes to a member lies among what goes to all.
    fn send_at(&self, to: usize) -> usize {
        match self {
            Lengths::Each(each) => each * to,
            Lengths::Of { send, .. } => send[..to].iter().sum(),
        }
    }

    fn get_at(&self, from: usize) -> usize {
        match self {
            Lengths::Each(each) => each * from,
            Lengths::Of { get, .. } => get[..from].iter().sum(),
        }
    }
}

/// That members called different operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mismatch {
    /// The member whose operation is another than this one's.
    pub member: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Put,
    /// Of a member.
    Get(usize),
    /// Of the sum of all shares, the own one.
    Share,
    /// The chunk that comes after the one that is combined. Nobody reads its place any more: who has put a chunk has collected the one before the last, and
    /// there are places for more than three.
    Ahead,
    /// The others' shares.
    Collect(usize),
}

/// One operation, as far as one member has come with it.
pub(super) struct Exchange {
    kind: Kind,
    input: Span,
    output: Span,
    lengths: Lengths,
    folder: Option<Box<dyn Folder>>,
    /// The ticket of chunk 0, less one.
    base: u64,
    sign: u64,
    /// Whether contributions go with the posts.
    short: bool,
    /// Whether each member combines a share of every chunk, and all collect the shares.
    shares: bool,
    /// What a share is a multiple of.
    grain: usize,
    chunk: usize,
    depth: u64,
    rounds: u64,
    at: u64,
    phase: Phase,
}

/// How an operation is cut up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// The number of the operation: the same for all members, and greater than before.
    pub number: u64,
    pub members: usize,
    pub me: usize,
    pub slot: usize,
}

impl Exchange {
    /// What this member does for an operation.
    #[inline]
    pub fn new(kind: Kind, input: Span, output: Span, lengths: Lengths, folder: Option<Box<dyn Folder>>, cut: Cut) -> Self {
        let Cut { number, members, me, slot } = cut;
        let whole = match lengths {
            Lengths::Each(each) => each,
            Lengths::Of { .. } => usize::MAX,
        };
        let short = whole <= SHORT_BYTES && !kind.divides();
        // Whole elements, and whole lines as far as that goes.
        let element = folder.as_ref().map_or(1, |folder| folder.element()).max(1);
        let grain = if GRAIN.is_multiple_of(element) { GRAIN } else { element };
        let is_long = whole > SHARES_FROM.max(members * GRAIN) && slot / 4 >= grain;
        let shares = kind == Kind::AllReduce && !short && members > 1 && is_long;
        let (chunk, depth) = if kind.divides() {
            ((slot / 2 / members) & !(GRAIN - 1), 2)
        } else if shares {
            (slot / 4, 4)
        } else {
            // As small as several are under way at once, so that one is taken while the next is put.
            let chunk = match kind {
                Kind::Broadcast { .. } | Kind::Gather { .. } | Kind::AllGather => (slot / 8) & !(GRAIN - 1),
                _ => slot / 2,
            };
            let chunk = chunk.max(GRAIN);
            (chunk, (slot / chunk) as u64)
        };
        let mut chunk = chunk - chunk % grain;
        // Behind it is what is said of its length.
        if matches!(lengths, Lengths::Of { .. }) && kind.divides() && kind != Kind::ReduceScatter {
            chunk = chunk.saturating_sub(WORD);
        }
        let mut exchange = Self {
            kind,
            input,
            output,
            // Elements of another size are cut up in another way.
            sign: kind.sign(if whole == usize::MAX { 0 } else { whole }) ^ (element as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            lengths,
            folder,
            base: number * STEPS_MAX,
            short,
            shares,
            grain,
            chunk,
            depth,
            rounds: 0,
            at: 0,
            phase: Phase::Put,
        };
        let pieces = (0..members).map(|other| exchange.mine(me, other).max(exchange.theirs(me, other)));
        exchange.rounds = exchange.chunks(pieces.max().unwrap_or(0));
        if members > 1 {
            // Also of nothing: by its first post each member says what it calls.
            exchange.rounds = exchange.rounds.max(1);
        }
        exchange
    }

    /// Whether a member says, with its first chunk, what lengths it counts on, to another one.
    fn states(&self, from: usize, to: usize) -> bool {
        matches!(self.lengths, Lengths::Of { .. }) && self.kind.reads(to, from)
    }

    /// Says it to all who need to know. True if there is anybody.
    fn state(&self, view: &View<'_>) -> bool {
        let Lengths::Of { send, get } = &self.lengths else { return false };
        let me = view.me;
        let mut readers = (0..view.members).filter(|other| self.kind.reads(*other, me)).peekable();
        let states = readers.peek().is_some();
        match self.kind {
            Kind::Scatter { .. } | Kind::AllToAll => readers.for_each(|reader| {
                view.put(self.place(0, view, reader) + self.chunk, &(send[reader] as u64).to_ne_bytes());
            }),
            Kind::Gather { root } => view.words.put_short(&(send[root] as u64).to_ne_bytes()),
            Kind::ReduceScatter => view.words.put_short(&Lengths::digest(send).to_ne_bytes()),
            _ => view.words.put_short(&Lengths::digest(get).to_ne_bytes()),
        }
        states
    }

    /// Whether what a member said of lengths is what this one counts on.
    fn fits(&self, view: &View<'_>, from: usize) -> bool {
        let Lengths::Of { send, get } = &self.lengths else { return true };
        let mut stated = [0; WORD];
        let expected = match self.kind {
            Kind::Scatter { .. } | Kind::AllToAll => {
                view.get(from, self.place(0, view, view.me) + self.chunk, &mut stated);
                get[from] as u64
            }
            Kind::Gather { .. } => get[from] as u64,
            Kind::ReduceScatter => Lengths::digest(send),
            _ => Lengths::digest(get),
        };
        if !matches!(self.kind, Kind::Scatter { .. } | Kind::AllToAll) {
            view.words.short(from, &mut stated);
        }
        u64::from_ne_bytes(stated) == expected
    }

    fn chunks(&self, len: usize) -> u64 {
        len.div_ceil(self.chunk.max(1)) as u64
    }

    /// Whether no whole element fits the part of a slot that it has, or it has more steps than can be counted. The first is so at all members, whatever
    /// their lengths.
    pub fn is_too_long(&self) -> bool {
        self.chunk == 0 || 2 * self.rounds + 2 >= STEPS_MAX
    }

    /// Bytes that this member has for another one.
    fn mine(&self, me: usize, other: usize) -> usize {
        if self.kind.reads(other, me) { self.lengths.send(other) } else { 0 }
    }

    /// Bytes that another member has for this one.
    fn theirs(&self, me: usize, other: usize) -> usize {
        if self.kind.reads(me, other) { self.lengths.get(other) } else { 0 }
    }

    /// Whether code of the application may run in it.
    #[inline]
    pub fn calls_the_application(&self) -> bool {
        self.folder.is_some()
    }

    /// Whose word is missing for it to go on.
    pub fn awaited(&self, view: &View<'_>) -> Option<usize> {
        let (k, me) = (self.at, view.me);
        let mut others = (0..view.members).filter(|other| *other != me);
        let has_put = |other: usize| {
            let begin = k as usize * self.chunk;
            let needed = if self.kind == Kind::Barrier || self.shares { 1 } else { self.theirs(me, other).saturating_sub(begin) };
            let needed = needed > 0 || k == 0 && self.kind.reads(me, other);
            !needed || view.words.has_posted(other, self.ticket(k))
        };
        if k == self.rounds {
            return None;
        }
        match self.phase {
            Phase::Ahead => None,
            Phase::Put if self.shares || k < self.depth => None,
            Phase::Put => others.find(|other| self.is_full_for(view, *other)),
            Phase::Get(_) | Phase::Share => others.find(|other| !has_put(*other)),
            Phase::Collect(_) => others.find(|other| !view.words.has_posted(*other, self.ticket(k) + 1)),
        }
    }

    /// Whether a member has yet to take what lies where the next chunk goes. Who gets no more says nothing of what it took, and has a place of its own.
    fn is_full_for(&self, view: &View<'_>, other: usize) -> bool {
        self.chunks(self.mine(view.me, other)) > self.at && !view.words.has_taken(other, self.ticket(self.at - self.depth))
    }

    /// The ticket behind all others.
    pub fn end_ticket(&self) -> u64 {
        self.base + STEPS_MAX - 1
    }

    fn ticket(&self, chunk: u64) -> u64 {
        self.base + if self.shares { 2 * chunk } else { chunk } + 1
    }

    /// Where chunk `chunk` lies in a slot; of what goes to each another part, the part for a member.
    fn place(&self, chunk: u64, view: &View<'_>, reader: usize) -> usize {
        let at = (chunk % self.depth) as usize;
        if self.kind.divides() { at * (view.slot / 2) + reader * self.chunk.next_multiple_of(GRAIN) } else { at * self.chunk }
    }

    /// Goes on as far as it can. True when it is over. `said` is set if others were told something; `left` is what goes with posts.
    pub fn advance(&mut self, view: &View<'_>, left: u64, room: &mut Room, said: &mut bool) -> Result<bool, Mismatch> {
        loop {
            if self.at == self.rounds {
                self.keep_own(view);
                return Ok(true);
            }
            let on = match self.phase {
                Phase::Put | Phase::Ahead => self.put(view, left, said)?,
                Phase::Get(from) => self.get(view, from, room, said)?,
                Phase::Share => self.share(view, left, room, said)?,
                Phase::Collect(from) => self.collect(view, from)?,
            };
            if !on {
                return Ok(false);
            }
        }
    }

    /// The next chunk of what this member contributes.
    fn put(&mut self, view: &View<'_>, left: u64, said: &mut bool) -> Result<bool, Mismatch> {
        let me = view.me;
        let k = self.at + u64::from(self.phase == Phase::Ahead);
        let begin = k as usize * self.chunk;
        let others = || (0..view.members).filter(|other| *other != me);
        if k >= self.depth
            && !self.shares
            && let Some(other) = others().find(|other| self.is_full_for(view, *other))
        {
            // Of who calls something else nothing is taken.
            return self.has_come(view, other, self.ticket(0)).map(|_| false);
        }
        if k == 0 {
            self.state(view);
        }
        // By its first post each member says what it calls, also if it has nothing for anybody.
        let mut puts = k == 0;
        if self.kind.divides() {
            for other in others() {
                let len = self.mine(me, other).saturating_sub(begin).min(self.chunk);
                if len > 0 {
                    view.put(self.place(k, view, other), self.input.read(self.lengths.send_at(other) + begin, len));
                    puts = true;
                }
            }
        } else if let Some(other) = others().find(|other| self.mine(me, *other) > begin) {
            let len = (self.mine(me, other) - begin).min(self.chunk);
            if self.short {
                view.words.put_short(self.input.read(0, len));
            } else if self.shares {
                // Nobody else needs the own share.
                let own = self.part(len, me, view.members);
                let at = self.place(k, view, me);
                view.put(at, self.input.read(begin, own.start));
                view.put(at + own.end, self.input.read(begin + own.end, len - own.end));
            } else {
                view.put(self.place(k, view, me), self.input.read(begin, len));
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

    /// Whether a member has put this chunk.
    fn has_come(&self, view: &View<'_>, from: usize, ticket: u64) -> Result<bool, Mismatch> {
        if !view.words.has_posted(from, ticket) {
            return Ok(false);
        }
        if view.words.agrees(from, self.sign) { Ok(true) } else { Err(Mismatch { member: from }) }
    }

    /// What this member needs of the chunk, of the others.
    fn get(&mut self, view: &View<'_>, from: usize, room: &mut Room, said: &mut bool) -> Result<bool, Mismatch> {
        let (k, me) = (self.at, view.me);
        let begin = k as usize * self.chunk;
        let ticket = self.ticket(k);
        for other in from..view.members {
            let len = if self.kind == Kind::Barrier { usize::from(other != me) } else { self.theirs(me, other) };
            let is_first = k == 0 && self.kind.reads(me, other);
            if len <= begin && !is_first {
                continue;
            }
            if !self.has_come(view, other, ticket)? {
                self.phase = Phase::Get(other);
                return Ok(false);
            }
            if is_first && self.states(other, me) && !self.fits(view, other) {
                return Err(Mismatch { member: other });
            }
            if len <= begin || self.kind == Kind::Barrier || self.kind.folds() {
                continue;
            }
            let into = self.output.write(self.lengths.get_at_for(self.kind, other) + begin, (len - begin).min(self.chunk));
            if self.short {
                view.words.short(other, into);
            } else {
                view.get(other, self.place(k, view, me), into);
            }
        }
        if self.kind.folds() {
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

    /// Combines a chunk of all members that this one needs, in the order of ranks.
    fn combine(&self, view: &View<'_>, begin: usize, room: &mut Room) {
        let me = view.me;
        let sources = match self.kind {
            Kind::Reduce { root } if root != me => return,
            Kind::Scan => 0..me + 1,
            _ => 0..view.members,
        };
        let total = self.lengths.get(me);
        let len = total.saturating_sub(begin).min(self.chunk);
        let own_at = if self.kind.divides() { self.lengths.send_at(me) } else { 0 };
        let place = self.place(begin as u64 / self.chunk as u64, view, me);
        let fetch = |source, at, into: &mut [u8]| {
            if self.short {
                view.words.short(source, into);
            } else {
                view.get(source, place + at, into);
            }
        };
        self.fold_range(view, room, sources, len, (begin + own_at, begin), fetch, |_, _| {});
    }

    /// Combines `len` bytes of some members, block by block, into the output: the own ones lie at `own` in the input, the others' are fetched. Each block is
    /// shown to `show`.
    #[expect(clippy::too_many_arguments, reason = "two places call it, with what they have at hand")]
    fn fold_range(
        &self,
        view: &View<'_>,
        room: &mut Room,
        sources: std::ops::Range<usize>,
        len: usize,
        (own, into): (usize, usize),
        fetch: impl Fn(usize, usize, &mut [u8]),
        show: impl Fn(usize, &[u8]),
    ) {
        let Some(folder) = &self.folder else { return };
        let Room { sum, other } = room;
        let most = BLOCK - BLOCK % folder.element().max(1);
        let mut at = 0;
        while at < len {
            let block = (len - at).min(most);
            let sum = &mut sum[..block];
            for source in sources.clone() {
                if source == sources.start {
                    if source == view.me { sum.copy_from_slice(self.input.read(own + at, block)) } else { fetch(source, at, sum) }
                } else if source == view.me {
                    let other = &mut other[..block];
                    other.copy_from_slice(self.input.read(own + at, block));
                    folder.fold(sum, other);
                } else {
                    let other = &mut other[..block];
                    fetch(source, at, other);
                    folder.fold(sum, other);
                }
            }
            self.output.write(into + at, block).copy_from_slice(sum);
            show(at, sum);
            at += block;
        }
    }

    /// The share of a chunk that a member combines.
    fn part(&self, len: usize, member: usize, members: usize) -> std::ops::Range<usize> {
        let each = len.div_ceil(members).next_multiple_of(self.grain);
        (member * each).min(len)..((member + 1) * each).min(len)
    }

    /// Combines the own share of the chunk, of all members, and offers it.
    fn share(&mut self, view: &View<'_>, left: u64, room: &mut Room, said: &mut bool) -> Result<bool, Mismatch> {
        let (k, me) = (self.at, view.me);
        for other in 0..view.members {
            if other != me && !self.has_come(view, other, self.ticket(k))? {
                return Ok(false);
            }
        }
        let begin = k as usize * self.chunk;
        let len = (self.lengths.send(me) - begin).min(self.chunk);
        let own = self.part(len, me, view.members);
        let at = self.place(k, view, me) + own.start;
        let places = (begin + own.start, begin + own.start);
        let fetch = |source, offset, into: &mut [u8]| view.get(source, at + offset, into);
        // To the others while it is near.
        self.fold_range(view, room, 0..view.members, own.len(), places, fetch, |offset, sum| view.put(at + offset, sum));
        view.words.post(self.ticket(k) + 1, self.sign, left);
        *said = true;
        // The next chunk is there for the others while this member waits for their shares of this one.
        self.phase = if k + 1 < self.rounds { Phase::Ahead } else { Phase::Collect(0) };
        Ok(true)
    }

    /// The others' shares.
    fn collect(&mut self, view: &View<'_>, from: usize) -> Result<bool, Mismatch> {
        let (k, me) = (self.at, view.me);
        let begin = k as usize * self.chunk;
        let len = (self.lengths.send(me) - begin).min(self.chunk);
        for other in (from..view.members).filter(|other| *other != me) {
            if !self.has_come(view, other, self.ticket(k) + 1)? {
                self.phase = Phase::Collect(other);
                return Ok(false);
            }
            let part = self.part(len, other, view.members);
            view.get(other, self.place(k, view, other) + part.start, self.output.write(begin + part.start, part.len()));
        }
        self.at += 1;
        self.phase = Phase::Share;
        Ok(true)
    }

    /// What a member has for itself.
    fn keep_own(&self, view: &View<'_>) {
        let me = view.me;
        let has = match self.kind {
            Kind::Gather { root } | Kind::Scatter { root } => root == me,
            Kind::AllGather | Kind::AllToAll => true,
            // Alone, with nobody to combine with: what it contributes is the result.
            Kind::Reduce { .. } | Kind::AllReduce | Kind::Scan | Kind::ReduceScatter => view.members == 1,
            _ => false,
        };
        if has {
            let from = if self.kind.divides() { self.lengths.send_at(me) } else { 0 };
            let len = self.lengths.get(me);
            let into = self.lengths.get_at_for(self.kind, me);
            self.input.copy_to(from, &self.output, into, len);
        }
    }
}

impl Lengths {
    /// Where what comes of a member belongs in the output.
    fn get_at_for(&self, kind: Kind, from: usize) -> usize {
        match kind {
            Kind::Gather { .. } | Kind::AllGather | Kind::AllToAll => self.get_at(from),
            _ => 0,
        }
    }
}

/// Longer vectors are combined in shares, one by each member.
const SHARES_FROM: usize = 4096;

/// Where vectors are combined.
#[repr(C, align(128))]
pub(super) struct Room {
    sum: [u8; BLOCK],
    other: [u8; BLOCK],
}

// Elements lie in both from the first byte on, so both begin where any element may.
const _: () = assert!(align_of::<Room>() == ALIGN_MAX && std::mem::offset_of!(Room, other).is_multiple_of(ALIGN_MAX));

impl Room {
    pub fn new() -> Box<Self> {
        Box::new(Self { sum: [0; BLOCK], other: [0; BLOCK] })
    }
}
