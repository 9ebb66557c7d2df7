//! The predefined reductions, and those of the application.
