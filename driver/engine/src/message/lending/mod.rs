//! Messages that lie where they were written: arenas, leases, and the lender's records.

mod arena;
mod borrow;
mod lease;
mod lender;

pub use borrow::{Lenders, Lent};
pub use lender::LoanStats;

pub(crate) use arena::BlockId;
pub(crate) use borrow::Miss;
pub(crate) use lease::{LEASE_BYTES, Lease};
pub(crate) use lender::{Lender, Parcel};
