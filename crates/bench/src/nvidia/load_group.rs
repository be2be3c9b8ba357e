//! The load processes of a case, and the MPS server of those that are its clients. They start once
//! and run all measurements of the case.
//!
//! An idle context takes no time of the device, so a group of MPS clients and a group of others can
//! exist at once; only one group runs at a time.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::Nvidia;
use super::load_process::LoadProcess;
use super::mode::Family;
use super::requirements::{ParentDeath, Programs, found};
use crate::child::Child;
use crate::plan::Step;
use crate::results::Role;
use crate::round::Round;
use crate::suite::{Load, Work};

/// How long processes may take to end before they are killed.
const LEAVE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(10);

/// Processes that are measured together. Fields are dropped in this order.
#[derive(Debug)]
pub(super) struct LoadGroup {
    pub(super) loads: Vec<LoadProcess>,
    /// The server ends after its clients.
    _mps: Option<Mps>,
    case: String,
    family: Family,
    pub(super) folder: PathBuf,
    rounds: u64,
}

impl Nvidia {
    /// Takes the group of a case, or starts it; ends the groups of other cases. The caller returns
    /// it with [`Self::keep`] after a successful measurement.
    pub(super) fn group(&mut self, step: &Step<'_>, family: Family) -> Result<LoadGroup, String> {
        self.groups.retain(|group| group.case == step.case.name);
        let place = self.groups.iter().position(|group| group.family == family);
        if let Some(place) = place {
            let mut group = self.groups.swap_remove(place);
            if group.loads.iter_mut().all(|process| process.child.gone().is_none()) {
                return Ok(group);
            }
        }
        self.start_groups(step, family)
    }

    /// Ends the clients of MPS; their next measurement starts them again.
    pub(super) fn dismiss_mps(&mut self) {
        self.groups.retain(|group| group.family == Family::Plain);
    }

    pub(super) fn keep(&mut self, group: LoadGroup) {
        self.groups.push(group);
    }

    /// Starts the group of a family, and with it the groups of families that take long to start.
    fn start_groups(&mut self, step: &Step<'_>, family: Family) -> Result<LoadGroup, String> {
        let mut group = self.start_group(step, family)?;
        // A group that fails to start early is started again when it is needed, and fails then.
        let early: Vec<LoadGroup> = self
            .early_families(step, family)
            .into_iter()
            .filter_map(|family| self.start_group(step, family).ok())
            .collect();
        group.wait_until_ready(self)?;
        for mut group in early {
            if group.wait_until_ready(self).is_ok() {
                self.groups.push(group);
            }
        }
        Ok(group)
    }

    /// The families that start with this one: those of PyTorch, whose start takes long and needs no
    /// idle GPU.
    fn early_families(&self, step: &Step<'_>, family: Family) -> Vec<Family> {
        let is_torch = |load: &Load| matches!(load.work, Work::Torch(_));
        if !step.case.loads.iter().all(is_torch) {
            return Vec::new();
        }
        let is_missing = |other: &Family| {
            *other != family && self.groups.iter().all(|group| group.family != *other)
        };
        let expected = self.expected.get(&step.case.name);
        expected.into_iter().flatten().copied().filter(is_missing).collect()
    }

    /// Starts the processes of a family without waiting for all of them.
    fn start_group(&mut self, step: &Step<'_>, family: Family) -> Result<LoadGroup, String> {
        self.group_count += 1;
        let folder = self.folder.path().join(format!("group-{}", self.group_count));
        std::fs::create_dir_all(&folder)
            .map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
        let mps = match family {
            Family::Plain => None,
            Family::Mps | Family::MpsPriority => {
                Some(Mps::start(&self.programs, &folder.join("mps"), &self.stop)?)
            }
        };
        let case = step.case.name.clone();
        let mut group = LoadGroup { loads: Vec::new(), _mps: mps, case, family, folder, rounds: 0 };
        let is_probed = step.case.probed;
        for (index, load) in step.case.loads.iter().enumerate() {
            // A kernel is calibrated while no other load runs.
            let needs_calibration = LoadProcess::needs_calibration(self, load, is_probed);
            if needs_calibration {
                group.wait_until_ready(self)?;
            }
            let environment = group.environment(load);
            let process =
                LoadProcess::start(self, load, index, is_probed, &group.folder, environment)?;
            group.loads.push(process);
            if needs_calibration {
                group.wait_until_ready(self)?;
            }
        }
        Ok(group)
    }
}

impl LoadGroup {
    /// Environment variables of a process.
    fn environment(&self, load: &Load) -> Vec<(String, String)> {
        let Some(mps) = &self._mps else { return Vec::new() };
        let below = u8::from(load.role == Role::Be);
        mps.client((self.family == Family::MpsPriority).then_some(below))
    }

    fn wait_until_ready(&mut self, nvidia: &mut Nvidia) -> Result<(), String> {
        self.loads.iter_mut().try_for_each(|process| process.wait_until_ready(nvidia))
    }

    pub(super) fn next_round(&mut self, seconds: u64, seed: u64) -> Round {
        self.rounds += 1;
        Round { round: self.rounds, seconds, seed, hints: None }
    }

    /// The processes of a round: all, or those of one role.
    pub(super) fn members(&mut self, only: Option<Role>) -> impl Iterator<Item = &mut LoadProcess> {
        self.loads
            .iter_mut()
            .filter(move |process| only.is_none_or(|role| process.load.role == role))
    }
}

impl Drop for LoadGroup {
    /// Ends all processes at once; `Child` kills those that do not end.
    fn drop(&mut self) {
        self.loads.iter_mut().for_each(|process| process.child.close_input());
        let begin = Instant::now();
        while begin.elapsed() < LEAVE
            && self.loads.iter_mut().any(|process| process.child.gone().is_none())
        {
            std::thread::sleep(POLL);
        }
    }
}

/// Variables that name the folders of a server.
const MPS_FOLDERS: [&str; 2] = ["CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"];
/// The variable of a client's priority: 0 is normal, 1 is below.
const MPS_PRIORITY: &str = "CUDA_MPS_CLIENT_PRIORITY";
/// The variables that make a program a client of MPS.
pub(super) const MPS_VARIABLES: [&str; 3] = [MPS_FOLDERS[0], MPS_FOLDERS[1], MPS_PRIORITY];
/// How long a server may take to listen.
const MPS_START_MAX: Duration = Duration::from_secs(15);

/// An MPS server with folders of its own.
#[derive(Debug)]
pub(super) struct Mps {
    folder: PathBuf,
    control: Child,
}

impl Mps {
    /// Starts a server. Its control program stays in the foreground, so that it can be ended.
    pub(super) fn start(
        programs: &Programs,
        folder: &Path,
        stop: &AtomicBool,
    ) -> Result<Self, String> {
        let program = found(&programs.mps, "nvidia-cuda-mps-control")?;
        std::fs::create_dir_all(folder)
            .map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
        let mut command = Command::new(program);
        command.arg("-f").envs(MPS_FOLDERS.map(|place| (place, folder)));
        let mut command = programs.with_parent(ParentDeath::Mps, command);
        let control = Child::start("the MPS server", &mut command, folder.join("log"))?;
        let mut server = Self { folder: folder.to_owned(), control };
        // The control pipe appears when the server listens.
        let pipe = folder.join("control");
        server.control.wait_for("listening", |_| pipe.exists(), MPS_START_MAX, stop)?;
        Ok(server)
    }

    pub(super) fn client(&self, priority: Option<u8>) -> Vec<(String, String)> {
        let folder = self.folder.display().to_string();
        let mut environment: Vec<(String, String)> =
            MPS_FOLDERS.iter().map(|place| ((*place).to_owned(), folder.clone())).collect();
        environment.extend(priority.map(|level| (MPS_PRIORITY.to_owned(), level.to_string())));
        environment
    }
}

impl Drop for Mps {
    fn drop(&mut self) {
        // `gpreempt-load leash` asks it to quit, as its manual says. An earlier error is the one to
        // report.
        let _ = self.control.end(Signal::TERM);
    }
}
