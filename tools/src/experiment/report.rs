//! The forms in which rows of figures are printed. A row is a list of [`Field`]s, from which text for people, JSON and CSV are made.

use crate::measure::{Size, table};
use crate::text::{Format, Table, lines};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

/// A field of a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// The name for programs.
    pub name: &'static str,
    value: Value,
    /// The name of the column for people, if they see the field.
    head: Option<&'static str>,
    text: String,
}

impl Field {
    /// A word, a number or anything else that serde writes. `None` was not measured.
    pub fn of(name: &'static str, value: impl Serialize) -> Self {
        let value = json!(value);
        Self { name, text: plain(&value), value, head: None }
    }

    /// Nanoseconds, which people see in a unit that suits them.
    pub fn ns(name: &'static str, ns: impl Into<Option<f64>>) -> Self {
        let ns = ns.into();
        Self::of(name, ns.map(rounded)).text(ns.map(table::time).unwrap_or_default())
    }

    /// Bytes of a message.
    pub fn bytes(name: &'static str, bytes: impl Into<Option<usize>>) -> Self {
        let bytes = bytes.into();
        Self::of(name, bytes).text(bytes.map(|bytes| Size(bytes).to_string()).unwrap_or_default())
    }

    /// Any other figure, of which people see so many decimal places.
    pub fn figure(name: &'static str, figure: impl Into<Option<f64>>, places: usize) -> Self {
        let figure = figure.into();
        Self::of(name, figure.map(rounded)).text(figure.map(|figure| format!("{figure:.places$}")).unwrap_or_default())
    }

    /// The same field with another text for people.
    pub fn text(self, text: impl ToString) -> Self {
        Self { text: text.to_string(), ..self }
    }

    /// The same field, which people see in a column of this name. A column whose name begins with `>` is aligned to the right.
    pub fn under(self, head: &'static str) -> Self {
        Self { head: Some(head), ..self }
    }

    /// The same field with this text if it was not measured.
    pub fn or(self, text: &str) -> Self {
        if self.value.is_null() { self.text(text) } else { self }
    }
}

/// The fields of a row. An object of them keeps their order, which a map of serde_json does not.
#[derive(Clone, Debug, PartialEq)]
pub struct Fields(pub Vec<Field>);

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|field| (field.name, &field.value)))
    }
}

/// The rows in this form. All rows have the same names, and the title stands over the table for people.
pub fn render(format: Format, title: &str, rows: &[Fields]) -> String {
    match format {
        Format::Json => lines(rows),
        Format::Csv => {
            let line = |cells: Vec<String>| cells.join(",") + "\n";
            let names = rows.first().map(|Fields(row)| line(row.iter().map(|field| field.name.into()).collect()));
            // Words here have no commas and no quotes.
            let cells = rows.iter().map(|Fields(row)| line(row.iter().map(|field| plain(&field.value)).collect()));
            names.into_iter().chain(cells).collect()
        }
        _ => format!("{title}\n\n{}", table(rows)),
    }
}

/// The names of the columns that people see, and the cells of each row. A column without any text is left out.
fn columns(rows: &[Fields]) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let shown = |at: &usize| rows.iter().any(|Fields(row)| row[*at].head.is_some() && !row[*at].text.is_empty());
    let columns: Vec<usize> = (0..rows.first().map_or(0, |row| row.0.len())).filter(shown).collect();
    let heads = columns.iter().filter_map(|at| rows.iter().find_map(|Fields(row)| row[*at].head)).collect();
    (heads, rows.iter().map(|Fields(row)| columns.iter().map(|at| row[*at].text.clone()).collect()).collect())
}

/// The columns that people see, as a table.
pub fn table(rows: &[Fields]) -> Table {
    let (heads, cells) = columns(rows);
    let mut table = Table::new(&heads);
    cells.into_iter().for_each(|row| table.row(row));
    table
}

/// A word without quotes, and anything else as in JSON; nothing for what was not measured.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        value => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
    }
}

/// Finer than any clock here.
pub fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}
