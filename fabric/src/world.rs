//! The outside world, as the engine and its services see it: clock, randomness, sleeping, threads, and small files.
//!
//! The engine and its services use only these functions. A test can therefore [simulate] a world: its clock moves when it is
//! read or slept on, and its randomness comes from a seed. Whole nodes then run in one thread, in virtual time, in the same way
//! each time.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// How far reading the clock moves it in a simulated world, so that a loop that waits for a time ends.
const LOOK: Duration = Duration::from_micros(1);

/// The number of threads that simulate a world. While it is zero, a call of this module costs one load more than the call of
/// the standard library.
static SIMULATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// This thread's simulation: the time that has passed, and the state of the random numbers.
    static SIMULATED: Cell<Option<State>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct State {
    passed: Duration,
    random: u64,
}

/// The simulation of this thread's world, until this value is dropped. Not `Send`.
#[derive(Debug)]
pub struct Simulation(std::marker::PhantomData<*const ()>);

/// Simulates a world for the calling thread: all calls of this module in this thread see it. Other threads see the real world.
///
/// No thread can be started in it. Its time begins at the moment at which this process first simulated a world.
///
/// # Panics
/// The thread already simulates a world.
pub fn simulate(seed: u64) -> Simulation {
    assert!(SIMULATED.get().is_none(), "this thread simulates a world already");
    SIMULATED.set(Some(State { passed: Duration::ZERO, random: seed }));
    SIMULATIONS.fetch_add(1, Ordering::Relaxed);
    Simulation(std::marker::PhantomData)
}

impl Simulation {
    /// The time that has passed in this world.
    pub fn passed(&self) -> Duration {
        SIMULATED.get().map_or(Duration::ZERO, |state| state.passed)
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        pass(by);
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        SIMULATED.set(None);
        SIMULATIONS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Lets time pass if this thread simulates a world, and returns the time that has passed in all.
fn pass(by: Duration) -> Option<Duration> {
    if SIMULATIONS.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let mut state = SIMULATED.get()?;
    state.passed += by;
    SIMULATED.set(Some(state));
    Some(state.passed)
}

/// The beginning of all simulated worlds.
fn beginning() -> Instant {
    static BEGINNING: OnceLock<Instant> = OnceLock::new();
    *BEGINNING.get_or_init(Instant::now)
}

/// The time now.
#[inline]
pub fn now() -> Instant {
    pass(LOOK).map_or_else(Instant::now, |passed| beginning() + passed)
}

/// The time since a moment.
#[inline]
pub fn since(then: Instant) -> Duration {
    now().saturating_duration_since(then)
}

/// The time since 1970, by the system clock.
pub fn since_epoch() -> Duration {
    pass(LOOK).unwrap_or_else(|| SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default())
}

/// A random number that can't be predicted, except in a simulated world.
pub fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    match SIMULATED.get() {
        Some(state) if SIMULATIONS.load(Ordering::Relaxed) > 0 => {
            let random = state.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            SIMULATED.set(Some(State { random, ..state }));
            let mixed = (random ^ random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            mixed ^ mixed >> 31
        }
        _ => RandomState::new().hash_one(std::process::id()),
    }
}

/// Sleeps for `time`.
pub fn sleep(time: Duration) {
    if pass(time).is_none() {
        std::thread::sleep(time);
    }
}

/// Parks the calling thread until another one unparks it or the time is over.
pub fn park(time: Duration) {
    if pass(time).is_none() {
        std::thread::park_timeout(time);
    }
}

/// Lets another thread run.
#[inline]
pub fn yield_now() {
    if pass(LOOK).is_none() {
        std::thread::yield_now();
    }
}

/// How often the system gave the processor to another thread while the calling thread could have run on. `None`: the system does not
/// tell, or the thread has never lost the processor. It makes one system call.
pub fn switches() -> Option<u64> {
    if pass(LOOK).is_some() {
        // There is no other thread.
        return Some(1);
    }
    #[cfg(miri)]
    return None;
    #[cfg(not(miri))]
    {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
        // SAFETY: room for the record, which the kernel fills if it returns 0.
        let usage = unsafe { (libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) == 0).then(|| usage.assume_init()) };
        // Some systems count nothing.
        let usage = usage.filter(|usage| usage.ru_nvcsw + usage.ru_nivcsw > 0);
        usage.and_then(|usage| u64::try_from(usage.ru_nivcsw).ok())
    }
}

/// Whether a sleep of at most `most` is over because the world is simulated, in which nothing else could end it. For callers
/// that sleep in other ways.
#[inline]
pub fn has_slept(most: Duration) -> bool {
    pass(most).is_some()
}

/// Starts a thread.
///
/// # Errors
/// The system has no room for it, or the world is simulated and has only one thread.
pub fn spawn<T: Send + 'static>(name: &str, run: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    if pass(Duration::ZERO).is_some() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "a simulated world has one thread"));
    }
    std::thread::Builder::new().name(name.into()).spawn(run)
}

/// Reads a small file: at most `most` bytes of it. A simulated world has no files.
///
/// # Errors
/// The file can't be read, or is not a regular file.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    if pass(Duration::ZERO).is_some() {
        return Err(io::ErrorKind::NotFound.into());
    }
    // Checked before it is opened, because opening a pipe may wait for ever.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Replaces a whole file in one step, and makes its folder if necessary. A simulated world has no files.
///
/// # Errors
/// The file can't be written. Its former content is unchanged.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if pass(Duration::ZERO).is_some() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.map_or(Ok(()), std::fs::create_dir_all)?;
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(format!(".{}", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = std::fs::File::create(&temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&temporary, path));
    written.inspect_err(|_| drop(std::fs::remove_file(&temporary)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_passes_in_a_simulated_world_as_it_is_told() {
        let world = simulate(1);
        let began = now();
        sleep(Duration::from_secs(3600));
        park(Duration::from_secs(60));
        world.advance(Duration::from_secs(1));
        assert!(has_slept(Duration::from_secs(1)));
        let took = now() - began;
        assert!((Duration::from_secs(3662)..Duration::from_secs(3663)).contains(&took), "{took:?}");
        assert!(spawn("none", || ()).is_err());
        drop(world);
        assert!(!has_slept(Duration::from_secs(1)));
    }

    #[test]
    fn a_seed_gives_the_same_numbers_each_time() {
        let numbers = |seed| {
            let _world = simulate(seed);
            [0; 4].map(|_| random())
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        assert_ne!(random(), random());
    }

    #[test]
    fn other_threads_see_the_real_world() {
        let _world = simulate(1);
        sleep(Duration::from_secs(1 << 20));
        let there = std::thread::spawn(|| (now(), Instant::now())).join().unwrap();
        assert!(there.1 >= there.0);
    }
}
