//! Hints through a page that is shared with gpreemptd.
//!
//! Each thread has a slot of the page in its thread-local state: a hint is a few atomic writes. A
//! fork, a disconnect or a lost daemon makes slots invalid by changing a number that every hint
//! checks; the thread then takes another slot.

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

#[derive(Debug, Default)]
struct ThreadHint {
    slot: Option<HintSlot>,
    /// The process in which this thread began a hint that it has not ended.
    begun: Option<u64>,
}

thread_local! {
    static THREAD: RefCell<ThreadHint> =
        const { RefCell::new(ThreadHint { slot: None, begun: None }) };
}

pub(crate) fn begin(deadline_us: u64) -> Result<(), Failure> {
    with_thread(|thread| {
        if thread.begun == Some(fork::generation()) {
            return fail(ErrorCode::State, "this thread has begun a hint already; end it first");
        }
        // Twice, because the first attempt may find that gpreemptd was restarted.
        if !thread.slot()?.begin(deadline_us) {
            invalidate_pages();
            if !thread.slot()?.begin(deadline_us) {
                invalidate_pages();
                return Err(ErrorCode::Disconnected.into());
            }
        }
        thread.begun = Some(fork::generation());
        Ok(())
    })
}

pub(crate) fn end() -> Result<(), Failure> {
    with_thread(|thread| {
        if thread.begun != Some(fork::generation()) {
            return fail(ErrorCode::State, "this thread has not begun a hint");
        }
        thread.begun = None;
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

impl ThreadHint {
    /// This thread's slot, or a new one.
    fn slot(&mut self) -> Result<&mut HintSlot, Failure> {
        if !self.slot.as_ref().is_some_and(HintSlot::is_valid) {
            self.slot = None;
            self.slot = Some(HintSlot::take()?);
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
            && at.elapsed() < RETRY_AFTER
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
