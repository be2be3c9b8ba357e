//! The statistics of the service, each defined once.
//!
//! A field below is one statistic. Its name is its JSON name and ends with its unit, its doc
//! comment is its description, and the brackets behind its type say where else it is shown:
//!
//! - `.metric(NAME)`: `/metrics` shows it. A name that ends with `_total` is a counter, others are
//!   gauges. Processes that share a line are added; `.longest()` shows the maximum instead, and
//!   `.single()` omits the line.
//! - `.histogram(NAME)`: the same for a [`Distribution`], as a histogram.
//! - `.ps(POSITION, TITLE)`: a column of `gpreempt ps`.
//! - `.top(POSITION, TITLE, WIDTH, RANK)`: a column of `gpreempt top`. Narrow terminals omit the
//!   highest ranks first.
//!
//! The daemon fills the structures in `service/telemetry/snapshot.rs`. The JSON of a snapshot,
//! `/metrics`, the columns of `ps` and `top`, and docs/reference/metrics.md follow from this file,
//! which measures nothing itself. A new statistic needs its field here, its value there, and a
//! test.
//!
//! Fields may be added; a reader ignores those it does not know. A field keeps its name, its unit
//! and its meaning.

mod definition;
mod task_state;

use gpreempt_core::statistics::Histogram;
use gpreempt_core::time::Duration;
use serde::{Deserialize, Serialize};

pub use definition::{Column, Combine, Metric, MetricKind, Statistic, Unit, Value};
use definition::{ReadValue, statistics};
pub use task_state::TaskState;

statistics! {
    /// Everything that the service knows at one moment.
    pub struct Snapshot {
        /// Time of the snapshot, by `CLOCK_MONOTONIC`.
        pub now_ns: u64,
        /// The daemon itself.
        pub daemon: DaemonSnapshot,
        /// Scheduling policy in force, by name.
        pub policy: String [.metric("gpreempt_policy_info")],
        /// Time between two readings of the rings.
        pub interval_us: u64 [.metric("gpreempt_interval_seconds")],
        /// Devices that the daemon controls.
        pub devices: Vec<DeviceSnapshot> [.metric("gpreempt_devices")],
        /// Processes that use a device.
        pub tasks: Vec<TaskSnapshot> [.metric("gpreempt_processes")],
        /// Processes that claimed GPU memory.
        pub claims: Vec<ClaimSnapshot> [.metric("gpreempt_claims")],
        /// How long waits, preempts and holds took, for each class and rule.
        pub groups: Vec<GroupSnapshot>,
        /// Why some GPUs are not controlled, a sentence each.
        pub uncontrolled: Vec<String>,
        /// Recent problems of the daemon, oldest first.
        pub problems: Vec<String> [.metric("gpreempt_problems")],
    }
}

statistics! {
    /// The daemon itself.
    pub struct DaemonSnapshot {
        /// Process id of the daemon.
        pub pid: u32,
        /// Version of the daemon.
        pub version: String [.metric("gpreempt_build_info")],
        /// Time since the daemon started.
        pub uptime_ms: u64 [.metric("gpreempt_uptime_seconds")],
        /// Iterations of the daemon's loop.
        pub turns: u64 [.metric("gpreempt_loop_turns_total")],
        /// Iterations that began more than 1 ms after they were due.
        pub late_turns: u64 [.metric("gpreempt_loop_late_turns_total")],
        /// Iterations that began more than an interval after they were due.
        pub missed_turns: u64 [.metric("gpreempt_loop_missed_turns_total")],
        /// The longest delay of an iteration.
        pub late_us_max: u64,
        /// Iterations that used more than an interval of CPU time.
        pub overrun_turns: u64 [.metric("gpreempt_loop_overrun_turns_total")],
        /// The most CPU time that one iteration used.
        pub turn_cpu_us_max: u64,
        /// CPU time that the daemon has used.
        pub cpu_ms: u64 [.metric("gpreempt_cpu_seconds_total")],
        /// Resident memory of the daemon.
        pub resident_kib: u64 [.metric("gpreempt_resident_bytes")],
        /// Open client sessions.
        pub sessions: u32 [.metric("gpreempt_sessions")],
        /// The command in whose process the service runs, such as `gpreempt attach`; null for
        /// gpreemptd.
        pub private: Option<String>,
    }
}

statistics! {
    /// One device.
    pub struct DeviceSnapshot {
        /// Number of the device in this daemon.
        pub id: u32,
        /// UUID of the device, as its vendor's tools show it.
        pub uuid: String,
        /// Kind of device: nvidia, amd or emulated.
        pub kind: String,
        /// Name of the product, as far as the device tells it.
        pub name: Option<String>,
        /// Part of the last second in which the device executed kernels; null if unknown.
        pub busy_share: Option<f64> [.metric("gpreempt_device_busy_ratio")],
        /// Whether `busy_share` is an estimate: the sum of the shares of the processes.
        pub busy_estimated: bool,
        /// Memory of the device in use.
        pub memory_used_kib: Option<u64> [.metric("gpreempt_device_memory_used_bytes")],
        /// Memory of the device.
        pub memory_total_kib: Option<u64> [.metric("gpreempt_device_memory_bytes")],
        /// Memory of evicted processes of the device, which is on the host.
        pub memory_evicted_kib: u64 [.metric("gpreempt_device_memory_evicted_bytes")],
        /// Time until evictable processes that do not fit together take turns again; null without
        /// such turns.
        pub swap_turn_left_ms: Option<u64>,
        /// Power that the device draws, in milliwatts.
        pub power_mw: Option<u64>,
        /// Temperature of the device, in degrees Celsius.
        pub temperature_c: Option<u64>,
        /// Preempts on the device.
        pub preempts: u64 [.metric("gpreempt_device_preempts_total")],
        /// Median time that a preempt took.
        pub preempt_us_p50: u64
            [.metric("gpreempt_device_preempt_p50_seconds").top(6, "preempt p50", 11, 4)],
        /// 99th percentile of the time that a preempt took.
        pub preempt_us_p99: u64
            [.metric("gpreempt_device_preempt_p99_seconds").top(7, "p99", 7, 2)],
        /// Times that a queue with work had to wait for the device.
        pub waits: u64 [.metric("gpreempt_device_waits_total")],
        /// Time that queues with work waited for the device, of all of them together.
        pub waited_ms: u64 [.metric("gpreempt_device_wait_seconds_total")],
        /// Commands for queues of the device that failed or were late.
        pub faults: u64 [.metric("gpreempt_device_faults_total")],
        /// How queues are stopped, on devices with several methods: kernel-scheduler, own-calls,
        /// debug-trap, whole-process or nothing.
        pub way: Option<String>,
        /// Why no better method is used.
        pub no_better_way: Option<String>,
    }

    computed {
        /// Part of the last second in which the GPU executed kernels of any process; `~` marks an
        /// estimate.
        busy = |device| device.busy().value(), [.top(1, "busy", 5, 1)],
        /// Memory in use, and all of it.
        memory = |device| device.memory().value(), [.top(2, "memory", 14, 9)],
        /// Power that the device draws.
        power = |device| device.power_mw.map(|mw| format!("{} W", mw / 1_000)).value(),
            [.top(3, "power", 6, 9)],
        /// Temperature of the device.
        temperature = |device| device.temperature_c.map(|degrees| format!("{degrees} C")).value(),
            [.top(4, "temp", 5, 9)],
    }
}

statistics! {
    /// The processes of one class and one rule, since the daemon started.
    pub struct GroupSnapshot {
        /// Class of the processes: high (priority 8 to 15), low (0 to 7) or normal.
        pub class: String,
        /// Rule of the processes: its name, or its position; empty without a rule, other after 64
        /// rules.
        pub rule: String,
        /// Time that a queue with work waited for its device; work that could run at once is not
        /// counted.
        pub wait_us: Distribution [.histogram("gpreempt_wait_seconds")],
        /// Time from the command to preempt a queue of the processes to its completion.
        pub preempt_us: Distribution [.histogram("gpreempt_preempt_seconds")],
        /// Time from placing a hold until it is in force on the device.
        pub hold_us: Distribution [.histogram("gpreempt_hold_seconds")],
    }
}

/// How many durations were at most as long as each of the edges, in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Distribution {
    /// Durations up to each of [`Distribution::EDGES`]. Those that exceed an edge by less than a
    /// sixteenth may count as equal to it.
    pub counts: Vec<u64>,
    /// All durations.
    pub count: u64,
    /// Their sum.
    pub sum: u64,
}

impl Distribution {
    /// The edges: powers of two from 16 us to 16.8 s.
    pub const EDGES: [Duration; 21] = {
        let mut edges = [Duration::ZERO; 21];
        let mut at = 0;
        while at < edges.len() {
            edges[at] = Duration::from_micros(16 << at);
            at += 1;
        }
        edges
    };

    /// The distribution of what a histogram recorded.
    pub fn of(histogram: &Histogram) -> Self {
        Self {
            counts: Self::EDGES.map(|edge| histogram.count_within(edge)).to_vec(),
            count: histogram.count(),
            sum: histogram.sum().as_micros(),
        }
    }

    /// The edge that so many percent of the durations do not exceed; the last one for longer
    /// durations, and none if there are none.
    pub fn percentile(&self, percent: u64) -> Option<Duration> {
        let wanted = (self.count.saturating_mul(percent)).div_ceil(100).max(1);
        let edge = self.counts.iter().position(|count| *count >= wanted);
        let edge = edge.map_or(Self::EDGES.last(), |at| Self::EDGES.get(at));
        edge.copied().filter(|_| self.count > 0)
    }
}

statistics! {
    /// One process that uses a device.
    pub struct TaskSnapshot {
        /// Process id.
        pub pid: u32 [.ps(2, "pid").top(2, "pid", 7, 3)],
        /// Start time of the process, in clock ticks since boot.
        pub start_ticks: u64,
        /// Name of the process.
        pub name: String [.ps(1, "name").top(1, "process", 8, 0)],
        /// User of the process.
        pub uid: u32 [.ps(3, "user")],
        /// Container of the process.
        pub container: Option<String>,
        /// Kubernetes pod of the process.
        pub pod: Option<String>,
        /// Slurm job of the process.
        pub slurm_job: Option<String>,
        /// Priority from 0 (lowest) to 15 (highest); absent for normal processes and those not
        /// scheduled.
        pub priority: Option<u8>
            [.metric("gpreempt_process_priority").single()],
        /// Weight under the fair policy.
        pub weight: u32
            [.metric("gpreempt_process_weight").single()
             .read_by(|task| task.priority.map(|_| task.weight).value())],
        /// Time from the arrival of a request to its deadline.
        pub deadline_us: Option<u64> [.metric("gpreempt_process_deadline_seconds").single()],
        /// Latency budget: how much slower the process may become in exchange for throughput of
        /// others; null if it is zero and for processes that are not scheduled.
        pub latency_budget_percent: Option<u16>
            [.metric("gpreempt_process_latency_budget_ratio").single()
             .ps(17, "budget").if_known()],
        /// How much slower the process was in its last second with work because it waited while it
        /// was off the device, by its slowest queue; null where that is not measured.
        pub slowdown_percent: Option<u32>
            [.metric("gpreempt_process_slowdown_ratio").longest().ps(18, "slowdown").if_known()],
        /// Why the process has this priority.
        pub why: String [.ps(20, "why")],
        /// UUIDs of the devices that the process uses, as far as is known.
        pub gpus: Vec<String>,
        /// For a normal process: untouched (no high-priority process is active on its GPU), yields
        /// (it is preempted for one) or exempt (it is never preempted).
        pub normal: Option<String>,
        /// Scheduling state: untouched, idle, running, preempted, suspended, stopped, evicting,
        /// evicted or restoring.
        pub state: TaskState [.metric("gpreempt_process_state")],
        /// Packets in the rings of the process that the device has not fetched; null if the process
        /// is not scheduled.
        pub pending: Option<u64>
            [.metric("gpreempt_process_pending").ps(7, "pending").top(6, "pending", 7, 6)],
        /// Part of the last second in which a device executed kernels of the process, on the device
        /// that it used most; null if unknown. Kernels of several processes may execute at once and
        /// count for each.
        pub share: Option<f64> [.metric("gpreempt_process_share_ratio")],
        /// The same for the last minute.
        pub share_minute: Option<f64>,
        /// Time in which devices executed kernels of the process; null if unknown.
        pub device_ms: Option<u64> [.metric("gpreempt_process_gpu_seconds_total")],
        /// Whether `share`, `share_minute` and `device_ms` are estimates, which tables mark with
        /// `~`.
        pub estimated: bool,
        /// Memory of the devices that the process uses; null if unknown.
        pub gpu_memory_kib: Option<u64> [.metric("gpreempt_process_gpu_memory_bytes")
             .ps(10, "memory").if_known().top(10, "memory", 8, 9)],
        /// GPU memory of the process that is on the host; null if it is not evicted.
        pub host_memory_kib: Option<u64> [.metric("gpreempt_process_host_memory_bytes")
             .ps(21, "on host").if_known().top(14, "on host", 8, 10)],
        /// Whether the process is evicted when processes with a higher priority need room.
        pub evictable: bool,
        /// Why the process is evicted, or about to be; null otherwise.
        pub evicted_why: Option<String> [.ps(22, "evicted").if_known()],
        /// Time until the eviction of the process ends by itself; null without a lease.
        pub evict_lease_ms: Option<u64>,
        /// How much of the memory has moved, while it moves to the host or back; an estimate.
        pub moved_kib: Option<u64>,
        /// How much longer that takes; an estimate.
        pub move_left_ms: Option<u64>,
        /// What an evicted process, which may return, waits for.
        pub restore_waits: Option<String>,
        /// Times that the memory of the process was moved to the host.
        pub evictions: u64 [.metric("gpreempt_process_evictions_total")],
        /// Times that a queue of the process was preempted.
        pub preempts: u64 [.metric("gpreempt_process_preempts_total").ps(11, "preempts")],
        /// Preempts of the process in the last second.
        pub preempts_per_s: f64 [.ps(12, "pre/s").top(9, "pre/s", 6, 5)],
        /// How long the process has been preempted with work, without turns of the device's own
        /// time slices; null if it is not scheduled.
        pub waiting_ms: Option<u64>
            [.metric("gpreempt_process_waiting_seconds").longest()
             .ps(14, "waiting").top(11, "waiting", 7, 7)],
        /// Median of the times that queues of the process were preempted with work; null before the
        /// first.
        pub wait_us_p50: Option<u64> [.ps(15, "wait p50").if_known().top(12, "wait p50", 8, 10)],
        /// 99th percentile of these times.
        pub wait_us_p99: Option<u64> [.ps(16, "wait p99").if_known().top(13, "wait p99", 8, 9)],
        /// Time until the suspension of the process ends by itself.
        pub lease_ms: Option<u64> [.metric("gpreempt_process_lease_seconds").single()],
        /// Commands for the process that failed.
        pub faults: u64 [.metric("gpreempt_process_faults_total")],
        /// How queues of the process are stopped, as for a device.
        pub way: Option<String> [.ps(19, "way").if_known()],
        /// Why no better method is used.
        pub no_better_way: Option<String>,
        /// Queues of the process.
        pub queues: Vec<QueueSnapshot>,
    }

    computed {
        /// Devices of the process, by number.
        gpu = |task| task.gpus().value(), [.ps(4, "gpu").top(3, "gpu", 5, 8)],
        /// Priority, or `normal` for a process that nothing names.
        priority_word = |task| task.priority_word().value(),
            [.ps(5, "priority").top(4, "prio", 6, 1)],
        /// Part of the last second in which the GPU that the process used most executed its
        /// kernels; `~` marks an estimate.
        share_now = |task| task.estimate(task.share).value(),
            [.ps(8, "share").top(7, "share", 5, 2)],
        /// The same for the last minute.
        share_lately = |task| task.estimate(task.share_minute).value(),
            [.ps(9, "1 min").top(8, "1 min", 5, 11)],
        /// State, and how many queues are suspended if not all of them are.
        state_and_queues = |task| task.state_and_queues().value(), [.ps(6, "state")],
        /// State as one word.
        state_word = |task| task.state.word().value(), [.top(5, "state", 9, 4)],
        /// Holds placed for the queues of the process.
        held = |task| task.holds_placed().value(), [.ps(13, "held")],
    }
}

statistics! {
    /// GPU memory that a process claimed.
    pub struct ClaimSnapshot {
        /// Process id.
        pub pid: u32,
        /// Name of the process.
        pub name: String,
        /// UUID of the device.
        pub gpu: String,
        /// Memory that the process claimed.
        pub claimed_kib: u64,
        /// Whether the room has been made.
        pub is_granted: bool,
        /// How much of the memory in the way has moved; an estimate.
        pub moved_kib: u64,
        /// Memory in the way that has to move.
        pub to_move_kib: u64,
        /// How much longer that takes; an estimate.
        pub left_ms: u64,
        /// Processes that are evicted for the claim, by pid.
        pub evicts: Vec<u32>,
    }
}

statistics! {
    /// One queue of a process.
    pub struct QueueSnapshot {
        /// Number of the queue in this daemon.
        pub id: u64,
        /// Device of the queue, by number.
        pub device: u32,
        /// Whether the queue may run.
        pub on: bool,
        /// Whether the queue has work.
        pub active: bool,
        /// Whether the queue, or its whole process, is suspended.
        pub suspended: bool,
        /// Priority of the queue: its own if it has one, or that of its process.
        pub priority: u8,
        /// Packets in the ring that the device has not fetched.
        pub pending: u64,
        /// Busy periods of the queue, as far as its slowdown was measured.
        pub busy_us: u64,
        /// How long of that the queue was off the device.
        pub off_us: u64,
        /// How long of that the program waited for it: the slowdown is `lost_us / (busy_us -
        /// lost_us)`.
        pub lost_us: u64,
        /// How long of `busy_us` slices of a latency budget were in force.
        pub shared_us: u64,
        /// Holds of the queue; null on devices without holds and for queues that are never held.
        pub hold: Option<HoldSnapshot>,
    }
}

statistics! {
    /// The holds of one queue: the device stays reserved for it between its kernels.
    pub struct HoldSnapshot {
        /// Whether the device is held for the queue now.
        pub held: bool,
        /// Holds placed.
        pub placed: u64,
        /// Holds that ended because they reached the maximum time.
        pub expired: u64,
        /// The longest hold.
        pub longest_us: u64,
        /// Release threshold: how long the queue has to be idle until its hold is released.
        pub quiet_us: u64,
        /// Readings of the rings that came late while the queue had work.
        pub late_looks: u64,
        /// The longest time between two readings while the queue had work.
        pub blind_us: u64,
        /// Whether idle fences show when the work of the queue has finished.
        pub fenced: bool,
        /// Per cent of the last 64 predicted requests that came; null while none are predicted.
        pub predicted_percent: Option<u32>,
        /// Why the queue cannot be held.
        pub problem: Option<String>,
    }
}

statistics! {
    /// The queues of one process on one device; only in `/metrics`.
    pub struct DeviceUse {
        /// Queues of the process on the device.
        pub queues: u64 [.metric("gpreempt_process_device_queues")],
        /// Queues of the process on the device that may run.
        pub queues_on: u64 [.metric("gpreempt_process_device_queues_on")],
        /// Packets in these queues that the device has not fetched.
        pub pending: u64 [.metric("gpreempt_process_device_pending")],
    }
}

/// A part from 0 to 1 in percent. What is not a number counts as 0.
pub fn percent(ratio: f64) -> String {
    format!("{:.0}%", (100.0 * ratio).max(0.0))
}

/// The same, marked if it is an estimate.
fn part(ratio: f64, estimated: bool) -> String {
    format!("{}{}", if estimated { "~" } else { "" }, percent(ratio))
}

/// An amount of memory with its unit.
pub fn memory(kib: u64) -> String {
    match kib {
        0..1_024 => format!("{kib} KiB"),
        1_024..10_485_760 => format!("{} MiB", kib / 1_024),
        _ => format!("{} GiB", kib / 1_048_576),
    }
}

impl DeviceSnapshot {
    fn busy(&self) -> Option<String> {
        self.busy_share.map(|share| part(share, self.busy_estimated))
    }

    fn memory(&self) -> Option<String> {
        let (used, total) = (self.memory_used_kib?, self.memory_total_kib?);
        Some(format!("{}/{}", memory(used), memory(total)))
    }
}

impl TaskSnapshot {
    fn priority_word(&self) -> Option<String> {
        let normal = || self.normal.as_ref().map(|_| "normal".to_owned());
        self.priority.map(|priority| priority.to_string()).or_else(normal)
    }

    fn estimate(&self, share: Option<f64>) -> Option<String> {
        share.map(|share| part(share, self.estimated))
    }

    fn gpus(&self) -> String {
        let mut devices: Vec<u32> = self.queues.iter().map(|queue| queue.device).collect();
        devices.sort_unstable();
        devices.dedup();
        devices.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
    }

    fn state_and_queues(&self) -> String {
        let word = self.state.word();
        let suspended = self.queues.iter().filter(|queue| queue.suspended).count();
        if suspended == 0 || self.state == TaskState::Suspended {
            return word;
        }
        format!("{word}, {suspended} of {} suspended", self.queues.len())
    }

    fn holds_placed(&self) -> Option<u64> {
        let holds = self.queues.iter().filter_map(|queue| queue.hold.as_ref());
        let possible = holds.filter(|hold| hold.problem.is_none());
        possible.map(|hold| hold.placed).reduce(u64::saturating_add)
    }
}

impl Snapshot {
    /// The JSON text that clients receive.
    pub fn to_json(&self) -> String {
        // PANIC: the fields are numbers, texts and lists of such.
        serde_json::to_string(self).expect("plain data becomes JSON")
    }

    /// Reads the JSON text that the service sent.
    ///
    /// # Errors
    /// If the text is not a snapshot.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    #[test]
    fn a_snapshot_survives_and_unknown_fields_are_ignored() {
        let task = TaskSnapshot { pid: 7, state: TaskState::Preempted, ..TaskSnapshot::default() };
        let snapshot = Snapshot { now_ns: 5, tasks: vec![task], ..Snapshot::default() };
        assert_eq!(Snapshot::from_json(&snapshot.to_json()).unwrap(), snapshot);
        let newer = r#"{"now_ns": 5, "moon": "full", "tasks": [{"pid": 7, "mood": 1}]}"#;
        assert_eq!(Snapshot::from_json(newer).unwrap().tasks[0].pid, 7);
        assert!(Snapshot::from_json("7").is_err());
        let state = serde_json::to_string(&TaskState::Preempted).unwrap();
        assert_eq!(state, format!("\"{}\"", TaskState::Preempted.name()));
    }

    #[test]
    fn percentiles_of_a_distribution_are_edges() {
        assert_eq!(Distribution::default().percentile(50), None);
        let mut histogram = Histogram::default();
        (0..99).for_each(|_| histogram.record(Duration::from_micros(100)));
        histogram.record(Duration::from_millis(60_000));
        let times = Distribution::of(&histogram);
        let edges = [50, 99, 100].map(|percent| times.percentile(percent).map(Duration::as_micros));
        assert_eq!(edges, [Some(128), Some(128), Some(16 << 20)]);
    }

    #[test]
    fn a_process_with_some_suspended_queues_says_how_many() {
        let off = QueueSnapshot { suspended: true, ..QueueSnapshot::default() };
        let queues = vec![QueueSnapshot::default(), off];
        let mut task = TaskSnapshot { queues, state: TaskState::Running, ..Default::default() };
        assert_eq!(task.state_and_queues(), "running, 1 of 2 suspended");
        task.state = TaskState::Suspended;
        assert_eq!(task.state_and_queues(), "suspended");
    }

    const INTRODUCTION: &str = include_str!("statistics/introduction.txt");

    fn table<T>(page: &mut String, title: &str, path: &str, statistics: &[Statistic<T>]) {
        write!(page, "\n## {title}\n\n{path}\n\n").unwrap();
        page.push_str("| JSON | metric | columns | meaning |\n|---|---|---|---|\n");
        for known in statistics.iter().filter(|known| known.is_field()) {
            let name = known.name();
            let kind = |metric: &Metric| match metric.kind {
                MetricKind::Histogram => " (histogram)",
                MetricKind::Counter | MetricKind::Gauge => "",
            };
            let metric = |metric: Metric| format!("`{}`{}", metric.name, kind(&metric));
            let metric = known.metric.map_or(String::new(), metric);
            let column = |of: &str, column: Option<Column>| {
                column.map(|column| format!("{of} `{}`", column.title))
            };
            let columns = [column("ps", known.ps), column("top", known.top)];
            let columns: Vec<String> = columns.into_iter().flatten().collect();
            let (columns, help) = (columns.join(", "), known.help().trim_end_matches('.'));
            writeln!(page, "| `{name}` | {metric} | {columns} | {help} |").unwrap();
        }
    }

    #[test]
    fn the_reference_page_lists_every_statistic() {
        let mut page = INTRODUCTION.to_owned();
        table(&mut page, "Snapshot", "The whole snapshot.", Snapshot::STATISTICS);
        table(&mut page, "Daemon", "`daemon` in the snapshot.", DaemonSnapshot::STATISTICS);
        let labels = "`devices` in the snapshot. Labels: `device` (the UUID) and `kind`.";
        table(&mut page, "Devices", labels, DeviceSnapshot::STATISTICS);
        let labels = "`groups` in the snapshot. Labels: `class`, and `rule` where there is one.";
        table(&mut page, "Classes and rules", labels, GroupSnapshot::STATISTICS);
        let labels = "`tasks` in the snapshot, and `ps --json`. Labels: `pid`, `name`, `uid`, and \
                      where known `container`, `pod` and `slurm_job`.";
        table(&mut page, "Processes", labels, TaskSnapshot::STATISTICS);
        table(&mut page, "Claims", "`claims` in the snapshot.", ClaimSnapshot::STATISTICS);
        table(&mut page, "Queues", "`queues` of a process.", QueueSnapshot::STATISTICS);
        table(&mut page, "Holds", "`hold` of a queue.", HoldSnapshot::STATISTICS);
        let labels = "Only at `/metrics`, with the label `device` beside those of the process.";
        table(&mut page, "Processes on devices", labels, DeviceUse::STATISTICS);
        expect_test::expect_file!["../../../docs/reference/metrics.md"].assert_eq(&page);
    }
}
