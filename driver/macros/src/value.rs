//! `derive(AtomicValue)`: plain data in a cell.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Data, DeriveInput, Error, Ident, Result};

/// Operators of the language that a user's type may have: the library's name, the trait and the method.
const OPERATORS: [(&str, &str, &str); 10] = [
    ("Add", "Add", "add"),
    ("Sub", "Sub", "sub"),
    ("Mul", "Mul", "mul"),
    ("Div", "Div", "div"),
    ("Rem", "Rem", "rem"),
    ("And", "BitAnd", "bitand"),
    ("Or", "BitOr", "bitor"),
    ("Xor", "BitXor", "bitxor"),
    ("Shl", "Shl", "shl"),
    ("Shr", "Shr", "shr"),
];

pub fn derive(input: &DeriveInput) -> Result<TokenStream> {
    let name = &input.ident;
    if !input.generics.params.is_empty() {
        let said = "the layout of a cell depends on the size of its value, which must be known here: derive AtomicValue for a type without parameters, such as a struct around this one";
        return Err(Error::new_spanned(&input.generics, said));
    }
    if !matches!(input.data, Data::Struct(_)) {
        let said = "not every bit pattern is a valid enum or union, and another process may write any pattern into shared memory: hold a number in the cell, and convert it";
        return Err(Error::new_spanned(name, said));
    }
    let operators = OPERATORS.iter().map(|(ours, theirs, method)| {
        let [ours, theirs, method] = [ours, theirs, method].map(|name| Ident::new(name, proc_macro2::Span::call_site()));
        quote! {
            impl<__Operand: ::core::marker::Copy> ::doorbell::atomic::Operate<{ ::doorbell::atomic::op::#ours }, __Operand> for #name
            where
                #name: ::core::ops::#theirs<__Operand, Output = #name>,
            {
                #[inline]
                fn apply(self, operand: __Operand) -> Self {
                    ::core::ops::#theirs::#method(self, operand)
                }
            }
        }
    });
    let extremes = [("Max", "greater"), ("Min", "smaller")].map(|(which, method)| {
        let [which, method] = [which, method].map(|name| Ident::new(name, proc_macro2::Span::call_site()));
        quote! {
            impl<__Operand: ::core::marker::Copy> ::doorbell::atomic::Operate<{ ::doorbell::atomic::op::#which }, __Operand> for #name
            where
                #name: ::doorbell::atomic::OrderedWith<__Operand>,
            {
                #[inline]
                fn apply(self, operand: __Operand) -> Self {
                    ::doorbell::atomic::OrderedWith::#method(self, operand)
                }
            }
        }
    });
    Ok(quote! {
        impl ::doorbell::atomic::AtomicValue for #name {
            type Form = <::doorbell::atomic::Room<
                { ::doorbell::atomic::word_bytes(::core::mem::size_of::<#name>()) },
                { ::doorbell::atomic::locked_words(::core::mem::size_of::<#name>()) },
            > as ::doorbell::atomic::FormFor<#name>>::Form;

            #[inline(always)]
            fn write_bytes(self, bytes: &mut [u8]) {
                ::doorbell::atomic::write_plain(&self, bytes);
            }

            #[inline(always)]
            fn from_bytes(bytes: &[u8]) -> Self {
                ::doorbell::atomic::read_plain(bytes)
            }

            #[inline(always)]
            fn into_word<W: ::doorbell::atomic::Word>(self) -> W {
                ::doorbell::atomic::plain_into_word(self)
            }

            #[inline(always)]
            fn from_word<W: ::doorbell::atomic::Word>(word: W) -> Self {
                ::doorbell::atomic::plain_from_word(word)
            }
        }
        #(#operators)*
        #(#extremes)*
    })
}
