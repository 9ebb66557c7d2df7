//! How the demo prints its story.

use crate::text::{Style, Table, print};
use std::fmt::Display;
use std::io::{IsTerminal, stdout};
use std::thread;
use std::time::Duration;

/// The words that the demo explains, one on each line.
const WORDS: &str = include_str!("words.txt");
/// A pause before each act, on a terminal.
const PAUSE: Duration = Duration::from_millis(250);

/// Prints on standard output.
pub struct Say {
    style: Style,
    act: u32,
}

impl Say {
    /// A story that has not begun.
    pub fn new() -> Self {
        Self { style: Style::of(&stdout()), act: 0 }
    }

    /// Begins an act.
    pub fn title(&mut self, title: impl Display) {
        if self.act > 0 && stdout().is_terminal() {
            thread::sleep(PAUSE);
        }
        self.act += 1;
        print(&format!("\n{}\n", self.style.bold(format_args!("{}. {title}", self.act))));
    }

    /// Prints what happens.
    pub fn line(&self, line: impl Display) {
        print(&format!("{}\n", format!("   {line}").trim_end()));
    }

    /// Prints a table.
    pub fn table(&self, table: &Table) {
        table.lines().into_iter().for_each(|line| self.line(line));
    }

    /// Explains a word of the list.
    pub fn word(&self, word: &str) {
        let explained = WORDS.lines().filter_map(|line| line.split_once(": ")).find(|(known, _)| *known == word);
        if let Some((word, meaning)) = explained {
            print(&format!("   {} {}\n", self.style.hue(0, format_args!("{word}:")), self.style.dim(meaning)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_explains_a_word() {
        assert!(WORDS.lines().all(|line| line.split_once(": ").is_some_and(|(_, meaning)| !meaning.is_empty())));
        assert!(WORDS.lines().any(|line| line.starts_with("policy: ")));
    }
}
