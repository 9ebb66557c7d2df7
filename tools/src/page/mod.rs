//! The pages that people keep and send to each other: one frame, one style sheet, one form of tables. A page has no script, and it loads nothing.

use crate::chart;
use crate::text::Table;
use maud::{DOCTYPE, Markup, PreEscaped, Render, html};

/// The rules of every page; those of charts are beside the charts.
pub const STYLE: &str = include_str!("page.css");
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

/// A page.
pub struct Page<'a> {
    /// The command that made it.
    pub generator: &'a str,
    /// Its title, which is also its first heading.
    pub title: &'a str,
    /// A line below the title.
    pub about: Markup,
    /// Its contents.
    pub main: Markup,
    /// Words at its end.
    pub footer: Markup,
}

impl Page<'_> {
    /// The whole page.
    pub fn render(&self) -> String {
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="generator" content=(self.generator);
                    meta http-equiv="Content-Security-Policy" content=(POLICY);
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (self.title) }
                    link rel="icon" href="data:,";
                    style { (PreEscaped(chart::STYLE)) (PreEscaped(STYLE)) }
                }
                body {
                    header { h1 { (self.title) } p.quiet { (self.about) } }
                    main { (self.main) }
                    footer { p { (self.footer) } }
                }
            }
        };
        page.into_string() + "\n"
    }
}

/// A table of a page. Columns of words are aligned to the left, and rows that begin with `strong` stand out.
pub struct Rows<'a> {
    /// The cells.
    pub table: &'a Table,
    /// The first word of the rows that stand out.
    pub strong: Option<&'a str>,
}

impl Render for Rows<'_> {
    fn render(&self) -> Markup {
        let mut rows = self.table.cells().map(Iterator::collect::<Vec<_>>);
        let class = |is_right: bool| (!is_right).then_some("word");
        let is_strong = |row: &[(&str, bool)]| {
            self.strong.is_some_and(|word| row.first().is_some_and(|(cell, _)| cell.split(' ').next() == Some(word)))
        };
        html! {
            div.wide { table.rows {
                thead { tr { @for (cell, is_right) in rows.next().unwrap_or_default() { th class=[class(is_right)] { (cell) } } } }
                tbody { @for row in rows {
                    tr class=[is_strong(&row).then_some("strong")] {
                        @for (cell, is_right) in &row { td class=[class(*is_right)] { (cell) } }
                    }
                } }
            } }
        }
    }
}
