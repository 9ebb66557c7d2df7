//! The pages of the repository: their links, their lengths, their place in the book, and what they must name.

use quote::ToTokens;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The most words of a page that is no reference.
const WORDS: usize = 2500;
/// The most words of README.md.
const README_WORDS: usize = 900;
/// Pages that readers look things up in.
const REFERENCE: [&str; 4] = ["wire.md", "journeys.md", "reference-commands.md", "performance.md"];
/// The most bytes of a picture.
const PICTURE_BYTES: u64 = 150 << 10;
/// Files with errors that a user can see. `docs/errors.md` has an anchor for each of their variants.
const ERRORS: [&str; 7] = [
    "driver/engine/src/error.rs",
    "fabric-shm/src/error.rs",
    "fabric-udp/src/fabric/options.rs",
    "driver/services/lock/src/error.rs",
    "driver/services/collective/src/error.rs",
    "driver/services/device/src/error.rs",
    "driver/services/atomic/src/error.rs",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The pages of the book.
fn book() -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join("docs")).expect("docs");
    let mut pages: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    pages.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.sort();
    pages
}

fn name(page: &Path) -> String {
    page.file_name().expect("a name").to_string_lossy().into_owned()
}

/// The pages whose links are checked.
fn linking() -> Vec<PathBuf> {
    let mut pages = book();
    pages
        .extend(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"].map(|page| root().join(page)));
    pages
}

/// The lines outside of fenced blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        inside ^= fence;
        !inside && !fence
    })
}

/// The anchors that a page names itself.
fn ids(text: &str) -> impl Iterator<Item = &str> {
    text.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next())
}

/// The anchors of a page: those that its headings get, and those that it names.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let headings = prose(text).filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let slug = |heading: &str| -> String {
        let lower = heading.to_lowercase();
        let kept = lower.chars().filter_map(|char| match char {
            ' ' => Some('-'),
            '-' | '_' => Some(char),
            _ => char.is_alphanumeric().then_some(char),
        });
        kept.collect()
    };
    headings
        .map(|heading| {
            let slug = slug(heading);
            let times = seen.entry(slug.clone()).or_default();
            *times += 1;
            if *times == 1 { slug } else { format!("{slug}-{}", *times - 1) }
        })
        .chain(ids(text).map(str::to_owned))
        .collect()
}

/// The targets of the links of a page, without those in code.
fn targets(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        let plain: String = line.split('`').enumerate().map(|(at, part)| if at % 2 == 0 { part } else { "code" }).collect();
        found.extend(plain.split("](").skip(1).filter_map(|rest| rest.split(')').next()).map(str::to_owned));
    }
    found
}

/// The broken links of a page.
fn faults(page: &Path, text: &str) -> Vec<String> {
    let folder = page.parent().expect("a folder");
    let in_book = folder.ends_with("docs");
    let mut faults = Vec::new();
    for target in targets(text) {
        if target.contains("://") {
            continue;
        }
        let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
        let file = if path.is_empty() { page.to_owned() } else { folder.join(path) };
        let told = |why: &str| format!("{}: ({target}) {why}", name(page));
        if !file.exists() {
            faults.push(told("leads nowhere"));
        } else if in_book && path.contains("..") {
            faults.push(told("leads out of the book, where it is dead"));
        } else if !anchor.is_empty() && !anchors(&if path.is_empty() { text.to_owned() } else { read(&file) }).contains(anchor) {
            faults.push(told("has no such heading"));
        }
    }
    faults
}

/// Words as a reader counts them: not the bars of tables, nor dashes.
fn words(text: &str) -> usize {
    text.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric)).count()
}

#[test]
fn links_and_anchors_lead_somewhere() {
    let page = root().join("docs/start.md");
    assert_eq!(faults(&page, "# A b\n[x](guide.md), [y](#a-b), [z](guide.md#choose-a-wait), `[c](no.md)`\n").len(), 0);
    for broken in ["[x](no.md)", "[x](#none)", "[x](guide.md#none)", "[x](../README.md)"] {
        assert_eq!(faults(&page, broken).len(), 1, "{broken}");
    }
    let found: Vec<String> = linking().iter().flat_map(|page| faults(page, &read(page))).collect();
    assert!(found.is_empty(), "mend these links: {found:#?}");
}

#[test]
fn each_page_is_in_the_book_once() {
    let summary = read(&root().join("docs/SUMMARY.md"));
    let mut listed = targets(&summary);
    listed.sort();
    let mut there: Vec<String> = book().iter().map(|page| name(page)).filter(|page| page != "SUMMARY.md").collect();
    there.sort();
    assert_eq!(listed, there, "docs/SUMMARY.md and the pages of docs/ differ");
}

#[test]
fn pages_are_short() {
    assert_eq!(words("| a | b-c |\n|---|---:|\n– 7 µs"), 4);
    let readme = words(&read(&root().join("README.md")));
    assert!(readme <= README_WORDS, "README.md has {readme} words; {README_WORDS} is the most");
    let long: Vec<String> = book()
        .iter()
        .filter(|page| !REFERENCE.contains(&&*name(page)))
        .map(|page| (name(page), words(&read(page))))
        .filter(|(_, count)| *count > WORDS)
        .map(|(page, count)| format!("{page}: {count} words"))
        .collect();
    assert!(long.is_empty(), "divide these pages, {WORDS} words are the most: {long:#?}");
}

#[test]
fn pictures_are_small_and_a_page_shows_each() {
    let pages: Vec<String> = linking().iter().flat_map(|page| targets(&read(page))).collect();
    let mut faults = Vec::new();
    for entry in fs::read_dir(root().join("docs/pictures")).expect("docs/pictures") {
        let path = entry.expect("an entry").path();
        let bytes = fs::metadata(&path).expect("a picture").len();
        if bytes > PICTURE_BYTES {
            faults.push(format!("{} has {bytes} bytes; {PICTURE_BYTES} are the most", name(&path)));
        }
        if !pages.iter().any(|target| target.ends_with(&format!("pictures/{}", name(&path)))) {
            faults.push(format!("no page shows {}", name(&path)));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn each_snippet_is_compiled() {
    let list = read(&root().join("tests/pages/src/lib.rs"));
    for page in book() {
        let (text, name) = (read(&page), name(&page));
        let has = text.lines().any(|line| line.trim_start().starts_with("```rust"));
        let included = list.contains(&format!("include_str!(\"../../../docs/{name}\")"));
        assert_eq!(has, included, "{name}: a page with Rust snippets belongs into tests/pages/src/lib.rs, and no other page");
        assert!(!text.contains("```rust,ignore"), "{name}: a snippet that is not compiled may be wrong");
    }
}

/// `NotOurs` as `not-ours`.
fn kebab(name: &str) -> String {
    let part = |(at, char): (usize, char)| {
        let dash = if at > 0 && char.is_uppercase() { "-" } else { "" };
        format!("{dash}{}", char.to_lowercase())
    };
    name.char_indices().map(part).collect()
}

/// The variants of the errors of a file with their anchors and documentation. The prefix of the anchors is the one that
/// `anchor()` uses.
fn variants(text: &str) -> Vec<(String, String, String)> {
    let file = syn::parse_file(text).expect("Rust");
    let enums = file.items.into_iter().filter_map(|item| if let syn::Item::Enum(item) = item { Some(item) } else { None });
    let errors = enums.filter(|item| item.ident.to_string().ends_with("Error") || item.ident == "KeyFault");
    let mut found = Vec::new();
    for error in errors {
        let attributes: String = error.attrs.iter().map(|attr| attr.meta.to_token_stream().to_string()).collect();
        assert!(attributes.contains("strum_discriminants"), "{} has no anchors", error.ident);
        let prefix = attributes.split_once("prefix = \"").map_or("", |(_, rest)| rest.split('"').next().expect("a prefix"));
        for variant in error.variants {
            let docs = variant.attrs.iter().filter(|attr| attr.path().is_ident("doc"));
            let docs = docs.map(|attr| attr.meta.to_token_stream().to_string()).collect();
            found.push((variant.ident.to_string(), format!("{prefix}{}", kebab(&variant.ident.to_string())), docs));
        }
    }
    found
}

#[test]
fn each_error_has_an_anchor_on_the_page_of_errors_and_names_it() {
    let page = read(&root().join("docs/errors.md"));
    let mut faults = Vec::new();
    let mut known = BTreeSet::new();
    for path in ERRORS {
        for (variant, anchor, docs) in variants(&read(&root().join(path))) {
            if page.matches(&format!("<a id=\"{anchor}\"></a>`{variant}`")).count() != 1 {
                faults.push(format!("docs/errors.md does not have #{anchor} once, before `{variant}`"));
            }
            if !docs.contains(&format!("See `errors.md#{anchor}`.")) {
                faults.push(format!("the documentation of {variant} in {path} does not name errors.md#{anchor}"));
            }
            assert!(known.insert(anchor.clone()), "{anchor} stands for two errors");
        }
    }
    faults.extend(ids(&page).filter(|id| !known.contains(*id)).map(|id| format!("docs/errors.md#{id} is no error")));
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn numbers_of_teams_on_the_page_are_those_of_the_code() {
    let code = read(&root().join("driver/services/collective/src/formation.rs"));
    let page = read(&root().join("docs/wire.md"));
    let value = |name: &str| {
        let (_, rest) = code.split_once(&format!("const {name}: ")).expect(name);
        let (value, _) = rest.split_once(';').expect("an end");
        value.split_once("= ").expect("a value").1.replace('_', "")
    };
    for name in ["LINEAGE", "NUMBER"] {
        let value = format!("`{}`", value(name));
        assert!(page.contains(&value), "docs/wire.md has no {value}, which is {name} in formation.rs");
    }
}

#[test]
fn no_crate_includes_a_file_from_outside_of_its_folder() {
    fn visit(folder: &Path, found: &mut Vec<String>) {
        let own = |path: &Path| path.ancestors().skip(1).find(|folder| folder.join("Cargo.toml").exists()).map(Path::to_owned);
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = name(&path);
            if path.is_dir() && name != "target" && !name.starts_with('.') && !path.ends_with("tests/pages") && name != "house" {
                visit(&path, found);
            } else if name.ends_with(".rs") {
                for part in read(&path).split("include_str!(\"").skip(1) {
                    let file = path.with_file_name("").join(part.split('"').next().unwrap_or_default());
                    let inside = file.canonicalize().is_ok_and(|file| own(&path).is_some_and(|own| file.starts_with(own)));
                    if !inside {
                        found.push(format!("{}: {}", path.display(), file.display()));
                    }
                }
            }
        }
    }
    let mut found = Vec::new();
    visit(&root(), &mut found);
    assert!(found.is_empty(), "a published package does not have these files: {found:#?}");
}
