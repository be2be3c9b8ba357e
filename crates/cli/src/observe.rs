//! `gpreempt observe`: what a process submits, seen from outside.

mod gain;
mod pattern;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpreempt_device::nvidia::act::switch_counts;
use gpreempt_device::nvidia::own::OwnClient;
use gpreempt_device::nvidia::ring::{RingError, Rings};
use gpreempt_device::nvidia::survey::{self, GpuProcess};
use serde::Serialize;

use crate::args::ObserveArgs;
use crate::daemon;
use crate::driver_gate;
use crate::failure::Failure;
use crate::output;
use gain::Gain;
use pattern::{Pattern, Summary};

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
    /// How the rings were read: mapped, or through the process's memory.
    way: &'static str,
    /// How long one look at the rings in use took, on average.
    look_us: f64,
    summary: Summary,
    switches_per_s: Option<f64>,
    switches_mid_kernel_per_s: Option<f64>,
    gain: Gain,
}

/// A context that is being watched.
struct Watched<'a> {
    row: ContextObservation,
    rings: Rings,
    pattern: Pattern,
    looked: Duration,
    counts: Box<dyn Fn() -> Option<(u32, u32)> + 'a>,
    before: Option<(u32, u32)>,
}

pub(crate) fn main(args: &ObserveArgs) -> Result<(), Failure> {
    driver_gate::for_reading(args.driver)
        .map_err(|failure| daemon::instead(failure, "`gpreempt top`"))?;
    let process = survey::look(args.pid).map_err(Failure::input)?;
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

fn open<'a>(process: &'a GpuProcess, args: &ObserveArgs) -> Result<Vec<Watched<'a>>, Failure> {
    let clients = process.clients.as_ref().map_err(Failure::input)?;
    let (key, mut watched) = (process.info.key, Vec::new());
    for client in clients {
        for device in &client.devices {
            let (Some(uuid), Some(subdevice)) = (&device.uuid, device.subdevice) else { continue };
            let own = OwnClient::open(uuid).map(|own| Arc::new(Mutex::new(own)));
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
                watched.push(Watched {
                    row: ContextObservation {
                        gpu: uuid.clone(),
                        group,
                        channels: context.channels().len(),
                        slice_us: context.compute.slice_us,
                        way: rings.way(),
                        look_us: 0.0,
                        summary: Summary::default(),
                        switches_per_s: None,
                        switches_mid_kernel_per_s: None,
                        gain: Gain::default(),
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
        return Err(Failure::input(format_args!("process {pid} has nothing on a GPU yet")));
    }
    Ok(watched)
}

impl Watched<'_> {
    fn finish(mut self, took: Duration) -> ContextObservation {
        let seconds = took.as_secs_f64();
        let summary = self.pattern.finish(took);
        if let (Some(before), Some(after)) = (self.before, (self.counts)()) {
            let per_s = |before: u32, after: u32| f64::from(after.saturating_sub(before)) / seconds;
            self.row.switches_per_s = Some(per_s(before.0, after.0));
            self.row.switches_mid_kernel_per_s = Some(per_s(before.1, after.1));
        }
        // CAST: a count of looks is far below 2^52.
        self.row.look_us = self.looked.as_secs_f64() * 1e6 / (summary.looks.max(1) as f64);
        self.row.gain = Gain::of(&summary);
        self.row.summary = summary;
        self.row
    }
}

fn text(observation: &Observation) -> String {
    let Observation { pid, name, contexts } = observation;
    let mut text = format!("{pid} ({name})\n");
    for context in contexts {
        let ContextObservation { gpu, channels, way, look_us, summary, .. } = context;
        let slice = context.slice_us.map_or_else(|| "unknown".into(), |us| format!("{us} us"));
        text.push_str(&format!("  {gpu}, {channels} channels, slice {slice}\n"));
        text.push_str(&format!("  looked {} times, {look_us:.1} us each ({way})\n", summary.looks));
        text.push_str(&summary.text());
        if let (Some(all), Some(mid)) = (context.switches_per_s, context.switches_mid_kernel_per_s)
        {
            text.push_str(&format!(
                "  switched away from {all:.1} times a second, {mid:.1} of them inside a kernel\n"
            ));
        }
        text.push_str(&context.gain.text());
    }
    text
}
