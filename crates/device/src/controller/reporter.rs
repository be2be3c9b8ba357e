//! What the threads of a controller tell it.

use std::sync::mpsc::{Receiver, Sender, channel};

use super::Waker;

/// Where reports go. Whoever runs the loop is woken by them. A clone reports to the same one.
#[derive(Debug)]
pub(crate) struct Reporter<R> {
    reports: Sender<R>,
    waker: Waker,
}

/// The other side is gone.
#[derive(Debug)]
pub(crate) struct Alone;

impl<R> Reporter<R> {
    /// A reporter, and where its reports arrive.
    pub(crate) fn new(waker: Waker) -> (Self, Receiver<R>) {
        let (reports, incoming) = channel();
        (Self { reports, waker }, incoming)
    }

    /// Tells something.
    pub(crate) fn send(&self, report: R) -> Result<(), Alone> {
        self.reports.send(report).map_err(|_| Alone)?;
        self.waker.wake();
        Ok(())
    }
}

impl<R> Clone for Reporter<R> {
    fn clone(&self) -> Self {
        Self { reports: self.reports.clone(), waker: self.waker.clone() }
    }
}
