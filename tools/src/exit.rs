//! How the command ends: exit codes that scripts can use, and one line on stderr that says what to do.
//!
//! 0: done. 1: it was tried and failed. 2: it was not even tried, because arguments or environment are not right.
//! 128 and more: ended by a signal, as shells count.

use clap::error::ErrorKind;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::Write;
use std::process::ExitCode;

/// Why the command did not do what it was asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    code: u8,
    what: String,
    hint: String,
}

impl Failure {
    /// Arguments or environment are not right.
    pub fn usage(what: impl fmt::Display, hint: impl Into<String>) -> Self {
        Self { code: 2, what: what.to_string(), hint: hint.into() }
    }

    /// It was tried and failed.
    pub fn failed(what: impl fmt::Display, hint: impl Into<String>) -> Self {
        Self { code: 1, what: what.to_string(), hint: hint.into() }
    }

    /// The same, of which it is said before it what failed.
    pub fn of(self, what: impl fmt::Display) -> Self {
        Self { what: format!("{what}: {}", self.what), ..self }
    }

    /// Whether it was not even tried.
    pub fn is_usage(&self) -> bool {
        self.code == 2
    }

    /// The same, with the exit code of what was started.
    pub fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// A signal asked for an end.
    pub fn interrupted(signal: i32) -> Self {
        Self { code: 128_u8.wrapping_add(signal as u8), what: "interrupted".into(), hint: String::new() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "doorbell: error: {}", self.what)?;
        if self.hint.is_empty() { Ok(()) } else { write!(f, "; hint: {}", self.hint) }
    }
}

/// Prints what went wrong, in one line, and gives the exit code.
pub fn report(failure: &Failure) -> ExitCode {
    // Not `eprintln`, which panics where nobody listens any more.
    let _ = writeln!(std::io::stderr(), "{}", failure.to_string().replace('\n', " "));
    ExitCode::from(failure.code)
}

/// A line on stderr that changes nothing.
pub fn warn(what: impl fmt::Display) {
    eprintln!("doorbell: warning: {what}");
}

/// What the command line parser has to say: help and version as they are, errors in one line.
pub fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // Who closed the pipe has seen enough.
        let _ = error.print();
        return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
    }
    report(&from_clap(error))
}

/// The first line of the parser's message says what is wrong; of the others, the one that helps most is kept.
fn from_clap(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let mut what = first.strip_prefix("error: ").unwrap_or(first).to_string();
    let (mut hint, mut list) = (String::new(), what.ends_with(':'));
    for line in lines {
        if let Some(tip) = line.strip_prefix("tip: ") {
            hint = tip.into();
        } else if let Some(values) = line.strip_prefix("[possible values: ") {
            hint = format!("it can be {}", values.trim_end_matches(']'));
        } else if list && line.starts_with(['-', '<']) {
            what = format!("{what} {line}");
        } else {
            list = false;
        }
    }
    if hint.is_empty() && !what.contains("; hint: ") {
        hint = "see --help".into();
    }
    Failure::usage(what, hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, Command};

    fn line(args: &[&str]) -> String {
        let command = Command::new("doorbell")
            .subcommand(Command::new("go").arg(Arg::new("gear").long("gear").required(true).value_parser(["spin", "park"])));
        from_clap(&command.try_get_matches_from(args).unwrap_err()).to_string()
    }

    #[test]
    fn one_line_with_a_hint() {
        let cases: [(&[&str], &str); 4] = [
            (&["doorbell", "go", "--gear", "fly"], "invalid value 'fly' for '--gear <gear>'; hint: it can be spin, park"),
            (
                &["doorbell", "go", "--gea", "spin"],
                "unexpected argument '--gea' found; hint: a similar argument exists: '--gear'",
            ),
            (&["doorbell", "go"], "the following required arguments were not provided: --gear <gear>; hint: see --help"),
            (&["doorbell", "gone"], "unrecognized subcommand 'gone'; hint: a similar subcommand exists: 'go'"),
        ];
        for (args, expected) in cases {
            assert_eq!(line(args), format!("doorbell: error: {expected}"));
        }
    }
}
