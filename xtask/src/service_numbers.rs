//! `cargo xtask service-numbers`: how fast the daemon reacts, what it costs, how far it reaches.
//!
//! The real programs, built for release, on the emulated GPU and the emulated KFD. These are times
//! of this machine and of everything else that runs on it, so no test asserts them;
//! `crates/sim/tests/simulations/reaction.rs` asserts the same of the scheduler's loop in virtual
//! time.

mod company;
mod cost;
mod kfd;
mod latency;
mod sample;
mod scale;
mod setup;
mod station;
mod terminal;
mod usage;
mod verdict;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::process::setpriority_process;
use serde_json::{Value, json};

use crate::args::Syntax;
use crate::process::{build_release, repository_root};
use cost::Cost;
use kfd::Kfd;
use latency::Latency;
use scale::{Scale, Size};
use verdict::Verdict;

const SYNTAX: Syntax = Syntax {
    switches: &["--json", "--urgent"],
    options: &["--clients", "--queues", "--minutes", "--only", "--programs"],
    positionals: &[],
};

/// The programs that take part.
const PROGRAMS: &[&str] = &[
    "--package=gpreempt-cli",
    "--bin=gpreempt",
    "--package=gpreempt-daemon",
    "--bin=gpreemptd",
    "--package=gpreempt-device",
    "--bin=gpreempt-keeper",
    "--package=gpreempt-emu",
    "--bin=gpreempt-emu",
];

/// How nice everybody is with `--urgent`, where others use the machine at the same time.
const URGENT: i32 = -10;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Latency,
    Cost,
    Scale,
    Kfd,
}

/// Measures and prints. Whether every promise was kept.
pub(crate) fn main(args: &[String]) -> anyhow::Result<bool> {
    let args = SYNTAX.parse(args)?;
    let number = |name, default| Ok::<_, anyhow::Error>(args.number_of(name)?.unwrap_or(default));
    let size = Size {
        clients: number("--clients", 200)?,
        queues: number("--queues", 1_000)?,
        minutes: number("--minutes", 10)?,
    };
    let parts = parts(args.text_of("--only"))?;
    let programs = programs(args.text_of("--programs"))?;
    if args.has("--urgent") {
        // Everybody who is started later inherits it.
        let refused = "only root may be urgent; leave --urgent out";
        setpriority_process(None, URGENT).context(refused)?;
    }
    let (mut results, verdicts) = measure(&programs, &parts, size)?;
    results["urgent"] = json!(args.has("--urgent"));
    if args.has("--json") {
        println!("{}", serde_json::to_string_pretty(&results)?);
    } else {
        println!("{}", verdict::table(&verdicts));
    }
    Ok(verdicts.iter().all(Verdict::is_kept))
}

/// Where the programs are: built now, or elsewhere for a machine without a compiler.
fn programs(ready: Option<&str>) -> anyhow::Result<PathBuf> {
    if let Some(folder) = ready {
        return std::path::absolute(folder).context("the folder of the programs is not one");
    }
    let program = build_release(PROGRAMS)?;
    Ok(program.parent().context("cargo built a program in no folder")?.to_owned())
}

fn parts(only: Option<&str>) -> anyhow::Result<Vec<Part>> {
    Ok(match only {
        None => vec![Part::Latency, Part::Cost, Part::Scale, Part::Kfd],
        Some("latency") => vec![Part::Latency],
        Some("cost") => vec![Part::Cost],
        Some("scale") => vec![Part::Scale],
        Some("kfd") => vec![Part::Kfd],
        Some(other) => bail!("`{other}` cannot be measured; take latency, cost, scale or kfd"),
    })
}

fn measure(programs: &Path, parts: &[Part], size: Size) -> anyhow::Result<(Value, Vec<Verdict>)> {
    let mut results = json!({
        "commit": commit(),
        "processors": std::thread::available_parallelism().map_or(1, usize::from),
        "load_average_before": usage::load_average(),
    });
    let mut verdicts = Vec::new();
    for part in parts {
        let (name, result, more) = match part {
            Part::Latency => {
                let latency = Latency::measure(programs)?;
                ("latency", latency.to_json(), verdict::of_latency(&latency))
            }
            Part::Cost => {
                let cost = Cost::measure(programs)?;
                ("cost", cost.to_json(), verdict::of_cost(&cost))
            }
            Part::Scale => {
                let scale = Scale::measure(programs, size)?;
                ("scale", scale.to_json(), verdict::of_scale(&scale))
            }
            Part::Kfd => {
                let kfd = Kfd::measure(programs)?;
                ("kfd", kfd.to_json(), verdict::of_kfd(&kfd))
            }
        };
        results[name] = result;
        verdicts.extend(more);
    }
    results["load_average_after"] = json!(usage::load_average());
    results["promises"] = verdicts.iter().map(Verdict::to_json).collect();
    Ok((results, verdicts))
}

/// The commit, with a mark if files differ from it.
fn commit() -> Option<String> {
    let mut command = std::process::Command::new("git");
    command.args(["describe", "--always", "--dirty"]).current_dir(repository_root());
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Loads that did not end well make everything else worthless.
fn complain(complaints: &[String]) -> anyhow::Result<()> {
    if complaints.is_empty() { Ok(()) } else { bail!("{}", complaints.join("; ")) }
}

/// Two digits behind the point.
fn round(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_part_or_all_of_them() {
        assert_eq!(parts(None).unwrap().len(), 4);
        assert_eq!(parts(Some("scale")).unwrap(), [Part::Scale]);
        assert!(parts(Some("speed")).unwrap_err().to_string().contains("`speed`"));
    }
}
