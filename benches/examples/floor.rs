use doorbell_benches::clock::{Clock, ticks};
use doorbell_benches::exchange::{Buffers, Part, Section, Side};
use doorbell_benches::floor::*;
use doorbell_benches::stats::Samples;
use std::sync::{Arc, atomic::AtomicBool};

fn pin(cpu: usize) {
    let mut set = nix::sched::CpuSet::new();
    set.set(cpu).unwrap();
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &set).unwrap();
}

fn end(mapping: &Mapping, side: Side, clock: Clock, touched: bool) {
    let patience = Patience::new(Arc::new(AtomicBool::new(false)), false);
    let memory = mapping.pair(0);
    let mut floor = Floor::new(&memory, side, &patience);
    let mut hop = HopProbe::new(&memory, side, &patience);
    let mut finish = Finish::new(&memory, &patience);
    let mut buffers = Buffers::new(8 << 20).unwrap();
    let gate = |_: &str| mapping.gate().pass(2, &patience).unwrap();
    pin(if side == Side::Ping { 0 } else { 1 });
    for bytes in [8, 48, 64, 256, 1024, 4096, 16384, 65536, 1 << 20, 4 << 20] {
        let total = if bytes <= 4096 {
            200000
        } else if bytes <= 65536 {
            30000
        } else if bytes <= 1 << 20 {
            2000
        } else {
            600
        };
        let mut samples = vec![];
        gate("hop");
        let found = hop.probe(clock.ns_per_tick).unwrap();
        for _ in 0..10 {
            gate("");
            let section = Section { bytes, warmup: total / 100, count: total / 10, touched };
            let part = if side == Side::Ping { Part::Ping(&mut samples) } else { Part::Pong };
            floor.play(part, section, &mut buffers).unwrap();
        }
        let mut rates = vec![];
        for _ in 0..5 {
            gate("");
            let count = if bytes <= 64 { 4_000_000 } else { (1 << 28) / bytes };
            let section = Section { bytes, warmup: 0, count, touched };
            let start = ticks();
            floor.play(if side == Side::Ping { Part::Pour } else { Part::Drain }, section, &mut buffers).unwrap();
            if side == Side::Ping {
                finish.wait().unwrap()
            } else {
                finish.tell()
            }
            rates.push(count as f64 / clock.ns((ticks() - start) as f64) * 1e3);
        }
        rates.sort_by(f64::total_cmp);
        if side == Side::Ping && (bytes == 8 || bytes == 65536) {
            dump(&samples);
        }
        let mut s = Samples::new();
        samples.iter().for_each(|v| s.record(*v));
        if let Some(found) = found {
            let sum = s.summary(clock.ns_per_tick / 2.0);
            let raw = s.histogram().value_at_quantile(0.5) as f64 * clock.ns_per_tick / 2.0;
            println!(
                "{bytes:8} hop {:6.1} {} p50 {:8.1} raw {:8.1} p99 {:8.1} min {:8.1} rate {:7.1} M/s {:6.1} GB/s",
                found.ns,
                found.shared_core,
                sum.p50,
                raw,
                sum.p99,
                sum.min,
                rates[2],
                rates[2] * bytes as f64 / 1e3
            );
        }
    }
}

fn main() {
    let touched = std::env::args().nth(1).as_deref() == Some("touched");
    let clock = Clock::calibrate();
    let mapping = Mapping::create(Shape { pairs: 1, bytes: 4 << 20 }).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| end(&mapping, Side::Pong, clock, touched));
        end(&mapping, Side::Ping, clock, touched);
    });
}
#[allow(dead_code)]
fn dump(samples: &[u64]) {
    eprintln!("{:?}", &samples[..40]);
    eprintln!("{:?}", &samples[samples.len() - 40..]);
}
