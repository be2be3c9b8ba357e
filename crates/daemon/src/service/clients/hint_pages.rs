//! Hint pages: memory that a process writes and the loop reads, so that a hint needs no message.
//!
//! A page is armed before it is read; the process then sends one wake-up with its next hint. A
//! process that gives more hints than [`WAKES_PER_SECOND`] is polled in every iteration instead.
//! A page counts for the process that connected, which a pidfd identifies, and ends with it.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use gpreempt_core::event::Event;
use gpreempt_core::id::TaskId;
use gpreempt_core::time::{Duration, Instant};
use gpreempt_device::client_process::ClientProcess;
use gpreempt_device::controller::{HintSource, HintState};
use gpreempt_wire::event::EventKind;
use gpreempt_wire::hint_page::{HintChange, HintReader};
use gpreempt_wire::hint_page::{Mapping, MappingError};
use gpreempt_wire::token_bucket::TokenBucket;

use super::Clients;
use crate::service::devices::Devices;
use crate::service::processes::Processes;
use crate::service::processes::process_table::TrackedProcess;
use crate::service::telemetry::Telemetry;

/// Wake-ups of one process beyond the rate.
const WAKES_BURST: u32 = 100;
/// Rate above which polling a page costs the loop less than wake-ups do.
const WAKES_PER_SECOND: u32 = 1_000;

#[derive(Debug)]
pub(crate) struct HintPage {
    shared: Arc<SharedPage>,
    reader: HintReader,
    wakes: TokenBucket,
    is_armed: bool,
    /// The task whose controllers have a reference to the page.
    shown_for: Option<TaskId>,
}

/// What controllers see of a page, while its session lasts.
#[derive(Debug)]
struct SharedPage(Mapping);

impl HintSource for SharedPage {
    fn look(&self) -> HintState {
        let mut seen = HintState::default();
        for view in self.0.page().views() {
            // A process may write any numbers. Only a change of the sum has a meaning.
            seen.begun = seen.begun.wrapping_add(view.begun);
            seen.is_active |= view.is_active();
        }
        seen
    }
}

impl HintPage {
    /// A new page, and the descriptor for the process.
    pub(crate) fn new(now: Instant) -> Result<(Self, OwnedFd), MappingError> {
        let (mapping, file) = Mapping::create()?;
        let wakes = TokenBucket::new(WAKES_BURST, WAKES_PER_SECOND, now);
        let reader = HintReader::default();
        let shared = Arc::new(SharedPage(mapping));
        Ok((Self { shared, reader, wakes, is_armed: false, shown_for: None }, file))
    }

    /// The page for the controllers of a task. `None` if they have it already.
    pub(crate) fn show_for(&mut self, task: TaskId) -> Option<Weak<dyn HintSource>> {
        if self.shown_for.replace(task) == Some(task) {
            return None;
        }
        let shared: Arc<dyn HintSource> = Arc::<SharedPage>::clone(&self.shared);
        Some(Arc::downgrade(&shared))
    }

    /// The process reports a hint; it does so once for each time the page was armed.
    pub(crate) const fn wake(&mut self) {
        self.is_armed = false;
    }

    /// Reads what changed. The page is armed first, so no hint is missed between two reads.
    pub(crate) fn look(&mut self, now: Instant) -> Option<HintChange> {
        if self.is_armed {
            return None;
        }
        let page = self.shared.0.page();
        self.is_armed = self.wakes.take(now);
        if self.is_armed { self.reader.arm_and_look(page) } else { self.reader.look(page) }
    }

    /// Whether the page is polled: its process has used up its wake-ups.
    pub(crate) const fn is_polled(&self) -> bool {
        !self.is_armed
    }
}

impl Clients {
    /// Reads the hint pages, and ends the hints of closed sessions.
    pub(crate) fn read_hint_pages(
        &mut self,
        now: Instant,
        processes: &Processes,
        devices: &mut Devices,
        telemetry: &mut Telemetry,
    ) {
        for task in self.sessions.take_orphans() {
            devices.backends.push_event(Event::HintEnd { task });
        }
        let mut hints = Vec::new();
        for session in self.sessions.pages() {
            let Some(page) = &mut session.page else { continue };
            let client = session.client.as_ref();
            // A hint of a process that has not been inspected yet would be lost.
            if client.is_some_and(|client| processes.awaits(client.key)) {
                continue;
            }
            // A page belongs to the process that opened it, not to one with its pid.
            let is_alive = || client.is_some_and(ClientProcess::lives);
            let process = client.and_then(|client| processes.table.get(client.key));
            let applied = process.and_then(|process| Some((process.key, process.applied?.task)));
            if let Some((_, task)) = applied
                && let Some(sight) = page.show_for(task)
                && is_alive()
            {
                devices.backends.watch_hints(task, &sight);
            }
            let Some(change) = page.look(now) else { continue };
            let (Some((key, task)), Some(process)) = (applied, process) else { continue };
            if !is_alive() {
                continue;
            }
            let change = within_bounds(change, process);
            session.hinted = (change != HintChange::Ended).then_some(task);
            hints.push((key, task, change));
        }
        for (key, task, change) in hints {
            let (event, kind, deadline) = match change {
                HintChange::Began { deadline_us } => {
                    let deadline = deadline_us.map(Duration::from_micros);
                    (Event::HintBegin { task, deadline }, EventKind::HintBegin, deadline)
                }
                HintChange::Ended => (Event::HintEnd { task }, EventKind::HintEnd, None),
            };
            devices.backends.push_event(event);
            processes.tell_of(key, kind, deadline.map_or(0, Duration::as_nanos), telemetry);
        }
    }
}

/// A hint's deadline is a wish of the process, so it is bound as the owner's requests are.
fn within_bounds(change: HintChange, process: &TrackedProcess) -> HintChange {
    let HintChange::Began { deadline_us: Some(asked) } = change else { return change };
    let limited = process.bounds().limit_deadline(Some(Duration::from_micros(asked)));
    HintChange::Began { deadline_us: limited.map(Duration::as_micros) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_get_the_page_once_for_each_task_and_while_the_session_lasts() {
        let (mut page, file) = HintPage::new(Instant::ZERO).unwrap();
        let process = Mapping::open(&file).unwrap();
        let slot = process.page().claim().unwrap();
        let sight = page.show_for(TaskId(1)).unwrap();
        assert!(page.show_for(TaskId(1)).is_none());
        assert!(page.show_for(TaskId(2)).is_some());
        let look = || sight.upgrade().map(|page| page.look());
        assert_eq!(look(), Some(HintState::default()));
        process.page().begin(slot, 0);
        assert_eq!(look(), Some(HintState { begun: 1, is_active: true }));
        process.page().end(slot);
        assert_eq!(look(), Some(HintState { begun: 1, is_active: false }));
        drop(page);
        assert_eq!(look(), None);
    }

    #[test]
    fn a_page_is_woken_for_a_hint_and_polled_when_hints_are_frequent() {
        let now = Instant::ZERO;
        let (mut page, file) = HintPage::new(now).unwrap();
        let process = Mapping::open(&file).unwrap();
        let slot = process.page().claim().unwrap();
        assert_eq!(page.look(now), None);
        for _ in 1..WAKES_BURST {
            assert!(!page.is_polled());
            assert!(process.page().begin(slot, 7), "the process must send a wake-up");
            page.wake();
            assert_eq!(page.look(now), Some(HintChange::Began { deadline_us: Some(7) }));
        }
        assert!(process.page().end(slot));
        page.wake();
        page.look(now);
        assert!(page.is_polled(), "the wake-ups are used up");
        assert!(!process.page().begin(slot, 9), "the process sends no wake-up");
        assert_eq!(page.look(now), Some(HintChange::Began { deadline_us: Some(9) }));
        page.look(Instant::from_nanos(1_000_000_000));
        assert!(!page.is_polled(), "the rate allows wake-ups again");
    }
}
