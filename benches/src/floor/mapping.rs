//! The memory that the processes of a measurement share.

use super::copy::{Channel, ChannelControl, Slots};
use super::counter::CounterBarrier;
use super::gate::Gate;
use super::hop::HopWords;
use super::mutex::RobustMutex;
use super::pull::PullWords;
use super::ring::{Line, RingMemory};
use crate::contention::Counters;
use memmap2::{MmapOptions, MmapRaw};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::io;
use std::marker::PhantomData;
use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

const PAGE: usize = 4096;
const COMMON_BYTES: usize = PAGE;
const WORDS_BYTES: usize = PAGE;
const RING_BYTES: usize = size_of::<RingMemory>().next_multiple_of(PAGE);

const _: () = assert!(size_of::<Common>() <= COMMON_BYTES && size_of::<PairWords>() <= WORDS_BYTES);

/// The parameters of the memory, from which all offsets follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Pairs of processes.
    pub pairs: usize,
    /// The length of the longest message.
    pub bytes: usize,
}

impl Shape {
    fn data_bytes(self) -> usize {
        Slots::room(self.bytes).max(PAGE).next_multiple_of(PAGE)
    }

    fn pair_bytes(self) -> usize {
        WORDS_BYTES + 2 * (RING_BYTES + size_of::<ChannelControl>() + self.data_bytes())
    }

    fn bytes(self) -> usize {
        COMMON_BYTES + self.pairs * self.pair_bytes()
    }
}

/// The part that all processes share.
#[repr(C)]
#[derive(Debug)]
pub struct Common {
    pub(super) gate: Gate,
    /// The mutex that they contend for, if they do.
    pub mutex: RobustMutex,
    /// Raised by the holder of that mutex.
    pub under_mutex: Counters,
    /// Raised by the holder of a lock of the driver.
    pub under_key: Counters,
    /// The floor of a team's barrier.
    pub barrier: CounterBarrier,
}

/// The single words that a pair shares.
#[repr(C)]
#[derive(Debug)]
pub struct PairWords {
    pub(super) hop: HopWords,
    /// From Ping, and from Pong.
    pub(super) pull: [PullWords; 2],
    /// The number of streams that arrived in full.
    pub(super) drained: Line,
}

/// The part that one pair of processes shares.
#[derive(Clone, Copy, Debug)]
pub struct PairMemory<'m> {
    pub(super) words: &'m PairWords,
    pub(super) there: WayMemory<'m>,
    pub(super) back: WayMemory<'m>,
}

/// One direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct WayMemory<'m> {
    pub ring: &'m RingMemory,
    pub channel: Channel<'m>,
}

/// Shared memory without a name. A process has it through the descriptor, and it disappears with the last descriptor.
#[derive(Debug)]
pub struct Mapping {
    map: MmapRaw,
    shape: Shape,
    file: OwnedFd,
}

impl Mapping {
    /// Creates zeroed memory. Child processes inherit the descriptor.
    ///
    /// # Errors
    /// The system has no such memory.
    pub fn create(shape: Shape) -> io::Result<Self> {
        let file = memfd_create("doorbell-floor", MFdFlags::empty())?;
        nix::unistd::ftruncate(&file, i64::try_from(shape.bytes()).map_err(io::Error::other)?)?;
        let mapping = Self::map(file, shape)?;
        mapping.common().mutex.init()?;
        Ok(mapping)
    }

    /// Maps the memory behind an inherited descriptor.
    ///
    /// # Errors
    /// It is not such memory, or it has another shape.
    ///
    /// # Safety
    /// Nothing else in this process owns the descriptor.
    pub unsafe fn inherit(descriptor: RawFd, shape: Shape) -> io::Result<Self> {
        // SAFETY: caller.
        let file = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let bytes = nix::sys::stat::fstat(&file)?.st_size;
        if usize::try_from(bytes) != Ok(shape.bytes()) {
            return Err(io::Error::other(format!("the inherited memory has {bytes} bytes, not {}", shape.bytes())));
        }
        Self::map(file, shape)
    }

    fn map(file: OwnedFd, shape: Shape) -> io::Result<Self> {
        let map = MmapOptions::new().len(shape.bytes()).map_raw(&file)?;
        Ok(Self { map, shape, file })
    }

    /// The descriptor, for children to inherit.
    pub fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// The gate at which all processes meet.
    pub fn gate(&self) -> &Gate {
        &self.common().gate
    }

    /// The part that all processes share.
    pub fn common(&self) -> &Common {
        self.at(0)
    }

    /// The part of the pair with this number.
    pub fn pair(&self, pair: usize) -> PairMemory<'_> {
        assert!(pair < self.shape.pairs);
        let words = COMMON_BYTES + pair * self.shape.pair_bytes();
        let there = words + WORDS_BYTES;
        let back = there + RING_BYTES + size_of::<ChannelControl>() + self.shape.data_bytes();
        PairMemory { words: self.at(words), there: self.way(there), back: self.way(back) }
    }

    fn way(&self, offset: usize) -> WayMemory<'_> {
        let control = offset + RING_BYTES;
        let data = control + size_of::<ChannelControl>();
        assert!(data + self.shape.data_bytes() <= self.map.len());
        let channel = Channel {
            control: self.at(control),
            // SAFETY: within the mapping, as just checked.
            data: unsafe { self.map.as_mut_ptr().add(data) },
            bytes: self.shape.data_bytes(),
            mapping: PhantomData,
        };
        WayMemory { ring: self.at(offset), channel }
    }

    fn at<T: Words>(&self, offset: usize) -> &T {
        assert!(offset.is_multiple_of(align_of::<T>()) && offset + size_of::<T>() <= self.map.len());
        // SAFETY: in bounds and aligned, as just checked (a mapping begins on a page), and mapped as long as `self` lives. Atomic
        // integers, and data that only the C library reads, are valid whatever the other process writes.
        unsafe { &*self.map.as_ptr().add(offset).cast() }
    }
}

/// Types made only of atomic integers and of data that only the C library reads.
///
/// # Safety
/// The implementation guarantees exactly that, apart from padding.
unsafe trait Words {}
// SAFETY: atomic words, and a mutex of the C library.
unsafe impl Words for Common {}
// SAFETY: lines, each an atomic word.
unsafe impl Words for PairWords {}
// SAFETY: slots of atomic words, and a line.
unsafe impl Words for RingMemory {}
// SAFETY: lines and sequence words.
unsafe impl Words for ChannelControl {}
