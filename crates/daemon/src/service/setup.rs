//! The start of a service: configuration, socket, journal, controllers, first inspection.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use gpreempt_core::scheduler_loop::SchedulerLoop;
use gpreempt_device::controller::Waker;
use gpreempt_device::journal::Journal;
use gpreempt_device::process;
use gpreempt_device::registry::{self, DeviceFinding, RegistryError, Settings};
use gpreempt_device::undo_log::UndoLog;
use gpreempt_wire::socket_path::SocketEnv;
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};

use super::background_reads::BackgroundReads;
use super::clients::Clients;
use super::clients::sessions::ListenError;
use super::devices::Devices;
use super::devices::backends::Backends;
use super::devices::queue_quota::QueueQuota;
use super::errors::StartError;
use super::memory::Memory;
use super::memory::mover::ThreadMover;
use super::notify::Notifier;
use super::poller::{PollSource, Poller, Wakeup};
use super::processes::saved_settings::SavedSettings;
use super::processes::{Processes, Rules};
use super::signals::Signals;
use super::telemetry::Telemetry;
use super::telemetry::hold_log::HoldLog;
use super::telemetry::log::Log;
use super::telemetry::metrics_server::MetricsServer;
use super::undo::hardware_check::{HardwareCheck, device_places};
use super::undo::lock::{LockError, Owner};
use super::undo::{CleanupResult, Recovery};
use super::{Options, Service};
use crate::accounts::Accounts;
use crate::config::{Config, DEFAULT_PATH, LoadError, LogLevel, SchedulerConfig, ServiceConfig};

/// Why there is no path for the socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketPathError {
    #[error("there is no path for the socket: XDG_RUNTIME_DIR is not set; give --socket")]
    NoFolder,
    #[error("{} cannot be a socket path: {error}", .path.display())]
    NotAbsolute { path: PathBuf, error: io::Error },
}

impl Options {
    /// Reads the configuration. The usual file may be missing, a file that was named may not.
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

    /// The socket path: the option, the environment, the configuration, or the usual path of this
    /// user.
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
        // Clients have another working folder.
        std::path::absolute(&path).map_err(|error| SocketPathError::NotAbsolute { path, error })
    }
}

/// The process that a service runs in.
#[derive(Debug)]
pub(crate) enum Host {
    /// gpreemptd.
    Program,
    /// A command, which keeps its signals and receives the problems.
    Command { signals: Signals, problems: Sender<String> },
}

impl Host {
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
    pub(crate) fn start(options: Options, host: Host) -> Result<Self, StartError> {
        let config = options.load_config()?;
        let accounts = Accounts::load()?;
        process::raise_thread_priority();
        // First of all: from here on a signal stops the daemon in an orderly way.
        let (signals, mut log, notifier) = host.prepare(config.service.log)?;
        let poller = Poller::new()?;
        let clients = Clients::listen(options.socket_path(&config)?, &poller)
            .map_err(|error| explain_listen(&options, error))?;
        let command = options.private.as_ref().map(|private| private.command.as_str());
        let started = Recovery::start(options.state.as_deref(), command);
        let is_command = command.is_some();
        let (recovery, undo_log, cleanup) =
            started.map_err(|error| StartError::Lock { error, is_command })?;
        log_cleanup(&cleanup, &mut log);
        let waker = Waker::new()?;
        poller.watch(&signals, PollSource::Signals)?;
        poller.watch(&waker, PollSource::Devices)?;
        let scrape = MetricsServer::listen(&config.metrics, clients.socket(), &poller);
        let backends = controllers(&options, &config, &undo_log, &waker, &mut log)?;
        let places = device_places(&options.devices, &backends.kinds());
        let journal = recovery.journal().clone();
        let mover = Box::new(ThreadMover::new(undo_log.clone(), waker.clone()));
        let memory = Memory::new(mover);
        let hardware = HardwareCheck::start(places, journal, undo_log, waker.clone())?;
        let (saved, registrations, problem) = match command {
            Some(_) => (SavedSettings::unsaved(), Vec::new(), None),
            None => SavedSettings::load(recovery.journal().root()),
        };
        problem.into_iter().for_each(|problem| log.warn(problem));
        let driver = SchedulerLoop::new(config.scheduler.core)?;
        let rules = match &options.private {
            Some(private) => Rules::of_private(config, accounts, private.rules()),
            None => Rules::new(config, accounts),
        };
        let mut service = Self {
            clients,
            reads: BackgroundReads::new(waker.clone(), geteuid().as_raw()),
            facts: Default::default(),
            processes: Processes::new(rules, saved),
            devices: Devices::new(driver, backends, waker),
            memory,
            recovery,
            telemetry: Telemetry::new(log, scrape?, command.map(str::to_owned)),
            options,
            poller,
            wakeup: Wakeup::new(),
            signals,
            hardware,
            notifier,
            budget: Default::default(),
            maintenance_at_ns: 0,
            watchdog_at_ns: 0,
            is_stopping: false,
        };
        let Self { memory, processes, recovery, telemetry, .. } = &mut service;
        if let Err(error) = memory.find_left(recovery.journal(), &mut processes.table) {
            telemetry
                .problem(&format!("evictions of an earlier gpreemptd cannot be read: {error}"));
        }
        let private = service.options.private.as_ref();
        service.telemetry.hold_log =
            private.and_then(|private| private.hold_records.clone()).map(HoldLog::new);
        let (processes, context) = service.processes_and_context();
        processes.restore_registrations(registrations, context.poller);
        processes.queue_all_users(context.devices);
        service.inspect_all();
        Ok(service)
    }
}

fn log_cleanup(cleanup: &CleanupResult, log: &mut Log) {
    if cleanup.cleaned > 0 {
        let count = cleanup.cleaned;
        log.info(format_args!(
            "restored GPU settings left by {count} earlier gpreempt programs that did not exit \
             cleanly"
        ));
    }
    if let Some(other) = &cleanup.other {
        log.warn(format_args!("{other} of another user controls GPUs as well; end it"));
    }
    if let Some(problem) = &cleanup.problem {
        log.warn(format_args!(
            "GPU settings left by an earlier gpreempt program cannot be restored yet: {problem}"
        ));
    }
}

/// Names the command whose private session has the socket, if that is why it cannot be used.
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

/// Every client and every process needs a descriptor.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Starts the controllers of this machine's devices.
pub(crate) fn controllers(
    options: &Options,
    config: &Config,
    undo_log: &UndoLog,
    waker: &Waker,
    log: &mut Log,
) -> Result<Backends, RegistryError> {
    let mut backends = Backends::default();
    let SchedulerConfig { allow_untested_driver, hold, hold_limits, .. } = config.scheduler;
    let private = options.private.as_ref();
    let settings = Settings {
        allow_untested_driver,
        holds: hold.then_some(hold_limits),
        is_private: private.is_some(),
        context_options: private.map(|private| private.context_options).unwrap_or_default(),
    };
    let mut uncontrolled = Vec::new();
    let report = |finding| match finding {
        DeviceFinding::Debug(text) => log.debug(text),
        DeviceFinding::Info(text) => log.info(text),
        DeviceFinding::Warning(text) => {
            log.warn(&text);
            uncontrolled.push(text);
        }
    };
    let found = registry::controllers(&options.devices, settings, (undo_log, waker), report);
    for controller in found? {
        backends.push(controller);
    }
    backends.start_gauges()?;
    backends.uncontrolled = uncontrolled;
    backends.set_rescan(config.service.rescan);
    backends.quota = QueueQuota::new(config.service.queues_per_user, geteuid().as_raw());
    Ok(backends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_option_is_used_as_an_absolute_path() {
        let options = Options { socket: Some("/tmp/x.sock".into()), ..Options::default() };
        let path = options.socket_path(&Config::default()).unwrap();
        assert_eq!(path, PathBuf::from("/tmp/x.sock"));
        let options = Options { socket: Some("x.sock".into()), ..Options::default() };
        let path = options.socket_path(&Config::default()).unwrap();
        assert_eq!(path, std::env::current_dir().unwrap().join("x.sock"));
    }

    #[test]
    fn a_configuration_that_was_named_must_exist() {
        let named = Options { config: Some("/nonexistent/x.toml".into()), ..Options::default() };
        assert!(matches!(named.load_config(), Err(LoadError::Missing(_))));
    }
}
