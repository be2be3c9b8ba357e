//! Processes as their tracer and as `/proc` see them.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use gpreempt_device::amd::door::Door;

use crate::verdict::{Verdict, failed};

/// How long anything may take that should happen: much longer than it does on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Does something as the tracer of a process, in a thread that ends with it.
pub(crate) fn traced<T: Send>(
    door: &dyn Door,
    pid: u32,
    errand: impl FnOnce() -> T + Send,
) -> Verdict<T> {
    let done = thread::scope(|scope| {
        scope.spawn(|| door.seize(pid).map(|()| errand())).join().map_err(|_| "a thread failed")
    })??;
    wait_until("the process is let go", || tracer_of(pid) == Some(0))?;
    Ok(done)
}

/// Waits for something that is about to happen.
pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) -> Verdict {
    let since = Instant::now();
    while !is_so() {
        if since.elapsed() > PATIENCE {
            return failed(format!("{what}: it never happened"));
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Whether a process runs as if nobody had ever looked at it.
pub(crate) fn untouched(pid: u32) -> Verdict {
    match (tracer_of(pid), field(pid, "State:")) {
        (Some(0), Some(state)) if !state.starts_with(['t', 'T', 'Z', 'X']) => Ok(()),
        (tracer, state) => failed(format!("process {pid}: tracer {tracer:?}, state {state:?}")),
    }
}

fn tracer_of(pid: u32) -> Option<u32> {
    field(pid, "TracerPid:")?.parse().ok()
}

fn field(pid: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_runs_is_untouched_and_who_is_gone_is_not() {
        untouched(std::process::id()).unwrap();
        assert!(untouched(u32::MAX).is_err());
        wait_until("now", || true).unwrap();
    }
}
