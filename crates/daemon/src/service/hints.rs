//! Hints without messages: a page that a process writes and the loop reads.

use std::os::fd::OwnedFd;

use gpreempt_core::time::Instant;
use gpreempt_wire::hint_reader::{HintChange, HintReader};
use gpreempt_wire::mapping::{Mapping, MappingError};
use gpreempt_wire::token_bucket::TokenBucket;

/// Wake-ups at once, before the rate counts.
const WAKES_BURST: u32 = 100;
/// Wake-ups in a second. Whoever gives more hints than that is looked at in every turn instead,
/// which costs it nothing and us less.
const WAKES_PER_SECOND: u32 = 1_000;

/// One process's page.
#[derive(Debug)]
pub(super) struct Page {
    mapping: Mapping,
    reader: HintReader,
    wakes: TokenBucket,
    is_armed: bool,
}

impl Page {
    /// A new page, and the descriptor for the process.
    pub(super) fn new(now: Instant) -> Result<(Self, OwnedFd), MappingError> {
        let (mapping, file) = Mapping::create()?;
        let wakes = TokenBucket::new(WAKES_BURST, WAKES_PER_SECOND, now);
        let reader = HintReader::default();
        Ok((Self { mapping, reader, wakes, is_armed: false }, file))
    }

    /// The process says that something changed; it does so only once.
    pub(super) const fn wake(&mut self) {
        self.is_armed = false;
    }

    /// What changed. Nothing is missed: unless it is looked at in every turn, the page is armed
    /// before it is looked at.
    pub(super) fn look(&mut self, now: Instant) -> Option<HintChange> {
        if self.is_armed {
            return None;
        }
        let page = self.mapping.page();
        self.is_armed = self.wakes.take(now);
        if self.is_armed { self.reader.arm_and_look(page) } else { self.reader.look(page) }
    }

    /// Whether the next look must not wait for a wake-up.
    pub(super) const fn is_restless(&self) -> bool {
        !self.is_armed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_sleeps_is_woken_and_one_that_never_rests_is_looked_at() {
        let now = Instant::ZERO;
        let (mut page, file) = Page::new(now).unwrap();
        let process = Mapping::open(&file).unwrap();
        let slot = process.page().claim().unwrap();
        assert_eq!(page.look(now), None);
        for _ in 1..WAKES_BURST {
            assert!(!page.is_restless());
            assert!(process.page().begin(slot, 7), "it has to be woken");
            page.wake();
            assert_eq!(page.look(now), Some(HintChange::Began { deadline_us: Some(7) }));
        }
        assert!(process.page().end(slot));
        page.wake();
        page.look(now);
        assert!(page.is_restless(), "it had enough");
        assert!(!process.page().begin(slot, 9), "so nobody wakes it");
        assert_eq!(page.look(now), Some(HintChange::Began { deadline_us: Some(9) }));
        page.look(Instant::from_nanos(1_000_000_000));
        assert!(!page.is_restless(), "later it sleeps again");
    }
}
