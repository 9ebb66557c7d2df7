//! Access to the private memory of another process (`process_vm_readv`), with one copy and without that process's help.
//!
//! Whether the system allows it depends on users, namespaces, Yama and seccomp, so Doorbell tries it. Each node publishes in its
//! inbox the address and the value of a private word, and a peer that opens the inbox reads that word. Any other value means that
//! the system refuses access. This crate never asks the system to lower a process's protection (`PR_SET_PTRACER`). A program that
//! wants access under Yama must do so itself.
//!
//! With `DOORBELL_CMA=off` in the environment every probe reports a refusal. This serves measurements and tests.

use crate::domain::Owner;
use crate::doorbell::Bell;
use crate::layout::{DOORBELL_OFFSET, HEADER_BYTES, PAGE, REACH_OFFSET, random};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

/// The environment variable that turns the access off.
pub const VARIABLE: &str = "DOORBELL_CMA";

/// The words in an inbox's header page that say where to probe and which value to expect.
#[repr(C, align(128))]
struct ReachWords {
    address: AtomicU64,
    nonce: AtomicU64,
    /// The descriptor by which the owner holds its inbox, plus one; zero means none.
    hold: AtomicU64,
}

const _: () = assert!(REACH_OFFSET >= DOORBELL_OFFSET + size_of::<Bell>() && REACH_OFFSET.is_multiple_of(128));
const _: () = assert!(REACH_OFFSET + size_of::<ReachWords>() <= HEADER_BYTES);

/// Publishes the descriptor that holds the inbox, so that others can verify which process the inbox belongs to.
///
/// # Safety
/// `header` is the page-aligned start of an inbox's header page, writable.
pub(crate) unsafe fn publish_hold(header: *mut u8, descriptor: i32) {
    // SAFETY: inside the page and aligned (constants); atomics allow other writers.
    let words = unsafe { &*header.add(REACH_OFFSET).cast::<ReachWords>() };
    words.hold.store(u64::try_from(descriptor + 1).unwrap_or_default(), Ordering::Relaxed);
}

/// The private word of a node that others probe. It lives as long as the node.
#[derive(Debug)]
pub(crate) struct Beacon {
    word: Box<AtomicU64>,
}

impl Beacon {
    pub fn new() -> Self {
        // Never zero: an inbox that publishes nothing must match nothing.
        Self { word: Box::new(AtomicU64::new(random() | 1)) }
    }

    /// Publishes the word's address and value.
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
    /// The peer is in this process: its addresses are valid here.
    Here,
    /// The peer's process. The number denotes it as long as the owner lives.
    Process(libc::pid_t),
}

/// Access to the private memory of one incarnation of a peer. `Send` and `Sync`.
///
/// It is meant for reading: a failed read harms only the reader. The peer can die between the liveness check and the copy. A read
/// is then discarded, but a write may in theory hit a later process with the same number.
#[derive(Debug)]
pub struct Reach {
    way: Way,
    owner: Arc<Owner>,
    /// The millisecond of the latest liveness check.
    asked: AtomicU64,
}

impl Reach {
    /// Tries to read the memory of an inbox's owner. `pid` is its process, if that number is valid in this namespace. `None` with
    /// `here` false means that nothing can be tried.
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
        // The node itself states its process number. The number must not denote another process, because this process would write
        // there.
        let hold = words.hold.load(Ordering::Relaxed).checked_sub(1).and_then(|hold| i32::try_from(hold).ok());
        if !hold.is_some_and(|hold| owner.is_process(pid, hold)) {
            tracing::debug!(pid, "cannot verify that this process is the peer's; its data goes through the lanes");
            return None;
        }
        let reach = Self { way: Way::Process(pid), owner: owner.clone(), asked: AtomicU64::new(0) };
        let mut found = 0_u64;
        // SAFETY: eight writable bytes of this process; the kernel reads at the remote address or refuses.
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

    /// Whether the peer is in this process, so that copies use its addresses without the kernel's protection.
    pub fn is_here(&self) -> bool {
        self.way == Way::Here
    }

    /// Whether the first and the last of `len` bytes at `remote_addr` can be read. Some memory cannot be read although its owner
    /// may read it (secret memory, device memory), and nothing can be read of a process whose first thread has ended. One system
    /// call.
    pub fn can_read(&self, remote_addr: u64, len: usize) -> bool {
        let ends = (remote_addr, len.checked_sub(1).and_then(|last| remote_addr.checked_add(last as u64)));
        match ends {
            (first, Some(last)) => self.can_read_bytes(&[first, last]),
            (_, None) => len == 0,
        }
    }

    /// Whether one byte of each page of `len` bytes at `remote_addr` can be read. This tells which side's memory made a copy
    /// fail. One system call for every 64 pages.
    pub fn can_read_all(&self, remote_addr: u64, len: usize) -> bool {
        let Some(end) = remote_addr.checked_add(len as u64) else { return false };
        let page = |address: u64| address / PAGE as u64;
        let bytes: Vec<u64> =
            (page(remote_addr)..page(end.saturating_sub(1)) + 1).map(|at| remote_addr.max(at * PAGE as u64)).collect();
        len == 0 || bytes.chunks(64).all(|some| self.can_read_bytes(some))
    }

    /// Reads single bytes, 64 at most.
    fn can_read_bytes(&self, addresses: &[u64]) -> bool {
        let Way::Process(pid) = self.way else { return true };
        let mut bytes = [0_u8; 64];
        let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: addresses.len().min(bytes.len()) };
        let mut remote = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 1 }; 64];
        for (remote, at) in remote.iter_mut().zip(addresses) {
            let Ok(at) = address(*at) else { return false };
            remote.iov_base = std::ptr::without_provenance_mut(at);
        }
        // SAFETY: as many bytes of this function; the kernel checks the other addresses.
        let read =
            unsafe { libc::process_vm_readv(pid, &raw const local, 1, remote.as_ptr(), local.iov_len as libc::c_ulong, 0) };
        read == local.iov_len as isize
    }

    /// Like [`read`](Self::read), but uses the kernel even within one process. For a copy that the owner of the memory does not
    /// wait for, so that its memory may be gone.
    ///
    /// # Safety
    /// `len` bytes are writable at `dst`.
    pub unsafe fn read_by_kernel(&self, remote_addr: u64, dst: *mut u8, len: usize) -> io::Result<()> {
        let Way::Here = self.way else {
            // SAFETY: caller.
            return unsafe { self.read(remote_addr, dst, len) };
        };
        // SAFETY: the caller's bytes; the kernel checks the remote address.
        unsafe { transfer(own_pid(), remote_addr, dst, len, libc::process_vm_readv) }
    }

    /// Copies `len` bytes from `remote_addr` of the peer. Takes one system call for each two GiB, and two more to check before
    /// and after that it is still the same peer. Does not wait for the peer; thread-safe.
    ///
    /// # Errors
    /// The system's error: `EFAULT` if the peer has no such memory or `dst` cannot be written, `EPERM` if access is no longer
    /// allowed, `ESRCH` if the peer has died, at the latest during the copy. After an error `dst` may hold anything.
    ///
    /// # Safety
    /// `dst` is the start of `len` writable bytes of this process that nothing else uses meanwhile. If the peer is in this
    /// process (in a heap space), `remote_addr` is an exposed address of `len` readable bytes.
    pub unsafe fn read(&self, remote_addr: u64, dst: *mut u8, len: usize) -> io::Result<()> {
        // SAFETY: caller.
        unsafe { self.copy(remote_addr, dst, len, libc::process_vm_readv, |here| std::ptr::copy(here, dst, len)) }
    }

    /// Copies `len` bytes to `remote_addr` of the peer: [`read`](Self::read) in the other direction.
    ///
    /// # Errors
    /// The same as for [`read`](Self::read). After an error any part may have been written.
    ///
    /// # Safety
    /// `src` is the start of `len` readable bytes. The peer has asked for bytes at `remote_addr`, and keeps that memory until it
    /// learns that the copy is done. If the peer is in this process, the address is exposed.
    pub unsafe fn write(&self, remote_addr: u64, src: *const u8, len: usize) -> io::Result<()> {
        // SAFETY: caller.
        unsafe { self.copy(remote_addr, src.cast_mut(), len, libc::process_vm_writev, |here| std::ptr::copy(src, here, len)) }
    }

    /// Copies by the kernel's `call`, or by `here` if the peer is in this process. The two ranges may overlap then.
    ///
    /// # Safety
    /// `len` bytes at `local` may be used by `call`; otherwise as [`read`](Self::read) and [`write`](Self::write).
    unsafe fn copy(
        &self,
        remote_addr: u64,
        local: *mut u8,
        len: usize,
        call: VectoredCall,
        here: impl FnOnce(*mut u8),
    ) -> io::Result<()> {
        self.owner_lives()?;
        fault_point!("cma.copying");
        match self.way {
            Way::Here => here(std::ptr::with_exposed_provenance_mut(address(remote_addr)?)),
            Way::Process(pid) => {
                // SAFETY: caller; the kernel checks the remote address.
                let copied = unsafe { transfer(pid, remote_addr, local, len, call) };
                // After a failed copy, the owner may have died.
                let _ = copied.as_ref().map_err(|_| self.owner.is_alive());
                copied?;
            }
        }
        fault_point!("cma.copied");
        self.owner_lives()
    }

    /// Checks the owner at most once a millisecond. The kernel hands out process numbers in sequence, so within that time no
    /// process can end, be reaped, and have its number reused.
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

/// The cost of the kernel's copy beyond plain copying, in picoseconds a byte: its checks, and the lookup of each page. Values
/// between 20 and 150 were seen, depending on the system's hooks. Measured once a process on its own memory, which takes some 100
/// µs.
pub fn toll() -> u64 {
    static TOLL: LazyLock<u64> = LazyLock::new(|| {
        const LEN: usize = 64 << 10;
        let (source, mut target) = (vec![1_u8; LEN], vec![2_u8; LEN]);
        let mut best = [u128::MAX; 2];
        for _ in 0..4 {
            let began = Instant::now();
            let from = source.as_ptr().expose_provenance() as u64;
            // SAFETY: both ranges lie within buffers of LEN bytes that outlive the call.
            let moved = unsafe { transfer(own_pid(), from, target.as_mut_ptr(), LEN, libc::process_vm_readv) };
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

fn own_pid() -> libc::pid_t {
    libc::pid_t::try_from(std::process::id()).unwrap_or_default()
}

/// `process_vm_readv` or `process_vm_writev`.
type VectoredCall = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> isize;

/// Repeats a call until it has moved everything. The kernel moves two GiB at most, and stops at missing pages.
///
/// # Safety
/// `local` is the start of `len` bytes of this process that the call may use.
unsafe fn transfer(pid: libc::pid_t, remote: u64, local: *mut u8, len: usize, call: VectoredCall) -> io::Result<()> {
    let remote = address(remote)?;
    let mut done = 0;
    while done < len {
        let Some(at) = remote.checked_add(done) else { return Err(io::Error::from_raw_os_error(libc::EFAULT)) };
        let local = libc::iovec { iov_base: local.wrapping_add(done).cast(), iov_len: len - done };
        let remote = libc::iovec { iov_base: std::ptr::without_provenance_mut(at), iov_len: len - done };
        // SAFETY: `local` lies within the caller's bytes; the kernel checks `remote`.
        match unsafe { call(pid, &raw const local, 1, &raw const remote, 1, 0) } {
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
