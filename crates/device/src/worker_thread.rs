//! A thread of a controller, with the channel through which the controller gives it orders.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use rustix::event::Timespec;

use crate::controller::{Disconnected, Waker};

#[derive(Debug)]
pub(crate) struct WorkerThread<T> {
    orders: Option<Sender<T>>,
    wake: Option<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> WorkerThread<T> {
    /// Starts a thread that takes one order after the other. It ends when this side is stopped or
    /// dropped, or when `take` finds that the controller is gone.
    pub(crate) fn start(
        name: &str,
        mut take: impl FnMut(T) -> Result<(), Disconnected> + Send + 'static,
    ) -> io::Result<Self> {
        let (orders, incoming) = channel();
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            while let Ok(order) = incoming.recv() {
                if take(order).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { orders: Some(orders), wake: None, thread: Some(thread) })
    }

    /// Starts a thread that waits for descriptors too. Each order, and the end of the channel,
    /// wakes it.
    pub(crate) fn start_polling(
        name: &str,
        run: impl FnOnce(Receiver<T>, Waker) + Send + 'static,
    ) -> io::Result<Self> {
        let (orders, incoming) = channel();
        let wake = Waker::new()?;
        let waiting = wake.clone();
        let thread = Builder::new().name(name.to_owned()).spawn(move || run(incoming, waiting))?;
        Ok(Self { orders: Some(orders), wake: Some(wake), thread: Some(thread) })
    }

    pub(crate) fn order(&self, order: T) {
        if let Some(orders) = &self.orders {
            // The thread ends only when this side does.
            let _ = orders.send(order);
            self.wake.iter().for_each(Waker::wake);
        }
    }

    /// Waits until the thread has carried out all orders, and ends it.
    pub(crate) fn stop(&mut self) {
        self.orders = None;
        self.wake.iter().for_each(Waker::wake);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A timeout of `poll`.
pub(crate) fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}
