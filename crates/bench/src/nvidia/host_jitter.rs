//! Disturbances by the host during a measurement: how late a sleeping thread wakes up, and the CPU
//! time that the hypervisor stole (`/proc/stat`).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use gpreempt_device::keeper::monotonic_ns;

use crate::results::{Distribution, HostNoise, Number};

/// How long the thread sleeps.
const SLEEP_NS: u64 = 1_000_000;
/// How often it reads the steal time, which the kernel updates slowly.
const LOOK_NS: u64 = 100_000_000;
/// Enough for the first line of `/proc/stat`.
const LINE: usize = 256;

/// The sleeping thread. It ends with this value.
#[derive(Debug)]
pub(super) struct JitterProbe {
    stop: Arc<AtomicBool>,
    /// None if it could not be started; the measurement then has no such numbers.
    thread: Option<JoinHandle<JitterRecord>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct JitterRecord {
    wake_ups: Vec<WakeUp>,
    readings: Vec<Reading>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WakeUp {
    due_ns: u64,
    woke_ns: u64,
}

impl JitterProbe {
    /// Starts the thread. It has the nice value of the runner, as the loads do.
    pub(super) fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let named = std::thread::Builder::new().name("jitter".to_owned());
        Self { stop, thread: named.spawn(move || listen(&told)).ok() }
    }

    pub(super) fn end(mut self) -> JitterRecord {
        self.join().unwrap_or_default()
    }

    fn join(&mut self) -> Option<JitterRecord> {
        // ORDERING: an independent flag.
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take()?.join().ok()
    }
}

impl Drop for JitterProbe {
    fn drop(&mut self) {
        self.join();
    }
}

fn listen(stop: &AtomicBool) -> JitterRecord {
    let stat = File::open("/proc/stat").ok();
    let mut record = JitterRecord::default();
    let mut look_ns = 0;
    let mut due_ns = monotonic_ns() + SLEEP_NS;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_nanos(due_ns.saturating_sub(monotonic_ns())));
        let woke_ns = monotonic_ns();
        record.wake_ups.push(WakeUp { due_ns, woke_ns });
        due_ns += SLEEP_NS * missed_wake_ups(due_ns, woke_ns);
        if woke_ns >= look_ns {
            look_ns = woke_ns + LOOK_NS;
            record.readings.extend(stat.as_ref().and_then(reading));
            // The time of the reading does not count as lateness.
            due_ns = due_ns.max(monotonic_ns() + SLEEP_NS);
        }
    }
    record
}

/// The steal time so far; none where the kernel does not report it.
fn reading(stat: &File) -> Option<Reading> {
    let mut line = [0; LINE];
    let length = stat.read_at(&mut line, 0).ok()?;
    let text = std::str::from_utf8(line.get(..length)?).ok()?;
    Some(Reading { at_ns: monotonic_ns(), ticks: stolen_ticks(text)? })
}

/// How many wake-ups were due until a late one, itself included.
fn missed_wake_ups(due_ns: u64, woke_ns: u64) -> u64 {
    woke_ns.saturating_sub(due_ns) / SLEEP_NS + 1
}

impl JitterRecord {
    /// The numbers of a window of time.
    pub(super) fn numbers(&self, window: (u64, u64)) -> Vec<Number> {
        let late = Distribution::of(late(&self.wake_ups, window));
        HostNoise::numbers(late.as_ref(), stolen_part(&self.readings, window))
    }
}

/// The lateness of all wake-ups due in the window. A wake-up that the thread slept through counts
/// as well: requests do not wait for an idle host either.
fn late(wake_ups: &[WakeUp], window: (u64, u64)) -> Vec<u64> {
    let ends = |wake_up: &WakeUp| {
        let (due_ns, woke_ns) = (wake_up.due_ns, wake_up.woke_ns);
        let dues = (0..missed_wake_ups(due_ns, woke_ns)).map(move |n| due_ns + n * SLEEP_NS);
        dues.map(move |due_ns| (due_ns, woke_ns))
    };
    wake_ups
        .iter()
        .flat_map(ends)
        .filter(|(due_ns, _)| (window.0..window.1).contains(due_ns))
        .map(|(due_ns, woke_ns)| woke_ns.saturating_sub(due_ns))
        .collect()
}

/// The unit of `/proc/stat` (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

/// The steal time of all processors up to a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) at_ns: u64,
    pub(super) ticks: u64,
}

/// The stolen ticks in the text of `/proc/stat`, or in its beginning.
pub(super) fn stolen_ticks(stat: &str) -> Option<u64> {
    /// After user, nice, system, idle, iowait, irq and softirq.
    const PLACE: usize = 7;
    // The first line is the sum of all processors. A line that is cut off may end within a number.
    let (sum, _) = stat.split_once('\n')?;
    let mut words = sum.split_ascii_whitespace();
    if words.next() != Some("cpu") {
        return None;
    }
    words.nth(PLACE)?.parse().ok()
}

/// The stolen part of one processor in a window; none without two readings in it.
pub(super) fn stolen_part(readings: &[Reading], window: (u64, u64)) -> Option<f64> {
    let mut inside = readings.iter().filter(|each| (window.0..=window.1).contains(&each.at_ns));
    let first = inside.next()?;
    let last = inside.next_back()?;
    // CAST: far below what a float counts exactly. A count that decreases counts as zero.
    let seconds = last.at_ns.saturating_sub(first.at_ns) as f64 / 1e9;
    let stolen = last.ticks.saturating_sub(first.ticks) as f64 / TICKS_PER_SECOND;
    Some(stolen / seconds).filter(|part| part.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn wake_ups_that_were_missed_wake_ups_count() {
        let wake_ups = [
            WakeUp { due_ns: 10 * MS, woke_ns: 10 * MS + 5 },
            // Three and a half late: the wake-ups due at 12, 13 and 14 are late, too.
            WakeUp { due_ns: 11 * MS, woke_ns: 14 * MS + 500 },
            WakeUp { due_ns: 15 * MS, woke_ns: 15 * MS + 7 },
        ];
        let all = late(&wake_ups, (0, u64::MAX));
        assert_eq!(all, [5, 3 * MS + 500, 2 * MS + 500, MS + 500, 500, 7]);
        assert_eq!(late(&wake_ups, (10 * MS + 1, 13 * MS)), [3 * MS + 500, 2 * MS + 500]);
        assert!(late(&wake_ups, (20 * MS, 30 * MS)).is_empty());
    }

    #[test]
    fn a_real_machine_has_all_numbers() {
        let begin = monotonic_ns();
        let jitter = JitterProbe::start();
        std::thread::sleep(Duration::from_millis(250));
        let record = jitter.end();
        let numbers = record.numbers((begin, monotonic_ns()));
        let value = |name: &str| numbers.iter().find(|each| each.name == name).unwrap().value;
        assert!(value("machine_late_p50") <= value("machine_late_p99"));
        assert!(value("machine_late_p99") <= value("machine_late_max"));
        assert!(value("machine_late_max") > 0.0);
        let reads =
            std::fs::read_to_string("/proc/stat").is_ok_and(|stat| stolen_ticks(&stat).is_some());
        assert_eq!(numbers.len(), 3 + usize::from(reads), "{numbers:?}");
        assert!(record.numbers((0, 1)).is_empty(), "there are no numbers for another time");
    }

    #[test]
    fn the_line_of_all_processors_is_read() {
        let stat = "cpu  10 20 30 40 50 60 70 22326 90 100\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 7\n";
        assert_eq!(stolen_ticks(stat), Some(22_326));
        assert_eq!(stolen_ticks("cpu 1 2 3 4 5 6 7 8\n"), Some(8), "a kernel without guests");
    }

    #[test]
    fn other_texts_have_no_steal_time() {
        for text in [
            "",
            "cpu  1 2 3 4\n",
            "cpu0 1 2 3 4 5 6 7 8 9 10\n",
            "cpu  1 2 3 4 5 6 7 many 9 10\n",
            // Cut off within the number.
            "cpu  1 2 3 4 5 6 7 223",
            "cpu  1 2 3 4 5 6 7 -8 9 10\n",
        ] {
            assert_eq!(stolen_ticks(text), None, "{text:?}");
        }
    }

    #[test]
    fn only_readings_in_the_window_count() {
        let reading = |ms: u64, ticks: u64| Reading { at_ns: ms * 1_000_000, ticks };
        let readings =
            [reading(0, 100), reading(1_000, 150), reading(1_500, 160), reading(3_000, 200)];
        let between = |from_ms: u64, to_ms: u64| {
            stolen_part(&readings, (from_ms * 1_000_000, to_ms * 1_000_000))
        };
        assert_eq!(between(900, 2_900), Some(0.2), "10 ticks in half a second");
        assert_eq!(between(0, 3_000), Some(1.0 / 3.0));
        assert_eq!(between(1_200, 2_900), None, "one reading is no difference");
        assert_eq!(between(4_000, 5_000), None);
        assert_eq!(stolen_part(&[reading(1, 9), reading(2, 3)], (0, u64::MAX)), Some(0.0));
        assert_eq!(stolen_part(&[reading(1, 3), reading(1, 9)], (0, u64::MAX)), None);
    }
}
