//! `cargo xtask cost`: how many instructions the scheduler spends on an event.
//!
//! The measured program is `crates/core/examples/cost.rs QUEUES EVENTS`. It runs once without
//! events and once with many; the difference belongs to the events.

use anyhow::Context;

use crate::args::Syntax;
use crate::callgrind::count_instructions;
use crate::packages::VALGRIND;
use crate::process::build_release;
use crate::step::Outcome;

const SYNTAX: Syntax =
    Syntax { switches: &["--check", "--json", "--require"], options: &[], positionals: &[] };

/// How many queues there are in each measurement: powers of ten, smallest first.
const SIZES: [u64; 3] = [10, 1_000, 100_000];
/// Events in each measurement: enough to drown what differs between two set-ups.
const EVENTS: u64 = 20_000;
/// The size for which there is a limit.
const LIMIT_QUEUES: u64 = 1_000;
/// An event costs fewer instructions than this: a microsecond on a slow processor.
const LIMIT: u64 = 3_000;

/// One measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    queues: u64,
    events: u64,
    /// What all the events cost together.
    instructions: u64,
}

impl Cost {
    const fn per_event(&self) -> u64 {
        self.instructions / self.events
    }
}

/// Measures, prints, and with `--check` holds the counts to their limits.
pub(crate) fn main(args: &[String]) -> anyhow::Result<bool> {
    let args = SYNTAX.parse(args)?;
    if !VALGRIND.is_installed() {
        eprintln!("SKIPPED: {}: {}", VALGRIND.needed_by, VALGRIND.is_missing());
        return Ok(!args.has("--require"));
    }
    let costs = measure()?;
    println!("{}", if args.has("--json") { json(&costs) } else { table(&costs) });
    let broken = if args.has("--check") { broken_limits(&costs) } else { Vec::new() };
    for limit in &broken {
        eprintln!("{limit}");
    }
    Ok(broken.is_empty())
}

/// The same as a step of the tests.
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
    let mut json = format!("{{\"events\":{EVENTS},\"costs\":[");
    for (index, cost) in costs.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let (queues, per_event) = (cost.queues, cost.per_event());
        json.push_str(&format!(
            "{comma}{{\"queues\":{queues},\"instructions_per_event\":{per_event}}}"
        ));
    }
    json.push_str("]}");
    json
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
        let text = "{\"events\":20000,\"costs\":[\
            {\"queues\":10,\"instructions_per_event\":400},\
            {\"queues\":1000,\"instructions_per_event\":1200},\
            {\"queues\":100000,\"instructions_per_event\":2000}]}";
        assert_eq!(json(&costs), text);
    }
}
