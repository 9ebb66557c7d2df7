//! An outcome as an HTML page that needs no other file.

use super::table::{rows_of_changes, ways};
use super::{Outcome, Ratio, Seen, Span};
use crate::measure::time;
use crate::text::{Table, counted};
use doorbell::mode::Protocol;
use std::fmt::Write;

/// Pixels of the drawing, of its margins, and of the lane of a link.
const WIDTH: f64 = 1100.0;
const LEFT: f64 = 110.0;
const RIGHT: f64 = 90.0;
const TOP: f64 = 24.0;
const LANE: f64 = 70.0;
const STACK: f64 = 120.0;
const GAP: f64 = 14.0;
/// Changes that are listed.
const CHANGES: usize = 500;
/// The colours of modes, in their order.
const COLOURS: [&str; 10] =
    ["#4878a8", "#e49444", "#5aa0a0", "#d1605e", "#85b66b", "#a87c9f", "#e7ca60", "#967662", "#6a9fd0", "#b8b0ac"];

const STYLE: &str = include_str!("page.css");

/// The page.
pub fn render(outcomes: &[Outcome]) -> String {
    let mut page =
        String::from("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>doorbell modes</title>\n");
    let _ = write!(page, "<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>doorbell modes</h1>\n");
    page += "<p>Each load was carried out under a policy and by each mode alone. A mode is a fabric, one of its links, and a protocol. \
             Latencies are from the moment a message was due, or handed over, until the reader had it.</p>\n";
    for outcome in outcomes {
        section(&mut page, outcome);
    }
    page + "</body>\n</html>\n"
}

fn section(page: &mut String, outcome: &Outcome) {
    let load = &outcome.load;
    let _ = writeln!(page, "<h2>{}</h2>\n<p>{}</p>", escaped(&load.name), escaped(&load.about));
    let rounds = counted(outcome.rounds.into(), "round");
    let _ =
        writeln!(page, "<p>{} messages; medians of {rounds}; links {}.</p>", load.messages(), escaped(&outcome.links.join(", ")));
    html(page, &ways(outcome));
    for (way, why) in &outcome.missing {
        let _ = writeln!(page, "<p>{} is not available: {}</p>", escaped(way), escaped(why));
    }
    for (what, extreme, Ratio { ratio, beside, goal }) in outcome.ratios() {
        let (mode, met) = (escaped(&beside), if ratio <= goal { "met" } else { "missed" });
        let _ = writeln!(
            page,
            "<p>The policy's {what} over the {extreme} of one mode alone ({mode}): <b>{ratio:.2}</b>; goal {goal:.2}: \
             <b class=\"{met}\">{met}</b></p>"
        );
    }
    timeline(page, outcome);
    changes(page, outcome);
}

/// A lane for the load of each link, and messages by mode below.
fn timeline(page: &mut String, outcome: &Outcome) {
    let found = &outcome.timeline;
    let spans = &found.spans;
    if spans.is_empty() {
        return;
    }
    let modes: Vec<(usize, Protocol)> = (0..found.links.len())
        .flat_map(|at| Protocol::ALL.map(|protocol| (at, protocol)))
        .filter(|(at, protocol)| spans.iter().any(|span| span.modes[*at][*protocol as usize] > 0))
        .collect();
    let all = found.width as f64 * spans.len() as f64;
    let x = |ns: f64| LEFT + ns / all * (WIDTH - LEFT - RIGHT);
    let at = |span: usize| x(found.width as f64 * (span as f64 + 0.5));
    let bottom = TOP + found.links.len() as f64 * (LANE + GAP) + STACK;
    let height = bottom + 24.0;
    let _ = writeln!(page, "<h3>Under the policy, over time</h3>");
    *page += "<p><span class=\"key\" style=\"background:#4878a8\"></span>memory in use\
              <span class=\"key\" style=\"background:#d1605e\"></span>packets that wait\
              <span class=\"key\" style=\"background:#85b66b\"></span>DMA transfers under way; messages by mode:";
    for (number, (link, protocol)) in modes.iter().enumerate() {
        let (colour, link) = (COLOURS[number % COLOURS.len()], escaped(&found.links[*link]));
        let _ = write!(page, "<span class=\"key\" style=\"background:{colour}\"></span>{link}/{protocol}");
    }
    let _ = writeln!(page, "</p>\n<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">");
    for (phase, start) in outcome.load.phases.iter().zip(&outcome.starts) {
        let (left, name) = (x(*start as f64), escaped(&phase.name));
        let _ = writeln!(page, "<line class=\"axis\" x1=\"{left:.1}\" x2=\"{left:.1}\" y1=\"4\" y2=\"{bottom:.1}\"/>");
        let _ = writeln!(page, "<text x=\"{:.1}\" y=\"14\">{name}</text>", left + 4.0);
    }
    for (place, link) in found.links.iter().enumerate() {
        let base = TOP + place as f64 * (LANE + GAP) + LANE;
        let of = |metric: fn(&Seen) -> f64| spans.iter().map(|span| metric(&span.links[place])).collect::<Vec<_>>();
        let line = |values: &[f64], most: f64| {
            let point = |(span, value): (usize, &f64)| format!("{:.1},{:.1}", at(span), base - value / most.max(1.0) * LANE);
            values.iter().enumerate().map(point).collect::<Vec<_>>().join(" ")
        };
        let (memory, depth, transfers) =
            (of(|seen| f64::from(seen.occupancy)), of(|seen| f64::from(seen.depth)), of(|seen| f64::from(seen.transfers)));
        let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        let (deepest, busiest) = (most(&depth), most(&transfers));
        let _ =
            writeln!(page, "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{base:.1}\" y2=\"{base:.1}\"/>", WIDTH - RIGHT);
        let _ = writeln!(page, "<text x=\"4\" y=\"{:.1}\">{}</text>", base - LANE / 2.0, escaped(link));
        let (first, last) = (at(0), at(spans.len() - 1));
        let area = line(&memory, 1000.0);
        let _ = writeln!(page, "<polygon class=\"memory\" points=\"{first:.1},{base:.1} {area} {last:.1},{base:.1}\"/>");
        if deepest > 0.0 {
            let _ = writeln!(page, "<polyline class=\"depth\" points=\"{}\"/>", line(&depth, deepest));
        }
        if busiest > 0.0 {
            let _ = writeln!(page, "<polyline class=\"transfers\" points=\"{}\"/>", line(&transfers, busiest));
        }
        let right = WIDTH - RIGHT + 6.0;
        for (row, told) in
            [format!("{:.0} % full", most(&memory) / 10.0), format!("{deepest:.0} deep"), format!("{busiest:.0} transfers")]
                .iter()
                .enumerate()
        {
            let _ = writeln!(page, "<text x=\"{right:.1}\" y=\"{:.1}\">{told}</text>", base - LANE + 14.0 + 15.0 * row as f64);
        }
    }
    stack(page, spans, &modes, bottom, &at);
    let step = tick(all);
    for tick in 0..=(all / step) as usize {
        let ns = tick as f64 * step;
        let told = if tick == 0 { "0".into() } else { time(ns) };
        let _ = writeln!(page, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{told}</text>", x(ns), bottom + 16.0);
    }
    *page += "</svg>\n";
}

/// Messages of each span by mode, stacked.
fn stack(page: &mut String, spans: &[Span], modes: &[(usize, Protocol)], bottom: f64, at: &dyn Fn(usize) -> f64) {
    let count = |span: &Span, (link, protocol): (usize, Protocol)| span.modes[link][protocol as usize] as f64;
    let most = spans.iter().map(|span| modes.iter().map(|mode| count(span, *mode)).sum()).fold(1.0, f64::max);
    let wide = if spans.len() > 1 { (at(1) - at(0)) * 0.9 } else { 20.0 };
    let _ = writeln!(page, "<text x=\"4\" y=\"{:.1}\">messages</text>", bottom - STACK / 2.0);
    let right = WIDTH - RIGHT + 6.0;
    let _ = writeln!(page, "<text x=\"{right:.1}\" y=\"{:.1}\">{most:.0} at most</text>", bottom - STACK + 14.0);
    for (number, mode) in modes.iter().enumerate() {
        let _ = write!(page, "<path fill=\"{}\" d=\"", COLOURS[number % COLOURS.len()]);
        for (place, span) in spans.iter().enumerate() {
            let below: f64 = modes[..number].iter().map(|mode| count(span, *mode)).sum();
            let high = count(span, *mode) / most * STACK;
            if high > 0.0 {
                let (left, foot) = (at(place) - wide / 2.0, bottom - below / most * STACK);
                let _ = write!(page, "M{left:.1} {foot:.1}h{wide:.1}v{:.1}h{:.1}z", -high, -wide);
            }
        }
        *page += "\"/>\n";
    }
}

/// A round step that divides the axis into about ten parts.
fn tick(all: f64) -> f64 {
    let rough = (all / 10.0).max(1.0);
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|times| times * power).find(|step| *step >= rough).unwrap_or(10.0 * power)
}

fn changes(page: &mut String, outcome: &Outcome) {
    let found = &outcome.timeline;
    let _ = writeln!(
        page,
        "<details><summary>{} took another mode than the last one of its kind; {} besides</summary>",
        counted(found.changed as usize, "message"),
        counted(found.trials as usize, "trial")
    );
    html(page, &rows_of_changes(found, CHANGES));
    *page += "</details>\n";
}

/// A table. Columns of words are aligned to the left. The row of the policy stands out.
fn html(page: &mut String, table: &Table) {
    *page += "<table>\n";
    for (at, row) in table.cells().enumerate() {
        let (tag, mut row) = (if at == 0 { "th" } else { "td" }, row.peekable());
        let is_policy = row.peek().is_some_and(|(cell, _)| cell.starts_with("policy "));
        *page += if is_policy { "<tr class=\"policy\">" } else { "<tr>" };
        for (cell, is_right) in row {
            let class = if is_right { "" } else { " class=\"word\"" };
            let _ = write!(page, "<{tag}{class}>{}</{tag}>", escaped(cell));
        }
        *page += "</tr>\n";
    }
    *page += "</table>\n";
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modes::outcome::tests::outcome;

    #[test]
    fn the_page_stands_alone_and_whatever_is_opened_is_closed() {
        let page = render(&[outcome(), outcome()]);
        assert!(!page.contains("http") && !page.contains("NaN") && !page.contains("inf\""), "{page}");
        for name in
            ["table", "tr", "td", "th", "svg", "text", "details", "summary", "p", "span", "h2", "b", "style", "body", "html"]
        {
            let opened = page.matches(&format!("<{name}>")).count() + page.matches(&format!("<{name} ")).count();
            assert_eq!(opened, page.matches(&format!("</{name}>")).count(), "{name}");
        }
        for phase in outcome().load.phases {
            assert!(page.contains(&format!(">{}</text>", phase.name)), "{}", phase.name);
        }
        assert!(page.contains("5 may &lt;&amp;&gt;"), "what is said is escaped");
    }

    #[test]
    fn some_ten_round_steps() {
        for (all, step) in [(1e9, 1e8), (1.3e9, 2e8), (4.9e8, 5e7), (9.9e6, 1e6)] {
            assert!((tick(all) / step - 1.0).abs() < 1e-9, "{all}: {}", tick(all));
        }
    }
}
