//! Hints through a page that is shared with gpreemptd.
//!
//! Each thread has a slot of the page in its thread-local state: a hint is a few atomic writes. The
//! slot counts, so that an event loop, which serves many requests in one thread, begins a hint for
//! each of them. A fork, a disconnect or a lost daemon makes slots invalid by changing a number
//! that every hint checks; the thread then takes another slot.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpreempt_wire::client::HintWriter;
use rustix::net::{Shutdown, shutdown};

use crate::error::{ErrorCode, Failure, fail};
use crate::fork::{self, ForkClosedFd};
use crate::session::{self, lock};

/// A thread checks the connection with every 256th hint.
const CHECK_EVERY: u32 = 256;
/// The pause between attempts to connect when there is no gpreemptd: a hint must stay cheap.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// The longest delay of one hint by a daemon that hangs.
const TIMEOUT: Duration = Duration::from_millis(200);
/// The pause after such a delay: an event loop that gives hints stands still meanwhile.
const RETRY_AFTER_TIMEOUT: Duration = Duration::from_secs(30);
/// Hints of one thread at the same time: a program that never ends its hints is told so.
const OPEN_MAX: u32 = 10_000;

/// Incremented when open pages become invalid.
static EPOCH: AtomicU64 = AtomicU64::new(0);

/// The page of this process, or why there is none.
#[derive(Debug, Default)]
pub(crate) struct HintPageCache {
    page: Option<(u64, Arc<HintWriter>)>,
    failed: Option<(Instant, Failure)>,
}

/// A thread's slot of a page.
#[derive(Debug)]
struct HintSlot {
    generation: u64,
    epoch: u64,
    writer: Option<Arc<HintWriter>>,
    slot: usize,
    hints: u32,
}

#[derive(Debug)]
struct ThreadHint {
    slot: Option<HintSlot>,
    /// Hints that this thread has begun and not ended.
    open: u32,
    /// The process in which it began them.
    generation: u64,
}

thread_local! {
    static THREAD: RefCell<ThreadHint> =
        const { RefCell::new(ThreadHint { slot: None, open: 0, generation: 0 }) };
}

pub(crate) fn begin(deadline_us: u64) -> Result<(), Failure> {
    with_thread(|thread| {
        thread.forget_hints_of_parent();
        if thread.open == OPEN_MAX {
            let sentence = "this thread has begun 10000 hints and ended none of them; end them";
            return fail(ErrorCode::Limit, sentence);
        }
        // Twice, because the first attempt may find that gpreemptd was restarted.
        if !thread.slot()?.begin(deadline_us) {
            invalidate_pages();
            if !thread.slot()?.begin(deadline_us) {
                invalidate_pages();
                return Err(ErrorCode::Disconnected.into());
            }
        }
        thread.open += 1;
        Ok(())
    })
}

pub(crate) fn end() -> Result<(), Failure> {
    with_thread(|thread| {
        thread.forget_hints_of_parent();
        let Some(open) = thread.open.checked_sub(1) else {
            return fail(ErrorCode::State, "this thread has not begun a hint");
        };
        thread.open = open;
        // On an invalid page the hint has ended already.
        if let Some(slot) = thread.slot.as_ref().filter(|slot| slot.is_valid())
            && let Some(writer) = &slot.writer
            && !writer.end(slot.slot)
        {
            invalidate_pages();
        }
        Ok(())
    })
}

/// Ends all hints of this process.
pub(crate) fn disconnect(cache: &Mutex<HintPageCache>) {
    let mut cache = lock(cache);
    invalidate_pages();
    cache.close();
    cache.failed = None;
}

fn invalidate_pages() {
    EPOCH.fetch_add(1, Ordering::Relaxed);
}

fn with_thread<T>(
    action: impl FnOnce(&mut ThreadHint) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let ending = |_| Failure::new(ErrorCode::State, "this thread is ending");
    THREAD
        .try_with(|thread| match thread.try_borrow_mut() {
            Ok(mut thread) => action(&mut thread),
            // Only a signal handler can interrupt a hint.
            Err(_) => fail(ErrorCode::State, "this thread is giving a hint"),
        })
        .map_err(ending)?
}

const fn retry_after(failure: &Failure) -> Duration {
    let has_waited = matches!(failure.code, ErrorCode::TimedOut);
    if has_waited { RETRY_AFTER_TIMEOUT } else { RETRY_AFTER }
}

impl ThreadHint {
    /// After a fork: what the parent's thread began, this one does not end.
    fn forget_hints_of_parent(&mut self) {
        let generation = fork::generation();
        if self.generation != generation {
            (self.generation, self.open) = (generation, 0);
        }
    }

    /// This thread's slot, or a new one that has as many hints as the thread.
    fn slot(&mut self) -> Result<&mut HintSlot, Failure> {
        if !self.slot.as_ref().is_some_and(HintSlot::is_valid) {
            self.slot = None;
            let mut slot = HintSlot::take()?;
            for _ in 0..self.open {
                slot.begin(0);
            }
            self.slot = Some(slot);
        }
        self.slot.as_mut().ok_or_else(|| ErrorCode::Internal.into())
    }
}

impl HintSlot {
    fn is_valid(&self) -> bool {
        self.generation == fork::generation() && self.epoch == EPOCH.load(Ordering::Relaxed)
    }

    fn take() -> Result<Self, Failure> {
        let mut cache = lock(&session::state()?.hints);
        let (epoch, writer) = cache.page()?;
        let Some(slot) = writer.claim() else {
            let sentence = "63 threads of this process give hints already; end some of them";
            return fail(ErrorCode::Limit, sentence);
        };
        let generation = fork::generation();
        Ok(Self { generation, epoch, writer: Some(writer), slot, hints: 0 })
    }

    /// Returns false if the connection to gpreemptd is lost.
    fn begin(&mut self, deadline_us: u64) -> bool {
        let Some(writer) = &self.writer else { return false };
        self.hints = self.hints.wrapping_add(1);
        let is_connected = !self.hints.is_multiple_of(CHECK_EVERY) || writer.is_connected();
        is_connected && writer.begin(self.slot, deadline_us)
    }
}

impl Drop for HintSlot {
    fn drop(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        if self.generation == fork::generation() {
            writer.release(self.slot);
        } else {
            // The slot and the descriptor belong to the parent process.
            let _ = Arc::into_raw(writer);
        }
    }
}

impl HintPageCache {
    /// The page, or a new one.
    fn page(&mut self) -> Result<(u64, Arc<HintWriter>), Failure> {
        let epoch = EPOCH.load(Ordering::Relaxed);
        if let Some((known, writer)) = &self.page
            && *known == epoch
        {
            return Ok((epoch, Arc::clone(writer)));
        }
        self.close();
        if let Some((at, failure)) = &self.failed
            && at.elapsed() < retry_after(failure)
        {
            return Err(failure.clone());
        }
        let opened = session::another_client(TIMEOUT).and_then(|client| Ok(client.open_page()?));
        match opened {
            Ok(writer) => {
                fork::close_in_child(ForkClosedFd::Hints, &writer);
                let writer = Arc::new(writer);
                self.page = Some((epoch, Arc::clone(&writer)));
                self.failed = None;
                Ok((epoch, writer))
            }
            Err(failure) => {
                self.failed = Some((Instant::now(), failure.clone()));
                Err(failure)
            }
        }
    }

    fn close(&mut self) {
        if let Some((_, writer)) = self.page.take() {
            fork::forget(ForkClosedFd::Hints);
            // Other threads may still own the writer, so dropping it would not close the socket.
            let _ = shutdown(&*writer, Shutdown::Both);
        }
    }
}
