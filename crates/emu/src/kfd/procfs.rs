//! What the real kernel says about processes.

use std::fs;
use std::path::Path;

/// The capability to pause processes, and the one that includes it.
const MAY_CHECKPOINT: u64 = 1 << 40 | IS_ADMIN;
/// The capability that includes many.
const IS_ADMIN: u64 = 1 << 21;

/// The thread that traces a process.
pub(crate) fn tracer_of(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    field(&status, "TracerPid:")?.parse().ok().filter(|tracer| *tracer != 0)
}

/// Whether a thread belongs to a process.
pub(crate) fn is_thread_of(thread: u32, pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}/task/{thread}")).exists()
}

/// Whether a process may pause others.
pub(crate) fn may_checkpoint(pid: u32) -> bool {
    has_any(pid, MAY_CHECKPOINT)
}

/// Whether a process may do almost everything.
pub(crate) fn is_admin(pid: u32) -> bool {
    has_any(pid, IS_ADMIN)
}

fn has_any(pid: u32, wanted: u64) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let capabilities = field(&status, "CapEff:").and_then(|set| u64::from_str_radix(set, 16).ok());
    capabilities.is_some_and(|set| set & wanted != 0)
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_belong_to_their_process() {
        let own = std::process::id();
        assert!(is_thread_of(own, own) && !is_thread_of(u32::MAX, own));
        assert!(!may_checkpoint(u32::MAX) && !is_admin(u32::MAX));
        assert_eq!(tracer_of(u32::MAX), None);
    }
}
