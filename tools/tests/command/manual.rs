use super::support::ended;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A directory that a test makes. Dropping it removes it.
struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The names of the subcommands that a help lists.
fn listed(help: &str) -> Vec<String> {
    let Some((_, list)) = help.split_once("Commands:\n") else { return Vec::new() };
    let lines = list.lines().take_while(|line| !line.is_empty());
    let lines = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    lines.filter_map(|line| line.split_whitespace().next()).filter(|word| *word != "help").map(str::to_owned).collect()
}

#[test]
fn every_command_has_a_page_that_names_its_options() {
    let directory = Directory(std::env::temp_dir().join(format!("doorbell-man-{}", std::process::id())));
    let path = directory.0.join("man1");
    let done = ended(&["man", path.to_str().unwrap()]);
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    let mut expected = BTreeSet::from(["doorbell.1".to_owned()]);
    for command in listed(&ended(&["--help"]).stdout) {
        expected.insert(format!("doorbell-{command}.1"));
        let subcommands = listed(&ended(&[&command, "--help"]).stdout);
        expected.extend(subcommands.iter().map(|sub| format!("doorbell-{command}-{sub}.1")));
    }
    let found: BTreeSet<String> =
        fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(found, expected);
    assert!(found.contains("doorbell-io-serve.1") && found.len() > 20, "{found:?}");
    let page = fs::read_to_string(path.join("doorbell-top.1")).unwrap();
    assert!(page.contains("\\-\\-interval") && page.contains("Examples:") && page.contains(".TH doorbell-top 1 "), "{page}");
    // Pages that are there are replaced.
    assert_eq!(ended(&["man", path.to_str().unwrap()]).code, Some(0));

    let file = directory.0.join("file");
    fs::write(&file, "").unwrap();
    let refused = ended(&["man", file.to_str().unwrap()]);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(2), ""));
    assert!(refused.stderr.contains("cannot make the directory") && refused.stderr.contains("; hint: "), "{}", refused.stderr);
}

#[test]
fn bash_accepts_the_completions_and_completes_by_them() {
    let script = ended(&["completions", "bash"]);
    assert_eq!((script.code, script.stderr.as_str()), (Some(0), ""));
    let bash = |arguments: &[&str], input: &str| {
        let mut child = Command::new("bash")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let checked = bash(&["-n"], &script.stdout);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let ask = "\nCOMP_WORDS=(doorbell serve --lis); COMP_CWORD=2; _doorbell doorbell --lis serve; echo \"${COMPREPLY[@]}\"\n";
    let completed = bash(&["--norc", "-s"], &(script.stdout + ask));
    assert_eq!(String::from_utf8_lossy(&completed.stdout).trim(), "--listen");
    for (shell, mark) in [("zsh", "#compdef doorbell"), ("fish", "complete -c doorbell"), ("elvish", "doorbell;serve")] {
        let script = ended(&["completions", shell]).stdout;
        assert!(script.contains(mark) && !script.contains("demo-accelerator"), "{shell}");
    }
    let refused = ended(&["completions", "x"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("'x'") && refused.stderr.contains("it can be bash"), "{}", refused.stderr);
}
