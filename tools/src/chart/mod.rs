//! Charts as plain SVG, for the page of `doorbell serve` and for those of `doorbell report` and `doorbell modes`.
//!
//! A chart is small and is drawn at about its own size, so its letters can be read on a telephone and on a wide screen. [`scale`] places values
//! and chooses the marks of an axis. Colours come from [`STYLE`], in light and in dark.

mod marks;
mod scale;

pub use marks::{round_number, round_time};
use maud::{Markup, html};
pub use scale::Scale;
use std::fmt::Write;

/// The style of the charts.
pub const STYLE: &str = include_str!("chart.css");

// All lengths are in the units of a chart, which are pixels at its own size.
const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 210.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 22.0;
const BOTTOM: f64 = 40.0;
/// A little more than a letter of the axes needs, because no font can be asked here.
const LETTER: f64 = 6.6;
/// The number of different colours.
const COLOURS: usize = 8;

/// An axis.
#[derive(Clone, Copy)]
pub struct Axis {
    /// The words for what it shows.
    pub label: &'static str,
    /// How values become places.
    pub scale: Scale,
    /// The words of a mark.
    pub mark: fn(f64) -> String,
}

/// A line.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Its name, for the key.
    pub name: String,
    /// Its points in the order of the horizontal axis. A value that is not finite leaves a gap.
    pub points: Vec<(f64, f64)>,
}

/// A bar from one place of the horizontal axis to another.
#[derive(Clone, Copy, Debug)]
pub struct Bar {
    /// Its left edge.
    pub from: f64,
    /// Its right edge.
    pub to: f64,
    /// Its height.
    pub value: f64,
}

/// Places of both axes, as pixels.
struct Plane {
    x: scale::Range,
    y: scale::Range,
}

impl Plane {
    fn x(&self, value: f64) -> f64 {
        LEFT + self.x.place(value) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.place(value) * (HEIGHT - TOP - BOTTOM)
    }
}

/// A chart of lines. Each has a point at its values if there are few.
pub fn lines(title: &str, x: Axis, y: Axis, series: &[Series]) -> Markup {
    lines_with(title, x, y, series, &[])
}

/// The same, with names of places of the horizontal axis, in their order. A name that would lie over another is left out.
pub fn lines_with(title: &str, x: Axis, y: Axis, series: &[Series], places: &[(f64, &str)]) -> Markup {
    let points = || series.iter().flat_map(|series| series.points.iter().copied());
    let usable = |(at, value): &(f64, f64)| x.scale.takes(*at) && y.scale.takes(*value);
    let all: Vec<(f64, f64)> = points().filter(usable).collect();
    if all.is_empty() {
        return nothing(title);
    }
    let plane = Plane { x: x.scale.range(all.iter().map(|(at, _)| *at)), y: y.scale.range(all.iter().map(|(_, value)| *value)) };
    let few = series.iter().all(|series| series.points.len() <= 16);
    figure(
        title,
        series.iter().map(|series| series.name.as_str()),
        html! {
            (axes(&plane, x, y))
            (named(&plane, x, places))
            @for (number, series) in series.iter().enumerate() {
                g class=(format!("c{}", number % COLOURS)) {
                    path class="line" d=(path(&plane, series.points.iter().map(|point| usable(point).then_some(*point)))) {}
                    @if few {
                        @for (at, value) in series.points.iter().filter(|point| usable(point)) {
                            circle class="point" cx=(pixel(plane.x(*at))) cy=(pixel(plane.y(*value))) r="2.5" {
                                title { (series.name) " " (x.label) " " ((x.mark)(*at)) ": " ((y.mark)(*value)) }
                            }
                        }
                    }
                }
            }
        },
    )
}

/// A chart of bars that stand on the horizontal axis.
pub fn bars(title: &str, x: Axis, y: Axis, bars: &[Bar]) -> Markup {
    let usable = |bar: &&Bar| x.scale.takes(bar.from) && x.scale.takes(bar.to) && bar.value.is_finite() && bar.value > 0.0;
    let bars: Vec<&Bar> = bars.iter().filter(usable).collect();
    if bars.is_empty() {
        return nothing(title);
    }
    let plane = Plane {
        x: x.scale.range(bars.iter().flat_map(|bar| [bar.from, bar.to])),
        y: y.scale.range(bars.iter().map(|bar| bar.value)),
    };
    let foot = HEIGHT - BOTTOM;
    figure(
        title,
        std::iter::empty(),
        html! {
            (axes(&plane, x, y))
            g.c0 {
                @for bar in bars {
                    @let (left, right, top) = (plane.x(bar.from), plane.x(bar.to), plane.y(bar.value));
                    rect.bar x=(pixel(left)) y=(pixel(top)) width=(pixel((right - left - 1.0).max(1.0))) height=(pixel((foot - top).max(1.5))) {
                        title { ((x.mark)(bar.from)) " to " ((x.mark)(bar.to)) ": " ((y.mark)(bar.value)) }
                    }
                }
            }
        },
    )
}

/// A chart that has nothing to show.
fn nothing(title: &str) -> Markup {
    figure(
        title,
        std::iter::empty(),
        html! {
            text.quiet x=(WIDTH / 2.0) y=(HEIGHT / 2.0) text-anchor="middle" { "no samples" }
        },
    )
}

/// The frame of a chart, with a key if there are several series. The key is text below the drawing, so it takes as many lines as it needs.
fn figure<'a>(title: &str, names: impl Iterator<Item = &'a str>, inside: Markup) -> Markup {
    let names: Vec<&str> = names.collect();
    html! {
        figure.chart {
            figcaption { (title) }
            svg viewBox=(format!("0 0 {WIDTH} {HEIGHT}")) role="img" aria-label=(title) { (inside) }
            @if names.len() > 1 {
                p.keys {
                    @for (number, name) in names.iter().enumerate() {
                        span class=(format!("key c{}", number % COLOURS)) { (name) }
                    }
                }
            }
        }
    }
}

/// Rules, marks and names of both axes. Marks that would lie over each other are left out.
fn axes(plane: &Plane, x: Axis, y: Axis) -> Markup {
    let (foot, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    let mut free = 0.0;
    let mut across = Vec::new();
    for value in plane.x.marks(6) {
        let (at, words) = (plane.x(value), (x.mark)(value));
        let half = words.chars().count() as f64 * LETTER / 2.0;
        // The first and last words stay inside the drawing.
        let middle = at.clamp(half, (WIDTH - half).max(half));
        if middle - half >= free {
            free = middle + half + LETTER;
            across.push((at, middle, words));
        }
    }
    html! {
        @for value in plane.y.marks(5) {
            @let at = plane.y(value);
            line.rule x1=(LEFT) x2=(right) y1=(pixel(at)) y2=(pixel(at)) {}
            text.mark x=(LEFT - 6.0) y=(pixel(at + 4.0)) text-anchor="end" { ((y.mark)(value)) }
        }
        line.axis x1=(LEFT) x2=(right) y1=(foot) y2=(foot) {}
        @for (at, middle, words) in &across {
            line.axis x1=(pixel(*at)) x2=(pixel(*at)) y1=(foot) y2=(foot + 4.0) {}
            text.mark x=(pixel(*middle)) y=(foot + 16.0) text-anchor="middle" { (words) }
        }
        text.name x="2" y="10" { (y.label) }
        text.name x=(right) y=(HEIGHT - 6.0) text-anchor="end" { (x.label) }
    }
}

/// A line at each of these places, with its name above the drawing.
fn named(plane: &Plane, x: Axis, places: &[(f64, &str)]) -> Markup {
    let mut free = 0.0;
    let places: Vec<(f64, Option<&str>)> = (places.iter().filter(|(value, _)| x.scale.takes(*value)))
        .map(|(value, name)| {
            let left = plane.x(*value);
            let right = left + name.chars().count() as f64 * LETTER;
            let fits = left >= free && right <= WIDTH;
            if fits {
                free = right + LETTER;
            }
            (left, fits.then_some(*name))
        })
        .collect();
    html! {
        @for (at, name) in places {
            line.axis x1=(pixel(at)) x2=(pixel(at)) y1=(TOP) y2=(HEIGHT - BOTTOM) {}
            @if let Some(name) = name { text.mark x=(pixel(at)) y=(TOP - 2.0) { (name) } }
        }
    }
}

/// The commands that draw a line, with a gap at each point that is missing.
fn path(plane: &Plane, points: impl Iterator<Item = Option<(f64, f64)>>) -> String {
    let mut text = String::new();
    let mut down = false;
    for point in points {
        if let Some((at, value)) = point {
            // A line without length is a dot, so that a point between two gaps is seen.
            let (letter, dot) = if down { ('L', "") } else { ('M', "h0") };
            let _ = write!(text, "{letter}{} {}{dot}", pixel(plane.x(at)), pixel(plane.y(value)));
        }
        down = point.is_some();
    }
    text
}

/// A length with one digit after the point.
fn pixel(length: f64) -> String {
    format!("{length:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const AXIS: Axis = Axis { label: "bytes", scale: Scale::Log(2.0), mark: |value| format!("{value:.0}") };
    const UP: Axis = Axis { label: "calls a second", scale: Scale::FromZero, mark: |value| format!("{value:.0}") };

    /// The places of all texts of a chart, as left edge, right edge and height.
    fn texts(markup: &str) -> Vec<(f64, f64, f64)> {
        let parts = markup.split("<text ").skip(1);
        let number = |part: &str, name: &str| -> f64 {
            let (_, rest) = part.split_once(&format!(" {name}=\"")).expect(name);
            rest.split('"').next().unwrap().parse().expect("a number")
        };
        parts
            .map(|part| {
                let (head, rest) = part.split_once('>').unwrap();
                let wide = rest.split('<').next().unwrap().chars().count() as f64 * 6.0;
                let x = number(&format!(" {head}"), "x");
                let left = match head {
                    _ if head.contains("\"middle\"") => x - wide / 2.0,
                    _ if head.contains("\"end\"") => x - wide,
                    _ => x,
                };
                (left, left + wide, number(&format!(" {head}"), "y"))
            })
            .collect()
    }

    #[test]
    fn no_two_texts_of_a_chart_lie_over_each_other_and_none_leaves_it() {
        let points = |most: i32| (0..most).map(|at| (8.0 * 2_f64.powi(at), 1e5 * f64::from(at + 1))).collect();
        for most in [1, 2, 3, 9, 30] {
            let series = [Series { name: "a".into(), points: points(most) }, Series { name: "b".into(), points: Vec::new() }];
            let places = [(8.0, "first"), (8.001, "covered"), (64.0, "second"), (8e9, "beyond the end of the chart")];
            let text = lines_with("a chart", AXIS, UP, &series, &places).into_string();
            assert!(text.contains(">first<") && !text.contains(">covered<") && !text.contains(">beyond"), "{text}");
            let found = texts(&text);
            assert!(found.len() >= 5, "{found:?}");
            for (number, (left, right, y)) in found.iter().enumerate() {
                assert!(*left >= -0.5 && *right <= WIDTH + 0.5 && *y >= 8.0 && *y <= HEIGHT, "{left} {right} {y}");
                for (other, below, z) in &found[number + 1..] {
                    assert!(right <= other || below <= left || (y - z).abs() >= 10.0, "{number} of {found:?}");
                }
            }
        }
    }

    #[test]
    fn values_that_cannot_be_drawn_leave_a_gap() {
        let nan = f64::NAN;
        let points = vec![(1.0, 1.0), (2.0, nan), (4.0, 2.0), (nan, 3.0), (8.0, f64::INFINITY), (0.0, 1.0), (16.0, 4.0)];
        let text = lines("gaps", AXIS, UP, &[Series { name: "a".into(), points }]).into_string();
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        let (_, rest) = text.split_once("d=\"").unwrap();
        assert_eq!(rest.split('"').next().unwrap().matches('M').count(), 3, "{text}");
        for empty in [vec![], vec![(nan, nan)], vec![(0.0, 1.0)]] {
            let text = lines("empty", AXIS, UP, &[Series { name: "a".into(), points: empty }]).into_string();
            assert!(text.contains("no samples"), "{text}");
        }
    }

    #[test]
    fn names_are_escaped_and_the_key_names_each_series() {
        let series = ["<b>", "plain"].map(|name| Series { name: name.into(), points: vec![(8.0, 1.0)] });
        let text = lines("<i>", AXIS, UP, &series).into_string();
        assert!(!text.contains("<b>") && !text.contains("<i>") && text.contains("&lt;b&gt;"), "{text}");
        assert_eq!(text.matches("class=\"key ").count(), 2);
    }

    #[test]
    fn a_bar_is_as_high_as_its_value() {
        let bar = |from: f64, value| Bar { from, to: from * 2.0, value };
        let text = bars("bars", AXIS, UP, &[bar(8.0, 100.0), bar(16.0, 50.0), bar(32.0, f64::NAN), bar(0.0, 7.0)]).into_string();
        let heights: Vec<f64> =
            text.split(" height=\"").skip(1).map(|part| part.split('"').next().unwrap().parse().unwrap()).collect();
        assert_eq!(heights.len(), 2, "{text}");
        assert!((heights[0] / heights[1] - 2.0).abs() < 0.02, "{heights:?}");
    }
}
