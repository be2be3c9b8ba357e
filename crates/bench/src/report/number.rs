//! Numbers as people read them.

use gpreempt_core::time::Duration;

use crate::results::COUNT;

/// What stands where there is no number.
pub(crate) const NOTHING: &str = "–";

/// What stands where requests come faster than they are served.
pub(crate) const OVERLOADED: &str = "never catches up";

/// Between a number and its unit: a space at which no line is broken.
const SPACE: char = '\u{a0}';

/// A length of time with the digits the program prints everywhere else, and a proper unit.
pub(crate) fn duration(ns: u64) -> String {
    let plain = Duration::from_nanos(ns).to_string();
    let digits = plain.trim_end_matches(char::is_alphabetic);
    let unit = &plain[digits.len()..];
    format!("{digits}{SPACE}{}", unit.replace('u', "µ"))
}

/// As [`duration`], or a dash.
pub(crate) fn duration_or_dash(ns: Option<u64>) -> String {
    ns.map_or_else(|| NOTHING.to_owned(), duration)
}

/// `1.08×`: with fewer digits behind the point the more there are before it.
pub(crate) fn ratio(numerator: Option<u64>, denominator: Option<u64>) -> String {
    let (Some(numerator), Some(denominator @ 1..)) = (numerator, denominator) else {
        return NOTHING.to_owned();
    };
    times(numerator as f64 / denominator as f64)
}

/// As [`ratio`], of a quotient.
pub(crate) fn times(quotient: f64) -> String {
    match quotient {
        0.0..9.995 => format!("{quotient:.2}×"),
        0.0..99.95 => format!("{quotient:.1}×"),
        _ => format!("{quotient:.0}×"),
    }
}

/// As [`duration`], of a number that need not be whole.
pub(crate) fn nanoseconds(ns: f64) -> String {
    if ns < 0.0 {
        return format!("−{}", duration(whole(-ns)));
    }
    duration(whole(ns))
}

/// The nearest whole number; what is too large for one is the largest.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
pub(crate) fn whole(number: f64) -> u64 {
    number.round() as u64
}

/// A number with its unit, with about three digits.
pub(crate) fn quantity(value: f64, unit: &str) -> String {
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
pub(crate) fn count(number: u64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_keep_their_digits() {
        assert_eq!(duration(812), "812\u{a0}ns");
        assert_eq!(duration(18_450), "18.5\u{a0}µs");
        assert_eq!(duration(7_072_000), "7.07\u{a0}ms");
        assert_eq!(duration(2_500_000_000), "2.50\u{a0}s");
        assert_eq!(duration_or_dash(None), NOTHING);
    }

    #[test]
    fn ratios_need_both_numbers() {
        assert_eq!(ratio(Some(108), Some(100)), "1.08×");
        assert_eq!(ratio(Some(9_996), Some(1_000)), "10.0×");
        assert_eq!(ratio(Some(123_456), Some(1_000)), "123×");
        assert_eq!(ratio(None, Some(1)), NOTHING);
        assert_eq!(ratio(Some(1), Some(0)), NOTHING);
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
}
