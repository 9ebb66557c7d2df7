//! How the commands write for people: figures, tables, and colours where somebody sees them.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// Where segments are: that of `Space::posix`.
pub const DIRECTORY: &str = "/dev/shm";

/// Bytes in the unit that people would choose: `96 KiB`, `3.3 MiB`.
pub fn bytes(count: u64) -> String {
    let units = [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, unit)| count >= *unit) {
        Some((name, unit)) if count.is_multiple_of(unit) => format!("{} {name}", count / unit),
        Some((name, unit)) => {
            let count = count as f64 / unit as f64;
            format!("{count:.*} {name}", usize::from(count < 99.95))
        }
        None => format!("{count} B"),
    }
}

/// A time of up to a day as people write it: `3s`, `500ms`.
pub fn time(word: &str) -> Result<Duration, String> {
    let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
    let (number, unit) = word.split_at(digits);
    let number = number.parse::<u64>().ok().filter(|number| *number <= 86_400_000);
    match (number, unit) {
        (Some(number), "s" | "") if number <= 86_400 => Ok(Duration::from_secs(number)),
        (Some(number), "ms") => Ok(Duration::from_millis(number)),
        _ => Err("it is not a time of up to a day; hint: times look like 3s or 500ms".into()),
    }
}

/// A number with its noun, in the plural where it belongs.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Prints what was made up whole. Whoever closed the pipe has seen enough.
pub fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Rows of cells, of which each column is as wide as its widest cell.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<usize>,
}

impl Table {
    /// A table with these names over its columns; those that begin with `>` are of figures and stand to the right.
    pub fn new(names: &[&str]) -> Self {
        let right = names.iter().enumerate().filter(|(_, name)| name.starts_with('>')).map(|(at, _)| at).collect();
        Self { rows: vec![names.iter().map(|name| name.trim_start_matches('>').to_owned()).collect()], right }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Its lines, without blanks at their ends.
    pub fn lines(&self) -> Vec<String> {
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.rows[0].len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
                if self.right.contains(&column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        self.rows.iter().map(line).collect()
    }
}

/// Colours, if there is somebody to see them.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    on: bool,
}

impl Style {
    /// For a stream: with colours on a terminal that has them, unless `NO_COLOR` is set.
    pub fn of(stream: &impl IsTerminal) -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let able = std::env::var_os("TERM").is_some_and(|term| term != "dumb");
        Self { on: wanted && able && stream.is_terminal() }
    }

    /// In bold letters.
    pub fn bold(self, text: impl Display) -> String {
        self.paint("1", text)
    }

    /// In letters that stand back.
    pub fn dim(self, text: impl Display) -> String {
        self.paint("2", text)
    }

    /// In one of six colours, the same one for the same number.
    pub fn hue(self, number: usize, text: impl Display) -> String {
        self.paint(["36", "33", "35", "32", "34", "31"][number % 6], text)
    }

    fn paint(self, code: &str, text: impl Display) -> String {
        if self.on { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_a_fitting_unit() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (65_536, "64 KiB"),
            (3_465_216, "3.3 MiB"),
            (913_420, "892 KiB"),
            (1 << 30, "1 GiB"),
            (5 << 29, "2.5 GiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn times_that_people_write() {
        for (word, found) in
            [("3s", Some(3000)), ("3", Some(3000)), ("500ms", Some(500)), ("0s", Some(0)), ("86400s", Some(86_400_000))]
        {
            assert_eq!(time(word).ok(), found.map(Duration::from_millis), "{word}");
        }
        for word in ["", "s", "-1s", "3m", "1.5s", "86401s", "99999999999999999999s"] {
            assert!(time(word).is_err(), "{word}");
        }
    }

    #[test]
    fn columns_are_as_wide_as_they_must_be() {
        let mut table = Table::new(&["name", ">bytes", "note"]);
        table.row(["a".into(), "100000".into(), "x".into()]);
        table.row(["longer".into(), "1".into(), String::new()]);
        assert_eq!(table.lines(), ["name     bytes  note", "a       100000  x", "longer       1"]);
    }

    #[test]
    fn colours_are_for_terminals() {
        let (on, off) = (Style { on: true }, Style { on: false });
        assert_eq!((off.bold("x"), on.bold("x")), ("x".into(), "\x1b[1mx\x1b[0m".into()));
        assert_eq!(on.hue(1, 3), on.hue(7, 3));
    }
}
