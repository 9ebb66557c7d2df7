//! `doorbell io cp`: copies a file to an I/O node, or from one.

use super::{ClientArgs, Place, failed};
use crate::exit::{Explain, Failure};
use crate::paths::{self, Output};
use crate::processes::EndRequest;
use crate::text::{bar, bytes, print};
use doorbell::io::IoFile;
use indicatif::ProgressBar;
use std::fs::File;
use std::hash::Hasher;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;
use twox_hash::XxHash3_64;

/// Bytes of one read and write.
const PIECE: usize = 1 << 20;

/// Copy a file to an I/O node, or from one
///
/// One of the two is a file of this machine, and the other a file of an I/O node. If DST is a directory, the copy gets the name of SRC in it.
#[derive(Debug, clap::Args)]
#[command(after_help = include_str!("../../help/io-copy.txt"))]
pub struct CopyArgs {
    /// The file to copy: PATH, io:PATH or NODE:PATH
    #[arg(value_name = "SRC")]
    from: Place,
    /// The place of the copy: PATH, io:PATH or NODE:PATH
    #[arg(value_name = "DST")]
    to: Place,
    /// Read the copy back and compare checksums
    #[arg(long)]
    verify: bool,
    /// Have the copy on its medium before reporting success
    #[arg(long)]
    sync: bool,
    /// Print nothing, and show no bar
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    client: ClientArgs,
}

/// A file at either end.
enum End {
    Here(File),
    There(IoFile),
}

impl End {
    fn read(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        match self {
            End::Here(file) => {
                let mut done = 0;
                while done < into.len() {
                    match file.read_at(&mut into[done..], at + done as u64)? {
                        0 => break,
                        len => done += len,
                    }
                }
                Ok(done)
            }
            End::There(file) => file.read_at(into, at),
        }
    }

    fn write(&self, from: &[u8], at: u64) -> io::Result<()> {
        match self {
            End::Here(file) => file.write_all_at(from, at),
            End::There(file) => file.write_all_at(from, at),
        }
    }

    /// Its length; `None` unless it is a regular file.
    fn len(&self) -> io::Result<Option<u64>> {
        let (is_file, len) = match self {
            End::Here(file) => file.metadata().map(|facts| (facts.is_file(), facts.len()))?,
            End::There(file) => file.metadata().map(|facts| (facts.is_file(), facts.len()))?,
        };
        Ok(is_file.then_some(len))
    }

    /// Cuts the rest of a former file behind the copy, and has the copy on its medium if that is wanted.
    fn finish(&self, len: u64, sync: bool) -> io::Result<()> {
        if self.len()?.is_some_and(|found| found > len) {
            match self {
                End::Here(file) => file.set_len(len)?,
                End::There(file) => file.set_len(len)?,
            }
        }
        match self {
            End::Here(file) if sync => file.sync_all(),
            End::There(file) if sync => file.sync_all(),
            _ => Ok(()),
        }
    }

    /// Closes the file: some media report only now that a write failed.
    fn close(self) -> io::Result<()> {
        match self {
            // The standard library ignores this error.
            End::Here(file) => nix::unistd::close(file).map_err(io::Error::from),
            End::There(file) => file.close(),
        }
    }
}

/// Copies.
pub fn run(args: &CopyArgs) -> Result<(), Failure> {
    let there = match (&args.from, &args.to) {
        (Place::Here(_), Place::There(there)) | (Place::There(there), Place::Here(_)) => there,
        _ => return Err(Failure::usage("one of SRC and DST has to be of an I/O node", "io:PATH is, and so is 3:PATH of node 3")),
    };
    let request = EndRequest::listen()?;
    let node = args.client.join("io cp")?;
    let client = there.connect(args.client.client(&node))?;
    let here = |what: &str, path: &Path, error: io::Error| {
        let what = format!("cannot {what} {}: {error}", path.display());
        match error.kind() {
            io::ErrorKind::InvalidInput => {
                Failure::usage(what, "name a regular file: directories, pipes and devices are not copied")
            }
            io::ErrorKind::NotFound => Failure::failed(what, "see whether the path is right"),
            _ => Failure::failed(what, "see whether this user may do that"),
        }
    };
    let (from, to, draft, names) = match (&args.from, &args.to) {
        (Place::Here(source), _) => {
            // Opened before anything is made.
            let from = paths::open(source).map_err(|error| here("copy", source, error))?;
            let is_dir = client.metadata(&there.path).is_ok_and(|facts| facts.is_dir());
            let target = there.at(within(&there.path, is_dir, source)?);
            // Not truncated: the target may be the file that is copied.
            let options = client.options().read(args.verify).write(true).create(true);
            let to = options.open(&target.path).map_err(|error| failed("make", &target, &error))?;
            (End::Here(from), End::There(to), None, [source.display().to_string(), target.to_string()])
        }
        (Place::There(source), Place::Here(target)) => {
            let from = client.open(&source.path).map_err(|error| failed("open", source, &error))?;
            let facts = from.metadata().map_err(|error| failed("look at", source, &error))?;
            if !facts.is_file() {
                let hint = "name a regular file: directories, pipes and devices are not copied";
                return Err(Failure::usage(format!("cannot copy {source}: it is no regular file"), hint));
            }
            let target = within(target, target.is_dir(), &source.path)?;
            let draft = Output::at(&target).and_then(|output| output.draft());
            let opened = draft.and_then(|draft| Ok((draft.file().try_clone()?, draft)));
            let (to, draft) = opened.map_err(|error| here("write", &target, error))?;
            (End::There(from), End::Here(to), Some(draft), [source.to_string(), target.display().to_string()])
        }
        _ => return Ok(()),
    };
    let said = carry(args, &request, &from, &to, &names)?;
    to.close().map_err(|error| failed("close", &names[1], &error))?;
    let kept = draft.map_or(Ok(()), |draft| draft.keep(args.sync));
    kept.map_err(|error| failed("finish", &names[1], &error))?;
    if !args.quiet {
        print(&said);
    }
    Ok(())
}

/// The path of the copy. In a directory the copy has the name of the source.
fn within(target: &Path, is_dir: bool, source: &Path) -> Result<PathBuf, Failure> {
    if !is_dir {
        return Ok(target.to_owned());
    }
    let name = source.file_name();
    let name = name.ok_or_else(|| Failure::usage(format!("{} is no file", source.display()), "name a file, not a directory"))?;
    Ok(target.join(name))
}

/// Copies all bytes, and returns the line to print.
fn carry(args: &CopyArgs, request: &EndRequest, from: &End, to: &End, names: &[String; 2]) -> Result<String, Failure> {
    let total = from.len().map_err(|error| failed("look at", &names[0], &error))?.unwrap_or(0);
    let passes = if args.verify { 2 } else { 1 };
    let template = "{wide_bar} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
    let bar = if args.quiet { ProgressBar::hidden() } else { bar(total * passes, template) };
    let (began, mut piece, mut hash, mut at) = (Instant::now(), vec![0; PIECE], XxHash3_64::new(), 0);
    loop {
        request.check()?;
        let len = from.read(&mut piece, at).map_err(|error| failed("read", &names[0], &error))?;
        if len == 0 {
            break;
        }
        if args.verify {
            hash.write(&piece[..len]);
        }
        to.write(&piece[..len], at).map_err(|error| failed("write", &names[1], &error))?;
        at += len as u64;
        bar.set_position(at);
    }
    to.finish(at, args.sync).map_err(|error| failed("finish", &names[1], &error))?;
    let took = began.elapsed();
    let mut checked = String::new();
    if args.verify {
        let sent = hash.finish();
        let found =
            checksum(request, to, at, &mut piece, &bar).map_err(|failure| failure.of(format!("cannot verify {}", names[1])))?;
        if sent != found {
            let what = format!("{} is no copy of {}: checksums are {found:016x} and {sent:016x}", names[1], names[0]);
            return Err(Failure::failed(what, "see whether somebody else writes it, and copy it again"));
        }
        checked = format!(", verified (XXH3 {sent:016x})");
    }
    bar.finish_and_clear();
    let rate = bytes((at as f64 / took.as_secs_f64().max(1e-9)) as u64);
    Ok(format!("{} -> {}: {} in {:.2} s, {rate}/s{checked}\n", names[0], names[1], bytes(at), took.as_secs_f64()))
}

/// The checksum of the whole file.
fn checksum(request: &EndRequest, file: &End, len: u64, piece: &mut [u8], bar: &ProgressBar) -> Result<u64, Failure> {
    let (mut hash, mut at) = (XxHash3_64::new(), 0);
    loop {
        request.check()?;
        let got = file.read(piece, at).or_failed("cannot read it", "")?;
        if got == 0 {
            return Ok(hash.finish());
        }
        hash.write(&piece[..got]);
        at += got as u64;
        bar.set_position(len + at);
    }
}
