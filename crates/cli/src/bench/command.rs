//! What was typed, as results record it.

use crate::args::{BenchArgs, BenchBackend};

/// In one order and with what decides the results alone, so that it can be typed again.
pub(super) fn command(args: &BenchArgs) -> String {
    let suite = quoted(args.suite.as_deref().unwrap_or_default());
    let mut words = vec!["gpreempt bench".to_owned(), suite];
    if args.backend == BenchBackend::Nvidia {
        words.push("--backend nvidia".to_owned());
    }
    for (option, names) in [("--modes", &args.modes), ("--cases", &args.cases)] {
        if !names.is_empty() {
            words.push(format!("{option} {}", quoted(&names.join(","))));
        }
    }
    words.extend(args.repetitions.map(|count| format!("--repetitions {count}")));
    if args.short {
        words.push("--short".to_owned());
    }
    words.extend(args.duration.map(|length| format!("--duration {}s", length.as_secs())));
    words.join(" ")
}

/// A word as a shell takes it for one.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.,/:=+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    fn recorded(words: &[&str]) -> String {
        let parsed = Args::try_parse_from(["gpreempt", "bench"].iter().chain(words)).unwrap();
        let Command::Bench(args) = parsed.command else { panic!("another command") };
        command(&args)
    }

    #[test]
    fn what_decides_the_results_is_recorded_in_one_order() {
        let words = ["micro", "--short", "--out", "x", "--modes", "hold,default", "--commit", "c"];
        assert_eq!(recorded(&words), "gpreempt bench micro --modes hold,default --short");
    }

    #[test]
    fn a_shell_reads_back_what_was_typed() {
        assert_eq!(recorded(&["my suite.toml"]), "gpreempt bench 'my suite.toml'");
        for word in ["a b", "it's", "$HOME", "", "a;b", "plain-1.toml", "ä*"] {
            let line = format!("printf %s {}", quoted(word));
            let output = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word, "{line}");
        }
    }
}
