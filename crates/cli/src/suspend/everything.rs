//! Every process off one GPU: `gpreempt suspend --gpu GPU --everything`.

mod leases;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::{Duration, Instant};

use gpreempt_device::keeper::monotonic_ns;
use serde_json::json;

use crate::args::SuspendArgs;
use crate::failure::Failure;
use crate::link::Link;
use crate::output;
use crate::stop::Stop;
use leases::Leases;

/// How often new processes are looked for and leases are renewed: a third of what a lease allows.
const ROUND: Duration = Duration::from_millis(100);

/// Which processes are stopped, and why others are not.
#[derive(Debug, Default)]
struct Stopped {
    pids: BTreeSet<u32>,
    refused: BTreeMap<u32, String>,
}

pub(super) fn main(args: &SuspendArgs, mut link: Link, stop: &Stop) -> Result<(), Failure> {
    // PANIC: one requires the other.
    let gpu = args.gpu.as_deref().expect("--everything requires --gpu");
    let until = args.time.map(|time| Instant::now() + time);
    let is_private = link.is_private();
    let result = Leases::new(&mut link.client, gpu, is_private).and_then(|mut leases| {
        let result = hold(args, (gpu, &mut leases), until, stop);
        // Whatever happened, every process runs again.
        let released = leases.end();
        let all = result?;
        released?;
        Ok(all)
    });
    link.end()?;
    say(args, "resumed", gpu, &result?, "runs again")
}

/// Until it is over. Says who was stopped.
fn hold(
    args: &SuspendArgs,
    (gpu, leases): (&str, &mut Leases<'_>),
    until: Option<Instant>,
    stop: &Stop,
) -> Result<BTreeSet<u32>, Failure> {
    let (mut known, mut complained) = (BTreeSet::new(), BTreeSet::new());
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let stopped = leases.stop_all(left)?;
        for (pid, why) in &stopped.refused {
            if complained.insert(*pid) {
                let _ = writeln!(std::io::stderr(), "gpreempt: {pid} runs on: {why}");
            }
        }
        let fresh: BTreeSet<u32> = stopped.pids.difference(&known).copied().collect();
        if !fresh.is_empty() {
            say(args, "stopped", gpu, &fresh, "is stopped")?;
        }
        known.extend(fresh);
        std::thread::sleep(left.unwrap_or(Duration::MAX).min(ROUND));
        if until.is_some_and(|until| until <= Instant::now()) || stop.is_set() {
            return Ok(known);
        }
    }
}

fn say(
    args: &SuspendArgs,
    what: &str,
    gpu: &str,
    pids: &BTreeSet<u32>,
    words: &str,
) -> Result<(), Failure> {
    if args.json {
        let line = json!({ "line": what, "gpu": gpu, "pids": pids, "time_ns": monotonic_ns() });
        return output::print(&format!("{line}\n"));
    }
    let text: String = pids.iter().map(|pid| format!("{pid} {words}\n")).collect();
    if text.is_empty() {
        return output::print("nobody used that GPU\n");
    }
    output::print(&text)
}
