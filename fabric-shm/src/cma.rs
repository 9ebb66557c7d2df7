//! Access to the private memory of another process, with one copy and without its help (`process_vm_readv`).
//!
//! Whether the system allows it depends on users, namespaces, Yama and seccomp, so it is tried and not guessed: each node
//! publishes in its inbox the address of a private word and what the word holds, and whoever opens the inbox reads the word.
//! Anything but the right number means that it is refused. This crate never asks the system to lower a process's protection
//! (`PR_SET_PTRACER`): a program that wants access under Yama has to do so itself.
//!
//! Environment: `DOORBELL_CMA=off` makes every probe say that it is refused, for measuring and for tests.

use crate::domain::Owner;
use crate::doorbell::Bell;
use crate::layout::{DOORBELL_OFFSET, HEADER_BYTES, PAGE, REACH_OFFSET};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

/// The variable of the environment that turns it off.
pub const VARIABLE: &str = "DOORBELL_CMA";

/// In the header page of an inbox: where to probe, and what is there.
#[repr(C, align(128))]
struct ReachWords {
    address: AtomicU64,
    nonce: AtomicU64,
    /// The descriptor by which the owner holds its inbox, and one more: zero is none.
    hold: AtomicU64,
}

const _: () = assert!(REACH_OFFSET >= DOORBELL_OFFSET + size_of::<Bell>() && REACH_OFFSET.is_multiple_of(128));
const _: () = assert!(REACH_OFFSET + size_of::<ReachWords>() <= HEADER_BYTES);

/// Publishes by which descriptor the inbox is held, so that others can see whose process it is.
///
/// # Safety
/// `header` is the page-aligned start of an inbox's header page, writable.
pub(crate) unsafe fn publish_hold(header: *mut u8, descriptor: i32) {
    // SAFETY: inside the page and aligned (constants); atomics allow other writers.
    let words = unsafe { &*header.add(REACH_OFFSET).cast::<ReachWords>() };
    words.hold.store(u64::try_from(descriptor + 1).unwrap_or_default(), Ordering::Relaxed);
}

/// The private word of a node that others probe, for as long as the node exists.
#[derive(Debug)]
pub(crate) struct Beacon {
    word: Box<AtomicU64>,
}

impl Beacon {
    pub fn new() -> Self {
        // Not zero: an inbox that publishes nothing must not match anything.
        Self { word: Box::new(AtomicU64::new(RandomState::new().build_hasher().finish() | 1)) }
    }

    /// Publishes where it is and what it holds.
    ///
    /// # Safety
    /// `header` is the page-aligned start of an inbox's header page, writable.
    pub unsafe fn publish(&self, header: *mut u8) {
        // SAFETY: inside the page and aligned (constants); atomics allow other writers.
        let words = unsafe { &*header.add(REACH_OFFSET).cast::<ReachWords>() };
        words.address.store((&raw const *self.word).expose_provenance() as u64, Ordering::Relaxed);
        words.nonce.store(self.word.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The peer is in this process: addresses are ours.
    Here,
    /// The peer's process, by a number that means it as long as its owner lives.
    Process(libc::pid_t),
}

/// A way into the private memory of one life of a peer. `Send` and `Sync`.
///
/// Reading is what it is for: a read that goes wrong harms only the reader. Between the question whether the peer lives and
/// the copy there is a moment in which it can die; a read is discarded then, but a write may, in theory, hit a later process
/// of the same number.
#[derive(Debug)]
pub struct Reach {
    way: Way,
    owner: Arc<Owner>,
    /// The millisecond in which the owner was last asked for.
    asked: AtomicU64,
}

impl Reach {
    /// Tries whether the memory of an inbox's owner can be read. `pid` is its process, if that number means something here;
    /// `None` with `here` false means that nothing can be tried.
    ///
    /// # Safety
    /// `header` is the page-aligned start of the inbox's header page, readable.
    pub(crate) unsafe fn probe(header: *const u8, owner: &Arc<Owner>, pid: Option<u32>, here: bool) -> Option<Self> {
        if std::env::var_os(VARIABLE).is_some_and(|word| word == "off") {
            return None;
        }
        if here {
            return Some(Self { way: Way::Here, owner: owner.clone(), asked: AtomicU64::new(0) });
        }
        let pid = libc::pid_t::try_from(pid?).ok().filter(|pid| *pid > 0)?;
        // SAFETY: inside the page and aligned (constants); atomics allow other writers.
        let words = unsafe { &*header.add(REACH_OFFSET).cast::<ReachWords>() };
        let (address, nonce) = (words.address.load(Ordering::Relaxed), words.nonce.load(Ordering::Relaxed));
        // The number of the process is what a node says. It must not be that of another: what is copied to it would land there.
        let hold = words.hold.load(Ordering::Relaxed).checked_sub(1).and_then(|hold| i32::try_from(hold).ok());
        if !hold.is_some_and(|hold| owner.is_process(pid, hold)) {
            tracing::debug!(pid, "it can't be seen that this process is the peer's; its data goes through the lanes");
            return None;
        }
        let reach = Self { way: Way::Process(pid), owner: owner.clone(), asked: AtomicU64::new(0) };
        let mut found = 0_u64;
        // SAFETY: eight writable bytes of ours; whatever the address is, the kernel reads there or refuses.
        let read = unsafe { reach.read(address, (&raw mut found).cast(), size_of::<u64>()) };
        match read {
            Ok(()) if found == nonce && nonce != 0 => Some(reach),
            Ok(()) => None,
            Err(error) => {
                tracing::debug!(pid, %error, "the private memory of this peer is out of reach; its data goes through the lanes");
                None
            }
        }
    }

    /// Whether the peer is in this process, so that its addresses are followed without the kernel's protection.
    pub fn is_here(&self) -> bool {
        self.way == Way::Here
    }

    /// Whether the first and the last of `len` bytes at `remote_addr` can be read: not all memory of a process can be, though its owner
    /// may read it (secret memory, that of devices), and none of a process whose first thread has ended. One system call.
    pub fn can_read(&self, remote_addr: u64, len: usize) -> bool {
        let ends = (remote_addr, len.checked_sub(1).and_then(|last| remote_addr.checked_add(last as u64)));
        match ends {
            (first, Some(last)) => self.can_read_bytes(&[first, last]),
            (_, None) => len == 0,
        }
    }

    /// Whether a byte of each page of `len` bytes at `remote_addr` can be read: tells whose memory it was that a copy failed at. A system
    /// call for every 64 pages.
    pub fn can_read_all(&self, remote_addr: u64, len: usize) -> bool {
        let Some(end) = remote_addr.checked_add(len as u64) else { return false };
        let page = |address: u64| address / PAGE as u64;
        let bytes: Vec<u64> =
            (page(remote_addr)..page(end.saturating_sub(1)) + 1).map(|at| remote_addr.max(at * PAGE as u64)).collect();
        len == 0 || bytes.chunks(64).all(|some| self.can_read_bytes(some))
    }

    /// Single bytes, 64 at most.
    fn can_read_bytes(&self, addresses: &[u64]) -> bool {
        let Way::Process(pid) = self.way else { return true };
        let mut bytes = [0_u8; 64];
        let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: addresses.len().min(bytes.len()) };
        let mut remote = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 }; 64];
        for (remote, at) in remote.iter_mut().zip(addresses) {
            let Ok(at) = address(*at) else { return false };
            remote.iov_base = std::ptr::without_provenance_mut(at);
        }
        // SAFETY: as many bytes of ours; the kernel checks the other addresses.
        let read =
            unsafe { libc::process_vm_readv(pid, &raw const local, 1, remote.as_ptr(), local.iov_len as libc::c_ulong, 0) };
        read == local.iov_len as isize
    }

    /// As [`read`](Self::read), but by the kernel also within one process: for a copy that its owner does not wait for, whose memory may be gone.
    ///
    /// # Safety
    /// `len` bytes are writable at `dst`.
    pub unsafe fn read_by_kernel(&self, remote_addr: u64, dst: *mut u8, len: usize) -> io::Result<()> {
        let Way::Here = self.way else {
            // SAFETY: caller.
            return unsafe { self.read(remote_addr, dst, len) };
        };
        transfer(remote_addr, dst, len, |local, remote| {
            // SAFETY: `local` lies within the caller's bytes; the kernel checks `remote`.
            unsafe { libc::process_vm_readv(libc::getpid(), local, 1, remote, 1, 0) }
        })
    }

    /// Copies `len` bytes from `remote_addr` of the peer. One system call for two GiB, two more before and after to ask
    /// whether it is still the peer. Does not wait for the peer; thread-safe.
    ///
    /// # Errors
    /// What the system says: `EFAULT` if the peer has no such memory, or `dst` can't be written, `EPERM` if access is no longer allowed, `ESRCH` if the
    /// peer died, during the copy at the latest. After an error `dst` may hold anything.
    ///
    /// # Safety
    /// `dst` is the start of `len` bytes of this process that may be written and that nobody else uses meanwhile. If the peer
    /// is in this process (in a heap space), `remote_addr` is an exposed address of `len` readable bytes.
    pub unsafe fn read(&self, remote_addr: u64, dst: *mut u8, len: usize) -> io::Result<()> {
        self.owner_lives()?;
        fault_point!("cma.copying");
        match self.way {
            // SAFETY: caller. The two may be one buffer.
            Way::Here => unsafe { std::ptr::copy(std::ptr::with_exposed_provenance(address(remote_addr)?), dst, len) },
            Way::Process(pid) => self.noted(transfer(remote_addr, dst, len, |local, remote| {
                // SAFETY: `local` lies within the caller's bytes; the kernel checks `remote`.
                unsafe { libc::process_vm_readv(pid, local, 1, remote, 1, 0) }
            }))?,
        }
        fault_point!("cma.copied");
        self.owner_lives()
    }

    /// Copies `len` bytes to `remote_addr` of the peer. As [`read`](Self::read), the other way.
    ///
    /// # Errors
    /// As [`read`](Self::read). After an error any part may have been written.
    ///
    /// # Safety
    /// `src` is the start of `len` readable bytes. The peer has asked for bytes to be written at `remote_addr`, and keeps
    /// them for this until it has been told that it is done. If it is in this process, the address is exposed.
    pub unsafe fn write(&self, remote_addr: u64, src: *const u8, len: usize) -> io::Result<()> {
        self.owner_lives()?;
        fault_point!("cma.copying");
        match self.way {
            // SAFETY: caller. The two may be one buffer.
            Way::Here => unsafe { std::ptr::copy(src, std::ptr::with_exposed_provenance_mut(address(remote_addr)?), len) },
            Way::Process(pid) => self.noted(transfer(remote_addr, src.cast_mut(), len, |local, remote| {
                // SAFETY: the kernel reads from `local`, within the caller's bytes, and checks `remote`.
                unsafe { libc::process_vm_writev(pid, local, 1, remote, 1, 0) }
            }))?,
        }
        fault_point!("cma.copied");
        self.owner_lives()
    }

    /// A copy that failed may have failed because the owner died: then that is known from now on.
    fn noted(&self, result: io::Result<()>) -> io::Result<()> {
        result.inspect_err(|_| {
            self.owner.is_alive();
        })
    }

    /// Asks once a millisecond: within that nobody can end, be waited for, and have its number given to another, as numbers are given
    /// in turn.
    fn owner_lives(&self) -> io::Result<()> {
        static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
        let now = 1 + BEGAN.elapsed().as_millis() as u64;
        if self.asked.load(Ordering::Relaxed) == now && !self.owner.dead.load(Ordering::Acquire) {
            return Ok(());
        }
        self.asked.store(now, Ordering::Relaxed);
        if self.owner.is_alive() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
    }
}

/// What the kernel's copy costs beyond the copying itself, in picoseconds a byte: its checks, and each page looked up. Between 20
/// and 150 were seen, by what hooks a system has. Measured once a process, on its own memory, which takes some 100 µs.
pub fn toll() -> u64 {
    static TOLL: LazyLock<u64> = LazyLock::new(|| {
        const LEN: usize = 64 << 10;
        let (source, mut target) = (vec![1_u8; LEN], vec![2_u8; LEN]);
        let own = libc::pid_t::try_from(std::process::id()).unwrap_or_default();
        let mut best = [u128::MAX; 2];
        for _ in 0..4 {
            let began = Instant::now();
            let moved = transfer(source.as_ptr().expose_provenance() as u64, target.as_mut_ptr(), LEN, |local, remote| {
                // SAFETY: both lie within buffers of LEN bytes that live until the call is over.
                unsafe { libc::process_vm_readv(own, local, 1, remote, 1, 0) }
            });
            if moved.is_err() {
                return 0;
            }
            best[0] = best[0].min(began.elapsed().as_nanos());
            let began = Instant::now();
            std::hint::black_box(&mut target).copy_from_slice(std::hint::black_box(&source));
            best[1] = best[1].min(began.elapsed().as_nanos());
        }
        u64::try_from(best[0].saturating_sub(best[1]) * 1000 / LEN as u128).unwrap_or_default()
    });
    *TOLL
}

fn address(remote: u64) -> io::Result<usize> {
    usize::try_from(remote).map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))
}

/// Repeats a call until it has moved everything: the kernel moves two GiB at most, and stops at pages that are not there.
fn transfer(
    remote: u64,
    local: *mut u8,
    len: usize,
    call: impl Fn(*const libc::iovec, *const libc::iovec) -> isize,
) -> io::Result<()> {
    let remote = address(remote)?;
    let mut done = 0;
    while done < len {
        let Some(at) = remote.checked_add(done) else { return Err(io::Error::from_raw_os_error(libc::EFAULT)) };
        let local = libc::iovec { iov_base: local.wrapping_add(done).cast(), iov_len: len - done };
        let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(at), iov_len: len - done };
        match call(&raw const local, &raw const remote) {
            moved @ 1.. => done += moved as usize,
            0 => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
            _ => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}
