//! The chart of a saved page of tables, with rows in which others are ahead.

use super::Spread;
use super::chart::{Bars, Block, draw};

/// What a heading says of the processors. A page of a machine that has one mood says nothing.
const MOODS: [&str; 3] = ["", ", with the processors far apart", ", with the processors near each other"];
/// The table and the size of each column.
type Columns = [(&'static str, &'static str); 2];
const ONE_WAY: Columns = [("Messages, one way", "8 B"), ("Messages, one way", "64 KiB")];
const BEHIND: Columns = [("Messages, one way", "4 MiB"), ("Puts, one way", "64 KiB")];

/// Draws the chart of a page that this program wrote.
///
/// # Errors
///
/// The page lacks a table or a row.
pub fn chart(page: &str) -> Result<String, String> {
    let [(first, _), _] = ONE_WAY;
    let moods: Vec<&str> = MOODS.into_iter().filter(|mood| section(page, first, mood).is_some()).collect();
    let last = moods.last().ok_or(format!("the page has no table '{first}'"))?;
    let mut blocks = moods.iter().map(|mood| block(page, "One way", mood, ONE_WAY)).collect::<Result<Vec<_>, _>>()?;
    blocks.push(block(page, "Where others are ahead", last, BEHIND)?);
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

/// The bars of some rows, as the processors are in this mood.
fn block(page: &str, title: &str, mood: &str, columns: Columns) -> Result<Block, String> {
    let mut rows: Vec<Bars> = Vec::new();
    for (at, (table, bytes)) in columns.into_iter().enumerate() {
        for (name, spread) in row(page, table, mood, bytes)? {
            let known = rows.iter().position(|bars| bars.name == name);
            let index = known.unwrap_or_else(|| {
                rows.push(Bars { name, found: [None; 2] });
                rows.len() - 1
            });
            rows[index].found[at] = Some(spread);
        }
    }
    Ok(Block { title: format!("{title}{mood}"), columns: columns.map(|(table, bytes)| format!("{table}: {bytes}")), rows })
}

/// A table, from behind its heading on.
fn section<'a>(page: &'a str, table: &str, mood: &str) -> Option<&'a str> {
    page.split_once(&format!("\n## {table}{mood}\n")).map(|(_, rest)| rest.split("\n## ").next().unwrap_or_default())
}

/// The cells of a row: each peer with its time.
fn row(page: &str, table: &str, mood: &str, bytes: &str) -> Result<Vec<(String, Spread)>, String> {
    let lacks = |what: &str| format!("the page has no {what} under '{table}{mood}'");
    let section = section(page, table, mood).ok_or_else(|| lacks("table"))?;
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
    fn each_mood_of_a_table_is_drawn_and_the_untouched_one_is_not() {
        let table = |head: &str, ns: u32| {
            format!(
                "\n## {head}\n\n| bytes | Doorbell |\n|---:|---:|\n| 8 B | {ns} ns (1..900) |\n| 64 KiB | 7 ns (1..9) |\n| 4 MiB | 8 ns (1..9) |\n"
            )
        };
        let [one, far, near] = MOODS;
        let heads = |moods: &[&str]| -> String {
            let heads = moods.iter().flat_map(|mood| {
                ["Messages, one way, untouched", "Messages, one way", "Puts, one way"].map(|head| format!("{head}{mood}"))
            });
            let tables = heads.zip(100..).map(|(head, ns)| table(&head, ns));
            "| date | today |\n| machine | one |\n| kernel | another |\n| command | `this` |\n".to_owned()
                + &tables.collect::<String>()
        };
        let found = chart(&heads(&[one])).expect("a chart");
        assert!(found.contains("101 ns") && !found.contains("100 ns") && found.contains(">One way<"), "{found}");
        let found = chart(&heads(&[far, near])).expect("a chart");
        assert!(found.contains("101 ns") && found.contains("104 ns") && !found.contains("103 ns"), "{found}");
        assert!(
            found.contains(&format!(">One way{near}<")) && found.contains(&format!(">Where others are ahead{near}<")),
            "{found}"
        );
    }

    #[test]
    fn the_page_of_the_repository_has_all_rows() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/performance.md")).expect("the page");
        let text = chart(&page).expect("a chart");
        let drawn = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/pictures/latency.svg")).expect("it");
        assert_eq!(text, drawn, "draw docs/pictures/latency.svg anew, with --from docs/performance.md --chart");
    }
}
