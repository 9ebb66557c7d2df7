//! Passes on the output of the nodes, line by line, with their numbers in front.
//!
//! One thread reads all pipes, so that lines never mix. A node that writes faster than the thread can pass on waits.

use crate::exit::{Explain, Failure};
use crate::text::Style;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{pipe2, read};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::thread::{Builder, JoinHandle};

/// Bytes read at once. A pipe holds as many.
const CHUNK: usize = 64 << 10;
/// A line that is longer is passed on in pieces.
const LINE_MOST: usize = 1 << 20;
/// Chunks that the thread reads from each pipe after all nodes have ended: as many as the largest pipe holds.
const LAST_CHUNKS: usize = 16;

/// The pipes of the nodes, before passing on begins.
pub struct Output {
    streams: Vec<Stream>,
    wanted: bool,
    styles: [Style; 2],
}

/// The thread that passes on.
pub struct Passing {
    thread: JoinHandle<io::Result<OwnedFd>>,
    stop: OwnedFd,
    /// Becomes readable when the thread has failed. If the thread ended well, its result keeps the other end open.
    alive: OwnedFd,
}

enum Target {
    Stdout,
    Stderr,
    #[cfg(test)]
    Kept(std::sync::Arc<std::sync::Mutex<Vec<u8>>>),
}

struct Stream {
    pipe: OwnedFd,
    target: Target,
    prefix: String,
    /// The beginning of a line whose end has not come yet.
    line: Vec<u8>,
    chunks: usize,
}

impl Output {
    /// No pipes yet. If `wanted` is false, the nodes write to this process's output directly.
    pub fn new(wanted: bool) -> Self {
        Self { streams: Vec::new(), wanted, styles: [Style::of(&io::stdout()), Style::of(&io::stderr())] }
    }

    /// Whether the nodes write into pipes.
    pub fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Takes the pipes of a node.
    pub fn follow(&mut self, node: u16, child: &mut Child) {
        let out = child.stdout.take().map(|pipe| (Target::Stdout, self.styles[0], OwnedFd::from(pipe)));
        let err = child.stderr.take().map(|pipe| (Target::Stderr, self.styles[1], OwnedFd::from(pipe)));
        for (target, style, pipe) in out.into_iter().chain(err) {
            let prefix = format!("{} ", style.hue(node.into(), format_args!("[{node}]")));
            self.streams.push(Stream { pipe, target, prefix, line: Vec::new(), chunks: 0 });
        }
    }

    /// Starts the thread that passes on.
    pub fn pass(self) -> Result<Passing, Failure> {
        const WHAT: &str = "cannot read the output of the nodes";
        const HINT: &str = "see the limits on files and threads (`ulimit -a`)";
        let pipe = || pipe2(nix::fcntl::OFlag::O_CLOEXEC).or_usage(WHAT, HINT);
        let ((stopped, stop), (alive, living)) = (pipe()?, pipe()?);
        let copy = move || pass_on(self.streams, &stopped).map(|()| living);
        let thread = Builder::new().name("output".into()).spawn(copy).or_usage(WHAT, HINT)?;
        Ok(Passing { thread, stop, alive })
    }
}

impl Passing {
    /// Becomes readable when the thread can pass on nothing more.
    pub fn broken(&self) -> &OwnedFd {
        &self.alive
    }

    /// Passes on the rest in the pipes, and ends the thread.
    pub fn finish(self) -> io::Result<()> {
        drop(self.stop);
        let result = self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that reads it is gone")));
        result.map(drop)
    }
}

/// Passes on until all pipes have ended, or, when told to stop, until they are empty.
fn pass_on(mut streams: Vec<Stream>, stopped: &OwnedFd) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    let mut stopping = false;
    while !streams.is_empty() {
        let mut fds: Vec<PollFd<'_>> = streams.iter().map(|stream| PollFd::new(stream.pipe.as_fd(), PollFlags::POLLIN)).collect();
        if !stopping {
            fds.push(PollFd::new(stopped.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut fds, if stopping { PollTimeout::ZERO } else { PollTimeout::NONE }) {
            Ok(0) => break,
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any() != Some(false)).collect();
        let stop_now = ready.get(streams.len()) == Some(&true);
        let mut at = 0;
        for ready in &ready[..streams.len()] {
            if *ready && !streams[at].pass_chunk(&mut chunk, stopping)? {
                streams.remove(at);
            } else {
                at += 1;
            }
        }
        stopping |= stop_now;
    }
    streams.iter_mut().try_for_each(Stream::end)
}

impl Stream {
    /// Reads once and passes on whole lines. False at the end of the pipe.
    fn pass_chunk(&mut self, chunk: &mut [u8], last: bool) -> io::Result<bool> {
        self.chunks += usize::from(last);
        let count = match read(&self.pipe, chunk) {
            Ok(count) if self.chunks <= LAST_CHUNKS => count,
            Err(Errno::EINTR | Errno::EAGAIN) => return Ok(true),
            _ => 0,
        };
        if count == 0 {
            return self.end().map(|()| false);
        }
        let mut out = Vec::with_capacity(count + 256);
        for piece in chunk[..count].split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.line.len() >= LINE_MOST {
                self.take_line(&mut out);
            }
        }
        self.write(&out)?;
        Ok(true)
    }

    /// Passes on a last line without a newline.
    fn end(&mut self) -> io::Result<()> {
        let mut out = Vec::new();
        if !self.line.is_empty() {
            self.take_line(&mut out);
        }
        self.write(&out)
    }

    fn take_line(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.prefix.as_bytes());
        out.append(&mut self.line);
        if !out.ends_with(b"\n") {
            out.push(b'\n');
        }
    }

    fn write(&self, out: &[u8]) -> io::Result<()> {
        let whole = |target: &mut dyn Write| target.write_all(out).and_then(|()| target.flush());
        match &self.target {
            _ if out.is_empty() => Ok(()),
            Target::Stdout => whole(&mut io::stdout().lock()),
            Target::Stderr => whole(&mut io::stderr().lock()),
            #[cfg(test)]
            Target::Kept(kept) => whole(&mut *kept.lock().unwrap()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::unistd::write;
    use std::sync::{Arc, Mutex};

    /// The output for these pieces, after which the writing end is closed, or left open while passing on is told to stop.
    fn passed(pieces: &[&[u8]], left_open: bool) -> Vec<u8> {
        let pipe = || pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
        let ((from, to), (stopped, stop)) = (pipe(), pipe());
        let kept = Arc::new(Mutex::new(Vec::new()));
        let target = Target::Kept(kept.clone());
        let mut stream = Stream { pipe: from, target, prefix: "[3] ".into(), line: Vec::new(), chunks: 0 };
        for piece in pieces {
            assert_eq!(write(&to, piece).unwrap(), piece.len());
            stream.pass_chunk(&mut [0; CHUNK], false).unwrap();
        }
        let to = left_open.then_some(to);
        write(to.as_ref().unwrap_or(&stop), b"!").unwrap();
        drop(stop);
        pass_on(vec![stream], &stopped).unwrap();
        std::mem::take(&mut kept.lock().unwrap())
    }

    #[test]
    fn lines_are_put_together_and_the_last_gets_its_end() {
        assert_eq!(passed(&[b"a", b"b\nc\n", b"\n", b"d"], false), b"[3] ab\n[3] c\n[3] \n[3] d\n");
        assert_eq!(passed(&[], false), b"");
        assert_eq!(passed(&[b"\xff\xfe\n"], false), b"[3] \xff\xfe\n");
    }

    #[test]
    fn a_pipe_that_somebody_keeps_open_does_not_keep_us() {
        assert_eq!(passed(&[b"last words"], true), b"[3] last words!\n");
    }

    #[test]
    fn a_line_without_end_is_passed_on_in_pieces() {
        let piece = [b'x'; CHUNK];
        let out = passed(&[&piece[..]; 2 * LINE_MOST / CHUNK], false);
        assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), 2);
        assert_eq!(out.iter().filter(|byte| **byte == b'x').count(), 2 * LINE_MOST);
    }
}
