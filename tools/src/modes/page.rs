//! An outcome as an HTML page that needs no other file.

use super::table::{rows_of_changes, ways};
use super::{Outcome, Ratio, Seen, Span};
use crate::chart::{Axis, Scale, Series, lines_with, round_number};
use crate::measure::time;
use crate::page::{Page, Rows};
use crate::text::counted;
use doorbell::mode::Protocol;
use maud::{Markup, html};

/// Changes that are listed.
const CHANGES: usize = 500;

const AT: Axis = Axis { label: "time", scale: Scale::FromZero, mark: |ns| if ns == 0.0 { "0".into() } else { time(ns) } };
const COUNT: Axis = Axis { label: "", scale: Scale::FromZero, mark: round_number };

/// The page.
pub fn render(outcomes: &[Outcome]) -> String {
    let page = Page {
        generator: concat!("doorbell modes ", env!("CARGO_PKG_VERSION")),
        title: "doorbell modes",
        about: html! { "Doorbell " (env!("CARGO_PKG_VERSION")) },
        main: html! { @for outcome in outcomes { (section(outcome)) } },
        footer: html! {
            "Each load was carried out under a policy and by each mode alone. A mode is a fabric, one of its links, and a protocol. "
            "Latencies are from the moment a message was due, or handed over, until the reader had it."
        },
    };
    page.render()
}

fn section(outcome: &Outcome) -> Markup {
    let load = &outcome.load;
    html! {
        h2 { (load.name) }
        p { (load.about) }
        p { (load.messages()) " messages; medians of " (counted(outcome.rounds.into(), "round")) "; links " (outcome.links.join(", ")) "." }
        (Rows { table: &ways(outcome), strong: Some("policy") })
        @for (way, why) in &outcome.missing { p { (way) " is not available: " (why) } }
        @for (what, extreme, Ratio { ratio, beside, goal }) in outcome.ratios() {
            @let met = if ratio <= goal { "met" } else { "missed" };
            p {
                "The policy's " (what) " over the " (extreme) " of one mode alone (" (beside) "): " b { (format!("{ratio:.2}")) }
                "; goal " (format!("{goal:.2}")) ": " b class=(met) { (met) }
            }
        }
        (timeline(outcome))
        (changes(outcome))
    }
}

/// The load of each link, and the messages by mode.
fn timeline(outcome: &Outcome) -> Markup {
    let found = &outcome.timeline;
    let spans = &found.spans;
    let phases: Vec<(f64, &str)> =
        outcome.load.phases.iter().zip(&outcome.starts).map(|(phase, start)| (*start as f64, phase.name.as_str())).collect();
    let line = |name: String, value: &dyn Fn(&Span) -> f64| {
        let at = |span: usize| found.width as f64 * (span as f64 + 0.5);
        Series { name, points: spans.iter().enumerate().map(|(number, span)| (at(number), value(span))).collect() }
    };
    let links = |value: fn(&Seen) -> f64| -> Vec<Series> {
        let link = |(at, name): (usize, &String)| line(name.clone(), &|span| value(&span.links[at]));
        found.links.iter().enumerate().map(link).collect()
    };
    let modes = found.links.iter().enumerate().flat_map(|(at, link)| Protocol::ALL.map(|protocol| (at, link, protocol)));
    let modes: Vec<Series> = modes
        .filter(|(at, _, protocol)| spans.iter().any(|span| span.modes[*at][*protocol as usize] > 0))
        .map(|(at, link, protocol)| line(format!("{link}/{protocol}"), &|span| span.modes[at][protocol as usize] as f64))
        .collect();
    // A chart of zeros says nothing. A chart of one line has no key, so its title names the line.
    let chart = |title: &str, label: &'static str, series: &[Series]| -> Option<Markup> {
        let is_seen = series.iter().flat_map(|series| &series.points).any(|(_, value)| *value > 0.0);
        let title = if let [only] = series { format!("{title}: {}", only.name) } else { title.to_owned() };
        is_seen.then(|| lines_with(&title, AT, Axis { label, ..COUNT }, series, &phases))
    };
    let charts = [
        chart("Memory of links in use", "%", &links(|seen| f64::from(seen.occupancy) / 10.0)),
        chart("Packets that wait", "packets", &links(|seen| f64::from(seen.depth))),
        chart("DMA transfers under way", "transfers", &links(|seen| f64::from(seen.transfers))),
        chart("Messages by mode", "messages", &modes),
    ];
    html! { @if !spans.is_empty() {
        h3 { "Under the policy, over time" }
        p { "Phases: " (phases.iter().map(|(start, name)| format!("{name} from {}", (AT.mark)(*start))).collect::<Vec<_>>().join(", ")) "." }
        div.charts {
            @for chart in charts.into_iter().flatten() { (chart) }
        }
    } }
}

fn changes(outcome: &Outcome) -> Markup {
    let found = &outcome.timeline;
    html! {
        details {
            summary {
                (counted(found.changed as usize, "message")) " took another mode than the last one of its kind; "
                (counted(found.trials as usize, "trial")) " besides"
            }
            (Rows { table: &rows_of_changes(found, CHANGES), strong: None })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modes::outcome::tests::outcome;

    #[test]
    fn the_page_stands_alone_and_whatever_is_opened_is_closed() {
        let page = render(&[outcome(), outcome()]);
        assert!(
            !page.contains("http:") && !page.contains("https:") && !page.contains("NaN") && !page.contains("inf\""),
            "{page}"
        );
        for name in [
            "table", "tr", "td", "th", "svg", "text", "details", "summary", "p", "span", "h2", "b", "style", "body", "html",
            "figure", "thead",
        ] {
            let opened = page.matches(&format!("<{name}>")).count() + page.matches(&format!("<{name} ")).count();
            assert_eq!(opened, page.matches(&format!("</{name}>")).count(), "{name}");
        }
        for phase in outcome().load.phases {
            assert!(page.contains(&format!("{} from ", phase.name)), "{}", phase.name);
        }
        assert!(page.contains("5 may &lt;&amp;&gt;"), "what is said is escaped");
        assert!(page.contains("<figcaption>Memory of links in use") && !page.contains("<figcaption>DMA transfers"), "{page}");
        let mut busy = outcome();
        busy.timeline.spans.iter_mut().flat_map(|span| &mut span.links).for_each(|link| link.transfers = 1);
        assert!(render(&[busy]).contains("<figcaption>DMA transfers"));
    }
}
