use super::support::{ended, example};
use std::fs;
use std::path::Path;

fn file(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).expect(path)
}

/// The first block of this language.
fn block<'a>(text: &'a str, language: &str) -> &'a str {
    let (_, rest) = text.split_once(&format!("```{language}\n")).expect("there is such a block");
    rest.split_once("```").expect("it has an end").0
}

#[test]
fn its_program_is_the_example_and_does_what_it_says() {
    assert_eq!(
        block(&file("README.md"), "rust"),
        file("driver/examples/hello.rs"),
        "README.md and driver/examples/hello.rs differ"
    );
    let ended = ended(&["run", "-n", "2", "--", &example("hello")]);
    assert_eq!((ended.code, ended.stdout.as_str(), ended.stderr.as_str()), (Some(0), "[0] node 1 says: done\n", ""));
}

#[test]
fn its_first_commands_are_those_of_the_checks() {
    let readme = file("README.md");
    assert_eq!(block(&readme, "sh"), "cargo run --release -- demo\ncargo test --workspace\n");
}

#[test]
fn its_page_of_commands_names_every_command_and_no_other() {
    let page = file("docs/commands.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `doorbell "));
    let mut named: Vec<_> = rows.map(|row| row.split([' ', '`']).next().unwrap_or_default().to_owned()).collect();
    let help = ended(&["--help"]).stdout;
    let (_, list) = help.split_once("Commands:\n").expect("a list of commands");
    let list = list.lines().take_while(|line| !line.is_empty()).filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let mut there: Vec<_> =
        list.filter_map(|line| line.split_whitespace().next()).filter(|word| *word != "help").map(str::to_owned).collect();
    named.sort_unstable();
    there.sort_unstable();
    assert_eq!(named, there);
}

/// Set in the environment of this test, it writes the page anew.
const UPDATE: &str = "UPDATE";

#[test]
fn its_reference_of_the_commands_is_what_the_command_prints() {
    let printed = ended(&["reference"]);
    assert_eq!((printed.code, printed.stderr.as_str()), (Some(0), ""));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference-commands.md");
    if std::env::var_os(UPDATE).is_some() {
        fs::write(&path, &printed.stdout).expect("the page");
    }
    let page = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        page == printed.stdout,
        "docs/reference-commands.md and the command differ; {UPDATE}=1 cargo test -p doorbell-tools reference"
    );
    for hidden in ["guard", "worker", "demo-accelerator", "reference"] {
        assert!(!page.contains(&format!("## `doorbell {hidden}")), "{hidden}");
    }
    assert!(page.contains("## `doorbell io serve`") && page.contains("| `--listen <ADDR>` |"), "{page}");
}
