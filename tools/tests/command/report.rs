use super::support::{Ended, domain, doorbell, ended, segments};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A directory that a test makes. Dropping it removes it.
struct Directory(PathBuf);

impl Directory {
    fn make(what: &str) -> Self {
        let path = std::env::temp_dir().join(domain(what));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn at(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The elements of a page, after a check that each one that begins also ends.
fn elements(page: &str) -> Vec<String> {
    const EMPTY: [&str; 2] = ["meta", "link"];
    let (mut open, mut found) = (Vec::new(), Vec::new());
    let mut rest = page.strip_prefix("<!DOCTYPE html>").expect("a type");
    while let Some((_, from)) = rest.split_once('<') {
        let (tag, after) = from.split_once('>').expect("the end of a tag");
        assert!(!tag.contains('<'), "<{tag}>");
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name.to_owned()), "</{name}>");
            continue;
        }
        let name = tag.split(' ').next().unwrap().to_owned();
        if !EMPTY.contains(&name.as_str()) {
            open.push(name.clone());
        }
        if name == "style" {
            rest = &rest[rest.find("</style>").expect("the end of the style")..];
        }
        found.push(tag.to_owned());
    }
    assert!(open.is_empty(), "{open:?} do not end");
    found
}

/// The drawings of a page.
fn drawings(page: &str) -> Vec<&str> {
    page.split("<svg ").skip(1).map(|part| part.split_once("</svg>").expect("an end").0).collect()
}

#[test]
fn a_quick_report_is_a_whole_page_with_what_was_measured() {
    let directory = Directory::make("report");
    let path = directory.at("page.html");
    let done = ended(&["report", "--quick", &path, "--format", "json"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let page = fs::read_to_string(&path).unwrap();
    let elements = elements(&page);
    assert!(page.ends_with("</html>\n"));
    for never in ["http:", "https:", "url(", "@import", "<script", " src=", " on"] {
        assert!(!elements.iter().any(|tag| format!("<{tag}").contains(never)), "{never}");
        assert!([" on"].contains(&never) || !page.contains(never), "{never}");
    }
    let links: Vec<_> = elements.iter().filter(|tag| tag.contains("href")).collect();
    assert_eq!(links, ["link rel=\"icon\" href=\"data:,\""]);

    let drawings = drawings(&page);
    assert_eq!(drawings.len(), 5);
    for drawing in drawings {
        assert_eq!(drawing.matches("class=\"name\"").count(), 2, "each axis has its name: {drawing}");
        assert!(drawing.matches("class=\"mark\"").count() >= 4, "each axis has marks: {drawing}");
        assert!(drawing.contains("class=\"line\"") || drawing.contains("class=\"bar\""), "{drawing}");
        assert!(!drawing.contains("NaN") && !drawing.contains("inf"), "{drawing}");
    }
    // The rows on stdout are those of the page.
    let rows: Vec<Value> = done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sizes = |test: &str| -> Vec<u64> {
        rows.iter().filter(|row| row["test"] == test).map(|row| row["size_bytes"].as_u64().unwrap()).collect()
    };
    assert_eq!(sizes("latency"), [8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20]);
    assert_eq!(sizes("rate"), [8, 64, 512, 4 << 10]);
    assert_eq!(sizes("bandwidth"), [0, 2, 4, 6, 8, 10, 12].map(|power| 1024 << power));
    for row in &rows {
        assert!(row["p50_ns"].as_f64() > Some(0.0) && row["messages_per_s"].as_f64() > Some(0.0), "{row}");
    }
    for size in ["8 B", "512 B", "1 KiB", "16 KiB", "32 KiB", "256 KiB", "1 MiB", "4 MiB"] {
        assert!(page.contains(&format!("<td>{size}</td>")), "{size}");
    }
    for part in [
        "<th>processor</th>",
        "<th>kernel</th>",
        "<th>surroundings</th>",
        "<h2>Environment</h2>",
        "<dt>floor</dt>",
        "<dt>hop</dt>",
    ] {
        assert!(page.contains(part), "{part}");
    }
    // On a busy machine the distance is not measured, and the page says so.
    let is_measured = rows.iter().any(|row| !row["hop_ns"].is_null());
    assert_eq!(page.contains("<dt>hop</dt><dd class=\"value\">?</dd>"), !is_measured);
    // Each warning is on the page, too.
    for warning in done.stderr.lines().filter_map(|line| line.strip_prefix("doorbell: warning: ")) {
        assert!(page.contains(&warning.replace('"', "&quot;")), "{warning}");
    }
    assert!(page.contains("--pin 0,1"), "the processes were free to move, and the page says so");
    assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 1, "nothing is left beside the page");

    // A former page is replaced.
    let mut command = doorbell(&["report", "--quick", &path, "--pin", "0,0"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    let own = format!("report-{}.", child.id());
    let again = Ended::from(child.wait_with_output().unwrap());
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    assert!(again.stdout.contains("has the whole report\n") && again.stdout.starts_with("latency "), "{}", again.stdout);
    assert_ne!(fs::read_to_string(&path).unwrap(), page);
    // Tests beside this one make reports, too: those domains have the numbers of other processes.
    assert_eq!(segments(&own), Vec::<String>::new());
}

#[test]
fn another_file_stays_as_it_is() {
    let directory = Directory::make("report-other");
    let path = directory.at("page.html");
    fs::write(&path, "<!DOCTYPE html><p>doorbell report</p>").unwrap();
    let refused = ended(&["report", "--quick", &path]);
    assert_eq!((refused.code, refused.stdout.as_str(), refused.stderr.lines().count()), (Some(2), "", 1), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("a file is there that is no page") && refused.stderr.contains("--force"),
        "{}",
        refused.stderr
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "<!DOCTYPE html><p>doorbell report</p>");
    let refused = ended(&["report", "--pin", "1023", &directory.at("new.html")]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("processor 1023 is not there"), "{}", refused.stderr);
    assert!(!Path::new(&directory.at("new.html")).exists());
}

/// Tells the frame around the page which of its texts lie over each other, and how wide it is.
const LOOK: &str = r"
addEventListener('load', () => {
  const found = [], places = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    if (!node.data.trim() || node.parentElement.closest('title')) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) if (box.width > 0 && box.height > 0) places.push([node, box]);
  }
  places.forEach(([one, a], at) => {
    for (const [other, b] of places.slice(at + 1)) {
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (one !== other && wide > 1.5 && high > 3) found.push(one.data + ' | ' + other.data);
    }
  });
  parent.postMessage({ wide: innerWidth, needs: document.documentElement.scrollWidth, texts: places.length, found }, '*');
});";

/// Collects what the frames tell.
const FRAMES: &str = r"<!DOCTYPE html><meta charset=utf-8><script>
const told = [];
addEventListener('message', (event) => {
  told.push(event.data);
  if (told.length === 2) document.querySelector('pre').textContent = JSON.stringify(told);
});</script><pre>nothing was told</pre>
<iframe src=looked.html width=360 height=900 style='border:0'></iframe>
<iframe src=looked.html width=1440 height=900 style='border:0'></iframe>";

/// What Chromium prints when it has opened a page: the page on stdout, and messages on stderr.
fn opened(directory: &Directory, name: &str) -> (String, String) {
    let profile = directory.at("profile");
    let output = Command::new("timeout")
        .args(["120", "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--enable-logging=stderr", "--virtual-time-budget=10000", "--window-size=1900,1200", "--dump-dom"])
        .args([format!("--user-data-dir={profile}"), format!("file://{}", directory.at(name))])
        .stdin(Stdio::null())
        .output()
        .expect("`timeout` and `chromium` are there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// Opens the page in frames as narrow as a telephone and as wide as a screen. Checks that no text lies over another, and that nothing is wider
/// than its frame.
fn is_laid_out_well(directory: &Directory) {
    let of_console = |said: &str| said.lines().filter(|line| line.contains("CONSOLE")).map(str::to_owned).collect::<Vec<_>>();
    let (shown, said) = opened(directory, "page.html");
    assert!(shown.contains("<svg "), "{shown}");
    assert_eq!(of_console(&said), Vec::<String>::new());

    // The page allows no script. The copy does, so it can measure itself.
    let page = fs::read_to_string(directory.at("page.html")).unwrap().replace("<details>", "<details open>");
    let policy = page.find("<meta http-equiv=\"Content-Security-Policy\"").expect("a policy");
    let after = policy + page[policy..].find('>').unwrap() + 1;
    let copy = format!("{}<script>{LOOK}</script>{}", &page[..policy], &page[after..]);
    fs::write(directory.at("looked.html"), copy).unwrap();
    fs::write(directory.at("frames.html"), FRAMES).unwrap();
    let (shown, said) = opened(directory, "frames.html");
    assert_eq!(of_console(&said), Vec::<String>::new());
    let (_, rest) = shown.split_once("<pre>").expect("the frames told something");
    let told = rest.split_once("</pre>").unwrap().0.replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">");
    let told: Vec<Value> = serde_json::from_str(&told).expect(&told);
    let mut widths: Vec<u64> = told.iter().map(|told| told["wide"].as_u64().unwrap()).collect();
    widths.sort_unstable();
    assert_eq!(widths, [360, 1440]);
    for told in told {
        assert!(told["texts"].as_u64() > Some(150), "{told}");
        assert_eq!(told["found"], Value::Array(Vec::new()), "texts lie over each other at {} pixels", told["wide"]);
        assert!(told["needs"].as_u64() <= told["wide"].as_u64(), "the page is too wide: {told}");
    }
}

#[test]
#[ignore = "needs Chromium, which `.ci/run browser` gets"]
fn a_browser_shows_the_report_without_an_error_and_no_text_lies_over_another() {
    let directory = Directory::make("report-browser");
    let done = ended(&["report", "--quick", &directory.at("page.html")]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    is_laid_out_well(&directory);
}

#[test]
#[ignore = "needs Chromium, which `.ci/run browser` gets"]
fn a_browser_shows_the_page_of_modes_without_an_error_and_no_text_lies_over_another() {
    let directory = Directory::make("modes-browser");
    let done = ended(&["modes", "--scale", "0.02", "--rounds", "1", "--report", &directory.at("page.html")]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    is_laid_out_well(&directory);
}
