//! Counting the instructions of a program with valgrind's callgrind.
//!
//! Times differ from machine to machine and from run to run; instruction counts do not, so a limit
//! on them can be part of the tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::process;

/// Runs `program` with `args` and counts the instructions of the whole run.
pub(crate) fn count_instructions(program: &Path, args: &[String]) -> anyhow::Result<u64> {
    let folder = TemporaryFolder::create()?;
    let profile = folder.path.join("callgrind.out");
    let mut out_file = std::ffi::OsString::from("--callgrind-out-file=");
    out_file.push(&profile);
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--tool=callgrind"]).arg(out_file).arg(program).args(args);
    process::run_to_success(&mut valgrind)?;
    let text = fs::read_to_string(&profile).context("callgrind left no profile")?;
    total_instructions(&text)
}

/// The instructions of a whole run, from callgrind's profile of it.
fn total_instructions(profile: &str) -> anyhow::Result<u64> {
    let field = |key| profile.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    let events = field("events:").context("the profile does not say what it counted")?;
    let Some(column) = events.split_whitespace().position(|event| event == "Ir") else {
        bail!("the profile counted `{events}`, not instructions (Ir)");
    };
    // A run that was profiled in one piece has `summary`, one in several has only `totals`.
    let counts = field("summary:").or_else(|| field("totals:"));
    let counts = counts.context("the profile has no totals; did the program end early?")?;
    let count = counts.split_whitespace().nth(column);
    let count = count.with_context(|| format!("the totals `{counts}` lack the instructions"))?;
    count.parse().with_context(|| format!("`{count}` is not a count"))
}

/// A folder of our own that goes when we go.
struct TemporaryFolder {
    path: PathBuf,
}

impl TemporaryFolder {
    fn create() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("gpreempt-cost-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self { path })
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // Nothing depends on it: what stays behind is small and in the temporary folder.
        let _ = fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read_from_either_line() {
        let one_piece = "version: 1\nevents: Ir\nsummary: 154321\n\nfn=(1)\n12 5\ntotals: 99\n";
        assert_eq!(total_instructions(one_piece).unwrap(), 154_321);
        let pieces = "events: Dr Ir\n\nfn=(1)\n12 5 6\n\ntotals: 7 4200\n";
        assert_eq!(total_instructions(pieces).unwrap(), 4200);
    }

    #[test]
    fn a_profile_without_instructions_is_an_error() {
        for (profile, complaint) in [
            ("", "does not say"),
            ("events: Dr Dw\nsummary: 1 2\n", "not instructions"),
            ("events: Ir\nfn=(1)\n", "no totals"),
            ("events: Dr Ir\nsummary: 1\n", "lack"),
            ("events: Ir\nsummary: many\n", "not a count"),
        ] {
            let error = total_instructions(profile).unwrap_err().to_string();
            assert!(error.contains(complaint), "{profile:?}: {error}");
        }
    }

    #[test]
    fn real_counts_are_positive_and_repeat() {
        if !crate::packages::VALGRIND.is_installed() {
            println!("SKIPPED: {}", crate::packages::VALGRIND.is_missing());
            return;
        }
        let count = || count_instructions(Path::new("/bin/true"), &[]).unwrap();
        let first = count();
        assert!(first > 1000, "{first}");
        assert_eq!(first.abs_diff(count()) * 1000 / first, 0, "the same to a part in a thousand");
    }
}
