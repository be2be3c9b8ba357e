//! The way of a command to the service that does what it asks for.
//!
//! Where gpreemptd runs, or another command has a private session, the command is a client of that.
//! Where none runs, the command starts the service in its own process and is a client of its own.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use gpreempt_daemon::config::SchedulerConfig;
use gpreempt_daemon::service::{self, Options, Owner, PrivateOptions, PrivateService};
use gpreempt_device::amd::SiteName;
use gpreempt_device::hardware::EMULATED_VARIABLE;
use gpreempt_device::nvidia::backend::Wishes;
use gpreempt_device::registry::Selection;
use gpreempt_wire::client::{Client, ClientOptions};
use gpreempt_wire::role::Role;

use crate::args::ChangeArgs;
use crate::daemon::{self, PROGRAM};
use crate::failure::Failure;

/// How long a service that another process starts at the same moment may take until it answers.
const RIVAL_MAX: Duration = Duration::from_secs(2);
/// How often it is tried meanwhile.
const RIVAL_STEP: Duration = Duration::from_millis(20);

/// What a private session is started with, if one is needed.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    /// The command, such as `gpreempt attach`.
    pub(crate) command: &'static str,
    pub(crate) driver: &'a ChangeArgs,
    pub(crate) scheduler: SchedulerConfig,
    pub(crate) wishes: Wishes,
    pub(crate) expects_others: bool,
}

/// A client of the service, and the service itself if it runs in this process.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) client: Client,
    service: Option<PrivateService>,
}

impl<'a> Wanted<'a> {
    /// The usual scheduler for that command.
    pub(crate) fn new(command: &'static str, driver: &'a ChangeArgs) -> Self {
        let scheduler = SchedulerConfig::default();
        Self { command, driver, scheduler, wishes: Wishes::default(), expects_others: true }
    }

    /// The same for a command that only stops processes: it needs neither holds nor time slices.
    pub(crate) fn to_stop(command: &'static str, driver: &'a ChangeArgs) -> Self {
        let scheduler = SchedulerConfig { hold: false, ..SchedulerConfig::default() };
        Self { scheduler, expects_others: false, ..Self::new(command, driver) }
    }

    fn options(&self) -> Options {
        let site = SiteName::from_environment();
        let (amd, emulated_kfd) = match site {
            SiteName::Kernel => (true, Vec::new()),
            SiteName::Emulated(folder) => (false, vec![folder]),
        };
        let scheduler = SchedulerConfig {
            allow_untested_driver: self.driver.allow_untested_driver,
            ..self.scheduler
        };
        let Self { wishes, expects_others, .. } = *self;
        let command = self.command.to_owned();
        Options {
            devices: Selection { nvidia: true, amd, emulated_kfd, emulated: emulated(self.driver) },
            private: Some(PrivateOptions { command, scheduler, wishes, expects_others }),
            ..Options::default()
        }
    }
}

impl Link {
    /// A client of the service that runs, or of one that is started for this command.
    pub(crate) fn open(wanted: &Wanted<'_>) -> Result<Self, Failure> {
        match daemon::find()? {
            Some(client) => Ok(Self { client, service: None }),
            None => Self::start(wanted),
        }
    }

    /// Starts a private session.
    fn start(wanted: &Wanted<'_>) -> Result<Self, Failure> {
        let service = match PrivateService::start(wanted.options()) {
            Ok(service) => service,
            Err(failure) if wanted.expects_others => return Err(of_service(failure)),
            Err(failure) => return Self::beside_rival(of_service(failure)),
        };
        let options = ClientOptions {
            paths: vec![service.socket().to_owned()],
            ..ClientOptions::new(Role::Command, PROGRAM)
        };
        let client = Client::connect(&options).map_err(|error| daemon::failure(&error))?;
        Ok(Self { client, service: Some(service) })
    }

    /// A command that only stops a process needs no session of its own if another command started
    /// one at the same moment.
    fn beside_rival(failure: Failure) -> Result<Self, Failure> {
        let until = Instant::now() + RIVAL_MAX;
        while Owner::of_private_session().is_some() {
            if let Some(client) = daemon::find()? {
                return Ok(Self { client, service: None });
            }
            if Instant::now() >= until {
                break;
            }
            std::thread::sleep(RIVAL_STEP);
        }
        Err(failure)
    }

    /// Whether the service runs in this process and ends with it.
    pub(crate) const fn is_private(&self) -> bool {
        self.service.is_some()
    }

    /// Another session with the same service.
    pub(crate) fn another(&self, role: Role) -> Result<Client, Failure> {
        let mut options = ClientOptions::new(role, PROGRAM);
        if let Some(service) = &self.service {
            options.paths = vec![service.socket().to_owned()];
        }
        Client::connect(&options).map_err(|error| daemon::failure(&error))
    }

    /// What did not work in a private session since the last call.
    pub(crate) fn take_problems(&self) -> Vec<String> {
        self.service.as_ref().map(PrivateService::take_problems).unwrap_or_default()
    }

    /// Whether a private session ended by itself. [`Self::end`] says why.
    pub(crate) fn has_ended(&self) -> bool {
        self.service.as_ref().is_some_and(PrivateService::has_ended)
    }

    /// Ends a private session: everything that it changed is undone.
    pub(crate) fn end(self) -> Result<(), Failure> {
        drop(self.client);
        self.service.map_or(Ok(()), |service| service.stop().map_err(of_service))
    }
}

/// Refuses to begin a session beside a private one: two would schedule the same GPUs.
pub(crate) fn refuse_beside_private_session() -> Result<(), Failure> {
    match Owner::of_private_session() {
        Some(owner) => Err(Failure::input(format_args!(
            "{owner} controls the GPUs; end it first, or use `gpreempt set`"
        ))),
        None => Ok(()),
    }
}

fn of_service(failure: service::Failure) -> Failure {
    match failure {
        service::Failure::Input(sentence) => Failure::input(sentence),
        service::Failure::Work(sentence) => Failure::run(sentence),
    }
}

/// The emulators that a private session schedules: those of the option, or of the environment.
fn emulated(args: &ChangeArgs) -> Vec<PathBuf> {
    let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    if !args.emulated.is_empty() {
        return args.emulated.iter().cloned().map(absolute).collect();
    }
    let value = std::env::var_os(EMULATED_VARIABLE).unwrap_or_default();
    let paths = std::env::split_paths(&value).filter(|path| !path.as_os_str().is_empty());
    paths.map(absolute).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_names_emulators_and_paths_become_absolute() {
        let args = ChangeArgs { emulated: vec!["gpu".into()], ..ChangeArgs::default() };
        assert_eq!(emulated(&args), [std::env::current_dir().unwrap().join("gpu")]);
        let wanted = Wanted::new("gpreempt attach", &args);
        let options = wanted.options();
        assert_eq!(options.devices.emulated.len(), 1);
        assert!(options.private.is_some_and(|private| private.command == "gpreempt attach"));
    }
}
