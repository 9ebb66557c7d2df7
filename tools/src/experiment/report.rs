//! The forms in which rows are printed.

use super::Experiment;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people
    Table,
    /// One object a line
    Json,
    /// A line of names, and a line for each row
    Csv,
}

/// The fields of a row, by name. An object of them keeps their order, which a map of serde_json does not.
#[derive(Clone, Debug, PartialEq)]
pub struct Fields(pub Vec<(&'static str, Value)>);

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// An experiment whose rows are printed in all forms.
pub trait Report: Experiment {
    /// The fields of a row, with the same names for all rows.
    fn fields(&self, row: &Self::Row) -> Fields;

    /// The rows as text for people.
    fn table(&self, rows: &[Self::Row]) -> String;

    /// The rows in this form.
    fn render(&self, format: Format, rows: &[Self::Row]) -> String {
        let fields = || rows.iter().map(|row| self.fields(row));
        match format {
            Format::Table => self.table(rows),
            Format::Json => lines(fields()),
            Format::Csv => csv(fields(), ""),
        }
    }
}

/// One object a line.
pub fn lines<T: Serialize>(rows: impl IntoIterator<Item = T>) -> String {
    // Names are words and values come from serde_json, so nothing can fail.
    rows.into_iter().filter_map(|row| serde_json::to_string(&row).ok()).map(|line| line + "\n").collect()
}

/// A line of names, and a line for each row. `nothing` stands for values that were not measured.
pub fn csv(rows: impl IntoIterator<Item = Fields>, nothing: &str) -> String {
    let cell = |value: &Value| match value {
        Value::Null => nothing.to_owned(),
        // Words here have no commas and no quotes.
        value => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
    };
    let mut lines = String::new();
    for (at, Fields(fields)) in rows.into_iter().enumerate() {
        if at == 0 {
            lines += &(fields.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(",") + "\n");
        }
        lines += &(fields.iter().map(|(_, value)| cell(value)).collect::<Vec<_>>().join(",") + "\n");
    }
    lines
}

/// A figure with `digits` decimal places.
pub fn rounded(value: f64, digits: i32) -> Value {
    let unit = 10_f64.powi(digits);
    json!((value * unit).round() / unit)
}

/// A figure of nanoseconds, or of something computed from them: finer than any clock here.
pub fn figure(value: f64) -> Value {
    rounded(value, 3)
}

/// The same for a figure that may not have been measured.
pub fn figure_or_null(value: Option<f64>) -> Value {
    value.map_or(Value::Null, figure)
}
