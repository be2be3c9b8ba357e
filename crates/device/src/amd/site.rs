//! Which KFD it is: the kernel's, or an emulated one.
//!
//! Everything else asks a [`Site`] and never the machine, so that one option or variable moves a
//! whole program to an emulated device. What outlives us is written down with the name of its site.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::door::{Door, EmulatedDoor, KernelDoor};
use super::own_calls::OwnCalls;
use super::probe::{Places, Powers};

/// The variable that names the folder of an emulated KFD, for commands without an option for it.
pub const EMULATED_VARIABLE: &str = "GPREEMPT_EMULATED_KFD";

/// How a KFD is called in the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SiteName {
    /// The kernel's.
    #[default]
    Kernel,
    /// An emulated one, by its folder.
    Emulated(PathBuf),
}

/// A KFD, and where it shows its devices and processes.
#[derive(Clone, Debug)]
pub struct Site {
    /// What it is called.
    pub name: SiteName,
    /// The way in.
    pub door: Arc<dyn Door>,
    /// Where it shows things.
    pub places: Places,
    /// What we may do there.
    pub powers: Powers,
    /// Whether it is patched and has calls of our own that we may use.
    pub own_calls: OwnCalls,
}

impl SiteName {
    /// The one that [`EMULATED_VARIABLE`] names, or the kernel's.
    pub fn from_environment() -> Self {
        match std::env::var_os(EMULATED_VARIABLE) {
            Some(folder) if !folder.is_empty() => Self::emulated(Path::new(&folder)),
            Some(_) | None => Self::Kernel,
        }
    }

    /// An emulated one. Whoever reads the journal may have another working folder.
    pub fn emulated(folder: &Path) -> Self {
        Self::Emulated(std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned()))
    }

    /// Opens it.
    ///
    /// # Errors
    /// `NotFound` if there is none, and others if it may not be opened.
    pub fn open(&self) -> io::Result<Site> {
        match self {
            Self::Kernel => Site::kernel(),
            Self::Emulated(folder) => Site::emulated(folder),
        }
    }

    /// Where it shows things, whether it can be opened or not.
    pub fn places(&self) -> Places {
        match self {
            Self::Kernel => Places::default(),
            Self::Emulated(folder) => Places::emulated(folder),
        }
    }
}

impl Site {
    /// The kernel's.
    ///
    /// # Errors
    /// `NotFound` if there is none, and others if it may not be opened.
    pub fn kernel() -> io::Result<Self> {
        let door = Arc::new(KernelDoor::open()?);
        let (name, powers) = (SiteName::Kernel, Powers::read());
        let own_calls = OwnCalls::probe(&*door);
        Ok(Self { places: name.places(), name, door, powers, own_calls })
    }

    /// An emulated one, by its folder: a socket `kfd`, and the folders `sys` and `debug`.
    ///
    /// # Errors
    /// If nobody emulates a KFD there.
    pub fn emulated(folder: &Path) -> io::Result<Self> {
        let name = SiteName::emulated(folder);
        let door = emulated_door(folder)?;
        let powers = Powers::read();
        let own_calls = OwnCalls::probe(&*door);
        Ok(Self { places: name.places(), name, door, powers, own_calls })
    }
}

fn emulated_door(folder: &Path) -> io::Result<Arc<dyn Door>> {
    #[cfg(test)]
    if let Some(door) = fakes::door(folder) {
        return Ok(door);
    }
    Ok(Arc::new(EmulatedDoor::open(folder)?))
}

/// Fake ones behind folders, so that tests can follow what is in a journal.
#[cfg(test)]
pub(crate) mod fakes {
    use std::collections::BTreeMap;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Arc, Mutex, PoisonError};

    use crate::amd::door::Door;
    use crate::amd::fake::FakeKfd;

    /// Each door is a debugger of its own, as if another program had opened it.
    static NEXT_DEBUGGER: AtomicU32 = AtomicU32::new(1 << 24);
    static FAKES: Mutex<BTreeMap<PathBuf, (FakeKfd, bool)>> = Mutex::new(BTreeMap::new());

    /// From now on that folder leads to a fake one, with or without the right to pause processes.
    pub(crate) fn put(folder: &Path, kfd: &FakeKfd, may_pause: bool) {
        let mut fakes = FAKES.lock().unwrap_or_else(PoisonError::into_inner);
        fakes.insert(folder.to_owned(), (kfd.clone(), may_pause));
    }

    pub(super) fn door(folder: &Path) -> Option<Arc<dyn Door>> {
        let fakes = FAKES.lock().unwrap_or_else(PoisonError::into_inner);
        let (kfd, may_pause) = fakes.get(folder)?;
        let door = kfd.door(NEXT_DEBUGGER.fetch_add(1, Ordering::Relaxed));
        Some(Arc::new(if *may_pause { door } else { door.without_capability() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amd::fake::FakeKfd;

    #[test]
    fn a_name_leads_back_to_its_site() {
        let folder = Path::new("/nonexistent/site");
        let name = SiteName::emulated(folder);
        assert!(name.open().is_err_and(|error| error.kind() == io::ErrorKind::NotFound));
        fakes::put(folder, &FakeKfd::new(), true);
        let site = name.open().unwrap();
        assert_eq!((site.name, site.places.sysfs), (name, folder.join("sys")));
        assert!(site.door.version().is_ok());
    }

    #[test]
    fn names_are_written_and_read() {
        for name in [SiteName::Kernel, SiteName::emulated(Path::new("here"))] {
            let text = serde_json::to_string(&name).unwrap();
            assert_eq!(serde_json::from_str::<SiteName>(&text).unwrap(), name);
            assert!(!text.contains("\"here\""), "{text}");
        }
    }
}
