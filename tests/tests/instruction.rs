//! What `atomic!` is translated to in the end: the machine code of functions that do nothing but an update.

#![cfg(target_arch = "x86_64")]

use doorbell::atomic;
use doorbell::atomic::AtomicCell;

#[inline(never)]
extern "C" fn add(cell: &AtomicCell<u64>, by: u64) {
    atomic! { cell += by };
}

#[inline(never)]
extern "C" fn fetch_add(cell: &AtomicCell<u64>, by: u64) -> u64 {
    atomic! { old: cell += by }
}

#[inline(never)]
extern "C" fn or(cell: &AtomicCell<u64>, by: u64) {
    atomic! { cell |= by };
}

#[inline(never)]
extern "C" fn set(cell: &AtomicCell<u64>, by: u64) {
    atomic! { cell = by };
}

/// Code up to the return that ends it.
fn code(function: *const u8) -> Vec<u8> {
    const RETURN: u8 = 0xc3;
    let mut bytes = Vec::new();
    while bytes.last() != Some(&RETURN) {
        assert!(bytes.len() < 64, "no return: {bytes:02x?}");
        // SAFETY: code can be read, and the function has not returned before.
        bytes.push(unsafe { function.add(bytes.len()).read() });
    }
    bytes
}

#[test]
fn an_operator_is_one_instruction() {
    let cell = AtomicCell::new(1);
    add(&cell, 2);
    or(&cell, 4);
    assert_eq!((fetch_add(&cell, 1), atomic! { cell }), (7, 8));
    set(&cell, 3);
    assert_eq!(atomic! { cell }, 3);
    // lock add qword ptr [rdi], rsi; ret
    assert_eq!(code(add as *const u8), [0xf0, 0x48, 0x01, 0x37, 0xc3]);
    // lock or qword ptr [rdi], rsi; ret
    assert_eq!(code(or as *const u8), [0xf0, 0x48, 0x09, 0x37, 0xc3]);
    // mov qword ptr [rdi], rsi; ret
    assert_eq!(code(set as *const u8), [0x48, 0x89, 0x37, 0xc3]);
    // lock xadd qword ptr [rdi], rsi, with a mov before or behind it; ret
    let fetch = code(fetch_add as *const u8);
    assert!(fetch.windows(4).any(|code| code == [0xf0, 0x48, 0x0f, 0xc1]) && fetch.len() <= 9, "{fetch:02x?}");
}
