//! The result of a check, and helpers that wait for and inspect processes.

use std::fmt::{self, Debug};
use std::thread;
use std::time::{Duration, Instant};

use gpreempt_device::amd::KfdDebugCalls;
use gpreempt_device::process::StatusFile;

/// Why a check did not pass. It does not implement `Display`, so that every error that does
/// converts to it.
#[derive(Debug)]
pub(crate) enum Problem {
    Failed(String),
    Skipped(String),
}

pub(crate) type CheckResult<T = ()> = Result<T, Problem>;

impl<E: fmt::Display> From<E> for Problem {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

pub(crate) fn failed<T>(what: impl Into<String>) -> CheckResult<T> {
    Err(Problem::Failed(what.into()))
}

pub(crate) fn skipped<T>(why: impl Into<String>) -> CheckResult<T> {
    Err(Problem::Skipped(why.into()))
}

pub(crate) fn same<T: PartialEq + Debug>(what: &str, found: T, expected: T) -> CheckResult {
    if found == expected {
        return Ok(());
    }
    failed(format!("{what}: {found:?}, not {expected:?}"))
}

/// Whether a message contains the words that tell the user what to do.
pub(crate) fn says(sentence: &str, words: &[&str]) -> CheckResult {
    match words.iter().find(|word| !sentence.contains(**word)) {
        None => Ok(()),
        Some(word) => failed(format!("`{sentence}` does not say `{word}`")),
    }
}

/// The time limit of every wait: much longer than it takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Runs `errand` as the tracer of a process, in a thread that ends afterwards.
pub(crate) fn traced<T: Send>(
    kfd: &dyn KfdDebugCalls,
    pid: u32,
    errand: impl FnOnce() -> T + Send,
) -> CheckResult<T> {
    let done = thread::scope(|scope| {
        scope.spawn(|| kfd.seize(pid).map(|()| errand())).join().map_err(|_| "a thread failed")
    })??;
    let tracer = || StatusFile::read(pid).ok()?.number::<u32>("TracerPid", 0);
    wait_until("the process is no longer traced", || tracer() == Some(0))?;
    Ok(done)
}

pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) -> CheckResult {
    let since = Instant::now();
    while !is_so() {
        if since.elapsed() > PATIENCE {
            return failed(format!("{what}: it never happened"));
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Whether a process runs and is neither stopped nor traced.
pub(crate) fn untouched(pid: u32) -> CheckResult {
    let status = StatusFile::read(pid).unwrap_or_default();
    match (status.number::<u32>("TracerPid", 0), status.field("State")) {
        (Some(0), Some(state)) if !state.starts_with(['t', 'T', 'Z', 'X']) => Ok(()),
        (tracer, state) => failed(format!("process {pid}: tracer {tracer:?}, state {state:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said() {
        assert!(same("one", 1, 1).is_ok());
        let Err(Problem::Failed(what)) = same("one", 1, 2) else { panic!("1 is not 2") };
        assert_eq!(what, "one: 1, not 2");
        assert!(says("run this as root", &["run", "root"]).is_ok());
        assert!(matches!(says("no", &["root"]), Err(Problem::Failed(_))));
    }

    #[test]
    fn who_runs_is_untouched_and_who_is_gone_is_not() {
        untouched(std::process::id()).unwrap();
        assert!(untouched(u32::MAX).is_err());
        wait_until("now", || true).unwrap();
    }
}
