//! The `doorbell` command from outside: its output, its exit codes, and that it leaves nothing behind.

#[path = "../as_usual/mod.rs"]
mod as_usual;
mod autopsy;
mod config;
mod demo;
mod layouts;
mod ls;
mod manual;
mod names;
mod paths;
mod readme;
mod report;
mod run;
mod serve;
mod signals;
mod space;
mod support;
mod top;
mod usage;
