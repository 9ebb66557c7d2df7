//! The options before the colon: `old, relaxed, attempts(3): cell += 1`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::{Parse, ParseStream, discouraged::Speculative};
use syn::{Error, Expr, Ident, Result, Token, ext::IdentExt, parenthesized};

/// The value that the caller wants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Want {
    Nothing,
    Old,
    New,
}

/// The requested options.
pub struct Options {
    pub want: Want,
    /// The name of the ordering, with its position.
    pub ordering: Option<Ident>,
    pub attempts: Option<Expr>,
}

impl Options {
    /// Parses options and their colon, if there are any.
    pub fn parse(input: ParseStream) -> Result<Self> {
        let mut options = Self { want: Want::Nothing, ordering: None, attempts: None };
        if !begins(&input.fork()) {
            return Ok(options);
        }
        loop {
            let name = input.call(Ident::parse_any)?;
            options.enter(&name, input)?;
            if input.parse::<Option<Token![,]>>()?.is_none() {
                break;
            }
        }
        input.parse::<Token![:]>()?;
        Ok(options)
    }

    fn enter(&mut self, name: &Ident, input: ParseStream) -> Result<()> {
        let twice = |what: &str| Err(Error::new(name.span(), format!("{what} is given twice; give it once")));
        match name.to_string().as_str() {
            "old" | "new" if self.want != Want::Nothing => twice("the wanted value"),
            "old" => {
                self.want = Want::Old;
                Ok(())
            }
            "new" => {
                self.want = Want::New;
                Ok(())
            }
            "relaxed" | "acquire" | "release" | "acq_rel" | "seq_cst" if self.ordering.is_some() => twice("the ordering"),
            "relaxed" | "acquire" | "release" | "acq_rel" | "seq_cst" => {
                self.ordering = Some(name.clone());
                Ok(())
            }
            "attempts" if self.attempts.is_some() => twice("the number of attempts"),
            "attempts" => {
                if !input.peek(syn::token::Paren) {
                    return Err(Error::new(name.span(), "the number of attempts is missing; write `attempts(3)`"));
                }
                let inside;
                parenthesized!(inside in input);
                let count: Expr = inside.parse()?;
                if matches!(&count, Expr::Lit(lit) if matches!(&lit.lit, syn::Lit::Int(int) if int.base10_digits() == "0")) {
                    return Err(Error::new_spanned(count, "without an attempt there is no update; allow one or more"));
                }
                self.attempts = Some(count);
                Ok(())
            }
            other => Err(Error::new(
                name.span(),
                format!(
                    "`{other}` is not an option of an atomic update; the options before the colon are `old` or `new`, one of `relaxed`, \
                     `acquire`, `release`, `acq_rel` and `seq_cst`, and `attempts(n)`"
                ),
            )),
        }
    }

    /// The ordering's name in the standard library.
    pub fn ordering(&self, default: &str) -> TokenStream {
        let name = self.ordering.as_ref().map_or_else(|| default.to_owned(), Ident::to_string);
        let name = match name.as_str() {
            "relaxed" => quote!(Relaxed),
            "acquire" => quote!(Acquire),
            "release" => quote!(Release),
            "seq_cst" => quote!(SeqCst),
            _ => quote!(AcqRel),
        };
        quote!(::core::sync::atomic::Ordering::#name)
    }

    /// The type that selects the wanted value.
    pub fn want(&self) -> TokenStream {
        match self.want {
            Want::Nothing => quote!(::doorbell::atomic::Nothing),
            Want::Old => quote!(::doorbell::atomic::Old),
            Want::New => quote!(::doorbell::atomic::New),
        }
    }
}

/// Whether words and commas follow, with a single colon behind them.
fn begins(input: ParseStream) -> bool {
    struct Words;
    impl Parse for Words {
        fn parse(input: ParseStream) -> Result<Self> {
            loop {
                input.call(Ident::parse_any)?;
                if input.peek(syn::token::Paren) {
                    let inside;
                    parenthesized!(inside in input);
                    inside.parse::<TokenStream>()?;
                }
                if input.parse::<Option<Token![,]>>()?.is_none() {
                    break;
                }
            }
            if input.peek(Token![::]) { Err(input.error("a path")) } else { input.parse::<Token![:]>().map(|_| Words) }
        }
    }
    let fork = input.fork();
    let found = fork.parse::<Words>().is_ok();
    if found {
        input.advance_to(&fork);
    }
    found
}
