//! Reads the update, and chooses how to do it: by an operator that the library has for the type, or by a callback.

use crate::callback::{bare, check_names, is_cell, mentions, with_value};
use crate::options::{Options, Want};
use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{BinOp, Error, Expr, Ident, Result, Token};

/// The content of `atomic! { … }`.
pub struct Statement {
    options: Options,
    expr: Expr,
    condition: Option<Expr>,
}

/// The way to the cell's new value.
enum Change {
    /// An operator and its operand.
    Operator(Ident, Expr),
    /// An operator whose second operand is the cell. The order decides which of two equal values stays.
    Reversed(Ident, Expr),
    /// An expression that contains the cell.
    Expression(Expr),
}

impl Parse for Statement {
    fn parse(input: ParseStream) -> Result<Self> {
        if input.is_empty() {
            return Err(input.error("nothing to do; write an update such as `cell += 1`, or `cell` to read it"));
        }
        let options = Options::parse(input)?;
        let expr: Expr = input.parse()?;
        let condition = match input.parse::<Option<Token![if]>>()? {
            Some(_) => Some(input.parse()?),
            None => None,
        };
        input.parse::<Option<Token![;]>>()?;
        if !input.is_empty() {
            return Err(input.error(
                "one update at a time: each is atomic by itself, and two together are not; write an `atomic!` for each, or a type that holds both values",
            ));
        }
        Ok(Self { options, expr, condition })
    }
}

impl Statement {
    /// The call of the library that performs the update.
    pub fn translate(&self) -> Result<TokenStream> {
        match bare(&self.expr) {
            Expr::Assign(assign) => self.update(&assign.left, assigned(&assign.left, &assign.right)),
            Expr::Binary(binary) => match assigning(&binary.op) {
                Some(operator) if mentions(&binary.left, &binary.right) => {
                    check_names(&binary.left, &binary.right)?;
                    let said = format!(
                        "the operand of an operator is evaluated once, before the update, and can't read the cell; write `cell = cell {} …`",
                        sign(operator)
                    );
                    Err(Error::new_spanned(&binary.right, said))
                }
                Some(operator) => {
                    let operator = Ident::new(operator, Span::call_site());
                    self.update(&binary.left, Change::Operator(operator, (*binary.right).clone()))
                }
                None => Err(Error::new_spanned(
                    binary,
                    "this computes something and updates nothing; write `cell = …` or an assignment operator such as `cell += 1`; to read a cell, `atomic! { cell }`",
                )),
            },
            Expr::Path(_)
            | Expr::Field(_)
            | Expr::Index(_)
            | Expr::Unary(_)
            | Expr::MethodCall(_)
            | Expr::Call(_)
            | Expr::Try(_) => self.load(),
            other => Err(Error::new_spanned(
                other,
                "this does not update a cell; write `cell = …`, an assignment operator such as `cell += 1`, or `cell` to read it",
            )),
        }
    }

    fn load(&self) -> Result<TokenStream> {
        let cell = &self.expr;
        if let Some(condition) = &self.condition {
            return Err(Error::new_spanned(condition, "reading a cell can't be declined; write `cell = value if condition`"));
        }
        if self.options.want != Want::Nothing || self.options.attempts.is_some() {
            return Err(Error::new_spanned(cell, "reading a cell gives its value at once: without `old`, `new` or `attempts`"));
        }
        if let Some(ordering) = self.options.ordering.as_ref().filter(|name| *name == "release" || *name == "acq_rel") {
            return Err(Error::new(ordering.span(), "a read releases nothing; it is `relaxed`, `acquire` or `seq_cst`"));
        }
        let ordering = self.options.ordering("acquire");
        Ok(quote_spanned!(cell.span()=> ::doorbell::atomic::load(&(#cell), #ordering)))
    }

    fn update(&self, cell: &Expr, change: Change) -> Result<TokenStream> {
        let (ordering, want) = (self.options.ordering("acq_rel"), self.options.want());
        let may_fail = self.condition.is_some() || self.options.attempts.is_some();
        let attempts = match &self.options.attempts {
            Some(count) => quote!(::core::option::Option::Some(#count)),
            None => quote!(::core::option::Option::None),
        };
        // Names that the caller's expressions cannot see.
        let hidden = |name| Ident::new(name, Span::mixed_site());
        let (value, operand) = (hidden("value"), hidden("operand"));
        let condition = match &self.condition {
            Some(condition) => with_value(cell, condition, &value)?,
            None => syn::parse_quote!(true),
        };
        let at = cell.span();
        Ok(match change {
            Change::Operator(operator, by) if !may_fail => {
                quote_spanned!(at=> ::doorbell::atomic::operate::<{ ::doorbell::atomic::op::#operator }, #want, _, _>(&(#cell), #by, #ordering))
            }
            Change::Operator(operator, by) => quote_spanned!(at=> match #by {
                #operand => ::doorbell::atomic::attempt::<#want, _>(&(#cell), #attempts, #ordering, |#value| {
                    if #condition {
                        ::core::option::Option::Some(::doorbell::atomic::apply::<{ ::doorbell::atomic::op::#operator }, _, _>(#value, #operand))
                    } else {
                        ::core::option::Option::None
                    }
                })
            }),
            Change::Reversed(operator, by) => {
                let new = quote!(::doorbell::atomic::apply::<{ ::doorbell::atomic::op::#operator }, _, _>(#operand, #value));
                let call = if may_fail {
                    quote!(::doorbell::atomic::attempt::<#want, _>(&(#cell), #attempts, #ordering, |#value| {
                        if #condition { ::core::option::Option::Some(#new) } else { ::core::option::Option::None }
                    }))
                } else {
                    quote!(::doorbell::atomic::update::<#want, _>(&(#cell), #ordering, |#value| #new))
                };
                quote_spanned!(at=> match #by { #operand => #call })
            }
            Change::Expression(expr) => {
                let expr = with_value(cell, &expr, &value)?;
                if may_fail {
                    quote_spanned!(at=> ::doorbell::atomic::attempt::<#want, _>(&(#cell), #attempts, #ordering, |#value| {
                        if #condition { ::core::option::Option::Some(#expr) } else { ::core::option::Option::None }
                    }))
                } else {
                    quote_spanned!(at=> ::doorbell::atomic::update::<#want, _>(&(#cell), #ordering, |#value| #expr))
                }
            }
        })
    }
}

/// The meaning of `cell = expr`: an operator if there is one, because that may be a single instruction.
fn assigned(cell: &Expr, expr: &Expr) -> Change {
    let operator = |name, operand: &Expr| Change::Operator(Ident::new(name, Span::call_site()), operand.clone());
    if !mentions(cell, expr) {
        return operator("Set", expr);
    }
    let other = |operand: &Expr| !mentions(cell, operand);
    match bare(expr) {
        Expr::Binary(binary) if is_cell(cell, &binary.left) && other(&binary.right) => match operating(&binary.op) {
            Some(name) => operator(name, &binary.right),
            None => Change::Expression(expr.clone()),
        },
        Expr::MethodCall(call) if is_cell(cell, &call.receiver) && call.args.len() == 1 && other(&call.args[0]) => {
            match call.method.to_string().as_str() {
                "max" => operator("Max", &call.args[0]),
                "min" => operator("Min", &call.args[0]),
                _ => Change::Expression(expr.clone()),
            }
        }
        Expr::Call(call) if call.args.len() == 2 => {
            let (first, second) = (&call.args[0], &call.args[1]);
            let name = extreme(&call.func);
            match (name, is_cell(cell, first), is_cell(cell, second)) {
                (Some(name), true, false) if other(second) => operator(name, second),
                (Some(name), false, true) if other(first) => Change::Reversed(Ident::new(name, Span::call_site()), first.clone()),
                _ => Change::Expression(expr.clone()),
            }
        }
        _ => Change::Expression(expr.clone()),
    }
}

/// The operator behind `max` and `min`, as methods or in `std::cmp`.
fn extreme(function: &Expr) -> Option<&'static str> {
    let Expr::Path(path) = bare(function) else { return None };
    let names: Vec<String> = path.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
    let (last, before) = names.split_last()?;
    let known = matches!(before.iter().map(String::as_str).collect::<Vec<_>>()[..], [] | ["cmp"] | ["std" | "core", "cmp"]);
    match last.as_str() {
        "max" if known => Some("Max"),
        "min" if known => Some("Min"),
        _ => None,
    }
}

fn assigning(op: &BinOp) -> Option<&'static str> {
    Some(match op {
        BinOp::AddAssign(_) => "Add",
        BinOp::SubAssign(_) => "Sub",
        BinOp::MulAssign(_) => "Mul",
        BinOp::DivAssign(_) => "Div",
        BinOp::RemAssign(_) => "Rem",
        BinOp::BitAndAssign(_) => "And",
        BinOp::BitOrAssign(_) => "Or",
        BinOp::BitXorAssign(_) => "Xor",
        BinOp::ShlAssign(_) => "Shl",
        BinOp::ShrAssign(_) => "Shr",
        _ => return None,
    })
}

fn operating(op: &BinOp) -> Option<&'static str> {
    Some(match op {
        BinOp::Add(_) => "Add",
        BinOp::Sub(_) => "Sub",
        BinOp::Mul(_) => "Mul",
        BinOp::Div(_) => "Div",
        BinOp::Rem(_) => "Rem",
        BinOp::BitAnd(_) => "And",
        BinOp::BitOr(_) => "Or",
        BinOp::BitXor(_) => "Xor",
        BinOp::Shl(_) => "Shl",
        BinOp::Shr(_) => "Shr",
        _ => return None,
    })
}

fn sign(operator: &str) -> &'static str {
    match operator {
        "Add" => "+",
        "Sub" => "-",
        "Mul" => "*",
        "Div" => "/",
        "Rem" => "%",
        "And" => "&",
        "Or" => "|",
        "Xor" => "^",
        "Shl" => "<<",
        _ => ">>",
    }
}
