use super::support::{Ended, domain, doorbell, ended, eventually, processes, ring, segments, send};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};

/// A directory for segments. Dropping it removes it.
pub struct Directory(PathBuf);

impl Directory {
    pub fn make(what: &str) -> Self {
        let path = std::env::temp_dir().canonicalize().unwrap().join(domain(what));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn name(&self) -> &str {
        self.0.to_str().unwrap()
    }

    fn files(&self) -> Vec<String> {
        fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A command that runs. Dropping it interrupts it.
struct Running(Option<Child>);

impl Running {
    /// Interrupts it, and gives what it said.
    fn interrupt(mut self) -> Ended {
        let child = self.0.take().unwrap();
        send(libc::SIGINT, child.id());
        child.wait_with_output().unwrap().into()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            send(libc::SIGINT, child.id());
            let _ = child.wait();
        }
    }
}

/// The living nodes of a domain, by what `ls` says.
fn alive(name: &str, options: &[&str]) -> usize {
    let shown = ended(&[&["ls", name, "--format", "json"], options].concat());
    let domains = shown.stdout.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
    domains.map(|domain| domain["nodes"].as_array().unwrap().iter().filter(|node| node["alive"] == true).count()).sum()
}

#[test]
fn programs_and_commands_meet_in_another_directory_and_leave_nothing_there() {
    let (directory, name) = (Directory::make("space"), domain("space"));
    let space = ["--space", directory.name()];
    let mut run = doorbell(&["run", "-n", "2", "--domain", &name, space[0], space[1], "--", ring(), "1000000000"]);
    let run = Running(Some(run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()));
    eventually("that both nodes are there", || alive(&name, &space) == 2);
    assert_eq!((alive(&name, &[]), segments(&name)), (0, Vec::new()), "nothing is in the usual directory");
    let by_variable: Ended = doorbell(&["ls", &name]).env("DOORBELL_SPACE", directory.name()).output().unwrap().into();
    assert!(by_variable.stdout.contains(&name), "{}", by_variable.stdout);
    let done = run.interrupt();
    assert_eq!(done.code, Some(130), "{}", done.stderr);
    eventually("that no process is left", || processes(&name).is_empty());
    assert_eq!(directory.files(), Vec::<String>::new());
    let nobody = ended(&["ls", space[0], space[1]]);
    assert_eq!((nobody.code, nobody.stdout), (Some(0), format!("no domains of this user in {}\n", directory.name())));
}

#[test]
fn a_measurement_and_the_demo_use_it() {
    let directory = Directory::make("space-measure");
    let space = ["--space", directory.name()];
    let measured = ended(&["latency", "--sizes", "8", "--iterations", "1000", space[0], space[1]]);
    assert_eq!(measured.code, Some(0), "{}", measured.stderr);
    let shown = ended(&["demo", space[0], space[1]]);
    assert_eq!(shown.code, Some(0), "{}", shown.stderr);
    assert!(shown.stdout.contains(&format!("Nothing of all this is left in {}", directory.name())), "{}", shown.stdout);
    assert!(shown.stdout.contains(&format!("in {} ", directory.name())), "{}", shown.stdout);
    assert_eq!(directory.files(), Vec::<String>::new());
    // A page that people send to each other does not name it.
    let pages = Directory::make("space-page");
    let page = pages.0.join("page.html");
    let written = ended(&["report", "--quick", page.to_str().unwrap(), space[0], space[1]]);
    assert_eq!(written.code, Some(0), "{}", written.stderr);
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("the directory of the segments has ") && !page.contains(directory.name()), "{page}");
    assert_eq!(directory.files(), Vec::<String>::new());
}

#[test]
fn a_directory_that_cannot_be_used_is_said() {
    let said = |args: &[&str], value: &str| -> Ended { doorbell(args).env("DOORBELL_SPACE", value).output().unwrap().into() };
    for (refused, mention) in [
        (said(&["ls"], "relative"), "DOORBELL_SPACE: 'relative' cannot have segments: it is no absolute path"),
        (said(&["ls"], "/no/such/place"), "No such file or directory"),
        (ended(&["ls", "--space", "/no/such/place"]), "--space: '/no/such/place' cannot have segments"),
    ] {
        assert_eq!(
            (refused.code, refused.stdout.as_str(), refused.stderr.lines().count()),
            (Some(2), "", 1),
            "{}",
            refused.stderr
        );
        assert!(refused.stderr.contains(mention) && refused.stderr.contains("; hint: "), "{}", refused.stderr);
    }
    let mut program = std::process::Command::new(ring());
    program.env("DOORBELL_DOMAIN", domain("space-odd")).env("DOORBELL_SPACE", "relative");
    let refused: Ended = program.output().unwrap().into();
    assert!(refused.code != Some(0) && refused.stderr.contains("'relative' is no absolute path"), "{}", refused.stderr);
}
