//! Peers with a C interface: a library made of `c/loops.h` and the file that includes it.

use crate::collective::{Calls, elements};
use crate::order::{Player, Work};
use crate::place::Place;
use crate::transport::{BATCH, Fault, Result, Setup, Transport};
use doorbell_benches::exchange::{Part, Section, Side};
use doorbell_benches::memory::Memory;
use doorbell_benches::stream::Flow;
use libloading::{Library, Symbol};
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::ptr::{NonNull, null_mut};

/// The size of the text that explains a failure.
const WHY_BYTES: usize = 512;

#[repr(C)]
struct Why([u8; WHY_BYTES]);

impl Why {
    fn new() -> Self {
        Self([0; WHY_BYTES])
    }

    fn text(&self) -> String {
        let text = CStr::from_bytes_until_nul(&self.0).map(CStr::to_string_lossy).unwrap_or_default();
        if text.is_empty() { "the library gave no reason".into() } else { text.into_owned() }
    }
}

impl From<Why> for Fault {
    fn from(why: Why) -> Self {
        why.text().into()
    }
}

type Swap = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_void, usize, *mut c_void, usize) -> c_long;

type Start = unsafe extern "C" fn(*mut c_void, c_int, *mut u8, usize, *mut Why) -> c_int;
type Finish = unsafe extern "C" fn(*mut c_void, c_int, *mut Why) -> c_int;

#[repr(C)]
struct RawSetup {
    node: c_int,
    crowded: c_int,
    work: c_int,
    window: c_int,
    helped: c_int,
    bytes: usize,
    context: *mut c_void,
    swap: Swap,
}

#[repr(C)]
struct RawSection {
    part: c_int,
    touched: c_int,
    bytes: usize,
    warmup: usize,
    count: usize,
    sends: usize,
    receives: usize,
    window: usize,
    source: *mut u8,
    target: *mut u8,
    sources: *const *mut u8,
    targets: *const *mut u8,
    samples: *mut u64,
}

const PING: c_int = 0;
const PONG: c_int = 1;
const POUR: c_int = 2;
const DRAIN: c_int = 3;
const STREAM: c_int = 4;
const BARRIER: c_int = 5;
const ALLREDUCE: c_int = 6;
const BROADCAST: c_int = 7;
const COMPUTING: c_int = 8;
const POUR_BATCHES: c_int = 9;
const DRAIN_BATCHES: c_int = 10;

const MESSAGES: c_int = 0;
const PUTS: c_int = 1;
const ACTIVE: c_int = 2;
const IN_PLACE: c_int = 3;

const SEND: c_int = 0;
const RECEIVE: c_int = 1;
const PUT: c_int = 2;

/// Memory for a window of messages, and the start of each.
#[derive(Debug, Default)]
struct Window {
    memory: Vec<Memory>,
    starts: Vec<*mut u8>,
}

impl Window {
    fn new(window: usize, bytes: usize) -> Result<Self> {
        let mut memory = (0..window).map(|_| Memory::private(bytes)).collect::<std::io::Result<Vec<_>>>()?;
        let starts = memory.iter_mut().map(|message| message.as_mut_ptr()).collect();
        Ok(Self { memory, starts })
    }

    /// The length of a message.
    fn bytes(&self) -> usize {
        self.memory.first().map_or(0, |message| message.len())
    }
}

/// A peer behind a library.
#[derive(Debug)]
pub struct Foreign {
    peer: NonNull<c_void>,
    library: Library,
    source: Memory,
    target: Memory,
    sources: Window,
    targets: Window,
    window: usize,
    work: Work,
    start: Start,
    finish: Finish,
}

impl Foreign {
    fn transfer(&self) -> c_int {
        match self.work {
            Work::SendOverlap => SEND,
            Work::ReceiveOverlap => RECEIVE,
            _ => PUT,
        }
    }

    /// Plays a part of a section between the two buffers. There is a sample for each round trip of [`PING`].
    fn section(&mut self, part: c_int, section: Section, samples: &mut [u64]) -> Result<()> {
        let Section { bytes, warmup, count, touched } = section;
        let raw = RawSection {
            part,
            touched: touched.into(),
            bytes,
            warmup,
            count,
            sends: 0,
            receives: 0,
            window: 0,
            source: self.source.as_mut_ptr(),
            target: self.target.as_mut_ptr(),
            sources: null_mut(),
            targets: null_mut(),
            samples: samples.as_mut_ptr(),
        };
        self.call(&raw)
    }

    fn call(&self, section: &RawSection) -> Result<()> {
        let mut why = Why::new();
        // SAFETY: the type is that in `loops.h`.
        let play: Symbol<'_, unsafe extern "C" fn(*mut c_void, *const RawSection, *mut Why) -> c_int> =
            unsafe { self.library.get(b"peer_play")? };
        // SAFETY: the peer is open, and the caller that made the section vouches for its pointers.
        match unsafe { play(self.peer.as_ptr(), section, &mut why) } {
            0 => Ok(()),
            _ => Err(why.into()),
        }
    }
}

/// Called by the library while it opens; `context` is the `Place`.
unsafe extern "C" fn swap(
    context: *mut c_void,
    name: *const c_char,
    mine: *const c_void,
    bytes: usize,
    theirs: *mut c_void,
    room: usize,
) -> c_long {
    // SAFETY: `open` passed a place that lives until `peer_open` returns; the library vouches for the rest.
    let (place, name, mine) = unsafe {
        let place = &*context.cast::<Place>();
        (place, CStr::from_ptr(name).to_string_lossy(), std::slice::from_raw_parts(mine.cast::<u8>(), bytes))
    };
    match place.swap(&name, mine) {
        Ok(found) if found.len() <= room => {
            // SAFETY: the library guarantees that it fits.
            unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), theirs.cast(), found.len()) };
            found.len() as c_long
        }
        _ => -1,
    }
}

impl Transport for Foreign {
    fn open(setup: &Setup<'_>) -> Result<Self> {
        let order = setup.order;
        let Player::Library(path) = &order.player else { return Err("the order names no library".into()) };
        // SAFETY: it was built from the files beside this one.
        let library = unsafe { Library::new(path) }.map_err(|error| format!("could not load {}: {error}", path.display()))?;
        let raw = RawSetup {
            node: setup.node as c_int,
            crowded: order.crowded().into(),
            work: match order.work {
                Work::Handler | Work::Batch if order.active => IN_PLACE,
                _ if order.active => ACTIVE,
                work if work.puts() => PUTS,
                _ => MESSAGES,
            },
            window: order.window as c_int,
            helped: (order.helped && setup.side() == Side::Ping).into(),
            bytes: order.bytes(),
            context: std::ptr::from_ref(setup.place).cast_mut().cast(),
            swap,
        };
        let mut why = Why::new();
        // SAFETY: the type is that in `loops.h`, and everything that the setup points to lives until the call returns.
        let peer = unsafe {
            let open: Symbol<'_, unsafe extern "C" fn(*const RawSetup, *mut Why) -> *mut c_void> = library.get(b"peer_open")?;
            open(&raw, &mut why)
        };
        let peer = NonNull::new(peer).ok_or_else(|| why.text())?;
        // SAFETY: the types are those in `loops.h`.
        let (start, finish) = unsafe { (*library.get::<Start>(b"peer_start")?, *library.get::<Finish>(b"peer_finish")?) };
        let bytes = match order.work {
            work if work.is_stream() => 0,
            Work::Batch => BATCH * order.bytes(),
            _ => order.bytes(),
        };
        let back = if order.work.is_collective() { 0 } else { bytes };
        let (source, target) = (Memory::private(bytes)?, Memory::private(back)?);
        let (sources, targets) = Default::default();
        Ok(Self { peer, library, source, target, sources, targets, window: order.window, work: order.work, start, finish })
    }

    fn version(&self) -> String {
        let mut text = Why::new();
        // SAFETY: the type is that in `loops.h`.
        match unsafe { self.library.get::<unsafe extern "C" fn(*mut Why)>(b"peer_version") } {
            Ok(version) => {
                // SAFETY: as above.
                unsafe { version(&mut text) };
                text.text()
            }
            Err(_) => "unknown".into(),
        }
    }

    fn play(&mut self, part: Part<'_>, section: Section) -> Result<()> {
        let mut ticks = vec![0; if matches!(part, Part::Ping(_)) { section.warmup + section.count } else { 0 }];
        let number = match part {
            Part::Ping(_) => PING,
            Part::Pong => PONG,
            Part::Pour => POUR,
            Part::Drain => DRAIN,
        };
        self.section(number, section, &mut ticks)?;
        if let Part::Ping(samples) = part {
            samples.extend(&ticks[section.warmup..]);
        }
        Ok(())
    }

    fn batches(&mut self, side: Side, section: Section) -> Result<()> {
        self.section(if side == Side::Ping { POUR_BATCHES } else { DRAIN_BATCHES }, section, &mut [])
    }

    fn stream(&mut self, bytes: usize, flow: Flow) -> Result<()> {
        if self.sources.bytes() != bytes {
            self.sources = Window::new(self.window, bytes)?;
            self.targets = Window::new(self.window, bytes)?;
        }
        self.call(&RawSection {
            part: STREAM,
            touched: flow.touched.into(),
            bytes,
            warmup: 0,
            count: 0,
            sends: flow.sends,
            receives: flow.receives,
            window: self.window,
            source: null_mut(),
            target: null_mut(),
            sources: self.sources.starts.as_ptr(),
            targets: self.targets.starts.as_ptr(),
            samples: null_mut(),
        })
    }

    fn memory(&mut self) -> Result<&mut [u8]> {
        Ok(if self.work == Work::ReceiveOverlap { &mut self.target } else { &mut self.source })
    }

    fn start(&mut self) -> Result<()> {
        let transfer = self.transfer();
        let memory = self.memory()?;
        let (memory, bytes) = (memory.as_mut_ptr(), memory.len());
        let mut why = Why::new();
        // SAFETY: the peer is open. The memory lives as long as the peer, and nothing uses it before `finish`.
        match unsafe { (self.start)(self.peer.as_ptr(), transfer, memory, bytes, &mut why) } {
            0 => Ok(()),
            _ => Err(why.into()),
        }
    }

    fn finish(&mut self) -> Result<()> {
        let mut why = Why::new();
        // SAFETY: the peer is open, and a transfer is under way.
        match unsafe { (self.finish)(self.peer.as_ptr(), self.transfer(), &mut why) } {
            0 => Ok(()),
            _ => Err(why.into()),
        }
    }

    fn collect(&mut self, calls: Calls) -> Result<u64> {
        let Calls { work, bytes, warmup, count, touched, .. } = calls;
        let mut ticks = 0;
        calls.prepare(elements(&mut self.source, bytes)?);
        let raw = RawSection {
            part: match work {
                Work::Barrier => BARRIER,
                Work::Allreduce => ALLREDUCE,
                Work::Broadcast => BROADCAST,
                Work::Computing => COMPUTING,
                work => return Err(format!("{work:?} is not a collective").into()),
            },
            touched: touched.into(),
            bytes,
            warmup,
            count,
            sends: 0,
            receives: 0,
            window: 0,
            source: self.source.as_mut_ptr(),
            target: null_mut(),
            sources: null_mut(),
            targets: null_mut(),
            samples: &mut ticks,
        };
        self.call(&raw)?;
        calls.check(elements(&mut self.source, bytes)?)?;
        Ok(ticks)
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: the type is that in `loops.h`, and nothing uses the peer afterwards.
        if let Ok(close) = unsafe { self.library.get::<unsafe extern "C" fn(*mut c_void)>(b"peer_close") } {
            // SAFETY: as above.
            unsafe { close(self.peer.as_ptr()) };
        }
    }
}
