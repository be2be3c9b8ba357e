//! What goes wrong, and when.

use gpreempt_core::event::Event;
use gpreempt_core::id::DeviceId;
use gpreempt_core::time::{Duration, Instant};

use crate::agenda::What;
use crate::client::Life;
use crate::rig::Rig;
use crate::scenario::{FaultKind, FaultSpec};

impl FaultSpec {
    /// Whether a fault that lasts is under way.
    fn is_active(&self, now: Instant) -> bool {
        let start = Instant::ZERO + self.at;
        now >= start && now < start + self.lasts
    }

    /// When its consequences are over, apart from what the scheduler has to clean up.
    pub(crate) fn over_at(&self) -> Instant {
        Instant::ZERO + self.at + self.lasts
    }
}

impl Rig {
    fn active(&self) -> impl Iterator<Item = FaultKind> + '_ {
        let now = self.now();
        self.faults.iter().filter(move |fault| fault.is_active(now)).map(|fault| fault.kind)
    }

    pub(crate) fn preempts_fail(&self) -> bool {
        self.active().any(|kind| kind == FaultKind::PreemptTimeout)
    }

    /// While readings get lost, every second one does.
    pub(crate) fn reading_is_lost(&mut self) -> bool {
        self.active().any(|kind| kind == FaultKind::ObservationLost) && self.chance.chance(1, 2)
    }

    pub(crate) fn readings_late_by(&self) -> Option<Duration> {
        self.active()
            .filter_map(|kind| {
                let FaultKind::ObservationLate(by) = kind else { return None };
                Some(by)
            })
            .max()
    }

    /// The time the scheduler's clock shows.
    pub(crate) fn clock(&self) -> Instant {
        // The clock starts late enough to be able to leap backwards.
        let mut shown = self.now() + CLOCK_START;
        for kind in self.active() {
            if let FaultKind::ClockAhead(by) = kind {
                shown += by;
            } else if let FaultKind::ClockBehind(by) = kind {
                shown = Instant::from_nanos(shown.as_nanos().saturating_sub(by.as_nanos()));
            }
        }
        shown
    }

    /// A process is gone, with everything it had on the devices.
    pub(crate) fn end_task(&mut self, task: usize, life: Life) {
        if self.clients[task].life != Life::Alive {
            return;
        }
        self.clients[task].life = life;
        let queues: Vec<_> = self.clients[task].queues().collect();
        for queue in queues {
            for device in 0..self.holds.len() {
                if self.holds[device].permits(queue) {
                    self.forbid_hold(device);
                }
            }
            self.gpu.close_queue(queue);
            self.take_notices();
            self.abandon_calls(queue);
        }
        self.gpu.agenda.after(NOTICE_DELAY, What::EndNoticed { task });
        self.start_successors(task);
    }

    /// Everything on a device is lost; whoever used it dies.
    pub(crate) fn reset_device(&mut self, device: u32) {
        for task in 0..self.clients.len() {
            if self.clients[task].spec.devices.contains(&device) {
                self.end_task(task, Life::Dead);
            }
        }
        let capabilities = self.capabilities();
        let device = DeviceId(device);
        self.report(Event::DeviceVanished { device });
        self.report(Event::DeviceAppeared { device, capabilities });
    }
}

/// How long it takes until the scheduler hears of a process's end.
const NOTICE_DELAY: Duration = Duration::from_micros(50);

/// What the scheduler's clock shows when the simulation begins.
const CLOCK_START: Duration = Duration::from_millis(3_600_000);
