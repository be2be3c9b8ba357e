//! What the last call of a thread that failed had to say.

use std::cell::RefCell;

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Remembers a sentence for this thread.
pub(crate) fn remember(sentence: String) {
    // A thread that is about to end has no place for it any more, and nobody to ask for it.
    let _ = LAST.try_with(|last| *last.borrow_mut() = sentence);
}

/// The sentence of this thread.
pub(crate) fn last() -> String {
    LAST.try_with(|last| last.borrow().clone()).unwrap_or_default()
}
