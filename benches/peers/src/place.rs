//! A directory in which processes exchange data before they can send messages.

use crate::transport::Result;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The timeout for the other process.
const PATIENCE: Duration = Duration::from_secs(20);

/// The directory from the viewpoint of one process.
#[derive(Debug)]
pub struct Place {
    dir: PathBuf,
    node: usize,
}

impl Place {
    /// The directory, for this process.
    pub fn new(dir: PathBuf, node: usize) -> Self {
        Self { dir, node }
    }

    /// Its path.
    pub fn dir(&self) -> &std::path::Path {
        &self.dir
    }

    /// Leaves data for all processes under a name. The file is complete or absent.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn leave(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.dir.join(format!("{name}.{}", self.node));
        let unfinished = self.dir.join(format!("{name}.{}.unfinished", self.node));
        fs::write(&unfinished, bytes)
            .and_then(|()| fs::rename(&unfinished, &path))
            .map_err(|error| format!("could not write {}: {error}", path.display()))?;
        Ok(())
    }

    /// Waits for data that another process leaves.
    ///
    /// # Errors
    /// The data did not come in time.
    pub fn find(&self, name: &str, node: usize) -> Result<Vec<u8>> {
        let path = self.dir.join(format!("{name}.{node}"));
        let deadline = Instant::now() + PATIENCE;
        loop {
            match fs::read(&path) {
                Ok(bytes) => return Ok(bytes),
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => {
                    let seconds = PATIENCE.as_secs();
                    return Err(format!("process {node} left no {} within {seconds} s: {error}", path.display()).into());
                }
            }
        }
    }

    /// Gives data to the other process of the pair, and takes that process's data.
    ///
    /// # Errors
    /// The same as for [`leave`](Self::leave) and [`find`](Self::find).
    pub fn swap(&self, name: &str, bytes: &[u8]) -> Result<Vec<u8>> {
        self.leave(name, bytes)?;
        self.find(name, self.node ^ 1)
    }
}
