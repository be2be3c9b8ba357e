//! Signals, reload of the configuration, and maintenance every 250 ms.

use std::io;
use std::sync::Arc;

use gpreempt_core::config::ConfigError;
use gpreempt_core::time::Duration;

use super::errors::LoopError;
use super::processes::Rules;
use super::telemetry::history::SAMPLE;
use super::telemetry::metrics_server::{MetricsError, MetricsServer};
use super::telemetry::snapshot::totals;
use super::{Service, instant};
use crate::accounts::Accounts;
use crate::config::LoadError;
use crate::metrics::http::HostNames;

/// The shortest interval of maintenance, however short the interval of the watchdog.
const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Why a reload failed and the configuration is unchanged.
#[derive(Debug, thiserror::Error)]
enum ReloadError {
    #[error(transparent)]
    Config(#[from] LoadError),
    #[error(transparent)]
    Accounts(#[from] io::Error),
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    #[error(transparent)]
    Scheduler(#[from] ConfigError),
}

impl Service {
    pub(crate) fn take_signals(&mut self, now_ns: u64) -> Result<(), LoopError> {
        let flags = self.signals.take();
        if flags.reload {
            self.reload(now_ns);
        }
        self.is_stopping |= flags.stop;
        if flags.child { self.check_keeper() } else { Ok(()) }
    }

    /// Replaces a keeper that was killed or hangs.
    fn check_keeper(&mut self) -> Result<(), LoopError> {
        if self.recovery.keeper_has_finished() {
            return self.restart_control();
        }
        if let Some(loss) = self.recovery.check_keeper()? {
            self.telemetry.problem(&format!("{loss}; a new keeper was started"));
        }
        Ok(())
    }

    /// Notifies systemd's watchdog, and every 250 ms does what can wait that long.
    pub(crate) fn maintain(&mut self, now_ns: u64) -> Result<(), LoopError> {
        let watchdog = self.notifier.watchdog();
        if let Some(interval) = watchdog
            && now_ns >= self.watchdog_at_ns
        {
            self.notifier.alive();
            self.watchdog_at_ns = now_ns.saturating_add(interval.as_nanos());
        }
        if now_ns < self.maintenance_at_ns {
            return Ok(());
        }
        let next = watchdog.unwrap_or(SAMPLE).min(SAMPLE).max(INTERVAL_MIN);
        self.maintenance_at_ns = now_ns.saturating_add(next.as_nanos());
        let now = instant(now_ns);
        let (devices, telemetry) = (&mut self.devices, &mut self.telemetry);
        telemetry.take_holds(devices, &self.processes.table);
        telemetry.history.sample(devices.driver.now(), totals(devices.scheduler().queues()));
        if self.processes.table.iter().next().is_some() {
            devices.backends.gauges.want(now);
        }
        self.clients.sessions.sweep(now, &self.poller, &mut telemetry.log);
        match self.clients.keep_listening(&self.poller) {
            Ok(false) => {}
            Ok(true) => telemetry.log.warn("the socket file was removed; listening again"),
            Err(error) => telemetry.problem(&error.to_string()),
        }
        let (processes, mut context) = self.processes_and_context();
        processes.sweep(now_ns, &mut context);
        self.end_suspensions_of_ended_processes();
        self.processes.save_settings(&mut self.telemetry);
        self.check_for_root()?;
        self.check_keeper()
    }

    /// Ends the queue suspensions of ended processes, also where a child process still has the
    /// connection open.
    fn end_suspensions_of_ended_processes(&mut self) {
        for session in self.devices.queue_suspensions.sessions() {
            let known_session = self.clients.sessions.get_mut(session);
            if known_session.is_some_and(|known| !known.is_of_living_process()) {
                self.devices.queue_suspensions.end_session(session);
            }
        }
    }

    /// Reads the configuration again. After an error the old configuration stays in force.
    fn reload(&mut self, now_ns: u64) {
        self.notifier.reloading(now_ns);
        match self.load_config_again() {
            Ok(()) => {
                self.telemetry.problems.solve("configuration not reloaded");
                let policy = self.devices.scheduler().config().policy;
                self.telemetry.policy_event(now_ns, policy);
            }
            Err(error) => {
                let problem = format!("configuration not reloaded, the old one is used: {error}");
                // Logged at every attempt, also if the problem is known.
                self.telemetry.problems.add(&problem, instant(now_ns));
                self.telemetry.log.error(&problem);
                self.notifier.ready("configuration not reloaded");
            }
        }
    }

    /// The rules of the new configuration have been evaluated for every process.
    pub(crate) fn end_reload(&mut self) {
        self.telemetry.log.info("configuration reloaded");
        self.notifier.ready("configuration reloaded");
    }

    fn load_config_again(&mut self) -> Result<(), ReloadError> {
        let config = self.options.load_config()?;
        let accounts = Accounts::load()?;
        let telemetry = &mut self.telemetry;
        match &telemetry.metrics_server {
            Some(server) if server.fits(&config.metrics) => {
                server.set_hosts(HostNames::new(&config.metrics.hosts));
            }
            _ => {
                // At the same address a new server needs the port of the old one.
                let is_moved = |old: &MetricsServer| Some(old.address()) != config.metrics.listen;
                telemetry.metrics_server = telemetry.metrics_server.take().filter(is_moved);
                let socket = self.clients.socket();
                let server = MetricsServer::listen(&config.metrics, socket, &self.poller)?;
                telemetry.metrics_server = server;
            }
        }
        let now = self.devices.driver.now();
        self.devices.driver.scheduler_mut().set_config(now, config.scheduler.core)?;
        telemetry.log.set_level(config.service.log);
        self.devices.backends.set_rescan(config.service.rescan);
        self.devices.backends.quota.set_max(config.service.queues_per_user);
        if self.options.socket_path(&config).is_ok_and(|socket| socket != self.clients.socket()) {
            telemetry.log.warn("the new socket path takes effect after a restart of gpreemptd");
        }
        self.processes.rules = Arc::new(Rules::new(config, accounts));
        self.processes.inspections.add_reload(self.processes.table.keys());
        Ok(())
    }
}
