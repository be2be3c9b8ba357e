//! Hints through a page that is shared with gpreemptd.
//!
//! Each thread has a slot of the page, which it finds in its own memory: a hint is a few atomic
//! writes. Whatever makes a slot worthless (a fork, a disconnect, a daemon that is gone) changes a
//! number that every hint looks at, and the thread takes another one.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpreempt_wire::client::HintWriter;
use rustix::net::{Shutdown, shutdown};

use crate::code::Code;
use crate::failure::Failure;
use crate::fork::{self, Kept};
use crate::session::{self, lock};

/// How many hints a thread gives before it looks whether gpreemptd is still there.
const LOOK_EVERY: u32 = 256;
/// How long nobody tries again when there is no gpreemptd: a hint must stay cheap.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a daemon that hangs may keep a hint waiting, once.
const TIMEOUT: Duration = Duration::from_millis(200);

/// Grows whenever pages that were open are worth nothing any more.
static EPOCH: AtomicU64 = AtomicU64::new(0);

/// The page of this process, and why there is none.
#[derive(Debug, Default)]
pub(crate) struct HintPlaces {
    page: Option<(u64, Arc<HintWriter>)>,
    failed: Option<(Instant, Failure)>,
}

/// A thread's slot.
#[derive(Debug)]
struct Place {
    /// The process and the page that the slot is of.
    generation: u64,
    epoch: u64,
    writer: Option<Arc<HintWriter>>,
    slot: usize,
    hints: u32,
}

/// What a thread knows.
#[derive(Debug, Default)]
struct Own {
    place: Option<Place>,
    /// The process in which this thread began a hint that it has not ended.
    begun: Option<u64>,
}

thread_local! {
    static OWN: RefCell<Own> = const { RefCell::new(Own { place: None, begun: None }) };
}

pub(crate) fn begin(deadline_us: u64) -> Result<(), Failure> {
    with_own(|own| {
        if own.begun == Some(fork::generation()) {
            let sentence = "this thread has begun a hint already; end it first";
            return Err(Failure::new(Code::State, sentence));
        }
        // Twice, because the first may find out that gpreemptd was restarted.
        if !own.place()?.begin(deadline_us) {
            give_up();
            if !own.place()?.begin(deadline_us) {
                give_up();
                return Err(Code::Disconnected.into());
            }
        }
        own.begun = Some(fork::generation());
        Ok(())
    })
}

pub(crate) fn end() -> Result<(), Failure> {
    with_own(|own| {
        if own.begun != Some(fork::generation()) {
            let sentence = "this thread has not begun a hint";
            return Err(Failure::new(Code::State, sentence));
        }
        own.begun = None;
        // On a page that is gone it has ended by itself.
        if let Some(place) = own.place.as_ref().filter(|place| place.is_good())
            && let Some(writer) = &place.writer
            && !writer.end(place.slot)
        {
            give_up();
        }
        Ok(())
    })
}

/// Ends all hints of this process.
pub(crate) fn disconnect(places: &Mutex<HintPlaces>) {
    let mut places = lock(places);
    EPOCH.fetch_add(1, Ordering::Relaxed);
    places.close();
    places.failed = None;
}

/// The page is of no more use.
fn give_up() {
    EPOCH.fetch_add(1, Ordering::Relaxed);
}

fn with_own<T>(action: impl FnOnce(&mut Own) -> Result<T, Failure>) -> Result<T, Failure> {
    let late = || Failure::new(Code::State, "this thread is about to end");
    OWN.try_with(|own| match own.try_borrow_mut() {
        Ok(mut own) => action(&mut own),
        // Only a signal handler can come in between.
        Err(_) => Err(Failure::new(Code::State, "this thread is giving a hint")),
    })
    .map_err(|_| late())?
}

impl Own {
    /// This thread's slot, or a new one.
    fn place(&mut self) -> Result<&mut Place, Failure> {
        if !self.place.as_ref().is_some_and(Place::is_good) {
            self.place = None;
            self.place = Some(Place::take()?);
        }
        self.place.as_mut().ok_or_else(|| Code::Internal.into())
    }
}

impl Place {
    fn is_good(&self) -> bool {
        self.generation == fork::generation() && self.epoch == EPOCH.load(Ordering::Relaxed)
    }

    fn take() -> Result<Self, Failure> {
        let mut places = lock(&session::state()?.hints);
        let (epoch, writer) = places.page()?;
        let Some(slot) = writer.claim() else {
            let sentence = "63 threads of this process give hints already; end some of them";
            return Err(Failure::new(Code::Limit, sentence));
        };
        let generation = fork::generation();
        Ok(Self { generation, epoch, writer: Some(writer), slot, hints: 0 })
    }

    /// False if gpreemptd turns out to be gone.
    fn begin(&mut self, deadline_us: u64) -> bool {
        let Some(writer) = &self.writer else { return false };
        self.hints = self.hints.wrapping_add(1);
        let is_there = !self.hints.is_multiple_of(LOOK_EVERY) || writer.is_connected();
        is_there && writer.begin(self.slot, deadline_us)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        if self.generation == fork::generation() {
            writer.release(self.slot);
        } else {
            // The parent's: its slot is not ours to give back, nor its descriptor to close.
            let _ = Arc::into_raw(writer);
        }
    }
}

impl HintPlaces {
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
            && at.elapsed() < PATIENCE
        {
            return Err(failure.clone());
        }
        let opened = session::another_client(TIMEOUT).and_then(|client| Ok(client.open_page()?));
        match opened {
            Ok(writer) => {
                fork::keep(Kept::Hints, &writer);
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
            fork::forget(Kept::Hints);
            // Threads that have not noticed yet still own it, so dropping it is not enough.
            let _ = shutdown(&*writer, Shutdown::Both);
        }
    }
}
