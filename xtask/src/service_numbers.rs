//! `cargo xtask service-numbers`: how fast the daemon reacts, what it costs, and with how many
//! clients it works.
//!
//! The real programs, built for release, on the emulated GPU and the emulated KFD. These are times
//! of this machine and of everything else that runs on it, so no test asserts them;
//! `crates/sim/tests/simulations/reaction.rs` asserts the same of the scheduler's loop in virtual
//! time.

mod clients;
mod cost;
mod latency;
mod promises;
mod scale;
mod setup;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::ValueEnum;
use rustix::process::setpriority_process;
use serde_json::{Value, json};

use crate::process::{self, build_programs};
use cost::Cost;
use latency::{Kfd, Latency};
use promises::PromiseResult;
use scale::{Scale, Size};

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ServiceNumbersArgs {
    /// Measure one part only.
    #[arg(long, value_enum)]
    only: Option<Part>,
    #[command(flatten)]
    size: Size,
    /// Use the programs in this folder instead of building them.
    #[arg(long)]
    programs: Option<PathBuf>,
    /// Run everything with nice -10, on a machine that others use at the same time.
    #[arg(long)]
    urgent: bool,
    #[arg(long)]
    json: bool,
}

/// The nice value with `--urgent`, where others use the machine at the same time.
const URGENT: i32 = -10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Latency,
    Cost,
    Scale,
    Kfd,
}

/// Measures and prints. Whether every promise was kept.
pub(crate) fn main(args: &ServiceNumbersArgs) -> anyhow::Result<bool> {
    let parts = args.only.map_or_else(|| Part::value_variants().to_vec(), |part| vec![part]);
    let programs = programs(args.programs.as_deref())?;
    if args.urgent {
        // Processes that are started later inherit it.
        let refused = "only root may be urgent; leave --urgent out";
        setpriority_process(None, URGENT).context(refused)?;
    }
    let (mut results, promises) = measure(&programs, &parts, args.size)?;
    results["urgent"] = json!(args.urgent);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&results)?);
    } else {
        println!("{}", promises::table(&promises));
    }
    Ok(promises.iter().all(|promise| promise.is_kept))
}

/// Where the programs are: built now, or elsewhere for a machine without a compiler.
fn programs(ready: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(folder) = ready {
        return std::path::absolute(folder).context("the folder of the programs is not one");
    }
    build_programs()
}

fn measure(
    programs: &Path,
    parts: &[Part],
    size: Size,
) -> anyhow::Result<(Value, Vec<PromiseResult>)> {
    let mut results = json!({
        "commit": process::commit(),
        "processors": std::thread::available_parallelism().map_or(1, usize::from),
        "load_average_before": cost::load_average(),
    });
    let mut promises = Vec::new();
    for part in parts {
        let (name, result, more) = match part {
            Part::Latency => {
                let latency = Latency::measure(programs)?;
                ("latency", latency.to_json(), promises::of_latency(&latency))
            }
            Part::Cost => {
                let cost = Cost::measure(programs)?;
                ("cost", cost.to_json(), promises::of_cost(&cost))
            }
            Part::Scale => {
                let scale = Scale::measure(programs, size)?;
                ("scale", scale.to_json(), promises::of_scale(&scale))
            }
            Part::Kfd => {
                let kfd = Kfd::measure(programs)?;
                ("kfd", kfd.to_json(), promises::of_kfd(&kfd))
            }
        };
        results[name] = result;
        promises.extend(more);
    }
    results["load_average_after"] = json!(cost::load_average());
    results["promises"] = promises.iter().map(PromiseResult::to_json).collect();
    Ok((results, promises))
}

/// Fails if a load did not end well: then the measurement means nothing.
fn check_ends(complaints: &[String]) -> anyhow::Result<()> {
    if complaints.is_empty() { Ok(()) } else { bail!("{}", complaints.join("; ")) }
}

/// Two digits after the decimal point.
fn round(number: f64) -> f64 {
    (number * 100.0).round() / 100.0
}
