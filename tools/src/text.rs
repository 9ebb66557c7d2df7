//! How the commands write for people: figures, tables, and colours on a terminal.

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::fmt::{self, Display};
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// The directory of the segments, as in `Space::posix`.
pub const DIRECTORY: &str = "/dev/shm";

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// One object a line
    Json,
    /// A line of names, and a line for each row
    Csv,
    /// The percentile distribution as HdrHistogram writes it
    Hgrm,
}

impl Format {
    /// A parser of these forms.
    pub fn among(forms: &[Self]) -> impl TypedValueParser<Value = Self> + use<> {
        let forms = PossibleValuesParser::new(forms.iter().filter_map(Self::to_possible_value));
        forms.map(|word| Self::from_str(&word, false).unwrap_or(Self::Table))
    }
}

/// The form of the output of a command that shows what there is.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct FormArgs {
    /// Form of the output
    #[arg(long, value_name = "FORM", default_value = "table", value_parser = Format::among(&[Format::Table, Format::Json]))]
    pub format: Format,
}

impl FormArgs {
    /// Prints the text, or one object a line.
    pub fn print<T: Serialize>(self, text: impl FnOnce() -> String, objects: impl IntoIterator<Item = T>) {
        print(&if self.format == Format::Json { lines(objects) } else { text() });
    }
}

/// The form of rows of figures.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct RowArgs {
    /// Form of the output
    #[arg(long, value_name = "FORM", default_value = "table", value_parser = Format::among(&[Format::Table, Format::Json, Format::Csv]))]
    pub format: Format,
}

/// One object a line.
pub fn lines<T: Serialize>(rows: impl IntoIterator<Item = T>) -> String {
    // Names are words and values come from serde_json, so nothing can fail.
    rows.into_iter().filter_map(|row| serde_json::to_string(&row).ok()).map(|line| line + "\n").collect()
}

/// Bytes in a unit that suits the number: `96 KiB`, `3.3 MiB`.
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

/// A time of up to a day: `3s`, `500ms`.
pub fn time(word: &str) -> Result<Duration, String> {
    let most = Duration::from_secs(86_400);
    let found = span(word, &[("s", 1_000_000_000), ("", 1_000_000_000), ("ms", 1_000_000)]).filter(|found| *found <= most);
    found.ok_or_else(|| "it is not a time of up to a day; hint: times look like 3s or 500ms".into())
}

/// A number and one of these units, which are in nanoseconds.
pub fn span(word: &str, units: &[(&str, u64)]) -> Option<Duration> {
    let digits = word.find(|c: char| !c.is_ascii_digit()).unwrap_or(word.len());
    let (number, unit) = word.split_at(digits);
    let (_, ns) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*ns).map(Duration::from_nanos)
}

/// The word of a value, as serde writes it.
pub fn word(value: &impl Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// A parser of the words of a type, which `--help` and errors list.
pub fn words<T>(known: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: std::str::FromStr<Err: std::error::Error + Send + Sync + 'static> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(known).try_map(|word| word.parse::<T>())
}

/// The ways of waiting that [`doorbell::Wait`] knows.
pub const WAITS: &[&str] = &["auto", "spin", "yield", "park"];

/// The values without repetitions, in the order in which they first come.
pub fn distinct<T: Copy + PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for value in values {
        if !found.contains(&value) {
            found.push(value);
        }
    }
    found
}

/// The median; the mean of the two values in the middle if their number is even. `None` without values.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    Some(if values.len().is_multiple_of(2) { (values[values.len() / 2 - 1] + upper) / 2.0 } else { upper })
}

/// A number with its noun, in the plural unless the number is 1.
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Prints a whole text. A closed pipe is no error.
pub fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// A bar on stderr that shows how far a command has come. It is hidden unless stderr is a terminal.
pub fn bar(total: u64, template: &str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style)
}

/// Rows of cells. Each column is as wide as its widest cell.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<usize>,
}

impl Table {
    /// A table with these names over its columns. A column whose name begins with `>` is aligned to the right.
    pub fn new(names: &[&str]) -> Self {
        let right = names.iter().enumerate().filter(|(_, name)| name.starts_with('>')).map(|(at, _)| at).collect();
        Self { rows: vec![names.iter().map(|name| name.trim_start_matches('>').to_owned()).collect()], right }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The cells of each row, the names first, and whether they are aligned to the right.
    pub fn cells(&self) -> impl Iterator<Item = impl Iterator<Item = (&str, bool)>> {
        self.rows.iter().map(|row| row.iter().enumerate().map(|(at, cell)| (cell.as_str(), self.right.contains(&at))))
    }

    /// The lines, without blanks at their ends.
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

/// All lines, each with its end.
impl Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines().iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

/// Colours, if the output is a terminal that has them.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    on: bool,
}

impl Style {
    /// The style of a stream: with colours on a terminal that has them, unless `NO_COLOR` is set.
    pub fn of(stream: &impl IsTerminal) -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let able = std::env::var_os("TERM").is_some_and(|term| term != "dumb");
        Self { on: wanted && able && stream.is_terminal() }
    }

    /// In bold letters.
    pub fn bold(self, text: impl Display) -> String {
        self.paint("1", text)
    }

    /// In dim letters.
    pub fn dim(self, text: impl Display) -> String {
        self.paint("2", text)
    }

    /// In one of six colours. A number has always the same colour.
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
