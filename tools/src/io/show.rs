//! `doorbell io cat` and `doorbell io ls`.

use super::{ClientArgs, There};
use crate::exit::Failure;
use crate::text::{FormArgs, Table};
use serde_json::json;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Bytes of one read.
const PIECE: usize = 1 << 20;

/// Print files of an I/O node
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../../help/io-cat.txt"))]
pub struct CatArgs {
    /// The files: io:PATH, or NODE:PATH
    #[arg(required = true, value_name = "PLACE")]
    files: Vec<There>,
    #[command(flatten)]
    client: ClientArgs,
}

/// List a directory of an I/O node
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../../help/io-ls.txt"))]
pub struct LsArgs {
    /// The directory, or a file: io:PATH, or NODE:PATH
    #[arg(value_name = "PLACE", default_value = "io:")]
    place: There,
    #[command(flatten)]
    form: FormArgs,
    #[command(flatten)]
    client: ClientArgs,
}

/// The failure of a call with a file of an I/O node.
pub fn failed(what: &str, place: impl std::fmt::Display, error: &std::io::Error) -> Failure {
    let hint = match error.raw_os_error() {
        Some(libc::EXDEV) => {
            "paths are relative to the directory that is served, and cannot leave it, nor go where something else is mounted"
        }
        Some(libc::EISDIR) => "`doorbell io ls` shows what is in a directory",
        Some(libc::EROFS) => "it is served to read only",
        Some(libc::ENOENT) => "`doorbell io ls` shows what is there",
        Some(libc::EOPNOTSUPP) => "only regular files and directories are served",
        Some(libc::EMFILE) => "it has as many files open as it may; see `doorbell io serve --descriptors`",
        None if error.kind() == ErrorKind::TimedOut => "it may be stopped, or wait for its medium; give it more --patience",
        _ => "",
    };
    Failure::failed(format!("cannot {what} {place}: {error}"), hint).see(error)
}

/// Prints files.
pub fn cat(args: &CatArgs) -> Result<(), Failure> {
    let node = args.client.join("io cat")?;
    let mut piece = vec![0; PIECE];
    let mut out = std::io::stdout().lock();
    for place in &args.files {
        let client = place.connect(args.client.client(&node))?;
        let file = client.open(&place.path).map_err(|error| failed("open", place, &error))?;
        let mut at = 0;
        loop {
            let len = file.read_at(&mut piece, at).map_err(|error| failed("read", place, &error))?;
            match out.write_all(&piece[..len]) {
                // A closed pipe is no error.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
                Err(error) => return Err(Failure::failed(format!("cannot write to stdout: {error}"), "")),
                Ok(()) if len == 0 => break,
                Ok(()) => at += len as u64,
            }
        }
    }
    Ok(())
}

/// Lists a directory.
pub fn ls(args: &LsArgs) -> Result<(), Failure> {
    let node = args.client.join("io ls")?;
    let place = &args.place;
    let client = place.connect(args.client.client(&node))?;
    let of = |path: &Path| client.symlink_metadata(path);
    let found = client.metadata(&place.path).map_err(|error| failed("look at", place, &error))?;
    let mut names: Vec<std::path::PathBuf> = if found.is_dir() {
        let entries = client.read_dir(&place.path).map_err(|error| failed("list", place, &error))?;
        entries.iter().map(|entry| entry.file_name().into()).collect()
    } else {
        vec![place.path.clone()]
    };
    names.sort_unstable();
    let mut table = Table::new(&["NAME", "KIND", ">BYTES", ">MODE"]);
    let mut objects = Vec::new();
    for name in names {
        let path = if found.is_dir() { place.path.join(&name) } else { name.clone() };
        let facts = match of(&path) {
            Ok(facts) => facts,
            // Another process removed the file meanwhile.
            Err(error) if found.is_dir() && error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(failed("look at", place.at(&path), &error)),
        };
        let kind = match () {
            () if facts.is_file() => "file",
            () if facts.is_dir() => "directory",
            () if facts.is_symlink() => "link",
            () => "other",
        };
        let mode = format!("{:o}", facts.mode() & 0o7777);
        let name = name.to_string_lossy();
        objects.push(json!({"name": name, "kind": kind, "bytes": facts.len(), "mode": mode}));
        table.row([name.escape_debug().to_string(), kind.into(), facts.len().to_string(), mode]);
    }
    args.form.print(|| table.to_string(), objects);
    Ok(())
}
