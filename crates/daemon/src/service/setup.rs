//! From nothing to a daemon that is ready.

use std::path::{Path, PathBuf};

use gpreempt_core::driver::Driver;
use gpreempt_device::controller::Waker;
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::ledger::Ledger;
use gpreempt_device::registry::{self, Finding, Settings};
use gpreempt_device::urgency;
use gpreempt_wire::socket_path::Surroundings;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::alarm::Alarm;
use super::backends::Backends;
use super::guard::{Found, Guard};
use super::log::Log;
use super::notify::Notifier;
use super::orders::Orders;
use super::poller::{Poller, Source};
use super::punctuality::Punctuality;
use super::scrape::Scrape;
use super::sessions::Sessions;
use super::signals::Signals;
use super::{Failure, Options, Service};
use crate::accounts::Accounts;
use crate::config::{Config, DEFAULT_PATH, LoadError, SchedulerConfig, ServiceConfig};

impl Options {
    /// Reads the configuration. The usual file need not be there; one that was named has to be.
    ///
    /// # Errors
    /// What is wrong with it: one line.
    pub fn load_config(&self) -> Result<Config, LoadError> {
        match &self.config {
            Some(path) => Config::load(path),
            None => match Config::load(Path::new(DEFAULT_PATH)) {
                Err(LoadError::Missing(_)) => Ok(Config::default()),
                other => other,
            },
        }
    }

    /// Where to listen: as told, as configured, or where a daemon of this user does.
    ///
    /// # Errors
    /// If there is no place for it.
    pub fn socket_path(&self, config: &Config) -> Result<PathBuf, String> {
        let configured = &config.service.socket;
        let surroundings = Surroundings::current();
        let path = if let Some(path) = &self.socket {
            Ok(path.clone())
        } else if *configured != ServiceConfig::default().socket && surroundings.socket.is_none() {
            Ok(configured.clone())
        } else {
            surroundings.listen_path().ok_or_else(|| {
                "there is no place for the socket: XDG_RUNTIME_DIR is not set; give --socket"
                    .to_owned()
            })
        }?;
        // Others have another working folder.
        std::path::absolute(&path)
            .map_err(|error| format!("{} is no place for a socket: {error}", path.display()))
    }
}

impl Service {
    /// Takes the socket, undoes what others left behind, and meets who is there.
    pub(super) fn start(options: Options) -> Result<Self, Failure> {
        let text = |error: std::io::Error| error.to_string();
        let input = |sentence: String| Failure::Input(sentence);
        let config = options.load_config().map_err(|error| input(error.to_string()))?;
        let accounts = Accounts::load().map_err(text)?;
        let mut log = Log::new(config.service.log);
        raise_file_limit();
        urgency::come_first();
        // Before anything else happens: from here on a signal ends us in good order.
        let signals = Signals::take_over().map_err(text)?;
        let poller = Poller::new().map_err(text)?;
        let socket = options.socket_path(&config).map_err(input)?;
        let sessions = Sessions::listen(&socket, &poller)?;
        let (guard, ledger, found) = Guard::start(options.state.as_deref()).map_err(|error| {
            format!("nothing can be undone without a journal, so nothing is done: {error}")
        })?;
        tell_of_left_behind(&found, &mut log);
        let waker = Waker::new().map_err(text)?;
        poller.watch(&signals, Source::Signals).map_err(text)?;
        poller.watch(&waker, Source::Devices).map_err(text)?;
        let scrape = config.metrics.listen.map(|address| Scrape::listen(address, &poller));
        let backends = controllers(&options, &config, &ledger, &waker, &mut log)?;
        let (orders, registrations, problem) = Orders::load(guard.root());
        problem.into_iter().for_each(|problem| log.warn(problem));
        let driver = Driver::new(config.scheduler.core).map_err(|error| error.to_string())?;
        let mut service = Self {
            environment_names: config.environment_names(),
            own_uid: rustix::process::geteuid().as_raw(),
            started_ns: monotonic_ns(),
            notifier: Notifier::from_environment(),
            scrape: scrape.transpose()?,
            options,
            config,
            accounts,
            log,
            poller,
            alarm: Alarm::new(),
            signals,
            waker,
            socket,
            driver,
            backends,
            roster: Default::default(),
            registrations: Default::default(),
            orders,
            sessions,
            queue_suspensions: Default::default(),
            backlog: Default::default(),
            allowance: Default::default(),
            guard,
            chronicle: Default::default(),
            untold: Vec::new(),
            history: Default::default(),
            problems: Default::default(),
            turns: 0,
            punctuality: Punctuality::default(),
            last_watch: 0,
            chores_at_ns: 0,
            watchdog_at_ns: 0,
            is_changed: false,
            is_stopping: false,
        };
        service.register_again(registrations);
        service.meet_everybody();
        service.look_into_all();
        Ok(service)
    }
}

/// What earlier sessions left behind, and what became of it.
fn tell_of_left_behind(found: &Found, log: &mut Log) {
    if found.cleaned > 0 {
        let count = found.cleaned;
        log.info(format_args!("what {count} sessions left behind was undone"));
    }
    if let Some(problem) = &found.problem {
        log.warn(format_args!("something was left behind that cannot be undone yet: {problem}"));
    }
}

/// Every client and every process costs a descriptor; as many as this process may have.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// The devices of this machine.
pub(super) fn controllers(
    options: &Options,
    config: &Config,
    ledger: &Ledger,
    waker: &Waker,
    log: &mut Log,
) -> Result<Backends, String> {
    let mut backends = Backends::default();
    let SchedulerConfig { allow_untested_driver, hold, hold_max, .. } = config.scheduler;
    let settings = Settings { allow_untested_driver, hold_max: hold.then_some(hold_max) };
    let tell = |finding| match finding {
        Finding::Debug(text) => log.debug(text),
        Finding::Info(text) => log.info(text),
        Finding::Warning(text) => log.warn(text),
    };
    let found = registry::controllers(&options.devices, settings, (ledger, waker), tell);
    for controller in found.map_err(|error| error.to_string())? {
        backends.push(controller);
    }
    backends.set_rescan(config.service.rescan);
    Ok(backends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_was_named_is_the_one() {
        let options = Options { socket: Some("/tmp/x.sock".into()), ..Options::default() };
        let path = options.socket_path(&Config::default()).unwrap();
        assert_eq!(path, PathBuf::from("/tmp/x.sock"));
        let options = Options { socket: Some("x.sock".into()), ..Options::default() };
        let path = options.socket_path(&Config::default()).unwrap();
        assert_eq!(path, std::env::current_dir().unwrap().join("x.sock"));
    }

    #[test]
    fn a_configuration_that_was_named_has_to_be_there() {
        let named = Options { config: Some("/nonexistent/x.toml".into()), ..Options::default() };
        assert!(matches!(named.load_config(), Err(LoadError::Missing(_))));
    }
}
