//! How the command ends: exit codes that scripts can use, and one line on stderr that says what to do.
//!
//! 0: done. 1: the command tried and failed. 2: the command tried nothing, because arguments or environment are not right.
//! 128 and more: a signal ended the command, as shells count.

use clap::error::ErrorKind;
use doorbell::Error;
use doorbell_shm::error::ShmError;
use doorbell_udp::UdpError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

/// Why the command did not do what it was asked for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    code: u8,
    what: String,
    hint: String,
    /// The place on the page of errors; empty if no error of the library is the reason.
    anchor: String,
}

impl Failure {
    /// Arguments or environment are not right.
    pub fn usage(what: impl fmt::Display, hint: impl Into<String>) -> Self {
        Self { code: 2, what: what.to_string(), hint: hint.into(), anchor: String::new() }
    }

    /// The command tried and failed.
    pub fn failed(what: impl fmt::Display, hint: impl Into<String>) -> Self {
        Self { code: 1, what: what.to_string(), hint: hint.into(), anchor: String::new() }
    }

    /// The same failure, with the place on the page of errors that explains `error`, if the library made it.
    pub fn see(self, error: &(dyn std::error::Error + 'static)) -> Self {
        self.at(anchor(error).unwrap_or_default())
    }

    /// The same failure, with a place on the page of errors. An empty one is none.
    pub fn at(self, anchor: &str) -> Self {
        Self { anchor: anchor.into(), ..self }
    }

    /// The same failure, with the words for what failed in front of it.
    pub fn of(self, what: impl fmt::Display) -> Self {
        Self { what: format!("{what}: {}", self.what), ..self }
    }

    /// Whether the command tried nothing, because arguments or environment are not right.
    pub fn is_usage(&self) -> bool {
        self.code == 2
    }

    /// The same failure, with the exit code of the program that was started.
    pub fn with_code(self, code: u8) -> Self {
        Self { code, ..self }
    }

    /// The words, without the mark of an error.
    pub fn plain(&self) -> String {
        let part = |mark: &str, words: &str| if words.is_empty() { String::new() } else { format!("; {mark}{words}") };
        format!("{}{}{}", self.what, part("hint: ", &self.hint), part("see errors.md#", &self.anchor))
    }

    /// A signal asked for the end.
    pub fn interrupted(signal: i32) -> Self {
        Self { code: 128_u8.wrapping_add(signal as u8), what: "interrupted".into(), hint: String::new(), anchor: String::new() }
    }
}

/// The place on the page of errors that explains an error, if the library made it.
fn anchor(error: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    if let Some(error) = error.downcast_ref::<Error>() {
        return Some(error.anchor());
    }
    if let Some(error) = error.downcast_ref::<ShmError>() {
        return Some(error.anchor());
    }
    if let Some(error) = error.downcast_ref::<UdpError>() {
        return Some(error.anchor());
    }
    error.downcast_ref::<io::Error>()?.get_ref().and_then(|error| anchor(error))
}

/// Turns an error into a [`Failure`] that says first what could not be done, and then why.
pub trait Explain<T> {
    /// The failure if arguments or environment are not right.
    fn or_usage(self, what: impl fmt::Display, hint: impl Into<String>) -> Result<T, Failure>;

    /// The failure if the command tried.
    fn or_failed(self, what: impl fmt::Display, hint: impl Into<String>) -> Result<T, Failure>;
}

impl<T, E: std::error::Error + 'static> Explain<T> for Result<T, E> {
    fn or_usage(self, what: impl fmt::Display, hint: impl Into<String>) -> Result<T, Failure> {
        self.map_err(|error| Failure::usage(format!("{what}: {error}"), hint).see(&error))
    }

    fn or_failed(self, what: impl fmt::Display, hint: impl Into<String>) -> Result<T, Failure> {
        self.map_err(|error| Failure::failed(format!("{what}: {error}"), hint).see(&error))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "doorbell: error: {}", self.plain())
    }
}

/// Prints what went wrong, in one line, and gives the exit code.
pub fn report(failure: &Failure) -> ExitCode {
    // `eprintln` panics where stderr is closed.
    let _ = writeln!(io::stderr(), "{}", failure.to_string().replace('\n', " "));
    ExitCode::from(failure.code)
}

/// Prints a warning on stderr.
pub fn warn(what: impl fmt::Display) {
    eprintln!("doorbell: warning: {what}");
}

/// Prints what the command line parser says: help and version as they are, errors in one line.
pub fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // A closed pipe is no error.
        let _ = error.print();
        return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
    }
    report(&from_clap(error))
}

/// The first line of the parser's message says what is wrong. Of the other lines the most helpful one becomes the hint.
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
    fn an_error_of_the_library_leads_to_its_place_on_the_page() {
        let error = || Error::NoSuchNode { node: doorbell::NodeId(3) };
        let (plain, wrapped) = (Err::<(), _>(error()), Err::<(), _>(io::Error::from(error())));
        let said = |failure: Failure| failure.plain().rsplit_once("; ").map(|(_, last)| last.to_owned());
        assert_eq!(said(plain.or_failed("no", "wait").unwrap_err()).as_deref(), Some("see errors.md#no-such-node"));
        assert_eq!(said(wrapped.or_usage("no", "").unwrap_err()).as_deref(), Some("see errors.md#no-such-node"));
        let shm = ShmError::InvalidDomainName { name: "a b".into() };
        assert_eq!(said(Failure::failed(&shm, "").see(&shm)).as_deref(), Some("see errors.md#shm-invalid-domain-name"));
        let foreign = Err::<(), _>(io::Error::from(io::ErrorKind::NotFound)).or_failed("no", "look").unwrap_err();
        assert_eq!(foreign.plain(), "no: entity not found; hint: look");
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
