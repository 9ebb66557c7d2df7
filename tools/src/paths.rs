//! Files that people name on the command line: opened without waiting, and written whole.
//!
//! Only regular files are read and written. To open a FIFO may wait for ever, and to write a device or a socket is never meant. An [`Output`] is written
//! beside its place and then takes it, so a reader finds the former file or the new one.

use std::fs::{self, File, FileType, Metadata, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// How many names are tried for the file beside an output.
const NAMES: u32 = 100;

/// What a file is, in words.
pub fn kind(kind: FileType) -> &'static str {
    match kind {
        _ if kind.is_file() => "a regular file",
        _ if kind.is_dir() => "a directory",
        _ if kind.is_symlink() => "a symbolic link",
        _ if kind.is_fifo() => "a FIFO",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

/// An error of the kind [`ErrorKind::InvalidInput`] for all but regular files.
pub fn regular(facts: &Metadata) -> io::Result<()> {
    if facts.is_file() { Ok(()) } else { Err(refused(format!("it is no regular file but {}", kind(facts.file_type())))) }
}

fn refused(why: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, why.into())
}

/// Opens a regular file. Looks before, since to open a device may do something, and afterwards, since somebody may have exchanged the file.
fn open_regular(path: &Path, options: &mut fs::OpenOptions) -> io::Result<File> {
    regular(&fs::metadata(path)?)?;
    let file = options.custom_flags(libc::O_NONBLOCK).open(path)?;
    regular(&file.metadata()?)?;
    Ok(file)
}

/// Opens a regular file to read it.
pub fn open(path: &Path) -> io::Result<File> {
    open_regular(path, File::options().read(true))
}

/// A place where a file is to be written.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    /// Those of the file that is replaced.
    permissions: Option<Permissions>,
}

impl Output {
    /// Sees that a file can be written here, so that a mistake is told before anything else is done. What is here stays as it is.
    pub fn at(path: &Path) -> io::Result<Self> {
        let output = match fs::metadata(path) {
            Ok(_) => {
                let found = open_regular(path, File::options().write(true))?;
                // The file that a symbolic link leads to is replaced, and not the link.
                Self { path: fs::canonicalize(path)?, permissions: Some(found.metadata()?.permissions()) }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if path.is_symlink() {
                    return Err(refused("it is a symbolic link that leads nowhere"));
                }
                Self { path: path.to_owned(), permissions: None }
            }
            Err(error) => return Err(error),
        };
        output.draft()?;
        Ok(output)
    }

    /// The file itself, where a symbolic link leads to it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Begins a file that may take this place.
    pub fn draft(&self) -> io::Result<Draft> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if self.path.file_name().is_none() {
            return Err(refused("it names no file"));
        }
        let mut made = Err(refused("no name is free beside it"));
        for _ in 0..NAMES {
            let name = format!(".doorbell-{}-{}.new", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
            let path = self.path.with_file_name(name);
            made = File::options().read(true).write(true).create_new(true).open(&path).map(|file| (file, path));
            if !made.as_ref().is_err_and(|error| error.kind() == ErrorKind::AlreadyExists) {
                break;
            }
        }
        let (file, beside) = made?;
        let draft = Draft { file, beside: Some(beside), place: self.path.clone() };
        self.permissions.iter().try_for_each(|permissions| draft.file.set_permissions(permissions.clone()))?;
        Ok(draft)
    }

    /// Writes a whole file.
    pub fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let mut draft = self.draft()?;
        draft.file.write_all(bytes)?;
        draft.keep(true)
    }
}

/// A file beside its place. Dropped, it is removed.
#[derive(Debug)]
pub struct Draft {
    file: File,
    /// None once it has taken its place.
    beside: Option<PathBuf>,
    place: PathBuf,
}

impl Draft {
    /// What is written, and may be read.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Takes the place; if that is wanted, not before all is on the medium.
    pub fn keep(mut self, sync: bool) -> io::Result<()> {
        if sync {
            self.file.sync_all()?;
        }
        // Renaming would remove whatever came to be here meanwhile.
        match fs::symlink_metadata(&self.place) {
            Ok(found) => regular(&found)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        if let Some(beside) = &self.beside {
            fs::rename(beside, &self.place)?;
        }
        self.beside = None;
        if sync { File::open(directory(&self.place))?.sync_all() } else { Ok(()) }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = self.beside.take().map(fs::remove_file);
    }
}

/// The directory that a path is in.
pub fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Directory(PathBuf);

    impl Directory {
        fn new(what: &str) -> Self {
            let path = std::env::temp_dir().join(format!("doorbell-paths-{what}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap().flatten();
            let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
            names.sort_unstable();
            names
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_is_as_it_was_until_the_new_one_is_whole() {
        let directory = Directory::new("whole");
        let path = directory.0.join("file");
        fs::write(&path, "former").unwrap();
        let output = Output::at(&path).unwrap();
        assert_eq!(directory.names(), ["file"], "nothing is made before something is written");
        let draft = output.draft().unwrap();
        draft.file().write_all(b"half").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "former");
        drop(draft);
        assert_eq!((directory.names(), fs::read_to_string(&path).unwrap()), (vec!["file".to_owned()], "former".to_owned()));
        output.write(b"new").unwrap();
        assert_eq!((directory.names(), fs::read_to_string(&path).unwrap()), (vec!["file".to_owned()], "new".to_owned()));
    }

    #[test]
    fn what_came_to_be_there_meanwhile_is_not_replaced() {
        let directory = Directory::new("meanwhile");
        let path = directory.0.join("file");
        let output = Output::at(&path).unwrap();
        let draft = output.draft().unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let error = draft.keep(false).unwrap_err();
        assert_eq!(error.to_string(), "it is no regular file but a socket");
        assert_eq!(directory.names(), ["file"]);
    }

    #[test]
    fn names_of_no_file_are_refused() {
        for path in ["/", ".", "..", "/dev/null", "/nothing/here"] {
            assert!(Output::at(Path::new(path)).is_err(), "{path}");
        }
    }
}
