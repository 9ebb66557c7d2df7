//! The `doorbell` command as scripts and people meet it: what it prints, how it exits, and that it leaves nothing behind.

mod autopsy;
mod demo;
mod ls;
mod readme;
mod run;
mod signals;
mod support;
mod top;
mod usage;
