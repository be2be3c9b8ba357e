//! What each call that controls a process costs, beside work that fills the device.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gpreempt_device::nvidia::{change, process_discovery};

use crate::results::{Distribution, Number};

/// How often each call is made.
const ROUNDS: u32 = 200;
/// How long a process has to be off.
const WAIT: Duration = Duration::from_millis(100);
/// What the process may do between two rounds.
const PAUSE: Duration = Duration::from_millis(2);

/// Stops, resumes and preempts a process again and again, and says how long that took.
///
/// The process is one of ours and ends by itself, so a stop that is never undone harms nobody.
///
/// # Errors
/// If the process cannot be looked at, or the driver refuses.
pub(super) fn numbers(pid: u32, stop: &AtomicBool) -> Result<Vec<Number>, String> {
    let process = process_discovery::inspect_process(pid).map_err(|error| error.to_string())?;
    let clients = process.clients.as_ref().map_err(ToString::to_string)?;
    let acts = change::stops(&process);
    let mut groups = Vec::new();
    for client in clients {
        for group in client.devices.iter().flat_map(|device| &device.groups) {
            groups.push((client.handle, group.handle));
        }
    }
    let key = process.info.key;
    let (mut stops, mut resumes, mut preempts) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        // ORDERING: the flag stands for itself.
        if stop.load(Ordering::Relaxed) {
            return Err("stopped".to_owned());
        }
        stops.push(timed(|| acts.iter().try_for_each(|act| act.on_device().perform(key, false)))?);
        resumes.push(timed(|| acts.iter().try_for_each(|act| act.on_device().perform(key, true)))?);
        std::thread::sleep(PAUSE);
        preempts.push(timed(|| {
            groups
                .iter()
                .try_for_each(|(client, group)| change::preempt(key, *client, *group, Some(WAIT)))
        })?);
        std::thread::sleep(PAUSE);
    }
    Ok([
        ("call_stop", "stop a process", stops),
        ("call_resume", "let it go on", resumes),
        ("call_preempt", "take it off once, and wait until it is off", preempts),
    ]
    .into_iter()
    .filter_map(|(name, title, times)| Some((name, title, Distribution::of(times)?)))
    .flat_map(|(name, title, spread)| Number::percentiles(name, title, &spread))
    .collect())
}

/// How many nanoseconds something took that worked.
fn timed<E: ToString>(call: impl FnOnce() -> Result<(), E>) -> Result<u64, String> {
    let begin = Instant::now();
    call().map_err(|error| error.to_string())?;
    Ok(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX))
}
