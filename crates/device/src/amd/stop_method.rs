//! Chooses the method by which queues are stopped, and explains why there is no better one.
//!
//! Version numbers do not tell whether a KFD has the calls of the patches, because upstream assigns
//! them. But KFD replies to an unknown ioctl number in one way only, so [`PatchedCalls::probe`]
//! tries one.

use std::{fmt, fs};

use rustix::io::Errno;

use super::KfdDebugCalls;
use super::abi::patched::PreemptEntry;
use super::abi::version::Version;
use super::kfd_instance::KfdInstance;
use super::probe::KfdPaths;

/// How queues are stopped, the best method first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopMethod {
    /// The in-kernel scheduler of a patched KFD; this program sends it priorities.
    KernelScheduler,
    /// The calls of a patched KFD, for queues of all processes at once.
    PatchedCalls,
    /// A debug session with each process.
    DebugTrap,
    /// Pauses of whole processes, as for a checkpoint.
    WholeProcess,
    Nothing,
}

impl StopMethod {
    /// The name in JSON and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::KernelScheduler => "kernel-scheduler",
            Self::PatchedCalls => "own-calls",
            Self::DebugTrap => "debug-trap",
            Self::WholeProcess => "whole-process",
            Self::Nothing => "nothing",
        }
    }
}

impl fmt::Display for StopMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KernelScheduler => "the kernel schedules queues itself (kfd_preempt_enable)",
            Self::PatchedCalls => "queues of all processes are stopped in one call (patched KFD)",
            Self::DebugTrap => "queues are stopped process by process, by the debugger's interface",
            Self::WholeProcess => "whole processes are paused, as for a checkpoint",
            Self::Nothing => "nothing can be stopped",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopMethodChoice {
    pub method: StopMethod,
    /// Why not the method before it, in a sentence. None for the first two: the administrator
    /// decides whether the kernel schedules.
    pub why_not_better: Option<String>,
}

impl KfdInstance {
    /// The method for most processes, on devices that support debug sessions.
    pub fn stop_method(&self) -> StopMethodChoice {
        self.stop_method_if(self.kernel_schedules())
    }

    /// The method if the in-kernel scheduler is on, or if it is off.
    pub fn stop_method_if(&self, kernel_schedules: bool) -> StopMethodChoice {
        let denied = self.patched_calls == PatchedCalls::Denied;
        if kernel_schedules && self.patched_calls != PatchedCalls::Absent {
            let why = "priorities cannot be handed to the kernel: that needs CAP_SYS_ADMIN; run \
                       this as root";
            let why_not_better = denied.then(|| why.to_owned());
            return StopMethodChoice { method: StopMethod::KernelScheduler, why_not_better };
        }
        let why = match self.patched_calls {
            PatchedCalls::Usable => {
                return StopMethodChoice { method: StopMethod::PatchedCalls, why_not_better: None };
            }
            PatchedCalls::Denied => {
                "this KFD is patched for gpreempt, but its calls need CAP_SYS_ADMIN; run this as \
                 root"
            }
            PatchedCalls::Absent => {
                "this KFD is not patched for gpreempt (docs/internals/kernel.md)"
            }
        };
        let abilities = self.kfd.version().map(Version::abilities).ok();
        let can_suspend = abilities.is_some_and(|can| can.suspend);
        if can_suspend {
            return StopMethodChoice {
                method: StopMethod::DebugTrap,
                why_not_better: Some(why.to_owned()),
            };
        }
        let can_pause = abilities.is_some_and(|can| can.pause) && self.privileges.may_checkpoint();
        let method = if can_pause { StopMethod::WholeProcess } else { StopMethod::Nothing };
        let older = "this kernel has no debugger's interface for queues (KFD 1.13, Linux 6.5)";
        StopMethodChoice { method, why_not_better: Some(format!("{why}; {older}")) }
    }
}

/// Whether the calls of a patched KFD can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchedCalls {
    Absent,
    /// This process may not preempt queues of other processes.
    Denied,
    Usable,
}

/// A pid that no process can have: above the kernel's limit.
const NO_PROCESS: u32 = i32::MAX.unsigned_abs();

impl PatchedCalls {
    /// Tries to resume a queue of a process that cannot exist.
    pub fn probe(kfd: &dyn KfdDebugCalls) -> Self {
        Self::probe_again(kfd).unwrap_or(Self::Absent)
    }

    /// None if the reply tells nothing, for example that the kernel is out of memory.
    pub(super) fn probe_again(kfd: &dyn KfdDebugCalls) -> Option<Self> {
        let entry = PreemptEntry { pid: NO_PROCESS, ..PreemptEntry::default() };
        match kfd.unpreempt_queues(&mut [entry], false) {
            Ok(()) => Some(Self::Usable),
            Err(Errno::PERM) => Some(Self::Denied),
            // Other numbers, or another layout.
            Err(Errno::NOTTY | Errno::INVAL) => Some(Self::Absent),
            Err(_) => None,
        }
    }
}

/// The module parameter that enables the in-kernel scheduler.
const ENABLE: &str = "kfd_preempt_enable";

impl KfdPaths {
    /// Whether the in-kernel scheduler is on. A kernel without the patches has no such file.
    pub fn kernel_schedules(&self) -> bool {
        let text = fs::read_to_string(self.parameters.join(ENABLE));
        text.is_ok_and(|text| matches!(text.trim(), "Y" | "1"))
    }
}

impl KfdInstance {
    pub fn kernel_schedules(&self) -> bool {
        self.paths.kernel_schedules()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amd::kfd_instance::fakes;
    use crate::amd::{FakeKfd, KfdProfile};

    fn choice(rules: KfdProfile, has_right: bool, schedules: bool) -> StopMethodChoice {
        let folder = gpreempt_stage::WorkFolder::new("stop-method").unwrap();
        let (root, parameters) = (folder.root(), folder.path("parameters"));
        fs::create_dir(&parameters).unwrap();
        let text = if schedules { "Y\n" } else { "N\n" };
        fs::write(parameters.join("kfd_preempt_enable"), text).unwrap();
        fakes::put(root, &FakeKfd::with(rules), has_right);
        let mut instance = KfdInstance::emulated(root).unwrap();
        let capabilities = if has_right { u64::MAX } else { 0 };
        instance.privileges = crate::amd::probe::Privileges { capabilities, yama: 0 };
        instance.stop_method()
    }

    #[test]
    fn the_best_method_is_chosen_with_a_reason_against_better_ones() {
        let patched = KfdProfile { patched: true, ..KfdProfile::default() };
        let own = choice(patched, true, false);
        assert_eq!(
            own,
            StopMethodChoice { method: StopMethod::PatchedCalls, why_not_better: None }
        );
        assert_eq!(choice(patched, true, true).method, StopMethod::KernelScheduler);
        let denied = choice(patched, false, false);
        assert_eq!(denied.method, StopMethod::DebugTrap);
        assert!(denied.why_not_better.unwrap().contains("CAP_SYS_ADMIN"));
        let kernel = choice(patched, false, true);
        assert_eq!(kernel.method, StopMethod::KernelScheduler);
        assert!(kernel.why_not_better.unwrap().contains("priorities cannot be handed"));
        let stock = choice(KfdProfile::default(), true, false);
        assert_eq!(stock.method, StopMethod::DebugTrap);
        assert!(stock.why_not_better.unwrap().contains("not patched"));
        let old = KfdProfile::of("6.1", 90_402).unwrap();
        assert_eq!(choice(old, true, false).method, StopMethod::WholeProcess);
        assert_eq!(choice(old, false, false).method, StopMethod::Nothing);
    }

    #[test]
    fn only_a_patched_kfd_has_the_calls() {
        assert_eq!(PatchedCalls::probe(&FakeKfd::new().debugger(1)), PatchedCalls::Absent);
        let kfd = FakeKfd::with(KfdProfile { patched: true, ..KfdProfile::default() });
        assert_eq!(PatchedCalls::probe(&kfd.debugger(1)), PatchedCalls::Usable);
        assert_eq!(
            PatchedCalls::probe(&kfd.debugger(1).without_capability()),
            PatchedCalls::Denied
        );
    }
}
