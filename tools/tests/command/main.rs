//! The `doorbell` command from outside: its output, its exit codes, and that it leaves nothing behind.

#[path = "../as_usual/mod.rs"]
mod as_usual;
mod autopsy;
mod demo;
mod ls;
mod paths;
mod readme;
mod run;
mod signals;
mod support;
mod top;
mod usage;
