//! Events as a time line in the Chrome trace format, which Perfetto opens.
//!
//! Devices become processes and queues become threads, as in the simulator's time lines; the
//! daemon itself is process 0. What a queue does is a slice on its thread, what the scheduler
//! decides is an instant with its reason.

use std::collections::BTreeMap;

use gpreempt_wire::event::{Event, EventKind};
use gpreempt_wire::state::Snapshot;
use serde_json::{Value, json};

use crate::output::micros;

/// What was heard so far.
pub(super) struct Recording {
    begin_ns: u64,
    end_ns: u64,
    lanes: BTreeMap<u64, Lane>,
    threads: usize,
    heard: usize,
    lines: Vec<Value>,
}

/// One queue.
struct Lane {
    /// Its number in the file. Those of the daemon can be longer than readers allow.
    thread: usize,
    process: u64,
    on: bool,
    active: bool,
    moving: Option<&'static str>,
    since_ns: u64,
}

impl Lane {
    /// What it is doing; nothing if it is idle.
    const fn doing(&self) -> Option<&'static str> {
        match (self.moving, self.on, self.active) {
            (Some(moving), _, _) => Some(moving),
            (None, false, _) => Some("off"),
            (None, true, true) => Some("run"),
            (None, true, false) => None,
        }
    }
}

/// What is about no device is about the daemon.
const DAEMON: u64 = 0;

fn process_of(device: Option<u32>) -> u64 {
    device.map_or(DAEMON, |device| 1 + u64::from(device))
}

impl Recording {
    /// Begins with how things stand.
    pub(super) fn new(snapshot: Snapshot) -> Self {
        let mut recording = Self {
            begin_ns: snapshot.now_ns,
            end_ns: snapshot.now_ns,
            lanes: BTreeMap::new(),
            threads: 0,
            heard: 0,
            lines: vec![metadata("process_name", DAEMON, 0, "gpreemptd")],
        };
        for device in &snapshot.devices {
            let name = format!("device {}: {} {}", device.id, device.kind, device.uuid);
            let process = process_of(Some(device.id));
            recording.lines.push(metadata("process_name", process, 0, &name));
        }
        for task in &snapshot.tasks {
            for queue in &task.queues {
                let device = Some(queue.device);
                let lane = recording.lane(queue.id, device, &task.name, task.pid);
                (lane.on, lane.active) = (queue.on, queue.active);
            }
        }
        recording
    }

    /// How many events there are.
    pub(super) fn len(&self) -> usize {
        self.heard
    }

    /// Adds what happened.
    pub(super) fn push(&mut self, event: Event) {
        // The first events may be as old as the snapshot; time lines do not go backwards.
        let at_ns = event.at_ns.max(self.end_ns);
        self.end_ns = at_ns;
        self.heard += 1;
        let (mut process, mut thread) = (process_of(event.device), 0);
        if event.queue != 0 {
            let pid = event.process.map_or(0, gpreempt_wire::process::Process::pid);
            let lane = self.lane(event.queue, event.device, event.name.as_str(), pid);
            (process, thread) = (lane.process, lane.thread);
            let before = lane.doing();
            change(lane, event.kind);
            if lane.doing() != before {
                let since_ns = std::mem::replace(&mut lane.since_ns, at_ns);
                self.slice(before, process, thread, since_ns, at_ns);
            }
            if event.kind == EventKind::Vanished {
                self.lanes.remove(&event.queue);
            }
        }
        self.lines.push(json!({
            "name": event.kind.name(), "cat": "decision", "ph": "i", "s": "t",
            "pid": process, "tid": thread, "ts": micros(at_ns - self.begin_ns),
            "args": arguments(&event),
        }));
    }

    /// The whole file.
    pub(super) fn finish(mut self, dropped: u64) -> Value {
        let end_ns = self.end_ns;
        for lane in std::mem::take(&mut self.lanes).into_values() {
            self.slice(lane.doing(), lane.process, lane.thread, lane.since_ns, end_ns);
        }
        json!({
            "traceEvents": self.lines,
            "displayTimeUnit": "ns",
            "otherData": {
                "dropped": dropped,
                "monotonic_ns": self.begin_ns,
                "generator": concat!("gpreempt ", env!("CARGO_PKG_VERSION")),
            },
        })
    }

    fn lane(&mut self, queue: u64, device: Option<u32>, name: &str, pid: u32) -> &mut Lane {
        let (process, since_ns) = (process_of(device), self.end_ns);
        let (threads, lines) = (&mut self.threads, &mut self.lines);
        self.lanes.entry(queue).or_insert_with(|| {
            *threads += 1;
            let thread = *threads;
            let name = format!("{name} ({pid}, queue {queue})");
            lines.push(metadata("thread_name", process, thread, &name));
            Lane { thread, process, on: true, active: false, moving: None, since_ns }
        })
    }

    fn slice(
        &mut self,
        name: Option<&str>,
        process: u64,
        thread: usize,
        since_ns: u64,
        until_ns: u64,
    ) {
        let Some(name) = name.filter(|_| until_ns > since_ns) else { return };
        self.lines.push(json!({
            "name": name, "cat": "queue", "ph": "X", "pid": process, "tid": thread,
            "ts": micros(since_ns - self.begin_ns), "dur": micros(until_ns - since_ns),
        }));
    }
}

/// What an event means for its queue.
fn change(lane: &mut Lane, kind: EventKind) {
    match kind {
        EventKind::Preempt => lane.moving = Some("preempt"),
        EventKind::Resume => lane.moving = Some("resume"),
        EventKind::Preempted => (lane.moving, lane.on) = (None, false),
        EventKind::Resumed => (lane.moving, lane.on) = (None, true),
        EventKind::Fault => lane.moving = None,
        EventKind::Active => lane.active = true,
        EventKind::Idle => lane.active = false,
        EventKind::Vanished => (lane.moving, lane.on, lane.active) = (None, true, false),
        EventKind::Boost
        | EventKind::Linger
        | EventKind::Appeared
        | EventKind::Changed
        | EventKind::HintBegin
        | EventKind::HintEnd
        | EventKind::Suspended
        | EventKind::Released
        | EventKind::Policy => {}
    }
}

fn arguments(event: &Event) -> Value {
    let mut arguments = json!({ "reason": event.reason.as_str() });
    if let Some(process) = event.process {
        arguments["process"] = format!("{} ({process})", event.name).into();
    }
    if let Some(priority) = event.priority {
        arguments["priority"] = priority.level().into();
    }
    if let Some(by) = event.by_process {
        arguments["on_account_of"] = by.pid().into();
    }
    if event.duration_ns != 0 {
        arguments["duration_us"] = micros(event.duration_ns).into();
    }
    arguments
}

fn metadata(kind: &str, process: u64, thread: usize, name: &str) -> Value {
    json!({ "name": kind, "ph": "M", "pid": process, "tid": thread, "args": { "name": name } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_wire::process::Process;
    use gpreempt_wire::state::{DeviceSnapshot, QueueSnapshot, TaskSnapshot};
    use gpreempt_wire::text::Text;

    fn snapshot() -> Snapshot {
        let queue = QueueSnapshot {
            id: 1 << 40,
            device: 2,
            on: true,
            active: true,
            pending: 1,
            ..QueueSnapshot::default()
        };
        let task = TaskSnapshot { pid: 7, name: "be".into(), ..TaskSnapshot::default() };
        Snapshot {
            now_ns: 1_000_000,
            devices: vec![DeviceSnapshot { id: 2, ..DeviceSnapshot::default() }],
            tasks: vec![TaskSnapshot { queues: vec![queue], ..task }],
            ..Snapshot::default()
        }
    }

    fn event(at_us: u64, kind: EventKind) -> Event {
        Event {
            device: Some(2),
            queue: 1 << 40,
            process: Process::new(7, 0),
            reason: Text::new("because"),
            ..Event::new(1_000_000 + at_us * 1_000, kind)
        }
    }

    #[test]
    fn what_a_queue_does_becomes_slices_that_do_not_overlap() {
        let mut recording = Recording::new(snapshot());
        let kinds = [EventKind::Preempt, EventKind::Preempted, EventKind::Resume];
        for (at_us, kind) in [100, 110, 200].into_iter().zip(kinds) {
            recording.push(event(at_us, kind));
        }
        // An event that is older than the one before it.
        recording.push(event(150, EventKind::Resumed));
        recording.push(event(300, EventKind::Idle));
        assert_eq!(recording.len(), 5);
        let file = recording.finish(3);
        let lines = file["traceEvents"].as_array().unwrap();
        let slices: Vec<(&str, f64, f64)> = lines
            .iter()
            .filter(|line| line["ph"] == "X")
            .map(|line| {
                let number = |key: &str| line[key].as_f64().unwrap();
                (line["name"].as_str().unwrap(), number("ts"), number("dur"))
            })
            .collect();
        let wanted = [("run", 0.0, 100.0), ("preempt", 100.0, 10.0), ("off", 110.0, 90.0)];
        assert_eq!(slices[..3], wanted);
        assert_eq!(slices[3..], [("run", 200.0, 100.0)], "nothing lasts no time");
        let instant = lines.iter().find(|line| line["ph"] == "i").unwrap();
        assert_eq!((&instant["args"]["reason"], &instant["pid"]), (&"because".into(), &3.into()));
        assert_eq!(file["otherData"]["dropped"], 3);
    }

    #[test]
    fn strangers_and_the_daemon_itself_have_a_place() {
        let mut recording = Recording::new(Snapshot::default());
        recording.push(Event::new(5, EventKind::Policy));
        recording.push(event(1, EventKind::Active));
        recording.push(event(2, EventKind::Vanished));
        let file = recording.finish(0);
        let lines = file["traceEvents"].as_array().unwrap();
        let policy = lines.iter().find(|line| line["name"] == "policy").unwrap();
        assert_eq!((&policy["pid"], &policy["tid"]), (&0.into(), &0.into()));
        let run = lines.iter().find(|line| line["ph"] == "X").unwrap();
        assert_eq!((&run["name"], &run["dur"]), (&"run".into(), &1.0.into()));
    }
}
