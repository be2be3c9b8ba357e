//! What the daemon knows at one moment: the JSON of a snapshot, for `ps`, `top` and metrics.
//!
//! Fields may be added; a reader ignores those it does not know. A field that is there keeps its
//! name, its unit and its meaning.

use serde::{Deserialize, Serialize};

/// Everything at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// When, by `CLOCK_MONOTONIC`.
    pub now_ns: u64,
    /// Who answers.
    pub daemon: DaemonSnapshot,
    /// Who comes first, by name.
    pub policy: String,
    /// How often rings are read.
    pub interval_us: u64,
    /// The devices.
    pub devices: Vec<DeviceSnapshot>,
    /// The processes that use them.
    pub tasks: Vec<TaskSnapshot>,
    /// What did not work lately, oldest first.
    pub problems: Vec<String>,
}

/// The daemon itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DaemonSnapshot {
    /// Its process.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// How long it has run.
    pub uptime_ms: u64,
    /// Turns of its loop.
    pub turns: u64,
    /// Turns that came more than a millisecond too late.
    pub late_turns: u64,
    /// Turns that missed their deadline: they began more than an interval after their time.
    pub missed_turns: u64,
    /// How much too late a turn came at the most.
    pub late_us_max: u64,
    /// Turns that took more than an interval of processor time.
    pub overrun_turns: u64,
    /// The most processor time that a turn took.
    pub turn_cpu_us_max: u64,
    /// Processor time it has used.
    pub cpu_ms: u64,
    /// Memory it has resident.
    pub resident_kib: u64,
    /// Open sessions of clients.
    pub sessions: u32,
    /// The command in whose process the service runs, such as `gpreempt attach`; none for
    /// gpreemptd. It ends with that command.
    pub private: Option<String>,
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceSnapshot {
    /// Its number in this daemon.
    pub id: u32,
    /// Its name by its vendor's tools.
    pub uuid: String,
    /// What kind of device: nvidia, amd or emulated.
    pub kind: String,
    /// Preempts so far.
    pub preempts: u64,
    /// How long they took, half of them at the most.
    pub preempt_us_p50: u64,
    /// How long they took, all but one in a hundred at the most.
    pub preempt_us_p99: u64,
    /// In which way its queues are stopped, where there are several: kernel-scheduler, own-calls,
    /// debug-trap, whole-process or nothing.
    pub way: Option<String>,
    /// Why that is not a better one.
    pub no_better_way: Option<String>,
}

/// One process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TaskSnapshot {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// Its name.
    pub name: String,
    /// Whose it is.
    pub uid: u32,
    /// The container it runs in.
    pub container: Option<String>,
    /// The Kubernetes pod it runs in.
    pub pod: Option<String>,
    /// The Slurm job it belongs to.
    pub slurm_job: Option<String>,
    /// 0 (lowest) to 15 (highest); none if it is left alone.
    pub priority: Option<u8>,
    /// Its part under the fair policy.
    pub weight: u32,
    /// How long after their arrival its requests should be done.
    pub deadline_us: Option<u64>,
    /// Why it has this priority, in a sentence.
    pub why: String,
    /// How it stands.
    pub state: TaskState,
    /// Work that waits in its rings.
    pub pending: u64,
    /// Part of the last second in which it had the device (or a device), 0 to 1.
    pub share: f64,
    /// Time it has had devices so far.
    pub device_ms: u64,
    /// Times it was preempted so far.
    pub preempts: u64,
    /// Times it was preempted in the last second.
    pub preempts_per_s: f64,
    /// For how long it has waited with work.
    pub waiting_ms: u64,
    /// When a suspension ends by itself.
    pub lease_ms: Option<u64>,
    /// Commands for it that failed so far.
    pub faults: u64,
    /// In which way its queues are stopped, as for a device.
    pub way: Option<String>,
    /// Why that is not a better one.
    pub no_better_way: Option<String>,
    /// Its queues.
    pub queues: Vec<QueueSnapshot>,
}

/// How a process stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// It is not scheduled by us.
    #[default]
    Untouched,
    /// It has nothing to do.
    Idle,
    /// It has work and may run.
    Running,
    /// It has work and was preempted.
    Preempted,
    /// Somebody suspended it.
    Suspended,
    /// Its device says that it is stopped, although the daemon neither preempted nor suspended it.
    /// `resume` puts that right.
    Stopped,
}

/// One queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueSnapshot {
    /// Its number in this daemon.
    pub id: u64,
    /// The device it is on.
    pub device: u32,
    /// Whether it may run.
    pub on: bool,
    /// Whether it has work.
    pub active: bool,
    /// Whether it, or its whole process, is suspended.
    pub suspended: bool,
    /// Its priority: its own if it has one, or that of its process.
    pub priority: u8,
    /// Work that waits.
    pub pending: u64,
    /// How it stands with holds, where the device has them and the queue is one for them.
    pub hold: Option<HoldSnapshot>,
}

/// Holding the device for one queue across its gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HoldSnapshot {
    /// Whether the device is held for it now.
    pub held: bool,
    /// How often it was.
    pub placed: u64,
    /// How often a hold was ended by the maximum.
    pub expired: u64,
    /// How long the longest hold was.
    pub longest_us: u64,
    /// For how long it has to be quiet until it is let go of, as learnt from its own gaps.
    pub quiet_us: u64,
    /// Readings of its rings that came late while it had work.
    pub late_looks: u64,
    /// The longest time between two readings then.
    pub blind_us: u64,
    /// Why it cannot be held, if it cannot.
    pub problem: Option<String>,
}

impl Snapshot {
    /// As text.
    pub fn to_json(&self) -> String {
        // PANIC: the fields are numbers, texts and lists of such.
        serde_json::to_string(self).expect("plain data becomes JSON")
    }

    /// From text.
    ///
    /// # Errors
    /// If it is no snapshot.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_survives_and_strangers_in_it_are_ignored() {
        let task = TaskSnapshot { pid: 7, state: TaskState::Preempted, ..TaskSnapshot::default() };
        let snapshot = Snapshot { now_ns: 5, tasks: vec![task], ..Snapshot::default() };
        assert_eq!(Snapshot::from_json(&snapshot.to_json()).unwrap(), snapshot);
        let newer = r#"{"now_ns": 5, "moon": "full", "tasks": [{"pid": 7, "mood": 1}]}"#;
        assert_eq!(Snapshot::from_json(newer).unwrap().tasks[0].pid, 7);
        assert!(Snapshot::from_json("7").is_err());
    }
}
