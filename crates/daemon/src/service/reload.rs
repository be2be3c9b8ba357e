//! Reading the configuration again.

use std::io;

use gpreempt_core::config::ConfigError;

use super::processes::rules::Rules;
use super::telemetry::metrics_server::{MetricsError, MetricsServer};
use super::{Service, instant};
use crate::accounts::Accounts;
use crate::config::LoadError;

/// Why the configuration stays as it was.
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
    /// Reads the configuration again. If it has a mistake the old one stays.
    pub(super) fn reload(&mut self, now_ns: u64) {
        self.notifier.reloading(now_ns);
        match self.read_again() {
            Ok(()) => {
                self.telemetry.problems.solve("the configuration stays");
                let policy = self.devices.scheduler().config().policy;
                self.telemetry.policy_event(now_ns, policy);
            }
            Err(error) => {
                let problem = format!("the configuration stays as it was: {error}");
                // It is logged at every attempt.
                self.telemetry.problems.add(&problem, instant(now_ns));
                self.telemetry.log.error(&problem);
                self.notifier.ready("the configuration stays as it was");
            }
        }
    }

    /// Every process has been judged by the configuration that was read again.
    pub(super) fn end_reload(&mut self) {
        self.telemetry.log.info("the configuration was read again");
        self.notifier.ready("the configuration was read again");
    }

    fn read_again(&mut self) -> Result<(), ReloadError> {
        let config = self.options.load_config()?;
        let accounts = Accounts::load()?;
        let address = config.metrics.listen;
        let telemetry = &mut self.telemetry;
        if telemetry.metrics_server.as_ref().map(MetricsServer::address) != address {
            let before = telemetry.metrics_server.take();
            match address.map(|address| MetricsServer::listen(address, &self.poller)).transpose() {
                Ok(scrape) => telemetry.metrics_server = scrape,
                Err(error) => {
                    telemetry.metrics_server = before;
                    return Err(error.into());
                }
            }
        }
        let now = self.devices.driver.now();
        self.devices.driver.scheduler_mut().set_config(now, config.scheduler.core)?;
        telemetry.log.set_level(config.service.log);
        self.devices.backends.set_rescan(config.service.rescan);
        if self.options.socket_path(&config).is_ok_and(|socket| socket != self.clients.socket()) {
            telemetry.log.warn("another socket is used after a restart only");
        }
        self.processes.rules = Rules::new(config, accounts);
        self.processes.backlog.add_reload(self.processes.roster.keys());
        Ok(())
    }
}
