//! The machine code of `atomic!`: functions that do nothing but one update.
#![cfg(all(feature = "atomic", target_arch = "x86_64"))]

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

/// A function that does nothing. Its length shows whether this build inlines.
#[inline(never)]
extern "C" fn same(by: u64) -> u64 {
    std::convert::identity(by)
}

/// A move, a return, and the instructions that a compiler may add for debuggers and against attackers.
const SHORT: usize = 13;

/// Code up to the return that ends it.
fn code(function: *const u8) -> Vec<u8> {
    const RETURN: u8 = 0xc3;
    let mut bytes = Vec::new();
    while bytes.last() != Some(&RETURN) {
        if bytes.len() == 64 {
            break;
        }
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
    set(&cell, same(3));
    assert_eq!(atomic! { cell }, 3);
    if code(same as *const u8).len() > SHORT {
        println!("skipped: nothing is inlined in this build");
        return;
    }
    let has = |function: *const u8, instruction: &[u8]| {
        let code = code(function);
        assert!(code.windows(instruction.len()).any(|part| part == instruction), "no {instruction:02x?} in {code:02x?}");
        // Nothing is called, and nothing is tried again.
        assert!(code.len() <= instruction.len() + SHORT, "{code:02x?}");
    };
    // lock add qword ptr [rdi], rsi
    has(add as *const u8, &[0xf0, 0x48, 0x01, 0x37]);
    // lock or qword ptr [rdi], rsi
    has(or as *const u8, &[0xf0, 0x48, 0x09, 0x37]);
    // mov qword ptr [rdi], rsi
    has(set as *const u8, &[0x48, 0x89, 0x37]);
    // lock xadd, of a qword
    has(fetch_add as *const u8, &[0xf0, 0x48, 0x0f, 0xc1]);
}
