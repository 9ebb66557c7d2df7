//! Expressions in which the cell occurs: what becomes of them when the cell's value is a variable.

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};
use syn::{Error, Expr, Ident, Macro, Result};

/// The expression without parentheses around it.
pub fn bare(expr: &Expr) -> &Expr {
    match expr {
        Expr::Paren(paren) => bare(&paren.expr),
        Expr::Group(group) => bare(&group.expr),
        other => other,
    }
}

/// Whether this is the cell, and nothing besides.
pub fn is_cell(cell: &Expr, expr: &Expr) -> bool {
    bare(cell) == bare(expr)
}

/// Whether the cell occurs in it.
pub fn mentions(cell: &Expr, expr: &Expr) -> bool {
    struct Seek<'a>(&'a Expr, bool);
    impl<'ast> Visit<'ast> for Seek<'_> {
        fn visit_expr(&mut self, expr: &'ast Expr) {
            if is_cell(self.0, expr) {
                self.1 = true;
            } else {
                visit::visit_expr(self, expr);
            }
        }
    }
    let mut seek = Seek(cell, false);
    seek.visit_expr(expr);
    seek.1
}

/// The expression with a variable in the cell's place, to be evaluated at each attempt.
pub fn with_value(cell: &Expr, expr: &Expr, value: &Ident) -> Result<Expr> {
    check(cell, expr)?;
    struct Put<'a>(&'a Expr, &'a Ident);
    impl VisitMut for Put<'_> {
        fn visit_expr_mut(&mut self, expr: &mut Expr) {
            if is_cell(self.0, expr) {
                let value = self.1;
                *expr = syn::parse_quote!(#value);
            } else {
                visit_mut::visit_expr_mut(self, expr);
            }
        }
    }
    let mut expr = expr.clone();
    Put(cell, value).visit_expr_mut(&mut expr);
    Ok(expr)
}

/// An expression that is evaluated at each attempt can't leave the update in the middle.
fn check(cell: &Expr, expr: &Expr) -> Result<()> {
    struct Check<'a> {
        cell: Option<&'a Ident>,
        loops: usize,
        error: Option<Error>,
    }
    impl Check<'_> {
        fn refuse(&mut self, at: &dyn quote::ToTokens, what: &str) {
            let said = format!(
                "{what} in an expression that is evaluated at each attempt: it would leave the update in the middle; compute it before, in a `let`"
            );
            self.error.get_or_insert_with(|| Error::new_spanned(at, said));
        }
    }
    impl<'ast> Visit<'ast> for Check<'_> {
        fn visit_expr(&mut self, expr: &'ast Expr) {
            match expr {
                Expr::Try(_) => self.refuse(expr, "`?`"),
                Expr::Return(_) => self.refuse(expr, "`return`"),
                Expr::Await(_) => self.refuse(expr, "`await`"),
                Expr::Break(_) | Expr::Continue(_) if self.loops == 0 => self.refuse(expr, "`break` or `continue`"),
                // They are left by themselves.
                Expr::Closure(_) | Expr::Async(_) => {}
                Expr::Loop(_) | Expr::While(_) | Expr::ForLoop(_) => {
                    self.loops += 1;
                    visit::visit_expr(self, expr);
                    self.loops -= 1;
                }
                _ => visit::visit_expr(self, expr),
            }
        }

        fn visit_macro(&mut self, called: &'ast Macro) {
            if self.cell.is_some_and(|cell| contains(called.tokens.clone(), cell)) {
                let said = "the cell stands in a macro call, where its value can't be put in its place; write `cell = f(cell)` with a function or a closure that calls the macro";
                self.error.get_or_insert_with(|| Error::new_spanned(called, said));
            }
        }
    }
    let name = match bare(cell) {
        Expr::Path(path) => path.path.get_ident(),
        _ => None,
    };
    let mut check = Check { cell: name, loops: 0, error: None };
    check.visit_expr(expr);
    check.error.map_or(Ok(()), Err)
}

fn contains(tokens: TokenStream, name: &Ident) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == *name,
        TokenTree::Group(group) => contains(group.stream(), name),
        _ => false,
    })
}
