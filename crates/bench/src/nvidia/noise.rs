//! How quiet the machine is while something is measured: a thread that only sleeps says how late
//! it woke up, and the kernel how much processor time the machine's host took away.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::measure::monotonic_ns;
use super::stolen::{self, Reading};
use crate::results::{Distribution, Number, Quiet};

/// How long it sleeps.
const NAP_NS: u64 = 1_000_000;
/// How often it looks at what was stolen: the kernel takes a while to add that up.
const LOOK_NS: u64 = 100_000_000;
/// Enough for the first line of `/proc/stat`.
const LINE: usize = 256;

/// The thread. It ends with this value.
#[derive(Debug)]
pub(super) struct Noise {
    stop: Arc<AtomicBool>,
    /// None where it could not be started: then nothing is known, and all else goes on.
    thread: Option<JoinHandle<Heard>>,
}

/// What it noted.
#[derive(Clone, Debug, Default)]
pub(super) struct Heard {
    naps: Vec<Nap>,
    readings: Vec<Reading>,
}

/// When it should have woken up, and when it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Nap {
    due_ns: u64,
    woke_ns: u64,
}

impl Noise {
    /// Starts it. It is as nice as the runner, and so are the loads.
    pub(super) fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let named = std::thread::Builder::new().name("noise".to_owned());
        Self { stop, thread: named.spawn(move || listen(&told)).ok() }
    }

    /// Ends it, and says what it noted.
    pub(super) fn end(mut self) -> Heard {
        self.join().unwrap_or_default()
    }

    fn join(&mut self) -> Option<Heard> {
        // ORDERING: the flag stands for itself, nothing else is read because of it.
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take()?.join().ok()
    }
}

impl Drop for Noise {
    fn drop(&mut self) {
        self.join();
    }
}

fn listen(stop: &AtomicBool) -> Heard {
    let stat = File::open("/proc/stat").ok();
    let mut heard = Heard::default();
    let mut look_ns = 0;
    let mut due_ns = monotonic_ns() + NAP_NS;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_nanos(due_ns.saturating_sub(monotonic_ns())));
        let woke_ns = monotonic_ns();
        heard.naps.push(Nap { due_ns, woke_ns });
        due_ns += NAP_NS * slept_through(due_ns, woke_ns);
        if woke_ns >= look_ns {
            look_ns = woke_ns + LOOK_NS;
            heard.readings.extend(stat.as_ref().and_then(reading));
            // The time this took is not the machine's fault.
            due_ns = due_ns.max(monotonic_ns() + NAP_NS);
        }
    }
    heard
}

/// What was stolen so far; none where the kernel does not say.
fn reading(stat: &File) -> Option<Reading> {
    let mut line = [0; LINE];
    let length = stat.read_at(&mut line, 0).ok()?;
    let text = std::str::from_utf8(line.get(..length)?).ok()?;
    Some(Reading { at_ns: monotonic_ns(), ticks: stolen::ticks(text)? })
}

/// How many naps ended while one was late: it itself, and all that were due by then.
fn slept_through(due_ns: u64, woke_ns: u64) -> u64 {
    woke_ns.saturating_sub(due_ns) / NAP_NS + 1
}

impl Heard {
    /// What is known about a window of time.
    pub(super) fn numbers(&self, window: (u64, u64)) -> Vec<Number> {
        let late = Distribution::of(late(&self.naps, window));
        Quiet::numbers(late.as_ref(), stolen::part(&self.readings, window))
    }
}

/// How late it woke up from all naps that should have ended in the window. A nap that it slept
/// through counts as well: requests do not wait for the machine to be quiet either.
fn late(naps: &[Nap], window: (u64, u64)) -> Vec<u64> {
    let ends = |nap: &Nap| {
        let (due_ns, woke_ns) = (nap.due_ns, nap.woke_ns);
        let dues = (0..slept_through(due_ns, woke_ns)).map(move |n| due_ns + n * NAP_NS);
        dues.map(move |due_ns| (due_ns, woke_ns))
    };
    naps.iter()
        .flat_map(ends)
        .filter(|(due_ns, _)| (window.0..window.1).contains(due_ns))
        .map(|(due_ns, woke_ns)| woke_ns.saturating_sub(due_ns))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn naps_that_were_slept_through_count() {
        let naps = [
            Nap { due_ns: 10 * MS, woke_ns: 10 * MS + 5 },
            // Away for three and a half: the naps due at 12, 13 and 14 are late, too.
            Nap { due_ns: 11 * MS, woke_ns: 14 * MS + 500 },
            Nap { due_ns: 15 * MS, woke_ns: 15 * MS + 7 },
        ];
        let all = late(&naps, (0, u64::MAX));
        assert_eq!(all, [5, 3 * MS + 500, 2 * MS + 500, MS + 500, 500, 7]);
        assert_eq!(late(&naps, (10 * MS + 1, 13 * MS)), [3 * MS + 500, 2 * MS + 500]);
        assert!(late(&naps, (20 * MS, 30 * MS)).is_empty());
    }

    #[test]
    fn a_real_machine_says_how_quiet_it_is() {
        let begin = monotonic_ns();
        let noise = Noise::start();
        std::thread::sleep(Duration::from_millis(250));
        let heard = noise.end();
        let numbers = heard.numbers((begin, monotonic_ns()));
        let value = |name: &str| numbers.iter().find(|each| each.name == name).unwrap().value;
        assert!(value("machine_late_p50") <= value("machine_late_p99"));
        assert!(value("machine_late_p99") <= value("machine_late_max"));
        assert!(value("machine_late_max") > 0.0);
        let reads =
            std::fs::read_to_string("/proc/stat").is_ok_and(|stat| stolen::ticks(&stat).is_some());
        assert_eq!(numbers.len(), 3 + usize::from(reads), "{numbers:?}");
        assert!(heard.numbers((0, 1)).is_empty(), "nothing is known of another time");
    }
}
