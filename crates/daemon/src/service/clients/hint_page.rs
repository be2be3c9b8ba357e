//! Hints without messages: a page that a process writes and the loop reads.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use gpreempt_core::event::Event;
use gpreempt_core::id::TaskId;
use gpreempt_core::time::{Duration, Instant};
use gpreempt_device::controller::{HintSight, HintView};
use gpreempt_wire::event::EventKind;
use gpreempt_wire::hint_page::{HintChange, HintReader};
use gpreempt_wire::hint_page::{Mapping, MappingError};
use gpreempt_wire::token_bucket::TokenBucket;

use super::Clients;
use crate::service::devices::Devices;
use crate::service::processes::Processes;
use crate::service::telemetry::Telemetry;

/// Wake-ups at once, before the rate counts.
const WAKES_BURST: u32 = 100;
/// Wake-ups in a second. Whoever gives more hints than that is looked at in every turn instead,
/// which costs it nothing and us less.
const WAKES_PER_SECOND: u32 = 1_000;

/// One process's page.
#[derive(Debug)]
pub(crate) struct Page {
    shared: Arc<SharedPage>,
    reader: HintReader,
    wakes: TokenBucket,
    is_armed: bool,
    /// The task whose devices know where the page is.
    shown_for: Option<TaskId>,
}

/// What devices see of a page, while its session lasts.
#[derive(Debug)]
struct SharedPage(Mapping);

impl HintSight for SharedPage {
    fn look(&self) -> HintView {
        let mut seen = HintView::default();
        for view in self.0.page().views() {
            // Anything may be in a page. What matters is whether the sum is another one.
            seen.begun = seen.begun.wrapping_add(view.begun);
            seen.is_active |= view.is_active();
        }
        seen
    }
}

impl Page {
    /// A new page, and the descriptor for the process.
    pub(crate) fn new(now: Instant) -> Result<(Self, OwnedFd), MappingError> {
        let (mapping, file) = Mapping::create()?;
        let wakes = TokenBucket::new(WAKES_BURST, WAKES_PER_SECOND, now);
        let reader = HintReader::default();
        let shared = Arc::new(SharedPage(mapping));
        Ok((Self { shared, reader, wakes, is_armed: false, shown_for: None }, file))
    }

    /// The page for the devices of a task, unless they have it.
    pub(crate) fn show_for(&mut self, task: TaskId) -> Option<Weak<dyn HintSight>> {
        if self.shown_for.replace(task) == Some(task) {
            return None;
        }
        let shared: Arc<dyn HintSight> = Arc::<SharedPage>::clone(&self.shared);
        Some(Arc::downgrade(&shared))
    }

    /// The process says that something changed; it does so only once.
    pub(crate) const fn wake(&mut self) {
        self.is_armed = false;
    }

    /// What changed. Nothing is missed: unless it is looked at in every turn, the page is armed
    /// before it is looked at.
    pub(crate) fn look(&mut self, now: Instant) -> Option<HintChange> {
        if self.is_armed {
            return None;
        }
        let page = self.shared.0.page();
        self.is_armed = self.wakes.take(now);
        if self.is_armed { self.reader.arm_and_look(page) } else { self.reader.look(page) }
    }

    /// Whether the next look must not wait for a wake-up.
    pub(crate) const fn is_restless(&self) -> bool {
        !self.is_armed
    }
}

impl Clients {
    /// Reads the hint pages, and ends the hints of sessions that are over.
    pub(crate) fn look_at_pages(
        &mut self,
        now: Instant,
        processes: &Processes,
        devices: &mut Devices,
        telemetry: &mut Telemetry,
    ) {
        for task in self.sessions.take_orphans() {
            devices.backends.say(Event::HintEnd { task });
        }
        let mut hints = Vec::new();
        for session in self.sessions.pages() {
            let Some(page) = &mut session.page else { continue };
            // A hint of a process that has not been inspected yet would be lost.
            if session.process.is_some_and(|key| processes.backlog.awaits(key)) {
                continue;
            }
            let member = session.process.and_then(|key| processes.roster.get(key));
            let in_force = member.and_then(|member| Some((member.key, member.in_force?.task)));
            if let Some((_, task)) = in_force
                && let Some(sight) = page.show_for(task)
            {
                devices.backends.watch_hints(task, &sight);
            }
            let Some(change) = page.look(now) else { continue };
            let Some((key, task)) = in_force else { continue };
            session.hinted = (change != HintChange::Ended).then_some(task);
            hints.push((key, task, change));
        }
        for (key, task, change) in hints {
            match change {
                HintChange::Began { deadline_us } => {
                    let deadline = deadline_us.map(Duration::from_micros);
                    devices.backends.say(Event::HintBegin { task, deadline });
                    let deadline_ns = deadline.map_or(0, Duration::as_nanos);
                    processes.tell_of(key, EventKind::HintBegin, deadline_ns, telemetry);
                }
                HintChange::Ended => {
                    devices.backends.say(Event::HintEnd { task });
                    processes.tell_of(key, EventKind::HintEnd, 0, telemetry);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_see_the_page_once_for_each_task_and_while_the_session_lasts() {
        let (mut page, file) = Page::new(Instant::ZERO).unwrap();
        let process = Mapping::open(&file).unwrap();
        let slot = process.page().claim().unwrap();
        let sight = page.show_for(TaskId(1)).unwrap();
        assert!(page.show_for(TaskId(1)).is_none());
        assert!(page.show_for(TaskId(2)).is_some());
        let look = || sight.upgrade().map(|page| page.look());
        assert_eq!(look(), Some(HintView::default()));
        process.page().begin(slot, 0);
        assert_eq!(look(), Some(HintView { begun: 1, is_active: true }));
        process.page().end(slot);
        assert_eq!(look(), Some(HintView { begun: 1, is_active: false }));
        drop(page);
        assert_eq!(look(), None);
    }

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
