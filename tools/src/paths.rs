//! Files from the command line, which are opened without waiting and replaced as a whole.
//!
//! Only regular files are read and written. Opening a FIFO may block for ever, and writing to a device or a socket is a mistake. An [`Output`] is written
//! beside its place and then takes the place, so a reader finds the former file or the new one.

use std::fs::{self, File, FileType, Metadata, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// How many names are tried for the file beside an output.
const NAMES: u32 = 100;

/// The kind of a file, in words.
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

/// Fails with [`ErrorKind::InvalidInput`] unless the file is a regular file.
pub fn regular(facts: &Metadata) -> io::Result<()> {
    if facts.is_file() { Ok(()) } else { Err(refused(format!("it is no regular file but {}", kind(facts.file_type())))) }
}

fn refused(why: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, why.into())
}

/// Opens a regular file. Checks before, because opening a device may have an effect, and afterwards, because another process may have exchanged the file.
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

/// A place for a file.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    /// The owner and the rights of the file to replace.
    former: Option<Metadata>,
}

impl Output {
    /// Checks that a file can be written here, so that the command reports a mistake before it does anything. A former file stays as it is.
    pub fn at(path: &Path) -> io::Result<Self> {
        // `file_name` ignores the slash, and the mistake would show only at the end.
        if path.as_os_str().as_bytes().ends_with(b"/") {
            return Err(refused("it ends with a slash, which only a directory may"));
        }
        let output = match fs::metadata(path) {
            Ok(_) => {
                let found = open_regular(path, File::options().write(true))?;
                // Replaces the target of a symbolic link, and not the link.
                Self { path: fs::canonicalize(path)?, former: Some(found.metadata()?) }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if path.is_symlink() {
                    return Err(refused("it is a symbolic link that leads nowhere"));
                }
                Self { path: path.to_owned(), former: None }
            }
            Err(error) => return Err(error),
        };
        output.draft()?;
        Ok(output)
    }

    /// The path of the file; for a symbolic link, that of its target.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Begins a file that can take this place.
    pub fn draft(&self) -> io::Result<Draft> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        if self.path.file_name().is_none() {
            return Err(refused("it names no file"));
        }
        let mut made = Err(refused("no name is free beside it"));
        for _ in 0..NAMES {
            let name = format!(".doorbell-{}-{}.new", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
            let path = self.path.with_file_name(name);
            let mut options = File::options();
            options.read(true).write(true).create_new(true);
            if self.former.is_some() {
                // Other users must not read it before it has the rights of the former file.
                options.mode(0o600);
            }
            made = options.open(&path).map(|file| (file, path));
            if !made.as_ref().is_err_and(|error| error.kind() == ErrorKind::AlreadyExists) {
                break;
            }
        }
        let (file, beside) = made?;
        let draft = Draft { file, beside: Some(beside), place: self.path.clone() };
        if let Some(former) = &self.former {
            let is_same = |made: &Metadata| (made.uid(), made.gid()) == (former.uid(), former.gid());
            let is_its = is_same(&draft.file.metadata()?)
                || std::os::unix::fs::fchown(&draft.file, Some(former.uid()), Some(former.gid())).is_ok();
            // The new content must not run as another user, and a group has rights only if the file still belongs to it.
            let rights = former.mode() & if is_its { 0o777 } else { 0o700 };
            draft.file.set_permissions(Permissions::from_mode(rights))?;
        }
        Ok(draft)
    }

    /// Writes a whole file.
    pub fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let mut draft = self.draft()?;
        draft.file.write_all(bytes)?;
        draft.keep(true)
    }
}

/// A file beside its place. Dropping it removes the file.
#[derive(Debug)]
pub struct Draft {
    file: File,
    /// The path beside the place; `None` once the file has taken the place.
    beside: Option<PathBuf>,
    place: PathBuf,
}

impl Draft {
    /// The file itself, to be written and read.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Takes the place. With `sync`, not before the content is on its medium.
    pub fn keep(mut self, sync: bool) -> io::Result<()> {
        if sync {
            self.file.sync_all()?;
        }
        // Renaming would replace any file that was made here meanwhile.
        match fs::symlink_metadata(&self.place) {
            Ok(found) => regular(&found)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        if let Some(beside) = &self.beside {
            fs::rename(beside, &self.place)?;
        }
        self.beside = None;
        if sync {
            // The file is in its place. If the directory cannot be synchronised, the system does so later.
            let _ = File::open(directory(&self.place)).and_then(|directory| directory.sync_all());
        }
        Ok(())
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
    fn a_new_file_has_the_rights_of_the_former_one_but_those_to_run_as_its_owner() {
        let directory = Directory::new("rights");
        let path = directory.0.join("file");
        fs::write(&path, "former").unwrap();
        for (before, after) in [(0o640, 0o640), (0o600, 0o600), (0o6755, 0o755)] {
            fs::set_permissions(&path, Permissions::from_mode(before)).unwrap();
            Output::at(&path).unwrap().write(b"new").unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, after, "{before:o}");
        }
    }

    #[test]
    fn names_of_no_file_are_refused() {
        let directory = Directory::new("slash");
        assert!(Output::at(&directory.0.join("new/")).is_err(), "it would be refused only when it is whole");
        for path in ["/", ".", "..", "/dev/null", "/nothing/here"] {
            assert!(Output::at(Path::new(path)).is_err(), "{path}");
        }
    }
}
