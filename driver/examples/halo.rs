//! A grid of cells in three dimensions, cut into blocks. Each node has one block, and exchanges its six faces with its
//! neighbours.
//!
//! ```text
//! cargo build --release -p doorbell --example halo
//! cargo run --release -- run -n 8 -- target/release/examples/halo 10
//! ```
//!
//! The nodes form a torus of 2×2×2, or of other extents, depending on their number. A node's halo, the borders of its
//! neighbours, lies in a region, and the neighbours put their faces there. A DMA counter for each of the six links tells when a
//! face is complete. On an axis with two nodes both links lead to the same neighbour. They are still two links: every message
//! about a link has the direction in its tag.

use doorbell::topology::{Coordinates, Direction, Torus};
use doorbell::{Counter, CounterKey, Error, KEY_BYTES, Key, Match, Node, NodeId, ReadWrite, Region};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The cells of a block along each axis.
const SIDE: usize = 16;
const FACE: usize = SIDE * SIDE;
const FACE_BYTES: u64 = (FACE * size_of::<f64>()) as u64;

/// Tags. The receiver's number of the link is added to them.
const HALO: u64 = 0x100;
const CREDIT: u64 = 0x200;
/// Node 0 receives the result of each block, and answers whether all are right.
const RESULT: u64 = 1;
const VERDICT: u64 = 2;

fn main() -> ExitCode {
    match halo() {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("halo: error: {error}");
            ExitCode::from(if matches!(error, Error::Invalid { .. }) { 2 } else { 1 })
        }
    }
}

fn halo() -> Result<String, Error> {
    let steps = number(std::env::args().nth(1), 10, "a number of steps")?;
    let count = number(std::env::var("DOORBELL_NODES").ok(), 8, "DOORBELL_NODES")?;
    let invalid = |what: String| Error::Invalid { what };
    let torus = Torus::near_cubic(count).map_err(|error| invalid(error.to_string()))?;
    if torus.extents().contains(&1) {
        let what = format!("{count} nodes are no torus with two or more along each axis; 8 are, and 12, 16 or 27");
        return Err(invalid(what));
    }

    let node = Node::from_env()?;
    node.wait_for(count, Instant::now() + Duration::from_secs(20))?;
    let rank = node.id().index();
    let here = torus.coordinates(rank).ok_or_else(|| invalid(format!("node {rank} is not one of {count}")))?;
    let links = Links::open(&node, &torus, rank)?;
    let mut block = Block::new(here);
    let start = Instant::now();
    for _ in 0..steps {
        links.grant()?;
        links.exchange(&block)?;
        block.relax(&links.halo)?;
    }
    let took = start.elapsed() / steps.max(1) as u32;

    let mine = block.sum();
    let told = format!("node {rank} at {here}: {steps} steps, sum {mine:.6}");
    if rank != 0 {
        node.send(NodeId(0), RESULT, &mine.to_ne_bytes())?;
        // No node leaves before all have met: a late one would look for it in vain.
        node.recv(Match::from(NodeId(0)).tag(VERDICT), &mut [])?;
        return Ok(told);
    }
    let expected = alone(&torus, steps);
    let mut wrong = Vec::new();
    let mut word = [0; 8];
    for (other, expected) in expected.iter().enumerate() {
        let sum = if other == 0 {
            mine
        } else {
            node.recv(Match::from(NodeId(other as u16)).tag(RESULT), &mut word)?;
            f64::from_ne_bytes(word)
        };
        // The same operations in the same order, so not a bit may differ.
        if sum != *expected {
            wrong.push(format!("node {other} has {sum}, one process alone {expected}"));
        }
    }
    (1..count).try_for_each(|other| node.send(NodeId(other as u16), VERDICT, &[]))?;
    if !wrong.is_empty() {
        return Err(invalid(format!("the blocks are wrong: {}", wrong.join("; "))));
    }
    let [x, y, z] = torus.extents();
    Ok(format!("{told}; all {x}×{y}×{z} blocks are as one process alone has them, {took:.1?} a step"))
}

/// The six links of one node: the incoming faces, and the destinations of the outgoing ones.
struct Links {
    node: Node,
    /// The six faces, by the link that brings them.
    halo: Region<f64>,
    neighbours: [NodeId; 6],
    /// Lowered as a face comes in.
    arrived: [Counter; 6],
    /// The neighbours' destinations for the outgoing faces.
    places: [Key<f64, ReadWrite>; 6],
}

impl Links {
    /// Tells each neighbour where to put its face, and learns the same from each.
    fn open(node: &Node, torus: &Torus, rank: usize) -> Result<Self, Error> {
        let halo = node.region::<f64>(6 * FACE)?;
        let mut neighbours = [NodeId(0); 6];
        for (link, (direction, neighbour)) in torus.neighbours(rank).enumerate() {
            neighbours[link] = NodeId(neighbour as u16);
            let key = halo.key().range(link * FACE..(link + 1) * FACE);
            node.send(neighbours[link], HALO + number_of(direction.opposite()), &key.to_bytes())?;
        }
        let place = |link: usize| {
            let mut bytes = [0; KEY_BYTES];
            node.recv(Match::from(neighbours[link]).tag(HALO + link as u64), &mut bytes)?;
            Key::from_bytes(&bytes)
        };
        let places = [place(0)?, place(1)?, place(2)?, place(3)?, place(4)?, place(5)?];
        let counter = || node.counter();
        let arrived = [counter()?, counter()?, counter()?, counter()?, counter()?, counter()?];
        Ok(Self { node: node.clone(), halo, neighbours, arrived, places })
    }

    /// Lets each neighbour put its next face. The key of this use of the counter tells that the halo was read.
    fn grant(&self) -> Result<(), Error> {
        for (link, direction) in Direction::ALL.into_iter().enumerate() {
            self.arrived[link].init(FACE_BYTES)?;
            let key = self.arrived[link].key().to_bytes();
            self.node.send(self.neighbours[link], CREDIT + number_of(direction.opposite()), &key)?;
        }
        Ok(())
    }

    /// Puts the six faces of a block into the neighbours' halos, and waits for theirs.
    fn exchange(&self, block: &Block) -> Result<(), Error> {
        for (link, direction) in Direction::ALL.into_iter().enumerate() {
            let mut bytes = [0; CounterKey::BYTES];
            self.node.recv(Match::from(self.neighbours[link]).tag(CREDIT + link as u64), &mut bytes)?;
            let counter = CounterKey::from_bytes(&bytes)
                .ok_or_else(|| Error::Invalid { what: format!("a neighbour sent no key of a counter by {direction}") })?;
            self.node.put_notify(&block.face(direction), self.places[link], counter)?;
        }
        self.arrived.iter().try_for_each(Counter::wait)
    }
}

/// The cells of one node.
struct Block {
    cells: Vec<f64>,
}

impl Block {
    fn new(at: Coordinates) -> Self {
        let [x0, y0, z0] = [at.x, at.y, at.z].map(|coordinate| coordinate * SIDE);
        // The values are not symmetric, so that a face in the wrong place is detected.
        let cell = |at: usize| {
            let [x, y, z] = [x0 + at % SIDE, y0 + at / SIDE % SIDE, z0 + at / FACE];
            ((x * 7919 + y * 104_729 + z * 1_299_709) % 1009) as f64
        };
        Self { cells: (0..SIDE * FACE).map(cell).collect() }
    }

    /// The cells on one side, in the order in which a halo has them.
    fn face(&self, side: Direction) -> Vec<f64> {
        let depth = if side.is_plus() { SIDE - 1 } else { 0 };
        (0..FACE).map(|at| self.cells[inside(side.axis(), depth, at)]).collect()
    }

    /// A step of Jacobi: each cell becomes the mean of its six neighbours.
    fn relax(&mut self, halo: &Region<f64>) -> Result<(), Error> {
        let mut borders = vec![0.0; 6 * FACE];
        halo.read(0, &mut borders)?;
        let strides = [1, SIDE, FACE];
        let next = |at: usize| {
            let place = [at % SIDE, at / SIDE % SIDE, at / FACE];
            let neighbour = |(link, direction): (usize, Direction)| {
                let axis = direction.axis();
                match (direction.is_plus(), place[axis]) {
                    (true, depth) if depth == SIDE - 1 => borders[link * FACE + on_face(axis, place)],
                    (false, 0) => borders[link * FACE + on_face(axis, place)],
                    (true, _) => self.cells[at + strides[axis]],
                    (false, _) => self.cells[at - strides[axis]],
                }
            };
            Direction::ALL.into_iter().enumerate().map(neighbour).sum::<f64>() / 6.0
        };
        self.cells = (0..self.cells.len()).map(next).collect();
        Ok(())
    }

    /// A weighted sum by the position of the cells. The plain sum never changes, even if a face goes to the wrong place.
    fn sum(&self) -> f64 {
        self.cells.iter().enumerate().map(|(at, cell)| cell * (at + 1) as f64).sum::<f64>() / self.cells.len() as f64
    }
}

/// The cell of a block at this depth along an axis, and at this place of a face.
fn inside(axis: usize, depth: usize, at: usize) -> usize {
    let (low, high) = (at % SIDE, at / SIDE);
    match axis {
        0 => depth + low * SIDE + high * FACE,
        1 => low + depth * SIDE + high * FACE,
        _ => low + high * SIDE + depth * FACE,
    }
}

/// The place of a cell on the face across an axis: the inverse of `inside`.
fn on_face(axis: usize, [x, y, z]: [usize; 3]) -> usize {
    match axis {
        0 => y + z * SIDE,
        1 => x + z * SIDE,
        _ => x + y * SIDE,
    }
}

/// The same computation in one process, as one grid without halos: the sums of the blocks.
fn alone(torus: &Torus, steps: usize) -> Vec<f64> {
    let extents = torus.extents().map(|extent| extent * SIDE);
    let index = |[x, y, z]: [usize; 3]| x + extents[0] * (y + extents[1] * z);
    let mut grid = vec![0.0; extents.iter().product()];
    let cell_of = |at: Coordinates, cell: usize| {
        index([at.x * SIDE + cell % SIDE, at.y * SIDE + cell / SIDE % SIDE, at.z * SIDE + cell / FACE])
    };
    for (_, at) in torus.iter() {
        Block::new(at).cells.iter().enumerate().for_each(|(cell, value)| grid[cell_of(at, cell)] = *value);
    }
    for _ in 0..steps {
        let next = |cell: usize| {
            let place = [cell % extents[0], cell / extents[0] % extents[1], cell / (extents[0] * extents[1])];
            let neighbour = |direction: Direction| {
                let (axis, mut place) = (direction.axis(), place);
                place[axis] = (place[axis] + if direction.is_plus() { 1 } else { extents[axis] - 1 }) % extents[axis];
                grid[index(place)]
            };
            Direction::ALL.into_iter().map(neighbour).sum::<f64>() / 6.0
        };
        grid = (0..grid.len()).map(next).collect();
    }
    let block = |at| Block { cells: (0..SIDE * FACE).map(|cell| grid[cell_of(at, cell)]).collect() };
    torus.iter().map(|(_, at)| block(at).sum()).collect()
}

fn number_of(direction: Direction) -> u64 {
    Direction::ALL.iter().position(|known| *known == direction).unwrap_or_default() as u64
}

fn number(word: Option<String>, default: usize, what: &str) -> Result<usize, Error> {
    let Some(word) = word else { return Ok(default) };
    word.parse()
        .ok()
        .filter(|number| *number <= 1 << 20)
        .ok_or_else(|| Error::Invalid { what: format!("'{word}' is not {what}") })
}
