//! Activities of queues over time, for timelines.

use std::collections::{BTreeMap, BTreeSet};

use gpreempt_core::busy_periods::{EngineSample, GAP_MAX};
use gpreempt_core::id::QueueId;
use gpreempt_core::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Activity {
    Idle,
    /// Has work and is not on the device.
    Wait,
    /// Has waves on compute units.
    Run,
    Save,
    Restore,
    /// Resident without work, by a hold.
    Hold,
    /// Its waves are being killed.
    Kill,
}

impl Activity {
    /// The name in timelines and traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Wait => "wait",
            Self::Run => "run",
            Self::Save => "save",
            Self::Restore => "restore",
            Self::Hold => "hold",
            Self::Kill => "kill",
        }
    }
}

/// A period of one activity of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub queue: QueueId,
    pub start: Instant,
    pub end: Instant,
    pub activity: Activity,
}

/// The spans of all queues, up to a limit.
#[derive(Debug, Default)]
pub(crate) struct Tracks {
    current: BTreeMap<QueueId, (Activity, Instant)>,
    spans: Vec<Span>,
    spans_max: usize,
    window: Option<(Instant, Instant)>,
    is_metered: bool,
    busy: BTreeMap<QueueId, Duration>,
    devices: BTreeMap<usize, DeviceMeter>,
}

/// The time in which at least one queue of a device ran.
#[derive(Debug, Default)]
struct DeviceMeter {
    running: BTreeSet<QueueId>,
    since: Instant,
    past: Duration,
}

impl DeviceMeter {
    fn set(&mut self, queue: QueueId, runs: bool, now: Instant) {
        self.past = self.read(now);
        self.since = now;
        if runs {
            self.running.insert(queue);
        } else {
            self.running.remove(&queue);
        }
    }

    fn read(&self, now: Instant) -> Duration {
        if self.running.is_empty() { self.past } else { self.past + now.since(self.since) }
    }
}

impl Tracks {
    pub(crate) fn new(spans_max: usize, window: Option<(Instant, Instant)>) -> Self {
        Self { spans_max, window, ..Self::default() }
    }

    /// The same tracks, which also add up busy time.
    pub(crate) fn metered(self) -> Self {
        Self { is_metered: true, ..self }
    }

    /// Time with waves on compute units.
    pub(crate) fn busy(&self, queue: QueueId, now: Instant) -> Duration {
        let past = self.busy.get(&queue).copied().unwrap_or_default();
        match self.current.get(&queue) {
            Some((Activity::Run, start)) => past + now.since(*start),
            Some(_) | None => past,
        }
    }

    /// Time in which at least one queue of a device had waves on compute units.
    pub(crate) fn device_busy(&self, device: usize, now: Instant) -> Duration {
        self.devices.get(&device).map_or(Duration::ZERO, |meter| meter.read(now))
    }

    /// A queue of a device runs, or does not.
    pub(crate) fn meter(&mut self, device: usize, queue: QueueId, runs: bool, now: Instant) {
        if self.is_metered {
            self.devices.entry(device).or_default().set(queue, runs, now);
        }
    }

    pub(crate) fn forget(&mut self, queue: QueueId) {
        self.busy.remove(&queue);
    }

    pub(crate) fn enter(&mut self, queue: QueueId, now: Instant, activity: Activity) {
        if self.spans_max == 0 && !self.is_metered {
            return;
        }
        let before = self.current.insert(queue, (activity, now));
        if let Some((old, start)) = before {
            if old == activity {
                self.current.insert(queue, (old, start));
            } else {
                self.push(Span { queue, start, end: now, activity: old });
            }
        }
    }

    pub(crate) fn close(&mut self, queue: QueueId, now: Instant) {
        if let Some((activity, start)) = self.current.remove(&queue) {
            self.push(Span { queue, start, end: now, activity });
        }
    }

    /// All spans, in order of their ends.
    pub(crate) fn finish(mut self, now: Instant) -> Vec<Span> {
        let open: Vec<QueueId> = self.current.keys().copied().collect();
        for queue in open {
            self.close(queue, now);
        }
        self.spans
    }

    fn push(&mut self, span: Span) {
        if self.is_metered && span.activity == Activity::Run {
            *self.busy.entry(span.queue).or_default() += span.end.since(span.start);
        }
        let empty = span.start == span.end || span.activity == Activity::Idle;
        let outside = self.window.is_some_and(|(from, to)| span.end < from || span.start > to);
        if !empty && !outside && self.spans.len() < self.spans_max {
            self.spans.push(span);
        }
    }
}

impl crate::gpu::Gpu {
    /// Records the current activity of a queue.
    pub(crate) fn track(&mut self, id: QueueId) {
        use crate::gpu::queue::Residency;
        let Some(queue) = self.queues.get(&id) else { return };
        let resets = self.machine == crate::model::MachineKind::Reset;
        let activity = match queue.residency {
            Residency::Saving if resets => Activity::Kill,
            Residency::Saving => Activity::Save,
            Residency::Restoring => Activity::Restore,
            Residency::In if queue.resident_waves() > 0 => Activity::Run,
            Residency::In if queue.held && !queue.has_work() => Activity::Hold,
            Residency::In | Residency::Out => {
                let withheld = !queue.backlog.is_empty() || (resets && queue.stopped);
                if queue.has_work() || withheld { Activity::Wait } else { Activity::Idle }
            }
        };
        let (device, now) = (queue.device, self.event_queue.now());
        if self.machine == crate::model::MachineKind::Tsg {
            self.measure(id, now, activity);
        }
        self.tracks.meter(device, id, activity == Activity::Run, now);
        self.tracks.enter(id, now, activity);
    }
}

impl crate::gpu::Gpu {
    /// Measures busy periods: exactly, where a driver has only samples.
    fn measure(&mut self, id: QueueId, now: Instant, next: Activity) {
        let Some(queue) = self.queues.get_mut(&id) else { return };
        if !queue.is_measured && !queue.ring.is_mapped() {
            return;
        }
        let past = std::mem::replace(&mut queue.activity, next);
        let has_work = !matches!(past, Activity::Idle | Activity::Hold);
        let is_off = has_work && past != Activity::Run;
        let ring = queue.ring.view(None);
        let (packets, is_pending) = (ring.put, ring.pending() > 0);
        let sample = EngineSample { has_work, is_off, is_pending, may_yield: !queue.held };
        if let Some(time) = queue.periods.take(now, sample, GAP_MAX, packets)
            && !queue.ring.measured(time)
        {
            self.measured.push((id, time));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_merged_and_idle_time_is_left_out() {
        let at = Instant::from_nanos;
        let mut tracks = Tracks::new(10, None);
        let queue = QueueId(1);
        tracks.enter(queue, at(0), Activity::Idle);
        tracks.enter(queue, at(10), Activity::Run);
        tracks.enter(queue, at(20), Activity::Run);
        tracks.enter(queue, at(30), Activity::Save);
        let spans = tracks.finish(at(35));
        let seen: Vec<_> =
            spans.iter().map(|s| (s.start.as_nanos(), s.end.as_nanos(), s.activity)).collect();
        assert_eq!(seen, [(10, 30, Activity::Run), (30, 35, Activity::Save)]);
    }

    #[test]
    fn busy_time_is_added_up_and_includes_the_current_span() {
        let at = Instant::from_nanos;
        let mut tracks = Tracks::default().metered();
        let queue = QueueId(1);
        tracks.enter(queue, at(10), Activity::Run);
        tracks.enter(queue, at(30), Activity::Save);
        tracks.enter(queue, at(50), Activity::Run);
        assert_eq!(tracks.busy(queue, at(57)), Duration::from_nanos(27));
        tracks.close(queue, at(60));
        tracks.forget(queue);
        assert_eq!(tracks.busy(queue, at(70)), Duration::ZERO);
        assert_eq!(tracks.finish(at(70)), []);
    }

    #[test]
    fn a_device_is_busy_while_any_of_its_queues_runs() {
        let at = Instant::from_nanos;
        let mut tracks = Tracks::default().metered();
        let changes = [(1, true, 10), (2, true, 20), (1, false, 30), (2, false, 45), (1, true, 50)];
        for (queue, runs, ns) in changes {
            tracks.meter(0, QueueId(queue), runs, at(ns));
        }
        assert_eq!(tracks.device_busy(0, at(57)), Duration::from_nanos(42));
        assert_eq!(tracks.device_busy(1, at(57)), Duration::ZERO);
    }
}
