//! A domain of its own for every test.

use doorbell::Space;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// The name of a domain that no other test uses. The test fails if files of the domain are left when it goes out of scope; the drop removes them in
/// any case.
#[derive(Debug)]
pub struct Domain {
    name: String,
    space: Space,
}

impl Domain {
    /// A new name, in `/dev/shm`.
    pub fn new(what: &str) -> Self {
        Self::within(what, Space::posix())
    }

    /// A new name in a space.
    pub fn within(what: &str, space: Space) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self { name: format!("test-{what}-{}-{number}", std::process::id()), space }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The space of its segments.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// The beginning of the names of all its files.
    pub fn prefix(&self) -> String {
        format!("doorbell.{}.{}", nix::unistd::geteuid(), self.name)
    }

    /// The path of the domain segment, if that is a file.
    pub fn segment(&self) -> PathBuf {
        PathBuf::from("/dev/shm").join(self.prefix())
    }

    /// The files of the domain.
    pub fn files(&self) -> Vec<String> {
        match &self.space {
            Space::Heap(heap) => heap.names(),
            Space::Posix(space) => {
                let (whole, parts) = (self.prefix(), format!("{}.", self.prefix()));
                let names = std::fs::read_dir(space.directory()).into_iter().flatten().flatten();
                let mut names: Vec<_> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
                names.retain(|name| *name == whole || name.starts_with(&parts));
                names.sort_unstable();
                names
            }
        }
    }

    /// Panics if files are left.
    #[track_caller]
    pub fn assert_empty(&self) {
        let files = self.files();
        assert!(files.is_empty(), "left of domain {}: {files:?}", self.name);
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        let files = self.files();
        if let Space::Posix(space) = &self.space {
            for name in &files {
                let _ = std::fs::remove_file(space.directory().join(name));
            }
        }
        assert!(files.is_empty() || std::thread::panicking(), "left of domain {}: {files:?}", self.name);
    }
}
