//! The translation of atomic updates at compile time: `atomic!` and `derive(AtomicValue)`. The crate `doorbell` exports both and
//! documents them.

mod callback;
mod options;
mod statement;
mod value;

use proc_macro::TokenStream;

/// Translates an update of a cell, written as an ordinary expression, into the cheapest atomic form. See `doorbell::atomic`.
#[proc_macro]
pub fn atomic(input: TokenStream) -> TokenStream {
    let statement = syn::parse_macro_input!(input as statement::Statement);
    statement.translate().unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Lets cells hold a plain data type of up to 16 KiB. See `doorbell::atomic`.
#[proc_macro_derive(AtomicValue)]
pub fn derive_atomic_value(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as syn::DeriveInput);
    value::derive(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}
