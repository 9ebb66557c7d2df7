//! The fixed list of rows by which Doorbell is compared: `rows.txt`.

use crate::plan::{Row, Table, size};
use clap::ValueEnum;

const LIST: &str = include_str!("../rows.txt");

/// A row of the list: a size in one kind of table, touched or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The table, as it is measured touched.
    pub table: Table,
    /// The size of a message.
    pub bytes: usize,
}

/// All rows of the list, in its order.
///
/// # Errors
/// A line that is no row.
pub fn all() -> Result<Vec<Line>, String> {
    parse(LIST)
}

/// Whether the list has rows of this kind.
pub fn has(row: Row) -> bool {
    lines(LIST).any(|line| line.split_once(':').and_then(|(name, _)| Row::from_str(name, false).ok()) == Some(row))
}

fn lines(list: &str) -> impl Iterator<Item = &str> {
    list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn parse(list: &str) -> Result<Vec<Line>, String> {
    let mut found = Vec::new();
    for line in lines(list) {
        let wrong = |why: String| format!("rows.txt: '{line}': {why}");
        let (name, sizes) = line.split_once(':').ok_or_else(|| wrong("there is no colon".into()))?;
        let row = Row::from_str(name, false).map_err(|why| wrong(format!("the row {why}")))?;
        let sizes = sizes.split(',').map(|text| bytes(text.trim()).ok_or_else(|| wrong(format!("'{}' is no size", text.trim()))));
        let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
        for table in row.tables(true) {
            found.extend(sizes.iter().map(|bytes| Line { table, bytes: *bytes }));
        }
    }
    Ok(found)
}

/// The bytes of a size such as `64 KiB`.
fn bytes(text: &str) -> Option<usize> {
    let (number, unit) = text.split_once(' ')?;
    let factor = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        _ => return None,
    };
    let bytes = number.parse::<usize>().ok()?.checked_mul(factor)?;
    (size(bytes) == text).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::legs;

    #[test]
    fn the_list_and_the_measurements_have_the_same_rows() {
        let listed = all().expect("a list");
        let measured: Vec<Line> = Row::ALL
            .into_iter()
            .filter(|row| has(*row))
            .flat_map(|row| row.tables(true))
            .flat_map(|table| legs(table, false).into_iter().map(move |leg| Line { table, bytes: leg.bytes }))
            .collect();
        assert_eq!(listed, measured);
        assert!(has(Row::Latency) && has(Row::Batch) && !has(Row::Udp));
    }

    #[test]
    fn a_wrong_line_is_named() {
        assert_eq!(parse("# a comment\n\nrate: 8 B\n").map(|found| found.len()), Ok(1));
        for (line, what) in
            [("rate 8 B", "no colon"), ("speed: 8 B", "the row"), ("rate: 8", "'8'"), ("rate: 1024 B", "'1024 B'")]
        {
            let error = parse(line).expect_err("a wrong line");
            assert!(error.contains(what) && error.contains(line), "{error}");
        }
    }
}
