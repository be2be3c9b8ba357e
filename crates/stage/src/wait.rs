//! Waiting with a limit.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::StageError;

/// How long anything may take that a test waits for. Far more than it takes: other processes use
/// the machine at the same time.
pub const LIMIT: Duration = Duration::from_secs(120);

/// How often a condition is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// Waits until `look` finds something. `said` is asked for what a process printed if it does not.
///
/// # Errors
/// If that takes longer than `limit`, or if `look` fails.
pub fn wait_for<T>(
    what: &str,
    limit: Duration,
    said: impl FnOnce() -> String,
    mut look: impl FnMut() -> Result<Option<T>, StageError>,
) -> Result<T, StageError> {
    let end = Instant::now() + limit;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() > end {
            let said = said();
            let said = if said.is_empty() { said } else { format!("; it printed: {said}") };
            return Err(StageError::Late { what: what.to_owned(), limit, said });
        }
        sleep(LOOK);
    }
}

/// Waits until something is so.
///
/// # Panics
/// If that takes longer than [`LIMIT`].
#[track_caller]
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    until_some(what, || is_so().then_some(()));
}

/// Waits until `look` finds something.
///
/// # Panics
/// If that takes longer than [`LIMIT`].
#[track_caller]
#[expect(clippy::panic, reason = "a test that waits in vain has failed")]
pub fn until_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    match wait_for(what, LIMIT, String::new, || Ok(look())) {
        Ok(found) => found,
        Err(error) => panic!("{error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_what_it_finds_or_with_its_limit() {
        let mut looks = 0;
        let found = until_some("the third look", || {
            looks += 1;
            (looks == 3).then_some("found")
        });
        assert_eq!((found, looks), ("found", 3));
        let limit = Duration::from_millis(5);
        let late = wait_for("never", limit, || "a line".to_owned(), || Ok(None::<()>));
        assert_eq!(late.unwrap_err().to_string(), "not within 5ms: never; it printed: a line");
    }
}
