//! All nodes attach, and at the end all nodes leave.

use super::{FIRST, SECOND, Stage, patience};
use crate::demo::Order;
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
    stage.say.table(&table);
    stage.line("");
    let mut table = Table::new(&[&format!("in {DIRECTORY}"), ">bytes", ""]);
    for (name, size) in files(&Space::posix(), &stage.cast.domain).unwrap_or_default() {
        let purpose = match name.rsplit('.').next() {
            Some("inbox") => "lanes: the other nodes write only here",
            Some("board") => "metrics: the other nodes read them here",
            Some("lock") => "held for moments while nodes join and leave",
            _ => "the directory: the nodes of the domain",
        };
        table.row([name, bytes(size), purpose.into()]);
    }
    stage.say.table(&table);
    stage.say.word(
        "domain",
        "the processes that talk to each other, under one name; a node is one of them, and each start of it a new incarnation",
    );
    stage.say.word("lane", "a ring in shared memory from one node to one other: one writes, one reads, without locks");
    Ok(())
}

pub fn leave(stage: &mut Stage<'_>) -> Result<(), Failure> {
    stage.say.title("All nodes leave");
    stage.note();
    stage.order(FIRST, &Order::Leave)?;
    stage.cast.part_with(FIRST)?;
    stage.cast.leave()
}
