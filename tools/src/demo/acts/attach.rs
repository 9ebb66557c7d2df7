//! Everybody attaches, and at the end everybody leaves.

use super::super::script::order;
use super::{FIRST, SECOND, Stage, patience};
use crate::exit::Failure;
use crate::text::{DIRECTORY, Table, bytes};
use doorbell::Space;
use doorbell_shm::domain::files;

pub fn play(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("A host and two accelerators attach");
    stage.cast.start(FIRST)?;
    stage.cast.start(SECOND)?;
    let members = stage.done(stage.cast.node.wait_for(3, patience()))?;
    let mut table = Table::new(&[">node", "role", ">process", ">incarnation"]);
    for member in &members {
        table.row([member.id.to_string(), member.role.to_string(), member.pid.to_string(), member.incarnation.to_string()]);
    }
    table.lines().into_iter().for_each(|line| stage.say.line(line));
    stage.say.line("");
    let mut table = Table::new(&[&format!("in {DIRECTORY}"), ">bytes", ""]);
    for (name, size) in files(&Space::posix(), &stage.cast.domain).unwrap_or_default() {
        let purpose = match name.rsplit('.').next() {
            Some("inbox") => "lanes: the others write here, and nowhere else",
            Some("board") => "figures: the others read here",
            Some("lock") => "held for moments, while nodes come and go",
            _ => "the directory: who is there",
        };
        table.row([name, bytes(size), purpose.into()]);
    }
    table.lines().into_iter().for_each(|line| stage.say.line(line));
    stage
        .say
        .word("domain", "the processes that talk to each other, by name; a node is one of them, an incarnation one life of it");
    stage.say.word("lane", "a ring in shared memory from one node to one other: one writes, one reads, nobody locks");
    Ok(())
}

pub fn leave(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("Everybody leaves");
    stage.note();
    stage.send(FIRST, order::LEAVE, &[])?;
    stage.cast.part_with(FIRST)?;
    stage.cast.leave()
}
