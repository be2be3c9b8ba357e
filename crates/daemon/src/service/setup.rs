//! From nothing to a daemon that is ready.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use gpreempt_core::driver::Driver;
use gpreempt_device::controller::{Numbering, Waker};
use gpreempt_device::emulated::EmulatedBackend;
use gpreempt_device::journal::Journal;
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::ledger::Ledger;
use gpreempt_device::nvidia::backend::NvidiaBackend;
use gpreempt_device::nvidia::hold::GripSettings;
use gpreempt_device::urgency;
use gpreempt_wire::socket_path::Surroundings;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::alarm::Alarm;
use super::amd;
use super::backends::Backends;
use super::gate::{GateError, Passed, driver_for_changes, for_private_session};
use super::guard::{Found, Guard};
use super::lock::{LockError, Owner};
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
use crate::config::{Config, DEFAULT_PATH, LoadError, LogLevel, ServiceConfig};

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
    fn prepare(self, level: LogLevel) -> std::io::Result<(Signals, Log, Notifier)> {
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
    pub(super) fn start(options: Options, host: Host) -> Result<Self, Failure> {
        let text = |error: std::io::Error| error.to_string();
        let input = |sentence: String| Failure::Input(sentence);
        let config = options.load_config().map_err(|error| input(error.to_string()))?;
        let accounts = Accounts::load().map_err(text)?;
        urgency::come_first();
        // Before anything else happens: from here on a signal ends us in good order.
        let (signals, mut log, notifier) = host.prepare(config.service.log).map_err(text)?;
        let poller = Poller::new().map_err(text)?;
        let socket = options.socket_path(&config).map_err(input)?;
        let sessions = Sessions::listen(&socket, &poller)
            .map_err(|problem| explain_listen(&options, problem))?;
        let command = options.private.as_ref().map(|private| private.command.as_str());
        let (guard, ledger, found) = Guard::start(options.state.as_deref(), command)
            .map_err(|error| explain_lock(&options, error))?;
        tell_of_left_behind(&found, &mut log);
        let waker = Waker::new().map_err(text)?;
        poller.watch(&signals, Source::Signals).map_err(text)?;
        poller.watch(&waker, Source::Devices).map_err(text)?;
        let scrape = config.metrics.listen.map(|address| Scrape::listen(address, &poller));
        let backends = controllers(&options, &config, &ledger, &waker, &mut log)?;
        let (orders, registrations, problem) = match command {
            Some(_) => (Orders::unkept(), Vec::new(), None),
            None => Orders::load(guard.root()),
        };
        problem.into_iter().for_each(|problem| log.warn(problem));
        let driver = Driver::new(config.scheduler.core).map_err(|error| error.to_string())?;
        let mut service = Self {
            environment_names: match command {
                // A command names the processes itself.
                Some(_) => Default::default(),
                None => config.environment_names(),
            },
            own_uid: rustix::process::geteuid().as_raw(),
            started_ns: monotonic_ns(),
            notifier,
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
    if let Some(other) = &found.other {
        log.warn(format_args!("{other} of another user controls GPUs as well; end it"));
    }
    if let Some(problem) = &found.problem {
        log.warn(format_args!("something was left behind that cannot be undone yet: {problem}"));
    }
}

/// Why the socket cannot be had: the owner of the lock has it, if that is a private session.
fn explain_listen(options: &Options, problem: String) -> Failure {
    let journal = match &options.state {
        Some(folder) => Journal::at(folder.clone()),
        None => Journal::open(),
    };
    let owner = journal.ok().and_then(|journal| Owner::living(journal.root()));
    match owner.filter(Owner::is_private) {
        Some(owner) => explain_lock(options, LockError::Private(owner)),
        None => Failure::Work(problem),
    }
}

/// Why the journal cannot be had. For a command it is the wrong moment, not a failure.
fn explain_lock(options: &Options, error: LockError) -> Failure {
    match error {
        LockError::Os(error) => Failure::Work(format!(
            "nothing can be undone without a journal, so nothing is done: {error}"
        )),
        held @ (LockError::Private(_) | LockError::Daemon { .. } | LockError::Unnamed(_)) => {
            match &options.private {
                Some(_) => Failure::Input(held.to_string()),
                None => Failure::Work(held.to_string()),
            }
        }
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
    let numbering = |backends: &Backends| {
        let index = u16::try_from(backends.len()).map_err(|_| "too many devices".to_owned())?;
        // Starts are more than a millisecond apart.
        Ok::<Numbering, String>(Numbering::of(index).since(monotonic_ns() >> 20))
    };
    if options.use_nvidia {
        match nvidia_allowed(options, config.scheduler.allow_untested_driver) {
            Ok(Passed { version, notes }) => {
                let numbering = numbering(&backends)?;
                let nvidia = NvidiaBackend::new(ledger.clone(), numbering, waker.clone());
                let mut nvidia = nvidia.map_err(|error| error.to_string())?;
                log.info(format_args!("NVIDIA driver {version}"));
                notes.into_iter().for_each(|note| log.warn(note));
                if let Some(private) = &options.private {
                    nvidia.set_wishes(private.wishes);
                }
                if config.scheduler.hold {
                    let hold_max = config.scheduler.hold_max;
                    let settings = GripSettings { hold_max, ..GripSettings::default() };
                    let problem = nvidia.enable_holds(settings);
                    if let Some(problem) = problem.map_err(|error| error.to_string())? {
                        log.warn(problem);
                    }
                }
                backends.push(Box::new(nvidia));
            }
            Err(GateError::Absent(why)) => log.info(why),
            // A private session has other GPUs then, or it would not have started.
            Err(why) if options.private.is_some() => log.info(why),
            Err(GateError::Untested(version)) => log.warn(format_args!(
                "NVIDIA driver {version} was never tried with gpreempt, so it is left alone; if \
                 you want to be the first, set allow_untested_driver"
            )),
            Err(why @ (GateError::Unknown(_) | GateError::Surrounding(_))) => log.warn(why),
        }
    }
    for name in amd::sites(options) {
        let numbering = numbering(&backends)?;
        if let Some(amd) = amd::controller(&name, ledger, numbering, waker, log) {
            backends.push(Box::new(amd));
        }
    }
    for socket in &options.emulated {
        let numbering = numbering(&backends)?;
        let emulated =
            EmulatedBackend::new(socket.clone(), ledger.clone(), numbering, waker.clone());
        backends.push(Box::new(emulated.map_err(|error| error.to_string())?));
        log.info(format_args!("emulated GPUs at {}", socket.display()));
    }
    backends.set_rescan(config.service.rescan);
    Ok(backends)
}

/// Whether NVIDIA's driver may be used. A session that a user starts by hand looks at MIG and
/// sandboxes as well.
fn nvidia_allowed(options: &Options, allow_untested: bool) -> Result<Passed, GateError> {
    match &options.private {
        Some(_) => for_private_session(allow_untested),
        None => {
            driver_for_changes(allow_untested).map(|version| Passed { version, notes: Vec::new() })
        }
    }
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
