//! Coming before what only computes.

use rustix::process::{getpriority_process, setpriority_process};

/// As nice as the system's own urgent threads.
pub const NICENESS: i32 = -10;

/// Has this thread, and what it starts from now on, run before ordinary programs where it may: many
/// wait for the little that it does. Where it may not, everything goes on as before.
pub fn come_first() {
    if getpriority_process(None).is_ok_and(|niceness| niceness > NICENESS) {
        let _ = setpriority_process(None, NICENESS);
    }
}
