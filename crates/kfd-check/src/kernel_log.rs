//! The kernel's log.

use std::io;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// What a kernel says that has found a fault in itself.
const TROUBLES: &[&str] = &[
    "BUG:",
    "WARNING:",
    "Oops",
    "general protection fault",
    "refcount_t:",
    "UBSAN",
    "KASAN",
    "blocked for more than",
    "possible recursive locking",
    "use-after-free",
    "list_add corruption",
];

/// What it says when the machine it runs on had no time for it, which is no fault of anybody's.
const STARVED: &[&str] = &["soft lockup", "rcu_preempt", "rcu_sched", "clocksource"];

/// All of it, as far as it is still there.
pub(crate) fn read() -> io::Result<Vec<String>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let log = rustix::fs::open("/dev/kmsg", flags, Mode::empty())?;
    let mut lines = Vec::new();
    let mut record = vec![0_u8; 8192];
    loop {
        match rustix::io::read(&log, &mut *record) {
            Ok(0) | Err(Errno::AGAIN) => return Ok(lines),
            Ok(length) => lines.push(String::from_utf8_lossy(&record[..length]).into_owned()),
            // Some of it was overwritten meanwhile.
            Err(Errno::PIPE | Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Those of some records that speak of trouble.
pub(crate) fn troubles(records: &[String]) -> Vec<String> {
    let text = |record: &String| record.split_once(';').map(|(_, text)| text.trim().to_owned());
    let is_trouble = |text: &String| {
        TROUBLES.iter().any(|word| text.contains(word))
            && !STARVED.iter().any(|word| text.contains(word))
    };
    records.iter().filter_map(text).filter(is_trouble).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_found_and_hunger_is_not() {
        let records: Vec<String> = [
            "6,1,0,-;Linux version 6.12",
            "4,2,0,-;WARNING: CPU: 1 PID: 7 at kfd_process.c:1\n",
            "0,3,0,-;watchdog: BUG: soft lockup - CPU#0 stuck for 26s!",
            "3,4,0,-;INFO: task kfd-target:7 blocked for more than 120 seconds.",
        ]
        .map(str::to_owned)
        .to_vec();
        let found = troubles(&records);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("WARNING") && found[1].starts_with("INFO"));
    }
}
