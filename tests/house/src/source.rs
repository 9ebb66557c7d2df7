//! The source of a crate as arrows between its files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use syn::visit::{self, Visit};

/// One import: a name that one module uses and another one defines.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Arrow {
    /// The module that imports, such as `engine/turn/modes`, or `lib`.
    pub from: String,
    /// The module that defines the name.
    pub to: String,
    /// The name.
    pub name: String,
}

/// The modules of one crate, each a file.
#[derive(Default)]
pub struct Source {
    modules: BTreeMap<String, Module>,
}

#[derive(Default)]
struct Module {
    /// Names that the file defines itself.
    defined: BTreeSet<String>,
    /// Names that the file imports, with the paths they stand for.
    imported: BTreeMap<String, Vec<String>>,
    /// Modules of which the file imports everything.
    globs: Vec<Vec<String>>,
    /// All paths that the file mentions, from the root of the crate.
    mentioned: BTreeSet<Vec<String>>,
}

/// The name of the crate's root module.
const ROOT: &str = "lib";

impl Source {
    /// Reads all files below the source folder of a crate, but for those that only tests have.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or is not Rust.
    pub fn read(folder: &Path) -> Result<Self, String> {
        let mut source = Self::default();
        let mut folders = vec![folder.to_owned()];
        while let Some(at) = folders.pop() {
            for entry in std::fs::read_dir(&at).map_err(|error| format!("{}: {error}", at.display()))? {
                let path = entry.map_err(|error| format!("{}: {error}", at.display()))?.path();
                let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
                if name == "tests" || name.ends_with("_tests") {
                    continue;
                }
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|ending| ending == "rs") {
                    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
                    let module = path.strip_prefix(folder).expect("below the folder").with_extension("");
                    let module = module.to_str().ok_or(format!("{}: not a name", path.display()))?;
                    source.add(module.strip_suffix("/mod").unwrap_or(module), &text)?;
                }
            }
        }
        Ok(source)
    }

    /// Adds one module, such as `engine/turn/modes`, with its text.
    ///
    /// # Errors
    ///
    /// The text is not Rust.
    pub fn add(&mut self, module: &str, text: &str) -> Result<(), String> {
        let file = syn::parse_file(text).map_err(|error| format!("{module}: {error}"))?;
        let here = if module == ROOT { Vec::new() } else { module.split('/').map(str::to_owned).collect() };
        let mut reader = Reader { here: &here, depth: 0, module: Module::default() };
        reader.visit_file(&file);
        self.modules.insert(module.to_owned(), reader.module);
        Ok(())
    }

    /// All arrows between different modules, in order.
    #[must_use]
    pub fn arrows(&self) -> Vec<Arrow> {
        let mut arrows = BTreeSet::new();
        for (from, module) in &self.modules {
            for path in &module.mentioned {
                if let Some((to, name)) = self.resolve(path, 8).filter(|(to, _)| to != from) {
                    arrows.insert(Arrow { from: from.clone(), to, name });
                }
            }
        }
        arrows.into_iter().collect()
    }

    /// The folder of a module: `engine/turn` of `engine/turn/modes`, and of `engine/turn` itself. The root of the crate lies in `.`.
    pub(crate) fn folder<'a>(&self, module: &'a str) -> &'a str {
        let has_children = self.modules.keys().any(|other| other.strip_prefix(module).is_some_and(|rest| rest.starts_with('/')));
        if has_children { module } else { module.rsplit_once('/').map_or(".", |(folder, _)| folder) }
    }

    /// The module that defines what a path from the root of the crate names, and the name. Re-exports are followed.
    fn resolve(&self, path: &[String], depth: usize) -> Option<(String, String)> {
        let depth = depth.checked_sub(1)?;
        let len = (0..=path.len()).rev().find(|len| self.modules.contains_key(&Self::key(&path[..*len])))?;
        let (key, rest) = (Self::key(&path[..len]), &path[len..]);
        let module = &self.modules[&key];
        let Some(name) = rest.first() else {
            // The path names a module itself.
            return Some((key, "self".to_owned()));
        };
        if module.defined.contains(name) {
            return Some((key, name.clone()));
        }
        if let Some(target) = module.imported.get(name) {
            let target: Vec<String> = target.iter().chain(&rest[1..]).cloned().collect();
            return self.resolve(&target, depth);
        }
        let by_glob = module.globs.iter().find_map(|glob| {
            let target: Vec<String> = glob.iter().chain(rest).cloned().collect();
            self.resolve(&target, depth).filter(|(to, _)| *to != key)
        });
        // A name that a macro makes counts as the module's own. The root defines nothing that others import.
        by_glob.or_else(|| (key != ROOT).then(|| (key, name.clone())))
    }

    fn key(path: &[String]) -> String {
        if path.is_empty() { ROOT.to_owned() } else { path.join("/") }
    }
}

/// Gathers what one file defines and mentions.
struct Reader<'a> {
    here: &'a [String],
    /// How many modules within the file the walk is in.
    depth: usize,
    module: Module,
}

impl Reader<'_> {
    /// A path as it is written, from the root of the crate; nothing if it leads to another crate.
    fn absolute(&self, written: &[String]) -> Option<Vec<String>> {
        let (first, rest) = written.split_first()?;
        let mut path = match first.as_str() {
            "crate" => Vec::new(),
            // Within a module of the file the first `super` is the file itself.
            "super" => self.here[..self.here.len().checked_sub(usize::from(self.depth == 0))?].to_vec(),
            "self" => self.here.to_vec(),
            _ => return None,
        };
        for word in rest {
            if word == "super" {
                path.pop()?;
            } else {
                path.push(word.clone());
            }
        }
        Some(path)
    }

    fn import(&mut self, tree: &syn::UseTree, before: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.import(&path.tree, before);
                before.pop();
            }
            syn::UseTree::Name(name) => self.bind(before, &name.ident.to_string(), None),
            syn::UseTree::Rename(name) => self.bind(before, &name.ident.to_string(), Some(name.rename.to_string())),
            syn::UseTree::Glob(_) => {
                if let Some(path) = self.absolute(before) {
                    self.module.mentioned.insert(path.clone());
                    self.module.globs.push(path);
                }
            }
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, before)),
        }
    }

    fn bind(&mut self, before: &[String], name: &str, rename: Option<String>) {
        let mut written = before.to_vec();
        if name != "self" {
            written.push(name.to_owned());
        }
        let bound = rename.or_else(|| written.last().cloned()).unwrap_or_default();
        // A path that begins with a module of this file: `use waiting::Waiter` beside `mod waiting`.
        let path = self.absolute(&written).or_else(|| {
            let mut path = self.here.to_vec();
            let own = before.first().is_some_and(|first| self.module.defined.contains(&format!("mod {first}")));
            path.extend(written.iter().cloned());
            own.then_some(path)
        });
        if let Some(path) = path {
            self.module.mentioned.insert(path.clone());
            self.module.imported.insert(bound, path);
        }
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let tokens = list.tokens.to_string();
            tokens == "test" || tokens.starts_with("all (test")
        }
        _ => false,
    })
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_file(&mut self, file: &'ast syn::File) {
        // First the names of this file, so that an import which begins with one of its modules is recognised.
        for item in &file.items {
            let name = match item {
                syn::Item::Const(item) => item.ident.to_string(),
                syn::Item::Enum(item) => item.ident.to_string(),
                syn::Item::Fn(item) => item.sig.ident.to_string(),
                syn::Item::Static(item) => item.ident.to_string(),
                syn::Item::Struct(item) => item.ident.to_string(),
                syn::Item::Trait(item) => item.ident.to_string(),
                syn::Item::Type(item) => item.ident.to_string(),
                syn::Item::Union(item) => item.ident.to_string(),
                syn::Item::Mod(item) if item.content.is_some() => item.ident.to_string(),
                syn::Item::Mod(item) => format!("mod {}", item.ident),
                _ => continue,
            };
            self.module.defined.insert(name);
        }
        visit::visit_file(self, file);
    }

    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.depth += 1;
        visit::visit_item_mod(self, item);
        self.depth -= 1;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.import(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let written: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if written.len() > 1
            && written[0] != "self"
            && let Some(path) = self.absolute(&written)
        {
            self.module.mentioned.insert(path);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        // The arguments of a macro are tokens. Paths in them begin with `crate` or `super` and go on after each `::`.
        let text = call.tokens.to_string();
        let words: Vec<&str> = text.split_whitespace().collect();
        for (at, word) in words.iter().enumerate() {
            if *word != "crate" && *word != "super" {
                continue;
            }
            let mut written = vec![(*word).to_owned()];
            let mut rest = &words[at + 1..];
            while let ["::", name, more @ ..] = rest {
                written.push((*name).to_owned());
                rest = more;
            }
            if let Some(path) = self.absolute(&written).filter(|_| written.len() > 1) {
                self.module.mentioned.insert(path);
            }
        }
        visit::visit_macro(self, call);
    }
}
