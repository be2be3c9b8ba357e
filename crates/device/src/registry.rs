//! Makes the controllers of the selected devices.
//!
//! This is the only place that names every backend. To add one: a folder with its `Controller` and
//! its changes, a variant of [`crate::change::GpuChange`], and here a field of [`Selection`] and a
//! few lines in [`controllers`].

use std::io;
use std::path::PathBuf;

use gpreempt_core::hold::HoldLimits;

use crate::amd::probe::explain_location;
use crate::amd::{AmdBackend, KfdLocation};
use crate::controller::{Controller, Numbering, Waker};
use crate::emulated::EmulatedBackend;
use crate::keeper::monotonic_ns;
use crate::nvidia::backend::{ContextOptions, NvidiaBackend};
use crate::nvidia::driver::{GateError, UsableDriver, driver_for_changes, for_private_session};
use crate::undo_log::UndoLog;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    pub nvidia: bool,
    pub amd: bool,
    /// Emulated AMD GPUs, by the folders of their KFD.
    pub emulated_kfd: Vec<PathBuf>,
    /// Emulated GPUs, by the sockets of their emulators.
    pub emulated: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Whether to use a driver that gpreempt was never run with.
    pub allow_untested_driver: bool,
    /// None disables holds.
    pub holds: Option<HoldLimits>,
    /// Whether this is a private session, which a user starts by hand: it does not use NVIDIA GPUs
    /// with MIG or in a sandbox.
    pub is_private: bool,
    pub context_options: ContextOptions,
}

/// A line for the log, with its level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceFinding {
    /// Devices that most machines do not have.
    Debug(String),
    /// Devices that are scheduled, or that are missing although their driver is loaded.
    Info(String),
    /// Devices that are not scheduled, and why.
    Warning(String),
}

#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("too many devices")]
    TooMany,
    #[error(transparent)]
    Os(#[from] io::Error),
}

/// Makes a controller for each selected kind of device that this machine has. Missing devices are
/// findings, not errors.
pub fn controllers(
    selection: &Selection,
    settings: Settings,
    (undo_log, waker): (&UndoLog, &Waker),
    mut report: impl FnMut(DeviceFinding),
) -> Result<Vec<Box<dyn Controller>>, RegistryError> {
    let mut found: Vec<Box<dyn Controller>> = Vec::new();
    let parts = |found: &Vec<Box<dyn Controller>>| {
        let index = u16::try_from(found.len()).map_err(|_| RegistryError::TooMany)?;
        // Two starts are more than a millisecond apart, so their numbers differ.
        let numbering = Numbering::of(index).since(monotonic_ns() >> 20);
        Ok::<_, RegistryError>((undo_log.clone(), numbering, waker.clone()))
    };
    if selection.nvidia
        && let Some(nvidia) = nvidia(settings, parts(&found)?, &mut report)?
    {
        found.push(Box::new(nvidia));
    }
    for site in sites(selection) {
        if let Some(amd) = amd(&site, parts(&found)?, &mut report) {
            found.push(Box::new(amd));
        }
    }
    for socket in &selection.emulated {
        let (undo_log, numbering, waker) = parts(&found)?;
        found.push(Box::new(EmulatedBackend::new(socket.clone(), undo_log, numbering, waker)?));
        report(DeviceFinding::Info(format!("emulated GPUs at {}", socket.display())));
    }
    Ok(found)
}

type ControllerParts = (UndoLog, Numbering, Waker);

fn nvidia(
    settings: Settings,
    (undo_log, numbering, waker): ControllerParts,
    report: &mut impl FnMut(DeviceFinding),
) -> io::Result<Option<NvidiaBackend>> {
    let allowed = match settings.is_private {
        true => for_private_session(settings.allow_untested_driver),
        false => driver_for_changes(settings.allow_untested_driver)
            .map(|version| UsableDriver { version, notes: Vec::new() }),
    };
    let UsableDriver { version, notes } = match allowed {
        Ok(driver) => driver,
        Err(error) => {
            report(gate_finding(&error, settings.is_private));
            return Ok(None);
        }
    };
    let mut backend = NvidiaBackend::new(undo_log, numbering, waker)?;
    report(DeviceFinding::Info(format!("NVIDIA driver {version}")));
    notes.into_iter().for_each(|note| report(DeviceFinding::Warning(note)));
    backend.set_context_options(settings.context_options);
    if let Some(limits) = settings.holds
        && let Some(problem) = backend.enable_holds(limits)?
    {
        report(DeviceFinding::Warning(problem));
    }
    Ok(Some(backend))
}

/// Why NVIDIA GPUs are not scheduled. A private session has other GPUs then, or would not start.
fn gate_finding(error: &GateError, is_private: bool) -> DeviceFinding {
    match error {
        GateError::Untested(version) if !is_private => DeviceFinding::Warning(format!(
            "NVIDIA driver {version} was never tested with gpreempt, so its GPUs are not \
             scheduled; to use it anyway, set allow_untested_driver"
        )),
        GateError::Unknown(_) | GateError::Constraint(_) if !is_private => {
            DeviceFinding::Warning(error.to_string())
        }
        GateError::Absent(_)
        | GateError::Unknown(_)
        | GateError::Untested(_)
        | GateError::Constraint(_) => DeviceFinding::Info(error.to_string()),
    }
}

/// The KFDs to use.
pub fn sites(selection: &Selection) -> Vec<KfdLocation> {
    let kernel = selection.amd.then_some(KfdLocation::Kernel);
    let emulated = selection.emulated_kfd.iter().map(|folder| KfdLocation::emulated(folder));
    kernel.into_iter().chain(emulated).collect()
}

fn amd(
    name: &KfdLocation,
    (undo_log, numbering, waker): ControllerParts,
    report: &mut impl FnMut(DeviceFinding),
) -> Option<AmdBackend> {
    let site = match name.open() {
        Ok(site) => site,
        Err(error) => {
            let problem = explain_location(name, &error);
            let is_absent = *name == KfdLocation::Kernel && error.kind() == io::ErrorKind::NotFound;
            report(if is_absent {
                DeviceFinding::Debug(problem)
            } else {
                DeviceFinding::Warning(problem)
            });
            return None;
        }
    };
    let version = match site.kfd.version() {
        Ok(version) => version,
        Err(errno) => {
            report(DeviceFinding::Warning(format!(
                "AMD GPUs are not scheduled: KFD does not report its version ({errno})"
            )));
            return None;
        }
    };
    match AmdBackend::new(site, undo_log, numbering, waker) {
        Ok(backend) if backend.devices().is_empty() => {
            let nothing = "KFD is loaded but has no GPU, so there are no AMD GPUs to schedule";
            report(DeviceFinding::Info(nothing.to_owned()));
            None
        }
        Ok(backend) => {
            report(DeviceFinding::Info(version.abilities().sentence()));
            Some(backend)
        }
        Err(error) => {
            let problem = format!("AMD GPUs are not scheduled: {error}; is sysfs mounted?");
            report(DeviceFinding::Warning(problem));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Journal;

    #[test]
    fn an_untested_driver_is_a_warning_of_the_daemon() {
        let untested = GateError::Untested("570.1.1".to_owned());
        assert!(matches!(gate_finding(&untested, false), DeviceFinding::Warning(text)
            if text.contains("set allow_untested_driver")));
        assert!(matches!(gate_finding(&untested, true), DeviceFinding::Info(_)));
        let absent = GateError::Absent("none".to_owned());
        assert!(matches!(gate_finding(&absent, false), DeviceFinding::Info(_)));
    }

    #[test]
    fn the_kernels_kfd_is_first_unless_it_is_not_selected() {
        let folder = PathBuf::from("/emulated");
        let emulated_kfd = vec![folder.clone()];
        let all = Selection { amd: true, emulated_kfd, ..Selection::default() };
        assert_eq!(sites(&all), [KfdLocation::Kernel, KfdLocation::Emulated(folder.clone())]);
        let none = Selection { amd: false, ..all };
        assert_eq!(sites(&none), [KfdLocation::Emulated(folder)]);
    }

    #[test]
    fn every_emulator_has_a_controller_and_a_missing_kfd_is_a_finding() {
        let folder = gpreempt_stage::WorkFolder::new("registry").unwrap();
        let root = folder.root().to_owned();
        let undo_log = UndoLog::new(Journal::at(root.clone()).unwrap().begin().unwrap());
        let waker = Waker::new().unwrap();
        let selection = Selection {
            emulated: vec![root.join("one"), root.join("two")],
            emulated_kfd: vec![root.join("kfd")],
            ..Selection::default()
        };
        let mut findings = Vec::new();
        let found = controllers(&selection, Settings::default(), (&undo_log, &waker), |finding| {
            findings.push(finding);
        });
        let kinds: Vec<&str> = found.unwrap().iter().map(|controller| controller.kind()).collect();
        assert_eq!(kinds, ["emulated", "emulated"]);
        assert!(
            matches!(
                findings[..],
                [DeviceFinding::Warning(_), DeviceFinding::Info(_), DeviceFinding::Info(_)]
            ),
            "{findings:?}"
        );
    }
}
