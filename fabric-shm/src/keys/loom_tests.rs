//! Models of the key words.
