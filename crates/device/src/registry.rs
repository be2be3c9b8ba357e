//! Which devices are scheduled, and how the controller of each kind is made.
//!
//! This is the place that names every backend. To add one: a folder with its `Controller` and its
//! acts, a variant of [`crate::act::Act`], and here a field of [`Selection`] and a few lines in
//! [`controllers`].

use std::io;
use std::path::PathBuf;

use gpreempt_core::time::Duration;

use crate::amd::probe::explain_site;
use crate::amd::{AmdBackend, SiteName};
use crate::controller::{Controller, Numbering, Waker};
use crate::emulated::EmulatedBackend;
use crate::keeper::monotonic_ns;
use crate::ledger::Ledger;
use crate::nvidia::backend::{NvidiaBackend, Wishes};
use crate::nvidia::gate::{self, GateError, Passed};
use crate::nvidia::hold::GripSettings;

/// Which devices to schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Whether to schedule NVIDIA GPUs.
    pub nvidia: bool,
    /// Whether to schedule AMD GPUs.
    pub amd: bool,
    /// Emulated AMD GPUs, by the folders of their KFD.
    pub emulated_kfd: Vec<PathBuf>,
    /// Emulated GPUs, by the sockets of their emulators.
    pub emulated: Vec<PathBuf>,
}

/// How to schedule them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Whether a driver is used that gpreempt was never run with.
    pub allow_untested_driver: bool,
    /// For how long a device may be held without new work, if at all.
    pub hold_max: Option<Duration>,
    /// Whether this is a private session, which a user starts by hand: then MIG and sandboxes are
    /// reasons to leave NVIDIA GPUs alone.
    pub is_private: bool,
    /// What adopted processes get on NVIDIA GPUs beside their priority.
    pub wishes: Wishes,
}

/// What is worth a line in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Devices that are not there, as on most machines.
    Debug(String),
    /// Devices that are scheduled, or not there although their driver is.
    Info(String),
    /// Devices that are there and not scheduled, and why.
    Warning(String),
}

/// Why there are no controllers.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// There are more than there are numbers for.
    #[error("too many devices")]
    TooMany,
    /// There are no more descriptors or threads.
    #[error(transparent)]
    Os(#[from] io::Error),
}

/// Makes a controller for each selected kind of device that this machine has.
///
/// # Errors
/// If the system lacks descriptors or threads. Devices that are not there are findings.
pub fn controllers(
    selection: &Selection,
    settings: Settings,
    (ledger, waker): (&Ledger, &Waker),
    mut tell: impl FnMut(Finding),
) -> Result<Vec<Box<dyn Controller>>, RegistryError> {
    let mut found: Vec<Box<dyn Controller>> = Vec::new();
    let means = |found: &Vec<Box<dyn Controller>>| {
        let index = u16::try_from(found.len()).map_err(|_| RegistryError::TooMany)?;
        // Starts are more than a millisecond apart.
        let numbering = Numbering::of(index).since(monotonic_ns() >> 20);
        Ok::<_, RegistryError>((ledger.clone(), numbering, waker.clone()))
    };
    if selection.nvidia
        && let Some(nvidia) = nvidia(settings, means(&found)?, &mut tell)?
    {
        found.push(Box::new(nvidia));
    }
    for site in sites(selection) {
        if let Some(amd) = amd(&site, means(&found)?, &mut tell) {
            found.push(Box::new(amd));
        }
    }
    for socket in &selection.emulated {
        let (ledger, numbering, waker) = means(&found)?;
        found.push(Box::new(EmulatedBackend::new(socket.clone(), ledger, numbering, waker)?));
        tell(Finding::Info(format!("emulated GPUs at {}", socket.display())));
    }
    Ok(found)
}

/// What every controller is made with.
type Means = (Ledger, Numbering, Waker);

fn nvidia(
    settings: Settings,
    (ledger, numbering, waker): Means,
    tell: &mut impl FnMut(Finding),
) -> io::Result<Option<NvidiaBackend>> {
    let allowed = match settings.is_private {
        true => gate::for_private_session(settings.allow_untested_driver),
        false => gate::driver_for_changes(settings.allow_untested_driver)
            .map(|version| Passed { version, notes: Vec::new() }),
    };
    let Passed { version, notes } = match allowed {
        Ok(passed) => passed,
        Err(error) => {
            tell(finding_of(&error, settings.is_private));
            return Ok(None);
        }
    };
    let mut backend = NvidiaBackend::new(ledger, numbering, waker)?;
    tell(Finding::Info(format!("NVIDIA driver {version}")));
    notes.into_iter().for_each(|note| tell(Finding::Warning(note)));
    backend.set_wishes(settings.wishes);
    if let Some(hold_max) = settings.hold_max {
        let settings = GripSettings { hold_max, ..GripSettings::default() };
        if let Some(problem) = backend.enable_holds(settings)? {
            tell(Finding::Warning(problem));
        }
    }
    Ok(Some(backend))
}

/// Why NVIDIA GPUs are left alone. A private session has other GPUs then, or it would not start.
fn finding_of(error: &GateError, is_private: bool) -> Finding {
    match error {
        GateError::Untested(version) if !is_private => Finding::Warning(format!(
            "NVIDIA driver {version} was never tried with gpreempt, so it is left alone; if you \
             want to be the first, set allow_untested_driver"
        )),
        GateError::Unknown(_) | GateError::Surrounding(_) if !is_private => {
            Finding::Warning(error.to_string())
        }
        GateError::Absent(_)
        | GateError::Unknown(_)
        | GateError::Untested(_)
        | GateError::Surrounding(_) => Finding::Info(error.to_string()),
    }
}

/// The KFDs to use.
pub fn sites(selection: &Selection) -> Vec<SiteName> {
    let kernel = selection.amd.then_some(SiteName::Kernel);
    let emulated = selection.emulated_kfd.iter().map(|folder| SiteName::emulated(folder));
    kernel.into_iter().chain(emulated).collect()
}

fn amd(
    name: &SiteName,
    (ledger, numbering, waker): Means,
    tell: &mut impl FnMut(Finding),
) -> Option<AmdBackend> {
    let site = match name.open() {
        Ok(site) => site,
        Err(error) => {
            let problem = explain_site(name, &error);
            let is_absent = *name == SiteName::Kernel && error.kind() == io::ErrorKind::NotFound;
            tell(if is_absent { Finding::Debug(problem) } else { Finding::Warning(problem) });
            return None;
        }
    };
    let version = match site.door.version() {
        Ok(version) => version,
        Err(errno) => {
            tell(Finding::Warning(format!(
                "AMD GPUs are left alone: KFD does not say which version it is ({errno})"
            )));
            return None;
        }
    };
    match AmdBackend::new(site, ledger, numbering, waker) {
        Ok(backend) if backend.devices().is_empty() => {
            let nothing = "KFD runs but has no GPU, so there is nothing to schedule on AMD";
            tell(Finding::Info(nothing.to_owned()));
            None
        }
        Ok(backend) => {
            tell(Finding::Info(version.abilities().sentence()));
            Some(backend)
        }
        Err(error) => {
            let problem = format!("AMD GPUs are left alone: {error}; is sysfs mounted?");
            tell(Finding::Warning(problem));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Journal;

    #[test]
    fn a_driver_that_is_not_used_is_a_warning_for_a_daemon() {
        let untested = GateError::Untested("570.1.1".to_owned());
        assert!(matches!(finding_of(&untested, false), Finding::Warning(text)
            if text.contains("set allow_untested_driver")));
        assert!(matches!(finding_of(&untested, true), Finding::Info(_)));
        let absent = GateError::Absent("none".to_owned());
        assert!(matches!(finding_of(&absent, false), Finding::Info(_)));
    }

    #[test]
    fn the_kernels_kfd_comes_first_unless_it_is_not_wanted() {
        let folder = PathBuf::from("/emulated");
        let emulated_kfd = vec![folder.clone()];
        let all = Selection { amd: true, emulated_kfd, ..Selection::default() };
        assert_eq!(sites(&all), [SiteName::Kernel, SiteName::Emulated(folder.clone())]);
        let none = Selection { amd: false, ..all };
        assert_eq!(sites(&none), [SiteName::Emulated(folder)]);
    }

    #[test]
    fn every_emulator_has_a_controller_and_a_kfd_that_is_not_there_is_a_finding() {
        let root = std::env::temp_dir().join(format!("gpreempt-{}-registry", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let ledger = Ledger::new(Journal::at(root.clone()).unwrap().begin().unwrap());
        let waker = Waker::new().unwrap();
        let selection = Selection {
            emulated: vec![root.join("one"), root.join("two")],
            emulated_kfd: vec![root.join("kfd")],
            ..Selection::default()
        };
        let mut findings = Vec::new();
        let found = controllers(&selection, Settings::default(), (&ledger, &waker), |finding| {
            findings.push(finding);
        });
        let kinds: Vec<&str> = found.unwrap().iter().map(|controller| controller.kind()).collect();
        assert_eq!(kinds, ["emulated", "emulated"]);
        assert!(
            matches!(findings[..], [Finding::Warning(_), Finding::Info(_), Finding::Info(_)]),
            "{findings:?}"
        );
        std::fs::remove_dir_all(root).unwrap();
    }
}
