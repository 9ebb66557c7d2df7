//! `doorbell man`, `doorbell completions` and `doorbell reference`: the command line as pages and scripts, made from what parses it.

use crate::Cli;
use crate::exit::{Explain, Failure};
use crate::paths::Output;
use crate::text::{counted, print};
use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

/// Write a manual page for each command into a directory
///
/// The directory is made if it is not there. The pages are for section 1: `doorbell.1`, `doorbell-run.1` and so on.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../help/man.txt"))]
pub struct ManArgs {
    /// The directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../help/completions.txt"))]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// The whole command line, with what clap adds while it parses.
fn whole() -> Command {
    let mut whole = shown(Cli::command());
    whole.build();
    whole
}

/// A command without the subcommands that only the command itself starts. Its words stay as wide as a page.
fn shown(command: Command) -> Command {
    let subcommands: Vec<Command> = command.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned().map(shown).collect();
    let name = command.get_name().to_owned();
    let mut bare = Command::new(name).args(command.get_arguments().cloned()).groups(command.get_groups().cloned());
    bare = bare.subcommands(subcommands).disable_help_subcommand(true).max_term_width(100).term_width(100);
    if let Some(about) = command.get_about() {
        bare = bare.about(about.clone());
    }
    if let Some(about) = command.get_long_about() {
        bare = bare.long_about(about.clone());
    }
    if let Some(after) = command.get_after_help() {
        bare = bare.after_help(after.clone());
    }
    if let Some(version) = command.get_version() {
        bare = bare.version(version.to_owned());
    }
    bare.subcommand_required(command.is_subcommand_required_set())
}

/// Each command with its subcommands, as `run` and `io serve`, the first one without a name.
fn each(command: &Command, of: &str, visit: &mut impl FnMut(&str, &Command) -> Result<(), Failure>) -> Result<(), Failure> {
    visit(of, command)?;
    for sub in command.get_subcommands() {
        each(sub, format!("{of} {}", sub.get_name()).trim(), visit)?;
    }
    Ok(())
}

/// Writes the pages.
pub fn man(args: &ManArgs) -> Result<(), Failure> {
    let directory = &args.directory;
    let hint = "name a directory that this user may write to";
    fs::create_dir_all(directory).or_usage(format_args!("cannot make the directory {}", directory.display()), hint)?;
    let mut count = 0;
    each(&whole(), "", &mut |name, command| {
        let title = format!("doorbell {name}").trim().replace(' ', "-");
        let path = directory.join(format!("{title}.1"));
        let mut page = Vec::new();
        // The date of a build would make two builds differ.
        let made = clap_mangen::Man::new(command.clone().name(title)).source(concat!("doorbell ", env!("CARGO_PKG_VERSION")));
        made.render(&mut page).or_failed("cannot make a page", "")?;
        count += 1;
        let written = Output::at(&path).and_then(|output| output.write(&page));
        written.or_failed(format_args!("cannot write {}", path.display()), hint)
    })?;
    print(&format!("{} in {}\n", counted(count, "page"), directory.display()));
    Ok(())
}

/// Prints the script.
pub fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut whole(), "doorbell", &mut script);
    print(&String::from_utf8_lossy(&script));
    Ok(())
}

/// The reference of all commands as Markdown.
pub fn reference() -> Result<(), Failure> {
    let mut text = String::from(
        "# Reference of the commands\n\n`doorbell reference` prints this page, and a test compares it with the command. \
         [commands.md](commands.md) tells which command is for what.\n",
    );
    each(&whole(), "", &mut |name, command| {
        chapter(&mut text, format!("doorbell {name}").trim(), command);
        Ok(())
    })?;
    print(&text);
    Ok(())
}

/// One command.
fn chapter(text: &mut String, name: &str, command: &Command) {
    let mut command = command.clone().bin_name(name);
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let _ = write!(text, "\n## `{name}`\n\n{}\n\n```text\n{usage}\n```\n", escaped(about.trim()));
    let subcommands: Vec<_> = command.get_subcommands().map(Command::get_name).collect();
    if !subcommands.is_empty() {
        let list = subcommands.iter().map(|sub| format!("`{sub}`")).collect::<Vec<_>>().join(", ");
        let _ = write!(text, "\nCommands: {list}\n");
    }
    let shown = |arg: &&Arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str());
    let arguments: Vec<&Arg> = command.get_arguments().filter(shown).collect();
    if !arguments.is_empty() {
        let _ = write!(text, "\n| argument | meaning |\n|---|---|\n");
    }
    for arg in arguments {
        let words = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
        let words = escaped(&words.split_whitespace().collect::<Vec<_>>().join(" ")).replace('|', "\\|");
        let _ = writeln!(text, "| `{}` | {words}{} |", spelled(arg).replace('|', "\\|"), notes(arg));
    }
    if let Some(after) = command.get_after_help() {
        let _ = write!(text, "\n```text\n{}\n```\n", after.to_string().trim());
    }
}

/// How an argument is written.
fn spelled(arg: &Arg) -> String {
    let takes = arg.get_num_args().is_some_and(|count| count.takes_values());
    let names: Vec<_> = arg.get_value_names().unwrap_or_default().iter().map(|name| format!("<{name}>")).collect();
    let value = if takes { names.join(" ") } else { String::new() };
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let flags = short.into_iter().chain(long).collect::<Vec<_>>().join(", ");
    // Where only `=` begins a value, the next word is another argument.
    if arg.is_require_equals_set() && !flags.is_empty() {
        return format!("{flags}[={value}]");
    }
    format!("{flags} {value}").trim().to_owned()
}

/// The default, the variable of the environment and the words that an argument takes.
fn notes(arg: &Arg) -> String {
    let mut notes = Vec::new();
    let takes = arg.get_num_args().is_some_and(|count| count.takes_values());
    let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if takes && !defaults.is_empty() {
        notes.push(format!("default `{}`", defaults.join(" ")));
    }
    if let Some(variable) = arg.get_env() {
        notes.push(format!("environment `{}`", variable.to_string_lossy()));
    }
    let words: Vec<_> = arg.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
    if takes && !words.is_empty() && !arg.is_hide_possible_values_set() {
        notes.push(format!("one of {}", words.join(", ")));
    }
    if notes.is_empty() { String::new() } else { format!(" ({})", notes.join("; ")) }
}

/// Text that Markdown takes as it is.
fn escaped(text: &str) -> String {
    text.replace('<', "&lt;").replace('>', "&gt;").replace('*', "\\*")
}
