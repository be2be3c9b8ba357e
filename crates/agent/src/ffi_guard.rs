//! The boundary to C: no panic crosses it, and an error becomes a number and a stored sentence.

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::c_api::types::GPREEMPT_OK;
use crate::error::{ErrorCode, Failure};

thread_local! {
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    /// The sentence of this thread's last failed call.
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

static HOOK: Once = Once::new();

/// Runs the body of a C function and returns its code. A panic is [`ErrorCode::Internal`].
///
/// A call of a signal handler that interrupted another call of the same thread is refused: it would
/// wait for ever for locks that the interrupted call holds.
pub(crate) fn guarded(action: impl FnOnce() -> Result<(), Failure>) -> c_int {
    if set_inside(true) {
        return ErrorCode::State.number();
    }
    HOOK.call_once(silence_panics);
    // All state is behind locks that ignore poisoning, and every write leaves it consistent.
    let result = catch_unwind(AssertUnwindSafe(action));
    let code = match result {
        Ok(Ok(())) => GPREEMPT_OK,
        Ok(Err(failure)) => remember(failure),
        Err(_) => remember(ErrorCode::Internal.into()),
    };
    set_inside(false);
    code
}

/// Stores the sentence of a failure for this thread. Returns its code.
fn remember(failure: Failure) -> c_int {
    // A thread that is ending has no storage left.
    let _ = LAST.try_with(|last| *last.borrow_mut() = failure.sentence);
    failure.code.number()
}

/// The sentence of this thread's last failed call.
pub(crate) fn last_error() -> String {
    LAST.try_with(|last| last.borrow().clone()).unwrap_or_default()
}

fn set_inside(is_inside: bool) -> bool {
    IS_INSIDE.try_with(|inside| inside.replace(is_inside)).unwrap_or(false)
}

/// Panics inside the library print nothing. Those of a Rust program around it are unchanged.
fn silence_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !IS_INSIDE.try_with(Cell::get).unwrap_or(false) {
            before(panic);
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_code() {
        assert_eq!(guarded(|| panic!("a mistake")), ErrorCode::Internal.number());
        assert_eq!(last_error(), ErrorCode::Internal.sentence());
        assert_eq!(guarded(|| Ok(())), GPREEMPT_OK);
    }

    #[test]
    fn a_call_inside_of_another_one_is_refused_and_later_ones_are_not() {
        let mut inner = 0;
        let outer = guarded(|| {
            inner = guarded(|| Ok(()));
            Ok(())
        });
        assert_eq!((outer, inner), (GPREEMPT_OK, ErrorCode::State.number()));
        assert_eq!(guarded(|| Ok(())), GPREEMPT_OK);
    }

    #[test]
    fn a_failure_becomes_its_code_and_its_sentence_stays_in_its_thread() {
        let failed = guarded(|| Err(Failure::new(ErrorCode::Busy, "try later")));
        assert_eq!((failed, last_error().as_str()), (-9, "try later"));
        let elsewhere = std::thread::spawn(last_error).join().unwrap();
        assert_eq!(elsewhere, "");
    }
}
