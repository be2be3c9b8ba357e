//! Which KFD a program uses: the kernel's or an emulated one, with its paths and what this process
//! may do there.
//!
//! All other modules use a [`KfdInstance`] instead of fixed paths, so that one option or variable
//! moves a whole program to an emulated device. The journal records each change with its
//! [`KfdLocation`].

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::probe::{KfdPaths, Privileges};
use super::stop_method::PatchedCalls;
use super::{EmulatedKfd, KernelKfd, KfdDebugCalls};

/// The folder of an emulated KFD, for commands that have no option for it.
pub const EMULATED_VARIABLE: &str = "GPREEMPT_EMULATED_KFD";

/// A KFD by name, as the journal records it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KfdLocation {
    #[default]
    Kernel,
    Emulated(PathBuf),
}

#[derive(Clone, Debug)]
pub struct KfdInstance {
    pub name: KfdLocation,
    pub kfd: Arc<dyn KfdDebugCalls>,
    pub paths: KfdPaths,
    pub privileges: Privileges,
    /// Whether it has the calls of the patches in `kernel/`, and whether this process may use them.
    pub patched_calls: PatchedCalls,
}

impl KfdLocation {
    /// The one that [`EMULATED_VARIABLE`] names, or the kernel's.
    pub fn from_environment() -> Self {
        match std::env::var_os(EMULATED_VARIABLE) {
            Some(folder) if !folder.is_empty() => Self::emulated(Path::new(&folder)),
            Some(_) | None => Self::Kernel,
        }
    }

    /// The path is made absolute because the keeper may have another working folder.
    pub fn emulated(folder: &Path) -> Self {
        Self::Emulated(std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned()))
    }

    pub fn open(&self) -> io::Result<KfdInstance> {
        match self {
            Self::Kernel => KfdInstance::kernel(),
            Self::Emulated(folder) => KfdInstance::emulated(folder),
        }
    }

    pub fn paths(&self) -> KfdPaths {
        match self {
            Self::Kernel => KfdPaths::default(),
            Self::Emulated(folder) => KfdPaths::emulated(folder),
        }
    }
}

impl KfdInstance {
    pub fn kernel() -> io::Result<Self> {
        let kfd = Arc::new(KernelKfd::open()?);
        let (name, privileges) = (KfdLocation::Kernel, Privileges::read());
        let patched_calls = PatchedCalls::probe(&*kfd);
        Ok(Self { paths: name.paths(), name, kfd, privileges, patched_calls })
    }

    /// Opens the emulated KFD in a folder: a socket `kfd`, and the folders `sys` and `debug`.
    pub fn emulated(folder: &Path) -> io::Result<Self> {
        let name = KfdLocation::emulated(folder);
        let kfd = open_emulated(folder)?;
        let privileges = Privileges::read();
        let patched_calls = PatchedCalls::probe(&*kfd);
        Ok(Self { paths: name.paths(), name, kfd, privileges, patched_calls })
    }
}

fn open_emulated(folder: &Path) -> io::Result<Arc<dyn KfdDebugCalls>> {
    #[cfg(test)]
    if let Some(kfd) = fakes::kfd(folder) {
        return Ok(kfd);
    }
    Ok(Arc::new(EmulatedKfd::open(folder)?))
}

/// In-process KFDs by folder, so that tests can revert what a journal records.
#[cfg(test)]
pub(crate) mod fakes {
    use std::collections::BTreeMap;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Mutex, PoisonError};

    use crate::amd::{FakeKfd, KfdDebugCalls};

    /// Each connection is a debugger of its own, as if another program had opened it.
    static NEXT_DEBUGGER: AtomicU32 = AtomicU32::new(1 << 24);
    static FAKES: Mutex<BTreeMap<PathBuf, (FakeKfd, bool)>> = Mutex::new(BTreeMap::new());

    /// From now on `folder` leads to `kfd`, with or without the privilege to pause processes.
    pub(crate) fn put(folder: &Path, kfd: &FakeKfd, may_pause: bool) {
        let mut fakes = FAKES.lock().unwrap_or_else(PoisonError::into_inner);
        fakes.insert(folder.to_owned(), (kfd.clone(), may_pause));
    }

    pub(super) fn kfd(folder: &Path) -> Option<Arc<dyn KfdDebugCalls>> {
        let fakes = FAKES.lock().unwrap_or_else(PoisonError::into_inner);
        let (kfd, may_pause) = fakes.get(folder)?;
        let kfd = kfd.debugger(NEXT_DEBUGGER.fetch_add(1, Ordering::Relaxed));
        Some(Arc::new(if *may_pause { kfd } else { kfd.without_capability() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amd::FakeKfd;

    #[test]
    fn a_location_opens_its_instance() {
        let folder = Path::new("/nonexistent/instance");
        let name = KfdLocation::emulated(folder);
        assert!(name.open().is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
        fakes::put(folder, &FakeKfd::new(), true);
        let instance = name.open().unwrap();
        assert_eq!((instance.name, instance.paths.sysfs), (name, folder.join("sys")));
        assert!(instance.kfd.version().is_ok());
    }

    #[test]
    fn locations_are_serialised() {
        for name in [KfdLocation::Kernel, KfdLocation::emulated(Path::new("here"))] {
            let text = serde_json::to_string(&name).unwrap();
            assert_eq!(serde_json::from_str::<KfdLocation>(&text).unwrap(), name);
            assert!(!text.contains("\"here\""), "{text}");
        }
    }
}
