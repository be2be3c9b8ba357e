//! `gpreempt observe`: samples the rings of a process and estimates what a priority would gain.
//!
//! Reads only. The estimates come from measurements on an H200 beside one process that always has
//! work: each time a group has no work it loses the GPU and waits until it gets it back.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpreempt_device::nvidia::abi::Branch;
use gpreempt_device::nvidia::change::switch_counts;
use gpreempt_device::nvidia::driver::Driver;
use gpreempt_device::nvidia::import_client::ImportClient;
use gpreempt_device::nvidia::process_discovery::{self, GpuProcess};
use gpreempt_device::nvidia::ring::{RingError, Rings};
use serde::Serialize;

use crate::args::ObserveArgs;
use crate::failure::Failure;
use crate::observe_pattern::{Pattern, Summary};
use crate::output::counted;
use crate::{driver_gate, output, service};

#[derive(Serialize)]
struct Observation {
    pid: u32,
    name: String,
    contexts: Vec<ContextObservation>,
}

#[derive(Serialize)]
struct ContextObservation {
    gpu: String,
    group: u32,
    channels: usize,
    slice_us: Option<u64>,
    /// How the rings were read: mapped, or through the memory of the process.
    way: &'static str,
    /// The average time of one reading.
    look_us: f64,
    summary: Summary,
    switches_per_s: Option<f64>,
    switches_mid_kernel_per_s: Option<f64>,
    /// None where nothing was submitted.
    gain: Option<Gain>,
}

/// A context that is observed.
struct ObservedContext<'a> {
    row: ContextObservation,
    rings: Rings,
    pattern: Pattern,
    looked: Duration,
    counts: Box<dyn Fn() -> Option<(u32, u32)> + 'a>,
    before: Option<(u32, u32)>,
}

pub(crate) fn main(args: &ObserveArgs) -> Result<(), Failure> {
    driver_gate::for_reading(args.driver)
        .map_err(|failure| service::instead(failure, "`gpreempt top`"))?;
    let process = process_discovery::inspect_process(args.pid).map_err(Failure::input)?;
    let mut watched = open(&process, args)?;
    let begin = Instant::now();
    let mut next = begin;
    while begin.elapsed() < args.time {
        for context in &mut watched {
            let before = Instant::now();
            let Some(reading) = context.rings.read() else {
                return Err(Failure::run(format_args!("process {} ended meanwhile", args.pid)));
            };
            context.looked += before.elapsed();
            context.pattern.take(before - begin, reading);
        }
        next += Duration::from_micros(args.every_us);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    process.info.key.check().map_err(Failure::run)?;
    let took = begin.elapsed();
    let contexts = watched.into_iter().map(|context| context.finish(took)).collect();
    let (pid, name) = (args.pid, process.info.name.clone());
    let observation = Observation { pid, name, contexts };
    if args.json {
        return output::print_json(&observation);
    }
    output::print(&text(&observation))
}

fn open<'a>(
    process: &'a GpuProcess,
    args: &ObserveArgs,
) -> Result<Vec<ObservedContext<'a>>, Failure> {
    let clients = process.clients.as_ref().map_err(Failure::input)?;
    let (key, mut watched) = (process.info.key, Vec::new());
    for client in clients {
        for device in &client.devices {
            let (Some(uuid), Some(subdevice)) = (&device.uuid, device.subdevice) else { continue };
            let own = ImportClient::open(uuid).map(|own| Arc::new(Mutex::new(own)));
            for context in device.contexts() {
                let rings = match &own {
                    Ok(own) if !args.by_memory => Rings::open(key, client.handle, &context, own),
                    Ok(_) | Err(_) => Rings::open_by_memory(key, &context),
                };
                let rings = rings.map_err(|error: RingError| Failure::run(error))?;
                let (handle, group) = (client.handle, context.compute.handle);
                let counts = move || {
                    let counts = switch_counts(key, handle, subdevice, group).ok()?;
                    Some((counts.saves, counts.saves_instruction))
                };
                watched.push(ObservedContext {
                    row: ContextObservation {
                        gpu: uuid.clone(),
                        group,
                        channels: context.channels().len(),
                        slice_us: context.compute.slice_us,
                        way: rings.source_name(),
                        look_us: 0.0,
                        summary: Summary::default(),
                        switches_per_s: None,
                        switches_mid_kernel_per_s: None,
                        gain: None,
                    },
                    rings,
                    pattern: Pattern::default(),
                    looked: Duration::ZERO,
                    before: counts(),
                    counts: Box::new(counts),
                });
            }
        }
    }
    if watched.is_empty() {
        let pid = args.pid;
        return Err(Failure::input(format_args!("process {pid} has no GPU context yet")));
    }
    Ok(watched)
}

impl ObservedContext<'_> {
    fn finish(mut self, took: Duration) -> ContextObservation {
        let seconds = took.as_secs_f64();
        let summary = self.pattern.finish(took);
        if let (Some(before), Some(after)) = (self.before, (self.counts)()) {
            let per_s = |before: u32, after: u32| f64::from(after.saturating_sub(before)) / seconds;
            self.row.switches_per_s = Some(per_s(before.0, after.0));
            self.row.switches_mid_kernel_per_s = Some(per_s(before.1, after.1));
        }
        // CAST: a count of readings is far below 2^52.
        self.row.look_us = self.looked.as_secs_f64() * 1e6 / (summary.looks.max(1) as f64);
        let can_hold =
            Driver::find().is_ok_and(|driver| driver.branch.is_some_and(Branch::can_hold));
        self.row.gain = (summary.submissions_per_s > 0.0).then(|| Gain::of(&summary, can_hold));
        self.row.summary = summary;
        self.row
    }
}

fn text(observation: &Observation) -> String {
    let Observation { pid, name, contexts } = observation;
    let mut text = format!("{pid} ({name})\n");
    for context in contexts {
        let ContextObservation { gpu, channels, way, look_us, summary, .. } = context;
        let channels = counted(*channels, "channel", "channels");
        let slice = context.slice_us.map_or_else(|| "unknown".into(), |us| format!("{us} us"));
        text.push_str(&format!("  {gpu}, {channels}, slice {slice}\n"));
        text.push_str(&format!("  {} readings, {look_us:.1} us each ({way})\n", summary.looks));
        text.push_str(&summary.text());
        if let (Some(all), Some(mid)) = (context.switches_per_s, context.switches_mid_kernel_per_s)
        {
            text.push_str(&format!(
                "  {all:.1} context switches away from it per second, {mid:.1} inside a kernel\n"
            ));
        }
        text.push_str(&context.gain.as_ref().map_or_else(
            || "  observe it while it works to see what a priority gains\n".to_owned(),
            |gain| gain.text(*pid),
        ));
    }
    text
}

/// The wait beside a process with the driver's default slice.
const WAIT_DEFAULT_US: f64 = 2_300.0;
/// The wait beside a process with the shortest slice: one switch in each direction.
const WAIT_SHORT_US: f64 = 300.0;
/// A process keeps the GPU busy by itself if work is pending for more than this part of the time,
/// and less than this part of its submissions finds an empty ring.
const BUSY_SHARE: f64 = 0.5;

/// Estimates, beside one process that always has work.
#[derive(Clone, Copy, Debug, Serialize)]
struct Gain {
    /// The delay of each burst with the driver's defaults.
    wait_default_us: f64,
    /// The delay of each burst with a high priority.
    wait_high_us: f64,
    /// Whether it keeps the GPU busy, so that others wait for it.
    is_saturating: bool,
}

impl Gain {
    /// A GPU that can be held is reserved for a process of high priority after the first submission
    /// of a burst; otherwise the process waits for the GPU at each refill of its ring.
    fn of(summary: &Summary, can_hold: bool) -> Self {
        let refills = summary.refills_per_burst.max(1.0);
        Self {
            wait_default_us: refills * WAIT_DEFAULT_US,
            wait_high_us: if can_hold { 1.0 } else { refills } * WAIT_SHORT_US,
            is_saturating: summary.pending_share > BUSY_SHARE && summary.refill_share < BUSY_SHARE,
        }
    }

    /// What a priority gains: a low one of a process that keeps the GPU busy helps others, a high
    /// one of a process with gaps helps that process.
    fn text(&self, pid: u32) -> String {
        let ms = |us: f64| format!("{:.1} ms", us / 1000.0);
        if self.is_saturating {
            return format!(
                "  it keeps the GPU busy: with a low priority (`gpreempt attach {pid} -p 2`) other \
                 processes wait about {} for the GPU instead of up to {}, and this one uses the \
                 time that they leave (estimated from measurements on an H200)\n",
                ms(WAIT_SHORT_US),
                ms(WAIT_DEFAULT_US)
            );
        }
        format!(
            "  it leaves gaps: beside one busy process each of its bursts waits about {} for the \
             GPU; with a high priority (`gpreempt attach {pid} -p 12`) about {} (estimated from \
             measurements on an H200)\n",
            ms(self.wait_default_us),
            ms(self.wait_high_us)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refill_of_an_empty_ring_adds_one_wait() {
        let summary = Summary { refills_per_burst: 20.0, ..Summary::default() };
        let [sliced, held] = [false, true].map(|can_hold| Gain::of(&summary, can_hold));
        assert!((sliced.wait_default_us - 46_000.0).abs() < 1.0);
        assert!(sliced.text(7).contains("46.0 ms") && sliced.text(7).contains("6.0 ms"));
        assert!(held.text(7).contains("46.0 ms") && held.text(7).contains("about 0.3 ms"));
    }

    #[test]
    fn the_advice_fits_the_pattern() {
        let busy = Summary { pending_share: 0.9, ..Summary::default() };
        let advice = |summary: &Summary| Gain::of(summary, true).text(41);
        assert!(advice(&busy).contains("low priority (`gpreempt attach 41 -p 2`)"));
        // A ring that is empty at each submission belongs to a process that waits for its results.
        let waiting = Summary { refill_share: 1.0, ..busy };
        assert!(advice(&waiting).contains("high priority (`gpreempt attach 41 -p 12`)"));
    }
}
