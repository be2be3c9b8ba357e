//! Sizes of memory as users write them: `24GiB`.

/// Why a text is no size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("take a whole number above 0 with its unit KiB, MiB, GiB or TiB, for example 24GiB")]
pub struct NoSize;

/// Units and their bytes, as powers of two. The short forms are those of `docker run --memory`.
const UNITS: [(&str, u32); 8] = [
    ("KiB", 10),
    ("MiB", 20),
    ("GiB", 30),
    ("TiB", 40),
    ("K", 10),
    ("M", 20),
    ("G", 30),
    ("T", 40),
];

/// Reads a size in bytes, at most 1 PiB.
pub fn parse_bytes(text: &str) -> Result<u64, NoSize> {
    let with_unit = |&(unit, power): &(&str, u32)| Some((text.strip_suffix(unit)?, power));
    let (number, power) = UNITS.iter().find_map(with_unit).ok_or(NoSize)?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let number: u64 = number.parse().ok().filter(|_| is_number).ok_or(NoSize)?;
    let bytes = number.checked_mul(1 << power).ok_or(NoSize)?;
    Some(bytes).filter(|bytes| (1..=BYTES_MAX).contains(bytes)).ok_or(NoSize)
}

/// More than any device has.
const BYTES_MAX: u64 = 1 << 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_number_and_a_unit() {
        for (text, bytes) in [
            ("1KiB", 1_024),
            ("24GiB", 24 << 30),
            ("60G", 60 << 30),
            ("007MiB", 7 << 20),
            ("1024TiB", 1 << 50),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
        for text in ["", "24", "GiB", "0GiB", "1.5GiB", "+1GiB", "1 GiB", "24GB", "1025TiB"] {
            assert_eq!(parse_bytes(text), Err(NoSize), "{text}");
        }
        assert_eq!(parse_bytes("99999999999999999999KiB"), Err(NoSize));
        assert_eq!(parse_bytes("18446744073709551615TiB"), Err(NoSize));
    }
}
