//! Updates as bytes: the request of a node that has another node update a cell, because the two share no memory.
//!
//! The engine of the node with the region [performs](AtomicRequest::perform) it there.
//!
//! ```text
//! 0   operator     OpCode
//! 1   type         kind 4 | binary logarithm of the bytes 4
//! 2   flags        1: the old value is wanted
//! 3   zero
//! 8   operand      16 bytes, those of the type first; a count of shifts has 4
//! 24  expected     of CompareSwap: the same
//! ```
//!
//! An update by a callback is a Load, and CompareSwap until no other update comes between. Values under a lock have no code.

use super::cell::{Private, done, operate_at};
use super::codes::{Kind, OpCode};
use super::form::{Form, word_bytes};
use super::operate::{Operate, op};
use super::place::{Nothing, Old};
use super::tier::Tier;
use super::value::AtomicValue;
use super::word::{Word, is_taken};
use doorbell_engine::drive::install::Install;
use doorbell_engine::region::remote::{Remote, UPDATE_BYTES, Update, Updates};
use std::sync::atomic::Ordering;

/// How this node's engine does updates for other nodes.
pub(crate) const UPDATES: Updates = Updates { read, perform };

inventory::submit!(Install {
    order: Install::AFTER_ENGINE,
    install: |shared| {
        let me = shared.check()?;
        shared.enter(me, "join")?.service::<Remote>().do_updates(UPDATES);
        Ok(())
    }
});

fn read(bytes: &[u8; UPDATE_BYTES]) -> Option<Update> {
    AtomicRequest::from_bytes(bytes).filter(AtomicRequest::is_possible).map(|request| request.to_update())
}

/// # Safety
/// As [`AtomicRequest::perform`].
unsafe fn perform(bytes: &[u8; UPDATE_BYTES], at: *mut u8) -> [u8; 16] {
    match AtomicRequest::from_bytes(bytes) {
        // SAFETY: caller.
        Some(request) => unsafe { request.perform(at) },
        None => [0; 16],
    }
}

const FETCH: u8 = 1;

/// The type of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TypeCode {
    kind: Kind,
    log2: u8,
}

impl TypeCode {
    /// The code of a type; `None` if it is updated under a lock.
    pub const fn of<T: AtomicValue>() -> Option<Self> {
        match super::form::tier::<T>() {
            Tier::Lock => None,
            _ => Some(Self { kind: T::KIND, log2: size_of::<T::Form>().trailing_zeros() as u8 }),
        }
    }

    /// The length of the cell in bytes, which is also its alignment.
    pub const fn bytes(self) -> usize {
        1 << self.log2
    }

    /// The same length, as plain bytes.
    pub(super) const fn plain(self) -> Self {
        Self { kind: Kind::Bytes, ..self }
    }

    fn from_number(number: u8) -> Option<Self> {
        let kind = match number >> 4 {
            0 => Kind::Unsigned,
            1 => Kind::Signed,
            2 => Kind::Float,
            3 => Kind::Bool,
            4 => Kind::Bytes,
            _ => return None,
        };
        let log2 = number & 0xf;
        let exists = match kind {
            Kind::Bool => log2 == 0,
            Kind::Float => (2..=3).contains(&log2),
            _ => log2 <= 4,
        };
        exists.then_some(Self { kind, log2 })
    }
}

/// An update as a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// The operator.
    pub op: OpCode,
    /// The type of the value.
    pub of: TypeCode,
    /// Whether the reply has to hold the old value.
    pub fetch: bool,
    /// The operand.
    pub operand: [u8; 16],
    /// For [`OpCode::CompareSwap`]: the value to replace.
    pub expected: [u8; 16],
}

impl AtomicRequest {
    /// A request for an update by an operator; `None` if only a callback can do it.
    pub fn operate<const O: char, R: Copy, T: Operate<O, R>>(operand: R, fetch: bool) -> Option<Self> {
        let (op, operand) = T::code(operand)?;
        Some(Self { op, of: TypeCode::of::<T>()?, fetch, operand, expected: [0; 16] })
    }

    /// The request as the engine carries it.
    pub fn to_update(self) -> Update {
        Update { bytes: self.to_bytes(), cell: self.of.bytes(), fetch: self.fetch }
    }

    /// Encodes the request.
    pub fn to_bytes(self) -> [u8; UPDATE_BYTES] {
        let mut bytes = [0; UPDATE_BYTES];
        bytes[0] = self.op as u8;
        bytes[1] = (self.of.kind as u8) << 4 | self.of.log2;
        bytes[2] = if self.fetch { FETCH } else { 0 };
        bytes[8..24].copy_from_slice(&self.operand);
        bytes[24..].copy_from_slice(&self.expected);
        bytes
    }

    /// Decodes a received request. `None` if no honest node sends it: the type has no such operator, or it divides by zero.
    pub fn from_bytes(bytes: &[u8; UPDATE_BYTES]) -> Option<Self> {
        let (op, of) = (OpCode::from_number(bytes[0])?, TypeCode::from_number(bytes[1])?);
        let (mut operand, mut expected) = ([0; 16], [0; 16]);
        operand.copy_from_slice(&bytes[8..24]);
        expected.copy_from_slice(&bytes[24..]);
        let request = Self { op, of, fetch: bytes[2] == FETCH, operand, expected };
        (bytes[2] <= FETCH && bytes[3..8] == [0; 5] && request.exists() && !request.divides_by_zero()).then_some(request)
    }

    /// Whether the update would panic.
    pub(super) fn divides_by_zero(&self) -> bool {
        let is_zero = || self.operand[..self.of.bytes()].iter().all(|byte| *byte == 0);
        matches!(self.op, OpCode::Div | OpCode::Rem) && self.of.kind != Kind::Float && is_zero()
    }

    /// Whether this processor has the necessary instructions.
    pub fn is_possible(&self) -> bool {
        word_bytes(self.of.bytes()) > 0 && is_taken(self.of.bytes())
    }

    /// Whether values of this type have the operator.
    fn exists(&self) -> bool {
        use OpCode::*;
        match (self.of.kind, self.op) {
            (_, Load | Set | CompareSwap) => true,
            (Kind::Bytes, _) => false,
            (Kind::Bool, op) => matches!(op, And | Or | Xor),
            (Kind::Float, op) => !matches!(op, And | Or | Xor | Shl | Shr),
            _ => true,
        }
    }

    /// Does the update, ordered as `acq_rel`, and returns the old value if it was requested.
    ///
    /// # Safety
    /// `at` is aligned to [`TypeCode::bytes`] and as many bytes are readable and writable there; all others access it by atomic
    /// instructions, too.
    pub unsafe fn perform(&self, at: *mut u8) -> [u8; 16] {
        use Kind::*;
        macro_rules! integer {
            ($of:ty) => {
                // SAFETY: caller; the type is of that size.
                unsafe {
                    match self.op {
                        OpCode::Shl => self.does::<{ op::Shl }, u32, $of>(at, u32::from_bytes(&self.operand)),
                        OpCode::Shr => self.does::<{ op::Shr }, u32, $of>(at, u32::from_bytes(&self.operand)),
                        OpCode::And | OpCode::Or | OpCode::Xor => self.bits::<$of>(at),
                        _ => self.arithmetic::<$of>(at),
                    }
                }
            };
        }
        match (self.of.kind, self.of.log2) {
            // SAFETY: as above.
            (_, 0) if self.op == OpCode::CompareSwap => unsafe { self.swap::<u8>(at) },
            // SAFETY: as above.
            (_, 1) if self.op == OpCode::CompareSwap => unsafe { self.swap::<u16>(at) },
            // SAFETY: as above.
            (_, 2) if self.op == OpCode::CompareSwap => unsafe { self.swap::<u32>(at) },
            // SAFETY: as above.
            (_, 3) if self.op == OpCode::CompareSwap => unsafe { self.swap::<u64>(at) },
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            // SAFETY: as above.
            (_, 4) if self.op == OpCode::CompareSwap => unsafe { self.swap::<u128>(at) },
            // SAFETY: as above.
            (Float, 2) => unsafe { self.arithmetic::<f32>(at) },
            // SAFETY: as above.
            (Float, _) => unsafe { self.arithmetic::<f64>(at) },
            // SAFETY: as above.
            (Bool, _) => unsafe { self.bits::<bool>(at) },
            (Signed, 0) => integer!(i8),
            (Signed, 1) => integer!(i16),
            (Signed, 2) => integer!(i32),
            (Signed, 3) => integer!(i64),
            (Signed, _) => integer!(i128),
            (_, 0) => integer!(u8),
            (_, 1) => integer!(u16),
            (_, 2) => integer!(u32),
            (_, 3) => integer!(u64),
            (_, _) => integer!(u128),
        }
    }

    /// The value after the update of `old`.
    pub(super) fn after(&self, old: [u8; 16]) -> [u8; 16] {
        #[repr(align(16))]
        struct Value([u8; 16]);
        let mut value = Value(old);
        // SAFETY: a value of our own, aligned for all types.
        unsafe { self.perform(value.0.as_mut_ptr()) };
        value.0
    }

    /// # Safety
    /// As [`perform`](Self::perform), for this type.
    unsafe fn does<const O: char, R: Copy, T: Operate<O, R>>(&self, at: *mut u8, operand: R) -> [u8; 16] {
        let mut bytes = [0; 16];
        if self.fetch {
            // SAFETY: caller.
            done(unsafe { operate_at::<T, O, R, Old, _>(at.cast(), &Private, operand, Ordering::AcqRel) })
                .write_bytes(&mut bytes);
        } else {
            // SAFETY: caller.
            done(unsafe { operate_at::<T, O, R, Nothing, _>(at.cast(), &Private, operand, Ordering::AcqRel) });
        }
        bytes
    }

    /// The operators that every type has.
    ///
    /// # Safety
    /// As [`perform`](Self::perform), for this type.
    unsafe fn common<T: AtomicValue>(&self, at: *mut u8) -> [u8; 16] {
        if self.op == OpCode::Set {
            // SAFETY: caller.
            return unsafe { self.does::<{ op::Set }, T, T>(at, T::from_bytes(&self.operand)) };
        }
        let mut bytes = [0; 16];
        // SAFETY: caller.
        let Ok(value) = unsafe { T::Form::load(at.cast(), &Private, Ordering::Acquire) };
        value.write_bytes(&mut bytes);
        bytes
    }

    /// # Safety
    /// As [`perform`](Self::perform), for this type.
    unsafe fn bits<T: Operate<{ op::And }> + Operate<{ op::Or }> + Operate<{ op::Xor }>>(&self, at: *mut u8) -> [u8; 16] {
        let by = T::from_bytes(&self.operand);
        // SAFETY: caller.
        unsafe {
            match self.op {
                OpCode::And => self.does::<{ op::And }, T, T>(at, by),
                OpCode::Or => self.does::<{ op::Or }, T, T>(at, by),
                OpCode::Xor => self.does::<{ op::Xor }, T, T>(at, by),
                _ => self.common::<T>(at),
            }
        }
    }

    /// # Safety
    /// As [`perform`](Self::perform), for this type.
    unsafe fn arithmetic<T>(&self, at: *mut u8) -> [u8; 16]
    where
        T: Operate<{ op::Add }>
            + Operate<{ op::Sub }>
            + Operate<{ op::Mul }>
            + Operate<{ op::Div }>
            + Operate<{ op::Rem }>
            + Operate<{ op::Max }>
            + Operate<{ op::Min }>,
    {
        let by = T::from_bytes(&self.operand);
        // SAFETY: caller.
        unsafe {
            match self.op {
                OpCode::Add => self.does::<{ op::Add }, T, T>(at, by),
                OpCode::Sub => self.does::<{ op::Sub }, T, T>(at, by),
                OpCode::Mul => self.does::<{ op::Mul }, T, T>(at, by),
                OpCode::Div => self.does::<{ op::Div }, T, T>(at, by),
                OpCode::Rem => self.does::<{ op::Rem }, T, T>(at, by),
                OpCode::Max => self.does::<{ op::Max }, T, T>(at, by),
                OpCode::Min => self.does::<{ op::Min }, T, T>(at, by),
                _ => self.common::<T>(at),
            }
        }
    }

    /// # Safety
    /// As [`perform`](Self::perform), for this word.
    unsafe fn swap<W: Word + AtomicValue>(&self, at: *mut u8) -> [u8; 16] {
        let [expected, value] = [&self.expected, &self.operand].map(|bytes| W::from_bytes(bytes));
        // SAFETY: caller.
        let seen = match unsafe { W::compare_exchange(at.cast(), expected, value, Ordering::AcqRel) } {
            Ok(seen) | Err(seen) => seen,
        };
        let mut bytes = [0; 16];
        seen.write_bytes(&mut bytes);
        bytes
    }
}
