//! How nodes agree on the members of a team.
//!
//! Each node sends a note to all others that says which members it takes to be in the team (*ready*). A node that hears of fewer members, or learns that one is gone,
//! sends a new note. A node that hears of a later attempt joins that attempt. When all members of a node's set have said the same, it maps the team's memory and says so
//! (*mapped*). When all have said that, it has the team. The notes also say with which members a node shares memory; from the notes of all, all make the same boxes.
//!
//! If a member dies in between, some nodes have a team that includes it, and others do not. The first operation of that team fails by name, its members shrink it, and
//! meet the nodes that still try, as both speak of the same lineage.

use super::net::Boxes;
use doorbell_engine::message::service::PeerId;
use std::collections::BTreeMap;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A note about a team that is being formed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    /// The number of the team's lineage, which all teams have in common that began with one list of members.
    pub lineage: u64,
    /// The number of the attempt.
    pub attempt: u32,
    pub stage: Stage,
    /// How its memory is divided.
    pub layout: u64,
    /// Number and secret of the team's region, if the sender is the first member and has made it.
    pub region: Option<(u32, u64)>,
    /// Which nodes of the lineage's list are members, by rank.
    pub set: Vec<bool>,
    /// With which nodes of the list the sender shares memory, by rank.
    pub near: Vec<bool>,
}

/// How far the sender of a note is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// It has given up.
    Gone,
    Ready,
    Mapped,
}

/// FNV-1a, of 64 bits. All members make the same numbers by it, whichever compiler made them.
fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// The number of a lineage, from a label and the list of members.
pub(crate) fn lineage_number(label: &str, list: impl IntoIterator<Item = PeerId>) -> u64 {
    let bytes = |peer: PeerId| peer.node.0.to_le_bytes().into_iter().chain(peer.incarnation.0.to_le_bytes());
    let members = list.into_iter().flat_map(bytes);
    // The byte between the two is in no label.
    fnv1a(label.bytes().chain([0xff]).chain(members))
}

/// The number in the packets of a team.
pub(crate) fn team_number(lineage: u64, attempt: u32) -> u32 {
    let hash = fnv1a(lineage.to_le_bytes().into_iter().chain(attempt.to_le_bytes()));
    (hash >> 32) as u32 ^ hash as u32
}

/// The head of a note as it is sent. Behind it are the bits of `set` and of `near`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Head {
    lineage: U64,
    attempt: U32,
    stage: u8,
    layout: U64,
    has_region: u8,
    number: U32,
    secret: U64,
    members: U16,
}

impl Note {
    pub fn encode(&self) -> Vec<u8> {
        let (number, secret) = self.region.unwrap_or_default();
        let head = Head {
            lineage: self.lineage.into(),
            attempt: self.attempt.into(),
            stage: self.stage as u8,
            layout: self.layout.into(),
            has_region: self.region.is_some().into(),
            number: number.into(),
            secret: secret.into(),
            members: (self.set.len() as u16).into(),
        };
        let bits = |eight: &[bool]| eight.iter().rev().fold(0_u8, |bits, bit| bits << 1 | u8::from(*bit));
        let bits = self.set.chunks(8).chain(self.near.chunks(8)).map(bits);
        head.as_bytes().iter().copied().chain(bits).collect()
    }

    /// `None` if no member sends such a note.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = Head::read_from_prefix(bytes).ok()?;
        let stage = *[Stage::Gone, Stage::Ready, Stage::Mapped].get(usize::from(head.stage))?;
        let members = usize::from(head.members.get());
        let each = members.div_ceil(8);
        if rest.len() != 2 * each || head.has_region > 1 {
            return None;
        }
        let region = (head.has_region == 1).then(|| (head.number.get(), head.secret.get()));
        let bits = |bytes: &[u8]| (0..members).map(|rank| bytes[rank / 8] >> (rank % 8) & 1 == 1).collect();
        let (set, near) = (bits(&rest[..each]), bits(&rest[each..]));
        let (lineage, attempt, layout) = (head.lineage.get(), head.attempt.get(), head.layout.get());
        Some(Self { lineage, attempt, stage, layout, region, set, near })
    }
}

/// The most lineages about which the notes of one node are kept.
const LINEAGES_MAX: usize = 64;

/// The notes of others: the latest of each node about each lineage.
#[derive(Default)]
pub(crate) struct Heard {
    notes: BTreeMap<PeerId, Vec<Note>>,
    /// Changes with each note.
    pub version: u64,
}

impl Heard {
    /// A note came.
    pub fn hear(&mut self, from: PeerId, note: Note) {
        self.version += 1;
        let notes = self.notes.entry(from).or_default();
        if let Some(known) = notes.iter_mut().find(|known| known.lineage == note.lineage) {
            *known = note;
            return;
        }
        if notes.len() == LINEAGES_MAX {
            notes.remove(0);
        }
        notes.push(note);
    }

    /// The latest note of a node about a lineage.
    pub fn of(&self, from: PeerId, lineage: u64) -> Option<&Note> {
        self.notes.get(&from)?.iter().find(|note| note.lineage == lineage)
    }

    /// Forgets all notes about a lineage.
    pub fn forget_lineage(&mut self, lineage: u64) {
        self.notes.values_mut().for_each(|notes| notes.retain(|note| note.lineage != lineage));
    }

    /// A node is gone.
    pub fn forget(&mut self, peer: PeerId) {
        self.version += 1;
        self.notes.remove(&peer);
    }
}

/// The next step of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Wait,
    /// All are ready: map the region of this rank.
    Map {
        owner: usize,
        region: (u32, u64),
    },
    /// All have mapped it.
    Done,
    /// The set or the attempt has changed: send a new note.
    Say,
    /// A member divides the memory differently.
    Layout(usize),
    /// Another member does not count this one in, or is at an attempt that this one can't have come to.
    Out,
}

/// By how much the attempt of one agreement may rise, beside one for each member that is lost. Attempts differ if one member has tried without the others.
pub(crate) const LEAP_MAX: u32 = 1 << 20;

/// The last attempt by which an agreement may begin, so that none that it may come to overflows.
const FIRST_MAX: u32 = u32::MAX - LEAP_MAX - (1 << 16);

/// One member's part of an agreement.
pub(crate) struct Agreement {
    pub lineage: u64,
    pub attempt: u32,
    /// The attempt by which it began.
    pub first_attempt: u32,
    pub me: usize,
    pub set: Vec<bool>,
    /// With which nodes this member shares memory. It stays the same for the whole agreement.
    pub near: Vec<bool>,
    pub layout: u64,
    pub stage: Stage,
}

/// A bit of the layout: some members share no memory, and operations go by packets.
const APART: u64 = 1 << 63;

impl Agreement {
    /// Whether an agreement may begin by this attempt.
    pub fn may_begin_by(attempt: u32) -> bool {
        attempt <= FIRST_MAX
    }

    /// Whether an honest member that began by the same attempt may have come to this one, with the members in `set`. An attempt rises by one with each member that
    /// is lost, and otherwise by leaps that are bounded together. So a dishonest member that leaps can't make an honest one send a note that another honest one
    /// refuses.
    fn is_in_step(&self, attempt: u32, set: &[bool]) -> bool {
        let lost = set.iter().filter(|is_in| !**is_in).count() as u32;
        attempt <= self.first_attempt.saturating_add(LEAP_MAX).saturating_add(lost)
    }

    /// Some members share no memory.
    pub fn go_apart(&mut self) {
        self.layout |= APART;
    }

    /// Whether some members share no memory, as far as this one knows.
    pub fn is_apart(&self) -> bool {
        self.layout & APART != 0
    }

    /// The first member.
    pub fn first(&self) -> usize {
        self.set.iter().position(|is_in| *is_in).unwrap_or(self.me)
    }

    /// The note of this member, with the region if it is the first member.
    pub fn note(&self, region: Option<(u32, u64)>) -> Note {
        let (lineage, attempt, stage, layout) = (self.lineage, self.attempt, self.stage, self.layout);
        Note { lineage, attempt, stage, layout, region, set: self.set.clone(), near: self.near.clone() }
    }

    /// A member is gone.
    pub fn without(&mut self, rank: usize) {
        self.set[rank] = false;
        self.attempt = self.attempt.saturating_add(1);
        self.stage = Stage::Ready;
    }

    /// The boxes of the members, when all are ready.
    pub fn boxes<'a>(&self, said: impl Fn(usize) -> Option<&'a Note>) -> Boxes {
        let ranks: Vec<usize> = (0..self.set.len()).filter(|rank| self.set[*rank]).collect();
        let near = |rank: usize| if rank == self.me { Some(&self.near) } else { said(rank).map(|note| &note.near) };
        let rows: Vec<Option<&Vec<bool>>> = ranks.iter().map(|rank| near(*rank)).collect();
        Boxes::new(ranks.len(), |a, b| rows[a].and_then(|row| row.get(ranks[b])).is_some_and(|near| *near))
    }

    /// Looks at the notes of the others.
    pub fn look<'a>(&mut self, said: impl Fn(usize) -> Option<&'a Note>) -> Next {
        let (mut ready, mut mapped) = (true, true);
        let others: Vec<usize> = (0..self.set.len()).filter(|rank| self.set[*rank] && *rank != self.me).collect();
        for &rank in &others {
            let note = said(rank).filter(|note| note.set.len() == self.set.len() && note.attempt >= self.attempt);
            let Some(note) = note.filter(|note| note.stage != Stage::Gone) else {
                (ready, mapped) = (false, false);
                continue;
            };
            if !self.is_in_step(note.attempt, &note.set) {
                return Next::Out;
            }
            if note.layout & !APART != self.layout & !APART {
                return Next::Layout(rank);
            }
            if note.layout != self.layout {
                if self.is_apart() {
                    // That member will hear of it.
                    (ready, mapped) = (false, false);
                    continue;
                }
                self.go_apart();
                self.stage = Stage::Ready;
                return Next::Say;
            }
            if !note.set[self.me] {
                return Next::Out;
            }
            let fewer: Vec<bool> = self.set.iter().zip(&note.set).map(|(mine, its)| *mine && *its).collect();
            if note.attempt > self.attempt || fewer != self.set {
                // A member with more in its set has not heard yet. One with fewer at the same attempt makes it another attempt.
                let makes_another = note.attempt == self.attempt && fewer != self.set;
                self.attempt = note.attempt.saturating_add(makes_another.into());
                self.set = fewer;
                self.stage = Stage::Ready;
                return Next::Say;
            }
            if note.set != self.set {
                (ready, mapped) = (false, false);
            }
            mapped &= note.stage == Stage::Mapped;
        }
        if mapped && self.stage == Stage::Mapped {
            return Next::Done;
        }
        if !ready || self.stage == Stage::Mapped {
            return Next::Wait;
        }
        let owner = self.first();
        if owner == self.me || self.is_apart() {
            return Next::Map { owner, region: (0, 0) };
        }
        match said(owner).and_then(|note| note.region) {
            Some(region) => Next::Map { owner, region },
            None => Next::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use doorbell_engine::{Incarnation, NodeId};
    use proptest::prelude::*;

    fn start(me: usize, members: usize) -> Agreement {
        let (set, near) = (vec![true; members], vec![true; members]);
        Agreement { lineage: 1, attempt: 1, first_attempt: 1, me, set, near, layout: 7, stage: Stage::Ready }
    }

    /// A note of the third of three, which follows no rules.
    fn hostile(attempt: u32, set: &[bool]) -> Note {
        let (set, near) = (set.to_vec(), vec![true; set.len()]);
        Note { lineage: 1, attempt, stage: Stage::Ready, layout: 7, region: None, set, near }
    }

    /// The examples of docs/wire.md, on which other implementations rely. `tests/house` finds these two numbers in the page.
    #[test]
    fn numbers_are_those_of_the_page() {
        // The value that the authors of the hash give.
        assert_eq!(fnv1a(*b"foobar"), 0x8594_4171_f739_67e8);
        let list = [(NodeId(0), Incarnation(1)), (NodeId(2), Incarnation(7))].map(PeerId::from);
        let lineage = lineage_number("halo", list);
        assert_eq!((lineage, team_number(lineage, 3)), (LINEAGE, NUMBER));
    }

    const LINEAGE: u64 = 0xec57_547c_b51f_2c8c;
    const NUMBER: u32 = 0x78db_57d7;

    #[test]
    fn an_attempt_beyond_reach_moves_nobody() {
        for attempt in [2 + LEAP_MAX, u32::MAX / 2, u32::MAX] {
            let (mut honest, note) = (start(0, 3), hostile(attempt, &[true; 3]));
            assert_eq!(honest.look(|rank| (rank == 2).then_some(&note)), Next::Out);
            assert_eq!(honest.attempt, 1);
        }
        assert!(Agreement::may_begin_by(1) && !Agreement::may_begin_by(u32::MAX - LEAP_MAX));
    }

    /// One of four drives an honest member to the limit, and drops members from its notes; then it dies. The others accept the notes of the honest one.
    #[test]
    fn a_member_that_was_driven_to_the_limit_is_followed_by_the_others() {
        let (mut driven, mut other) = (start(0, 4), start(1, 4));
        for (attempt, set) in
            [(LEAP_MAX + 1, [true; 4]), (LEAP_MAX + 1, [true, true, false, true]), (LEAP_MAX + 2, [true, true, false, true])]
        {
            let note = hostile(attempt, &set);
            driven.look(|rank| (rank == 3).then_some(&note));
        }
        driven.without(3);
        assert_eq!((driven.attempt, &driven.set[..]), (LEAP_MAX + 3, &[true, true, false, false][..]));
        let said = Note::decode(&driven.note(None).encode()).expect("an honest member says no note that is broken");
        other.without(3);
        assert_eq!(other.look(|rank| (rank == 0).then_some(&said)), Next::Say);
        assert_eq!((other.attempt, &other.set), (driven.attempt, &driven.set));
        let said = Note::decode(&other.note(None).encode()).unwrap();
        assert!(matches!(driven.look(|rank| (rank == 1).then_some(&said)), Next::Map { .. }));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..Default::default() })]

        #[test]
        fn what_is_said_survives_the_way(
            lineage: u64, attempt: u32, stage in 0..3_u8, layout: u64, region: Option<(u32, u64)>,
            bits in proptest::collection::vec(any::<(bool, bool)>(), 0..100),
        ) {
            let stage = [Stage::Gone, Stage::Ready, Stage::Mapped][usize::from(stage)];
            let (set, near) = bits.into_iter().unzip();
            let note = Note { lineage, attempt, stage, layout, region, set, near };
            prop_assert_eq!(Note::decode(&note.encode()), Some(note));
        }

        #[test]
        fn any_bytes_are_a_note_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Some(note) = Note::decode(&bytes) {
                prop_assert!(note.set.len() <= 8 * bytes.len());
            }
        }

        /// Notes come in any order among members, and some members die at any moment. The living ones agree.
        #[test]
        #[cfg_attr(miri, ignore)]
        fn those_who_live_agree(
            members in 2..6_usize, steps in proptest::collection::vec((0..6_usize, 0..6_usize, 0..40_u8), 200),
            homes: [bool; 6], odd in 0..9_usize,
        ) {
            // With which members each one shares memory. One may be wrong about it.
            let near = |me: usize| (0..members).map(|other| (homes[me] == homes[other]) ^ (me == odd)).collect();
            let start = |me| Agreement {
                lineage: 1, attempt: 1, first_attempt: 1, me, set: vec![true; members], near: near(me), layout: 7, stage: Stage::Ready,
            };
            let mut boxes: Vec<Option<Boxes>> = vec![None; members];
            let mut all: Vec<Agreement> = (0..members).map(start).collect();
            let mut alive = vec![true; members];
            let mut done = vec![false; members];
            // The notes sent from one to another, and the one that arrived last.
            let mut sent: Vec<Vec<Vec<Note>>> = vec![vec![Vec::new(); members]; members];
            let mut heard: Vec<Vec<Option<Note>>> = vec![vec![None; members]; members];
            let say = |all: &[Agreement], from: usize, sent: &mut Vec<Vec<Vec<Note>>>| {
                let region = (all[from].first() == from).then_some((from as u32, 1));
                for (to, is_in) in all[from].set.iter().enumerate() {
                    if *is_in && to != from {
                        sent[from][to].push(all[from].note(region));
                    }
                }
            };
            (0..members).for_each(|from| say(&all, from, &mut sent));
            let fair = (0..4000_usize).map(|n| (n % members, n / members % members, 39));
            for (from, to, what) in steps.into_iter().map(|(a, b, what)| (a % members, b % members, what)).chain(fair) {
                if what == 0 && alive.iter().filter(|lives| **lives).count() > 1 {
                    alive[from] = false;
                }
                if !sent[from][to].is_empty() {
                    heard[to][from] = Some(sent[from][to].remove(0));
                }
                if !alive[to] {
                    continue;
                }
                if !alive[from] && sent[from][to].is_empty() && all[to].set[from] && from != to {
                    // A team with a dead member is shrunk: the same agreement goes on.
                    done[to] = false;
                    all[to].without(from);
                    say(&all, to, &mut sent);
                }
                let next = { let heard = &heard[to]; all[to].look(|rank| heard[rank].as_ref()) };
                match next {
                    Next::Say => { done[to] = false; say(&all, to, &mut sent) }
                    Next::Map { .. } => {
                        boxes[to] = Some(all[to].boxes(|rank| heard[to][rank].as_ref()));
                        all[to].stage = Stage::Mapped;
                        say(&all, to, &mut sent)
                    }
                    Next::Done => done[to] = true,
                    Next::Wait => {}
                    other => prop_assert!(false, "{other:?}"),
                }
            }
            for rank in (0..members).filter(|rank| alive[*rank]) {
                prop_assert!(done[rank], "member {rank} of {alive:?} has {:?} at {}", all[rank].set, all[rank].attempt);
                prop_assert_eq!(&all[rank].set, &alive);
                let living: Vec<usize> = (0..members).filter(|rank| alive[*rank]).collect();
                let shares = |a: usize, b: usize| (homes[living[a]] == homes[living[b]]) ^ (living[a] == odd);
                prop_assert_eq!(&boxes[rank], &Some(Boxes::new(living.len(), shares)));
            }
        }
    }
}
