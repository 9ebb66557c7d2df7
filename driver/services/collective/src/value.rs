//! The elements of vectors.

use doorbell_engine::region::Plain;

/// A type whose vectors can go through a collective.
pub trait Value: Plain + Copy + Send + 'static {}

impl<T: Plain + Copy + Send + 'static> Value for T {}
