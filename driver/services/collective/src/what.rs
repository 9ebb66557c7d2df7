//! What a member asks for, before it is known by which way it goes.

use super::core::{Body, Core, Way};
use super::exchange::{ALIGN_MAX, Cut, ELEMENT_MAX, Exchange, Folder, Kind, Lengths};
use super::memory::{Memory, Span};
use super::net::LINE;
use super::reduction::Reduction;
use super::team::Value;
use doorbell_engine::Result;
use doorbell_engine::error::Error;
use std::marker::PhantomData;
use zerocopy::FromBytes;

/// A collective of this member, but for its number.
pub(super) struct What {
    kind: Kind,
    input: Span,
    output: Span,
    lengths: Lengths,
    folder: Option<Box<dyn Folder>>,
}

impl What {
    pub fn of(kind: Kind, input: Span, output: Span, lengths: Lengths) -> Self {
        Self { kind, input, output, lengths, folder: None }
    }

    pub fn folding<T: Value, R: Reduction<T>>(self, reduction: R) -> Result<Self> {
        if size_of::<T>() > ELEMENT_MAX {
            let what = format!("elements of {} bytes can't be combined; {ELEMENT_MAX} at most", size_of::<T>());
            return Err(Error::Invalid { what });
        }
        if align_of::<T>() > ALIGN_MAX {
            let align = align_of::<T>();
            let what = format!("elements aligned to {align} bytes can't be combined; use a type aligned to {ALIGN_MAX} at most");
            return Err(Error::Invalid { what });
        }
        Ok(Self { folder: Some(Box::new(Folds(reduction, PhantomData))), ..self })
    }

    /// What a member does for it in a channel, as the operation of this number.
    #[inline]
    pub fn exchange(self, core: &Core, memory: &Memory, number: u64) -> Exchange {
        let cut = Cut { number, members: core.fellows.len(), me: core.me, slot: memory.layout().slot };
        Exchange::new(self.kind, self.input, self.output, self.lengths, self.folder, cut)
    }

    pub fn body(self, core: &Core, number: u64) -> Result<Body> {
        let memory = match &core.way {
            Way::Shared(memory) => memory,
            Way::Apart(apart) => {
                let run = super::apart::run(self.kind, (self.input, self.output), &self.lengths, self.folder, apart);
                let what = || "the lengths of a collective do not fit its team".to_owned();
                return run.map(|run| Body::Run(Some(run))).ok_or_else(|| Error::Invalid { what: what() });
            }
        };
        let exchange = self.exchange(core, memory, number);
        if exchange.is_too_long() { Err(too_long()) } else { Ok(Body::Exchange(exchange)) }
    }
}

#[cold]
pub(super) fn too_long() -> Error {
    Error::Invalid {
        what: "the vectors are too long for the slots of this team, or a slot has no part for each member; make larger slots"
            .into(),
    }
}

/// Combines vectors of a type that is forgotten elsewhere.
struct Folds<T, R>(R, PhantomData<fn() -> T>);

// Over the network they lie in lines, over shared memory in a room; both are aligned for what `folding` admits.
const _: () = assert!(LINE == ALIGN_MAX);

/// Two vectors as elements. What does not lie there as whole elements was cut up or stored wrongly: a panic here fails the operation, where to go on would
/// give a wrong result.
fn elements<'a, T: Value>(into: &'a mut [u8], from: &'a [u8]) -> (&'a mut [T], &'a [T]) {
    match (<[T]>::mut_from_bytes(into), <[T]>::ref_from_bytes(from)) {
        (Ok(into), Ok(from)) => (into, from),
        _ => panic!("vectors to be combined do not lie as whole, aligned elements of {} bytes", size_of::<T>()),
    }
}

impl<T: Value, R: Reduction<T>> Folder for Folds<T, R> {
    fn fold(&self, into: &mut [u8], from: &[u8]) {
        let (into, from) = elements(into, from);
        self.0.fold(into, from);
    }

    fn fold_left(&self, into: &mut [u8], from: &[u8]) {
        let (into, from) = elements(into, from);
        self.0.fold_left(into, from);
    }

    fn commutes(&self) -> bool {
        R::COMMUTATIVE
    }

    fn element(&self) -> usize {
        size_of::<T>()
    }
}

/// Memory of the caller that is written.
pub(super) fn whole<T: Value>(xs: &mut [T]) -> Span {
    // SAFETY: plain data. The caller of the collective lends it until the call comes back, and by then the exchange is over or was dropped (Core::run); of one that was
    // begun the vector is kept by the exchange's task (Core::start).
    unsafe { Span::new(xs.as_mut_ptr().cast(), size_of_val(xs)) }
}

/// Memory of the caller that is only read.
pub(super) fn part<T: Value>(xs: &[T]) -> Span {
    // SAFETY: as in `whole`; it is an input, which no exchange writes.
    unsafe { Span::new(xs.as_ptr().cast_mut().cast(), size_of_val(xs)) }
}
