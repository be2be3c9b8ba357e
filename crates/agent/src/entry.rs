//! The door between C and everything else: nothing unwinds through it, nothing is printed.

use std::cell::Cell;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::c_api::types::GPREEMPT_OK;
use crate::code::Code;
use crate::failure::Failure;
use crate::message;

thread_local! {
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

static HOOK: Once = Once::new();

/// Does what a function of the library does, and turns what comes of it into a number. A panic is a
/// mistake of ours: a number as well.
pub(crate) fn guarded(action: impl FnOnce() -> Result<(), Failure>) -> c_int {
    HOOK.call_once(keep_quiet);
    let before = set_inside(true);
    // Whatever was changed when it panicked is behind locks that take no notice of panics, and is
    // written in an order that leaves it whole.
    let result = catch_unwind(AssertUnwindSafe(action));
    set_inside(before);
    match result {
        Ok(Ok(())) => GPREEMPT_OK,
        Ok(Err(failure)) => {
            message::remember(failure.sentence);
            failure.code.number()
        }
        Err(_) => {
            message::remember(Code::Internal.sentence().to_owned());
            Code::Internal.number()
        }
    }
}

fn set_inside(is_inside: bool) -> bool {
    IS_INSIDE.try_with(|inside| inside.replace(is_inside)).unwrap_or(false)
}

/// Panics inside of the library say nothing. Those of a program in Rust around it are its own.
fn keep_quiet() {
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
    fn a_panic_is_a_code() {
        assert_eq!(guarded(|| panic!("a mistake")), Code::Internal.number());
        assert_eq!(message::last(), Code::Internal.sentence());
        assert_eq!(guarded(|| Ok(())), GPREEMPT_OK);
    }

    #[test]
    fn a_failure_is_its_code_and_leaves_its_sentence_in_its_thread() {
        let failed = guarded(|| Err(Failure::new(Code::Busy, "try later")));
        assert_eq!((failed, message::last().as_str()), (-9, "try later"));
        let elsewhere = std::thread::spawn(message::last).join().unwrap();
        assert_eq!(elsewhere, "");
    }
}
