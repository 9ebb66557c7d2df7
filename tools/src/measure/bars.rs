//! A small histogram as text.

use super::time;
use doorbell_benches::Samples;

const ROWS: usize = 10;
const COLUMNS: f64 = 40.0;
const EIGHTHS: [char; 8] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/// The distribution of samples: a line for each range of equal ratio, and a last line for the slowest hundredth.
pub fn draw(samples: &Samples, ns_per_unit: f64) -> Vec<String> {
    let spread = samples.spread();
    let (low, high) = (spread.quantile(0.0), spread.quantile(0.99));
    if samples.count() == 0 {
        return Vec::new();
    }
    let step = (high / low.max(0.5)).powf(1.0 / ROWS as f64).max(1.0 + 1e-9);
    let edges: Vec<f64> = (0..=ROWS).map(|i| low.max(0.5) * step.powi(i as i32)).collect();
    let mut rows: Vec<(String, f64)> = edges
        .windows(2)
        .map(|edge| {
            let label = format!("{:>9} to {:<9}", time(edge[0] * ns_per_unit), time(edge[1] * ns_per_unit));
            (label, spread.share_below(edge[1]) - spread.share_below(edge[0]))
        })
        .collect();
    let top = samples.histogram().max() as f64;
    rows.push((format!("{:>9} to {:<9}", time(high * ns_per_unit), time(top * ns_per_unit)), 1.0 - spread.share_below(high)));
    let most = rows.iter().map(|(_, share)| *share).fold(f64::MIN_POSITIVE, f64::max);
    rows.into_iter().map(|(label, share)| format!("{label} {:5.1} % {}", share * 100.0, bar(share / most))).collect()
}

fn bar(part: f64) -> String {
    let eighths = (part * COLUMNS * 8.0).round() as usize;
    let mut bar: String = "█".repeat(eighths / 8);
    bar.push(EIGHTHS[eighths % 8]);
    bar.trim_end().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[(u64, u64)]) -> Vec<String> {
        let mut samples = Samples::new();
        values.iter().for_each(|(value, count)| samples.record_many(*value, *count));
        draw(&samples, 1.0)
    }

    #[test]
    fn the_longest_bar_stands_where_most_samples_are() {
        let lines = of(&[(100, 10), (200, 1000), (400, 100), (5000, 1)]);
        assert_eq!(lines.len(), ROWS + 1);
        let longest = lines.iter().max_by_key(|line| line.chars().filter(|c| *c == '█').count()).unwrap();
        assert_eq!(longest.chars().filter(|c| *c == '█').count(), COLUMNS as usize);
        assert!(longest.contains("1") && longest.contains(" ns"), "{longest}");
        let shares: f64 =
            lines.iter().map(|line| line.split(" % ").next().unwrap().rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum();
        assert!((99.0..101.0).contains(&shares), "the shares add up to {shares} %");
    }

    #[test]
    fn few_samples_are_drawn_too() {
        assert!(of(&[]).is_empty());
        assert_eq!(of(&[(7, 1)]).len(), ROWS + 1);
        assert_eq!(of(&[(0, 3), (1, 1)]).len(), ROWS + 1);
    }
}
