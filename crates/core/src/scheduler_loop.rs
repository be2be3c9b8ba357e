//! The loop body that daemon and simulator share, and the clock that it reads.

use alloc::vec::Vec;

use crate::backend::Backend;
use crate::config::{Config, ConfigError};
use crate::event::{Event, EventError};
use crate::id::QueueId;
use crate::scheduler::Scheduler;
use crate::time::{Duration, Instant};

/// A scheduler with its clock and its observation interval.
#[derive(Debug)]
pub struct SchedulerLoop {
    scheduler: Scheduler,
    clock: SteadyClock,
    now: Instant,
    observe_at: Instant,
    /// Scratch space for the queues whose rings are read.
    queues: Vec<QueueId>,
}

impl SchedulerLoop {
    /// Limit for one step of the clock: far longer than the interval between two steps.
    const STEP_MAX: Duration = Duration::from_millis(100);

    /// A loop around a new scheduler.
    ///
    /// # Errors
    /// If a setting is invalid.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        Ok(Self {
            scheduler: Scheduler::new(config)?,
            clock: SteadyClock::new(Self::STEP_MAX),
            now: Instant::ZERO,
            observe_at: Instant::ZERO,
            queues: Vec::new(),
        })
    }

    /// The scheduler, for queries.
    pub const fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The scheduler, to take its decisions or to change its settings.
    pub const fn scheduler_mut(&mut self) -> &mut Scheduler {
        &mut self.scheduler
    }

    /// The steady time of the last step.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Delivers an event to the scheduler. The resulting commands are submitted by `step`.
    ///
    /// # Errors
    /// If the event contradicts the scheduler's state; then nothing changes.
    pub fn deliver(&mut self, raw_now: Instant, event: Event) -> Result<(), EventError> {
        self.now = self.clock.read(raw_now);
        self.scheduler.handle_event(self.now, event)
    }

    /// Handles the backend's events, reads the rings if that is due, and submits the commands.
    /// Returns how long the caller may sleep if no event arrives.
    pub fn step<B: Backend>(&mut self, raw_now: Instant, backend: &mut B) -> Duration {
        self.now = self.clock.read(raw_now);
        let mut urgent = false;
        while let Some(event) = backend.poll_event() {
            urgent |= matches!(event, Event::HintBegin { .. } | Event::HintEnd { .. });
            // A completion for a queue that vanished meanwhile is refused, which is harmless.
            let _ = self.scheduler.handle_event(self.now, event);
        }
        let due = self.now >= self.observe_at;
        if due {
            self.observe_at = self.next_reading();
        }
        // After a hint: a lower queue may have started since the last reading, and the end of a
        // request should take effect before the next one.
        if due || urgent {
            self.queues.clear();
            self.queues.extend(self.scheduler.queue_ids());
            for queue in self.queues.iter().copied() {
                if let Some(ring) = backend.observe(queue) {
                    let _ =
                        self.scheduler.handle_event(self.now, Event::RingObserved { queue, ring });
                }
            }
        }
        self.scheduler.handle_timeout(self.now);
        while let Some(command) = self.scheduler.poll_command() {
            backend.submit(command);
        }
        let next =
            self.scheduler.poll_timeout().map_or(self.observe_at, |at| at.min(self.observe_at));
        next.since(self.now)
    }

    /// Readings stay on a fixed grid, however late each one is, unless a whole one was missed.
    fn next_reading(&self) -> Instant {
        let interval = self.scheduler.config().interval;
        let next = self.observe_at + interval;
        if next > self.now && next <= self.now + interval { next } else { self.now + interval }
    }
}

/// Turns readings of any clock into time that never goes back and never jumps far ahead.
///
/// The raw clock may jump: a virtual machine wakes up, the user sets the time, a reading is
/// garbled. The scheduler would take a jump ahead for hours of starvation, and wait for hours after
/// a jump back. So its time is the sum of plausible steps.
#[derive(Clone, Copy, Debug)]
struct SteadyClock {
    raw: Option<Instant>,
    steady: Instant,
    step_max: Duration,
}

impl SteadyClock {
    const fn new(step_max: Duration) -> Self {
        Self { raw: None, steady: Instant::ZERO, step_max }
    }

    /// The steady time at which the raw clock shows `raw`.
    fn read(&mut self, raw: Instant) -> Instant {
        let step = match self.raw.replace(raw) {
            Some(before) if raw >= before => raw.since(before).min(self.step_max),
            Some(_) | None => Duration::ZERO,
        };
        self.steady += step;
        self.steady
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steady_clock_turns_jumps_into_short_steps() {
        let ms = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let mut clock = SteadyClock::new(Duration::from_millis(100));
        for (raw, steady) in [(50, 0), (60, 10), (3_600_000, 110), (70, 110), (75, 115)] {
            assert_eq!(clock.read(ms(raw)), ms(steady));
        }
    }
}
