//! The service that carries out a command: gpreemptd, or a private session.
//!
//! Where gpreemptd runs, or another command has a private session, the command is a client of that.
//! Where none runs, [`ServiceClient::open`] starts the service in this process, and the command is
//! a client of its own. There is one code path for both.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gpreempt_daemon::config::{SchedulerConfig, Unmanaged};
use gpreempt_daemon::service::{self, Options, Owner, PrivateOptions, PrivateService};
use gpreempt_device::amd::KfdLocation;
use gpreempt_device::hardware::EMULATED_VARIABLE;
use gpreempt_device::nvidia::backend::ContextOptions;
use gpreempt_device::registry::Selection;
use gpreempt_wire::client::{Client, ClientError, ClientOptions};
use gpreempt_wire::process::Process;
use gpreempt_wire::reply::RefusalCode;
use gpreempt_wire::request::Role;
use gpreempt_wire::socket_path::SocketEnv;
use gpreempt_wire::statistics::{Snapshot, TaskSnapshot};

use crate::args::ChangeArgs;
use crate::failure::Failure;

/// The name of this program in the daemon's log.
pub(crate) const PROGRAM: &str = concat!("gpreempt ", env!("CARGO_PKG_VERSION"));
/// How long a service that another process starts at the same moment may take until it answers, or
/// one that was killed until it is gone.
const RIVAL_MAX: Duration = Duration::from_secs(2);
/// How often to try meanwhile.
const RIVAL_STEP: Duration = Duration::from_millis(20);

/// The running service; none if no service runs.
pub(crate) fn find() -> Result<Option<Client>, Failure> {
    match Client::connect(&ClientOptions::new(Role::Command, PROGRAM)) {
        Ok(client) => Ok(Some(client)),
        Err(error) if error.is_no_daemon() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The running service, for a command that needs gpreemptd.
pub(crate) fn require(role: Role) -> Result<Client, Failure> {
    Client::connect(&ClientOptions::new(role, PROGRAM)).map_err(|error| match died_at() {
        Some(path) if error.is_no_daemon() => Failure::input(daemon_died_message(&path)),
        Some(_) | None => error.into(),
    })
}

/// The service that schedules a process: gpreemptd, or the private session of another command.
pub(crate) fn require_for(pid: u32) -> Result<Client, Failure> {
    if let Some(client) = find()? {
        return Ok(client);
    }
    Err(match died_at() {
        Some(path) => Failure::input(daemon_died_message(&path)),
        None => Failure::input(format_args!(
            "process {pid} is not attached; attach it first (gpreempt attach {pid} -p PRIORITY)"
        )),
    })
}

/// Adds to a failure which command to use if gpreemptd is running.
pub(crate) fn instead(failure: Failure, instead: &str) -> Failure {
    match (failure, find()) {
        (Failure::Input(why), Ok(Some(_))) => {
            Failure::input(format_args!("{why}; gpreemptd is running, so use {instead}"))
        }
        (failure, _) => failure,
    }
}

/// The socket of a daemon that was killed. The socket of a private session that was killed is not
/// reported: its keeper has undone everything, and no daemon is missing.
pub(crate) fn died_at() -> Option<PathBuf> {
    if Owner::was_private() {
        return None;
    }
    let paths = SocketEnv::current().connect_paths();
    paths.into_iter().find(|path| {
        std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket())
    })
}

pub(crate) fn daemon_died_message(path: &Path) -> String {
    format!(
        "gpreemptd has died (no daemon listens at {}); start it again with `systemctl start \
         gpreemptd` or `gpreemptd --foreground`",
        path.display()
    )
}

pub(crate) fn snapshot(client: &mut Client) -> Result<Snapshot, Failure> {
    Snapshot::from_json(&client.snapshot()?).map_err(|error| {
        Failure::run(format_args!("gpreemptd's snapshot cannot be read: {error}; update both"))
    })
}

/// What the service knows of a process.
pub(crate) fn task(client: &mut Client, pid: u32) -> Result<Option<TaskSnapshot>, Failure> {
    Ok(snapshot(client)?.tasks.into_iter().find(|task| task.pid == pid))
}

/// The process that has that pid now.
pub(crate) fn process(pid: u32) -> Result<Process, Failure> {
    // In a message pid 0 is the sender.
    let process = Process::new(pid, 0).filter(|process| *process != Process::SENDER);
    process.ok_or_else(|| Failure::input(format_args!("there is no process {pid}")))
}

/// After a refusal, and where no daemon could be asked, nothing was changed, so the input is at
/// fault. After any other error the result is unknown.
impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match &error {
            // The daemon may have begun the request, and undoes it.
            ClientError::Refused(refusal) if refusal.code == RefusalCode::Stopping => {
                Self::run(error)
            }
            ClientError::NoDaemon { .. }
            | ClientError::PermissionDenied { .. }
            | ClientError::BadPath { .. }
            | ClientError::Version { .. }
            | ClientError::Refused(_) => Self::input(error),
            ClientError::TimedOut { .. }
            | ClientError::HungUp
            | ClientError::Garbled(_)
            | ClientError::UnexpectedReply { .. }
            | ClientError::Page(_)
            | ClientError::Os(_) => Self::run(error),
        }
    }
}

/// How to start a private session, if one is needed.
#[derive(Debug)]
pub(crate) struct SessionOptions<'a> {
    /// The command, such as `gpreempt attach`.
    pub(crate) command: &'static str,
    pub(crate) driver: &'a ChangeArgs,
    pub(crate) scheduler: SchedulerConfig,
    pub(crate) context_options: ContextOptions,
    pub(crate) expects_others: bool,
    /// What happens to processes that the command does not name.
    pub(crate) unmanaged: Unmanaged,
    /// The file for what was noted of holds.
    pub(crate) hold_records: Option<&'a Path>,
}

impl<'a> SessionOptions<'a> {
    /// A session with the default scheduler.
    pub(crate) fn new(command: &'static str, driver: &'a ChangeArgs) -> Self {
        let scheduler = SchedulerConfig::default();
        Self {
            command,
            driver,
            scheduler,
            context_options: ContextOptions::default(),
            expects_others: true,
            unmanaged: Unmanaged::Ignore,
            hold_records: None,
        }
    }

    /// A session that only suspends processes: it needs neither holds nor time slices.
    pub(crate) fn to_suspend(command: &'static str, driver: &'a ChangeArgs) -> Self {
        let scheduler = SchedulerConfig { hold: false, ..SchedulerConfig::default() };
        Self { scheduler, expects_others: false, ..Self::new(command, driver) }
    }

    fn service_options(&self) -> Options {
        let scheduler = SchedulerConfig {
            allow_untested_driver: self.driver.allow_untested_driver,
            unmanaged: self.unmanaged,
            ..self.scheduler
        };
        let Self { context_options, expects_others, .. } = *self;
        let command = self.command.to_owned();
        Options {
            devices: Selection { emulated: emulated(self.driver), ..environment_devices() },
            private: Some(PrivateOptions {
                command,
                scheduler,
                context_options,
                expects_others,
                hold_records: self.hold_records.map(Path::to_owned),
            }),
            ..Options::default()
        }
    }
}

/// A client of the service, and the service itself if it runs in this process.
#[derive(Debug)]
pub(crate) struct ServiceClient {
    pub(crate) client: Client,
    private: Option<PrivateService>,
}

impl ServiceClient {
    /// A client of the running service; none if no service runs.
    pub(crate) fn of_running() -> Result<Option<Self>, Failure> {
        Ok(find()?.map(|client| Self { client, private: None }))
    }

    /// A client of the running service, or of a private session that is started for this command.
    pub(crate) fn open(options: &SessionOptions<'_>) -> Result<Self, Failure> {
        Self::of_running()?.map_or_else(|| Self::start(options), Ok)
    }

    fn start(options: &SessionOptions<'_>) -> Result<Self, Failure> {
        let until = Instant::now() + RIVAL_MAX;
        let service = loop {
            let had_rival = Owner::of_private_session().is_some();
            let failure = match PrivateService::start(options.service_options()) {
                Ok(service) => break service,
                Err(failure) if options.expects_others => return Err(failure.into()),
                Err(failure) => failure.into(),
            };
            if let Some(client) = find_rival(until)? {
                return Ok(Self { client, private: None });
            }
            // A process that is killed closes its socket first and counts as the owner of the
            // lock until all of its memory is gone.
            if !had_rival || Instant::now() >= until {
                return Err(failure);
            }
        };
        let paths = vec![service.socket().to_owned()];
        let options = ClientOptions { paths, ..ClientOptions::new(Role::Command, PROGRAM) };
        Ok(Self { client: Client::connect(&options)?, private: Some(service) })
    }

    /// Whether the service runs in this process and ends with it.
    pub(crate) const fn is_private(&self) -> bool {
        self.private.is_some()
    }

    /// Another session with the same service.
    pub(crate) fn another(&self, role: Role) -> Result<Client, Failure> {
        let mut options = ClientOptions::new(role, PROGRAM);
        if let Some(service) = &self.private {
            options.paths = vec![service.socket().to_owned()];
        }
        Ok(Client::connect(&options)?)
    }

    /// The problems of a private session since the last call.
    pub(crate) fn take_problems(&self) -> Vec<String> {
        self.private.as_ref().map(PrivateService::take_problems).unwrap_or_default()
    }

    /// Whether a private session ended by itself. [`Self::end`] says why.
    pub(crate) fn has_ended(&self) -> bool {
        self.private.as_ref().is_some_and(PrivateService::has_ended)
    }

    /// Ends a private session, which undoes everything that it changed.
    pub(crate) fn end(self) -> Result<(), Failure> {
        drop(self.client);
        self.private.map_or(Ok(()), |service| service.stop().map_err(Failure::from))
    }
}

/// The service of another command that started one at the same moment: a command that only suspends
/// a process needs none of its own then. None if that one ends, or does not answer in time.
fn find_rival(until: Instant) -> Result<Option<Client>, Failure> {
    while Owner::of_private_session().is_some() && Instant::now() < until {
        if let Some(client) = find()? {
            return Ok(Some(client));
        }
        std::thread::sleep(RIVAL_STEP);
    }
    Ok(None)
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

impl From<service::Failure> for Failure {
    fn from(failure: service::Failure) -> Self {
        match failure {
            service::Failure::Input(sentence) => Self::input(sentence),
            service::Failure::Work(sentence) => Self::run(sentence),
        }
    }
}

/// The devices of this machine, and the emulated ones that environment variables name.
pub(crate) fn environment_devices() -> Selection {
    let (amd, emulated_kfd) = match KfdLocation::from_environment() {
        KfdLocation::Kernel => (true, Vec::new()),
        KfdLocation::Emulated(folder) => (false, vec![folder]),
    };
    let value = std::env::var_os(EMULATED_VARIABLE).unwrap_or_default();
    let paths = std::env::split_paths(&value).filter(|path| !path.as_os_str().is_empty());
    Selection { nvidia: true, amd, emulated_kfd, emulated: paths.map(absolute).collect() }
}

/// The emulators that a private session schedules: those of the option, or of the environment.
fn emulated(args: &ChangeArgs) -> Vec<PathBuf> {
    match args.emulated.is_empty() {
        true => environment_devices().emulated,
        false => args.emulated.iter().cloned().map(absolute).collect(),
    }
}

fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_wire::reply::Refusal;

    #[test]
    fn a_refusal_is_an_input_error_and_a_silent_daemon_is_not() {
        let refused = |code, sentence| {
            Failure::from(ClientError::Refused(Box::new(Refusal::new(code, sentence))))
        };
        let denied = refused(RefusalCode::NotPermitted, "not yours; ask its owner");
        assert!(matches!(denied, Failure::Input(line) if line == "not yours; ask its owner"));
        let stopping = refused(RefusalCode::Stopping, "gpreemptd is about to end");
        assert!(matches!(stopping, Failure::Run(_)));
        assert!(matches!(Failure::from(ClientError::HungUp), Failure::Run(_)));
    }

    #[test]
    fn no_process_has_pid_zero() {
        assert!(process(0).is_err() && process(u32::MAX).is_err());
        assert_eq!(process(7).ok().map(Process::pid), Some(7));
    }

    #[test]
    fn the_option_names_emulators_and_paths_become_absolute() {
        let args = ChangeArgs { emulated: vec!["gpu".into()], ..ChangeArgs::default() };
        assert_eq!(emulated(&args), [std::env::current_dir().unwrap().join("gpu")]);
        let options = SessionOptions::new("gpreempt attach", &args).service_options();
        assert_eq!(options.devices.emulated.len(), 1);
        assert!(options.private.is_some_and(|private| private.command == "gpreempt attach"));
    }
}
