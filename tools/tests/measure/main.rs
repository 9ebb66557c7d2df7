//! `doorbell latency`, `rate`, `bandwidth`, `lock`, `atomics`, `collective`, `device` and `tune` as a user runs them. No time is asserted, only forms, and that nothing stays behind.

#[path = "../as_usual/mod.rs"]
mod as_usual;

mod ends;

use serde_json::Value;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn doorbell(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_doorbell"));
    as_usual::ignoring(&mut command, &[]);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(args: &[&str]) -> Output {
    doorbell(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Whatever a domain has in shared memory.
fn leftovers(domain: &str) -> Vec<String> {
    let names = std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.split('.').nth(2) == Some(domain)).collect()
}

fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "it never came true that {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn mistakes_get_one_line_with_a_hint() {
    let cases: [(&[&str], &str); 46] = [
        (&["latency", "--sizes", "8,4kib"], "units are B, KiB"),
        (&["latency", "--sizes", "big"], "sizes look like"),
        (&["latency", "--wait", "sleep"], "it can be auto, spin, yield, park"),
        (&["latency", "--progress", "magic"], "it can be inline, poller, adaptive"),
        (&["latency", "--pin", "0,9999"], "this process may run on"),
        (&["latency", "--pairs", "0"], "hint:"),
        (&["latency", "--format", "xml"], "it can be table, json, csv, hgrm"),
        (&["latency", "--domain", "no/such", "--iterations", "10"], "A-Z a-z 0-9"),
        (&["rate", "--warmup", "3"], "hint:"),
        (&["rate", "--window", "3"], "hint:"),
        (&["bandwidth", "--window", "0"], "hint:"),
        (&["bandwidth", "--sizes", "8,1GiB"], "--window 2 is enough"),
        (&["bandwidth", "--copy", "nobody"], "it can be origin, target, both, auto"),
        (&["latency", "--put", "--sizes", "8,12"], "multiples of 8"),
        (&["latency", "--put", "--sizes", "0"], "multiples of 8"),
        (&["latency", "--put", "--buffers", "private"], "hint:"),
        (&["rate", "--put", "--floor"], "hint:"),
        (&["lock", "--nodes", "1"], "hint:"),
        (&["lock", "--seconds", "0"], "hint:"),
        (&["lock", "--pin", "9999"], "this process may run on"),
        (&["lock", "--wait", "sleep"], "it can be auto, spin, yield, park"),
        (&["lock", "--format", "hgrm"], "it can be table, json, csv"),
        (&["lock", "--domain", "no/such"], "A-Z a-z 0-9"),
        (&["collective", "--op", "gossip"], "it can be barrier, broadcast, reduce, allreduce, allgather, alltoall"),
        (&["collective", "--op", "barrier,gossip"], "it can be barrier, broadcast, reduce, allreduce, allgather, alltoall"),
        (&["collective", "--nodes", "1"], "1 is not in 2..=64"),
        (&["collective", "--nodes", "65"], "65 is not in 2..=64"),
        (&["collective", "--sizes", "6"], "multiples of 4 bytes"),
        (&["collective", "--sizes", "0"], "multiples of 4 bytes"),
        (&["collective", "--sizes", "8,2GiB"], "that is too much"),
        (&["collective", "--sizes", "8,257MiB"], "268435456 B at most"),
        (&["collective", "--op", "alltoall", "--nodes", "4", "--sizes", "65MiB"], "67108864 B at most"),
        (&["collective", "--channels", "65"], "65 is not in 1..=64"),
        (&["collective", "--slot", "2KiB"], "a multiple of 128, from 4KiB to 64MiB"),
        (&["collective", "--sync", "never"], "it can be background, foreground, both"),
        (&["collective", "--compute", "50"], "times look like"),
        (&["collective", "--pin", "9999"], "this process may run on"),
        (&["dma", "--iterations", "0"], "0 is not in 1..=1000000"),
        (&["dma", "--pin", "9999"], "this process may run on"),
        (&["device", "--threads", "17"], "17 is not in 1..=16"),
        (&["device", "--mode", "dual", "--threads", "1"], "--threads 2 at least"),
        (&["device", "--size", "8,17MiB"], "messages have 16 MiB at most"),
        (&["device", "--scheme", "magic"], "it can be claimed, dispatcher, fifo"),
        (&["device", "--load", "paced"], "it can be turn, random, alone"),
        (&["device", "--count", "5", "--seconds", "1"], "hint:"),
        (&["device", "--pin", "9999"], "this process may run on"),
    ];
    for (args, hint) in cases {
        let output = run(args);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.starts_with("doorbell: error: ") && error.lines().count() == 1, "{args:?}: {error}");
        assert!(error.contains(hint), "{args:?}: {error}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn dma_tells_all_in_json() {
    let output = run(&["dma", "--sizes", "8,64KiB", "--iterations", "50", "--format", "json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.iter().map(|row| row["size_bytes"].as_u64().unwrap()).collect::<Vec<_>>(), [8, 65_536]);
    for row in rows {
        let figure = |name: &str| row[name].as_f64().unwrap();
        assert!(
            figure("inject_ns") > 0.0 && figure("inject_ns") <= figure("p50_ns") && figure("p50_ns") <= figure("p99_ns"),
            "{row}"
        );
        assert!(figure("round_trip_ns") > 0.0 && (0.0..=1.0).contains(&figure("overlap")), "{row}");
    }
}

#[test]
fn latency_tells_all_in_json() {
    let output = run(&["latency", "--sizes", "0,8,64,4KiB,200kB", "--iterations", "1000", "--floor", "--format", "json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.iter().map(|row| row["size_bytes"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 8, 64, 4096, 200_000]);
    for row in rows {
        assert!(row["samples"].as_u64().unwrap() >= 1000);
        let metrics = ["min_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"].map(|name| row[name].as_f64().unwrap());
        assert!(metrics.is_sorted() && metrics[1] > 0.0, "{metrics:?}");
        assert!(row["ratio"].as_f64().unwrap() > 0.0 && row["floor_p50_ns"].as_f64().unwrap() > 0.0);
        let (pipelined, long) = (&row["floor_pipelined_p50_ns"], row["size_bytes"].as_u64().unwrap() >= 16 << 10);
        assert_eq!(pipelined.as_f64().is_some_and(|ns| ns > 0.0), long, "{row}");
        assert_eq!((&row["buffers"], &row["copy"]), (&"registered".into(), &"auto".into()));
    }
}

#[test]
fn puts_are_measured_by_the_same_commands() {
    let sizes = ["--sizes", "8,16,4KiB,200000", "--iterations", "500", "--format", "json"];
    for way in [&["latency", "--put", "--floor"][..], &["latency", "--put", "--shared", "--untouched"], &["rate", "--put"]] {
        let output = run(&[way, &sizes].concat());
        assert!(output.status.success(), "{way:?}: {}", text(&output.stderr));
        let rows: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rows.iter().map(|row| row["size_bytes"].as_u64().unwrap()).collect::<Vec<_>>(), [8, 16, 4096, 200_000]);
        for row in rows {
            assert_eq!((&row["put"], &row["buffers"]), (&true.into(), &Value::Null), "{row}");
            assert!(row["p50_ns"].as_f64().unwrap() > 0.0 && row["samples"].as_u64().unwrap() >= 500, "{row}");
        }
    }
    let usual = run(&["latency", "--put", "--iterations", "20", "--format", "json"]);
    let last: Value = serde_json::from_str(text(&usual.stdout).lines().last().unwrap()).unwrap();
    assert_eq!(last["size_bytes"], 4 << 20);
    let messages = run(&["rate", "--iterations", "100", "--format", "json"]);
    assert_eq!(serde_json::from_slice::<Value>(&messages.stdout).unwrap()["put"], false);
}

#[test]
fn bandwidth_tells_all_in_json() {
    let sizes = ["--sizes", "0,64,4KiB,300kB", "--iterations", "200"];
    for (way, window) in [(&["--window", "3"][..], 3), (&["--both-ways", "--copy", "target"], 8)] {
        let output = run(&[&["bandwidth", "--floor", "--format", "json"], &sizes[..], way].concat());
        let error = text(&output.stderr);
        assert!(output.status.success(), "{error}");
        let rows: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(rows.iter().map(|row| row["size_bytes"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 64, 4096, 300_000]);
        for row in &rows {
            assert_eq!((&row["test"], &row["window"]), (&"bandwidth".into(), &window.into()));
            assert!(row["p50_ns"].as_f64().unwrap() > 0.0 && row["spread"].as_f64().unwrap() >= 0.0, "{row}");
            // Where the kernel refuses to copy, there is no figure, and a line says so.
            assert!(row["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0) || error.contains("process_vm_readv"), "{row}");
        }
        let last = rows.last().unwrap();
        assert!(last["gb_per_s"].as_f64().unwrap() > 0.0 && last["floor_copied_gb_per_s"].as_f64().unwrap() > 0.0);
        assert_eq!(last["samples"].as_u64().unwrap(), if window == 8 { 400 } else { 200 });
        assert_eq!(
            (&last["both_ways"], &last["copy"]),
            (&(window == 8).into(), &["auto", "target"][usize::from(window == 8)].into())
        );
    }
}

#[test]
fn locks_are_told_in_json() {
    let output = run(&["lock", "--nodes", "3", "--seconds", "1", "--format", "json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = rows.iter().map(|row| (row["section"].as_str().unwrap(), row["what"].as_str().unwrap())).collect();
    assert_eq!(names, [("uncontended", "key"), ("uncontended", "swaps"), ("contended", "key"), ("contended", "mutex")]);
    let metric = |row: usize, name: &str| rows[row][name].as_f64().unwrap();
    for alone in [0, 1] {
        assert!(["min_ns", "p50_ns", "max_ns"].map(|name| metric(alone, name)).is_sorted(), "{}", rows[alone]);
        assert_eq!((metric(alone, "nodes"), &rows[alone]["waited"]), (1.0, &Value::Null));
    }
    for contended in [2, 3] {
        let (locks, least, most) = (metric(contended, "locks"), metric(contended, "least"), metric(contended, "most"));
        assert!(least > 0.0 && 3.0 * least <= locks && locks <= 3.0 * most, "{}", rows[contended]);
        assert_eq!(metric(contended, "nodes"), 3.0);
        if metric(contended, "waited") > 0.0 {
            let (mean, longest) = (metric(contended, "mean_wait_ns"), metric(contended, "longest_wait_ns"));
            let fairness = metric(contended, "fairness");
            assert!(fairness >= 1.0 && (fairness / (longest / mean) - 1.0).abs() < 0.01, "{}", rows[contended]);
        }
    }
    for (key, floor) in [(0, 1), (2, 3)] {
        assert!(metric(key, "ratio") > 0.0 && rows[floor]["ratio"].is_null());
    }
}

/// The rows of a measurement of collectives.
fn collectives(args: &[&str]) -> Vec<Value> {
    let output = run(&[&["collective", "--rounds", "3", "--iterations", "4", "--format", "json"], args].concat());
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    let rows: Vec<Value> = text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for row in &rows {
        let metric = |name: &str| row[name].as_f64().unwrap();
        let metrics = ["min_ns", "p50_ns", "max_ns"].map(metric);
        assert!(metrics[0] > 0.0 && metrics.is_sorted(), "{row}");
        assert_eq!((metric("rounds"), metric("calls")), (3.0, 4.0), "{row}");
        // Every call of every process took a turn of a channel, at once or later.
        let calls = 3.0 * 4.0 * metric("nodes");
        assert_eq!((metric("operations"), metric("acquired") + metric("queued")), (calls, calls), "{row}");
        assert!(metric("foreseen") <= metric("acquired"), "{row}");
    }
    rows
}

#[test]
fn every_collective_has_figures_for_every_size() {
    let names = "broadcast,reduce,allreduce,allgather,alltoall";
    let rows = collectives(&["--nodes", "3", "--sizes", "8,600KiB", "--op", "barrier", "--op", names]);
    let found: Vec<_> = rows.iter().map(|row| (row["op"].as_str().unwrap(), row["size_bytes"].as_u64())).collect();
    let of_sizes = names.split(',').flat_map(|op| [8, 600 << 10].map(|bytes| (op, Some(bytes))));
    assert_eq!(found, [("barrier", None)].into_iter().chain(of_sizes).collect::<Vec<_>>());
    for row in rows {
        assert_eq!((&row["sync"], row["nodes"].as_u64()), (&"background".into(), Some(3)));
        assert_eq!(row["gb_per_s"].is_f64(), row["size_bytes"].is_u64(), "{row}");
        assert!(["floor_p50_ns", "ratio", "of_foreground", "compute_ns"].iter().all(|name| row[name].is_null()), "{row}");
    }
}

#[test]
fn a_barrier_is_beside_its_floor_and_the_background_beside_the_foreground() {
    let way = ["--nodes", "2", "--op", "allreduce", "--sizes", "64", "--floor", "--sync", "both", "--compute", "20us"];
    let rows = collectives(&[&way[..], &["--channels", "2", "--slot", "4KiB", "--domain", "collective-both"]].concat());
    let names: Vec<_> = rows.iter().map(|row| (row["op"].as_str().unwrap(), row["sync"].as_str().unwrap())).collect();
    let ways = |op| [(op, "background"), (op, "foreground")];
    assert_eq!(names, [ways("barrier"), ways("allreduce"), ways("allreduce")].concat());
    let near = |found: &Value, expected: f64| {
        let found = found.as_f64().unwrap();
        // Metrics are rounded.
        assert!((found - expected).abs() <= 1e-4 + 1e-3 * expected, "{found} where {expected} was expected");
    };
    for (at, row) in rows.iter().enumerate() {
        let p50 = |row: &Value| row["p50_ns"].as_f64().unwrap();
        if at < 2 {
            near(&row["ratio"], p50(row) / row["floor_p50_ns"].as_f64().unwrap());
        } else {
            assert!(row["ratio"].is_null() && row["floor_p50_ns"].is_null(), "{row}");
        }
        match at % 2 {
            0 => near(&row["of_foreground"], p50(row) / p50(&rows[at + 1])),
            _ => assert!(row["of_foreground"].is_null(), "{row}"),
        }
        assert_eq!(row["compute_ns"].as_u64(), (at >= 4).then_some(20_000), "{row}");
        assert_eq!((row["channels"].as_u64(), row["slot_bytes"].as_u64()), (Some(2), Some(4096)), "{row}");
    }
    assert_eq!(leftovers("collective-both"), Vec::<String>::new());
}

#[test]
fn the_other_ways_to_measure_collectives_work() {
    let ways: [&[&str]; 4] = [
        &["--wait", "park", "--pin", "0"],
        &["--wait", "yield", "--progress", "inline"],
        &["--progress", "poller", "--sync", "foreground"],
        &["--nodes", "7", "--channels", "1"],
    ];
    for way in ways {
        assert_eq!(collectives(&[way, &["--sizes", "4KiB"]].concat()).len(), 3, "{way:?}");
    }
    let table = |more: &[&str]| {
        text(&run(&[&["collective", "--nodes", "2", "--sizes", "8", "--rounds", "2", "--floor"], more].concat()).stdout)
    };
    let (plain, with_stats) = (table(&[]), table(&["--stats", "--sync", "both"]));
    assert!(plain.contains("ratio") && plain.contains("\nbarrier") && !plain.contains("foreseen"), "{plain}");
    assert!(with_stats.contains("of fg") && with_stats.contains("foreseen"), "{with_stats}");
}

#[test]
fn the_help_of_collectives_names_the_operations() {
    let help = text(&run(&["collective", "--help"]).stdout);
    for op in ["barrier", "broadcast", "reduce", "allreduce", "allgather", "alltoall"] {
        assert!(help.contains(&format!("- {op}:")), "{op} is missing in\n{help}");
    }
    assert!(help.contains("slowest process") && help.contains("Examples:\n  doorbell collective"), "{help}");
}

#[test]
fn the_other_ways_to_measure_locks_work() {
    let ways: [&[&str]; 4] = [
        &["--pin", "0", "--wait", "park"],
        &["--progress", "inline", "--wait", "yield"],
        &["--progress", "poller"],
        &["--nodes", "7"],
    ];
    for way in ways {
        let output = run(&[&["lock", "--seconds", "1", "--no-floor", "--format", "csv"], way].concat());
        assert!(output.status.success(), "{way:?}: {}", text(&output.stderr));
        let rows: Vec<String> =
            text(&output.stdout).lines().map(|line| line.split(',').take(4).collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(rows, ["test section fabric what", "lock uncontended shm key", "lock contended shm key"], "{way:?}");
    }
    let table = text(&run(&["lock", "--nodes", "2", "--seconds", "1"]).stdout);
    assert!(table.contains("two swaps") && table.contains("longest/mean") && table.contains("\nmutex"), "{table}");
}

/// The rows of a measurement of threads that receive.
fn devices(args: &[&str]) -> Vec<Value> {
    let output = run(&[&["device", "--rounds", "2", "--count", "300", "--format", "json"], args].concat());
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_scheme_by_which_threads_receive_has_figures() {
    let domain = format!("devices-{}", std::process::id());
    for (mode, threads) in [("smp", "4"), ("dual", "3")] {
        // Handed over as a copy, lent, and longer than a lane of the other schemes has room for.
        let sizes = ["--size", "8,1KiB", "--size", "300KiB"];
        let rows =
            devices(&[&["--mode", mode, "--threads", threads, "--rate", "20000", "--domain", &domain][..], &sizes].concat());
        let word = |row: &Value, name: &str| row[name].as_str().unwrap().to_owned();
        let named: Vec<_> =
            rows.iter().map(|row| (row["size_bytes"].as_u64().unwrap(), word(row, "load"), word(row, "scheme"))).collect();
        let mut expected = Vec::new();
        for size in [8, 1024, 300 << 10] {
            for load in ["turn", "random", "alone", "paced"] {
                expected.extend(["claimed", "dispatcher", "fifo"].map(|scheme| (size, load.to_owned(), scheme.to_owned())));
            }
        }
        assert_eq!(named, expected);
        for row in &rows {
            let metric = |name: &str| row[name].as_f64();
            assert_eq!((metric("messages"), word(row, "mode").as_str()), (Some(600.0), mode), "{row}");
            assert!(["messages_per_s", "processor_ns", "processors_busy"].iter().all(|name| metric(name) > Some(0.0)), "{row}");
            let times = ["min_ns", "p50_ns", "p99_ns", "p999_ns", "max_ns"].map(metric);
            let is_timed = ["alone", "paced"].contains(&word(row, "load").as_str());
            assert!(times.iter().all(|time| time.is_some() == is_timed) && times.is_sorted(), "{row}");
            assert_eq!(metric("p50_of_dispatcher").is_some(), is_timed, "{row}");
            let ratios = ["each_of_dispatcher", "processor_of_dispatcher"].map(|name| metric(name).unwrap());
            assert!(
                if word(row, "scheme") == "dispatcher" { ratios == [1.0; 2] } else { ratios.iter().all(|of| *of > 0.0) },
                "{row}"
            );
        }
    }
    assert_eq!(leftovers(&domain), Vec::<String>::new());
}

#[test]
fn the_other_ways_to_measure_threads_that_receive_work() {
    let ways: [&[&str]; 4] = [
        &["--pin", "0", "--wait", "park"],
        &["--progress", "inline", "--wait", "yield"],
        &["--progress", "poller", "--threads", "1"],
        &["--threads", "16", "--mode", "dual"],
    ];
    for way in ways {
        assert_eq!(devices(&[way, &["--size", "8", "--load", "alone"]].concat()).len(), 3, "{way:?}");
    }
    let rows = devices(&["--scheme", "fifo", "--size", "0", "--load", "random"]);
    assert_eq!((rows.len(), &rows[0]["each_of_dispatcher"]), (1, &Value::Null));
    let of = |form| text(&run(&["device", "--count", "100", "--rounds", "1", "--size", "8", "--format", form]).stdout);
    assert_eq!(of("csv").lines().count(), 10);
    assert!(of("table").contains("of dispatcher:") && of("table").contains("alone   fifo"));
}

#[test]
fn the_other_ways_to_measure_work() {
    let common = ["--iterations", "300", "--format", "csv"];
    let ways: [&[&str]; 8] = [
        &["latency", "--sizes", "8", "--shared"],
        &["latency", "--sizes", "8", "--pairs", "2", "--floor"],
        &["latency", "--sizes", "8", "--wait", "park", "--untouched"],
        &["latency", "--sizes", "8", "--progress", "poller", "--warmup", "5"],
        &["rate", "--floor", "--progress", "inline"],
        &["rate", "--sizes", "8,1000,100kB", "--floor", "--shared"],
        &["bandwidth", "--sizes", "5000", "--shared", "--progress", "poller"],
        &["bandwidth", "--sizes", "8,5000", "--pairs", "2", "--floor", "--both-ways"],
    ];
    for way in ways {
        let output = run(&[way, &common].concat());
        assert!(output.status.success(), "{way:?}: {}", text(&output.stderr));
        assert!(text(&output.stdout).lines().count() >= 2, "{way:?}");
    }
}

#[test]
fn tables_and_distributions_are_printed() {
    let table = text(&run(&["latency", "--sizes", "8", "--iterations", "2000"]).stdout);
    assert!(table.contains("p99.9") && table.contains('█'), "{table}");
    let distribution = text(&run(&["latency", "--sizes", "8", "--iterations", "2000", "--format", "hgrm"]).stdout);
    assert!(distribution.contains("TotalCount") && distribution.contains("#[Max"), "{distribution}");
}

#[test]
fn what_is_tuned_is_kept_where_it_is_told() {
    let directory = std::env::temp_dir().join(format!("doorbell-tuned-{}", std::process::id()));
    let path = directory.join("below/tune.json");
    let tune = |more: &[&str]| {
        let args = [&["tune", "--rounds", "1", "--format", "json"], more].concat();
        let child = doorbell(&args).env("DOORBELL_TUNE", &path).spawn().unwrap();
        let domain = format!("tune-{}", child.id());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(leftovers(&domain), [""; 0]);
        let lines = text(&output.stdout);
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
    };
    let lines = tune(&["--dry-run"]);
    assert_eq!((lines.last().unwrap()["kept"].as_str(), directory.exists()), (None, false));
    let lines = tune(&[]);
    let (last, sizes) = lines.split_last().unwrap();
    assert_eq!(last["kept"].as_str(), path.to_str());
    for line in sizes {
        assert!(line["dma_ns"].as_f64().unwrap() > 0.0 && line["size_bytes"].is_u64(), "{line}");
        assert_eq!(line["ratio"].is_f64(), line["transfer_ns"].is_f64(), "{line}");
    }
    let kept = doorbell_engine::tune::Tune::read(&path).unwrap();
    assert_eq!(serde_json::to_value(&kept.found).unwrap(), last["found"]);
    assert_eq!(kept.machine, doorbell_engine::tune::Machine::this());
    std::fs::remove_dir_all(directory).unwrap();

    let nowhere = doorbell(&["tune"]).env("DOORBELL_TUNE", "off").output().unwrap();
    assert_eq!((nowhere.status.code(), nowhere.stdout.len()), (Some(2), 0));
    assert!(text(&nowhere.stderr).contains("; hint: only look with --dry-run"), "{}", text(&nowhere.stderr));
}

#[test]
fn tiers_are_printed_without_measuring() {
    let table = text(&run(&["atomics", "--tiers"]).stdout);
    let line = |words: [&str; 4]| table.lines().any(|line| line.split_whitespace().eq(words));
    assert!(line(["u128", "Add", "swap", "swap"]) && line(["f64", "Mul", "swap", "swap"]), "{table}");
    if cfg!(target_arch = "x86_64") {
        assert!(line(["u64", "Add", "native", "native"]) && line(["bool", "Or", "native", "swap"]), "{table}");
    }
}

#[test]
fn atomics_over_the_network_are_beside_a_round_trip() {
    let ended = run(&["atomics", "--fabric", "udp", "--format", "json"]);
    let objects: Vec<Value> = text(&ended.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<&str> = objects.iter().filter_map(|object| object["what"].as_str()).collect();
    assert!(names[0] == "8 bytes there and back" && names.contains(&"old: cell += 1, 64 under way"), "{}", text(&ended.stderr));
    assert!(objects.iter().all(|object| object["fabric"] == "udp" && object["ns"].as_f64().unwrap() > 0.0), "{objects:?}");
}

#[test]
fn atomics_are_objects_with_times_by_tier() {
    let ended = run(&["atomics", "--type", "u64", "--op", "Add", "--op", "Max", "--format", "json"]);
    let objects: Vec<Value> = text(&ended.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let operators: Vec<&str> = objects.iter().filter_map(|object| object["op"].as_str()).collect();
    assert_eq!(operators, ["Add", "Max"], "{}", text(&ended.stderr));
    for object in objects.iter().filter(|object| object["op"].is_string()) {
        for section in ["alone", "contended"] {
            for way in ["as_is_ns", "fetch_ns", "swap_ns", "lock_ns"] {
                assert!(object[section][way].as_f64().unwrap() > 0.0, "{object}");
            }
        }
    }
    assert!(objects.iter().any(|object| object["what"] == "by key, old: cell += 1" && object["fabric"] == "shm"));
}
