//! Numbers as text, and the ticks of axes.

use gpreempt_core::time::Duration;

use crate::results::COUNT;

/// Stands for a missing number.
pub(super) const NOTHING: &str = "–";

/// Stands for a ratio where requests arrive faster than they are served.
pub(super) const OVERLOADED: &str = "never catches up";

/// Between a number and its unit: a no-break space.
const SPACE: char = '\u{a0}';

/// A duration with the digits that the program prints everywhere else.
pub(super) fn duration(ns: u64) -> String {
    let plain = Duration::from_nanos(ns).to_string();
    let digits = plain.trim_end_matches(char::is_alphabetic);
    let unit = &plain[digits.len()..];
    format!("{digits}{SPACE}{}", unit.replace('u', "µ"))
}

/// `1.08×`: about three digits.
pub(crate) fn times(quotient: f64) -> String {
    match quotient {
        0.0..9.995 => format!("{quotient:.2}×"),
        0.0..99.95 => format!("{quotient:.1}×"),
        _ => format!("{quotient:.0}×"),
    }
}

pub(crate) fn nanoseconds(ns: f64) -> String {
    if ns < 0.0 {
        return format!("−{}", duration(whole(-ns)));
    }
    duration(whole(ns))
}

/// The nearest whole number, saturating.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
pub(super) fn whole(number: f64) -> u64 {
    number.round() as u64
}

/// A number with its unit, with about three digits.
pub(super) fn quantity(value: f64, unit: &str) -> String {
    let digits = match value.abs() {
        0.0 => "0".to_owned(),
        ..0.0001 => format!("{value:.1e}"),
        ..0.01 => format!("{value:.4}"),
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        ..1e15 if value < 0.0 => format!("−{}", count(whole(-value))),
        ..1e15 => count(whole(value)),
        _ => format!("{value:.2e}"),
    };
    match unit {
        "ns" => nanoseconds(value),
        COUNT => count(whole(value)),
        "1" | "" => digits,
        "%" => format!("{digits}%"),
        "1/s" => format!("{digits}/s"),
        unit => format!("{digits}{SPACE}{unit}"),
    }
}

/// `97.3%` for 0.973, or a dash.
pub(crate) fn percent(share: Option<f64>) -> String {
    match share.filter(|share| share.is_finite()) {
        Some(share) => format!("{:.1}%", share * 100.0),
        None => NOTHING.to_owned(),
    }
}

/// `12,345`.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tick {
    pub(super) at_ns: u64,
    pub(super) label: String,
    /// Whether it keeps its label on a narrow screen.
    pub(super) major: bool,
}

/// More intervals between ticks than this look crowded; on a phone, half as many do.
const DISTANCES_MAX: u64 = 6;

/// Ticks from zero to `length_ns` at round intervals, all in one unit.
pub(super) fn linear(length_ns: u64) -> Vec<Tick> {
    let step = round_steps().find(|step| length_ns / step <= DISTANCES_MAX).unwrap_or(u64::MAX);
    let unit = unit_of(length_ns);
    (0..=length_ns / step)
        .map(|index| Tick {
            at_ns: index * step,
            label: label(index * step, unit),
            major: length_ns / step < 4 || index.is_multiple_of(2),
        })
        .collect()
}

/// Ticks from `low_ns` to `high_ns` on a logarithmic axis: 1, 2 and 5 of every decade, or only the
/// decades where that would be too many. Each is in its own best unit.
pub(super) fn logarithmic(low_ns: u64, high_ns: u64) -> Vec<Tick> {
    let inside = |step: &u64| (low_ns..=high_ns).contains(step);
    let fine = round_steps().filter(inside).collect::<Vec<_>>();
    let decades = fine.iter().copied().filter(|at| is_decade(*at));
    let decades = decades.collect::<Vec<_>>();
    // Five decades and more do not have room for what lies between.
    let chosen = if fine.len() > 13 { &decades } else { &fine };
    let important = |at: u64| match (fine.len(), decades.len()) {
        (..=6, _) => true,
        (_, ..=6) => is_decade(at),
        _ => is_decade(at) && at.to_string().len() % 2 == 1,
    };
    chosen
        .iter()
        .map(|at| Tick { at_ns: *at, label: label(*at, unit_of(*at)), major: important(*at) })
        .collect()
}

/// The nearest round numbers outside a range.
pub(super) fn round_range(low_ns: u64, high_ns: u64) -> (u64, u64) {
    let below = round_steps().take_while(|step| *step <= low_ns).last().unwrap_or(1);
    let above = round_steps().find(|step| *step > high_ns.max(1)).unwrap_or(u64::MAX);
    (below, above)
}

/// 1, 2, 5, 10, 20, ... as far as they fit.
fn round_steps() -> impl Iterator<Item = u64> {
    (0..20_u32).flat_map(|exponent| {
        [1, 2, 5]
            .into_iter()
            .filter_map(move |digit| 10_u64.checked_pow(exponent)?.checked_mul(digit))
    })
}

fn is_decade(step: u64) -> bool {
    step.to_string().starts_with('1')
}

/// The unit in which `ns` has the fewest digits: its size and its name.
const fn unit_of(ns: u64) -> (u64, &'static str) {
    match ns {
        0..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    }
}

/// A time in its best unit, without zeros at the end.
pub(super) fn label_of(ns: u64) -> String {
    label(ns, unit_of(ns))
}

/// `2.5 ms`, without zeros at the end.
fn label(ns: u64, (unit, name): (u64, &str)) -> String {
    if ns == 0 {
        return "0".to_owned();
    }
    let number = format!("{:.3}", ns as f64 / unit as f64);
    let number = number.trim_end_matches('0').trim_end_matches('.');
    format!("{number}\u{a0}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_keep_their_digits() {
        assert_eq!(duration(812), "812\u{a0}ns");
        assert_eq!(duration(18_450), "18.5\u{a0}µs");
        assert_eq!(duration(7_072_000), "7.07\u{a0}ms");
        assert_eq!(duration(2_500_000_000), "2.50\u{a0}s");
    }

    #[test]
    fn ratios_have_about_three_digits() {
        assert_eq!(
            (times(1.08), times(9.996), times(123.456)),
            ("1.08×".into(), "10.0×".into(), "123×".into())
        );
    }

    #[test]
    fn quantities_have_about_three_digits() {
        for (value, unit, text) in [
            (0.0, "1", "0"),
            (0.000_012_3, "", "1.2e-5"),
            (0.007_04, "1", "0.0070"),
            (99_700.0, "1/s", "99,700/s"),
            (0.5, "1", "0.50"),
            (12.5, "count", "13"),
            (12.34, "%", "12.3%"),
            (1_234_567.8, "KiB", "1,234,568 KiB"),
            (-1_500.0, "KiB", "−1,500 KiB"),
            (1e300, "1", "1.00e300"),
            (185_000.0, "ns", "185 µs"),
            (-185_000.0, "ns", "−185 µs"),
        ] {
            assert_eq!(quantity(value, unit).replace(SPACE, " "), text);
        }
    }

    #[test]
    fn shares_and_counts() {
        assert_eq!(percent(Some(0.9732)), "97.3%");
        assert_eq!(percent(Some(f64::NAN)), NOTHING);
        assert_eq!(percent(None), NOTHING);
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
    }

    fn labels(ticks: &[Tick]) -> Vec<String> {
        let texts = ticks.iter().map(|tick| tick.label.replace('\u{a0}', " "));
        texts.collect()
    }

    #[test]
    fn a_time_axis_has_a_handful_of_round_ticks() {
        let ticks = linear(12_000_000);
        let expected = ["0", "2 ms", "4 ms", "6 ms", "8 ms", "10 ms", "12 ms"];
        assert_eq!(labels(&ticks), expected);
        let on_phones = ticks.iter().filter(|tick| tick.major).count();
        assert_eq!(on_phones, 4, "0, 4, 8 and 12 ms");
        assert_eq!(labels(&linear(1_100)), ["0", "0.2 µs", "0.4 µs", "0.6 µs", "0.8 µs", "1 µs"]);
        assert_eq!(labels(&linear(0)), ["0"]);
        for length in [1, 7, 999, 1_234_567, 3_600_000_000_000, u64::MAX] {
            let ticks = linear(length);
            assert!((2..=7).contains(&ticks.len()), "{length}: {}", ticks.len());
            assert!(ticks.iter().all(|tick| tick.at_ns <= length));
        }
    }

    #[test]
    fn a_latency_axis_says_less_the_longer_it_is() {
        let ticks = logarithmic(500_000, 20_000_000);
        let expected = ["500 µs", "1 ms", "2 ms", "5 ms", "10 ms", "20 ms"];
        assert_eq!(labels(&ticks), expected);
        assert!(ticks.iter().all(|tick| tick.major));

        let ticks = logarithmic(100_000, 100_000_000);
        assert_eq!(ticks.len(), 10);
        assert_eq!(ticks.iter().filter(|tick| tick.major).count(), 4);

        let ticks = logarithmic(1, 1_000_000_000_000);
        assert_eq!(ticks.len(), 13, "only decades");
        assert!(ticks.iter().all(|tick| is_decade(tick.at_ns)));
    }

    #[test]
    fn a_range_is_rounded_outwards() {
        assert_eq!(round_range(1_234, 56_789), (1_000, 100_000));
        assert_eq!(round_range(2_000, 2_000), (2_000, 5_000));
        assert_eq!(round_range(0, 0), (1, 2));
        let (low, high) = round_range(u64::MAX, u64::MAX);
        assert!(low < high);
    }
}
