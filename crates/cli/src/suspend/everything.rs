//! Every process off one GPU: `gpreempt suspend --gpu GPU --everything`.

mod by_daemon;
mod on_amd;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::{Duration, Instant};

use gpreempt_device::keeper::monotonic_ns;
use serde_json::json;

use crate::args::SuspendArgs;
use crate::failure::Failure;
use crate::stop::Stop;
use crate::{daemon, output};

/// How often it is looked whether somebody new came, and leases are renewed.
const ROUND: Duration = super::lease::RENEW;

/// What stops and lets go.
trait Hand {
    /// Stops everybody who is there and not stopped yet, and keeps the others so. Says who is
    /// stopped now, and why others are not.
    fn stop_all(&mut self, left: Option<Duration>) -> Result<Stopped, Failure>;

    /// How often that is done.
    fn round(&self) -> Duration {
        ROUND
    }

    /// Lets everybody on again.
    fn let_all_go(&mut self) -> Result<(), Failure>;
}

/// Who is stopped, and why others are not.
#[derive(Debug, Default)]
struct Stopped {
    pids: BTreeSet<u32>,
    refused: BTreeMap<u32, String>,
}

pub(super) fn main(args: &SuspendArgs) -> Result<(), Failure> {
    // PANIC: one requires the other.
    let gpu = args.gpu.as_deref().expect("--everything requires --gpu");
    match daemon::find()? {
        Some(client) => run(args, gpu, &mut by_daemon::ByDaemon::new(client, gpu)?),
        None => run(args, gpu, &mut on_amd::OnAmd::new(gpu)?),
    }
}

fn run(args: &SuspendArgs, gpu: &str, hand: &mut dyn Hand) -> Result<(), Failure> {
    let stop = Stop::on_signals()?;
    let until = args.time.map(|time| Instant::now() + time);
    let result = hold(args, (gpu, hand), until, &stop);
    // Whatever happened, everybody goes on.
    let released = hand.let_all_go();
    let all = result?;
    released?;
    say(args, "resumed", gpu, &all, "runs again")
}

/// Until it is over. Says who was stopped.
fn hold(
    args: &SuspendArgs,
    (gpu, hand): (&str, &mut dyn Hand),
    until: Option<Instant>,
    stop: &Stop,
) -> Result<BTreeSet<u32>, Failure> {
    let (mut known, mut complained) = (BTreeSet::new(), BTreeSet::new());
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let stopped = hand.stop_all(left)?;
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
        std::thread::sleep(left.unwrap_or(Duration::MAX).min(hand.round()));
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
