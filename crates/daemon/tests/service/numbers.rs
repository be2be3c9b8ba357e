//! What the daemon says about how much processes use a GPU, against the count of the GPU.

use std::time::{Duration, Instant};

use gpreempt_stage::{Daemon, Emulator, Load, Stage, until};
use gpreempt_wire::emulator::control::Control;
use gpreempt_wire::statistics::Snapshot;

use super::contention::{Contention, ENDLESS, start_daemon, start_gpu, start_kfd};

/// 16 % of a GPU: a kernel of 3.2 ms every 20 ms.
const SIXTH: &str = "lc --kernels 1 --kernel-us 3200 --every-us 20000 --seconds 3600";
/// Nothing, after one kernel.
const IDLE: &str = "lc --kernels 1 --kernel-us 20 --every-us 60000000 --seconds 3600";
/// How far the daemon's numbers may be from the device's.
const TOLERANCE: f64 = 0.05;
/// How long both count.
const WINDOW: Duration = Duration::from_secs(4);

/// The device's own count of what processes executed, and of how long it was busy.
struct DeviceCount {
    control: Control,
    pids: Vec<u32>,
}

impl DeviceCount {
    fn new(emulator: &Emulator, loads: &[&Load]) -> Self {
        let pids = loads.iter().map(|load| load.pid()).collect();
        Self { control: emulator.control().unwrap(), pids }
    }

    /// In seconds: of the device, then of each load.
    fn read(&mut self) -> Vec<f64> {
        let listing = self.control.list().unwrap();
        let seconds = |time: gpreempt_core::time::Duration| {
            Duration::from_nanos(time.as_nanos()).as_secs_f64()
        };
        let mut counts =
            vec![seconds(self.control.device_busy(listing.devices[0].device).unwrap())];
        for pid in &self.pids {
            let task = listing.tasks.iter().find(|task| task.pid == *pid).unwrap().task;
            let own = listing.queues.iter().filter(|queue| queue.task == task);
            let busy = own.map(|queue| seconds(self.control.usage(queue.queue).unwrap().busy));
            counts.push(busy.sum());
        }
        counts
    }
}

/// What the daemon says: of the device, then of each load.
fn shown(snapshot: &Snapshot, pids: &[u32]) -> Option<Vec<f64>> {
    let mut shown = vec![snapshot.devices.first()?.busy_share?];
    for pid in pids {
        shown.push(snapshot.tasks.iter().find(|task| task.pid == *pid)?.share?);
    }
    Some(shown)
}

/// Asserts that the daemon's numbers, on average, are the device's. Returns them.
fn assert_agree(daemon: &Daemon, emulator: &Emulator, loads: &[&Load]) -> Vec<f64> {
    let mut count = DeviceCount::new(emulator, loads);
    until("everything is known", || shown(&daemon.snapshot(), &count.pids).is_some());
    // The numbers are of the last second.
    std::thread::sleep(Duration::from_secs(2));
    let (begin, before) = (Instant::now(), count.read());
    let (mut sums, mut readings) = (vec![0.0; before.len()], 0.0);
    std::thread::sleep(Duration::from_secs(1));
    while begin.elapsed() < WINDOW {
        let now = shown(&daemon.snapshot(), &count.pids).unwrap();
        sums.iter_mut().zip(now).for_each(|(sum, now)| *sum += now);
        readings += 1.0;
        std::thread::sleep(Duration::from_millis(100));
    }
    let (after, elapsed) = (count.read(), begin.elapsed().as_secs_f64());
    let counted: Vec<f64> =
        after.iter().zip(before).map(|(after, before)| (after - before) / elapsed).collect();
    let shown: Vec<f64> = sums.into_iter().map(|sum| sum / readings).collect();
    let is_near = |(shown, counted): (&f64, &f64)| (shown - counted).abs() <= TOLERANCE;
    assert!(
        shown.iter().zip(&counted).all(is_near),
        "the daemon shows {shown:?} and the device counted {counted:?}"
    );
    counted
}

/// A machine of each kind, without a daemon.
fn machines(label: &str) -> Vec<(&'static str, Stage, Emulator)> {
    let stages = ["tsg", "cwsr", "kfd"].map(|kind| (kind, Stage::new(label).unwrap()));
    let start = |(kind, stage): (&'static str, Stage)| {
        let emulator = match kind {
            "kfd" => start_kfd(&stage, "6.12.103", 90_402),
            machine => start_gpu(&stage, machine),
        };
        (kind, stage, emulator)
    };
    stages.into_iter().map(start).collect()
}

#[test]
fn a_load_of_16_percent_and_an_idle_one_are_shown_as_what_they_use() {
    for (kind, stage, emulator) in machines("numbers-part") {
        let daemon = start_daemon(&stage, &emulator);
        let part = emulator.load_at(12, SIXTH).unwrap();
        let idle = emulator.load_at(3, IDLE).unwrap();
        let counted = assert_agree(&daemon, &emulator, &[&part, &idle]);
        assert!((0.10..0.25).contains(&counted[0]), "{kind}: {counted:?}");
        assert!(counted[2] < 0.01, "{kind}: {counted:?}");
        let snapshot = daemon.snapshot();
        assert!(!snapshot.devices[0].busy_estimated, "{kind}: the device tells it");
        let task = snapshot.tasks.iter().find(|task| task.pid == part.pid()).unwrap();
        assert_eq!(task.estimated, kind == "kfd", "{kind}: {task:?}");
        assert!(task.share_minute.is_some() && task.device_ms > Some(0), "{kind}: {task:?}");
    }
}

#[test]
fn two_loads_that_no_rule_names_fill_the_gpu_and_it_is_shown_as_full() {
    for (kind, stage, emulator) in machines("numbers-full") {
        let loads = [0, 1].map(|_| emulator.load(ENDLESS).unwrap());
        let daemon = start_daemon(&stage, &emulator);
        let pids = loads.each_ref().map(Load::pid);
        let known = |snapshot: &Snapshot| {
            let tasks = pids.map(|pid| snapshot.tasks.iter().find(|task| task.pid == pid).cloned());
            tasks.iter().all(Option::is_some).then(|| tasks.map(Option::unwrap_or_default))
        };
        until("both are known", || known(&daemon.snapshot()).is_some());
        let both: Vec<&Load> = if kind == "kfd" { Vec::new() } else { loads.iter().collect() };
        let counted = assert_agree(&daemon, &emulator, &both);
        assert!(counted[0] > 0.9, "{kind}: {counted:?}");
        let tasks = known(&daemon.snapshot()).unwrap();
        for task in tasks {
            // The daemon does not read the rings of processes that it leaves alone.
            assert_eq!((task.pending, task.waiting_ms), (None, None), "{kind}: {task:?}");
            assert_eq!(task.share.is_none(), kind == "kfd", "{kind}: {task:?}");
        }
    }
}

#[test]
fn pending_and_waiting_mean_the_same_on_every_machine() {
    for kind in ["tsg", "cwsr", "kfd"] {
        let contention = match kind {
            "kfd" => Contention::on_kfd("6.12.103", 90_402),
            machine => Contention::on_gpu(machine),
        };
        contention.until_low_waits();
        until("it has waited", || contention.low_task().waiting_ms > Some(100));
        let low = contention.low_task();
        // Its ring is full, and what was fetched before does not count.
        assert!((1..=4).contains(&low.pending.unwrap()), "{kind}: {low:?}");
        let high = contention.daemon.task(contention.high.pid()).unwrap();
        assert_eq!(high.waiting_ms, Some(0), "{kind}: {high:?}");
        until("the wait counts once it is over", || {
            contention.high.ask_to_end();
            contention.low_task().wait_us_p99 > Some(100_000)
        });
    }
}
