//! Segments as anybody can see them: files, and the figures that a node shows on its board.

use doorbell::NodeId;
use doorbell_shm::board::{Board, Figures};
use doorbell_shm::layout::{BOARD_BYTES, SegmentHeader, SegmentKind};
use nix::unistd::geteuid;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Where segments are.
pub const DIRECTORY: &str = "/dev/shm";

/// The file of a domain segment; the names of all other files of the domain begin with it.
fn domain_file(domain: &str) -> String {
    format!("doorbell.{}.{domain}", geteuid())
}

/// The files of a domain, by name, with their bytes.
pub fn files(domain: &str) -> io::Result<Vec<(String, u64)>> {
    let stem = domain_file(domain);
    let mut files = Vec::new();
    for entry in fs::read_dir(DIRECTORY)? {
        let entry = entry?;
        if let Ok(name) = entry.file_name().into_string()
            && name.strip_prefix(&stem).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            && let Ok(facts) = entry.metadata()
        {
            files.push((name, facts.len()));
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// The figures that a node shows; `None` if there is no board of this life, or one of another layout.
pub fn figures(domain: &str, node: NodeId, incarnation: u32) -> Option<Figures> {
    let path = Path::new(DIRECTORY).join(format!("{}.{node}.board", domain_file(domain)));
    let mut copy = Box::new(BoardCopy([0; BOARD_BYTES]));
    // A copy, not a mapping: what is read can neither change nor vanish under the reader.
    open_own(&path)?.read_exact(&mut copy.0).ok()?;
    let ptr = copy.0.as_mut_ptr();
    // SAFETY: aligned to a page, and BOARD_BYTES long.
    let facts = unsafe { SegmentHeader::check(ptr, BOARD_BYTES, BOARD_BYTES, SegmentKind::Board) }.ok()?;
    // SAFETY: aligned to a page, and BOARD_BYTES long; `copy` lives until the figures are read.
    (facts.node == node && facts.incarnation == incarnation).then(|| unsafe { Board::at(ptr) }.read())
}

/// Opens a plain file of this user, and nothing else that somebody may have put there under its name.
fn open_own(path: &Path) -> Option<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let facts = file.metadata().ok()?;
    (facts.is_file() && facts.uid() == geteuid().as_raw()).then_some(file)
}

/// As a board lies in memory.
#[repr(C, align(4096))]
struct BoardCopy([u8; BOARD_BYTES]);
