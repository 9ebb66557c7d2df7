//! How the members of a team agree on who is in it.
//!
//! Each says to all others who it takes to be in (*ready*). Whoever hears of fewer, or learns that one is gone, says so anew; whoever hears of a later attempt joins
//! that. When all whom a member takes to be in have said the same, it maps the team's memory and says so (*mapped*); when all have said that, it has the team.
//! With who is in each says with whom it shares memory: of what all say all make the same boxes.
//!
//! A member that dies in between leaves others with a team that includes it, and others without: the first operation of those fails by name, they shrink
//! their team, and meet those who still try, as both speak of the same lineage.

use super::net::Boxes;
use doorbell_engine::{Incarnation, NodeId};
use std::collections::BTreeMap;

/// What is said of a team that is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    /// Which team: the same for all that came of one list of members.
    pub lineage: u64,
    /// Which attempt.
    pub attempt: u32,
    pub stage: Stage,
    /// How its memory is divided.
    pub layout: u64,
    /// The region of the first who is in: number and secret, of who says this.
    pub region: Option<(u32, u64)>,
    /// Who is in, by rank in the lineage's list.
    pub set: Vec<bool>,
    /// With whom its sender shares memory: as many.
    pub near: Vec<bool>,
}

/// How far its sender is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// It waits no longer.
    Gone,
    Ready,
    Mapped,
}

const HEAD: usize = 8 + 4 + 1 + 8 + 1 + 12;

/// FNV-1a, of 64 bits: what members agree on has a number that all of them make alike, whatever compiled them.
fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// The number of a lineage: of a label, and of who is in the list.
pub(crate) fn lineage_number(label: &str, list: impl IntoIterator<Item = (NodeId, Incarnation)>) -> u64 {
    // A byte of no label stands between the two.
    let members = list.into_iter().flat_map(|(node, life)| node.0.to_le_bytes().into_iter().chain(life.0.to_le_bytes()));
    fnv1a(label.bytes().chain([0xff]).chain(members))
}

/// The number that the packets of a team bear.
pub(crate) fn team_number(lineage: u64, attempt: u32) -> u32 {
    let hash = fnv1a(lineage.to_le_bytes().into_iter().chain(attempt.to_le_bytes()));
    (hash >> 32) as u32 ^ hash as u32
}

impl Note {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + 2 * self.set.len().div_ceil(8) + 2);
        bytes.extend(self.lineage.to_le_bytes());
        bytes.extend(self.attempt.to_le_bytes());
        bytes.push(self.stage as u8);
        bytes.extend(self.layout.to_le_bytes());
        let (number, secret) = self.region.unwrap_or_default();
        bytes.push(self.region.is_some().into());
        bytes.extend(number.to_le_bytes());
        bytes.extend(secret.to_le_bytes());
        bytes.extend((self.set.len() as u16).to_le_bytes());
        let bits = |eight: &[bool]| eight.iter().rev().fold(0_u8, |bits, bit| bits << 1 | u8::from(*bit));
        bytes.extend(self.set.chunks(8).map(bits));
        bytes.extend(self.near.chunks(8).map(bits));
        bytes
    }

    /// `None` if none of ours is like this.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        fn split<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
            let (first, rest) = bytes.split_first_chunk()?;
            *bytes = rest;
            Some(*first)
        }
        let mut rest = bytes;
        let lineage = u64::from_le_bytes(split(&mut rest)?);
        let attempt = u32::from_le_bytes(split(&mut rest)?);
        let stage = match split(&mut rest)? {
            [0] => Stage::Gone,
            [1] => Stage::Ready,
            [2] => Stage::Mapped,
            _ => return None,
        };
        let layout = u64::from_le_bytes(split(&mut rest)?);
        let [has_region] = split(&mut rest)?;
        let region = (u32::from_le_bytes(split(&mut rest)?), u64::from_le_bytes(split(&mut rest)?));
        let members = usize::from(u16::from_le_bytes(split(&mut rest)?));
        let each = members.div_ceil(8);
        if rest.len() != 2 * each || has_region > 1 {
            return None;
        }
        let bits = |bytes: &[u8]| (0..members).map(|rank| bytes[rank / 8] >> (rank % 8) & 1 == 1).collect();
        let (set, near) = (bits(&rest[..each]), bits(&rest[each..]));
        Some(Self { lineage, attempt, stage, layout, region: (has_region == 1).then_some(region), set, near })
    }
}

/// Lineages of which one node may have said something that nobody has asked for.
const LINEAGES_MAX: usize = 64;

/// What others said: the latest of each node about each lineage.
#[derive(Default)]
pub(crate) struct Heard {
    notes: BTreeMap<(NodeId, Incarnation), Vec<Note>>,
    /// Changes with each note.
    pub version: u64,
}

impl Heard {
    /// A note came.
    pub fn hear(&mut self, node: NodeId, life: Incarnation, note: Note) {
        self.version += 1;
        let notes = self.notes.entry((node, life)).or_default();
        if let Some(known) = notes.iter_mut().find(|known| known.lineage == note.lineage) {
            *known = note;
            return;
        }
        if notes.len() == LINEAGES_MAX {
            notes.remove(0);
        }
        notes.push(note);
    }

    /// What a node said last of a lineage.
    pub fn of(&self, node: NodeId, life: Incarnation, lineage: u64) -> Option<&Note> {
        self.notes.get(&(node, life))?.iter().find(|note| note.lineage == lineage)
    }

    /// Forgets all notes about a lineage.
    pub fn forget_lineage(&mut self, lineage: u64) {
        self.notes.values_mut().for_each(|notes| notes.retain(|note| note.lineage != lineage));
    }

    /// A life of a node is over.
    pub fn forget(&mut self, node: NodeId, life: Incarnation) {
        self.version += 1;
        self.notes.remove(&(node, life));
    }
}

/// What a member does next.
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
    /// Others were told something new: say again what this member thinks.
    Say,
    /// A member divides the memory in another way.
    Layout(usize),
    /// This member is not in, as far as another one knows, or that one is at an attempt that this one can't have come to.
    Out,
}

/// By how much the attempt of one agreement may rise, beside one for each member that is lost. Members differ by how often one has tried without the others.
pub(crate) const LEAP_MAX: u32 = 1 << 20;

/// The last attempt by which an agreement may begin: none that it may come to overflows.
const FIRST_MAX: u32 = u32::MAX - LEAP_MAX - (1 << 16);

/// One member's part of an agreement.
pub(crate) struct Agreement {
    pub lineage: u64,
    pub attempt: u32,
    /// By which attempt it began.
    pub first_attempt: u32,
    pub me: usize,
    pub set: Vec<bool>,
    /// With whom this member shares memory: the same as long as it tries.
    pub near: Vec<bool>,
    pub layout: u64,
    pub stage: Stage,
}

/// In the layout: some share no memory, and all goes by the network.
const APART: u64 = 1 << 63;

impl Agreement {
    /// Whether an agreement may begin by this attempt.
    pub fn may_begin_by(attempt: u32) -> bool {
        attempt <= FIRST_MAX
    }

    /// Whether an honest member that began by the same attempt may have come to this one, with those who are in `set`: an attempt rises by one with each member
    /// that is lost, and else by leaps that are bounded together. So a member that leaps says nothing that makes an honest one say what another
    /// honest one refuses.
    fn is_in_step(&self, attempt: u32, set: &[bool]) -> bool {
        let lost = set.iter().filter(|is_in| !**is_in).count() as u32;
        attempt <= self.first_attempt.saturating_add(LEAP_MAX).saturating_add(lost)
    }

    /// Some share no memory.
    pub fn go_apart(&mut self) {
        self.layout |= APART;
    }

    /// Whether some share no memory, as far as this member knows.
    pub fn is_apart(&self) -> bool {
        self.layout & APART != 0
    }

    /// The first who is in.
    pub fn first(&self) -> usize {
        self.set.iter().position(|is_in| *is_in).unwrap_or(self.me)
    }

    /// What this member says, with the region if it is the first.
    pub fn note(&self, region: Option<(u32, u64)>) -> Note {
        let (lineage, attempt, stage, layout) = (self.lineage, self.attempt, self.stage, self.layout);
        Note { lineage, attempt, stage, layout, region, set: self.set.clone(), near: self.near.clone() }
    }

    /// One is gone.
    pub fn without(&mut self, rank: usize) {
        self.set[rank] = false;
        self.attempt = self.attempt.saturating_add(1);
        self.stage = Stage::Ready;
    }

    /// The boxes of those who are in, when all are ready.
    pub fn boxes<'a>(&self, said: impl Fn(usize) -> Option<&'a Note>) -> Boxes {
        let ranks: Vec<usize> = (0..self.set.len()).filter(|rank| self.set[*rank]).collect();
        let near = |rank: usize| if rank == self.me { Some(&self.near) } else { said(rank).map(|note| &note.near) };
        let rows: Vec<Option<&Vec<bool>>> = ranks.iter().map(|rank| near(*rank)).collect();
        Boxes::new(ranks.len(), |a, b| rows[a].and_then(|row| row.get(ranks[b])).is_some_and(|near| *near))
    }

    /// Looks at what the others said.
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
                    // It will hear of it.
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
                // Who speaks of more has not heard yet; who speaks of fewer at the same attempt makes it another one.
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
    use proptest::prelude::*;

    fn start(me: usize, members: usize) -> Agreement {
        let (set, near) = (vec![true; members], vec![true; members]);
        Agreement { lineage: 1, attempt: 1, first_attempt: 1, me, set, near, layout: 7, stage: Stage::Ready }
    }

    /// What the third of three says, who follows no rules.
    fn hostile(attempt: u32, set: &[bool]) -> Note {
        let (set, near) = (set.to_vec(), vec![true; set.len()]);
        Note { lineage: 1, attempt, stage: Stage::Ready, layout: 7, region: None, set, near }
    }

    /// The examples of docs/wire.md: other implementations count on them.
    #[test]
    fn numbers_are_those_of_the_page() {
        // As the authors of the hash give it.
        assert_eq!(fnv1a(*b"foobar"), 0x8594_4171_f739_67e8);
        let list = [(NodeId(0), Incarnation(1)), (NodeId(2), Incarnation(7))];
        let lineage = lineage_number("halo", list);
        assert_eq!((lineage, team_number(lineage, 3)), (LINEAGE, NUMBER));
        let page = include_str!("../../../../docs/wire.md");
        assert!(page.contains(&format!("`{LINEAGE:#018x}`")) && page.contains(&format!("`{NUMBER:#010x}`")));
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

    /// One of four drives an honest member as far as it goes, and drops members from its notes; then it dies. What the honest one says, the others accept.
    #[test]
    fn who_was_driven_to_the_limit_is_followed_by_the_others() {
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

        /// Notes come in any order among members, and some members die at any moment: those who live agree.
        #[test]
        #[cfg_attr(miri, ignore)]
        fn those_who_live_agree(
            members in 2..6_usize, steps in proptest::collection::vec((0..6_usize, 0..6_usize, 0..40_u8), 200),
            homes: [bool; 6], odd in 0..9_usize,
        ) {
            // With whom each shares memory; one may be wrong about it.
            let near = |me: usize| (0..members).map(|other| (homes[me] == homes[other]) ^ (me == odd)).collect();
            let start = |me| Agreement {
                lineage: 1, attempt: 1, first_attempt: 1, me, set: vec![true; members], near: near(me), layout: 7, stage: Stage::Ready,
            };
            let mut boxes: Vec<Option<Boxes>> = vec![None; members];
            let mut all: Vec<Agreement> = (0..members).map(start).collect();
            let mut alive = vec![true; members];
            let mut done = vec![false; members];
            // What was sent from one to another, and what arrived last.
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
                    // A team with one that is dead is shrunk: the same agreement goes on.
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
