//! The arguments of a sub-command: switches, options with a value, and the rest in order.

use anyhow::{Context, bail};

/// What a sub-command understands.
#[derive(Clone, Copy)]
pub(crate) struct Syntax {
    /// Present or not, such as `--quick`.
    pub(crate) switches: &'static [&'static str],
    /// Followed by a value, such as `--start 7`.
    pub(crate) options: &'static [&'static str],
    /// What the other arguments are called, in order. All of them are needed.
    pub(crate) positionals: &'static [&'static str],
}

/// The arguments of one call, known to follow their [`Syntax`].
#[derive(Debug, Default)]
pub(crate) struct Args {
    switches: Vec<String>,
    options: Vec<(String, String)>,
    positionals: Vec<String>,
}

impl Syntax {
    /// No arguments at all.
    pub(crate) const NONE: Self = Self { switches: &[], options: &[], positionals: &[] };

    /// Reads `args`, or says what is wrong with them.
    pub(crate) fn parse(self, args: &[String]) -> anyhow::Result<Args> {
        let mut parsed = Args::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            if self.switches.contains(&arg.as_str()) {
                parsed.switches.push(arg.clone());
            } else if self.options.contains(&arg.as_str()) {
                let value = args.next().with_context(|| format!("`{arg}` needs a value"))?;
                parsed.options.push((arg.clone(), value.clone()));
            } else if arg.starts_with('-') || parsed.positionals.len() == self.positionals.len() {
                bail!("`{arg}` means nothing here; `cargo xtask help` lists what does");
            } else {
                parsed.positionals.push(arg.clone());
            }
        }
        if let Some(missing) = self.positionals.get(parsed.positionals.len()) {
            bail!("{missing} is missing; `cargo xtask help` lists what goes where");
        }
        Ok(parsed)
    }
}

impl Args {
    /// Whether `switch` was given.
    pub(crate) fn has(&self, switch: &str) -> bool {
        self.switches.iter().any(|given| given == switch)
    }

    /// The number after `option`; the last one if it was given more than once.
    pub(crate) fn number_of(&self, option: &str) -> anyhow::Result<Option<u64>> {
        let given = self.options.iter().rev().find(|(name, _)| name == option);
        given.map(|(name, value)| number(name, value)).transpose()
    }

    /// What stands after `option`; the last if it was given more than once.
    pub(crate) fn text_of(&self, option: &str) -> Option<&str> {
        let given = self.options.iter().rev().find(|(name, _)| name == option);
        given.map(|(_, value)| value.as_str())
    }

    /// The positional argument at `index`, called `name`, as a number.
    pub(crate) fn number_at(&self, index: usize, name: &str) -> anyhow::Result<u64> {
        let value = self.positionals.get(index).with_context(|| format!("{name} is missing"))?;
        number(name, value)
    }
}

fn number(name: &str, value: &str) -> anyhow::Result<u64> {
    value.parse().with_context(|| format!("{name} is a whole number, not `{value}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEDS: Syntax =
        Syntax { switches: &["--quick"], options: &["--start"], positionals: &["N"] };

    fn parse(args: &[&str]) -> anyhow::Result<Args> {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        SEEDS.parse(&args)
    }

    #[test]
    fn switches_options_and_positionals_come_in_any_order() {
        let args = parse(&["--start", "7", "1000", "--quick"]).unwrap();
        assert!(args.has("--quick"));
        assert_eq!(args.number_of("--start").unwrap(), Some(7));
        assert_eq!((args.text_of("--start"), args.text_of("--end")), (Some("7"), None));
        assert_eq!(args.number_at(0, "N").unwrap(), 1000);
        assert_eq!(parse(&["1"]).unwrap().number_of("--start").unwrap(), None);
    }

    #[test]
    fn mistakes_are_named() {
        for (args, complaint) in [
            (&["1", "2"][..], "`2` means nothing"),
            (&["1", "--fast"], "`--fast` means nothing"),
            (&["1", "--start"], "`--start` needs a value"),
            (&[], "N is missing"),
        ] {
            let error = parse(args).unwrap_err().to_string();
            assert!(error.contains(complaint), "{args:?}: {error}");
        }
        let error = parse(&["many"]).unwrap().number_at(0, "N").unwrap_err().to_string();
        assert_eq!(error, "N is a whole number, not `many`");
    }
}
