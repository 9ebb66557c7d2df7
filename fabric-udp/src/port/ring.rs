//! The ring of io_uring, and the places it puts datagrams into. All that is unsafe about them is here.
//!
//! The places are given to the kernel by way of a second ring, of plain provided buffers: the incremental kind truncates datagrams. A place
//! is the kernel's from [`give_back`](Ring::give_back) until a completion names it, and ours from there on.

use super::calls::{Arrival, NAME_ROOM, PAYLOAD_AT, PAYLOAD_BYTES, Place, places};
use super::notation::{CONTROL_BYTES, Name, Remarks};
use super::uring::UringError;
use io_uring::types::{BufRingEntry, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::Duration;

/// Places for datagrams, of 68 KiB each; they cost memory as they are used. A power of two.
pub const PLACES: usize = 64;
const ENTRIES: u32 = 64;
/// Completions that wait to be looked at. The kernel keeps more, but slowly.
const COMPLETIONS: u32 = 512;
const GROUP: u16 = 0;
/// FUTEX2_SIZE_U32, without FUTEX2_PRIVATE: the word may be shared.
const FUTEX_WORD: u32 = 2;

#[repr(C, align(4096))]
struct Supply([BufRingEntry; PLACES]);

/// A ring for one thread: the one that first submits something.
pub struct Ring {
    ring: IoUring,
    /// None if datagrams stay in the socket.
    supply: Option<Box<Supply>>,
    places: Box<[Place]>,
    /// Entries put into the supply, in all; it wraps.
    supplied: u16,
    /// What the kernel reads when a receive is armed: how much of a place is for what.
    message: Box<libc::msghdr>,
    enabled: bool,
}

// SAFETY: the pointers are into the ring's own mappings and boxes; what is bound to a thread is the right to submit, which the kernel checks.
unsafe impl Send for Ring {}

/// Something came to its end, or brought something.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    pub tag: u64,
    pub result: i32,
    /// The place with the datagram.
    pub place: Option<u16>,
    /// Whether the same request will bring more.
    pub more: bool,
}

impl Ring {
    /// A ring that nobody has used, with or without places.
    pub fn new(with_places: bool) -> Result<Self, UringError> {
        let ring = set_up()?;
        let mut probe = Probe::new();
        ring.submitter()
            .register_probe(&mut probe)
            .map_err(|source| UringError::System { attempt: "ask what it can do", source })?;
        // Later than all the others that are needed: receiving several messages by one request came with Linux 6.0.
        if !probe.is_supported(opcode::FutexWait::CODE) {
            return Err(UringError::TooOld);
        }
        // SAFETY: integers and pointers, for which zero is a value.
        let mut message: Box<libc::msghdr> = Box::new(unsafe { std::mem::zeroed() });
        message.msg_namelen = NAME_ROOM as u32;
        message.msg_controllen = CONTROL_BYTES;
        let mut ring = Self { ring, supply: None, places: places(0), supplied: 0, message, enabled: false };
        if with_places {
            // SAFETY: entries are integers, for which zero is a value.
            let supply: Box<Supply> = Box::new(unsafe { std::mem::zeroed() });
            // SAFETY: the supply has as many entries as is said, lies on a page of its own, and is freed only after the ring is closed
            // (`drop`).
            unsafe { ring.ring.submitter().register_buf_ring_with_flags(supply.0.as_ptr() as u64, PLACES as u16, GROUP, 0) }
                .map_err(|source| UringError::System { attempt: "give it buffers", source })?;
            ring.supply = Some(supply);
            ring.places = places(PLACES);
            (0..PLACES as u16).for_each(|place| ring.give_back(place));
        }
        Ok(ring)
    }

    /// Gives a place to the kernel, for another datagram.
    pub fn give_back(&mut self, place: u16) {
        let Some(supply) = &mut self.supply else { return };
        let memory = &raw mut self.places[usize::from(place)];
        let entry = &mut supply.0[usize::from(self.supplied) % PLACES];
        entry.set_addr(memory as u64);
        entry.set_len((PAYLOAD_AT + PAYLOAD_BYTES) as u32);
        entry.set_bid(place);
        self.supplied = self.supplied.wrapping_add(1);
        // SAFETY: the tail is a word within the first entry, aligned, and read by the kernel; atomic, so that the entry is seen first.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(supply.0.as_ptr()).cast_mut()) };
        tail.store(self.supplied, Ordering::Release);
    }

    /// The datagram that a completion brought, and the place it lies in, which is ours until it is given back.
    pub fn arrived(&mut self, place: u16, bytes: u32) -> Option<(&mut Place, Arrival)> {
        let place = self.places.get_mut(usize::from(place))?;
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| place.found[at + i])) as usize;
        let (name, control, payload, flags) = (word(0), word(4), word(8), word(12));
        let arrival = Arrival {
            peer: Name::read(&place.name[..name.min(NAME_ROOM)]),
            bytes: payload.min((bytes as usize).saturating_sub(PAYLOAD_AT)).min(PAYLOAD_BYTES),
            remarks: Remarks::read(&place.control[..control.min(CONTROL_BYTES)]),
            truncated: flags as i32 & libc::MSG_TRUNC != 0,
        };
        Some((place, arrival))
    }

    /// Prepares to receive whatever comes into the places.
    pub fn arm_receive(&mut self, socket: BorrowedFd<'_>, tag: u64) -> io::Result<()> {
        debug_assert!(self.supply.is_some());
        let entry = opcode::RecvMsgMulti::new(Fd(socket.as_raw_fd()), &*self.message, GROUP).build();
        // SAFETY: the message is a box of the ring's, which lives until the request has ended; so do the places (`drop`).
        unsafe { self.push(entry.user_data(tag)) }
    }

    /// Prepares to be told of events of a descriptor, once or each time.
    pub fn arm_poll(&mut self, descriptor: BorrowedFd<'_>, events: i16, each_time: bool, tag: u64) -> io::Result<()> {
        let entry = opcode::PollAdd::new(Fd(descriptor.as_raw_fd()), events as u32).multi(each_time).build();
        // SAFETY: names no memory.
        unsafe { self.push(entry.user_data(tag)) }
    }

    /// Prepares to be told when somebody wakes the sleepers of a word, or at once if it does not say what is expected.
    pub fn arm_bell(&mut self, bell: &AtomicU32, expected: u32, tag: u64) -> io::Result<()> {
        let entry = opcode::FutexWait::new(bell.as_ptr(), u64::from(expected), u64::from(u32::MAX), FUTEX_WORD).build();
        // SAFETY: the kernel checks the address and only reads there, and only when the request is submitted.
        unsafe { self.push(entry.user_data(tag)) }
    }

    /// Prepares to end a request. Its end is a completion of its own.
    pub fn cancel(&mut self, request: u64, tag: u64) -> io::Result<()> {
        let entry = opcode::AsyncCancel::new(request).build().flags(squeue::Flags::SKIP_SUCCESS);
        // SAFETY: names no memory.
        unsafe { self.push(entry.user_data(tag)) }
    }

    /// Queues a request.
    ///
    /// # Safety
    /// The memory it names lives until the request has ended.
    unsafe fn push(&mut self, entry: squeue::Entry) -> io::Result<()> {
        // SAFETY: says the caller.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.submit(0)?;
        }
        Ok(())
    }

    /// Hands over what was prepared, and waits for so many completions, until the time is over, or until a signal comes. Which of these it
    /// was the kernel does not say to those who handed something over.
    pub fn wait(&mut self, want: usize, timeout: Duration) -> io::Result<()> {
        self.enable()?;
        let time = Timespec::from(timeout.min(Duration::from_secs(1 << 30)));
        match self.ring.submitter().submit_with_args(want, &SubmitArgs::new().timespec(&time)) {
            Ok(_) => Ok(()),
            // EBUSY: completions have to be looked at first.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Hands over what was prepared, and waits for so many completions.
    pub fn submit(&mut self, want: usize) -> io::Result<()> {
        self.enable()?;
        match self.ring.submit_and_wait(want) {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EBUSY)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether something waits to be handed over.
    pub fn is_prepared(&mut self) -> bool {
        !self.ring.submission().is_empty()
    }

    /// Whether the kernel has work for [`submit`](Self::submit) to do. No system call.
    #[inline(always)]
    pub fn has_work(&mut self) -> bool {
        let queue = self.ring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Whether there is a completion. No system call.
    #[inline(always)]
    pub fn has_completion(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// The next completion.
    pub fn take(&mut self) -> Option<Completion> {
        let entry = self.ring.completion().next()?;
        let flags = entry.flags();
        let place = cqueue::buffer_select(flags);
        Some(Completion { tag: entry.user_data(), result: entry.result(), place, more: cqueue::more(flags) })
    }

    /// Lets the places live for ever: a request that could not be ended may still write to them.
    pub fn abandon(&mut self) {
        std::mem::forget(std::mem::take(&mut self.places));
        let copy = self.message.clone();
        std::mem::forget(std::mem::replace(&mut self.message, copy));
    }

    /// From now on the ring is this thread's.
    fn enable(&mut self) -> io::Result<()> {
        if !self.enabled {
            self.ring.submitter().register_enable_rings()?;
            self.enabled = true;
        }
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The kernel holds on to the pages of the supply until it is told, or the ring is gone, which takes a while.
        let _ = self.ring.submitter().unregister_buf_ring(GROUP);
    }
}

/// With the best flags there are: completions are made when this thread asks for them, and a flag says that it is worth asking.
fn set_up() -> Result<IoUring, UringError> {
    let mut builder = IoUring::builder();
    // Disabled at first: the thread that enables it is the one that it is bound to.
    builder.setup_cqsize(COMPLETIONS).setup_r_disabled().setup_clamp().dontfork();
    let (mut middling, plain) = (builder.clone(), builder.clone());
    builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    middling.setup_coop_taskrun().setup_taskrun_flag();
    let mut refused = None;
    for builder in [builder, middling, plain] {
        match builder.build(ENTRIES) {
            Ok(ring) => return Ok(ring),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => refused = Some(error),
            Err(error) => return Err(UringError::of(error)),
        }
    }
    Err(UringError::of(refused.unwrap_or_else(io::Error::last_os_error)))
}
