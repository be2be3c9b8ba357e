//! The variables of a process, as far as somebody asked for them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Variables and their values. People keep passwords in their environment, so only those that
/// were asked for are kept, and values are never printed by accident.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// The variables called `names` in a `/proc/PID/environ`. Where a name is there twice the
    /// first counts, as it does for the process itself.
    pub fn parse(bytes: &[u8], names: &BTreeSet<String>) -> Self {
        let mut variables = BTreeMap::new();
        for entry in bytes.split(|byte| *byte == 0) {
            let entry = String::from_utf8_lossy(entry);
            let Some((name, value)) = entry.split_once('=') else { continue };
            if names.contains(name) && !variables.contains_key(name) {
                variables.insert(name.to_owned(), value.to_owned());
            }
        }
        Self { variables }
    }

    /// The value of a variable, if it is set and was asked for.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.variables.keys()).finish()
    }
}

impl<'v> FromIterator<(&'v str, &'v str)> for Environment {
    fn from_iter<I: IntoIterator<Item = (&'v str, &'v str)>>(variables: I) -> Self {
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Self { variables: variables.into_iter().map(owned).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Environment {
        let names = ["ROLE", "EMPTY", "BAD"].map(str::to_owned);
        Environment::parse(bytes, &BTreeSet::from(names))
    }

    #[test]
    fn the_first_of_a_name_counts_and_strangers_are_dropped() {
        let environment =
            parse(b"SECRET=hunter2\0ROLE=a=b\0ROLE=c\0EMPTY=\0nonsense\0BAD=\xff\0\0");
        assert_eq!(environment.get("ROLE"), Some("a=b"));
        assert_eq!(environment.get("EMPTY"), Some(""));
        assert_eq!(environment.get("BAD"), Some("\u{fffd}"));
        assert_eq!(environment.get("SECRET"), None);
        assert_eq!(format!("{environment:?}"), r#"{"BAD", "EMPTY", "ROLE"}"#);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }
    }
}
