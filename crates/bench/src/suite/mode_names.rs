//! Whether the modes that a suite names are there.
//!
//! A suite can be read without: results contain the suites they are of, and outlive modes.

use gpreempt_fields::{Field, Fields, ReadError, nearest, quoted, with_root};

use super::read::{CASES_MAX, CRITERIA_MAX, KEYS, NAMES_MAX};
use super::{case, criterion};

/// Looks whether every mode that the text of a suite names is one of `known`, which are those of
/// all backends. `file` is what errors call it.
///
/// # Errors
/// The first one that is not.
pub fn check_modes(file: &str, text: &str, known: &[&str]) -> Result<(), ReadError> {
    with_root(file, text, KEYS, |fields| {
        for key in ["emulated_modes", "nvidia_modes", "nvidia_modes_short"] {
            list(fields, key, known)?;
        }
        for case in fields.tables("case", CASES_MAX, case::KEYS)? {
            list(&case, "modes", known)?;
        }
        for check in fields.tables("check", CRITERIA_MAX, criterion::KEYS)? {
            check.optional("mode").map_or(Ok(()), |mode| one(&mode, known))?;
        }
        Ok(())
    })
}

fn list(fields: &Fields<'_>, key: &'static str, known: &[&str]) -> Result<(), ReadError> {
    let Some(field) = fields.optional(key) else { return Ok(()) };
    field.items("names", NAMES_MAX)?.iter().try_for_each(|item| one(item, known))
}

fn one(field: &Field<'_>, known: &[&str]) -> Result<(), ReadError> {
    let name = field.name()?;
    if known.contains(&name.as_str()) {
        return Ok(());
    }
    let advice = match nearest(&name, known.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => {
            let mut names = known.to_vec();
            names.sort_unstable();
            names.dedup();
            format!("there are: {}", names.join(", "))
        }
    };
    Err(field.error(format!("there is no mode {}; {advice}", quoted(&name))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "name = 's'\ntitle = 't'\nnvidia_modes = ['alone']\n\
        [[case]]\nname = 'a'\ntitle = 'A'\nmodes = [\n'hold']\n\
        [[case.load]]\nname = 'be'\nrole = 'be'\n\
        [[check]]\nname = 'n'\nmode = 'slices'\nwhat = 'be_kept'\nat_most_percent = 1\n";

    #[test]
    fn modes_that_nobody_has_are_named_with_their_place() {
        let check = |text: &str| check_modes("f.toml", text, &["slices", "hold", "alone", "hold"]);
        assert!(check(TEXT).is_ok());
        for (from, to, expected) in [
            (
                "'alone'",
                "'zz'",
                "f.toml:3: nvidia_modes[0]: there is no mode \"zz\"; there are: alone, hold, \
                 slices",
            ),
            ("'hold'", "'hold', 'zz'", "f.toml:8: case[0].modes[1]: there is no mode \"zz\""),
            (
                "'slices'",
                "'slice'",
                "f.toml:14: check[0].mode: there is no mode \"slice\"; did you mean `slices`?",
            ),
        ] {
            let error = check(&TEXT.replace(from, to)).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
