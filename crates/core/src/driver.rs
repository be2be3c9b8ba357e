//! The loop body that the daemon and the simulator share: what is tested is what runs.

use alloc::vec::Vec;

use crate::backend::Backend;
use crate::clock::SteadyClock;
use crate::config::{Config, ConfigError};
use crate::event::{Event, EventError};
use crate::id::QueueId;
use crate::scheduler::Scheduler;
use crate::time::{Duration, Instant};

/// A scheduler with its clock and its interval.
#[derive(Debug)]
pub struct Driver {
    scheduler: Scheduler,
    clock: SteadyClock,
    now: Instant,
    observe_at: Instant,
    /// Whose rings are read, kept from one reading to the next for its memory.
    queues: Vec<QueueId>,
}

impl Driver {
    /// No step of the clock counts for more than this: rings are read far more often.
    const STEP_MAX: Duration = Duration::from_millis(100);

    /// A loop around a new scheduler.
    ///
    /// # Errors
    /// If a setting makes no sense.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        Ok(Self {
            scheduler: Scheduler::new(config)?,
            clock: SteadyClock::new(Self::STEP_MAX),
            now: Instant::ZERO,
            observe_at: Instant::ZERO,
            queues: Vec::new(),
        })
    }

    /// The scheduler, to look at.
    pub const fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// The scheduler, to take its decisions out or to change its settings.
    pub const fn scheduler_mut(&mut self) -> &mut Scheduler {
        &mut self.scheduler
    }

    /// The steady time of the last step.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Tells the scheduler something at once. Commands that follow from it wait for `step`.
    ///
    /// # Errors
    /// If it cannot be true; then nothing changes.
    pub fn tell(&mut self, raw_now: Instant, event: Event) -> Result<(), EventError> {
        self.now = self.clock.read(raw_now);
        self.scheduler.handle_event(self.now, event)
    }

    /// Takes in what happened, reads the rings if it is time, and passes the commands on. Returns
    /// how long nothing needs to be done if nothing happens.
    pub fn step<B: Backend>(&mut self, raw_now: Instant, backend: &mut B) -> Duration {
        self.now = self.clock.read(raw_now);
        let mut urgent = false;
        while let Some(event) = backend.poll_event() {
            urgent |= matches!(event, Event::HintBegin { .. } | Event::HintEnd { .. });
            // A completion for a queue that vanished meanwhile is no news.
            let _ = self.scheduler.handle_event(self.now, event);
        }
        let due = self.now >= self.observe_at;
        if due {
            self.observe_at = self.next_reading();
        }
        // Whoever began to run since the last reading would be in a hint's way unseen, and whoever
        // says it is done should not have to wait for the next reading to be believed.
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

    /// Readings keep their rhythm, however late each of them is, unless a whole one was missed.
    fn next_reading(&self) -> Instant {
        let interval = self.scheduler.config().interval;
        let next = self.observe_at + interval;
        if next > self.now && next <= self.now + interval { next } else { self.now + interval }
    }
}
