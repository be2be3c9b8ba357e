//! From nothing to a daemon that is ready.

use std::path::{Path, PathBuf};

use gpreempt_core::driver::Driver;
use gpreempt_device::controller::{Numbering, Waker};
use gpreempt_device::emulated::EmulatedBackend;
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::ledger::Ledger;
use gpreempt_device::nvidia::backend::NvidiaBackend;
use gpreempt_device::nvidia::driver::{Driver as NvidiaDriver, DriverError};
use gpreempt_device::nvidia::hold::GripSettings;
use gpreempt_device::urgency;
use gpreempt_wire::socket_path::Surroundings;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::alarm::Alarm;
use super::amd;
use super::backends::Backends;
use super::guard::{Found, Guard};
use super::hardware_check::{HardwareCheck, places};
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
use crate::config::{Config, DEFAULT_PATH, LoadError, ServiceConfig};

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
        let asked = places(&options, &backends.kinds());
        let hardware = HardwareCheck::start(asked, guard.journal().clone(), ledger, waker.clone())
            .map_err(text)?;
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
            pending_suspensions: Vec::new(),
            backlog: Default::default(),
            allowance: Default::default(),
            guard,
            hardware,
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
    let numbering = |backends: &Backends| {
        let index = u16::try_from(backends.len()).map_err(|_| "too many devices".to_owned())?;
        // Starts are more than a millisecond apart.
        Ok::<Numbering, String>(Numbering::of(index).since(monotonic_ns() >> 20))
    };
    if options.use_nvidia {
        match nvidia_allowed(config.scheduler.allow_untested_driver) {
            Ok(version) => {
                let numbering = numbering(&backends)?;
                let nvidia = NvidiaBackend::new(ledger.clone(), numbering, waker.clone());
                let mut nvidia = nvidia.map_err(|error| error.to_string())?;
                log.info(format_args!("NVIDIA driver {version}"));
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
            Err(Unfit::Absent(why)) => log.info(why),
            Err(Unfit::Refused(why)) => log.warn(why),
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

/// Why a driver is not used.
#[derive(Debug, PartialEq, Eq)]
enum Unfit {
    /// There is none.
    Absent(String),
    /// There is one, and nothing is changed through it.
    Refused(String),
}

/// The version of the driver, if something may be changed through it.
fn nvidia_allowed(allow_untested: bool) -> Result<String, Unfit> {
    match NvidiaDriver::find() {
        Ok(driver) => judge_driver(driver, allow_untested),
        Err(error @ (DriverError::Absent | DriverError::NoNode(_))) => {
            Err(Unfit::Absent(error.to_string()))
        }
        Err(error @ DriverError::Unknown(_)) => Err(Unfit::Refused(error.to_string())),
    }
}

fn judge_driver(driver: NvidiaDriver, allow_untested: bool) -> Result<String, Unfit> {
    let version = driver.version;
    match driver.branch {
        Some(branch) if branch.was_run() || allow_untested => Ok(version),
        Some(_) => Err(Unfit::Refused(format!(
            "NVIDIA driver {version} was never tried with gpreempt, so it is left alone; if you \
             want to be the first, set allow_untested_driver"
        ))),
        None => Err(Unfit::Refused(DriverError::Unknown(version).to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_device::nvidia::abi::branch::Branch;

    #[test]
    fn only_drivers_that_were_tried_are_used_unless_somebody_wants_to_be_the_first() {
        let judge = |version: &str, allow| {
            let branch = Branch::of(version);
            judge_driver(NvidiaDriver { version: version.to_owned(), branch }, allow)
        };
        assert_eq!(judge("580.159.04", false), Ok("580.159.04".to_owned()));
        assert!(matches!(judge("570.1.1", false), Err(Unfit::Refused(_))));
        assert!(judge("570.1.1", true).is_ok());
        assert!(matches!(judge("610.2", true), Err(Unfit::Refused(_))));
    }

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
