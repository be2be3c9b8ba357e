//! A thread of a controller: the handle through which the controller gives it orders, and the
//! orders as the thread receives them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::controller::{Disconnected, Waker};

/// How often to check whether a thread has ended.
const LOOK: Duration = Duration::from_millis(1);

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
        run: impl FnOnce(Orders<T>) + Send + 'static,
    ) -> io::Result<Self> {
        let (orders, incoming) = channel();
        let wake = Waker::new()?;
        let waiting = Orders { incoming, wake: wake.clone() };
        let thread = Builder::new().name(name.to_owned()).spawn(move || run(waiting))?;
        Ok(Self { orders: Some(orders), wake: Some(wake), thread: Some(thread) })
    }

    pub(crate) fn order(&self, order: T) {
        // The thread ends only when this side does.
        let _ = self.send(order);
    }

    /// The same for a thread that may end by itself. Returns whether it will carry out the order.
    pub(crate) fn send(&self, order: T) -> bool {
        let is_sent = self.orders.as_ref().is_some_and(|orders| orders.send(order).is_ok());
        self.wake.iter().for_each(Waker::wake);
        is_sent
    }

    /// Has the thread end when it has carried out all orders.
    pub(crate) fn end(&mut self) {
        self.orders = None;
        self.wake.iter().for_each(Waker::wake);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends it and waits until `end`. Returns whether it has ended: a call to a driver may never
    /// return.
    pub(crate) fn has_ended_by(&mut self, end: Instant) -> bool {
        self.end();
        while !self.has_ended() {
            if Instant::now() >= end {
                return false;
            }
            thread::sleep(LOOK);
        }
        true
    }

    /// Waits until the thread has carried out all orders, and ends it.
    pub(crate) fn stop(&mut self) {
        self.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The orders of a thread that waits for descriptors too.
#[derive(Debug)]
pub(crate) struct Orders<T> {
    incoming: Receiver<T>,
    wake: Waker,
}

impl<T> Orders<T> {
    /// Returns whether there may be orders.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        let mut fds = [PollFd::new(self, PollFlags::IN)];
        poll(&mut fds, Some(&timespec(time))).is_ok_and(|ready| ready > 0)
    }

    /// The orders that have arrived, and whether the thread has to end after them.
    pub(crate) fn take(&self) -> (Vec<T>, bool) {
        self.wake.clear();
        let mut orders = Vec::new();
        loop {
            match self.incoming.try_recv() {
                Ok(order) => orders.push(order),
                Err(TryRecvError::Empty) => return (orders, false),
                Err(TryRecvError::Disconnected) => return (orders, true),
            }
        }
    }

    /// Has the thread wake once more without an order.
    pub(crate) fn wake(&self) {
        self.wake.wake();
    }
}

impl<T> AsFd for Orders<T> {
    /// Readable when there may be orders.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// A timeout of `poll`.
pub(crate) fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_polling_thread_gets_all_orders_and_then_its_end() {
        let (done, results) = channel();
        let mut thread = WorkerThread::start_polling("test", move |orders: Orders<u32>| {
            loop {
                orders.wait(Duration::from_secs(60));
                let (taken, is_over) = orders.take();
                taken.into_iter().for_each(|order| done.send(order).unwrap());
                if is_over {
                    return;
                }
            }
        })
        .unwrap();
        assert!(thread.send(1) && thread.send(2) && !thread.has_ended());
        assert!(thread.has_ended_by(Instant::now() + Duration::from_secs(60)));
        assert_eq!(results.iter().collect::<Vec<_>>(), [1, 2]);
        assert!(!thread.send(3));
    }

    #[test]
    fn a_thread_that_hangs_is_not_waited_for() {
        let (release, held) = channel::<()>();
        let mut thread = WorkerThread::start("test", move |()| {
            let _ = held.recv();
            Ok(())
        })
        .unwrap();
        assert!(thread.send(()));
        assert!(!thread.has_ended_by(Instant::now() + Duration::from_millis(20)));
        drop(release);
        thread.stop();
        assert!(thread.has_ended());
    }
}
