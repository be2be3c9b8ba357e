//! Which process had which device, in cells of equal length.
//!
//! A process has a device while one of its queues has work and may run there. A cell says for which
//! part of its time that was so. So the size of an update does not depend on how often processes
//! take turns, and 30 s have as many cells as a wide screen has pixels.

use std::collections::{BTreeMap, VecDeque};

use gpreempt_wire::event::{Event, EventKind};
use gpreempt_wire::statistics::Snapshot;

/// The length of a cell.
pub(super) const CELL_MS: u64 = 25;
const CELL_NS: u64 = CELL_MS * 1_000_000;
/// Cells of 30 s.
const CELLS_MAX: usize = 1_200;
/// Lanes that are kept; further processes have none.
const LANES_MAX: usize = 256;

/// A process on a device: pid, start time and the number of the device.
pub(super) type LaneKey = (u32, u64, u32);

#[derive(Clone, Copy, Debug)]
struct Queue {
    lane: LaneKey,
    on: bool,
    active: bool,
    /// When it last changed.
    at_ns: u64,
}

#[derive(Debug, Default)]
struct Lane {
    /// Queues that have work and may run.
    running: usize,
    since_ns: u64,
    /// Time in each cell that is not complete yet.
    open: BTreeMap<u64, u64>,
    /// Complete cells in percent, the newest last.
    cells: VecDeque<u8>,
}

#[derive(Debug, Default)]
pub(super) struct TimeLine {
    queues: BTreeMap<u64, Queue>,
    lanes: BTreeMap<LaneKey, Lane>,
    /// The first cell that is not complete.
    next: u64,
}

impl TimeLine {
    pub(super) fn take_event(&mut self, event: &Event) {
        if event.queue == 0 {
            return;
        }
        if event.kind == EventKind::Vanished {
            return self.remove(event.queue, event.at_ns);
        }
        let known = self.queues.get(&event.queue).copied();
        let lane = event.process.zip(event.device);
        let lane = lane.map(|(process, device)| (process.pid(), process.start_ticks(), device));
        let Some(lane) = known.map(|queue| queue.lane).or(lane) else { return };
        let new = Queue { lane, on: true, active: false, at_ns: event.at_ns };
        let mut queue = Queue { at_ns: event.at_ns, ..known.unwrap_or(new) };
        match event.kind {
            EventKind::Active => queue.active = true,
            EventKind::Idle => queue.active = false,
            EventKind::Preempted => queue.on = false,
            EventKind::Resumed => queue.on = true,
            EventKind::Appeared => {}
            EventKind::Preempt
            | EventKind::Resume
            | EventKind::Boost
            | EventKind::Linger
            | EventKind::Fault
            | EventKind::Vanished
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
            | EventKind::Room => return,
        }
        self.set(event.queue, queue);
    }

    /// Takes over queues that no event told of, and forgets those that are gone.
    pub(super) fn take_snapshot(&mut self, snapshot: &Snapshot) {
        let mut seen = BTreeMap::new();
        for task in &snapshot.tasks {
            for queue in &task.queues {
                let lane = (task.pid, task.start_ticks, queue.device);
                let (on, active, at_ns) = (queue.on, queue.active, snapshot.now_ns);
                seen.insert(queue.id, Queue { lane, on, active, at_ns });
            }
        }
        let is_older = |queue: &Queue| queue.at_ns <= snapshot.now_ns;
        let gone =
            self.queues.iter().filter(|(id, queue)| is_older(queue) && !seen.contains_key(id));
        let gone: Vec<u64> = gone.map(|(id, _)| *id).collect();
        gone.into_iter().for_each(|id| self.remove(id, snapshot.now_ns));
        for (id, queue) in seen {
            if self.queues.get(&id).is_none_or(is_older) {
                self.set(id, queue);
            }
        }
    }

    fn set(&mut self, id: u64, queue: Queue) {
        let before = self.queues.insert(id, queue);
        let was_running = before.is_some_and(|queue| queue.on && queue.active);
        self.count(queue.lane, queue.at_ns, was_running, queue.on && queue.active);
    }

    fn remove(&mut self, id: u64, at_ns: u64) {
        if let Some(queue) = self.queues.remove(&id) {
            self.count(queue.lane, at_ns, queue.on && queue.active, false);
        }
    }

    fn count(&mut self, key: LaneKey, at_ns: u64, was_running: bool, is_running: bool) {
        if !self.lanes.contains_key(&key) && self.lanes.len() >= LANES_MAX {
            return;
        }
        let lane = self.lanes.entry(key).or_default();
        lane.advance(at_ns, self.next);
        lane.running += usize::from(is_running);
        lane.running = lane.running.saturating_sub(usize::from(was_running));
    }

    /// Completes the cells before that time. Returns the number of the first open cell, and the
    /// newly complete cells of each lane.
    pub(super) fn complete(&mut self, now_ns: u64) -> (u64, Vec<(LaneKey, Vec<u8>)>) {
        let end = now_ns / CELL_NS;
        if end.saturating_sub(self.next) > CELLS_MAX as u64 {
            // The first call, or one after a long pause.
            self.next = end.saturating_sub(1);
        }
        let (from, mut complete) = (self.next, Vec::new());
        for (key, lane) in &mut self.lanes {
            lane.advance(now_ns, from);
            let cells: Vec<u8> = (from..end).map(|cell| lane.take(cell)).collect();
            lane.cells.extend(&cells);
            let excess = lane.cells.len().saturating_sub(CELLS_MAX);
            lane.cells.drain(..excess);
            complete.push((*key, cells));
        }
        let used: Vec<LaneKey> = self.queues.values().map(|queue| queue.lane).collect();
        self.lanes
            .retain(|key, lane| used.contains(key) || lane.cells.iter().any(|&cell| cell > 0));
        self.next = self.next.max(end);
        (self.next, complete)
    }

    /// The complete cells of each lane, the newest last.
    pub(super) fn history(&self) -> Vec<(LaneKey, Vec<u8>)> {
        let lanes = self.lanes.iter();
        lanes.map(|(key, lane)| (*key, lane.cells.iter().copied().collect())).collect()
    }
}

impl Lane {
    /// Adds the time since the last change to its cells, from the cell `first` on.
    fn advance(&mut self, now_ns: u64, first: u64) {
        let mut at = self.since_ns.max(first * CELL_NS);
        self.since_ns = self.since_ns.max(now_ns);
        while self.running > 0 && at < now_ns {
            let cell = at / CELL_NS;
            let until = ((cell + 1) * CELL_NS).min(now_ns);
            *self.open.entry(cell).or_default() += until - at;
            at = until;
        }
    }

    /// Removes a cell. Any time at all is more than nothing.
    fn take(&mut self, cell: u64) -> u8 {
        let ns = self.open.remove(&cell).unwrap_or(0);
        u8::try_from((ns * 100).div_ceil(CELL_NS).min(100)).unwrap_or(100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_wire::process::Process;
    use gpreempt_wire::statistics::{QueueSnapshot, TaskSnapshot};

    const MS: u64 = 1_000_000;

    fn event(at_ms: u64, kind: EventKind) -> Event {
        let mut event = Event::new(at_ms * MS, kind);
        (event.queue, event.device, event.process) = (7, Some(0), Process::new(42, 9));
        event
    }

    fn cells(line: &mut TimeLine, now_ms: u64) -> Vec<u8> {
        line.complete(now_ms * MS).1.into_iter().flat_map(|(_, cells)| cells).collect()
    }

    #[test]
    fn cells_tell_which_part_of_their_time_a_process_had_the_device() {
        let mut line = TimeLine::default();
        line.complete(1_000 * MS);
        line.take_event(&event(1_000, EventKind::Appeared));
        line.take_event(&event(1_005, EventKind::Active));
        assert_eq!(cells(&mut line, 1_060), [80, 100]);
        line.take_event(&event(1_070, EventKind::Preempted));
        line.take_event(&event(1_080, EventKind::Preempt));
        assert_eq!(cells(&mut line, 1_100), [80, 0], "10 and 10 ms, then none");
        line.take_event(&event(1_110, EventKind::Resumed));
        line.take_event(&event(1_111, EventKind::Idle));
        assert_eq!(cells(&mut line, 1_125), [4]);
        assert_eq!(line.history()[0].1.last(), Some(&4));
        line.take_event(&event(1_126, EventKind::Vanished));
        assert!(line.queues.is_empty());
    }

    #[test]
    fn a_snapshot_adds_what_no_event_told_and_does_not_undo_newer_events() {
        let mut line = TimeLine::default();
        line.complete(1_000 * MS);
        let queue = QueueSnapshot { id: 7, on: true, active: true, ..QueueSnapshot::default() };
        let task = TaskSnapshot { pid: 42, queues: vec![queue], ..TaskSnapshot::default() };
        let mut snapshot =
            Snapshot { now_ns: 1_000 * MS, tasks: vec![task], ..Snapshot::default() };
        line.take_snapshot(&snapshot);
        assert_eq!(cells(&mut line, 1_050), [100, 100]);
        line.take_event(&event(1_052, EventKind::Idle));
        snapshot.now_ns = 1_051 * MS;
        line.take_snapshot(&snapshot);
        assert_eq!(cells(&mut line, 1_075), [8]);
        line.take_snapshot(&Snapshot { now_ns: 1_080 * MS, ..Snapshot::default() });
        assert!(line.queues.is_empty());
    }

    #[test]
    fn lanes_and_cells_are_limited_and_unused_lanes_are_forgotten() {
        let mut line = TimeLine::default();
        line.complete(1_000 * MS);
        for queue in 1..=1_000 {
            let process = Process::new(queue, 1);
            let event = event(1_000, EventKind::Active);
            line.take_event(&Event { queue: queue.into(), process, ..event });
        }
        assert_eq!(line.lanes.len(), LANES_MAX);
        for second in 2..=61 {
            line.complete(second * 1_000 * MS);
        }
        assert!(line.history().iter().all(|(_, cells)| cells.len() == CELLS_MAX));
        line.take_snapshot(&Snapshot { now_ns: 61_000 * MS, ..Snapshot::default() });
        for second in 62..=95 {
            line.complete(second * 1_000 * MS);
        }
        assert!(line.lanes.is_empty());
    }
}
