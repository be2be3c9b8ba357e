//! The AMD devices of this machine, and emulated ones.

use std::io;

use gpreempt_device::amd::probe::explain_site;
use gpreempt_device::amd::{AmdBackend, SiteName};
use gpreempt_device::controller::{Controller, Numbering, Waker};
use gpreempt_device::ledger::Ledger;

use crate::service::Options;
use crate::service::telemetry::log::Log;

/// The KFDs that a daemon is told to use.
pub(crate) fn sites(options: &Options) -> Vec<SiteName> {
    let kernel = options.use_amd.then_some(SiteName::Kernel);
    let emulated = options.emulated_kfd.iter().map(|folder| SiteName::emulated(folder));
    kernel.into_iter().chain(emulated).collect()
}

/// A controller for the devices of a KFD, if it has any. Where there is none it is not worth a
/// word; one that cannot be used is worth one.
pub(crate) fn controller(
    name: &SiteName,
    ledger: &Ledger,
    numbering: Numbering,
    waker: &Waker,
    log: &mut Log,
) -> Option<AmdBackend> {
    let site = match name.open() {
        Ok(site) => site,
        Err(error) => {
            let problem = explain_site(name, &error);
            if *name == SiteName::Kernel && error.kind() == io::ErrorKind::NotFound {
                log.debug(problem);
            } else {
                log.warn(problem);
            }
            return None;
        }
    };
    let version = match site.door.version() {
        Ok(version) => version,
        Err(errno) => {
            log.warn(format_args!(
                "AMD GPUs are left alone: KFD does not say which version it is ({errno})"
            ));
            return None;
        }
    };
    match AmdBackend::new(site, ledger.clone(), numbering, waker.clone()) {
        Ok(backend) if backend.devices().is_empty() => {
            log.info("KFD runs but has no GPU, so there is nothing to schedule on AMD");
            None
        }
        Ok(backend) => {
            log.info(version.abilities().sentence());
            Some(backend)
        }
        Err(error) => {
            log.warn(format_args!("AMD GPUs are left alone: {error}; is sysfs mounted?"));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn the_kernels_kfd_comes_first_unless_it_is_not_wanted() {
        let folder = PathBuf::from("/emulated");
        let emulated_kfd = vec![folder.clone()];
        let all = Options { use_amd: true, emulated_kfd, ..Options::default() };
        assert_eq!(sites(&all), [SiteName::Kernel, SiteName::Emulated(folder.clone())]);
        let none = Options { use_amd: false, ..all };
        assert_eq!(sites(&none), [SiteName::Emulated(folder)]);
    }
}
