//! The values that a cell can hold.

use super::codes::Kind;
use super::form::{Form, FormFor, Room, UnderLock, locked_words, word_bytes};
use super::word::Word;
pub use super::word::{plain_from_word, plain_into_word};
use doorbell_engine::Plain;
use std::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A value that a cell can hold: integers of 8 to 128 bits, `bool`, `f32`, `f64`, [`Offset`], and plain data by
/// `#[derive(AtomicValue)]`.
#[diagnostic::on_unimplemented(
    message = "a cell can't hold a `{Self}`",
    note = "it holds integers, bool, floats, Offset, and plain data by #[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, AtomicValue)] with the traits of zerocopy; instead of usize say u64, instead of a pointer Offset"
)]
pub trait AtomicValue: Copy + Send + 'static {
    /// The layout of the value in its cell.
    type Form: Form<Self>;
    #[doc(hidden)]
    const KIND: Kind = Kind::Bytes;

    /// Writes the value's bytes to the beginning of `bytes`, which is zeroed and long enough.
    #[doc(hidden)]
    fn write_bytes(self, bytes: &mut [u8]);

    /// Makes the value from its bytes, which may be anything. More bytes may follow them.
    #[doc(hidden)]
    fn from_bytes(bytes: &[u8]) -> Self;

    /// The value as a word of the same length or longer.
    #[doc(hidden)]
    fn into_word<W: Word>(self) -> W;

    /// Makes the value from a word, which may hold anything.
    #[doc(hidden)]
    fn from_word<W: Word>(word: W) -> Self;
}

/// Used by the output of `derive(AtomicValue)`.
#[doc(hidden)]
#[inline(always)]
pub fn write_plain<T: Plain>(value: &T, bytes: &mut [u8]) {
    bytes[..size_of::<T>()].copy_from_slice(value.as_bytes());
}

/// Used by the output of `derive(AtomicValue)`.
#[doc(hidden)]
#[inline(always)]
pub fn read_plain<T: Plain>(bytes: &[u8]) -> T {
    match T::read_from_prefix(bytes) {
        Ok((value, _)) => value,
        // A form is at least as long as its value.
        Err(_) => unreachable!("a form is too short"),
    }
}

/// A place in memory that nodes share, as a byte offset from the beginning of a region. An address would be meaningless to
/// another process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, FromBytes, IntoBytes, Immutable)]
#[repr(transparent)]
pub struct Offset(pub u64);

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "+{:#x}", self.0)
    }
}

macro_rules! plain_values {
    ($($kind:ident: $($value:ty)+;)+) => { $($(
        impl AtomicValue for $value {
            const KIND: Kind = Kind::$kind;
            type Form = <Room<{ word_bytes(size_of::<$value>()) }, { locked_words(size_of::<$value>()) }> as FormFor<Self>>::Form;

            #[inline(always)]
            fn write_bytes(self, bytes: &mut [u8]) {
                write_plain(&self, bytes);
            }

            #[inline(always)]
            fn from_bytes(bytes: &[u8]) -> Self {
                read_plain(bytes)
            }

            #[inline(always)]
            fn into_word<W: Word>(self) -> W {
                plain_into_word(self)
            }

            #[inline(always)]
            fn from_word<W: Word>(word: W) -> Self {
                plain_from_word(word)
            }
        }
    )+)+ };
}

plain_values! {
    Unsigned: u8 u16 u32 u64 u128 Offset;
    Signed: i8 i16 i32 i64 i128;
    Float: f32 f64;
}

impl AtomicValue for bool {
    const KIND: Kind = Kind::Bool;
    type Form = u8;

    #[inline(always)]
    fn write_bytes(self, bytes: &mut [u8]) {
        bytes[0] = self.into();
    }

    #[inline(always)]
    fn from_bytes(bytes: &[u8]) -> Self {
        bytes[0] != 0
    }

    #[inline(always)]
    fn into_word<W: Word>(self) -> W {
        plain_into_word(u8::from(self))
    }

    #[inline(always)]
    fn from_word<W: Word>(word: W) -> Self {
        plain_from_word::<u8, W>(word) != 0
    }
}

/// A value of at most 16 bytes that is updated under a lock although it needs none: to measure what a lock costs, and for a
/// processor without a compare-and-swap of 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ByLock<T>(pub T);

impl<T: AtomicValue> AtomicValue for ByLock<T> {
    type Form = UnderLock<{ locked_words(16) }>;

    fn write_bytes(self, bytes: &mut [u8]) {
        const { assert!(size_of::<T>() <= 16, "a value of more than 16 bytes is updated under a lock as it is") };
        self.0.write_bytes(bytes);
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        Self(T::from_bytes(bytes))
    }

    fn into_word<W: Word>(self) -> W {
        self.0.into_word()
    }

    fn from_word<W: Word>(word: W) -> Self {
        Self(T::from_word(word))
    }
}

/// An element of a region that is a cell of a value: `node.region::<Atom<T>>(8)`. Numbers need no `Atom`. Zeroed memory is a
/// zero value.
#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(transparent)]
pub struct Atom<T: AtomicValue>(T::Form);

impl<T: AtomicValue> Atom<T> {
    /// An element that holds this value, to be written into a region before other nodes know of it.
    pub fn new(value: T) -> Self {
        Self(T::Form::of(value))
    }
}

/// An element of a region that is a cell: an [`Atom`] of any value, or a number.
///
/// # Safety
/// It has the size and alignment of the form of its value.
#[diagnostic::on_unimplemented(
    message = "an element of type `{Self}` is no cell",
    note = "make the region of Atom<T>: `node.region::<Atom<MyType>>(len)`; integers and floats are cells by themselves"
)]
pub unsafe trait Element: Plain {
    /// The value that the cell holds.
    type Value: AtomicValue;
}

// SAFETY: transparent.
unsafe impl<T: AtomicValue> Element for Atom<T> {
    type Value = T;
}

macro_rules! elements {
    ($($value:ty)+) => { $(
        const _: () = assert!(size_of::<$value>() == size_of::<<$value as AtomicValue>::Form>());
        const _: () = assert!(align_of::<$value>() == align_of::<<$value as AtomicValue>::Form>());
        // SAFETY: as was just compared.
        unsafe impl Element for $value {
            type Value = $value;
        }
    )+ };
}

elements!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 Offset);
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
elements!(u128 i128);
