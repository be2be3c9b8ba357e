//! Numbers as people type them, with complaints that name the range.

use std::fmt::Display;
use std::str::FromStr;

/// Reads a number from `least` to `most`.
pub(super) fn within<T>(
    least: T,
    most: T,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Copy + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("must be a whole number from {least} to {most}"))
    }
}

/// Reads the number of a process.
pub(super) fn pid(text: &str) -> Result<u32, String> {
    // What is beyond the kernel's limit is not there; that is for whoever looks.
    text.parse().map_err(|_| "must be the number of a process, such as 4242".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_name_the_range() {
        let priority = within::<u8>(0, 15);
        assert_eq!((priority("0"), priority("15")), (Ok(0), Ok(15)));
        for text in ["16", "-1", "high", "", "1.5", "300"] {
            let complaint = priority(text).unwrap_err();
            assert_eq!(complaint, "must be a whole number from 0 to 15", "{text}");
        }
        assert_eq!(pid("7"), Ok(7));
        assert!(pid("seven").unwrap_err().contains("4242"));
    }
}
