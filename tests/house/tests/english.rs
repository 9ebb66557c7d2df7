//! No sentence has a clause for its subject where a noun should stand.

use std::path::Path;

const SUBJECTS: [&str; 3] = ["Who", "Whoever", "What"];
const VERBS: [&str; 11] = ["is", "was", "has", "finds", "waits", "gets", "comes", "dies", "reads", "writes", "wants"];

/// Whether a line has a word such as "Who" with a verb such as "waits" behind it.
fn is_riddle(line: &str) -> bool {
    let words: Vec<&str> =
        line.split(|char: char| !char.is_alphanumeric() && char != '_' && char != ' ').flat_map(|part| part.split(' ')).collect();
    words.windows(2).any(|pair| SUBJECTS.contains(&pair[0]) && VERBS.contains(&pair[1]))
}

fn visit(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the repository") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                visit(&path, found);
            }
        } else if name.ends_with(".rs") && name != "english.rs" || name.ends_with(".md") {
            let text = std::fs::read_to_string(&path).expect("text");
            let lines = text.lines().enumerate().filter(|(_, line)| is_riddle(line));
            found.extend(lines.map(|(number, line)| format!("{}:{}: {}", path.display(), number + 1, line.trim())));
        }
    }
}

#[test]
fn subjects_are_nouns() {
    assert!(
        is_riddle("// Who waits here sleeps.")
            && is_riddle("/// What is done is done")
            && !is_riddle("// The waiter sleeps. What a day")
    );
    let mut found = Vec::new();
    visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), &mut found);
    assert!(found.is_empty(), "name the thing that acts, in these lines: {found:#?}");
}
