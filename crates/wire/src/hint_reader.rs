//! The daemon's side of a hint page: what changed since it looked last.

use crate::hint_page::{HintPage, SLOTS, SlotView};

/// What a process says now that it did not say before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HintChange {
    /// A request is coming.
    Began {
        /// When it should be done, in microseconds from when it was said: the nearest, if several
        /// are coming. None if that does not matter.
        deadline_us: Option<u64>,
    },
    /// No request is on its way any more.
    Ended,
}

/// What was seen of a page.
#[derive(Clone, Debug)]
pub struct HintReader {
    begun: [u64; SLOTS],
    is_active: bool,
}

impl Default for HintReader {
    fn default() -> Self {
        Self { begun: [0; SLOTS], is_active: false }
    }
}

impl HintReader {
    /// Asks to be woken by the next change, and looks.
    pub fn arm_and_look(&mut self, page: &HintPage) -> Option<HintChange> {
        page.arm();
        self.look(page)
    }

    /// Looks. A request that came and went since then is not mentioned.
    pub fn look(&mut self, page: &HintPage) -> Option<HintChange> {
        let mut is_active = false;
        let mut new: Option<Option<u64>> = None;
        for (seen, view) in self.begun.iter_mut().zip(page.views()) {
            let is_new = std::mem::replace(seen, view.begun) != view.begun;
            is_active |= view.is_active();
            if is_new && view.is_active() {
                new = Some(nearer(new.flatten(), view));
            }
        }
        let was_active = std::mem::replace(&mut self.is_active, is_active);
        match new {
            Some(deadline_us) => Some(HintChange::Began { deadline_us }),
            None => (was_active && !is_active).then_some(HintChange::Ended),
        }
    }
}

fn nearer(deadline_us: Option<u64>, view: SlotView) -> Option<u64> {
    let own = Some(view.deadline_us).filter(|deadline_us| *deadline_us != 0);
    match (deadline_us, own) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hint_page::blank;

    #[test]
    fn changes_are_told_once() {
        let (page, mut reader) = (blank(), HintReader::default());
        let slot = page.claim().unwrap();
        assert_eq!(reader.arm_and_look(&page), None);
        assert!(page.begin(slot, 500));
        let began = HintChange::Began { deadline_us: Some(500) };
        assert_eq!(reader.arm_and_look(&page), Some(began));
        assert_eq!(reader.look(&page), None);
        assert!(page.end(slot));
        assert_eq!(reader.look(&page), Some(HintChange::Ended));
        assert_eq!(reader.look(&page), None);
    }

    #[test]
    fn a_request_that_came_and_went_is_not_mentioned() {
        let (page, mut reader) = (blank(), HintReader::default());
        let slot = page.claim().unwrap();
        page.begin(slot, 0);
        page.end(slot);
        assert_eq!(reader.look(&page), None);
        // One that ended and one that began between two looks are a new one.
        page.begin(slot, 0);
        assert_eq!(reader.look(&page), Some(HintChange::Began { deadline_us: None }));
        page.end(slot);
        page.begin(slot, 9);
        assert_eq!(reader.look(&page), Some(HintChange::Began { deadline_us: Some(9) }));
    }

    #[test]
    fn threads_of_one_process_speak_with_one_voice() {
        let (page, mut reader) = (blank(), HintReader::default());
        let slots = [0; 3].map(|_| page.claim().unwrap());
        page.begin(slots[0], 0);
        page.begin(slots[1], 800);
        page.begin(slots[2], 300);
        let began = HintChange::Began { deadline_us: Some(300) };
        assert_eq!(reader.look(&page), Some(began));
        page.end(slots[2]);
        page.end(slots[0]);
        assert_eq!(reader.look(&page), None, "one of them still has a request");
        page.end(slots[1]);
        assert_eq!(reader.look(&page), Some(HintChange::Ended));
    }
}
