//! `cargo xtask cost`: how many instructions the scheduler spends on an event, counted by
//! valgrind's callgrind.
//!
//! The measured program is `crates/core/examples/cost.rs QUEUES EVENTS`. It runs once without
//! events and once with many; the difference belongs to the events. Times differ from machine to
//! machine and from run to run; instruction counts do not, so a limit on them can be a test.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail};
use gpreempt_stage::WorkFolder;
use serde_json::{Value, json};

use crate::packages::VALGRIND;
use crate::process::{self, build_release};
use crate::step::Outcome;

#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct CostArgs {
    /// Fail if a count is above its limit.
    #[arg(long)]
    check: bool,
    #[arg(long)]
    json: bool,
    /// Fail if valgrind is missing.
    #[arg(long)]
    require: bool,
}

/// How many queues there are in each measurement: powers of ten, smallest first.
const SIZES: [u64; 3] = [10, 1_000, 100_000];
/// Events in each measurement: enough to drown what differs between two set-ups.
const EVENTS: u64 = 20_000;
const LIMIT_QUEUES: u64 = 1_000;
/// An event costs fewer instructions than this: a microsecond on a slow processor.
const LIMIT: u64 = 3_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    queues: u64,
    events: u64,
    instructions: u64,
}

impl Cost {
    const fn per_event(&self) -> u64 {
        self.instructions / self.events
    }
}

/// Measures, prints, and with `--check` holds the counts to their limits.
pub(crate) fn main(args: CostArgs) -> anyhow::Result<bool> {
    if !VALGRIND.is_installed() {
        eprintln!("SKIPPED: {}: {}", VALGRIND.needed_by, VALGRIND.is_missing());
        return Ok(!args.require);
    }
    let costs = measure()?;
    println!("{}", if args.json { json(&costs) } else { table(&costs) });
    let broken = if args.check { broken_limits(&costs) } else { Vec::new() };
    for limit in &broken {
        eprintln!("{limit}");
    }
    Ok(broken.is_empty())
}

pub(crate) fn check() -> Outcome {
    if !VALGRIND.is_installed() {
        return Outcome::Skipped(VALGRIND.is_missing());
    }
    let costs = match measure() {
        Ok(costs) => costs,
        Err(error) => return Outcome::Failed(format!("{error:#}")),
    };
    println!("{}", table(&costs));
    let broken = broken_limits(&costs);
    if broken.is_empty() { Outcome::Passed } else { Outcome::Failed(broken.join("; ")) }
}

fn measure() -> anyhow::Result<Vec<Cost>> {
    let program = build_release(&["--package", "gpreempt-core", "--example", "cost"])?;
    measure_with(|queues, events| {
        count_instructions(&program, &[queues.to_string(), events.to_string()])
    })
}

/// Measures every size; `count` says what a whole run with so many queues and events costs.
fn measure_with(count: impl Fn(u64, u64) -> anyhow::Result<u64>) -> anyhow::Result<Vec<Cost>> {
    let measure = |queues| {
        let set_up = count(queues, 0)?;
        let all = count(queues, EVENTS)?;
        let instructions = all.checked_sub(set_up).with_context(|| {
            format!("{queues} queues: setting up cost {set_up} instructions, the whole run {all}")
        })?;
        Ok(Cost { queues, events: EVENTS, instructions })
    };
    SIZES.into_iter().map(measure).collect()
}

/// A sentence for every limit that the costs break.
fn broken_limits(costs: &[Cost]) -> Vec<String> {
    let idle = costs.iter().filter(|cost| cost.per_event() == 0).map(|cost| {
        format!("{} queues: the example handled no events, so it shows nothing", cost.queues)
    });
    let dear = costs.iter().filter(|cost| cost.queues == LIMIT_QUEUES && cost.per_event() >= LIMIT);
    let dear = dear.map(|cost| {
        let per_event = cost.per_event();
        format!(
            "{LIMIT_QUEUES} queues: an event costs {per_event} instructions and must stay below \
             {LIMIT}; something on its way through the scheduler has become dearer"
        )
    });
    let steep = costs.iter().zip(costs.iter().skip(1)).filter_map(|(few, many)| {
        let limit = growth_limit(*few, *many);
        (many.instructions > limit).then(|| {
            format!(
                "from {} to {} queues an event went from {} to {} instructions; growing with \
                     the logarithm, and half as much again, would be {}: something looks at every \
                     queue",
                few.queues,
                many.queues,
                few.per_event(),
                many.per_event(),
                limit / many.events,
            )
        })
    });
    idle.chain(dear).chain(steep).collect()
}

/// What `many` may cost if cost grows with the logarithm of the queues, and half as much again.
///
/// The base of a logarithm does not matter in a ratio, and for powers of ten base ten is exact.
fn growth_limit(few: Cost, many: Cost) -> u64 {
    let [few_digits, many_digits] = [few, many].map(|cost| u64::from(cost.queues.ilog10()));
    few.instructions * many_digits * 3 / (few_digits * 2)
}

fn table(costs: &[Cost]) -> String {
    let mut table = format!("{:>8}  {:>22}", "queues", "instructions per event");
    for cost in costs {
        table.push_str(&format!("\n{:>8}  {:>22}", cost.queues, cost.per_event()));
    }
    table
}

fn json(costs: &[Cost]) -> String {
    let cost =
        |cost: &Cost| json!({ "queues": cost.queues, "instructions_per_event": cost.per_event() });
    let costs: Vec<Value> = costs.iter().map(cost).collect();
    json!({ "events": EVENTS, "costs": costs }).to_string()
}

/// Runs `program` with `args` and counts the instructions of the whole run.
pub(crate) fn count_instructions(program: &Path, args: &[String]) -> anyhow::Result<u64> {
    let folder = WorkFolder::new("cost")?;
    let profile = folder.path("callgrind.out");
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Costs per event at 10, 1,000 and 100,000 queues.
    fn costs(per_event: [u64; 3]) -> Vec<Cost> {
        let cost = |(queues, each)| Cost { queues, events: EVENTS, instructions: each * EVENTS };
        SIZES.into_iter().zip(per_event).map(cost).collect()
    }

    #[test]
    fn setting_up_does_not_count() {
        let count = |queues, events| Ok(queues * 50 + events * 700);
        assert_eq!(measure_with(count).unwrap(), costs([700, 700, 700]));
        let shrinking = |_, events| Ok(1_000_000 - events);
        let error = measure_with(shrinking).unwrap_err().to_string();
        assert!(error.starts_with("10 queues: setting up cost 1000000"), "{error}");
    }

    #[test]
    fn logarithmic_growth_is_within_the_limits() {
        assert_eq!(broken_limits(&costs([400, 1200, 2000])), Vec::<String>::new());
        // Exactly at the limits: three times, then five thirds, and half as much again each.
        assert_eq!(broken_limits(&costs([400, 1800, 4500])), Vec::<String>::new());
    }

    #[test]
    fn every_broken_limit_is_explained() {
        for (per_event, complaint) in [
            ([900, 3000, 3000], "costs 3000 instructions and must stay below 3000"),
            ([400, 1801, 1801], "from 10 to 1000 queues an event went from 400 to 1801"),
            ([400, 1200, 3001], "from 1000 to 100000 queues an event went from 1200 to 3001"),
            ([0, 0, 0], "handled no events"),
        ] {
            let broken = broken_limits(&costs(per_event));
            assert!(broken.iter().any(|limit| limit.contains(complaint)), "{broken:?}");
        }
        assert_eq!(broken_limits(&costs([400, 1801, 1801])).len(), 1, "one cause, one sentence");
    }

    #[test]
    fn costs_print_for_people_and_for_programs() {
        let costs = costs([400, 1200, 2000]);
        let text = "
  queues  instructions per event
      10                     400
    1000                    1200
  100000                    2000";
        assert_eq!(format!("\n{}", table(&costs)), text);
        let value: Value = serde_json::from_str(&json(&costs)).unwrap();
        assert_eq!(value["events"], EVENTS);
        assert_eq!(
            value["costs"][2],
            json!({ "queues": 100_000, "instructions_per_event": 2_000 })
        );
    }

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
        if !VALGRIND.is_installed() {
            println!("SKIPPED: {}", VALGRIND.is_missing());
            return;
        }
        let count = || count_instructions(Path::new("/bin/true"), &[]).unwrap();
        let first = count();
        assert!(first > 1000, "{first}");
        assert_eq!(first.abs_diff(count()) * 1000 / first, 0, "the same to a part in a thousand");
    }
}
