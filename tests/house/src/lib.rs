//! The directions of imports: between the crates of the workspace, and between the rooms of the driver.
//!
//! ARCHITECTURE.md holds the picture, as two fenced blocks that are also data. The check reads every `use` and every path of the driver,
//! finds the file that defines each imported name, and compares the arrows with the picture. A list of exceptions holds the arrows that
//! do not fit yet. An exception that no longer occurs fails the check as well, so the list can only shrink.

mod circles;
mod picture;
mod source;

pub use circles::circles;
pub use picture::{Crates, Rooms};
pub use source::{Arrow, Source};
use std::collections::BTreeSet;

/// The arrows between rooms that the picture forbids, and the circles that are too wide: one line each, in order.
///
/// A circle is too wide if its files lie in several folders, or if it has more than `most` files.
///
/// # Errors
///
/// A file that belongs to no room.
pub fn faults(rooms: &Rooms, source: &Source, most: usize) -> Result<BTreeSet<String>, String> {
    let mut faults = BTreeSet::new();
    let arrows = source.arrows();
    for arrow in &arrows {
        let (from, to) = (rooms.of(&arrow.from)?, rooms.of(&arrow.to)?);
        if !rooms.allows(from, to) {
            faults.insert(format!("{} -> {} ({} -> {}): {}", arrow.from, arrow.to, rooms.name(from), rooms.name(to), arrow.name));
        }
    }
    for circle in circles(&arrows) {
        let folders: BTreeSet<&str> = circle.iter().map(|module| source.folder(module)).collect();
        if folders.len() > 1 || circle.len() > most {
            let folders: Vec<&str> = folders.into_iter().collect();
            faults.insert(format!("circle of {} files in {}", circle.len(), folders.join(", ")));
        }
    }
    Ok(faults)
}
