//! A file with the result of every turn, so that a measurement can be interrupted and go on later.

use crate::launch::Outcome;
use crate::peers::Who;
use crate::plan::Table;
use crate::report::Findings;
use crate::report::machine::today;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A turn of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Turn {
    /// The peer.
    pub who: Who,
    /// The table.
    pub table: Table,
    /// The round.
    pub round: usize,
}

/// The circumstances that all results of a file have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Whether there were fewer messages.
    pub quick: bool,
    /// The two processors.
    pub pin: [usize; 2],
    /// The program that measured.
    pub build: u64,
}

impl Terms {
    /// The circumstances of this program.
    ///
    /// # Errors
    /// The program's own file cannot be read.
    pub fn new(quick: bool, pin: [usize; 2]) -> io::Result<Self> {
        let mut hasher = DefaultHasher::new();
        hasher.write(&fs::read(std::env::current_exe()?)?);
        Ok(Self { quick, pin, build: hasher.finish() })
    }

    /// What differs from other circumstances.
    fn differs(&self, other: &Terms) -> Option<&'static str> {
        match other {
            _ if self.build != other.build => Some("by another build of this program"),
            _ if self.quick != other.quick => Some(if other.quick { "with --quick" } else { "without --quick" }),
            _ if self.pin != other.pin => Some("on other processors"),
            _ => None,
        }
    }
}

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
enum Line {
    /// The program was started.
    Start { date: String, terms: Terms },
    /// A turn has ended.
    Turn { turn: Turn, outcome: Outcome },
}

/// The file, open for further turns.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    done: BTreeSet<Turn>,
    dates: BTreeSet<String>,
}

impl Journal {
    /// Opens a new file, or continues the file that is there. Its results go to `findings`.
    ///
    /// A file that is not continued gets the ending `.old`.
    ///
    /// # Errors
    /// The file cannot be read or written, or has results under other circumstances.
    pub fn open(path: &Path, resume: bool, terms: &Terms, findings: &mut Findings) -> Result<Self, String> {
        let failed = |what: &str, error: io::Error| format!("could not {what} the journal {}: {error}", path.display());
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| failed("create the directory of", error))?;
        }
        if !resume && path.exists() {
            fs::rename(path, path.with_extension("old")).map_err(|error| failed("rename", error))?;
        }
        let mut open = OpenOptions::new();
        let file = open.append(true).create(true).open(path).map_err(|error| failed("open", error))?;
        let mut journal = Self { path: path.into(), file, done: BTreeSet::new(), dates: BTreeSet::from([today()]) };
        let text = fs::read_to_string(path).map_err(|error| failed("read", error))?;
        // A program that was killed may have left half a line.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        journal.file.set_len(whole as u64).map_err(|error| failed("shorten", error))?;
        for (number, line) in text[..whole].lines().enumerate() {
            match serde_json::from_str(line) {
                Ok(Line::Start { date, terms: before }) => {
                    if let Some(how) = terms.differs(&before) {
                        return Err(format!(
                            "the results in {} were measured {how}, so they cannot be continued",
                            path.display()
                        ));
                    }
                    journal.dates.insert(date);
                }
                // What failed may have failed for a reason that is gone.
                Ok(Line::Turn { outcome: Err(_), .. }) => {}
                Ok(Line::Turn { turn, outcome }) => {
                    journal.done.insert(turn);
                    findings.add(turn.who, turn.table, turn.round, outcome);
                }
                Err(error) => return Err(format!("line {} of {} is no result: {error}", number + 1, path.display())),
            }
        }
        journal.write(&Line::Start { date: today(), terms: terms.clone() })?;
        Ok(journal)
    }

    /// The turns that were there.
    pub fn done(&self) -> &BTreeSet<Turn> {
        &self.done
    }

    /// Adds the result of a turn.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, turn: Turn, outcome: &Outcome) -> Result<(), String> {
        self.write(&Line::Turn { turn, outcome: outcome.clone() })
    }

    /// The days on which its results were measured.
    pub fn dates(&self) -> String {
        self.dates.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    fn write(&mut self, line: &Line) -> Result<(), String> {
        let text = serde_json::to_string(line).map_err(io::Error::from);
        // One call for a whole line.
        let written = text.and_then(|text| self.file.write_all(format!("{text}\n").as_bytes()));
        written.map_err(|error| format!("could not write to the journal {}: {error}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Row;
    use doorbell_peers::order::{Answer, Seen};

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("doorbell-journal-{name}.{}", std::process::id())))
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn turn(round: usize) -> Turn {
        Turn { who: Who::Aeron, table: Row::Rate.tables(false)[0], round }
    }

    fn outcome() -> Outcome {
        let seen = Seen { ns: 10.0, hops: [100.0; 2], ..Seen::default() };
        Ok(Answer { legs: vec![vec![seen; 5]], version: "5".into(), ..Answer::default() })
    }

    fn terms() -> Terms {
        Terms { quick: false, pin: [0, 1], build: 7 }
    }

    #[test]
    fn results_outlive_the_program_even_if_it_was_killed_within_a_line() {
        let dir = Dir::new("outlive");
        let path = dir.0.join("journal");
        let mut journal = Journal::open(&path, true, &terms(), &mut Findings::default()).expect("a new file");
        journal.add(turn(0), &outcome()).expect("room");
        journal.add(turn(1), &Err("hung".into())).expect("room");
        drop(journal);
        let text = fs::read_to_string(&path).expect("text");
        fs::write(&path, format!("{text}{{\"Turn\":{{")).expect("half a line");

        for _ in 0..2 {
            let mut findings = Findings::default();
            let journal = Journal::open(&path, true, &terms(), &mut findings).expect("the same file");
            assert_eq!(journal.done(), &BTreeSet::from([turn(0)]));
            assert!(!findings.failed(Who::Aeron) && findings.is_worth_a_try(Who::Aeron, turn(0).table));
            assert_eq!(findings.version(Who::Aeron), Some("5"));
        }
    }

    #[test]
    fn other_circumstances_are_refused_and_a_new_start_keeps_the_old_file() {
        let dir = Dir::new("refused");
        let path = dir.0.join("journal");
        let mut journal = Journal::open(&path, false, &terms(), &mut Findings::default()).expect("a new file");
        journal.add(turn(0), &outcome()).expect("room");
        for (other, what) in [
            (Terms { build: 8, ..terms() }, "another build"),
            (Terms { quick: true, ..terms() }, "without --quick"),
            (Terms { pin: [0, 0], ..terms() }, "other processors"),
        ] {
            let error = Journal::open(&path, true, &other, &mut Findings::default()).expect_err("other terms");
            assert!(error.contains(what), "{error}");
        }
        let journal = Journal::open(&path, false, &terms(), &mut Findings::default()).expect("a new file");
        assert!(journal.done().is_empty());
        assert!(path.with_extension("old").exists());
        fs::write(&path, "nonsense\n").expect("nonsense");
        let error = Journal::open(&path, true, &terms(), &mut Findings::default()).expect_err("nonsense");
        assert!(error.contains("line 1"), "{error}");
    }
}
