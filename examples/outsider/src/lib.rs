//! Reads a segment of Doorbell as an outsider: with the crate `shared_memory`, and without any crate of Doorbell.
//!
//! A monitor or a debugger in any language can do the same. It opens the segment by its name, checks the header, and reads the words
//! that the owner writes. It takes no part in the domain, so it cannot know when a word is half of a change: each word is read as one
//! atomic value, and two words may come from different moments.
//!
//! ```text
//! header | 0 "doorbell" | 8 version | 16 layout hash | 24 kind | 32 incarnation | 40 node | 48 bytes | 56 flags | 64 nonce |
//! board  | header | 1024: metrics, 8 bytes each |
//! region | header | 4096: the program's memory |
//! ```

use shared_memory::{Shmem, ShmemConf, ShmemError};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The version of the layout that this file knows.
pub const LAYOUT_VERSION: u64 = 22;
/// The first word of a segment that is ready.
const MAGIC: u64 = u64::from_le_bytes(*b"doorbell");
const HEADER_BYTES: usize = 128;
const METRICS_OFFSET: usize = 1024;
const DATA_OFFSET: usize = 4096;
/// The metrics that this file knows, in their order on the board.
pub const METRICS: [&str; 4] = ["messages_in", "bytes_in", "messages_out", "bytes_out"];

/// The kinds of segments that an outsider can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The displayed state of one node.
    Board,
    /// Memory that a node shares.
    Region,
}

/// Why a segment cannot be read.
#[derive(Debug)]
pub enum Trouble {
    /// It cannot be opened.
    Open(String, ShmemError),
    /// It is no segment, or another one than this file knows.
    Unknown(String, String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(name, error) => write!(f, "cannot open the segment {name}: {error}; `ls /dev/shm` shows the names"),
            Self::Unknown(name, why) => write!(f, "cannot read the segment {name}: {why}"),
        }
    }
}

impl std::error::Error for Trouble {}

/// A segment of a node.
pub struct Segment {
    memory: Shmem,
    kind: Kind,
}

impl Segment {
    /// Opens a segment by the name of its file, or by the part that follows the user: `grid.0.board` is the board of node 0 of the
    /// domain `grid`, and `grid.0.r3` is its region 3. The crate maps the memory for writing, too; this file never writes.
    ///
    /// A process that reads a segment while its file is cut gets SIGBUS. A monitor that must survive that reads the file instead.
    ///
    /// # Errors
    /// There is no such segment, this user may not open it, or it has another layout version.
    pub fn open(name: &str) -> Result<Self, Trouble> {
        // SAFETY: this call has no preconditions.
        let user = unsafe { libc::getuid() };
        let prefix = format!("doorbell.{user}.");
        let name = format!("{prefix}{}", name.strip_prefix(&prefix).unwrap_or(name));
        let memory = ShmemConf::new().os_id(&name).open().map_err(|error| Trouble::Open(name.clone(), error))?;
        let unknown = |why: String| Trouble::Unknown(name.clone(), why);
        if memory.len() < HEADER_BYTES {
            return Err(unknown(format!("it has {} bytes, too few for a header", memory.len())));
        }
        let segment = Self { memory, kind: Kind::Board };
        // Acquire: the owner writes this word last, so what follows is there.
        if segment.word(0, Ordering::Acquire) != MAGIC {
            return Err(unknown("its owner has not finished it, or it is no segment of Doorbell".into()));
        }
        let version = segment.word(8, Ordering::Relaxed);
        if version != LAYOUT_VERSION {
            return Err(unknown(format!("it has layout {version}, and this program knows layout {LAYOUT_VERSION}")));
        }
        let kind = match segment.word(24, Ordering::Relaxed) {
            3 => Kind::Board,
            4 => Kind::Region,
            kind => return Err(unknown(format!("it is of kind {kind}, neither a board (3) nor a region (4)"))),
        };
        if segment.memory.len() < DATA_OFFSET {
            return Err(unknown(format!("it was cut to {} bytes", segment.memory.len())));
        }
        Ok(Self { kind, ..segment })
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The node that owns it, and the incarnation of that node.
    pub fn owner(&self) -> (u64, u64) {
        (self.word(40, Ordering::Relaxed), self.word(32, Ordering::Relaxed))
    }

    /// A hash of all offsets and sizes of the layout. `doorbell info` shows the one of a build.
    pub fn layout_hash(&self) -> u64 {
        self.word(16, Ordering::Relaxed)
    }

    /// The metrics of a board that this file knows. Nothing for a region.
    pub fn metrics(&self) -> Vec<(&'static str, u64)> {
        if self.kind != Kind::Board {
            return Vec::new();
        }
        let read = |(index, name): (usize, &&'static str)| (*name, self.word(METRICS_OFFSET + index * 8, Ordering::Relaxed));
        METRICS.iter().enumerate().map(read).collect()
    }

    /// The first `words` words of a region, fewer if it ends before. Nothing for a board.
    pub fn data(&self, words: usize) -> Vec<u64> {
        if self.kind != Kind::Region {
            return Vec::new();
        }
        let words = words.min((self.memory.len() - DATA_OFFSET) / 8);
        (0..words).map(|index| self.word(DATA_OFFSET + index * 8, Ordering::Relaxed)).collect()
    }

    fn word(&self, offset: usize, order: Ordering) -> u64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.memory.len(), "offset {offset} lies outside of the segment");
        // SAFETY: inside the mapping (asserted; `open` tells of files that are cut), which lives as long as `self` and begins at a page; the owner writes whole words.
        unsafe { &*self.memory.as_ptr().add(offset).cast::<AtomicU64>() }.load(order)
    }
}
