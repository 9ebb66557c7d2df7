//! The `doorbell` command as scripts and people meet it: what it prints, how it exits, and that it leaves nothing behind.

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
