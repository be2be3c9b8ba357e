//! What the loop does besides its turns: signals, the keeper, and maintenance every 250 ms.

use gpreempt_core::time::Duration;

use super::failure::LoopError;
use super::telemetry::history::SAMPLE;
use super::telemetry::snapshot::totals;
use super::{Service, instant};

/// Maintenance is not done more often than this, however short the interval of the watchdog.
const CHORES_MIN: Duration = Duration::from_millis(10);

impl Service {
    pub(super) fn take_signals(&mut self, now_ns: u64) -> Result<(), LoopError> {
        let asked = self.signals.take();
        if asked.reload {
            self.reload(now_ns);
        }
        self.is_stopping |= asked.stop;
        if asked.child { self.look_after_keeper() } else { Ok(()) }
    }

    /// A keeper that is gone or hangs is replaced, or nothing may be changed any more.
    fn look_after_keeper(&mut self) -> Result<(), LoopError> {
        if self.guard.has_given_up() {
            return self.begin_again();
        }
        if let Some(loss) = self.guard.look_after_keeper()? {
            self.telemetry.problem(&format!("{loss}; there is a new one"));
        }
        Ok(())
    }

    /// Feeds the watchdog of systemd, and four times in a second does what need not be immediate.
    pub(super) fn do_chores(&mut self, now_ns: u64) -> Result<(), LoopError> {
        let watchdog = self.notifier.watchdog();
        if let Some(interval) = watchdog
            && now_ns >= self.watchdog_at_ns
        {
            self.notifier.alive();
            self.watchdog_at_ns = now_ns.saturating_add(interval.as_nanos());
        }
        if now_ns < self.chores_at_ns {
            return Ok(());
        }
        let next = watchdog.unwrap_or(SAMPLE).min(SAMPLE).max(CHORES_MIN);
        self.chores_at_ns = now_ns.saturating_add(next.as_nanos());
        let now = instant(now_ns);
        let (devices, telemetry) = (&self.devices, &mut self.telemetry);
        telemetry.history.sample(devices.driver.now(), totals(devices.scheduler().queues()));
        self.clients.sessions.sweep(now, &self.poller, &mut telemetry.log);
        if let Some(scrape) = &mut telemetry.metrics_server {
            scrape.sweep(now);
        }
        match self.clients.keep_listening(&self.poller) {
            Ok(false) => {}
            Ok(true) => telemetry.log.warn("the socket was removed; it is there again"),
            Err(error) => telemetry.problem(&error.to_string()),
        }
        let (processes, mut context) = self.processes_and_context();
        processes.sweep(now_ns, &mut context);
        self.end_suspensions_of_the_dead();
        self.processes.keep_orders(&mut self.telemetry);
        self.check_for_system_daemon()?;
        self.look_after_keeper()
    }

    /// Ends the queue suspensions of processes that ended, even if a child of such a process still
    /// has its connection open.
    fn end_suspensions_of_the_dead(&mut self) {
        for session in self.devices.queue_suspensions.sessions() {
            let process = self.clients.sessions.get_mut(session).and_then(|known| known.process);
            if process.is_some_and(|process| process.check().is_err()) {
                self.devices.queue_suspensions.end_session(session);
            }
        }
    }
}
