//! Numbers that follow from a measurement: shares, fairness, missed deadlines, priority inversions,
//! and best-effort work relative to the baseline.

use super::{BE_ALONE, LC_BUSY, PARTS};
use crate::plan::Step;
use crate::results::{COUNT, LoadResult, Measurement, Number, Results};
use crate::suite::{Case, Load};

/// A load of higher priority may be slower than one of lower priority by this factor.
const LEVEL_SLACK: f64 = 1.1;
/// `kept` is undefined where requests leave less of the time than this: dividing by next to nothing
/// makes any amount a large part.
const LEFT_MIN: f64 = 0.05;

/// Relates best-effort work to the baseline of the same repetition: to what it does alone, and to
/// the time that requests leave idle.
pub(super) fn compare_with_alone(
    measurement: &mut Measurement,
    step: &Step<'_>,
    results: &Results,
) {
    let Some(alone) = &step.mode.alone else { return };
    let base = results
        .of(&step.case.name, alone)
        .find(|base| base.repetition == step.repetition && base.is_ok());
    let Some(base) = base else { return };
    let ratios: Vec<Number> = part_ratios(measurement, base);
    measurement.numbers.extend(ratios);
    let Some(be) = &mut measurement.be else { return };
    let rate = base.number(BE_ALONE).filter(|&rate| rate > 0.0);
    be.of_alone = rate.map(|rate| be.per_second / rate);
    let left = 1.0 - base.number(LC_BUSY).unwrap_or(0.0);
    be.kept = be.of_alone.filter(|_| left >= LEFT_MIN).map(|part| part / left);
}

/// The times of the parts of requests as multiples of those of the baseline.
fn part_ratios(measurement: &Measurement, base: &Measurement) -> Vec<Number> {
    let names = PARTS.iter().flat_map(|(part, title)| {
        ["p50", "p99"].map(|percentile| (format!("{part}_{percentile}"), title, percentile))
    });
    let ratio = |(name, title, percentile): (String, &&str, &str)| {
        let alone = base.number(&name).filter(|&alone| alone > 0.0)?;
        let title = format!("{title} against alone: {percentile}");
        Some(number(&format!("{name}_ratio"), &title, measurement.number(&name)? / alone))
    };
    names.filter_map(ratio).collect()
}

/// The part of `length_ns` that these intervals cover; where two overlap, time counts once.
pub fn busy_part(mut times: Vec<(u64, u64)>, length_ns: u64) -> f64 {
    times.sort_unstable();
    let (mut busy, mut until) = (0_u64, 0_u64);
    for (from, to) in times {
        busy += to.saturating_sub(from.max(until));
        until = until.max(to);
    }
    // CAST: far below what a float counts exactly.
    (busy as f64 / length_ns.max(1) as f64).min(1.0)
}

pub(super) fn add_numbers(measurement: &mut Measurement, case: &Case) {
    let pairs: Vec<(&Load, &LoadResult)> = case
        .loads
        .iter()
        .filter_map(|load| {
            let result = measurement.loads.iter().find(|result| result.name == load.name)?;
            Some((load, result))
        })
        .collect();
    let mut numbers = shares(&pairs);
    numbers.extend(misses(&pairs));
    numbers.extend(inversions(&pairs));
    measurement.numbers.extend(numbers);
}

fn number(name: &str, title: &str, value: f64) -> Number {
    Number::new(name, title, "1", value)
}

/// The share of each load in all best-effort work, and how fair the shares are.
fn shares(pairs: &[(&Load, &LoadResult)]) -> Vec<Number> {
    let rates: Vec<(&Load, f64)> = pairs
        .iter()
        .filter_map(|(load, result)| Some((*load, result.be.as_ref()?.per_second)))
        .collect();
    let total: f64 = rates.iter().map(|(_, rate)| rate).sum();
    if rates.len() < 2 || total <= 0.0 {
        return Vec::new();
    }
    let mut numbers: Vec<Number> = rates
        .iter()
        .map(|(load, rate)| {
            let title = format!("part of all best-effort work that {} got", load.name);
            number(&format!("share_{}", load.name), &title, rate / total)
        })
        .collect();
    let fair: Vec<f64> = rates.iter().map(|(load, rate)| rate / f64::from(load.weight)).collect();
    numbers.push(number("jain", "Jain's index of work by weight (1 is fair)", jain(&fair)));
    numbers
}

/// Jain's index: 1 if all values are equal, 1/n if all but one are zero.
fn jain(values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    // CAST: a small number.
    if squares > 0.0 { sum * sum / (values.len() as f64 * squares) } else { 0.0 }
}

/// The part of all requests with a deadline that missed it.
fn misses(pairs: &[(&Load, &LoadResult)]) -> Vec<Number> {
    let mut requests = 0;
    let mut missed = 0;
    for lc in pairs.iter().filter_map(|(_, result)| result.lc.as_ref()) {
        if let Some(late) = lc.missed {
            requests += lc.latency.count;
            missed += late;
        }
    }
    if requests == 0 {
        return Vec::new();
    }
    // CAST: far below what a float counts exactly.
    let ratio = missed as f64 / requests as f64;
    vec![number("miss_ratio", "part of all requests that missed their deadline", ratio)]
}

/// Pairs of loads of which the one with the higher priority was slower.
fn inversions(pairs: &[(&Load, &LoadResult)]) -> Vec<Number> {
    let slow: Vec<(u8, f64)> = pairs
        .iter()
        // CAST: a latency is far below what a float counts exactly.
        .filter_map(|(load, result)| {
            Some((load.priority.level(), result.lc.as_ref()?.latency.p50_ns as f64))
        })
        .collect();
    if slow.iter().all(|(level, _)| *level == slow[0].0) {
        return Vec::new();
    }
    let mut inverted = 0_u32;
    for (index, (level, p50)) in slow.iter().enumerate() {
        for (other, other_p50) in &slow[index + 1..] {
            let (high, low) = if level > other { (p50, other_p50) } else { (other_p50, p50) };
            inverted += u32::from(level != other && *high > low * LEVEL_SLACK);
        }
    }
    let title = "pairs of loads of which the one with the higher priority was slower";
    vec![Number::new("inverted_pairs", title, COUNT, f64::from(inverted))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlapping_intervals_count_once() {
        assert_eq!(busy_part(vec![(10, 20), (30, 40)], 100), 0.2);
        assert_eq!(busy_part(vec![(30, 40), (10, 35), (12, 14)], 100), 0.3);
        assert_eq!(busy_part(vec![(0, 500)], 100), 1.0);
        assert_eq!(busy_part(Vec::new(), 100), 0.0);
    }

    #[test]
    fn jains_index_is_that_of_the_book() {
        assert_eq!(jain(&[1.0, 1.0, 1.0, 1.0]), 1.0);
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!(jain(&[0.0, 0.0]), 0.0);
    }
}
