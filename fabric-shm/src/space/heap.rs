//! Segments in the heap of one process, so that tests and interpreters can run many nodes in one process.

use super::{Created, Hold, Identity, Names, NewSegment};
use crate::error::ShmError;
use crate::segment::{HeapBlock, Segment};
use doorbell_fabric::world;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A directory of segments in the heap. Thread-safe.
#[derive(Debug)]
pub struct HeapSpace {
    files: Mutex<Files>,
    unlocked: Condvar,
    capacity: usize,
}

#[derive(Debug, Default)]
struct Files {
    by_name: BTreeMap<String, HeapFile>,
    locked: BTreeSet<String>,
    made: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct HeapFile {
    pub block: Arc<HeapBlock>,
    pub owner: Option<Arc<AtomicBool>>,
    inode: u64,
}

impl HeapFile {
    pub fn identity(&self) -> Identity {
        Identity { device: 0, inode: self.inode }
    }
}

impl HeapSpace {
    /// An empty space that is full once its named segments have `bytes` bytes.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { files: Mutex::default(), unlocked: Condvar::new(), capacity: bytes }
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        // No step under the lock leaves the maps half-changed, so poisoning is ignored.
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock(
        self: &Arc<Self>,
        operation: &'static str,
        names: &Names,
        deadline: Instant,
    ) -> Result<LockFlag, ShmError> {
        let mut files = self.files();
        while !files.locked.insert(names.domain()) {
            let left = deadline.saturating_duration_since(world::now());
            if left.is_zero() {
                let domain = names.domain_name().to_owned();
                return Err(ShmError::LockTimeout { operation, domain, holder: None });
            }
            if !world::has_slept(left) {
                files = self.unlocked.wait_timeout(files, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        Ok(LockFlag { space: self.clone(), key: names.domain() })
    }

    pub(super) fn create(&self, new: &NewSegment<'_>) -> Result<Created, ShmError> {
        let NewSegment { name, bytes, owned, init } = *new;
        let used: usize = self.files().by_name.values().map(|file| file.block.len()).sum();
        let free = self.capacity.saturating_sub(used);
        let no_space = || ShmError::NoSpace {
            segment: name.to_owned(),
            wanted: bytes as u64,
            free: free as u64,
            directory: PathBuf::from("the heap"),
        };
        let block = Arc::new((bytes <= free).then(|| HeapBlock::new(bytes)).flatten().ok_or_else(no_space)?);
        let segment = Segment::heap(block.clone(), 0, bytes).ok_or_else(no_space)?;
        init(&segment);
        let owner = owned.then(|| Arc::new(AtomicBool::new(true)));
        let mut files = self.files();
        if files.by_name.contains_key(name) {
            return Err(ShmError::os("name segment", name, std::io::Error::from_raw_os_error(libc::EEXIST)));
        }
        files.made += 1;
        let file = HeapFile { block, owner: owner.clone(), inode: files.made };
        let identity = file.identity();
        files.by_name.insert(name.to_owned(), file);
        Ok(Created { segment, identity, hold: owner.map(Hold::Heap) })
    }

    pub(super) fn open(&self, name: &str) -> Option<HeapFile> {
        self.files().by_name.get(name).cloned()
    }

    pub(super) fn remove(&self, name: &str, identity: Option<Identity>) -> bool {
        let mut files = self.files();
        let meant = files.by_name.get(name).is_some_and(|file| identity.is_none_or(|wanted| file.identity() == wanted));
        meant && files.by_name.remove(name).is_some()
    }

    /// The names of all segments.
    pub fn names(&self) -> Vec<String> {
        self.files().by_name.keys().cloned().collect()
    }

    /// Puts a segment of these bytes under a name, as a program of another build might, and replaces an existing one.
    #[cfg(test)]
    pub(crate) fn plant(&self, name: &str, bytes: &[u8]) {
        let mut block = HeapBlock::new(bytes.len()).expect("memory for a test");
        block.bytes_mut().copy_from_slice(bytes);
        let mut files = self.files();
        files.made += 1;
        let file = HeapFile { block: Arc::new(block), owner: None, inode: files.made };
        files.by_name.insert(name.to_owned(), file);
    }
}

/// The lock of one domain.
pub(super) struct LockFlag {
    space: Arc<HeapSpace>,
    key: String,
}

impl Drop for LockFlag {
    fn drop(&mut self) {
        self.space.files().locked.remove(&self.key);
        self.space.unlocked.notify_all();
    }
}
