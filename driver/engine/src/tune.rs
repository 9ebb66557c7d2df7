//! The measurement of `doorbell tune`: the length from which DMA is faster on this machine. It is kept in a file, which is used
//! only on the machine that it was made on.

use crate::mode::{Dma, Fabric};
use doorbell_fabric::world;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// The environment variable that names the file, or is `off`.
const VARIABLE: &str = "DOORBELL_TUNE";
/// The path below the user's cache directory.
const FILE: &str = "doorbell/tune.json";
/// A longer file was not written by `doorbell tune`.
const BYTES_MOST: u64 = 64 << 10;
/// The most bytes read of what the system says about itself.
const SYSTEM_MOST: u64 = 4 << 20;

/// The measured length for a kind of fabric and of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The kind of fabric.
    pub fabric: Fabric,
    /// True for regions, false for private memory.
    pub in_region: bool,
    /// The measured length.
    pub dma: Dma,
}

/// The marks of a machine. A measurement is used only if they are all equal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's model, as the system calls it.
    pub cpu: String,
    /// The number of processors.
    pub processors: u32,
    /// The release of the kernel.
    pub kernel: String,
    /// The version of this crate.
    pub version: String,
}

/// A measurement of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tune {
    /// The machine that was measured.
    pub machine: Machine,
    /// The results. Combinations that were not measured are missing.
    pub found: Vec<Found>,
}

/// Why a file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// It can't be read.
    #[error("could not read it: {0}")]
    Unreadable(#[from] io::Error),
    /// It is not a regular file.
    #[error("it is not a regular file")]
    NoFile,
    /// It is longer than any that `doorbell tune` writes.
    #[error("it is longer than {BYTES_MOST} bytes")]
    TooLong,
    /// Its contents are not what `doorbell tune` writes.
    #[error("it is malformed: {0}")]
    Malformed(#[from] serde_json::Error),
    /// It was made on another machine, or by another version.
    #[error("it was made on another machine or by another version: {0}")]
    Other(String),
}

impl Machine {
    /// The marks of this machine. A mark that the system does not tell is empty.
    pub fn this() -> Self {
        let system = |path| {
            let text = world::read(Path::new(path), SYSTEM_MOST).unwrap_or_default();
            String::from_utf8_lossy(&text).into_owned()
        };
        let processors = system("/proc/cpuinfo");
        let (cpu, count) = read_processors(&processors);
        let (kernel, version) = (system("/proc/sys/kernel/osrelease").trim().into(), env!("CARGO_PKG_VERSION").into());
        Self { cpu, processors: count, kernel, version }
    }

    /// The first difference between two machines, if there is one.
    fn difference(&self, other: &Self) -> Option<String> {
        let pairs = [
            ("processor", self.cpu.clone(), other.cpu.clone()),
            ("processors", self.processors.to_string(), other.processors.to_string()),
            ("kernel", self.kernel.clone(), other.kernel.clone()),
            ("version", self.version.clone(), other.version.clone()),
        ];
        let (what, here, there) = pairs.into_iter().find(|(_, here, there)| here != there)?;
        // The text of the file goes into a log, so it is cleaned first.
        let there: String = there.chars().filter(|char| !char.is_control()).take(80).collect();
        Some(format!("{what} {here} here, {there} there"))
    }
}

impl Tune {
    /// The path of the file: the value of `DOORBELL_TUNE`, else `doorbell/tune.json` below `$XDG_CACHE_HOME` or `~/.cache`.
    /// `None` if the value is `off`, or if no directory is known.
    pub fn path() -> Option<PathBuf> {
        path_from(|name| std::env::var_os(name))
    }

    /// The measurement of this machine, or `None` if there is none. A file that can't be used counts as none, and a line in the
    /// log tells why. Reads some small files, so don't call it on the path of messages.
    pub fn load() -> Option<Self> {
        let path = Self::path()?;
        let read = match Self::read(&path) {
            Err(TuneError::Unreadable(error)) if error.kind() == io::ErrorKind::NotFound => return None,
            read => read.and_then(|tune| match Machine::this().difference(&tune.machine) {
                None => Ok(tune),
                Some(difference) => Err(TuneError::Other(difference)),
            }),
        };
        read.inspect_err(|why| tracing::warn!("the measurement {} is not used: {why}; run `doorbell tune`", path.display())).ok()
    }

    /// Reads a file, which may be from any machine.
    ///
    /// # Errors
    /// The file can't be read, or [`Tune::write`] did not write it.
    pub fn read(path: &Path) -> Result<Self, TuneError> {
        let bytes = world::read(path, BYTES_MOST + 1).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => TuneError::NoFile,
            _ => TuneError::Unreadable(error),
        })?;
        if bytes.len() as u64 > BYTES_MOST {
            return Err(TuneError::TooLong);
        }
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// Writes a file, and makes its directories. A concurrent reader finds either the old file or the new one, complete.
    ///
    /// # Errors
    /// The error of the system; the old file is unchanged.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        world::replace(path, text.as_bytes())
    }
}

fn path_from(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let said = |name| variable(name).filter(|word| !word.is_empty());
    if let Some(path) = said(VARIABLE) {
        return (path != "off").then(|| path.into());
    }
    let absolute = |name| said(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join(FILE))
}

/// The model of the first processor, and the number of processors.
fn read_processors(text: &str) -> (String, u32) {
    let fields = || text.lines().filter_map(|line| line.split_once(':')).map(|(name, value)| (name.trim(), value.trim()));
    let first = |wanted: &str| fields().find(|(name, _)| *name == wanted).map(|(_, value)| value);
    // Some architectures have numbers instead of a name.
    let numbers = || ["CPU implementer", "CPU part"].map(|name| first(name).unwrap_or_default()).join(" ").trim().to_owned();
    let cpu = first("model name").map_or_else(numbers, str::to_owned);
    (cpu, fields().filter(|(name, _)| *name == "processor").count() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Directory(PathBuf);

    impl Directory {
        fn new() -> Self {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let name = format!("doorbell-tune-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn tune() -> Tune {
        let found = [(false, Dma::From(1 << 20)), (true, Dma::Never)]
            .map(|(in_region, dma)| Found { fabric: Fabric::Shm, in_region, dma })
            .to_vec();
        Tune { machine: Machine::this(), found }
    }

    #[test]
    // Reads files: not for Miri.
    #[cfg_attr(miri, ignore)]
    fn what_is_written_is_read() {
        let directory = Directory::new();
        let path = directory.0.join("a/b/tune.json");
        tune().write(&path).unwrap();
        let other = Tune { found: Vec::new(), ..tune() };
        other.write(&path).unwrap();
        assert_eq!(Tune::read(&path).unwrap(), other);
        tune().write(&path).unwrap();
        assert_eq!(Tune::read(&path).unwrap(), tune());
        let names: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["tune.json"], "nothing else is left");
    }

    #[test]
    // Reads files: not for Miri.
    #[cfg_attr(miri, ignore)]
    fn the_format_is_as_it_is_told() {
        let machine = Machine { cpu: "x".into(), processors: 2, kernel: "6".into(), version: "0".into() };
        let text = serde_json::to_string(&Tune { machine, ..tune() }).unwrap();
        let expected = r#"{"machine":{"cpu":"x","processors":2,"kernel":"6","version":"0"},"found":[{"fabric":"shm","in_region":false,"dma":{"from":1048576}},{"fabric":"shm","in_region":true,"dma":"never"}]}"#;
        assert_eq!(text, expected);
    }

    #[test]
    // Reads files: not for Miri.
    #[cfg_attr(miri, ignore)]
    fn a_file_of_no_use_says_why() {
        let directory = Directory::new();
        let path = directory.0.join("tune.json");
        assert!(matches!(Tune::read(&path), Err(TuneError::Unreadable(_))));
        assert!(matches!(Tune::read(&directory.0), Err(TuneError::NoFile)));
        assert!(matches!(Tune::read(Path::new("/dev/zero")), Err(TuneError::NoFile)));
        for text in [&b""[..], b"{}", b"[]", b"\xff\xfe", br#"{"machine":{},"found":[]}"#, &vec![b'['; 60_000]] {
            fs::write(&path, text).unwrap();
            assert!(matches!(Tune::read(&path), Err(TuneError::Malformed(_))), "{text:?}");
        }
        fs::write(&path, vec![b' '; BYTES_MOST as usize + 1]).unwrap();
        assert!(matches!(Tune::read(&path), Err(TuneError::TooLong)));
    }

    #[test]
    // Reads files: not for Miri.
    #[cfg_attr(miri, ignore)]
    fn what_cannot_be_written_leaves_nothing() {
        let directory = Directory::new();
        fs::create_dir_all(directory.0.join("tune.json/full")).unwrap();
        assert!(tune().write(&directory.0.join("tune.json")).is_err());
        assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 1);
    }

    #[test]
    // Reads files: not for Miri.
    #[cfg_attr(miri, ignore)]
    fn another_machine_is_known_by_any_of_its_marks() {
        let here = Machine::this();
        assert_eq!(here.difference(&here), None);
        let others = [
            Machine { cpu: "other\n".repeat(1000), ..here.clone() },
            Machine { processors: here.processors + 1, ..here.clone() },
            Machine { kernel: "0".into(), ..here.clone() },
            Machine { version: "0.0.0".into(), ..here.clone() },
        ];
        for other in others {
            let told = here.difference(&other).unwrap();
            assert!(!told.contains('\n') && told.len() < 400, "{told}");
        }
    }

    #[test]
    fn where_the_file_is() {
        let path = |words: &[(&str, &str)]| {
            path_from(|name| words.iter().find(|(known, _)| *known == name).map(|(_, word)| (*word).into()))
        };
        let (home, cache) = (("HOME", "/home/me"), ("XDG_CACHE_HOME", "/cache"));
        assert_eq!(path(&[home]), Some("/home/me/.cache/doorbell/tune.json".into()));
        assert_eq!(path(&[home, cache]), Some("/cache/doorbell/tune.json".into()));
        assert_eq!(path(&[home, ("XDG_CACHE_HOME", "relative")]), Some("/home/me/.cache/doorbell/tune.json".into()));
        assert_eq!(path(&[home, cache, (VARIABLE, "here.json")]), Some("here.json".into()));
        assert_eq!(path(&[home, cache, (VARIABLE, "off")]), None);
        assert_eq!(path(&[home, (VARIABLE, "")]), Some("/home/me/.cache/doorbell/tune.json".into()));
        assert_eq!(path(&[]), None);
    }

    #[test]
    fn processors_are_counted_and_named() {
        let x86 = "processor\t: 0\nmodel name\t: Fast: One\nflags\t: a b\n\nprocessor\t: 1\nmodel name\t: Fast: One\n";
        assert_eq!(read_processors(x86), ("Fast: One".into(), 2));
        let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";
        assert_eq!(read_processors(arm), ("0x41 0xd0c".into(), 1));
        assert_eq!(read_processors(""), (String::new(), 0));
    }
}
