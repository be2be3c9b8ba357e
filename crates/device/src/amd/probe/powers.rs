//! What we may do to other processes.

use std::fs;

/// What the kernel lets us do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Powers {
    /// Our capabilities, as the kernel counts them.
    pub capabilities: u64,
    /// What Yama says about tracing, if it is there.
    pub yama: u32,
}

/// Tracing processes of others.
const SYS_PTRACE: u32 = 19;
/// Everything else.
const SYS_ADMIN: u32 = 21;
/// Pausing processes.
const CHECKPOINT_RESTORE: u32 = 40;

impl Powers {
    /// Ours.
    pub fn read() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let yama = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
        Self::parse(&status, &yama.unwrap_or_default())
    }

    fn parse(status: &str, yama: &str) -> Self {
        let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let capabilities = capabilities.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        Self { capabilities: capabilities.unwrap_or(0), yama: yama.trim().parse().unwrap_or(0) }
    }

    /// Whether we may trace processes of others.
    pub const fn may_trace(self) -> bool {
        self.has(SYS_PTRACE) && self.yama < 3
    }

    /// Whether we may pause processes.
    pub const fn may_checkpoint(self) -> bool {
        self.has(CHECKPOINT_RESTORE) || self.has(SYS_ADMIN)
    }

    const fn has(self, capability: u32) -> bool {
        self.capabilities & (1 << capability) != 0
    }

    /// What keeps us from tracing some processes, and what to do about it.
    pub fn tracing_problem(self) -> Option<String> {
        if self.may_trace() {
            return None;
        }
        Some(match self.yama {
            3 => "no process can be traced: kernel.yama.ptrace_scope is 3, and only a reboot \
                  changes that; set it to 2 or less in /etc/sysctl.d"
                .to_owned(),
            2 => "only root may trace processes (kernel.yama.ptrace_scope is 2); run this as root"
                .to_owned(),
            1 => "only one's own children can be traced (kernel.yama.ptrace_scope is 1); run this \
                  as root, or: sysctl kernel.yama.ptrace_scope=0"
                .to_owned(),
            _ => "only one's own processes can be traced; for those of others, run this as root"
                .to_owned(),
        })
    }

    /// What to do when a process could not be traced.
    pub(crate) fn advice(self) -> String {
        self.tracing_problem().unwrap_or_else(|| {
            "a security policy (seccomp, SELinux, AppArmor, or a container) forbids tracing it; \
             run gpreempt on the host, as root"
                .to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "Name:\tx\nCapEff:\t000001ffffffffff\n";

    #[test]
    fn root_may_unless_nobody_may() {
        let root = |yama| Powers::parse(ROOT, yama);
        assert!(root("0\n").may_trace() && root("2\n").may_trace() && root("").may_trace());
        assert!(root("1\n").may_checkpoint());
        assert!(root("3\n").tracing_problem().is_some_and(|text| text.contains("reboot")));
        assert!(root("0\n").advice().contains("security policy"));
    }

    #[test]
    fn others_are_told_what_is_in_the_way() {
        let user = |yama| Powers::parse("CapEff:\t0000000000000000\n", yama);
        assert!(!user("0").may_trace() && !user("0").may_checkpoint());
        assert!(user("0").advice().contains("only one's own processes"));
        assert!(user("1").advice().contains("ptrace_scope=0"));
        assert!(user("2").advice().contains("only root"));
        assert_eq!(Powers::parse("nonsense", "nonsense"), Powers { capabilities: 0, yama: 0 });
    }
}
