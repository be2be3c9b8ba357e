//! Private sessions: the service inside a command, for as long as that command runs.
//!
//! `gpreempt attach`, `run`, `suspend` and `preempt` start one where no daemon runs. It is the
//! daemon's loop in a thread of the command, with the same socket, journal, keeper and undo. It
//! must not handle the command's signals, applies no rules and no environment, and saves no user
//! settings. The command is an ordinary client of its socket.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gpreempt_core::time::Duration as Time;
use gpreempt_device::amd::queue::users;
use gpreempt_device::nvidia::backend::ContextOptions;
use gpreempt_device::nvidia::driver::{GateError, for_private_session};
use gpreempt_device::nvidia::process_discovery;
use gpreempt_device::process::{ProcessInfo, ProcessKey};
use gpreempt_device::registry::sites;

use super::clients::request_error::RequestError;
use super::errors::LoopError;
use super::poller::PollSource;
use super::processes::Named;
use super::setup::Host;
use super::signals::{Signals, StopHandle};
use super::undo::lock::system_owner;
use super::{Failure, Options, Service};
use crate::config::{Config, LogLevel, SchedulerConfig, ServiceConfig};

/// The longest time until all processes on the devices are known.
const SETTLE_MAX: Duration = Duration::from_secs(2);
/// After this time without a new process all of them are known.
const SETTLE_QUIET: Duration = Duration::from_millis(20);
const SETTLE_STEP: Time = Time::from_millis(2);
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateOptions {
    /// The name of the command, such as `gpreempt attach`.
    pub command: String,
    /// The part of the configuration that the command's arguments decide.
    pub scheduler: SchedulerConfig,
    /// NVIDIA settings of controlled processes beside their priority.
    pub context_options: ContextOptions,
    /// Whether time slices are set before another process uses the GPU, so that its first request
    /// is fast. A session that only suspends processes does not need that.
    pub expects_others: bool,
    /// The file for what was noted of holds, written at the end.
    pub hold_records: Option<PathBuf>,
}

/// A private session. Dropping it undoes everything that it changed.
#[derive(Debug)]
pub struct PrivateService {
    thread: Option<JoinHandle<Result<(), Failure>>>,
    stopper: StopHandle,
    problems: Receiver<String>,
    socket: PathBuf,
}

impl PrivateService {
    /// Starts the service in a thread and waits until it is ready.
    ///
    /// # Errors
    /// Why it could not start; nothing was changed. [`Failure::Input`] if there is no device to
    /// control, or another process controls the devices.
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
            // It ended before it was ready, with an error.
            service.end()?;
            return Err(Failure::Work("the service did not start".to_owned()));
        }
        Ok(service)
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Problems since the last call, one sentence each.
    pub fn take_problems(&self) -> Vec<String> {
        self.problems.try_iter().collect()
    }

    /// Whether it ended by itself. [`Self::stop`] returns the reason.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Undoes all changes and ends the service.
    ///
    /// # Errors
    /// What could not be undone, or why the service ended by itself.
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

/// The body of the thread.
fn serve(
    options: Options,
    signals: Signals,
    problems: Sender<String>,
    ready: &Sender<()>,
) -> Result<(), Failure> {
    let mut service = Service::start(options, Host::Command { signals, problems })?;
    let result = service.settle().and_then(|()| {
        let _ = ready.send(());
        service.serve().map_err(Failure::from)
    });
    let stopped = service.stop(Ok(())).map_err(Failure::from);
    result.and(stopped)
}

/// Whether there is a device to control, checked before anything is created.
fn check_devices(options: &Options) -> Result<(), Failure> {
    let devices = &options.devices;
    if !devices.emulated.is_empty() || sites(devices).iter().any(|site| site.open().is_ok()) {
        return Ok(());
    }
    let private = options.private.as_ref().map(PrivateOptions::rules).unwrap_or_default();
    private.nvidia_gate().map_err(|error| Failure::Input(error.to_string()))
}

/// Checks of a private session beyond those of a daemon: its user names each process and needs to
/// know why it cannot be controlled.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PrivateRules {
    allow_untested_driver: bool,
    pub(crate) expects_others: bool,
}

impl PrivateRules {
    fn nvidia_gate(self) -> Result<(), GateError> {
        for_private_session(self.allow_untested_driver).map(|_| ())
    }

    /// Whether a process has the NVIDIA driver open and may be controlled, or why not. Its priority
    /// applies to its first context. Not for the loop.
    pub(crate) fn look(self, key: ProcessKey) -> Result<(), String> {
        self.nvidia_gate().map_err(|error| error.to_string())?;
        match process_discovery::inspect_process(key.pid).map(|process| process.clients) {
            Err(error) | Ok(Err(error)) => Err(error.to_string()),
            Ok(Ok(_)) => Ok(()),
        }
    }

    /// Why a session with these kinds of devices cannot control a process that is not tracked.
    pub(crate) fn explain_untracked(
        self,
        key: ProcessKey,
        on_nvidia: &Result<(), String>,
        kinds: &[&str],
    ) -> RequestError {
        let process = Named(key);
        let sentence = match (self.nvidia_gate(), on_nvidia) {
            (Ok(()), Ok(())) => format!("{process} has no GPU work to stop yet"),
            (Ok(()), Err(why)) => why.clone(),
            (Err(why), _) if kinds.contains(&"amd") => {
                format!("{process} uses no AMD GPU, and {why}")
            }
            (Err(why), _) => format!("{process} uses no emulated GPU, and {why}"),
        };
        RequestError::NotOnPrivateGpu(sentence)
    }
}

impl PrivateOptions {
    /// The configuration of a private session: no rules, no metrics, and no file.
    pub(crate) fn config(&self) -> Config {
        let service = ServiceConfig { log: LogLevel::Warn, ..ServiceConfig::default() };
        Config { scheduler: self.scheduler, service, ..Config::default() }
    }

    pub(crate) const fn rules(&self) -> PrivateRules {
        let allow_untested_driver = self.scheduler.allow_untested_driver;
        PrivateRules { allow_untested_driver, expects_others: self.expects_others }
    }
}

impl Service {
    /// Waits until the processes on all devices are known. A daemon need not wait; a command names
    /// a process and needs an answer.
    fn settle(&mut self) -> Result<(), Failure> {
        let begin = Instant::now();
        let (mut known, mut since) = (usize::MAX, begin);
        let is_prompt = !self.devices.backends.kinds().iter().any(|kind| *kind != "nvidia");
        loop {
            self.iterate()?;
            let now = Instant::now();
            let count = self.processes.table.keys().len();
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
            // Clients that are connected already are answered when the processes are known.
            let is_client = |source: &PollSource| {
                matches!(source, PollSource::Clients | PollSource::Session(_))
            };
            let (clients, others): (Vec<_>, Vec<_>) = ready.into_iter().partition(is_client);
            if !clients.is_empty() {
                // They stay ready, so the next wait would return at once.
                std::thread::sleep(Duration::from_nanos(SETTLE_STEP.as_nanos()));
            }
            self.dispatch_all(others)?;
        }
    }

    /// Whether every emulator has answered, and every process that KFD names is tracked.
    fn knows_all(&self) -> bool {
        if self.silent_emulator().is_some() {
            return false;
        }
        let own = std::process::id();
        let sites = sites(&self.options.devices);
        let mut pids = sites.iter().flat_map(|site| users(&site.paths().sysfs).unwrap_or_default());
        pids.all(|pid| {
            let info = ProcessInfo::read(pid).ok().filter(|info| pid != own && !info.zombie);
            info.is_none_or(|info| self.processes.table.get(info.key).is_some())
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

    /// Ends a private session of a user when root begins to control the GPUs, with its daemon or
    /// with a private session.
    pub(crate) fn check_for_root(&self) -> Result<(), LoopError> {
        if self.options.private.is_none() {
            return Ok(());
        }
        system_owner(self.recovery.journal())
            .map_or(Ok(()), |owner| Err(LoopError::RootControls(owner)))
    }
}
