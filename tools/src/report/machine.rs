//! What the system tells about this machine.

use crate::environment::directory;
use crate::info;
use crate::processes;
use crate::text::{DIRECTORY, bytes, counted};
use doorbell_engine::tune;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// A machine, before the measurement.
pub struct Machine {
    /// The model of the processor.
    pub cpu: String,
    /// The version of Doorbell.
    pub version: String,
    /// The time, in words.
    pub time: String,
    /// Names and words of facts.
    pub facts: Vec<(&'static str, String)>,
    /// Variables of the environment that matter, with their values.
    pub variables: Vec<(String, String)>,
    /// What makes figures doubtful.
    pub warnings: Vec<String>,
}

/// Variables of others that change how programs run.
const OTHERS: [&str; 4] = ["LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_ARENA_MAX", "RUST_BACKTRACE"];
/// The part of the processors that other programs may use before the figures are doubtful.
const BUSY: f64 = 0.5;

impl Machine {
    /// Asks the system.
    pub fn look() -> Self {
        let tune::Machine { cpu, processors, version, .. } = tune::Machine::this();
        let cpu = if cpu.is_empty() { "an unknown processor".to_owned() } else { cpu };
        let allowed = processes::processors().unwrap_or_default();
        let mut warnings = Vec::new();
        if cfg!(debug_assertions) {
            warnings.push("this command was built for development and is slower: use `cargo build --release`".into());
        }
        let mut facts = vec![("processor", format!("{cpu}; {} in all", counted(processors as usize, "processor")))];
        let mut add = |name, words: Option<String>| facts.extend(words.map(|words| (name, words)));
        add("caches", caches(allowed.first().copied().unwrap_or_default()));
        add("main memory", main_memory());
        add("memory nodes", read("/sys/devices/system/node/online").filter(|nodes| nodes != "0"));
        let governors: BTreeSet<String> = allowed.iter().filter_map(|number| governor(*number)).collect();
        if governors.contains("powersave") {
            warnings.push("the governor of the processors is powersave, so they may be slow to start: try performance".into());
        }
        add("governor", (!governors.is_empty()).then(|| governors.into_iter().collect::<Vec<_>>().join(", ")));
        add("surroundings", Some(surroundings()));
        if let Some(quota) = read("/sys/fs/cgroup/cpu.max").and_then(|text| quota(&text)) {
            add("processor time", Some(format!("limited to that of {quota:.1} processors")));
            if quota < allowed.len() as f64 {
                warnings.push(format!(
                    "the container may use the time of {quota:.1} processors only, and the system stops it when it has used that up"
                ));
            }
        }
        let load = read("/proc/loadavg").and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
        if let Some(load) = load.filter(|load| *load > BUSY * allowed.len() as f64) {
            warnings.push(format!("other programs were busy when it began: {load:.1} of them ran or waited to run"));
        }
        add("load before", load.map(|load| format!("{load:.2}")));
        // The path of another directory may have the name of a user in it.
        let directory = directory().display().to_string();
        for fact in info::facts() {
            let text =
                if directory == DIRECTORY { fact.text } else { fact.text.replace(&directory, "the directory of the segments") };
            if fact.is_bad {
                warnings.push(format!("{}: {text}", fact.name));
            }
            facts.push((fact.name, text));
        }
        Self { cpu, version, time: utc(SystemTime::now()), facts, variables: variables(), warnings }
    }
}

/// A short text of the system, without the end of its line.
fn read(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The caches of a processor.
fn caches(processor: usize) -> Option<String> {
    let cache = |index: usize| {
        let of = |name: &str| read(format!("/sys/devices/system/cpu/cpu{processor}/cache/index{index}/{name}"));
        let kind = match of("type")?.as_str() {
            "Data" => " data",
            "Instruction" => " instructions",
            _ => "",
        };
        let size = bytes(kibibytes(&of("size")?)? << 10);
        let shared = of("shared_cpu_list").filter(|list| list.contains([',', '-']));
        let shared = shared.map(|list| format!(" (shared by processors {list})")).unwrap_or_default();
        Some(format!("L{}{kind} {size}{shared}", of("level")?))
    };
    let found: Vec<String> = (0..16).map_while(cache).collect();
    (!found.is_empty()).then(|| found.join(", "))
}

/// A size as the system writes it: `48K`, `30M`.
fn kibibytes(size: &str) -> Option<u64> {
    match size.strip_suffix('M') {
        Some(number) => number.parse::<u64>().ok()?.checked_mul(1024),
        None => size.strip_suffix('K')?.parse().ok(),
    }
    .filter(|size| *size < 1 << 40)
}

fn main_memory() -> Option<String> {
    let text = read("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(bytes(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10))
}

fn governor(processor: usize) -> Option<String> {
    read(format!("/sys/devices/system/cpu/cpu{processor}/cpufreq/scaling_governor"))
}

/// The number of processors whose time a control group may use.
fn quota(text: &str) -> Option<f64> {
    let (most, period) = text.split_once(' ')?;
    let (most, period): (f64, f64) = (most.parse().ok()?, period.parse().ok()?);
    (period > 0.0).then(|| most / period)
}

/// Whether this is a container or a virtual machine, as far as the system tells.
fn surroundings() -> String {
    let group = read("/proc/1/cgroup").unwrap_or_default();
    let container = [
        ("Docker", Path::new("/.dockerenv").exists() || group.contains("docker")),
        ("Podman", Path::new("/run/.containerenv").exists() || group.contains("libpod")),
        ("Kubernetes", group.contains("kubepods")),
        ("LXC", group.contains("lxc")),
        ("systemd", Path::new("/run/systemd/container").exists()),
        ("of an unknown kind", std::env::var_os("container").is_some()),
    ];
    let container = container.into_iter().find(|(_, is_it)| *is_it).map(|(kind, _)| format!("a container ({kind})"));
    let is_virtual = read("/proc/cpuinfo").is_some_and(|text| {
        text.lines().filter(|line| line.starts_with("flags")).take(1).any(|line| line.split(' ').any(|flag| flag == "hypervisor"))
    });
    match (container, is_virtual) {
        (Some(container), true) => format!("{container} in a virtual machine"),
        (Some(container), false) => container,
        (None, true) => "a virtual machine; no sign of a container".into(),
        (None, false) => "no sign of a container or a virtual machine".into(),
    }
}

/// The variables of the environment that matter. Readers of the page are strangers, so only plain words are shown.
fn variables() -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| name.starts_with("DOORBELL_") || OTHERS.contains(&name.as_str()))
        .map(|(name, value)| (name, shown(&value)))
        .collect();
    found.sort();
    found
}

/// A value if it is a plain word. A path or an address might tell something about people.
fn shown(value: &OsStr) -> String {
    let plain = |word: &&str| word.len() <= 64 && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    value.to_str().filter(plain).map_or_else(|| "(set; the value is not shown)".into(), str::to_owned)
}

/// A time as date and time of day.
fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (mut days, minutes) = (seconds / 86_400, seconds % 86_400 / 60);
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 1;
    for length in [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02} {:02}:{:02} UTC", days + 1, minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_dates() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (951_868_800, "2000-03-01 00:00 UTC"),
            (1_704_067_199, "2023-12-31 23:59 UTC"),
            (1_735_603_260, "2024-12-31 00:01 UTC"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn only_plain_words_are_shown() {
        assert_eq!(["spin", "8", "my-grid_2"].map(|word| shown(OsStr::new(word))), ["spin", "8", "my-grid_2"]);
        for word in ["/home/someone/key", "10.0.0.1:7000", "a b", &"x".repeat(65)] {
            assert!(shown(OsStr::new(word)).starts_with("(set"), "{word}");
        }
    }

    #[test]
    fn sizes_of_caches() {
        assert_eq!(["48K", "30M", "", "K", "7"].map(kibibytes), [Some(48), Some(30 << 10), None, None, None]);
    }

    #[test]
    fn a_quota_is_a_number_of_processors() {
        assert_eq!(["150000 100000", "max 100000", "", "1 0"].map(quota), [Some(1.5), None, None, None]);
    }
}
