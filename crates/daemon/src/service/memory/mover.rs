//! What moves memory: checks and evictions in threads, which report through the loop's waker.

use std::fmt;
use std::sync::mpsc::{Receiver, Sender, channel};

use gpreempt_device::controller::Waker;
use gpreempt_device::eviction::adoption::AdoptError;
use gpreempt_device::eviction::{
    EvictJob, EvictTarget, Evictor, EvictorReport, LeftEviction, check,
};
use gpreempt_device::undo_log::UndoLog;

/// A report of a mover.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MoverReport {
    /// The result of a check: why the processes cannot be evicted.
    Checked {
        id: u64,
        result: Result<(), String>,
    },
    Moved(EvictorReport),
}

/// Moves memory beside the loop. Tests have one that moves nothing.
pub(crate) trait Mover: fmt::Debug {
    /// Checks whether processes can be evicted, each with so many bytes.
    fn check(&mut self, id: u64, targets: Vec<(EvictTarget, u64)>);
    fn evict(&mut self, job: EvictJob);
    fn restore(&mut self, id: u64);
    /// Takes over what a dead owner left.
    fn adopt(&mut self, id: u64, left: &LeftEviction) -> Result<(), AdoptError>;
    fn poll(&mut self) -> Option<MoverReport>;
}

/// The mover of a service.
#[derive(Debug)]
pub(crate) struct ThreadMover {
    evictor: Evictor,
    waker: Waker,
    sender: Sender<(u64, Result<(), String>)>,
    checked: Receiver<(u64, Result<(), String>)>,
}

impl ThreadMover {
    pub(crate) fn new(undo_log: UndoLog, waker: Waker) -> Self {
        let (sender, checked) = channel();
        Self { evictor: Evictor::new(undo_log, waker.clone(), None), waker, sender, checked }
    }
}

impl Mover for ThreadMover {
    fn check(&mut self, id: u64, targets: Vec<(EvictTarget, u64)>) {
        let (sender, waker) = (self.sender.clone(), self.waker.clone());
        let work = move || {
            // The processes go to the host together.
            let all: u64 = targets.iter().map(|(_, bytes)| *bytes).sum();
            let result = targets.iter().try_for_each(|(target, _)| check(target, all));
            // The service may have ended.
            let _ = sender.send((id, result.map_err(|error| error.to_string())));
            waker.wake();
        };
        let thread = std::thread::Builder::new().name("gpreempt-check".to_owned());
        if let Err(error) = thread.spawn(work) {
            let _ = self.sender.send((id, Err(format!("no thread can be started: {error}"))));
        }
    }

    fn evict(&mut self, job: EvictJob) {
        self.evictor.evict(job);
    }

    fn restore(&mut self, id: u64) {
        self.evictor.restore(id);
    }

    fn adopt(&mut self, id: u64, left: &LeftEviction) -> Result<(), AdoptError> {
        self.evictor.adopt(id, left)
    }

    fn poll(&mut self) -> Option<MoverReport> {
        if let Ok((id, result)) = self.checked.try_recv() {
            return Some(MoverReport::Checked { id, result });
        }
        self.evictor.poll().map(MoverReport::Moved)
    }
}
