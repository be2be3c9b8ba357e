//! Numbers as Prometheus reads them.

use std::fmt;

/// The value of one line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    /// A whole number.
    Whole(u64),
    /// Seconds, given in milliseconds.
    Millis(u64),
    /// Seconds, given in microseconds.
    Micros(u64),
    /// Any number.
    Real(f64),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Whole(number) => write!(f, "{number}"),
            // Divided as integers: a counter of years must not lose its milliseconds.
            Self::Millis(ms) => write!(f, "{}.{:03}", ms / 1_000, ms % 1_000),
            Self::Micros(us) => write!(f, "{}.{:06}", us / 1_000_000, us % 1_000_000),
            Self::Real(number) if number.is_nan() => f.write_str("NaN"),
            Self::Real(f64::INFINITY) => f.write_str("+Inf"),
            Self::Real(f64::NEG_INFINITY) => f.write_str("-Inf"),
            Self::Real(number) => write!(f, "{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_exactly_and_as_prometheus_reads_them() {
        for (value, written) in [
            (Value::Whole(u64::MAX), "18446744073709551615"),
            (Value::Millis(1_002), "1.002"),
            (Value::Millis(u64::MAX), "18446744073709551.615"),
            (Value::Micros(7), "0.000007"),
            (Value::Real(0.25), "0.25"),
            (Value::Real(f64::NAN), "NaN"),
            (Value::Real(f64::INFINITY), "+Inf"),
            (Value::Real(f64::NEG_INFINITY), "-Inf"),
        ] {
            assert_eq!(value.to_string(), written);
        }
    }
}
