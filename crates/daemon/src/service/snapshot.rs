//! Everything at one moment, for `ps`, `top` and metrics.

use std::collections::BTreeMap;

use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::queue::Standing;
use gpreempt_core::scheduler::QueueView;
use gpreempt_core::time::{Duration, Instant};
use gpreempt_device::controller::HoldStatus;
use gpreempt_wire::state::{
    DaemonSnapshot, DeviceSnapshot, HoldSnapshot, QueueSnapshot, Snapshot, TaskSnapshot, TaskState,
};

use super::Service;
use super::history::{Recent, Seat, Total};
use super::member::Member;

/// What each task had on each device, as far as anybody has looked.
pub(super) fn totals(views: impl Iterator<Item = QueueView>) -> BTreeMap<Seat, Total> {
    let mut totals: BTreeMap<Seat, Total> = BTreeMap::new();
    for view in views {
        let total = totals.entry((view.task, view.device)).or_default();
        *total = total.and(view.account.ran, view.account.preempts);
    }
    totals
}

impl Service {
    /// Everything at this moment.
    pub(super) fn snapshot(&self, now_ns: u64) -> Snapshot {
        let scheduler = self.driver.scheduler();
        let mut queues: BTreeMap<TaskId, Vec<QueueView>> = BTreeMap::new();
        for view in scheduler.queues() {
            queues.entry(view.task).or_default().push(view);
        }
        let lately = self.history.recent_of_all(self.driver.now(), &totals(scheduler.queues()));
        let task = |member: &Member| {
            let task = member.in_force.map(|in_force| in_force.task);
            let own = task.and_then(|task| queues.get(&task)).map(Vec::as_slice);
            let recent = task.and_then(|task| lately.get(&task)).copied().unwrap_or_default();
            let mut snapshot = task_snapshot(member, own.unwrap_or_default(), now_ns, recent);
            if let Some(limit) = task.and_then(|task| self.backends.limit_of(task)) {
                snapshot.why.push_str(&format!("; {}", limit.sentence));
            }
            if let Some(way) = task.and_then(|task| self.backends.way_of(task)) {
                snapshot.way = Some(way.name.to_owned());
                snapshot.no_better_way = way.why_not_better;
            }
            for queue in &mut snapshot.queues {
                queue.hold = self.backends.hold_of(QueueId(queue.id)).map(hold_snapshot);
            }
            snapshot
        };
        Snapshot {
            now_ns,
            daemon: self.daemon_snapshot(now_ns),
            policy: scheduler.config().policy.name().to_owned(),
            interval_us: scheduler.config().interval.as_micros(),
            devices: self.device_snapshots(),
            tasks: self.roster.members().map(task).collect(),
            problems: self.problems.sentences(instant(now_ns)),
        }
    }

    fn daemon_snapshot(&self, now_ns: u64) -> DaemonSnapshot {
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let cpu_ms = cpu.tv_sec.saturating_mul(1_000).saturating_add(cpu.tv_nsec / 1_000_000);
        DaemonSnapshot {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_ms: now_ns.saturating_sub(self.started_ns) / 1_000_000,
            turns: self.turns,
            late_turns: self.punctuality.late,
            missed_turns: self.punctuality.missed,
            late_us_max: self.punctuality.worst.as_micros(),
            overrun_turns: self.punctuality.overrun,
            turn_cpu_us_max: self.punctuality.busiest.as_micros(),
            cpu_ms: u64::try_from(cpu_ms).unwrap_or(0),
            resident_kib: resident_kib().unwrap_or(0),
            sessions: u32::try_from(self.sessions.len()).unwrap_or(u32::MAX),
            private: self.options.private.as_ref().map(|private| private.command.clone()),
        }
    }

    fn device_snapshots(&self) -> Vec<DeviceSnapshot> {
        let snapshot = |(kind, name): (&str, gpreempt_device::controller::DeviceName)| {
            let latency = self.driver.scheduler().preempt_latency(name.id);
            let us = |percent| {
                let time = latency.and_then(|latency| latency.percentile(percent));
                time.map_or(0, Duration::as_micros)
            };
            let way = self.backends.way(name.id);
            DeviceSnapshot {
                way: way.as_ref().map(|way| way.name.to_owned()),
                no_better_way: way.and_then(|way| way.why_not_better),
                id: name.id.0,
                uuid: name.uuid,
                kind: kind.to_owned(),
                preempts: latency.map_or(0, |latency| latency.count()),
                preempt_us_p50: us(50),
                preempt_us_p99: us(99),
            }
        };
        self.backends.devices().into_iter().map(snapshot).collect()
    }

    /// The GPUs that a scheduled process uses.
    pub(super) fn devices_of(&self, task: TaskId) -> Vec<DeviceId> {
        let own = self.driver.scheduler().queues().filter(|view| view.task == task);
        let mut devices: Vec<DeviceId> = own.map(|view| view.device).collect();
        devices.dedup();
        devices
    }
}

fn task_snapshot(
    member: &Member,
    queues: &[QueueView],
    now_ns: u64,
    recent: Recent,
) -> TaskSnapshot {
    let traits = member.in_force.map(|in_force| in_force.traits);
    let sum = |part: fn(&QueueView) -> u64| queues.iter().map(part).sum();
    let left_ms = |until: u64| until.saturating_sub(now_ns).div_ceil(1_000_000);
    let waiting = queues.iter().map(|view| view.starving).max().unwrap_or_default();
    let about = member.about.clone();
    TaskSnapshot {
        pid: member.key.pid,
        start_ticks: member.key.start_ticks,
        name: about.name,
        uid: about.uid,
        container: about.container,
        pod: about.pod,
        slurm_job: about.slurm_job,
        priority: traits.map(|traits| traits.priority.level()),
        weight: traits.map_or(1, |traits| traits.weight),
        deadline_us: traits.and_then(|traits| traits.deadline).map(Duration::as_micros),
        why: member.why(),
        state: state(member, queues),
        pending: sum(|view| view.ring.pending()),
        share: recent.share,
        device_ms: sum(|view| view.account.ran.as_micros()) / 1_000,
        preempts: sum(|view| view.account.preempts),
        preempts_per_s: recent.preempts_per_s,
        waiting_ms: waiting.as_micros() / 1_000,
        lease_ms: member.suspended_until_ns.map(left_ms),
        faults: sum(|view| view.account.faults),
        way: None,
        no_better_way: None,
        queues: queues.iter().map(queue_snapshot).collect(),
    }
}

fn queue_snapshot(view: &QueueView) -> QueueSnapshot {
    QueueSnapshot {
        id: view.queue.0,
        device: view.device.0,
        on: view.standing == Standing::On,
        active: view.active,
        suspended: view.suspended,
        priority: view.priority.level(),
        pending: view.ring.pending(),
        hold: None,
    }
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
            problem: None,
        },
        HoldStatus::Impossible(reason) => {
            HoldSnapshot { problem: Some(reason), ..HoldSnapshot::default() }
        }
    }
}

fn state(member: &Member, queues: &[QueueView]) -> TaskState {
    let works = |on: bool| {
        let on = |view: &&QueueView| (view.standing == Standing::On) == on;
        queues.iter().filter(|view| view.active).any(|view| on(&view))
    };
    if member.in_force.is_none() {
        TaskState::Untouched
    } else if member.is_suspended()
        || !queues.is_empty() && queues.iter().all(|view| view.suspended)
    {
        TaskState::Suspended
    } else if works(true) {
        TaskState::Running
    } else if works(false) {
        TaskState::Preempted
    } else {
        TaskState::Idle
    }
}

/// Memory of ours that is in memory.
fn resident_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// A moment of the machine's clock as the scheduler counts.
pub(super) const fn instant(now_ns: u64) -> Instant {
    Instant::from_nanos(now_ns)
}
