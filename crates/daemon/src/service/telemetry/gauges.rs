//! The thread that reads what devices count and measure themselves.
//!
//! A reading may block in a driver, so the loop never makes one: it takes the latest. The thread
//! reads once per second while processes use a GPU or a client asks, and changes nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{Builder, Thread};

use gpreempt_core::time::{Duration, Instant};
use gpreempt_device::gauge::{Busy, DeviceFacts, DeviceGauge, DeviceReading};
use gpreempt_wire::monotonic;

use super::history::{History, Recent, Total};

const PERIOD: std::time::Duration = std::time::Duration::from_secs(1);
/// The shortest time between two readings that were not asked for.
const OFTEN: Duration = Duration::from_millis(900);
/// How long a reading counts as current, and a demand for readings as made.
const CURRENT: Duration = Duration::from_millis(5_000);

/// The latest readings of all devices.
#[derive(Debug, Default)]
pub(crate) struct Readings {
    pub(crate) devices: BTreeMap<String, DeviceUse>,
    /// By pid.
    pub(crate) processes: BTreeMap<u32, ProcessUse>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceUse {
    pub(crate) facts: DeviceFacts,
    /// How much it executed kernels, of any process.
    pub(crate) busy: Option<Recent>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ProcessUse {
    /// How much the device that it used most executed its kernels.
    pub(crate) recent: Option<Recent>,
    /// How long devices executed its kernels, where they count that.
    pub(crate) executed: Option<Duration>,
    pub(crate) memory_kib: Option<u64>,
}

/// The handle of the thread, which ends when this is dropped, after the reading that it makes.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    shared: Option<Arc<Shared>>,
    thread: Option<Thread>,
}

#[derive(Debug, Default)]
struct Shared {
    latest: Mutex<Latest>,
    /// Until when readings are made.
    wanted_until_ns: AtomicU64,
    /// A reading that began earlier is outdated.
    wanted_since_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct Latest {
    begun: Instant,
    ended: Instant,
    readings: Arc<Readings>,
}

impl Gauges {
    /// Starts the thread if there is anything to read.
    pub(crate) fn start(gauges: Vec<Box<dyn DeviceGauge>>) -> std::io::Result<Self> {
        if gauges.is_empty() {
            return Ok(Self::default());
        }
        let shared = Arc::new(Shared::default());
        let thread = Arc::downgrade(&shared);
        let builder = Builder::new().name("device gauges".to_owned());
        let spawned = builder.spawn(move || read(gauges, &thread))?;
        Ok(Self { shared: Some(shared), thread: Some(spawned.thread().clone()) })
    }

    /// Has the readings continue for a while.
    pub(crate) fn want(&self, now: Instant) {
        if let Some(shared) = &self.shared {
            let until = (now + CURRENT).as_nanos();
            // ORDERING: an independent number.
            shared.wanted_until_ns.fetch_max(until, Ordering::Relaxed);
        }
    }

    /// The latest readings; empty if they are too old to be shown.
    pub(crate) fn latest(&self, now: Instant) -> Arc<Readings> {
        let Some(shared) = &self.shared else { return Arc::default() };
        let latest = shared.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if now.since(latest.ended) <= CURRENT {
            Arc::clone(&latest.readings)
        } else {
            Arc::default()
        }
    }

    /// Readings that were begun at that time or later. If there are none yet, they are made now:
    /// ask again. Empty where no device tells anything.
    pub(crate) fn since(&self, at: Instant) -> Option<Arc<Readings>> {
        let Some(shared) = &self.shared else { return Some(Arc::default()) };
        let latest = shared.latest.lock().unwrap_or_else(PoisonError::into_inner);
        if latest.begun >= at {
            return Some(Arc::clone(&latest.readings));
        }
        drop(latest);
        // ORDERING: an independent number; the thread is woken after it.
        if shared.wanted_since_ns.fetch_max(at.as_nanos(), Ordering::Relaxed) < at.as_nanos()
            && let Some(thread) = &self.thread
        {
            thread.unpark();
        }
        None
    }
}

fn read(mut gauges: Vec<Box<dyn DeviceGauge>>, shared: &Weak<Shared>) {
    let mut counts = Counts::default();
    let mut begun = Instant::ZERO;
    while let Some(shared) = shared.upgrade() {
        let now = monotonic();
        // ORDERING: independent numbers.
        let is_wanted = shared.wanted_until_ns.load(Ordering::Relaxed) >= now.as_nanos()
            && now.since(begun) >= OFTEN;
        let since_ns = shared.wanted_since_ns.load(Ordering::Relaxed);
        if is_wanted || since_ns > begun.as_nanos() {
            begun = now;
            let devices = gauges.iter_mut().flat_map(|gauge| gauge.read()).collect();
            // Counts are of the time after the reading, which may have taken long.
            let ended = monotonic();
            let readings = Arc::new(counts.take(ended, devices));
            let latest = Latest { begun, ended, readings };
            *shared.latest.lock().unwrap_or_else(PoisonError::into_inner) = latest;
        }
        drop(shared);
        std::thread::park_timeout(PERIOD);
    }
}

/// A device, or a process on it.
type Counted = (String, Option<u32>);

/// Turns totals and momentary values into shares.
#[derive(Debug, Default)]
struct Counts {
    history: History<Counted>,
    at: Instant,
    /// Totals of devices that tell only how busy they are.
    busy: BTreeMap<String, Duration>,
}

impl Counts {
    fn take(&mut self, now: Instant, devices: Vec<DeviceReading>) -> Readings {
        let elapsed = now.since(std::mem::replace(&mut self.at, now));
        if elapsed > CURRENT {
            // There was no demand: samples from before say nothing about the last second.
            self.history = History::default();
        }
        let mut totals: BTreeMap<Counted, Total> = BTreeMap::new();
        let mut add = |counted: Counted, ran| totals.insert(counted, Total { ran, preempts: 0 });
        for device in &devices {
            let total = device.busy.map(|busy| match busy {
                Busy::Total(total) => total,
                Busy::Part(part) => {
                    let known = self.busy.entry(device.uuid.clone()).or_default();
                    let elapsed = std::time::Duration::from_nanos(elapsed.as_nanos());
                    let ran = elapsed.mul_f64(part.clamp(0.0, 1.0)).as_nanos();
                    *known += Duration::from_nanos(u64::try_from(ran).unwrap_or(u64::MAX));
                    *known
                }
            });
            total.map(|total| add((device.uuid.clone(), None), total));
            for (pid, process) in &device.processes {
                process.executed.map(|ran| add((device.uuid.clone(), Some(*pid)), ran));
            }
        }
        let recent = |counted: Counted| {
            totals.get(&counted).and_then(|total| self.history.recent(now, &counted, *total))
        };
        let mut readings = Readings::default();
        for DeviceReading { uuid, facts, processes, .. } in devices {
            for (pid, process) in processes {
                let used = readings.processes.entry(pid).or_default();
                let share = |recent: &Recent| recent.share;
                let here = recent((uuid.clone(), Some(pid)));
                if here.map(|here| share(&here)) >= used.recent.as_ref().map(share) {
                    used.recent = here;
                }
                used.executed = sum(used.executed, process.executed, |one, other| one + other);
                used.memory_kib = sum(used.memory_kib, process.memory_kib, u64::saturating_add);
            }
            let busy = recent((uuid.clone(), None));
            readings.devices.insert(uuid, DeviceUse { facts, busy });
        }
        self.history.sample(now, totals);
        readings
    }
}

/// The sum of what is known.
fn sum<T>(one: Option<T>, other: Option<T>, add: fn(T, T) -> T) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(add(one, other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_device::gauge::ProcessReading;

    const fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn device(uuid: &str, busy: Busy, executed_ms: u64) -> DeviceReading {
        let executed = Some(Duration::from_millis(executed_ms));
        let process = ProcessReading { executed, memory_kib: Some(3) };
        DeviceReading {
            uuid: uuid.to_owned(),
            busy: Some(busy),
            processes: BTreeMap::from([(7, process)]),
            ..DeviceReading::default()
        }
    }

    #[test]
    fn totals_and_momentary_values_become_shares() {
        let mut counts = Counts::default();
        let total = |ms| Busy::Total(Duration::from_millis(ms));
        counts.take(at(5_000), vec![device("a", total(100), 100), device("b", Busy::Part(0.9), 0)]);
        let devices = vec![device("a", total(350), 300), device("b", Busy::Part(0.5), 900)];
        let readings = counts.take(at(6_000), devices);
        let busy = |uuid| readings.devices[uuid].busy.unwrap().share;
        assert!((busy("a") - 0.25).abs() < 1e-9 && (busy("b") - 0.5).abs() < 1e-9);
        let process = &readings.processes[&7];
        assert!((process.recent.unwrap().share - 0.9).abs() < 1e-9, "on the device it used most");
        assert_eq!(process.executed, Some(Duration::from_millis(1_200)));
        assert_eq!(process.memory_kib, Some(6));
    }

    #[test]
    fn old_readings_are_not_shown() {
        struct Fixed;
        impl DeviceGauge for Fixed {
            fn read(&mut self) -> Vec<DeviceReading> {
                vec![device("a", Busy::Part(1.0), 0)]
            }
        }
        let gauges = Gauges::start(vec![Box::new(Fixed)]).unwrap();
        assert!(gauges.latest(monotonic()).devices.is_empty(), "nothing was asked for");
        let begin = monotonic();
        while gauges.latest(monotonic()).devices.is_empty() {
            gauges.want(monotonic());
            assert!(monotonic().since(begin) < Duration::from_millis(60_000));
            std::thread::yield_now();
        }
        let asked = monotonic();
        while gauges.since(asked).is_none() {
            assert!(monotonic().since(begin) < Duration::from_millis(60_000));
            std::thread::yield_now();
        }
        assert!(gauges.since(asked).unwrap().devices.contains_key("a"));
        let later = monotonic() + CURRENT + Duration::from_millis(60_000);
        assert!(gauges.latest(later).devices.is_empty());
    }
}
