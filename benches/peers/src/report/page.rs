//! The chart of a saved page of tables, with the rows in which Doorbell does worst.

use super::Spread;
use super::chart::{Bars, Block, draw};

/// What a heading says of the processors. A page of a machine that has one mood says nothing.
const MOODS: [&str; 3] = ["", ", with the processors far apart", ", with the processors near each other"];
/// The table and the size of each column.
type Columns<'a> = [(&'a str, &'a str); 2];
const ONE_WAY: Columns<'_> = [("Messages, one way", "8 B"), ("Messages, one way", "64 KiB")];
/// The tables of times among whose rows the worst are looked for.
const TABLES: [&str; 4] = ["Messages, one way", "Messages to a handler, one way", "Loans, one way", "Puts, one way"];
/// The name of our column.
const OURS: &str = "Doorbell";

/// Draws the chart of a page that this program wrote.
///
/// # Errors
///
/// The page lacks a table or a row.
pub fn chart(page: &str) -> Result<String, String> {
    let [(first, bytes), _] = ONE_WAY;
    // Without Doorbell there is nothing to compare.
    let has_ours = |mood: &&str| row(page, first, mood, bytes).is_ok_and(|cells| cells.iter().any(|(name, _)| name == OURS));
    let moods: Vec<&str> = MOODS.into_iter().filter(has_ours).collect();
    let last = moods.last().ok_or(format!("the page has no times of Doorbell in a table '{first}'"))?;
    let mut blocks = moods.iter().map(|mood| block(page, "One way", mood, ONE_WAY)).collect::<Result<Vec<_>, _>>()?;
    if let [(first, of_first), (second, of_second)] = &worst(page, last)[..] {
        blocks.push(block(page, "Where Doorbell does worst", last, [(*first, of_first), (*second, of_second)])?);
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

/// The two rows, if there are so many, in which the best of the others is fastest beside Doorbell: the table and the size of each.
fn worst(page: &str, mood: &str) -> Vec<(&'static str, String)> {
    let mut found: Vec<(f64, &'static str, String)> = Vec::new();
    for table in TABLES {
        for (bytes, cells) in rows(page, table, mood).unwrap_or_default() {
            let (ours, others): (Vec<_>, Vec<_>) = cells.iter().partition(|(name, _)| name == OURS);
            let best = others.iter().map(|(_, spread)| spread.median).reduce(f64::min);
            if let (Some((_, ours)), Some(best)) = (ours.first(), best) {
                found.push((best / ours.median, table, bytes));
            }
        }
    }
    found.sort_by(|(one, ..), (other, ..)| one.total_cmp(other));
    found.into_iter().take(2).map(|(_, table, bytes)| (table, bytes)).collect()
}

/// The bars of some rows, as the processors are in this mood.
fn block(page: &str, title: &str, mood: &str, columns: Columns<'_>) -> Result<Block, String> {
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

/// The rows of a table: the size, and each peer with its time.
fn rows(page: &str, table: &str, mood: &str) -> Option<Vec<(String, Vec<(String, Spread)>)>> {
    let cells = |line: &str| -> Vec<String> { line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect() };
    let mut lines = section(page, table, mood)?.lines().filter(|line| line.starts_with('|')).map(cells);
    let head = lines.next()?;
    let row = |row: Vec<String>| {
        let mut cells = head.iter().zip(row).filter(|(name, _)| *name != "×");
        let (_, bytes) = cells.next()?;
        Some((bytes, cells.filter_map(|(name, cell)| Some((name.clone(), time(&cell)?))).collect()))
    };
    Some(lines.filter_map(row).collect())
}

/// A row of a table.
fn row(page: &str, table: &str, mood: &str, bytes: &str) -> Result<Vec<(String, Spread)>, String> {
    let lacks = |what: &str| format!("the page has no {what} under '{table}{mood}'");
    let rows = rows(page, table, mood).ok_or_else(|| lacks("table"))?;
    rows.into_iter().find_map(|(size, cells)| (size == bytes).then_some(cells)).ok_or_else(|| lacks(bytes))
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
            let row =
                |bytes: &str, ours: u32, other: u32| format!("| {bytes} | {ours} ns (1..900) | {other} ns (1..900) | 1.0 |\n");
            let rows = row("8 B", ns, 5 * ns) + &row("64 KiB", 10 * ns, 9 * ns) + &row("4 MiB", 100 * ns, 99 * ns);
            format!("\n## {head}\n\n| bytes | Doorbell | Other | × |\n|---:|---:|---:|---:|\n{rows}")
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
        // Of the two tables, the rows of 64 KiB are the worst.
        let worst = ["Messages, one way: 64 KiB", "Puts, one way: 64 KiB"];
        assert!(worst.iter().all(|row| found.contains(row)) && !found.contains("4 MiB"), "{found}");
        let found = chart(&heads(&[far, near])).expect("a chart");
        assert!(found.contains("101 ns") && found.contains("104 ns") && !found.contains("103 ns"), "{found}");
        assert!(
            found.contains(&format!(">One way{near}<")) && found.contains(&format!(">Where Doorbell does worst{near}<")),
            "{found}"
        );
        let row = |bytes: &str| format!("| {bytes} | – | 5 ns (1..9) | |\n");
        let others = format!("\n## Messages, one way{far}\n\n| bytes | Doorbell | Other | × |\n|---:|---:|---:|---:|\n");
        let found = chart(&(heads(&[near]) + &others + &row("8 B") + &row("64 KiB"))).expect("a chart");
        assert!(found.contains(near) && !found.contains(far), "without Doorbell: {found}");
    }

    #[test]
    fn the_page_of_the_repository_has_all_rows() {
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/performance.md")).expect("the page");
        let text = chart(&page).expect("a chart");
        let drawn = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/pictures/latency.svg")).expect("it");
        assert_eq!(text, drawn, "draw docs/pictures/latency.svg anew, with --from docs/performance.md --chart");
    }
}
