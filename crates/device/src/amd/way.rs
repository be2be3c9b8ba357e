//! In which of three ways queues are stopped, and why not in a better one.

use std::fmt;

use super::abi::version::Version;
use super::own_calls::OwnCalls;
use super::site::Site;

/// How queues are stopped, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// By the scheduler inside of a patched KFD, which is told priorities.
    KernelScheduler,
    /// By the calls of a patched KFD: queues of all processes at once.
    OwnCalls,
    /// By a debugger's session with each process.
    DebugTrap,
    /// By pausing whole processes, as a checkpoint does.
    WholeProcess,
    /// Not at all.
    Nothing,
}

impl Way {
    /// A short name, for tables and programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::KernelScheduler => "kernel-scheduler",
            Self::OwnCalls => "own-calls",
            Self::DebugTrap => "debug-trap",
            Self::WholeProcess => "whole-process",
            Self::Nothing => "nothing",
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KernelScheduler => "the kernel schedules queues itself (kfd_preempt_enable)",
            Self::OwnCalls => "queues of all processes are stopped in one call (patched KFD)",
            Self::DebugTrap => "queues are stopped process by process, by the debugger's interface",
            Self::WholeProcess => "whole processes are paused, as for a checkpoint",
            Self::Nothing => "nothing can be stopped",
        })
    }
}

/// A way, and why it is not a better one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InUse {
    /// Which.
    pub way: Way,
    /// Why not the one before it, in a sentence. None for the first two: whether the kernel
    /// schedules is up to whoever runs it.
    pub why_not_better: Option<String>,
}

impl Site {
    /// How queues are stopped here: of most processes, on devices that know debuggers.
    pub fn way(&self) -> InUse {
        self.way_if(self.kernel_schedules())
    }

    /// The same if the kernel schedules, or if it does not.
    pub fn way_if(&self, kernel_schedules: bool) -> InUse {
        let denied = self.own_calls == OwnCalls::Denied;
        if kernel_schedules && self.own_calls != OwnCalls::Absent {
            let why = "priorities cannot be handed to the kernel: that needs CAP_SYS_ADMIN; run \
                       this as root";
            let why_not_better = denied.then(|| why.to_owned());
            return InUse { way: Way::KernelScheduler, why_not_better };
        }
        let why = match self.own_calls {
            OwnCalls::Usable => return InUse { way: Way::OwnCalls, why_not_better: None },
            OwnCalls::Denied => {
                "this KFD is patched for gpreempt, but its calls need CAP_SYS_ADMIN; run this as \
                 root"
            }
            OwnCalls::Absent => "this KFD is not patched for gpreempt (docs/kernel.md)",
        };
        let abilities = self.door.version().map(Version::abilities).ok();
        let can_suspend = abilities.is_some_and(|can| can.suspend);
        if can_suspend {
            return InUse { way: Way::DebugTrap, why_not_better: Some(why.to_owned()) };
        }
        let can_pause = abilities.is_some_and(|can| can.pause) && self.powers.may_checkpoint();
        let way = if can_pause { Way::WholeProcess } else { Way::Nothing };
        let older = "this kernel has no debugger's interface for queues (KFD 1.13, Linux 6.5)";
        InUse { way, why_not_better: Some(format!("{why}; {older}")) }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::amd::fake::{FakeKfd, Rules};
    use crate::amd::site::fakes;

    fn way(name: &str, rules: Rules, has_right: bool, schedules: bool) -> InUse {
        let root = std::env::temp_dir().join(format!("gpreempt-{}-way-{name}", std::process::id()));
        let parameters: PathBuf = root.join("parameters");
        std::fs::create_dir_all(&parameters).unwrap();
        let text = if schedules { "Y\n" } else { "N\n" };
        std::fs::write(parameters.join("kfd_preempt_enable"), text).unwrap();
        fakes::put(&root, &FakeKfd::with(rules), has_right);
        let mut site = Site::emulated(&root).unwrap();
        let capabilities = if has_right { u64::MAX } else { 0 };
        site.powers = crate::amd::probe::Powers { capabilities, yama: 0 };
        let way = site.way();
        std::fs::remove_dir_all(root).unwrap();
        way
    }

    #[test]
    fn the_best_way_there_is_and_why_not_a_better_one() {
        let patched = Rules { own_calls: true, ..Rules::default() };
        let own = way("own", patched, true, false);
        assert_eq!(own, InUse { way: Way::OwnCalls, why_not_better: None });
        assert_eq!(way("kernel", patched, true, true).way, Way::KernelScheduler);
        let denied = way("denied", patched, false, false);
        assert_eq!(denied.way, Way::DebugTrap);
        assert!(denied.why_not_better.unwrap().contains("CAP_SYS_ADMIN"));
        let kernel = way("kernel-denied", patched, false, true);
        assert_eq!(kernel.way, Way::KernelScheduler);
        assert!(kernel.why_not_better.unwrap().contains("priorities cannot be handed"));
        let stock = way("stock", Rules::default(), true, false);
        assert_eq!(stock.way, Way::DebugTrap);
        assert!(stock.why_not_better.unwrap().contains("not patched"));
        let old = Rules::of("6.1", 90_402).unwrap();
        assert_eq!(way("old", old, true, false).way, Way::WholeProcess);
        assert_eq!(way("old-denied", old, false, false).way, Way::Nothing);
    }
}
