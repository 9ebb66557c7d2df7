//! The chart of a saved page of tables, with rows in which others are ahead.

use super::Spread;
use super::chart::{Bars, Block, draw};

/// The columns of each block: the heading of a table, and the size of a row.
const BLOCKS: [(&str, [(&str, &str); 2]); 2] = [
    ("One way", [("Messages, one way", "8 B"), ("Messages, one way", "64 KiB")]),
    ("Where others are ahead", [("Puts, one way", "8 B"), ("Loans, one way", "4 MiB")]),
];

/// Draws the chart of a page that this program wrote.
///
/// # Errors
///
/// The page lacks a table or a row.
pub fn chart(page: &str) -> Result<String, String> {
    let mut blocks = Vec::new();
    for (title, columns) in BLOCKS {
        let mut rows: Vec<Bars> = Vec::new();
        for (at, (table, bytes)) in columns.into_iter().enumerate() {
            for (name, spread) in row(page, table, bytes)? {
                let known = rows.iter().position(|bars| bars.name == name);
                let index = known.unwrap_or_else(|| {
                    rows.push(Bars { name, found: [None; 2] });
                    rows.len() - 1
                });
                rows[index].found[at] = Some(spread);
            }
        }
        blocks.push(Block { title: title.into(), columns: columns.map(|(table, bytes)| format!("{table}: {bytes}")), rows });
    }
    let fact = |name: &str| {
        let line = page.lines().find_map(|line| line.strip_prefix(&format!("| {name} | ")));
        line.map(|line| line.trim_end_matches([' ', '|']).replace('`', "")).ok_or(format!("the page names no {name}"))
    };
    let notes = [
        "Half a round trip; shorter is better, and a bar with a gap is cut; ratios are of the rounded times of the page.".into(),
        format!("{}, {}, {}", fact("date")?, fact("machine")?, fact("kernel")?),
        fact("command")?,
    ];
    let mut text = String::new();
    draw(&mut text, &blocks, &notes).map_err(|error| error.to_string())?;
    Ok(text)
}

/// The cells of a row: each peer with its time.
fn row(page: &str, table: &str, bytes: &str) -> Result<Vec<(String, Spread)>, String> {
    let lacks = |what: &str| format!("the page has no {what} under '{table}'");
    // If there are two moods, the first is the more frequent one.
    let heads = page.match_indices("\n## ").map(|(at, start)| &page[at + start.len()..]);
    let mut rest = heads.filter_map(|head| head.strip_prefix(table));
    let rest = rest.find(|rest| rest.starts_with('\n') || rest.starts_with(", with the processors"));
    let section = rest.ok_or_else(|| lacks("table"))?.split("\n## ").next().unwrap_or_default();
    let cells = |line: &str| -> Vec<String> { line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect() };
    let mut lines = section.lines().filter(|line| line.starts_with('|')).map(cells);
    let head = lines.next().ok_or_else(|| lacks("head"))?;
    let row = lines.find(|row| row[0] == bytes).ok_or_else(|| lacks(bytes))?;
    let named = head.into_iter().zip(row).skip(1).filter(|(name, _)| name != "×");
    Ok(named.filter_map(|(name, cell)| Some((name, time(&cell)?))).collect())
}

/// A cell such as `15.5 µs (15.3..15.5)`, in nanoseconds.
fn time(cell: &str) -> Option<Spread> {
    let mut words = cell.split_whitespace();
    let (median, unit, ends) = (words.next()?, words.next()?, words.next()?);
    let (low, high) = ends.strip_prefix('(')?.strip_suffix(')')?.split_once("..")?;
    let factor = match unit {
        "ns" => 1.0,
        "µs" => 1e3,
        _ => return None,
    };
    let number = |word: &str| word.parse::<f64>().ok().map(|number| number * factor);
    Some(Spread { low: number(low)?, median: number(median)?, high: number(high)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_become_times_again() {
        assert_eq!(time("15.5 µs (15.3..15.6)"), Some(Spread { low: 15_300.0, median: 15_500.0, high: 15_600.0 }));
        assert_eq!((time("–"), time("failed"), time("1.7 M/s (1.7..1.8)")), (None, None, None));
    }

    #[test]
    fn a_page_without_a_table_is_an_error_that_names_it() {
        let found = chart("# Nothing\n").expect_err("no table");
        assert!(found.contains("Messages, one way"), "{found}");
    }

    #[test]
    fn the_first_mood_of_a_table_is_drawn_and_the_untouched_one_is_not() {
        let table =
            |head: &str, ns: u32| format!("\n## {head}\n\n| bytes | Doorbell |\n|---:|---:|\n| 8 B | {ns} ns (1..900) |\n");
        let page = [
            "Puts, one way, untouched",
            "Puts, one way, with the processors far apart",
            "Puts, one way, with the processors near",
        ];
        let page: String = page.into_iter().zip([100, 200, 300]).map(|(head, ns)| table(head, ns)).collect();
        let found = row(&page, "Puts, one way", "8 B").expect("a row");
        assert!(matches!(found.as_slice(), [(name, Spread { median: 200.0, .. })] if name == "Doorbell"), "{found:?}");
    }

    #[test]
    fn the_page_of_the_repository_has_all_rows() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/performance.md")).expect("the page");
        let text = chart(&page).expect("a chart");
        let drawn = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/pictures/latency.svg")).expect("it");
        assert_eq!(text, drawn, "draw docs/pictures/latency.svg anew, with --from docs/performance.md --chart");
    }
}
