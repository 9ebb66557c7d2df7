//! A chart of the main latencies as SVG: one bar for each peer, in light or dark as the reader prefers.

use super::{Mood, Report, Spread, machine};
use crate::peers::Who;
use crate::plan::{Table, size};
use doorbell_peers::order::{Over, Work};
use std::fmt::{self, Write};

/// The sizes of the messages in the chart.
const SIZES: [usize; 2] = [8, 64 << 10];

// All lengths are in pixels of a chart at its own size.
const FONT: usize = 13;
/// A little more than a character of a usual font needs, because no font can be asked here.
const CHARACTER: usize = 8;
const MARGIN: usize = 20;
const LINE: usize = 24;
const BAR: usize = 14;
const LONGEST: usize = 220;
/// A bar that is so many times as long as Doorbell's is cut, and has a gap. Otherwise the others would be too short to compare.
const CUT: f64 = 8.0;
/// The distance of the gap from the end of a cut bar, and its width.
const GAP: [usize; 2] = [24, 4];
/// Room for a text such as `9999.9 µs · 999.99 ×`.
const VALUE: usize = 20 * CHARACTER;

const STYLE: &str = "text{font:13px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#1f2328}\
                     .head{font-weight:600}.quiet{fill:#59636e}.back{fill:#ffffff}.bar{fill:#a8b1bb}.own{fill:#0969da}\
                     @media(prefers-color-scheme:dark){text{fill:#e6edf3}.quiet{fill:#9198a1}.back{fill:#0d1117}\
                     .bar{fill:#59636e}.own{fill:#4493f8}}";

/// Bars that are compared with each other, in columns.
pub(super) struct Block {
    pub title: String,
    pub columns: [String; SIZES.len()],
    pub rows: Vec<Bars>,
}

/// The bars of one peer, one for each column that was measured.
pub(super) struct Bars {
    pub name: String,
    pub found: [Option<Spread>; SIZES.len()],
}

impl Bars {
    fn is_own(&self) -> bool {
        self.name == Who::Doorbell.name()
    }
}

impl Report<'_> {
    /// The chart, unless there is no latency to draw.
    pub fn chart(&self) -> Option<String> {
        let is_latency = |table: &&Table| (table.work, table.over) == (Work::Latency, Over::Memory);
        let table = *self.tables.iter().find(is_latency)?;
        let blocks: Vec<Block> = self.findings.moods().into_iter().filter_map(|mood| self.block(table, mood)).collect();
        let touched = if table.touched { "written and read" } else { "neither written nor read" };
        let plural = if self.rounds == 1 { "" } else { "s" };
        let notes = [
            format!(
                "Median of {} round{plural}; shorter is better, and a bar with a gap is cut. Messages are {touched}.",
                self.rounds
            ),
            format!("{}, {}", machine::processor(), self.dates),
        ];
        let mut text = String::new();
        (!blocks.is_empty() && draw(&mut text, &blocks, &notes).is_ok()).then_some(text)
    }

    fn block(&self, table: Table, mood: Mood) -> Option<Block> {
        let bars =
            |who: Who| Bars { name: who.name().into(), found: SIZES.map(|bytes| self.findings.spread(table, bytes, who, mood)) };
        let peers = self.peers.iter().filter(|peer| peer.knows(table)).map(|peer| bars(peer.who));
        let rows: Vec<Bars> = peers.filter(|bars| bars.found.iter().any(Option::is_some)).collect();
        let title = mood.title.map_or("One way".into(), |title| format!("One way, {title}"));
        // Without Doorbell there is nothing to compare.
        rows.iter().any(Bars::is_own).then_some(Block { title, columns: SIZES.map(size), rows })
    }
}

pub(super) fn draw(to: &mut String, blocks: &[Block], notes: &[String]) -> fmt::Result {
    let names = blocks.iter().flat_map(|block| &block.rows).map(|bars| bars.name.chars().count()).max().unwrap_or(0);
    let columns: [usize; SIZES.len()] =
        std::array::from_fn(|column| MARGIN + (names + 2) * CHARACTER + column * (LONGEST + VALUE + MARGIN));
    let width = columns[SIZES.len() - 1] + LONGEST + VALUE + MARGIN;
    let lines: usize = blocks.iter().map(|block| block.rows.len() + 3).sum::<usize>() + notes.len();
    let height = 2 * MARGIN + lines * LINE;
    writeln!(
        to,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">"
    )?;
    writeln!(to, "<title>Doorbell beside others: the time of a message</title>\n<style>{STYLE}</style>")?;
    writeln!(to, "<rect class=\"back\" width=\"{width}\" height=\"{height}\" rx=\"8\"/>")?;
    let mut line = 0;
    for block in blocks {
        label(to, "head", MARGIN, line, &block.title)?;
        for (column, title) in columns.iter().zip(&block.columns) {
            label(to, "quiet", *column, line + 1, title)?;
        }
        line += 2;
        for bars in &block.rows {
            label(to, "name", MARGIN, line, &bars.name)?;
            for (index, column) in columns.iter().enumerate() {
                bar(to, block, bars, index, *column, line)?;
            }
            line += 1;
        }
        line += 1;
    }
    for note in notes {
        let most = (width - 2 * MARGIN) / CHARACTER;
        label(to, "quiet", MARGIN, line, &note.chars().take(most).collect::<String>())?;
        line += 1;
    }
    writeln!(to, "</svg>")
}

/// The bar of a peer, its time, and how many times Doorbell's that is.
fn bar(to: &mut String, block: &Block, bars: &Bars, index: usize, column: usize, line: usize) -> fmt::Result {
    let Some(Spread { low, median, high }) = bars.found[index] else { return label(to, "quiet", column, line, "–") };
    let own = block.rows.iter().find(|row| row.is_own()).and_then(|row| row.found[index]);
    let most = own.map_or(f64::INFINITY, |own| own.median * CUT);
    let times = block.rows.iter().filter_map(|row| row.found[index]).map(|found| found.median);
    let longest = times.filter(|median| *median <= most).fold(0.0, f64::max);
    let is_cut = median > most;
    let length = if is_cut { LONGEST as f64 } else { (LONGEST as f64 * median / longest).max(1.0) };
    let class = if bars.is_own() { "own" } else { "bar" };
    // Times below each other have one unit.
    let time = |ns: f64| if longest >= 9_999.5 { format!("{:.1} µs", ns / 1e3) } else { format!("{ns:.0} ns") };
    let ends = [low, high].map(time).join(" to ");
    let name = escaped(&bars.name);
    writeln!(
        to,
        "<rect class=\"{class}\" x=\"{column}\" y=\"{}\" width=\"{length:.1}\" height=\"{BAR}\" rx=\"2\"><title>{name}: {ends}</title></rect>",
        MARGIN + line * LINE + (LINE - BAR) / 2
    )?;
    if is_cut {
        let [from_end, width] = GAP;
        let (x, y) = (column + LONGEST - from_end, MARGIN + line * LINE + (LINE - BAR) / 2);
        writeln!(to, "<rect class=\"back\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{BAR}\"/>")?;
    }
    let ratio = match own {
        Some(own) if !bars.is_own() => {
            let times = median / own.median;
            format!(" · {times:.*} ×", if times < 100.0 { 2 } else { 0 })
        }
        _ => String::new(),
    };
    label(to, "value", column + length.ceil() as usize + CHARACTER, line, &format!("{}{ratio}", time(median)))
}

fn label(to: &mut String, class: &str, x: usize, line: usize, text: &str) -> fmt::Result {
    let y = MARGIN + line * LINE + (LINE + FONT) / 2 - 2;
    writeln!(to, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{}</text>", escaped(text))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers;
    use crate::plan::Row;
    use crate::report::{Findings, SECTIONS_LEAST};
    use doorbell_peers::order::{Answer, Seen};
    use roxmltree::{Document, Node};

    /// Where a text or a bar is: left, right, top, bottom. A text is as wide as a wide font makes it.
    fn place(node: Node<'_, '_>) -> [f64; 4] {
        let number = |name| node.attribute(name).and_then(|value| value.parse::<f64>().ok()).unwrap_or(0.0);
        let (x, y) = (number("x"), number("y"));
        match node.text().filter(|_| node.has_tag_name("text")) {
            Some(text) => [x, x + (text.chars().count() * CHARACTER) as f64, y - FONT as f64, y + 4.0],
            None => [x, x + number("width"), y, y + number("height")],
        }
    }

    fn overlap(a: [f64; 4], b: [f64; 4]) -> bool {
        a[0] < b[1] && b[0] < a[1] && a[2] < b[3] && b[2] < a[3]
    }

    /// A chart of all peers, in one mood of the machine for each of the hops.
    fn chart(hops: &[f64], leave_out: &[Who]) -> Option<String> {
        let peers = peers::find(std::path::Path::new("/nowhere"), &[]);
        let tables = Row::Latency.tables(true);
        let legs = crate::plan::legs(tables[0], false);
        let mut findings = Findings::default();
        for (round, hop) in hops.iter().enumerate() {
            for (number, peer) in peers.iter().filter(|peer| peer.knows(tables[0])).enumerate() {
                let seen = |ns| Seen { ns, hops: [*hop; 2], ..Seen::default() };
                let ns = |bytes: usize| hop + (bytes * (1 + 30 * number)) as f64;
                let legs = legs.iter().map(|leg| vec![seen(ns(leg.bytes)); SECTIONS_LEAST]).collect();
                if !leave_out.contains(&peer.who) {
                    findings.add(peer.who, tables[0], round, Ok(Answer { legs, ..Answer::default() }));
                }
            }
        }
        Report { peers: &peers, tables: &tables, findings: &findings, rounds: 5, quick: false, dates: "2026-11-25" }.chart()
    }

    /// Checks a chart of these peers.
    fn check(text: &str, shown: &[Who], moods: usize) {
        let chart = Document::parse(text).expect("well-formed XML");
        let root = chart.root_element();
        let [width, height] = ["width", "height"].map(|name| root.attribute(name).and_then(|value| value.parse::<f64>().ok()));
        let texts: Vec<Node<'_, '_>> = root.descendants().filter(|node| node.has_tag_name("text")).collect();
        let is_bar = |node: &Node<'_, '_>| matches!(node.attribute("class"), Some("bar" | "own"));
        let bars: Vec<Node<'_, '_>> = root.descendants().filter(is_bar).collect();
        let takes = |who: Who| SIZES.into_iter().filter(|bytes| who.takes(*bytes)).count();
        assert_eq!(bars.len(), shown.iter().map(|who| takes(*who)).sum::<usize>() * moods);
        for who in shown {
            let names: Vec<_> = texts.iter().filter(|text| text.text() == Some(who.name())).collect();
            assert_eq!(names.len(), moods, "{}", who.name());
            for name in names {
                let [.., top, bottom] = place(*name);
                let beside = |node: &Node<'_, '_>| place(*node)[2] < bottom && top < place(*node)[3];
                let its = bars.iter().filter(|bar| beside(bar));
                let values = texts.iter().filter(|text| text.attribute("class") == Some("value") && beside(text));
                assert_eq!((its.count(), values.count()), (takes(*who), takes(*who)), "{}", who.name());
            }
        }
        for (i, text) in texts.iter().enumerate() {
            let [left, right, top, bottom] = place(*text);
            assert!(left >= 0.0 && top >= 0.0 && Some(right) <= width && Some(bottom) <= height, "{:?} is cut", text.text());
            for other in texts[i + 1..].iter().chain(&bars) {
                assert!(!overlap(place(*text), place(*other)), "{:?} overlaps {other:?}", text.text());
            }
        }
    }

    fn all() -> Vec<Who> {
        let latency = Row::Latency.tables(true)[0];
        let peers = peers::find(std::path::Path::new("/nowhere"), &[]);
        peers.iter().filter(|peer| peer.knows(latency)).map(|peer| peer.who).collect()
    }

    #[test]
    fn each_peer_has_a_bar_and_a_label_that_overlap_nothing() {
        let text = chart(&[100.0], &[]).expect("a chart");
        check(&text, &all(), 1);
        assert!(text.contains("@media(prefers-color-scheme:dark)"));
    }

    #[test]
    fn near_and_far_have_bars_of_their_own() {
        let text = chart(&[100.0, 300.0], &[]).expect("a chart");
        check(&text, &all(), 2);
        assert!(text.contains("near each other") && text.contains("far apart"));
    }

    #[test]
    fn a_peer_without_a_result_has_no_bar() {
        let left: Vec<Who> = all().into_iter().filter(|who| *who != Who::Ucx).collect();
        check(&chart(&[100.0], &[Who::Ucx]).expect("a chart"), &left, 1);
        assert_eq!(chart(&[100.0], &[Who::Doorbell]), None);
    }
}
