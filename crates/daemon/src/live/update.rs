//! What the page shows: a choice from snapshots and events, as JSON.
//!
//! The structures below are the list of what anybody who can reach the port may read. Fields of a
//! snapshot that are not named here, such as arguments of commands, never get onto the page.

use std::collections::VecDeque;
use std::sync::Arc;

use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;
use gpreempt_wire::event::{Event, EventKind};
use gpreempt_wire::statistics::{Distribution, Snapshot, TaskSnapshot};
use serde::Serialize;

use super::timeline::{CELL_MS, LaneKey, TimeLine};

/// Processes that are shown; scheduled ones come first.
const PROCESSES_MAX: usize = 200;
/// Decisions of one update, and of what a new viewer gets. The number of the others is shown.
const DECISIONS_MAX: usize = 100;

/// An update, encoded once for all viewers.
#[derive(Clone, Debug)]
pub(crate) struct Update {
    /// For viewers that have the update before it.
    pub(crate) step: Arc<[u8]>,
    /// For new viewers: with the last 30 s.
    pub(crate) whole: Option<Arc<[u8]>>,
}

impl Update {
    /// The page says why there is nothing new.
    pub(crate) fn lost(problem: &str) -> Self {
        let text = message(&Lost { lost: problem });
        Self { step: Arc::clone(&text), whole: Some(text) }
    }
}

#[derive(Serialize)]
struct Lost<'a> {
    lost: &'a str,
}

#[derive(Serialize)]
struct Shown<'a> {
    /// Whether this replaces everything that the page has.
    whole: bool,
    cell_ms: u64,
    /// The number of the cell after the last one.
    end: u64,
    version: &'a str,
    private: Option<&'a str>,
    policy: &'a str,
    uptime_s: u64,
    devices: &'a [ShownDevice<'a>],
    tasks: &'a [ShownTask<'a>],
    tasks_left_out: usize,
    lanes: Vec<ShownLane>,
    waits: &'a [ShownWaits<'a>],
    decisions: Vec<&'a ShownDecision>,
    decisions_left_out: u64,
    notices: Vec<&'a str>,
}

#[derive(Serialize)]
struct ShownDevice<'a> {
    id: u32,
    kind: &'a str,
    uuid: &'a str,
    preempts: u64,
    preempt_us_p50: u64,
    preempt_us_p99: u64,
    faults: u64,
}

#[derive(Serialize)]
struct ShownTask<'a> {
    pid: u32,
    start: u64,
    name: &'a str,
    uid: u32,
    priority: Option<u8>,
    is_normal: bool,
    state: &'static str,
    share: Option<f64>,
    preempts: u64,
    preempts_per_s: f64,
    waiting_ms: Option<u64>,
    why: &'a str,
}

#[derive(Serialize)]
struct ShownLane {
    pid: u32,
    start: u64,
    device: u32,
    cells: Vec<u8>,
}

#[derive(Serialize)]
struct ShownWaits<'a> {
    class: &'a str,
    rule: &'a str,
    waits: u64,
    wait_us_p50: Option<u64>,
    wait_us_p99: Option<u64>,
    preempts: u64,
    preempt_us_p99: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
struct ShownDecision {
    at_ms: u64,
    kind: &'static str,
    pid: Option<u32>,
    name: String,
    priority: Option<u8>,
    device: Option<u32>,
    took_us: u64,
    reason: String,
}

/// What the feed knows.
#[derive(Debug, Default)]
pub(super) struct LiveState {
    line: TimeLine,
    /// The newest last.
    decisions: VecDeque<ShownDecision>,
    /// How many of them no update had yet.
    fresh: usize,
    left_out: u64,
}

impl LiveState {
    pub(super) fn take_event(&mut self, event: &Event) {
        self.left_out += event.dropped;
        self.line.take_event(event);
        // These are no decisions; the time line shows them.
        if matches!(
            event.kind,
            EventKind::Active | EventKind::Idle | EventKind::Preempted | EventKind::Resumed
        ) {
            return;
        }
        if self.decisions.len() == DECISIONS_MAX {
            self.decisions.pop_front();
            self.left_out += u64::from(self.fresh == DECISIONS_MAX);
        }
        self.fresh = (self.fresh + 1).min(DECISIONS_MAX);
        self.decisions.push_back(ShownDecision {
            at_ms: event.at_ns / 1_000_000,
            kind: event.kind.name(),
            pid: event.process.map(|process| process.pid()),
            name: event.name.as_str().to_owned(),
            priority: event.priority.map(Priority::level),
            device: event.device,
            took_us: event.duration_ns / 1_000,
            reason: event.reason.as_str().to_owned(),
        });
    }

    /// The update of this moment; with everything if a viewer is new.
    pub(super) fn update(&mut self, snapshot: &Snapshot, for_new_viewers: bool) -> Update {
        self.line.take_snapshot(snapshot);
        let (end, lanes) = self.line.complete(snapshot.now_ns);
        let mut tasks: Vec<&TaskSnapshot> = snapshot.tasks.iter().collect();
        tasks.sort_by_key(|task| (task.priority.is_none(), task.start_ticks, task.pid));
        let shown = tasks.len().min(PROCESSES_MAX);
        let (left_out, fresh) =
            (std::mem::take(&mut self.left_out), std::mem::take(&mut self.fresh));
        let tasks_left_out = tasks.len() - shown;
        let tasks: Vec<_> = tasks.into_iter().take(shown).map(shown_task).collect();
        let devices: Vec<_> = snapshot.devices.iter().map(shown_device).collect();
        let waits: Vec<_> = snapshot.groups.iter().map(shown_waits).collect();
        let known = self.decisions.len();
        let encode = |whole: bool, lanes: Vec<(LaneKey, Vec<u8>)>, skip: usize| {
            message(&Shown {
                whole,
                cell_ms: CELL_MS,
                end,
                version: &snapshot.daemon.version,
                private: snapshot.daemon.private.as_deref(),
                policy: &snapshot.policy,
                uptime_s: snapshot.daemon.uptime_ms / 1_000,
                devices: &devices,
                tasks: &tasks,
                tasks_left_out,
                lanes: lanes.into_iter().map(shown_lane).collect(),
                waits: &waits,
                decisions: self.decisions.iter().skip(skip).collect(),
                decisions_left_out: left_out,
                notices: snapshot
                    .uncontrolled
                    .iter()
                    .chain(&snapshot.problems)
                    .map(String::as_str)
                    .collect(),
            })
        };
        Update {
            step: encode(false, lanes, known - fresh),
            whole: for_new_viewers.then(|| encode(true, self.line.history(), 0)),
        }
    }
}

/// A server-sent event. JSON has no line ends.
fn message(content: &impl Serialize) -> Arc<[u8]> {
    // PANIC: the fields are numbers, texts and lists of such.
    let json = serde_json::to_string(content).expect("plain data becomes JSON");
    format!("data: {json}\n\n").into_bytes().into()
}

fn shown_lane(((pid, start, device), cells): (LaneKey, Vec<u8>)) -> ShownLane {
    ShownLane { pid, start, device, cells }
}

fn shown_task(task: &TaskSnapshot) -> ShownTask<'_> {
    ShownTask {
        pid: task.pid,
        start: task.start_ticks,
        name: &task.name,
        uid: task.uid,
        priority: task.priority,
        is_normal: task.normal.is_some(),
        state: task.state.name(),
        share: task.share,
        preempts: task.preempts,
        preempts_per_s: task.preempts_per_s,
        waiting_ms: task.waiting_ms,
        why: &task.why,
    }
}

fn shown_device(device: &gpreempt_wire::statistics::DeviceSnapshot) -> ShownDevice<'_> {
    ShownDevice {
        id: device.id,
        kind: &device.kind,
        uuid: &device.uuid,
        preempts: device.preempts,
        preempt_us_p50: device.preempt_us_p50,
        preempt_us_p99: device.preempt_us_p99,
        faults: device.faults,
    }
}

fn shown_waits(group: &gpreempt_wire::statistics::GroupSnapshot) -> ShownWaits<'_> {
    let us = |times: &Distribution, percent| times.percentile(percent).map(Duration::as_micros);
    ShownWaits {
        class: &group.class,
        rule: &group.rule,
        waits: group.wait_us.count,
        wait_us_p50: us(&group.wait_us, 50),
        wait_us_p99: us(&group.wait_us, 99),
        preempts: group.preempt_us.count,
        preempt_us_p99: us(&group.preempt_us, 99),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_wire::process::Process;
    use gpreempt_wire::text::Text;
    use serde_json::Value;

    fn read(message: &[u8]) -> Value {
        let text = std::str::from_utf8(message).unwrap();
        let json = text.strip_prefix("data: ").and_then(|text| text.strip_suffix("\n\n")).unwrap();
        assert!(!json.contains('\n'), "{json}");
        serde_json::from_str(json).unwrap()
    }

    fn decision(at_ms: u64) -> Event {
        let mut event = Event::new(at_ms * 1_000_000, EventKind::Preempt);
        (event.process, event.queue, event.device) = (Process::new(42, 9), 7, Some(0));
        event.reason = Text::new("serve (7) waits with </script> \"12\"");
        event
    }

    #[test]
    fn an_update_has_what_is_new_and_a_new_viewer_gets_everything() {
        let mut state = LiveState::default();
        let task = TaskSnapshot { pid: 42, name: "train".to_owned(), ..TaskSnapshot::default() };
        let mut snapshot =
            Snapshot { now_ns: 1_000_000_000, tasks: vec![task], ..Snapshot::default() };
        state.take_event(&decision(990));
        let first = read(&state.update(&snapshot, false).step);
        assert_eq!(first["decisions"][0]["reason"], "serve (7) waits with </script> \"12\"");
        assert_eq!((&first["tasks"][0]["name"], &first["end"]), (&"train".into(), &40.into()));
        state.take_event(&decision(1_200));
        snapshot.now_ns = 1_500_000_000;
        let update = state.update(&snapshot, true);
        let (step, whole) = (read(&update.step), read(&update.whole.unwrap()));
        assert_eq!(step["decisions"].as_array().unwrap().len(), 1);
        assert_eq!(whole["decisions"].as_array().unwrap().len(), 2);
        assert_eq!((&step["whole"], &whole["whole"]), (&false.into(), &true.into()));
        assert_eq!(read(&Update::lost("gone").step)["lost"], "gone");
    }

    #[test]
    fn the_size_of_an_update_has_a_limit() {
        let mut state = LiveState::default();
        (0..5_000).for_each(|at_ms| state.take_event(&decision(at_ms)));
        let tasks = (0..5_000).map(|pid| TaskSnapshot { pid, ..TaskSnapshot::default() }).collect();
        let shown = read(&state.update(&Snapshot { tasks, ..Snapshot::default() }, false).step);
        assert_eq!(shown["decisions"].as_array().unwrap().len(), DECISIONS_MAX);
        assert_eq!(shown["decisions_left_out"], 5_000 - DECISIONS_MAX);
        assert_eq!(shown["tasks"].as_array().unwrap().len(), PROCESSES_MAX);
        assert_eq!(shown["tasks_left_out"], 5_000 - PROCESSES_MAX);
    }
}
