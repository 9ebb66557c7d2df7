//! The picture of ARCHITECTURE.md as data.

use std::collections::{BTreeMap, BTreeSet};

/// The lines of the fenced block with this name.
fn block<'a>(text: &'a str, name: &str) -> Result<Vec<(&'a str, &'a str)>, String> {
    let opening = format!("```{name}");
    let lines = text.lines().skip_while(|line| *line != opening).skip(1).take_while(|line| *line != "```");
    let lines: Vec<_> = lines
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            line.split_once(':')
                .map(|(left, right)| (left.trim(), right.trim()))
                .ok_or(format!("no colon in {line:?} of the block {name}"))
        })
        .collect::<Result<_, _>>()?;
    if lines.is_empty() { Err(format!("there is no block {name} in the picture")) } else { Ok(lines) }
}

/// Which crate of the workspace may depend on which.
pub struct Crates(BTreeMap<String, BTreeSet<String>>);

impl Crates {
    /// Reads the block `crates`: a line `crate: crates that it may depend on` each.
    ///
    /// # Errors
    ///
    /// The block is missing or a line of it has no colon.
    pub fn read(text: &str) -> Result<Self, String> {
        let names = |list: &str| list.split_whitespace().map(str::to_owned).collect();
        Ok(Self(block(text, "crates")?.into_iter().map(|(name, list)| (name.to_owned(), names(list))).collect()))
    }

    /// The dependencies that the picture does not have, from the output of `cargo metadata --no-deps`.
    ///
    /// Dependencies of tests alone are not part of the picture.
    ///
    /// # Errors
    ///
    /// The text is not what cargo prints.
    pub fn faults(&self, metadata: &str) -> Result<BTreeSet<String>, String> {
        let metadata: serde_json::Value = serde_json::from_str(metadata).map_err(|error| error.to_string())?;
        let packages = metadata["packages"].as_array().ok_or("no packages")?;
        let names: BTreeSet<&str> = packages.iter().filter_map(|package| package["name"].as_str()).collect();
        let mut faults: BTreeSet<String> =
            self.0.keys().filter(|name| !names.contains(name.as_str())).map(|name| format!("{name}: no such crate")).collect();
        for package in packages {
            let name = package["name"].as_str().ok_or("a package without a name")?;
            let Some(allowed) = self.0.get(name) else {
                faults.insert(format!("{name}: not in the picture"));
                continue;
            };
            for dependency in package["dependencies"].as_array().into_iter().flatten() {
                let to = dependency["name"].as_str().ok_or("a dependency without a name")?;
                if dependency["kind"] != "dev" && names.contains(to) && !allowed.contains(to) {
                    faults.insert(format!("{name} -> {to}"));
                }
            }
        }
        Ok(faults)
    }
}

/// The rooms of a crate, from the bottom up.
pub struct Rooms {
    rooms: Vec<Room>,
}

struct Room {
    name: String,
    /// Files and folders, relative to the source folder of the driver, without an ending.
    places: Vec<String>,
}

impl Rooms {
    /// Reads the block `rooms`: a line `room: files and folders` each, from the bottom up.
    ///
    /// # Errors
    ///
    /// The block is missing or a line of it cannot be read.
    pub fn read(text: &str) -> Result<Self, String> {
        let places = |places: &str| places.split_whitespace().map(str::to_owned).collect();
        let rooms = block(text, "rooms")?.into_iter().map(|(name, list)| Room { name: name.to_owned(), places: places(list) });
        Ok(Self { rooms: rooms.collect() })
    }

    /// One room that all modules lie in.
    pub fn one() -> Self {
        Self { rooms: vec![Room { name: "all".into(), places: vec![String::new()] }] }
    }

    /// The room of a module: the room with the longest place that the module lies in.
    pub(crate) fn of(&self, module: &str) -> Result<usize, String> {
        let lies_in = |place: &str| {
            place.is_empty() || module == place || module.strip_prefix(place).is_some_and(|rest| rest.starts_with('/'))
        };
        let longest = |room: &Room| room.places.iter().filter(|place| lies_in(place)).map(String::len).max();
        let found = self.rooms.iter().enumerate().filter_map(|(at, room)| longest(room).map(|len| (len, at))).max();
        found.map(|(_, at)| at).ok_or(format!("{module} lies in no room of the picture"))
    }

    pub(crate) fn name(&self, room: usize) -> &str {
        &self.rooms[room].name
    }

    /// A room may import all rooms below it.
    pub(crate) fn allows(&self, from: usize, to: usize) -> bool {
        to <= from
    }
}
