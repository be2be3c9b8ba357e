//! From nothing to a daemon that is ready.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use gpreempt_core::scheduler_loop::SchedulerLoop;
use gpreempt_device::controller::Waker;
use gpreempt_device::journal::Journal;
use gpreempt_device::ledger::Ledger;
use gpreempt_device::registry::{self, Finding, RegistryError, Settings};
use gpreempt_device::urgency;
use gpreempt_wire::socket_path::SocketEnv;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::clients::Clients;
use super::clients::sessions::ListenError;
use super::devices::Devices;
use super::devices::backends::Backends;
use super::failure::StartError;
use super::notify::Notifier;
use super::poller::{Alarm, Poller, Source};
use super::processes::Processes;
use super::processes::rules::Rules;
use super::processes::saved_settings::Orders;
use super::signals::Signals;
use super::telemetry::Telemetry;
use super::telemetry::log::Log;
use super::telemetry::metrics_server::MetricsServer;
use super::undo::guard::{Found, Guard};
use super::undo::hardware_check::{HardwareCheck, places};
use super::undo::lock::{LockError, Owner};
use super::{Options, Service};
use crate::accounts::Accounts;
use crate::config::{Config, DEFAULT_PATH, LoadError, LogLevel, SchedulerConfig, ServiceConfig};

/// Why there is no place for the socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketPathError {
    /// Neither an option nor the environment says where.
    #[error("there is no place for the socket: XDG_RUNTIME_DIR is not set; give --socket")]
    NoFolder,
    /// The path cannot be made absolute.
    #[error("{} is no place for a socket: {error}", .path.display())]
    NotAbsolute {
        /// As given.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

impl Options {
    /// Reads the configuration. The usual file need not be there; one that was named has to be.
    ///
    /// # Errors
    /// What is wrong with it: one line.
    pub fn load_config(&self) -> Result<Config, LoadError> {
        if let Some(private) = &self.private {
            return Ok(private.config());
        }
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
    pub fn socket_path(&self, config: &Config) -> Result<PathBuf, SocketPathError> {
        let configured = &config.service.socket;
        let surroundings = SocketEnv::current();
        let path = if let Some(path) = &self.socket {
            Ok(path.clone())
        } else if *configured != ServiceConfig::default().socket && surroundings.socket.is_none() {
            Ok(configured.clone())
        } else {
            surroundings.listen_path().ok_or(SocketPathError::NoFolder)
        }?;
        // Others have another working folder.
        std::path::absolute(&path).map_err(|error| SocketPathError::NotAbsolute { path, error })
    }
}

/// The process that a service runs in.
#[derive(Debug)]
pub(super) enum Host {
    /// gpreemptd: the service has the process for itself.
    Program,
    /// A command, which keeps its signals and gets the problems.
    Command {
        /// What the command asks for.
        signals: Signals,
        /// Where problems go.
        problems: Sender<String>,
    },
}

impl Host {
    /// Prepares the process, as far as it is the service's: its signals, its log, its manager.
    fn prepare(self, level: LogLevel) -> io::Result<(Signals, Log, Notifier)> {
        match self {
            Self::Program => {
                raise_file_limit();
                let signals = Signals::take_over()?;
                Ok((signals, Log::new(level), Notifier::from_environment()))
            }
            Self::Command { signals, problems } => {
                Ok((signals, Log::to_command(problems), Notifier::none()))
            }
        }
    }
}

impl Service {
    /// Takes the socket, undoes what others left behind, and meets who is there.
    pub(super) fn start(options: Options, host: Host) -> Result<Self, StartError> {
        let config = options.load_config()?;
        let accounts = Accounts::load()?;
        urgency::come_first();
        // Before anything else happens: from here on a signal ends us in good order.
        let (signals, mut log, notifier) = host.prepare(config.service.log)?;
        let poller = Poller::new()?;
        let clients = Clients::listen(options.socket_path(&config)?, &poller)
            .map_err(|error| explain_listen(&options, error))?;
        let command = options.private.as_ref().map(|private| private.command.as_str());
        let started = Guard::start(options.state.as_deref(), command);
        let is_command = command.is_some();
        let (guard, ledger, found) =
            started.map_err(|error| StartError::Lock { error, is_command })?;
        tell_of_left_behind(&found, &mut log);
        let waker = Waker::new()?;
        poller.watch(&signals, Source::Signals)?;
        poller.watch(&waker, Source::Devices)?;
        let scrape = config.metrics.listen.map(|address| MetricsServer::listen(address, &poller));
        let backends = controllers(&options, &config, &ledger, &waker, &mut log)?;
        let asked = places(&options.devices, &backends.kinds());
        let journal = guard.journal().clone();
        let hardware = HardwareCheck::start(asked, journal, ledger, waker.clone())?;
        let (orders, registrations, problem) = match command {
            Some(_) => (Orders::unkept(), Vec::new(), None),
            None => Orders::load(guard.root()),
        };
        problem.into_iter().for_each(|problem| log.warn(problem));
        let driver = SchedulerLoop::new(config.scheduler.core)?;
        let rules = match &options.private {
            Some(private) => Rules::of_private(config, accounts, private.rules()),
            None => Rules::new(config, accounts),
        };
        let mut service = Self {
            clients,
            processes: Processes::new(rules, orders),
            devices: Devices::new(driver, backends, waker),
            guard,
            telemetry: Telemetry::new(log, scrape.transpose()?, command.map(str::to_owned)),
            options,
            poller,
            alarm: Alarm::new(),
            signals,
            hardware,
            notifier,
            allowance: Default::default(),
            chores_at_ns: 0,
            watchdog_at_ns: 0,
            is_stopping: false,
        };
        let (processes, mut context) = service.processes_and_context();
        processes.register_again(registrations, context.poller);
        processes.meet_everybody(context.devices);
        processes.look_into_all(&mut context);
        Ok(service)
    }
}

/// What earlier sessions left behind, and what became of it.
fn tell_of_left_behind(found: &Found, log: &mut Log) {
    if found.cleaned > 0 {
        let count = found.cleaned;
        log.info(format_args!("what {count} sessions left behind was undone"));
    }
    if let Some(other) = &found.other {
        log.warn(format_args!("{other} of another user controls GPUs as well; end it"));
    }
    if let Some(problem) = &found.problem {
        log.warn(format_args!("something was left behind that cannot be undone yet: {problem}"));
    }
}

/// Why the socket cannot be had: the owner of the lock has it, if that is a private session.
fn explain_listen(options: &Options, error: ListenError) -> StartError {
    let journal = match &options.state {
        Some(folder) => Journal::at(folder.clone()),
        None => Journal::open(),
    };
    let owner = journal.ok().and_then(|journal| Owner::living(journal.root()));
    match owner.filter(Owner::is_private) {
        Some(owner) => StartError::Lock {
            error: LockError::Private(owner),
            is_command: options.private.is_some(),
        },
        None => error.into(),
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
) -> Result<Backends, RegistryError> {
    let mut backends = Backends::default();
    let SchedulerConfig { allow_untested_driver, hold, hold_max, .. } = config.scheduler;
    let private = options.private.as_ref();
    let settings = Settings {
        allow_untested_driver,
        hold_max: hold.then_some(hold_max),
        is_private: private.is_some(),
        wishes: private.map(|private| private.wishes).unwrap_or_default(),
    };
    let tell = |finding| match finding {
        Finding::Debug(text) => log.debug(text),
        Finding::Info(text) => log.info(text),
        Finding::Warning(text) => log.warn(text),
    };
    let found = registry::controllers(&options.devices, settings, (ledger, waker), tell);
    for controller in found? {
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
