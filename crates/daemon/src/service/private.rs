//! The service inside of a command, for as long as that command runs.
//!
//! `gpreempt attach`, `run`, `suspend` and `preempt` start it where no daemon runs. It is the
//! daemon's loop in a thread of the command, with the same socket, journal, keeper and undo. It
//! leaves the command's signals alone, listens to no rules and no environment, and keeps no orders
//! beyond its end. The command is an ordinary client of its socket.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gpreempt_core::time::Duration as Time;
use gpreempt_device::amd::queue::users;
use gpreempt_device::nvidia::backend::Wishes;
use gpreempt_device::nvidia::gate::{GateError, for_private_session};
use gpreempt_device::nvidia::survey;
use gpreempt_device::process::{ProcessInfo, ProcessKey};
use gpreempt_device::registry::sites;

use super::clients::request_error::RequestError;
use super::failure::LoopError;
use super::poller::Source;
use super::processes::changes::drives_display;
use super::setup::Host;
use super::signals::{Signals, Stopper};
use super::undo::lock::system_daemon_beside;
use super::{Failure, Options, Service};
use crate::config::{Config, LogLevel, SchedulerConfig, ServiceConfig};

/// How long a session waits at its start for the devices to say which processes use them.
const SETTLE_MAX: Duration = Duration::from_secs(2);
/// How long nothing new has to come until it is taken to be all.
const SETTLE_QUIET: Duration = Duration::from_millis(20);
/// How often it is looked meanwhile.
const SETTLE_STEP: Time = Time::from_millis(2);

/// What a private session is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateOptions {
    /// The command that it belongs to, such as `gpreempt attach`.
    pub command: String,
    /// The part of the configuration that the command's arguments decide.
    pub scheduler: SchedulerConfig,
    /// What adopted processes get on NVIDIA beside their priority.
    pub wishes: Wishes,
    /// Whether time slices are set before another process uses the GPU, so that its first request
    /// is fast. A session that only stops processes need not.
    pub expects_others: bool,
}

/// A private session. Dropping it undoes everything that it changed.
#[derive(Debug)]
pub struct PrivateService {
    thread: Option<JoinHandle<Result<(), Failure>>>,
    stopper: Stopper,
    problems: Receiver<String>,
    socket: PathBuf,
}

impl PrivateService {
    /// Starts the service in a thread and waits until it answers.
    ///
    /// # Errors
    /// Why it could not start: nothing was changed then. [`Failure::Input`] if there is no device
    /// to control, or another process controls the devices.
    pub fn start(options: Options) -> Result<Self, Failure> {
        check_devices(&options)?;
        let socket = options.socket_path(&Config::default()).map_err(|_| {
            Failure::Input("XDG_RUNTIME_DIR is not set; log in properly or become root".to_owned())
        })?;
        let (signals, stopper) =
            Signals::of_command().map_err(|error| Failure::Work(error.to_string()))?;
        let (problem_sender, problems) = channel();
        let (ready_sender, ready) = channel();
        let thread = std::thread::Builder::new()
            .name("gpreempt-service".to_owned())
            .spawn(move || serve(options, signals, problem_sender, &ready_sender))
            .map_err(|error| Failure::Work(error.to_string()))?;
        let mut service = Self { thread: Some(thread), stopper, problems, socket };
        if ready.recv().is_err() {
            // It ended before it was ready, and says why.
            service.end()?;
            return Err(Failure::Work("the service did not start".to_owned()));
        }
        Ok(service)
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What did not work since the last call: one sentence each.
    pub fn take_problems(&self) -> Vec<String> {
        self.problems.try_iter().collect()
    }

    /// Whether it ended by itself. [`Self::stop`] says why.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Undoes everything and ends.
    ///
    /// # Errors
    /// What could not be undone, or why the service ended by itself before.
    pub fn stop(mut self) -> Result<(), Failure> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Failure> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.stopper.stop();
        thread.join().unwrap_or_else(|_| {
            Err(Failure::Work("the service failed; the keeper undoes what it changed".to_owned()))
        })
    }
}

impl Drop for PrivateService {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// The thread's whole life. Says once that it is ready.
fn serve(
    options: Options,
    signals: Signals,
    problems: Sender<String>,
    ready: &Sender<()>,
) -> Result<(), Failure> {
    let mut service = Service::start(options, Host::Command { signals, problems })?;
    let settled = service.settle();
    let result = match settled {
        Ok(()) => {
            let _ = ready.send(());
            service.serve().map_err(Failure::from)
        }
        Err(failure) => Err(failure),
    };
    let stopped = service.stop(Ok(())).map_err(Failure::from);
    result.and(stopped)
}

/// Whether there is anything to control, before anything is made for it.
fn check_devices(options: &Options) -> Result<(), Failure> {
    let devices = &options.devices;
    if !devices.emulated.is_empty() || sites(devices).iter().any(|site| site.open().is_ok()) {
        return Ok(());
    }
    let private = options.private.as_ref().map(PrivateOptions::rules).unwrap_or_default();
    private.nvidia_gate().map_err(|error| Failure::Input(error.to_string()))
}

/// What a private session asks of processes beyond what a daemon does: its user names each of them
/// and wants to know what is wrong with it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PrivateRules {
    allow_untested_driver: bool,
    pub(crate) expects_others: bool,
}

impl PrivateRules {
    fn nvidia_gate(self) -> Result<(), GateError> {
        for_private_session(self.allow_untested_driver).map(|_| ())
    }

    /// Whether a process that was not met yet has the NVIDIA driver open and no context so far. A
    /// private session gives it its priority as soon as it has one.
    pub(crate) fn expects(self, key: ProcessKey) -> bool {
        self.nvidia_gate().is_ok()
            && survey::look(key.pid).is_ok_and(|process| process.clients.is_ok())
    }

    /// Refuses a priority for a process that drives a display.
    pub(crate) fn check_display(self, key: ProcessKey) -> Result<(), RequestError> {
        if drives_display(key.pid) { Err(RequestError::PriorityOnDisplay(key)) } else { Ok(()) }
    }

    /// Why a session with these kinds of devices cannot control a process that was not met.
    pub(crate) fn explain_stranger(self, key: ProcessKey, kinds: &[&str]) -> RequestError {
        let sentence = match self.nvidia_gate() {
            Ok(()) => match survey::look(key.pid).map(|process| process.clients) {
                Err(error) | Ok(Err(error)) => error.to_string(),
                Ok(Ok(_)) => format!("process {key} has no GPU work to stop yet"),
            },
            Err(why) if kinds.contains(&"amd") => {
                format!("process {key} uses no AMD GPU, and {why}")
            }
            Err(why) => format!("process {key} uses no emulated GPU, and {why}"),
        };
        RequestError::NotOnPrivateGpu(sentence)
    }
}

impl PrivateOptions {
    /// The configuration of such a session: no rules, no metrics, and no file.
    pub(super) fn config(&self) -> Config {
        let service = ServiceConfig { log: LogLevel::Warn, ..ServiceConfig::default() };
        Config { scheduler: self.scheduler, service, ..Config::default() }
    }

    pub(super) const fn rules(&self) -> PrivateRules {
        let allow_untested_driver = self.scheduler.allow_untested_driver;
        PrivateRules { allow_untested_driver, expects_others: self.expects_others }
    }
}

impl Service {
    /// Waits until the devices have said which processes use them. A daemon need not: it serves
    /// processes when it meets them. A command names one and wants an answer.
    fn settle(&mut self) -> Result<(), Failure> {
        let begin = Instant::now();
        let (mut known, mut since) = (usize::MAX, begin);
        let is_prompt = !self.devices.backends.kinds().iter().any(|kind| *kind != "nvidia");
        loop {
            self.turn()?;
            let now = Instant::now();
            let count = self.processes.roster.keys().len();
            if count != known {
                (known, since) = (count, now);
            }
            let is_quiet = is_prompt || now - since >= SETTLE_QUIET;
            if self.is_stopping || (is_quiet && self.knows_all()) {
                return Ok(());
            }
            if now - begin >= SETTLE_MAX {
                return self.explain_silence();
            }
            let ready = self.poller.wait(SETTLE_STEP).map_err(LoopError::Wait)?;
            // Clients that found the socket already are answered when the processes are known.
            let is_client =
                |source: &Source| matches!(source, Source::Clients | Source::Session(_));
            let (clients, others): (Vec<_>, Vec<_>) = ready.into_iter().partition(is_client);
            if !clients.is_empty() {
                // They stay ready, so the next wait would not be one.
                std::thread::sleep(Duration::from_nanos(SETTLE_STEP.as_nanos()));
            }
            self.dispatch_all(others)?;
        }
    }

    /// Whether every emulator has answered, and every process that KFD names was met.
    fn knows_all(&self) -> bool {
        if self.silent_emulator().is_some() {
            return false;
        }
        let own = std::process::id();
        let sites = sites(&self.options.devices);
        let mut pids =
            sites.iter().flat_map(|site| users(&site.places().sysfs).unwrap_or_default());
        pids.all(|pid| {
            let info = ProcessInfo::read(pid).ok().filter(|info| pid != own && !info.zombie);
            info.is_none_or(|info| self.processes.roster.get(info.key).is_some())
        })
    }

    fn silent_emulator(&self) -> Option<&PathBuf> {
        let devices = self.devices.backends.devices();
        let has_answered = |kind_index: usize| {
            devices.iter().any(|(kind, name)| {
                *kind == "emulated" && usize::try_from(name.id.0 >> 8).ok() == Some(kind_index)
            })
        };
        let kinds = self.devices.backends.kinds();
        let emulated = kinds.iter().enumerate().filter(|(_, kind)| **kind == "emulated");
        let mut pairs = emulated.zip(&self.options.devices.emulated);
        pairs.find(|((index, _), _)| !has_answered(*index)).map(|(_, socket)| socket)
    }

    /// What is said after a while in which not everything answered.
    fn explain_silence(&mut self) -> Result<(), Failure> {
        match self.silent_emulator() {
            Some(socket) => Err(Failure::Input(format!(
                "no emulator answers at {}; start one with `gpreempt-emu --socket {}`",
                socket.display(),
                socket.display()
            ))),
            None => Ok(()),
        }
    }

    /// Ends a private session of a user when root's daemon begins to control the GPUs.
    pub(super) fn check_for_system_daemon(&self) -> Result<(), LoopError> {
        if self.options.private.is_none() {
            return Ok(());
        }
        system_daemon_beside(self.guard.root())
            .map_or(Ok(()), |owner| Err(LoopError::SystemDaemon(owner)))
    }
}
