//! `gpreempt trace`: records the decisions of the service as a time line.
//!
//! The file has the Chrome trace format, which Perfetto opens. Devices become processes and queues
//! become threads, as in the time lines of the simulator; the daemon itself is process 0. What a
//! queue does is a slice on its thread, a decision is an instant with its reason.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::time::Duration;

use gpreempt_wire::event::{Event, EventKind};
use gpreempt_wire::process::Process;
use gpreempt_wire::request::{Request, Role};
use gpreempt_wire::statistics::Snapshot;
use serde_json::{Value, json};

use crate::args::TraceArgs;
use crate::failure::Failure;
use crate::output::{self, micros};
use crate::service;
use crate::signals::Stop;
use crate::write_file::{probe, write_whole};

/// How often to check whether a signal arrived.
const CHECK: Duration = Duration::from_millis(100);
/// The most events in a file: a few hundred megabytes.
const EVENTS_MAX: usize = 1_000_000;

pub(crate) fn main(args: &TraceArgs) -> Result<(), Failure> {
    let seconds = whole_seconds(args.time)?;
    probe(&args.out).map_err(Failure::input)?;
    let mut client = service::require(Role::Monitor)?;
    let mut recording = Recording::new(service::snapshot(&mut client)?);
    let stop = Stop::on_signals()?;
    let mut stream = client.follow(&Request::Trace { seconds })?;
    let mut problem = None;
    while !stream.is_over() && !stop.is_set() && recording.len() < EVENTS_MAX {
        match stream.next_within(CHECK) {
            Ok(Some(event)) => recording.push(event),
            Ok(None) => {}
            // The events so far are written all the same.
            Err(error) => problem = Some(Failure::from(error)),
        }
    }
    let (events, dropped) = (recording.len(), stream.dropped());
    if events == 0
        && let Some(problem) = problem
    {
        return Err(problem);
    }
    let trace = recording.finish(dropped);
    let bytes = serde_json::to_vec(&trace).map_err(Failure::run)?;
    write_whole(&args.out, &bytes).map_err(Failure::input)?;
    if let Some(Failure::Run(problem) | Failure::Input(problem)) = problem {
        let out = args.out.display();
        return Err(Failure::run(format_args!(
            "{problem}; {out} has the {} before it",
            output::counted(events, "event", "events")
        )));
    }
    print(args, events, dropped)
}

fn print(args: &TraceArgs, events: usize, dropped: u64) -> Result<(), Failure> {
    let out = args.out.display();
    if args.json {
        let file = out.to_string();
        return output::print_json(&json!({ "file": file, "events": events, "dropped": dropped }));
    }
    let missing = if dropped == 0 { String::new() } else { format!(" ({dropped} were dropped)") };
    let events = output::counted(events, "event", "events");
    output::print(&format!("{events}{missing} in {out}; open it in ui.perfetto.dev\n"))
}

/// The protocol counts whole seconds.
fn whole_seconds(time: Duration) -> Result<NonZeroU16, Failure> {
    let seconds = u16::try_from(time.as_secs()).ok().filter(|_| time.subsec_nanos() == 0);
    seconds
        .and_then(NonZeroU16::new)
        .ok_or_else(|| Failure::input("a trace takes whole seconds, from 1s to 1092m"))
}

/// The events so far, as lines of the file.
struct Recording {
    begin_ns: u64,
    end_ns: u64,
    queues: BTreeMap<u64, QueueTrack>,
    /// How many queues each process has had, by pid.
    queues_of: BTreeMap<u32, u32>,
    threads: usize,
    events: usize,
    lines: Vec<Value>,
}

/// The state of one queue, on its thread of the time line.
struct QueueTrack {
    /// Its number in the file. Ids of the daemon can be longer than viewers allow.
    thread: usize,
    process: u64,
    on: bool,
    active: bool,
    moving: Option<&'static str>,
    since_ns: u64,
}

impl QueueTrack {
    /// The name of the slice; none while the queue is idle.
    const fn doing(&self) -> Option<&'static str> {
        match (self.moving, self.on, self.active) {
            (Some(moving), _, _) => Some(moving),
            (None, false, _) => Some("off"),
            (None, true, true) => Some("run"),
            (None, true, false) => None,
        }
    }
}

/// The process of events without a device.
const DAEMON: u64 = 0;

fn process_of(device: Option<u32>) -> u64 {
    device.map_or(DAEMON, |device| 1 + u64::from(device))
}

impl Recording {
    /// Begins with the state of the snapshot.
    fn new(snapshot: Snapshot) -> Self {
        let mut recording = Self {
            begin_ns: snapshot.now_ns,
            end_ns: snapshot.now_ns,
            queues: BTreeMap::new(),
            queues_of: BTreeMap::new(),
            threads: 0,
            events: 0,
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
                let track = recording.track(queue.id, device, &task.name, task.pid);
                (track.on, track.active) = (queue.on, queue.active);
            }
        }
        recording
    }

    /// The number of events.
    fn len(&self) -> usize {
        self.events
    }

    /// Adds an event.
    fn push(&mut self, event: Event) {
        // The first events may be as old as the snapshot; time lines do not go backwards.
        let at_ns = event.at_ns.max(self.end_ns);
        self.end_ns = at_ns;
        self.events += 1;
        let (mut process, mut thread) = (process_of(event.device), 0);
        if event.queue != 0 {
            let pid = event.process.map_or(0, Process::pid);
            let track = self.track(event.queue, event.device, event.name.as_str(), pid);
            (process, thread) = (track.process, track.thread);
            let before = track.doing();
            change(track, event.kind);
            if track.doing() != before {
                let since_ns = std::mem::replace(&mut track.since_ns, at_ns);
                self.slice(before, process, thread, since_ns, at_ns);
            }
            if event.kind == EventKind::Vanished {
                self.queues.remove(&event.queue);
            }
        }
        self.lines.push(json!({
            "name": event.kind.name(), "cat": "decision", "ph": "i", "s": "t",
            "pid": process, "tid": thread, "ts": micros(at_ns - self.begin_ns),
            "args": arguments(&event),
        }));
    }

    /// The content of the file.
    fn finish(mut self, dropped: u64) -> Value {
        let end_ns = self.end_ns;
        for track in std::mem::take(&mut self.queues).into_values() {
            self.slice(track.doing(), track.process, track.thread, track.since_ns, end_ns);
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

    fn track(&mut self, queue: u64, device: Option<u32>, name: &str, pid: u32) -> &mut QueueTrack {
        let (process, since_ns) = (process_of(device), self.end_ns);
        let (threads, lines) = (&mut self.threads, &mut self.lines);
        let queues_of = &mut self.queues_of;
        self.queues.entry(queue).or_insert_with(|| {
            *threads += 1;
            let thread = *threads;
            let number = queues_of.entry(pid).or_default();
            *number += 1;
            let name = match *number {
                1 => format!("{name} ({pid})"),
                several => format!("{name} ({pid}), queue {several}"),
            };
            lines.push(metadata("thread_name", process, thread, &name));
            QueueTrack { thread, process, on: true, active: false, moving: None, since_ns }
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

/// The new state of a queue after an event.
fn change(track: &mut QueueTrack, kind: EventKind) {
    match kind {
        EventKind::Preempt => track.moving = Some("preempt"),
        EventKind::Resume => track.moving = Some("resume"),
        EventKind::Preempted => (track.moving, track.on) = (None, false),
        EventKind::Resumed => (track.moving, track.on) = (None, true),
        EventKind::Fault => track.moving = None,
        EventKind::Active => track.active = true,
        EventKind::Idle => track.active = false,
        EventKind::Vanished => (track.moving, track.on, track.active) = (None, true, false),
        EventKind::Boost
        | EventKind::Linger
        | EventKind::Appeared
        | EventKind::Changed
        | EventKind::HintBegin
        | EventKind::HintEnd
        | EventKind::Suspended
        | EventKind::Released
        | EventKind::Policy
        | EventKind::Evicting
        | EventKind::Evicted
        | EventKind::Restoring
        | EventKind::Restored
        | EventKind::Room => {}
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
    use gpreempt_wire::statistics::{DeviceSnapshot, QueueSnapshot, TaskSnapshot};
    use gpreempt_wire::text::Text;

    #[test]
    fn a_trace_takes_whole_seconds() {
        let seconds = |ms| whole_seconds(Duration::from_millis(ms)).ok().map(NonZeroU16::get);
        assert_eq!([seconds(1_000), seconds(65_535_000)], [Some(1), Some(65_535)]);
        assert_eq!([seconds(500), seconds(1_500), seconds(65_536_000)], [None; 3]);
    }

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
    fn the_states_of_a_queue_become_slices_that_do_not_overlap() {
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
        assert_eq!(slices[3..], [("run", 200.0, 100.0)], "a slice of no time is omitted");
        let instant = lines.iter().find(|line| line["ph"] == "i").unwrap();
        assert_eq!((&instant["args"]["reason"], &instant["pid"]), (&"because".into(), &3.into()));
        assert_eq!(file["otherData"]["dropped"], 3);
    }

    #[test]
    fn unknown_queues_and_the_daemon_itself_have_a_track() {
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
