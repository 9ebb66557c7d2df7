//! Expressions that contain the cell: replaces the cell by a variable that holds its value.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};
use syn::{Error, Expr, FieldValue, Ident, Item, Label, Lifetime, Macro, PatIdent, Path, Result};

/// The expression without parentheses around it.
pub fn bare(expr: &Expr) -> &Expr {
    match expr {
        Expr::Paren(paren) => bare(&paren.expr),
        Expr::Group(group) => bare(&group.expr),
        other => other,
    }
}

/// Whether the expression is the cell itself.
pub fn is_cell(cell: &Expr, expr: &Expr) -> bool {
    bare(cell) == bare(expr)
}

/// Whether the expression contains the cell.
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

        fn visit_item(&mut self, _: &'ast Item) {}
    }
    let mut seek = Seek(cell, false);
    seek.visit_expr(expr);
    seek.1
}

/// The expression with a variable in place of the cell. Each attempt evaluates it.
pub fn with_value(cell: &Expr, expr: &Expr, value: &Ident) -> Result<Expr> {
    check_names(cell, expr)?;
    check_exits(expr)?;
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

        fn visit_field_value_mut(&mut self, field: &mut FieldValue) {
            // `Wrapper { cell }` becomes `Wrapper { cell: value }`.
            if is_cell(self.0, &field.expr) {
                field.colon_token.get_or_insert_default();
            }
            visit_mut::visit_field_value_mut(self, field);
        }

        // An item does not see the names around it.
        fn visit_item_mut(&mut self, _: &mut Item) {}
    }
    let mut expr = expr.clone();
    Put(cell, value).visit_expr_mut(&mut expr);
    Ok(expr)
}

/// An expression that each attempt evaluates must not leave the update in the middle.
fn check_exits(expr: &Expr) -> Result<()> {
    #[derive(Default)]
    struct Exits {
        loops: usize,
        labels: Vec<Ident>,
        error: Option<Error>,
    }
    impl Exits {
        fn refuse(&mut self, at: &dyn ToTokens, what: &str) {
            let said = format!(
                "{what} in an expression that is evaluated at each attempt: it would leave the update in the middle; compute it before, in a `let`"
            );
            self.error.get_or_insert_with(|| Error::new_spanned(at, said));
        }

        fn stays(&self, label: Option<&Lifetime>) -> bool {
            label.map_or(self.loops > 0, |label| self.labels.contains(&label.ident))
        }

        /// Visits a loop or a block that may have a label.
        fn within(&mut self, expr: &Expr, label: Option<&Label>, loops: usize) {
            let labels = self.labels.len();
            self.labels.extend(label.map(|label| label.name.ident.clone()));
            self.loops += loops;
            visit::visit_expr(self, expr);
            self.loops -= loops;
            self.labels.truncate(labels);
        }
    }
    impl<'ast> Visit<'ast> for Exits {
        fn visit_expr(&mut self, expr: &'ast Expr) {
            match expr {
                Expr::Try(_) => self.refuse(expr, "`?`"),
                Expr::Return(_) => self.refuse(expr, "`return`"),
                Expr::Await(_) => self.refuse(expr, "`await`"),
                Expr::Break(exit) if !self.stays(exit.label.as_ref()) => self.refuse(expr, "`break`"),
                Expr::Continue(exit) if !self.stays(exit.label.as_ref()) => self.refuse(expr, "`continue`"),
                // A `return` or `?` inside leaves only the closure or the async block.
                Expr::Closure(_) | Expr::Async(_) => {}
                Expr::Loop(inner) => self.within(expr, inner.label.as_ref(), 1),
                Expr::While(inner) => self.within(expr, inner.label.as_ref(), 1),
                Expr::ForLoop(inner) => self.within(expr, inner.label.as_ref(), 1),
                Expr::Block(inner) => self.within(expr, inner.label.as_ref(), 0),
                _ => visit::visit_expr(self, expr),
            }
        }

        fn visit_item(&mut self, _: &'ast Item) {}
    }
    let mut exits = Exits::default();
    exits.visit_expr(expr);
    exits.error.map_or(Ok(()), Err)
}

/// Checks that the cell's names are not bound again, so that they mean the cell everywhere, and that none stands in a macro call,
/// where it cannot be replaced.
pub fn check_names(cell: &Expr, expr: &Expr) -> Result<()> {
    struct Names {
        /// Variables and statics in the cell's expression.
        cell: Vec<Ident>,
        /// The name with which it begins.
        first: Option<Ident>,
        error: Option<Error>,
    }
    impl Names {
        fn binds(&mut self, name: &Ident) {
            if self.cell.contains(name) {
                let said = "the name of the cell is bound again here; use another name";
                self.error.get_or_insert_with(|| Error::new_spanned(name, said));
            }
        }
    }
    impl<'ast> Visit<'ast> for Names {
        fn visit_pat_ident(&mut self, pattern: &'ast PatIdent) {
            self.binds(&pattern.ident);
            visit::visit_pat_ident(self, pattern);
        }

        fn visit_item(&mut self, item: &'ast Item) {
            match item {
                Item::Const(item) => self.binds(&item.ident),
                Item::Static(item) => self.binds(&item.ident),
                Item::Fn(item) => self.binds(&item.sig.ident),
                _ => {}
            }
        }

        fn visit_macro(&mut self, called: &'ast Macro) {
            if self.first.as_ref().is_some_and(|first| contains(called.tokens.clone(), first)) {
                let said = "the cell occurs in a macro call, where its value cannot replace it; write `cell = f(cell)` with a function or a closure that calls the macro";
                self.error.get_or_insert_with(|| Error::new_spanned(called, said));
            }
        }
    }
    struct Idents(Vec<Ident>);
    impl<'ast> Visit<'ast> for Idents {
        fn visit_path(&mut self, path: &'ast Path) {
            self.0.extend(path.get_ident().cloned());
            visit::visit_path(self, path);
        }
    }
    let mut idents = Idents(Vec::new());
    idents.visit_expr(cell);
    let mut names = Names { cell: idents.0, first: first(cell), error: None };
    names.visit_expr(expr);
    names.error.map_or(Ok(()), Err)
}

/// The first name of an expression; for a path, its last segment.
fn first(expr: &Expr) -> Option<Ident> {
    match bare(expr) {
        Expr::Path(path) => path.path.segments.last().map(|segment| segment.ident.clone()),
        Expr::Field(field) => first(&field.base),
        Expr::Index(index) => first(&index.expr),
        Expr::MethodCall(call) => first(&call.receiver),
        Expr::Call(call) => first(&call.func),
        Expr::Unary(unary) => first(&unary.expr),
        Expr::Reference(reference) => first(&reference.expr),
        Expr::Try(tried) => first(&tried.expr),
        _ => None,
    }
}

/// Whether the tokens contain the name, also in a string literal as a format argument.
fn contains(tokens: TokenStream, name: &Ident) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == *name,
        TokenTree::Group(group) => contains(group.stream(), name),
        TokenTree::Literal(literal) => formats(&literal.to_string(), &name.to_string()),
        TokenTree::Punct(_) => false,
    })
}

/// Whether a string literal contains `{name}` or `{name:…}`, or `name$` as a width.
fn formats(literal: &str, name: &str) -> bool {
    let is_string = literal.ends_with(['"', '#']);
    is_string
        && literal.match_indices(name).any(|(at, _)| {
            let (before, after) = (&literal[..at], literal[at + name.len()..].trim_start());
            // Two braces in a row are a printed brace.
            let before = before.trim_end();
            let braces = before.len() - before.trim_end_matches('{').len();
            braces % 2 == 1 && after.starts_with(['}', ':']) || after.starts_with('$')
        })
}
