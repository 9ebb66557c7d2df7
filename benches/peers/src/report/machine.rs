//! What a report says of the machine, the day and the command.

use std::time::{SystemTime, UNIX_EPOCH};

/// The date of today, in UTC.
pub fn today() -> String {
    let days = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 86_400;
    let (year, month, day) = date(days as i64);
    format!("{year:04}-{month:02}-{day:02}")
}

/// The Gregorian date that many days after 1 January 1970.
fn date(days: i64) -> (i64, i64, i64) {
    let leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let (mut year, mut left) = (1970, days);
    loop {
        let length = if leap(year) { 366 } else { 365 };
        if left < length {
            break;
        }
        left -= length;
        year += 1;
    }
    let mut month = 1;
    for length in [31, if leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

/// The command as a user with the repository would type it.
pub fn command() -> String {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let command = "cargo run --release --manifest-path benches/peers/Cargo.toml";
    if arguments.is_empty() { command.into() } else { format!("{command} -- {}", arguments.join(" ")) }
}

/// The processors of the machine.
pub fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let models: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split_once(':').filter(|(name, _)| name.trim() == "model name"))
        .map(|(_, model)| model.trim())
        .collect();
    let guest = if text.contains(" hypervisor") { ", a virtual machine" } else { "" };
    match models.first() {
        Some(model) => format!("{} processors, {model}{guest}", models.len()),
        None => "unknown".into(),
    }
}

/// The kernel of the machine.
pub fn kernel() -> String {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default().trim().to_string();
    format!("{} {}", read("ostype"), read("osrelease"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        assert_eq!((date(0), date(59), date(11_016)), ((1970, 1, 1), (1970, 3, 1), (2000, 2, 29)));
        assert_eq!((date(19_722), date(19_723)), ((2023, 12, 31), (2024, 1, 1)));
    }
}
