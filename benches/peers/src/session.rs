//! The turns of a measurement, one after another, until all are done, time is over, or a signal comes.

use crate::journal::{Journal, Turn};
use crate::launch::{Launcher, Stopped};
use crate::peers::Peer;
use crate::plan::{self, Table};
use crate::report::Findings;
use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Everything that is to be measured.
pub struct Session<'a> {
    /// Starts the processes.
    pub launcher: &'a Launcher,
    /// The peers, each with a turn at each table of each round.
    pub peers: &'a [Peer],
    /// The tables.
    pub tables: &'a [Table],
    /// The number of rounds.
    pub rounds: u16,
    /// Whether there are fewer messages.
    pub quick: bool,
    /// When the last turn may begin.
    pub deadline: Instant,
}

/// Why there are no further turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All are done, or not worth a try.
    Well,
    /// This signal came.
    Signal(usize),
    /// Time is over, and so many are left.
    Late(usize),
}

impl Session<'_> {
    /// Measures what the journal lacks.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn run(&self, findings: &mut Findings, journal: &mut Option<Journal>) -> Result<Ended, String> {
        let mut done = journal.as_ref().map(|journal| journal.done().clone()).unwrap_or_default();
        for round in 0..usize::from(self.rounds) {
            let start = Instant::now();
            let mut is_new = false;
            for (turn, peer) in self.turns(round) {
                if !is_left(turn, findings, &done) {
                    continue;
                }
                if Instant::now() >= self.deadline {
                    say_no_more();
                    return Ok(Ended::Late(self.left(findings, &done)));
                }
                is_new = true;
                self.say(turn, peer);
                match self.launcher.run(peer, turn.table, self.quick) {
                    Ok(outcome) => {
                        if let Some(journal) = journal {
                            journal.add(turn, &outcome)?;
                        }
                        findings.add(turn.who, turn.table, round, outcome);
                        done.insert(turn);
                    }
                    Err(Stopped(signal)) => {
                        say_no_more();
                        return Ok(Ended::Signal(signal));
                    }
                }
            }
            say_no_more();
            if is_new {
                eprintln!("round {} of {} took {}", round + 1, self.rounds, span(start.elapsed()));
            }
        }
        Ok(Ended::Well)
    }

    /// The turns of a round. The order shifts with the round, so that no peer always follows the same one.
    fn turns(&self, round: usize) -> impl Iterator<Item = (Turn, &Peer)> {
        let peers = self.peers.len();
        self.tables.iter().flat_map(move |table| {
            let of = move |place| {
                let peer: &Peer = &self.peers[(place + round) % peers];
                peer.can(*table).then_some((Turn { who: peer.who, table: *table, round }, peer))
            };
            (0..peers).filter_map(of)
        })
    }

    /// The number of turns that are left.
    fn left(&self, findings: &Findings, done: &BTreeSet<Turn>) -> usize {
        let turns = (0..usize::from(self.rounds)).flat_map(|round| self.turns(round));
        turns.filter(|(turn, _)| is_left(*turn, findings, done)).count()
    }

    fn say(&self, turn: Turn, peer: &Peer) {
        if std::io::stderr().is_terminal() {
            let (round, rounds) = (turn.round + 1, self.rounds);
            eprint!("\r\x1b[Kround {round} of {rounds}: {} over {}", plan::title(turn.table), peer.who.name());
        }
    }
}

/// Whether a turn is to be measured. A failure would recur, and may take long.
fn is_left(turn: Turn, findings: &Findings, done: &BTreeSet<Turn>) -> bool {
    !done.contains(&turn) && findings.is_worth_a_try(turn.who, turn.table)
}

fn say_no_more() {
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}

fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 120 { format!("{seconds} s") } else { format!("{} min {} s", seconds / 60, seconds % 60) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::{self, Who};
    use crate::plan::Row;

    #[test]
    fn without_time_no_turn_begins_and_those_left_are_counted() {
        let mut peers = peers::find(std::path::Path::new("/nowhere"), &[Who::Ucx]);
        peers.iter_mut().for_each(|peer| peer.missing = None);
        let tables = [Row::Rate.tables(true), Row::Loan.tables(true)].concat();
        let launcher = Launcher::new([0, 1], 60).expect("a launcher");
        let session =
            Session { launcher: &launcher, peers: &peers, tables: &tables, rounds: 3, quick: true, deadline: Instant::now() };
        let mut findings = Findings::default();
        // Two peers know rates, and one of them loans.
        assert_eq!(session.run(&mut findings, &mut None), Ok(Ended::Late(9)));
        let done = BTreeSet::from([0, 1].map(|round| Turn { who: Who::Doorbell, table: tables[1], round }));
        assert_eq!(session.left(&findings, &done), 7);
        findings.add(Who::Ucx, tables[0], 0, Err("hung".into()));
        assert_eq!(session.run(&mut findings, &mut None), Ok(Ended::Late(6)));
    }

    #[test]
    fn the_order_of_the_peers_shifts_with_the_round() {
        let mut peers = peers::find(std::path::Path::new("/nowhere"), &[Who::Ucx, Who::Ring]);
        peers.iter_mut().for_each(|peer| peer.missing = None);
        let tables = Row::Rate.tables(true);
        let launcher = Launcher::new([0, 1], 60).expect("a launcher");
        let session =
            Session { launcher: &launcher, peers: &peers, tables: &tables, rounds: 3, quick: true, deadline: Instant::now() };
        let order = |round| session.turns(round).map(|(turn, _)| turn.who).collect::<Vec<_>>();
        assert_eq!(order(0), [Who::Doorbell, Who::Ucx, Who::Ring]);
        assert_eq!(order(1), [Who::Ucx, Who::Ring, Who::Doorbell]);
    }
}
