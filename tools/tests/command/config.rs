//! `doorbell run --config`: the file, what counts before it, and its mistakes.

use super::support::{Ended, domain, doorbell, ended, nothing_is_left, sorted};
use std::fs;
use std::path::{Path, PathBuf};

/// A configuration that goes with this value.
struct File(PathBuf);

impl File {
    fn new(text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("{}.toml", domain("config")));
        fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// Runs it.
    fn run(&self, more: &[&str], variables: &[(&str, &str)]) -> Ended {
        let mut command = doorbell(&[&["run", "--config", self.path()], more].concat());
        command.envs(variables.iter().copied()).output().unwrap().into()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The first block of a page in this language.
fn block<'a>(page: &'a str, language: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("```{language}\n")).expect("there is such a block");
    rest.split_once("```").expect("it has an end").0
}

#[test]
fn the_example_of_the_page_does_what_it_says() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/run-file.md")).unwrap();
    let name = domain("page");
    // Another name, so that no other test meets it.
    let text = block(&page, "toml").replace("\"weather\"", &format!("{name:?}"));
    assert!(text.contains(&name));
    let ended = File::new(&text).run(&[], &[]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert_eq!(sorted(&ended.stdout), block(&page, "text").lines().collect::<Vec<_>>());
    nothing_is_left(&name);
}

/// All that a node is told.
const SCRIPT: &str = "echo $DOORBELL_NODE/$DOORBELL_NODES $DOORBELL_DOMAIN $DOORBELL_ROLE ${DOORBELL_PROGRESS-none} \
                      ${DOORBELL_WAIT-none} ${DOORBELL_SPACE-none} ${DOORBELL_LISTEN-none} ${DOORBELL_CONNECT-none} ${DOORBELL_PORT-none} \
                      ${DOORBELL_KEY_FILE-none} $A $B";

#[test]
fn the_command_line_counts_before_the_environment_and_that_before_the_file() {
    let (name, keys) = (domain("counts"), ["one", "other"].map(|_| File::new("")));
    let [key, other] = &keys;
    for key in &keys {
        fs::write(&key.0, [9; 32]).unwrap();
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&key.0, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let file = File::new(&format!(
        "nodes = 1\ndomain = '{name}'\nrole = 'io,host'\nprogress = 'inline'\nwait = 'park'\nspace = '/dev/shm'\nlisten = 'localhost:7000'\n\
         port = 'plain'\nkey-file = '{}'\nno-prefix = true\nprogram = 'sh'\narguments = ['-c', '{SCRIPT}']\n\
         [environment]\nA = 'all'\nB = 'all'\n[node.0]\nrole = 'service'\nenvironment.B = true\n",
        key.path()
    ));
    let of = |more: &[&str], variables: &[(&str, &str)]| {
        let ended = file.run(more, variables);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{more:?} {variables:?}");
        ended.stdout
    };
    let (key, other) = (key.path(), other.path());
    let from_file = format!("0/1 {name} service inline park /dev/shm localhost:7000 none plain {key} all true\n");
    assert_eq!(of(&[], &[]), from_file);
    assert_eq!(of(&["--no-prefix=false"], &[]), format!("[0] {from_file}"));
    let variables = [
        ("DOORBELL_DOMAIN", "fromenv"),
        ("DOORBELL_NODES", "2"),
        ("DOORBELL_ROLE", "accelerator"),
        ("DOORBELL_PROGRESS", "poller"),
        ("DOORBELL_WAIT", "yield"),
        ("DOORBELL_SPACE", "/tmp"),
        ("DOORBELL_CONNECT", "localhost:7001"),
        ("DOORBELL_PORT", "calls"),
        ("DOORBELL_KEY_FILE", other),
        // The file gives the programs this variable, whatever the command was started with.
        ("A", "inherited"),
    ];
    let from_environment = "/2 fromenv accelerator poller yield /tmp none localhost:7001 calls";
    let told = of(&[], &variables);
    assert_eq!(sorted(&told), ["all", "true"].map(|b| format!("{from_environment} {other} all {b}")));
    let options =
        ["-n", "1", "--domain", &name, "--role", "host", "--progress", "adaptive", "--wait", "spin", "--space", "/dev/shm"];
    let network = ["--listen", "127.0.0.1:7002", "--port", "auto", "--key-file", key];
    let said = format!("0/1 {name} host adaptive spin /dev/shm 127.0.0.1:7002 none auto {key} all true\n");
    assert_eq!(of(&[&options[..], &network].concat(), &variables), said);
    // A program of the command line takes no arguments of the file.
    assert_eq!(of(&["--", "echo", "other"], &[]), "other\n");
    nothing_is_left(&name);
}

#[test]
fn what_only_files_can_say_wrong_is_said_with_its_line() {
    let cases = [
        ("nodes = 1\nnodez = 2\nprogram = 'true'\n", 2, "there is no key 'nodez'; hint: the keys here are nodes, domain, "),
        ("nodes = 1\n[node.0]\nenv = 2\n", 3, "there is no key 'env'; hint: the keys here are role or environment"),
        ("nodes = 0\n", 1, "0 is not a number of nodes"),
        ("\nnodes = 'two'\n", 2, "two is not a number of nodes"),
        ("nodes = 1\nwait = 'hurry'\n", 2, "hurry"),
        ("nodes = 1\nlisten = ['127.0.0.1:1', 'hostx']\n", 2, "'hostx' is no address with a port"),
        ("nodes = 1\nbind = [0, 'x']\n", 2, "'x' is no processor"),
        ("nodes = 1\ngrace = 'soon'\n", 2, "'soon': it is not a time"),
        ("nodes = 1\nnodes = 2\n", 2, "duplicate key"),
        ("nodes = 1\nprogram\n", 2, ""),
        ("[node.x]\n", 1, "'x' is no number of a node"),
        ("[node.01]\n", 1, "'01' is no number of a node"),
        ("nodes = 1\n[environment]\nX = 3.10\n", 2, "X: write a number with a fraction, 3.1, in quotes"),
        ("nodes = 1\n[environment]\nDOORBELL_SEEK = 'a:1'\n", 2, "DOORBELL_SEEK is set by the command"),
        ("nodes = 1\n[environment]\n'A=B' = 1\n", 2, "'A=B' cannot be a variable"),
        (
            "nodes = 1\n\n[environment]\nDOORBELL_NODE = 1\n",
            3,
            "DOORBELL_NODE is set by the command; hint: the command numbers the nodes",
        ),
    ];
    for (text, line, mention) in cases {
        let file = File::new(text);
        let ended = file.run(&[], &[]);
        let expected = format!("doorbell: error: {}, line {line}: ", file.path());
        let is_clear = ended.stderr.starts_with(&expected) && ended.stderr.contains(mention) && ended.stderr.contains("; hint: ");
        assert!(ended.code == Some(2) && is_clear && ended.stderr.lines().count() == 1, "{text}: {}", ended.stderr);
    }
    let cases = [
        ("nodes = 1\n", "names no program"),
        ("program = 'true'\n", "does not say how many nodes"),
        ("nodes = 2\nprogram = 'true'\n[node.2]\n", "there is a table for node 2, and there are 2 nodes"),
        ("nodes = 1\nprogram = 'true'\nlisten = 'a:1'\nconnect = 'b:1'\n", "has listen and connect"),
    ];
    for (text, mention) in cases {
        let ended = File::new(text).run(&[], &[]);
        let is_clear = ended.stderr.contains(mention) && ended.stderr.contains("; hint: ") && ended.stderr.lines().count() == 1;
        assert!(ended.code == Some(2) && is_clear, "{text}: {}", ended.stderr);
    }
    // A smaller run leaves out the tables of nodes that it does not have.
    let smaller = File::new("nodes = 3\nprogram = 'true'\n[node.2]\nrole = 'io'\n").run(&["-n", "2"], &[]);
    assert_eq!((smaller.code, smaller.stderr.as_str()), (Some(0), ""));
    let ended = File::new(&format!("#{}\n", "x".repeat(1 << 20))).run(&[], &[]);
    assert!(ended.code == Some(2) && ended.stderr.contains("is longer than 1 MiB"), "{}", ended.stderr);
}

#[test]
fn help_teaches_the_file() {
    let help = ended(&["run", "--help"]).stdout;
    for part in ["--config <FILE>", "doorbell run --config job.toml", "nodes = 4", "[node.3]"] {
        assert!(help.contains(part), "'{part}' is missing in {help}");
    }
    // What it shows is a configuration.
    let (_, shown) = help.split_once("job.toml:\n").expect("a configuration");
    let shown: String = shown.lines().take_while(|line| line.starts_with("  ")).map(|line| line.to_owned() + "\n").collect();
    let ended = File::new(&shown).run(&["-n", "4", "--", "sh", "-c", "echo $DOORBELL_NODE $SEED"], &[]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{shown}");
    assert_eq!(sorted(&ended.stdout), ["[0] 0 1", "[1] 1 1", "[2] 2 1", "[3] 3 7"]);
}
