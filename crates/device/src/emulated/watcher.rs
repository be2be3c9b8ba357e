//! A thread that notices what comes and goes: the emulator, its clients, their queues, and the end
//! of processes.
//!
//! While there is no emulator it looks for one, soon and then ever more rarely. When one is lost
//! it waits to be told to look again: what was done to the last one has to be settled first.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use gpreempt_core::time::{Duration, Instant};
use gpreempt_wire::emulator::EmuError;
use gpreempt_wire::emulator::control::{Control, Options};
use gpreempt_wire::monotonic;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::connection::nobody_listens;
use super::report::Report;
use super::view::View;
use crate::controller::{Alone, Reporter, Waker};
use crate::process::ProcessKey;

/// The thread, as long as it runs.
#[derive(Debug)]
pub(super) struct Watcher {
    orders: Option<Sender<Order>>,
    wake: Waker,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Order {
    Hold(ProcessKey, OwnedFd),
    Forget(ProcessKey),
    Connect,
}

impl Watcher {
    /// Starts looking.
    ///
    /// # Errors
    /// If there are no more descriptors or threads.
    pub(super) fn start(socket: PathBuf, reports: Reporter<Report>) -> io::Result<Self> {
        let (orders, incoming) = channel();
        let wake = Waker::new()?;
        let mut rounds = Rounds {
            socket,
            incoming,
            wake: wake.clone(),
            link: Link::soon(),
            held: Vec::new(),
            problem: None,
            reports,
        };
        let thread = std::thread::Builder::new()
            .name("emulated watch".into())
            .spawn(move || while rounds.go().is_ok() {})?;
        Ok(Self { orders: Some(orders), wake, thread: Some(thread) })
    }

    /// Tells when that process has ended, which is when its descriptor becomes readable.
    pub(super) fn hold(&self, process: ProcessKey, descriptor: OwnedFd) {
        self.order(Order::Hold(process, descriptor));
    }

    /// No longer tells.
    pub(super) fn forget(&self, process: ProcessKey) {
        self.order(Order::Forget(process));
    }

    /// Looks for an emulator again.
    pub(super) fn connect(&self) {
        self.order(Order::Connect);
    }

    /// Ends it.
    pub(super) fn stop(&mut self) {
        self.orders = None;
        self.wake.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // It ends only when this side does.
            let _ = orders.send(order);
            self.wake.wake();
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop();
    }
}

/// What the thread works with.
struct Rounds {
    socket: PathBuf,
    incoming: Receiver<Order>,
    wake: Waker,
    link: Link,
    held: Vec<(ProcessKey, OwnedFd)>,
    /// Why there is no connection, as far as it was told.
    problem: Option<String>,
    reports: Reporter<Report>,
}

/// The way to the emulator.
enum Link {
    /// Lost, and not to be looked for.
    Lost,
    /// Not found yet: when to look again, and how long to wait after that.
    Sought { at: Instant, wait: Duration },
    /// Found.
    Open(Box<View>),
}

impl Link {
    const WAIT_MIN: Duration = Duration::from_millis(10);
    const WAIT_MAX: Duration = Duration::from_millis(500);

    fn soon() -> Self {
        Self::Sought { at: monotonic(), wait: Self::WAIT_MIN }
    }
}

impl Rounds {
    /// Waits until something happens, and tells about it.
    fn go(&mut self) -> Result<(), Alone> {
        for process in self.wait() {
            self.held.retain(|(held, _)| *held != process);
            self.reports.send(Report::Ended(process))?;
        }
        self.take_orders()?;
        match &mut self.link {
            Link::Lost => Ok(()),
            Link::Sought { at, wait } => {
                if *at > monotonic() {
                    return Ok(());
                }
                *at = monotonic() + *wait;
                *wait = (*wait + *wait).min(Link::WAIT_MAX);
                self.seek()
            }
            Link::Open(view) => match view.take_events(&self.reports)? {
                Ok(()) => Ok(()),
                Err(error) => {
                    self.link = Link::Lost;
                    self.reports.send(Report::Lost(error.to_string()))
                }
            },
        }
    }

    /// Waits until something happens. Returns which processes have ended.
    fn wait(&self) -> Vec<ProcessKey> {
        let timeout = match &self.link {
            Link::Sought { at, .. } => Some(timespec(at.since(monotonic()))),
            Link::Lost | Link::Open(_) => None,
        };
        let held = self.held.iter().map(|(_, descriptor)| PollFd::new(descriptor, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = held.collect();
        fds.push(PollFd::new(&self.wake, PollFlags::IN));
        if let Link::Open(view) = &self.link {
            fds.push(PollFd::new(&**view, PollFlags::IN));
        }
        // If it was interrupted, the next one tells.
        let _ = poll(&mut fds, timeout.as_ref());
        self.wake.clear();
        let ended = self.held.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        ended.map(|((process, _), _)| *process).collect()
    }

    fn take_orders(&mut self) -> Result<(), Alone> {
        loop {
            match self.incoming.try_recv() {
                Ok(Order::Hold(process, descriptor)) => self.held.push((process, descriptor)),
                Ok(Order::Forget(process)) => self.held.retain(|(held, _)| *held != process),
                Ok(Order::Connect) => self.link = Link::soon(),
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(Alone),
            }
        }
    }

    /// Looks for an emulator.
    fn seek(&mut self) -> Result<(), Alone> {
        let options = Options { watches: true, ..Options::default() };
        let found = Control::connect(&self.socket, options).and_then(|mut control| {
            let listing = control.list()?;
            Ok((control, listing))
        });
        let (control, listing) = match found {
            Ok(found) => found,
            // One that dies while it answers is as good as none.
            Err(error) if nobody_listens(&error) || matches!(error, EmuError::Gone) => {
                return Ok(());
            }
            Err(error) => {
                let problem = error.to_string();
                if self.problem.as_ref() == Some(&problem) {
                    return Ok(());
                }
                self.problem = Some(problem.clone());
                return self.reports.send(Report::Unusable(problem));
            }
        };
        self.problem = None;
        let instance = control.instance();
        let devices = listing.devices.clone();
        self.reports.send(Report::Found { instance, devices })?;
        let mut view = View::new(control);
        match view.take_listing(listing, &self.reports)? {
            Ok(()) => self.link = Link::Open(Box::new(view)),
            Err(error) => {
                self.link = Link::Lost;
                self.reports.send(Report::Lost(error.to_string()))?;
            }
        }
        // What happened meanwhile was received already: nothing wakes us for it.
        self.wake.wake();
        Ok(())
    }
}

fn timespec(time: Duration) -> Timespec {
    let time = std::time::Duration::from_nanos(time.as_nanos());
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}
