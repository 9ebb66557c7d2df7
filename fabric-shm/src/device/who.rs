//! The system's number of a thread, and whether that thread lives.

use crate::keys::OwnerId;
use std::cell::Cell;
use std::path::Path;

/// The system's thread numbers are smaller than this.
const NUMBERS_MOST: u32 = 1 << 22;

thread_local!(static ME: Cell<u64> = const { Cell::new(0) });

/// The system's numbers of the calling process and thread.
#[inline]
pub fn this_thread() -> u64 {
    match ME.get() {
        0 => {
            let numbers = if cfg!(miri) {
                1
            } else {
                let thread = rustix::thread::gettid().as_raw_nonzero().get();
                u64::from(std::process::id()) << 32 | thread as u64
            };
            ME.set(numbers);
            numbers
        }
        numbers => numbers,
    }
}

/// Whether a thread of this pid namespace has certainly ended, while its process lives. Makes one or two system calls.
#[cold]
pub fn has_ended(thread: u64) -> bool {
    if thread == 0 || cfg!(miri) {
        return false;
    }
    let tasks = format!("/proc/{}/task", thread >> 32);
    // If /proc does not show the process at all, nothing is known.
    Path::new(&tasks).exists() && !Path::new(&format!("{tasks}/{}", thread as u32)).exists()
}

/// Whether certainly no thread of a process of this pid namespace has a number that ends in these 19 bits. Makes some system
/// calls.
#[cold]
pub fn has_no_thread(pid: u32, number: u32) -> bool {
    if cfg!(miri) {
        return false;
    }
    let tasks = format!("/proc/{pid}/task");
    // If /proc does not show the process at all, nothing is known. Each number is asked for by name: a listing may miss living
    // threads while others end.
    let numbers = (0..NUMBERS_MOST / OwnerId::NUMBERS).map(|more| number % OwnerId::NUMBERS + more * OwnerId::NUMBERS);
    Path::new(&tasks).exists() && !numbers.into_iter().any(|number| Path::new(&format!("{tasks}/{number}")).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_known_by_the_end_of_its_number() {
        let me = this_thread() as u32;
        assert!(!has_no_thread(std::process::id(), me % OwnerId::NUMBERS));
        let other = std::thread::spawn(|| this_thread() as u32).join().unwrap();
        while !has_no_thread(std::process::id(), other) && !cfg!(miri) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_thread_ends() {
        assert!(!has_ended(this_thread()) && !has_ended(0));
        let other = std::thread::spawn(this_thread).join().unwrap();
        // After the join, the system may take a moment to forget the thread.
        while !has_ended(other) && !cfg!(miri) {
            std::thread::yield_now();
        }
    }
}
