//! Fills the statistics of a snapshot, for `ps`, `top` and metrics.
//!
//! The fields are defined in [`gpreempt_wire::statistics`]; this is where their values come from.

use std::collections::{BTreeMap, BTreeSet};

use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::queue::RunState;
use gpreempt_core::scheduler::QueueView;
use gpreempt_core::time::Duration;
use gpreempt_device::controller::{DeviceName, HoldStatus};
use gpreempt_device::process::ProcessKey;
use gpreempt_wire::statistics::{
    DaemonSnapshot, DeviceSnapshot, HoldSnapshot, QueueSnapshot, Snapshot, TaskSnapshot, TaskState,
};

use super::Telemetry;
use super::gauges::{DeviceUse, ProcessUse, Readings};
use super::history::{Recent, TaskOnDevice, Total};
use crate::service::clients::pending_answers::is_off;
use crate::service::devices::Devices;
use crate::service::instant;
use crate::service::processes::process_table::ProcessTable;
use crate::service::processes::process_table::TrackedProcess;

/// The totals of each task on each device.
pub(crate) fn totals(views: impl Iterator<Item = QueueView>) -> BTreeMap<TaskOnDevice, Total> {
    let mut totals: BTreeMap<TaskOnDevice, Total> = BTreeMap::new();
    for view in views {
        let total = totals.entry((view.task, view.device)).or_default();
        *total = total.and(view.totals.ran, view.totals.preempts);
    }
    totals
}

impl Telemetry {
    /// The snapshot of this moment. `strays` are processes that a device has stopped although the
    /// daemon did not ask for it.
    pub(crate) fn snapshot(
        &self,
        now_ns: u64,
        devices: &Devices,
        (table, strays): (&ProcessTable, &BTreeSet<ProcessKey>),
        sessions: usize,
    ) -> Snapshot {
        let scheduler = devices.scheduler();
        let mut queues: BTreeMap<TaskId, Vec<QueueView>> = BTreeMap::new();
        for view in scheduler.queues() {
            queues.entry(view.task).or_default().push(view);
        }
        let now = instant(now_ns);
        devices.backends.gauges.want(now);
        let readings = devices.backends.gauges.latest(now);
        let busy = |device| {
            let reading = readings.devices.get(&devices.backends.uuid(device)?)?;
            reading.busy.map(|busy| (busy.share, busy.share_minute))
        };
        let totals = totals(scheduler.queues());
        let lately = self.history.recent_of_all(devices.driver.now(), &totals, busy);
        let (left_alone, max) =
            (devices.backends.quota.left_by_task(), devices.backends.quota.max());
        let task = |member: &TrackedProcess| {
            let task = member.applied.map(|applied| applied.task);
            let own = task.and_then(|task| queues.get(&task)).map(Vec::as_slice);
            let recent = task.and_then(|task| lately.get(&task)).copied();
            let mut snapshot = task_snapshot(member, own.unwrap_or_default(), now_ns, recent);
            if let Some(waits) = task.and_then(|task| scheduler.waits(task)) {
                let us = |percent| waits.percentile(percent).map(Duration::as_micros);
                (snapshot.wait_us_p50, snapshot.wait_us_p99) = (us(50), us(99));
            }
            add_gpus(&mut snapshot, own.unwrap_or_default(), devices);
            if strays.contains(&member.key) && snapshot.state != TaskState::Suspended {
                snapshot.state = TaskState::Stopped;
                snapshot.why.push_str(
                    "; its GPU reports it as stopped, but gpreemptd did not stop it: resume it",
                );
            }
            if let Some(count) = task.and_then(|task| left_alone.get(&task)) {
                let uid = member.labels.uid;
                snapshot.why.push_str(&format!(
                    "; {count} of its queues are not scheduled: uid {uid} has more than {max}"
                ));
            }
            if let Some(limit) = task.and_then(|task| devices.backends.limit_of(task)) {
                snapshot.why.push_str(&format!("; {}", limit.sentence));
            }
            if let Some(way) = task.and_then(|task| devices.backends.way_of(task)) {
                snapshot.way = Some(way.name.to_owned());
                snapshot.no_better_way = way.why_not_better;
            }
            for queue in &mut snapshot.queues {
                queue.hold = devices.backends.hold_of(QueueId(queue.id)).map(hold_snapshot);
                let is_fenced = queue.hold.as_ref().is_some_and(|hold| hold.fenced);
                snapshot.estimated |= !is_fenced && hides_execution(devices, queue.device);
            }
            if let Some(reading) = readings.processes.get(&member.key.pid) {
                add_reading(&mut snapshot, reading);
            }
            snapshot
        };
        let tasks: Vec<TaskSnapshot> = table.iter().map(task).collect();
        Snapshot {
            now_ns,
            daemon: self.daemon_snapshot(now_ns, sessions),
            policy: scheduler.config().policy.name().to_owned(),
            interval_us: scheduler.config().interval.as_micros(),
            devices: self.device_snapshots(devices, &readings, &tasks),
            groups: self.latencies.snapshots(),
            tasks,
            claims: Vec::new(),
            uncontrolled: devices.backends.uncontrolled.clone(),
            problems: self.problems.sentences(instant(now_ns)),
        }
    }

    fn daemon_snapshot(&self, now_ns: u64, sessions: usize) -> DaemonSnapshot {
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let cpu_ms = cpu.tv_sec.saturating_mul(1_000).saturating_add(cpu.tv_nsec / 1_000_000);
        DaemonSnapshot {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ms: now_ns.saturating_sub(self.started_ns) / 1_000_000,
            turns: self.turns,
            late_turns: self.loop_latency.late,
            missed_turns: self.loop_latency.missed,
            late_us_max: self.loop_latency.worst.as_micros(),
            overrun_turns: self.loop_latency.overrun,
            turn_cpu_us_max: self.loop_latency.busiest.as_micros(),
            cpu_ms: u64::try_from(cpu_ms).unwrap_or(0),
            resident_kib: resident_kib().unwrap_or(0),
            sessions: u32::try_from(sessions).unwrap_or(u32::MAX),
            private: self.private.clone(),
        }
    }

    fn device_snapshots(
        &self,
        devices: &Devices,
        readings: &Readings,
        tasks: &[TaskSnapshot],
    ) -> Vec<DeviceSnapshot> {
        let snapshot = |(kind, name): (&str, DeviceName)| {
            let counts = self.latencies.of_device(name.id);
            let latency = devices.scheduler().preempt_latency(name.id);
            let us = |percent| {
                let time = latency.and_then(|latency| latency.percentile(percent));
                time.map_or(0, Duration::as_micros)
            };
            let way = devices.backends.way(name.id);
            let DeviceUse { facts, busy } =
                readings.devices.get(&name.uuid).cloned().unwrap_or_default();
            let counted = busy.map(|busy| busy.share);
            let estimated = || estimated_busy(&name.uuid, tasks);
            DeviceSnapshot {
                busy_share: counted.or_else(estimated),
                busy_estimated: counted.is_none(),
                name: facts.name,
                memory_used_kib: facts.memory_used_kib,
                memory_total_kib: facts.memory_total_kib,
                memory_evicted_kib: 0,
                swap_turn_left_ms: None,
                power_mw: facts.power_mw,
                temperature_c: facts.temperature_c,
                way: way.as_ref().map(|way| way.name.to_owned()),
                no_better_way: way.and_then(|way| way.why_not_better),
                id: name.id.0,
                uuid: name.uuid,
                kind: kind.to_owned(),
                preempts: latency.map_or(0, |latency| latency.count()),
                preempt_us_p50: us(50),
                preempt_us_p99: us(99),
                waits: counts.waits,
                waited_ms: counts.waited.as_micros() / 1_000,
                faults: counts.faults,
            }
        };
        devices.backends.devices().into_iter().map(snapshot).collect()
    }
}

/// Adds the GPUs of the queues: an inspection may have been made before the process had them.
fn add_gpus(snapshot: &mut TaskSnapshot, queues: &[QueueView], devices: &Devices) {
    let scheduled_on: BTreeSet<DeviceId> = queues.iter().map(|view| view.device).collect();
    let known = scheduled_on.into_iter().filter_map(|device| devices.backends.uuid(device));
    let gpus: BTreeSet<String> = snapshot.gpus.drain(..).chain(known).collect();
    snapshot.gpus.extend(gpus);
}

/// Adds what the devices themselves tell of a process.
fn add_reading(snapshot: &mut TaskSnapshot, reading: &ProcessUse) {
    snapshot.gpu_memory_kib = reading.memory_kib;
    let Some(executed) = reading.executed else { return };
    snapshot.device_ms = Some(executed.as_micros() / 1_000);
    snapshot.share = reading.recent.map(|recent| recent.share);
    snapshot.share_minute = reading.recent.map(|recent| recent.share_minute);
    snapshot.estimated = false;
}

/// How busy a device is that does not tell it: what the shares of its processes add up to, if all
/// of them are known.
fn estimated_busy(uuid: &str, tasks: &[TaskSnapshot]) -> Option<f64> {
    let here = tasks.iter().filter(|task| task.gpus.iter().any(|gpu| gpu == uuid));
    here.map(|task| task.share).sum::<Option<f64>>().map(|sum| sum.min(1.0))
}

fn task_snapshot(
    member: &TrackedProcess,
    queues: &[QueueView],
    now_ns: u64,
    recent: Option<Recent>,
) -> TaskSnapshot {
    let attr = member.applied.map(|applied| applied.attr);
    let sum = |part: fn(&QueueView) -> u64| queues.iter().map(part).sum();
    let left_ms = |until: u64| until.saturating_sub(now_ns).div_ceil(1_000_000);
    let waiting = queues.iter().map(|view| view.starving).max().unwrap_or_default();
    // A process that is not scheduled has no rings that are read; one without queues runs nothing.
    let estimate = attr.map(|_| recent.unwrap_or_default());
    let labels = member.labels.clone();
    TaskSnapshot {
        pid: member.key.pid,
        start_ticks: member.key.start_ticks,
        name: labels.name,
        uid: labels.uid,
        container: labels.container,
        pod: labels.pod,
        slurm_job: labels.slurm_job,
        priority: attr.filter(|_| !member.is_normal()).map(|attr| attr.priority.level()),
        weight: attr.map_or(1, |attr| attr.weight),
        deadline_us: attr.and_then(|attr| attr.deadline).map(Duration::as_micros),
        latency_budget_percent: attr
            .filter(|attr| !attr.latency_budget.is_zero())
            .map(|attr| attr.latency_budget.percent()),
        slowdown_percent: queues.iter().filter_map(|view| view.slowdown_percent).max(),
        why: member.why(),
        gpus: member.gpus.iter().cloned().collect(),
        normal: member.normal_state().map(str::to_owned),
        state: state(member, queues),
        pending: attr.map(|_| sum(|view| view.ring.pending())),
        share: estimate.map(|recent| recent.share),
        share_minute: estimate.map(|recent| recent.share_minute),
        device_ms: attr.map(|_| sum(|view| view.totals.ran.as_micros()) / 1_000),
        gpu_memory_kib: None,
        estimated: false,
        preempts: sum(|view| view.totals.preempts),
        preempts_per_s: recent.map_or(0.0, |recent| recent.preempts_per_s),
        waiting_ms: attr.map(|_| waiting.as_micros() / 1_000),
        wait_us_p50: None,
        wait_us_p99: None,
        lease_ms: member.suspensions.until_ns().map(left_ms),
        faults: sum(|view| view.totals.faults),
        way: None,
        no_better_way: None,
        queues: queues.iter().map(queue_snapshot).collect(),
        evictable: member.is_evictable(),
        evictions: member.evictions,
        ..TaskSnapshot::default()
    }
}

fn queue_snapshot(view: &QueueView) -> QueueSnapshot {
    QueueSnapshot {
        id: view.queue.0,
        device: view.device.0,
        on: view.run_state == RunState::On,
        active: view.active,
        suspended: view.suspended,
        priority: view.priority.level(),
        pending: view.ring.pending(),
        busy_us: view.slowdown_totals.busy.as_micros(),
        off_us: view.slowdown_totals.off.as_micros(),
        lost_us: view.slowdown_totals.lost.as_micros(),
        shared_us: view.slowdown_totals.shared.as_micros(),
        hold: None,
    }
}

/// Whether an empty ring of that device may hide work that still runs.
fn hides_execution(devices: &Devices, device: u32) -> bool {
    let capabilities = devices.scheduler().capabilities(DeviceId(device));
    capabilities.is_some_and(|capabilities| !capabilities.quiet.is_zero())
}

fn hold_snapshot(status: HoldStatus) -> HoldSnapshot {
    match status {
        HoldStatus::Ready(figures) => HoldSnapshot {
            held: figures.is_held,
            placed: figures.placed,
            expired: figures.expired,
            longest_us: figures.longest_us,
            quiet_us: figures.quiet_us,
            late_looks: figures.late_looks,
            blind_us: figures.blind_us,
            fenced: figures.is_fenced,
            predicted_percent: figures.predicted_percent,
            problem: None,
        },
        HoldStatus::Impossible(reason) => {
            HoldSnapshot { problem: Some(reason), ..HoldSnapshot::default() }
        }
    }
}

fn state(member: &TrackedProcess, queues: &[QueueView]) -> TaskState {
    let works = |on: bool| {
        let on = |view: &&QueueView| (view.run_state == RunState::On) == on;
        queues.iter().filter(|view| view.active).any(|view| on(&view))
    };
    // A queue that still runs is not suspended yet.
    let is_suspended =
        member.is_suspended() || !queues.is_empty() && queues.iter().all(|view| view.suspended);
    if member.applied.is_none() {
        TaskState::Untouched
    } else if is_suspended && queues.iter().all(is_off) {
        TaskState::Suspended
    } else if works(true) {
        TaskState::Running
    } else if works(false) {
        TaskState::Preempted
    } else {
        TaskState::Idle
    }
}

/// Resident memory of this process.
fn resident_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use gpreempt_core::backend::{Capabilities, Mechanism, PreemptLevel};
    use gpreempt_core::busy_periods::BusyTime;
    use gpreempt_core::config::Config;
    use gpreempt_core::event::{Event, SchedAttr};
    use gpreempt_core::latency_budget::LatencyBudget;
    use gpreempt_core::priority::Priority;
    use gpreempt_core::ring::RingView;
    use gpreempt_core::scheduler_loop::SchedulerLoop;
    use gpreempt_device::controller::{Numbering, Waker};
    use gpreempt_device::process::ProcessKey;
    use serde_json::Value;

    use crate::assignment::{Assignment, Outcome};
    use crate::config::LogLevel;
    use crate::config::Unmanaged;
    use crate::service::devices::backends::Backends;
    use crate::service::devices::fake::Fake;
    use crate::service::processes::client_settings::{Layers, Suspension};
    use crate::service::processes::process_table::{AppliedAttr, ProcessLabels};
    use crate::service::telemetry::log::Log;

    const MS: u64 = 1_000_000;

    fn member(pid: u32, name: &str) -> TrackedProcess {
        let labels = ProcessLabels { name: name.to_owned(), uid: 1000, ..ProcessLabels::default() };
        let key = ProcessKey { pid, start_ticks: 10 * u64::from(pid) };
        let mut assignment = Assignment::new(Outcome::Unknown);
        assignment.unmanaged = Unmanaged::Ignore;
        TrackedProcess::new(key, (labels, assignment), 0, (None, 0))
    }

    fn device() -> DeviceId {
        Numbering::of(0).device(0)
    }

    fn devices(fake: &Fake) -> Devices {
        let mut backends = Backends::default();
        backends.push(Box::new(fake.clone()));
        let capabilities = Capabilities {
            mechanism: Mechanism::Stop,
            level: PreemptLevel::Interrupt,
            preempt_cost: Duration::from_micros(500),
            resume_cost: Duration::from_micros(500),
            quiet: Duration::from_millis(1),
            hold: false,
            hardware_priority: false,
        };
        fake.tell(Event::DeviceAppeared { device: device(), capabilities });
        Devices::new(
            SchedulerLoop::new(Config::default()).unwrap(),
            backends,
            Waker::new().unwrap(),
        )
    }

    /// A scheduled process with one queue that has work.
    fn schedule(
        table: &mut ProcessTable,
        devices: &mut Devices,
        fake: &Fake,
        mut member: TrackedProcess,
        attr: SchedAttr,
    ) {
        let (task, queue) = (table.name_task(member.key), QueueId(u64::from(member.key.pid)));
        let is_suspended = member.is_suspended();
        member.applied = Some(AppliedAttr { task, attr, is_suspended });
        table.insert(member);
        let at = instant(1_000 * MS);
        devices.driver.deliver(at, Event::TaskAppeared { task, attr }).unwrap();
        devices.driver.deliver(at, Event::TaskSuspended { task, suspended: is_suspended }).unwrap();
        fake.tell(Event::QueueAppeared { queue, task, device: device(), stopped: false });
        fake.set_ring(queue, RingView { put: 5, get: 1, running: None });
    }

    /// Removes the fields that `pinned` does not have. A newer statistic has an assertion of its
    /// own below; clients ignore it until they know it.
    fn retain_pinned(shown: &mut Value, pinned: &Value) {
        match (shown, pinned) {
            (Value::Object(shown), Value::Object(pinned)) => {
                shown.retain(|name, _| pinned.contains_key(name));
                shown.iter_mut().for_each(|(name, value)| retain_pinned(value, &pinned[name]));
            }
            (Value::Array(shown), Value::Array(pinned)) => {
                shown.iter_mut().zip(pinned).for_each(|(one, other)| retain_pinned(one, other));
            }
            _ => {}
        }
    }

    #[test]
    fn every_field_of_a_snapshot_has_its_name_and_its_value() {
        let (fake, mut table) = (Fake::new(0), ProcessTable::default());
        let mut devices = devices(&fake);
        devices.step(instant(1_000 * MS));
        let attr = |level: u8| SchedAttr {
            priority: Priority::new(level).unwrap(),
            ..SchedAttr::default()
        };
        let deadline = Some(Duration::from_millis(8));
        let latency_budget = LatencyBudget::from_percent(20).unwrap();
        let high = SchedAttr { weight: 3, deadline, latency_budget, ..attr(12) };
        schedule(&mut table, &mut devices, &fake, member(11, "server"), high);
        schedule(&mut table, &mut devices, &fake, member(12, "training"), attr(2));
        let mut suspended = member(13, "batch");
        let suspension = Suspension { until_ns: 2_500 * MS, uid: 0 };
        suspended.suspensions = Layers::of(suspension, true);
        schedule(&mut table, &mut devices, &fake, suspended, attr(4));
        let mut untouched = member(14, "desktop");
        untouched.labels.container = Some("c0ffee".to_owned());
        untouched.labels.pod = Some("pod-1".to_owned());
        untouched.labels.slurm_job = Some("77".to_owned());
        table.insert(untouched);
        let mut telemetry = Telemetry::new(Log::new(LogLevel::Error), None, None);
        telemetry.started_ns = 500 * MS;
        telemetry.turns = 42;
        telemetry.loop_latency.note(Duration::from_millis(7), Duration::from_millis(5));
        telemetry.problems.add("the disk is full", instant(1_990 * MS));
        for at_ms in (1_000..=2_000).step_by(5) {
            devices.step(instant(at_ms * MS));
            if at_ms % 250 == 0 {
                let totals = totals(devices.scheduler().queues());
                telemetry.history.sample(devices.driver.now(), totals);
            }
        }
        let (busy, lost) = (Duration::from_millis(107), Duration::from_millis(7));
        let time = BusyTime { busy, off: Duration::from_millis(9), lost, packets: 0 };
        let measured = Event::SlowdownMeasured { queue: QueueId(11), time };
        devices.driver.deliver(devices.driver.now(), measured).unwrap();
        telemetry.latencies.take_measurements(&mut devices, &table);
        let mut snapshot = telemetry.snapshot(2_000 * MS, &devices, (&table, &BTreeSet::new()), 2);
        assert_eq!(snapshot.daemon.pid, std::process::id());
        assert_eq!(snapshot.daemon.version, env!("CARGO_PKG_VERSION"));
        snapshot.daemon.pid = 1;
        snapshot.daemon.version = "VERSION".to_owned();
        (snapshot.daemon.cpu_ms, snapshot.daemon.resident_kib) = (3, 4);
        let expected: Value = serde_json::from_str(include_str!("snapshot.json")).unwrap();
        let mut shown: Value = serde_json::from_str(&snapshot.to_json()).unwrap();
        retain_pinned(&mut shown, &expected);
        assert_eq!(shown, expected, "{shown:#}");
        // The server waited for the preempt of the training; that one still waits.
        let groups = snapshot
            .groups
            .iter()
            .map(|group| (group.class.as_str(), group.wait_us.count, group.preempt_us.count));
        assert_eq!(groups.collect::<Vec<_>>(), [("high", 1, 0), ("low", 0, 2)]);
        let DeviceSnapshot { waits, faults, .. } = snapshot.devices[0];
        assert_eq!((waits, faults), (1, 0));
        let slower = |task: &TaskSnapshot| (task.latency_budget_percent, task.slowdown_percent);
        assert_eq!(slower(&snapshot.tasks[0]), (Some(20), Some(7)));
        assert_eq!(slower(&snapshot.tasks[1]), (None, None), "a budget of zero");
    }

    #[test]
    fn a_hold_has_its_figures_or_the_reason_that_prevents_it() {
        let reason = "its channel has no room".to_owned();
        let shown = hold_snapshot(HoldStatus::Impossible(reason.clone()));
        assert_eq!(shown, HoldSnapshot { problem: Some(reason), ..HoldSnapshot::default() });
        let mut status = HoldStatus::Ready(Default::default());
        if let HoldStatus::Ready(figures) = &mut status {
            (figures.is_held, figures.placed, figures.expired) = (true, 9, 2);
            (figures.longest_us, figures.quiet_us) = (800, 60);
            (figures.late_looks, figures.blind_us, figures.is_fenced) = (3, 70, true);
            figures.predicted_percent = Some(97);
        }
        let expected = HoldSnapshot {
            held: true,
            placed: 9,
            expired: 2,
            longest_us: 800,
            quiet_us: 60,
            late_looks: 3,
            blind_us: 70,
            fenced: true,
            predicted_percent: Some(97),
            problem: None,
        };
        assert_eq!(hold_snapshot(status), expected);
    }
}
