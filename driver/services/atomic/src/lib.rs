//! The atomic service: updates of shared values, written as ordinary expressions and made atomic in the cheapest way that the
//! platform has. A program holds a value in an [`AtomicCell`], or opens a [`RemoteCell`] on an element of any node's region
//! with [`RemoteCell::open`]. Then it writes [`atomic!`](doorbell_macros::atomic)` { cell += 1 }`.
//!
//! The macro translates the update into an **instruction** if the platform has one for the operator and the type; else into a
//! **compare-and-swap** loop around a callback; else, for values larger than 16 bytes, into a callback under a **lock**. The
//! compiler knows which of the three it is ([`Operate::TIER`]), and `doorbell atomics` prints it.
//!
//! ```
//! use doorbell::atomic;
//! use doorbell::atomic::{AtomicCell, AtomicError};
//!
//! let count = AtomicCell::new(5_u64);
//! atomic! { count += 2 };
//! let before = atomic! { old: count -= 1 };
//! let after = atomic! { new: count = max(count, 100) };
//! let step = 3;
//! atomic! { count = (count + step) * 2 };
//! assert_eq!((before, after, atomic! { count }), (7, 100, 206));
//!
//! // A callback may decline, and attempts may be limited.
//! let declined = atomic! { old: count -= 1000 if count >= 1000 };
//! assert_eq!(declined, Err(AtomicError::Declined));
//! assert_eq!(atomic! { attempts(3), relaxed: count += 1 }, Ok(()));
//! ```
//!
//! # What may be written
//! - `cell OP= x` with each of `+ - * / % & | ^ << >>`; `cell = x`; `cell = max(cell, x)` and `min`, as functions or methods;
//!   `cell = cell OP x`, which is the same as `cell OP= x`. The operand is evaluated once, before the update. Macro calls in
//!   the operand are not translated: in `cell = cell + mac!(cell)` the second `cell` is the cell itself, not its value.
//! - `cell = EXPRESSION`, in which the cell stands for its value. The expression is evaluated at each attempt, so it should
//!   have no other effects. It can't leave the update by `?`, `return` or `break`, bind the cell's name again, or use it in a
//!   macro call.
//! - Any of these followed by ` if CONDITION`: the update takes place if the condition holds for the value, and is declined if
//!   not.
//! - `cell` alone, which reads the value.
//! - Before a colon: `old` or `new` for the value before or after; an ordering; `attempts(n)`, which is
//!   [`AtomicError::NoAttempt`] if `n` is 0.
//!
//! The cell can be any expression: a variable, a field, an element, a call. Use [`AtomicCell`] for private memory and for a
//! region of this node, and [`RemoteCell`] for a region of any node.
//!
//! # What an update returns
//! An update of an [`AtomicCell`] returns the requested value, or `()`. With `if` or `attempts` it returns a `Result` with
//! [`AtomicError`]. A [`RemoteCell`] may be out of reach, so it always returns a `Result` with
//! [`Error`](doorbell_engine::Error).
//!
//! # Ordering
//! An update is `acq_rel` by default: a thread that reads its result also sees what was written before it. A read is `acquire`,
//! and `cell = x` that returns nothing is `release`. `relaxed` orders only the cell itself. All `seq_cst` updates have one
//! order. A lock orders at least like `acq_rel`.
//!
//! # Values
//! See [`AtomicValue`]. Updates of one type by different tiers see each other: an instruction and a compare-and-swap on one
//! word never miss one another, and if a type needs a lock, every update takes it.
//!
//! ```
//! use doorbell::atomic::{AtomicCell, AtomicValue, Tier, tier};
//! use doorbell::atomic;
//! use zerocopy::{FromBytes, Immutable, IntoBytes};
//!
//! #[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable, AtomicValue)]
//! #[repr(C)]
//! struct Range {
//!     low: i32,
//!     high: i32,
//! }
//!
//! let seen = AtomicCell::new(Range { low: i32::MAX, high: i32::MIN });
//! for sample in [3, -7, 5] {
//!     atomic! { seen = Range { low: seen.low.min(sample), high: seen.high.max(sample) } };
//! }
//! assert_eq!(atomic! { seen }, Range { low: -7, high: 5 });
//! const { assert!(matches!(tier::<Range>(), Tier::CompareAndSwap)) };
//! ```
//!
//! # In shared memory
//! ```
//! use doorbell::atomic::{AtomicCell, RemoteCell};
//! use doorbell::{Node, Space, atomic};
//! # fn main() -> Result<(), doorbell::Error> {
//! # let space = Space::heap();
//! # let owner = Node::builder("tally").space(space.clone()).join()?;
//! # let other = Node::builder("tally").space(space).join()?;
//! let region = owner.region::<u64>(8)?;
//! let remote = RemoteCell::open(&other, region.key().at(3))?;
//! let own = AtomicCell::at(&region, 3)?;
//! atomic! { own += 1 };
//! assert_eq!(atomic! { old: remote += 1 }?, 1);
//! assert_eq!(atomic! { own }, 2);
//! # Ok(())
//! # }
//! ```

// Generated code names the crate `doorbell`, which programs use.
#[cfg(test)]
extern crate self as doorbell;
#[cfg(test)]
use crate as atomic;

mod cell;
mod code;
mod codes;
mod error;
mod form;
mod operate;
mod place;
mod remote;
mod started;
mod table;
mod tier;
mod value;
mod word;

pub use cell::{AtomicCell, BySwap};
pub use doorbell_macros::AtomicValue;
pub use error::AtomicError;
pub use form::{Form, UnderLock, tier};
#[doc(hidden)]
pub use form::{FormFor, Room, locked_words, word_bytes};
#[doc(hidden)]
pub use operate::OrderedWith;
pub use operate::{Operate, op};
#[doc(hidden)]
pub use place::apply;
pub use place::{New, Nothing, Old, Place, Want, attempt, load, operate, update};
pub use remote::RemoteCell;
pub use table::{Row, TABLE};
pub use tier::Tier;
pub use value::{Atom, AtomicValue, ByLock, Element, Offset};
#[doc(hidden)]
pub use value::{plain_from_word, plain_into_word, read_plain, write_plain};
pub use word::Word;

#[cfg(test)]
mod tests;
