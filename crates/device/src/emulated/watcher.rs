//! A thread that watches the emulator, its clients, their queues, and the end of processes.
//!
//! While there is no emulator it tries to connect, soon and then ever more rarely. When one is lost
//! it waits for the order to connect again: the jobs for the last one have to be settled first.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use gpreempt_core::id::{QueueId, TaskId};
use gpreempt_core::time::{Duration, Instant};
use gpreempt_wire::emulator::control::{Control, ControlEvent, Listing, Options};
use gpreempt_wire::emulator::{EmuError, QueueInfo, Refusal, TaskInfo};
use gpreempt_wire::monotonic;
use rustix::event::{PollFd, PollFlags, poll};

use super::change::is_absent;
use super::worker::Report;
use crate::controller::{Disconnected, Reporter};
use crate::process::{ProcessHandle, ProcessInfo, ProcessKey};
use crate::worker_thread::{Orders, WorkerThread, timespec};

#[derive(Debug)]
pub(super) struct EmulatorWatcher {
    thread: WorkerThread<WatchCommand>,
}

#[derive(Debug)]
enum WatchCommand {
    Watch(ProcessKey, ProcessHandle),
    Forget(ProcessKey),
    Connect,
}

impl EmulatorWatcher {
    pub(super) fn start(socket: PathBuf, reports: Reporter<Report>) -> io::Result<Self> {
        let thread = WorkerThread::start_polling("emulated watch", move |orders| {
            let (link, processes) = (Link::soon(), Vec::new());
            let mut watch = WatchLoop { socket, orders, link, processes, problem: None, reports };
            while watch.iterate().is_ok() {}
        })?;
        Ok(Self { thread })
    }

    /// Reports when that process has ended.
    pub(super) fn watch(&self, process: ProcessKey, handle: ProcessHandle) {
        self.thread.order(WatchCommand::Watch(process, handle));
    }

    pub(super) fn forget(&self, process: ProcessKey) {
        self.thread.order(WatchCommand::Forget(process));
    }

    /// Connects to an emulator again.
    pub(super) fn connect(&self) {
        self.thread.order(WatchCommand::Connect);
    }

    pub(super) fn stop(&mut self) {
        self.thread.stop();
    }
}

impl Drop for EmulatorWatcher {
    fn drop(&mut self) {
        self.stop();
    }
}

struct WatchLoop {
    socket: PathBuf,
    orders: Orders<WatchCommand>,
    link: Link,
    processes: Vec<(ProcessKey, ProcessHandle)>,
    /// The last reported reason why there is no connection.
    problem: Option<String>,
    reports: Reporter<Report>,
}

enum Link {
    /// Lost, and not to be connected yet.
    Lost,
    /// None yet: when to try, and how long to wait after that.
    Sought {
        at: Instant,
        wait: Duration,
    },
    Open(Box<EmulatorView>),
}

impl Link {
    const WAIT_MIN: Duration = Duration::from_millis(10);
    const WAIT_MAX: Duration = Duration::from_millis(500);

    fn soon() -> Self {
        Self::Sought { at: monotonic(), wait: Self::WAIT_MIN }
    }
}

impl WatchLoop {
    /// Waits for an event, and reports it.
    fn iterate(&mut self) -> Result<(), Disconnected> {
        for process in self.wait() {
            self.processes.retain(|(watched, _)| *watched != process);
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
                self.try_connect()
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

    /// Waits for an event. Returns the processes that have ended.
    fn wait(&self) -> Vec<ProcessKey> {
        let timeout = match &self.link {
            Link::Sought { at, .. } => {
                let wait = at.since(monotonic()).as_nanos();
                Some(timespec(std::time::Duration::from_nanos(wait)))
            }
            Link::Lost | Link::Open(_) => None,
        };
        let handles = self.processes.iter().map(|(_, handle)| PollFd::new(handle, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = handles.collect();
        fds.push(PollFd::new(&self.orders, PollFlags::IN));
        if let Link::Open(view) = &self.link {
            fds.push(PollFd::new(&**view, PollFlags::IN));
        }
        // If it was interrupted, the next one shows it.
        let _ = poll(&mut fds, timeout.as_ref());
        let ended = self.processes.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        ended.map(|((process, _), _)| *process).collect()
    }

    fn take_orders(&mut self) -> Result<(), Disconnected> {
        let (orders, is_over) = self.orders.take();
        for order in orders {
            match order {
                WatchCommand::Watch(process, handle) => self.processes.push((process, handle)),
                WatchCommand::Forget(process) => {
                    self.processes.retain(|(watched, _)| *watched != process)
                }
                WatchCommand::Connect => self.link = Link::soon(),
            }
        }
        if is_over { Err(Disconnected) } else { Ok(()) }
    }

    fn try_connect(&mut self) -> Result<(), Disconnected> {
        let options = Options { watches: true, ..Options::default() };
        let found = Control::connect(&self.socket, options).and_then(|mut control| {
            let listing = control.list()?;
            Ok((control, listing))
        });
        let (control, listing) = match found {
            Ok(found) => found,
            // An emulator that ends while it answers counts as none.
            Err(error) if is_absent(&error) || matches!(error, EmuError::Gone) => {
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
        let mut view = EmulatorView::new(control);
        match view.take_listing(listing, &self.reports)? {
            Ok(()) => self.link = Link::Open(Box::new(view)),
            Err(error) => {
                self.link = Link::Lost;
                self.reports.send(Report::Lost(error.to_string()))?;
            }
        }
        // Events from meanwhile were received already: nothing else wakes the thread for them.
        self.orders.wake();
        Ok(())
    }
}

/// A connection that receives events, and what was reported already: clients and queues that
/// appeared while the list was made are in the list and in the events.
#[derive(Debug)]
struct EmulatorView {
    control: Control,
    clients: BTreeMap<TaskId, ProcessKey>,
    queues: BTreeSet<QueueId>,
}

/// The outer error: the backend no longer exists. The inner one: the emulator has ended.
type ReportResult = Result<Result<(), EmuError>, Disconnected>;

impl EmulatorView {
    fn new(control: Control) -> Self {
        Self { control, clients: BTreeMap::new(), queues: BTreeSet::new() }
    }

    /// Takes in the list at the start.
    fn take_listing(&mut self, listing: Listing, reports: &Reporter<Report>) -> ReportResult {
        for task in listing.tasks {
            self.add_client(task, reports)?;
        }
        for queue in listing.queues {
            if let Err(error) = self.add_queue(queue, reports)? {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    }

    fn take_events(&mut self, reports: &Reporter<Report>) -> ReportResult {
        loop {
            let event = match self.control.poll_event() {
                Ok(Some(event)) => event,
                Ok(None) => return Ok(Ok(())),
                Err(error) => return Ok(Err(error)),
            };
            match event {
                ControlEvent::TaskAppeared(task) => self.add_client(task, reports)?,
                ControlEvent::TaskVanished(task) => {
                    if self.clients.remove(&task).is_some() {
                        reports.send(Report::Disconnected { client: task.0 })?;
                    }
                }
                ControlEvent::QueueAppeared(queue) => {
                    if let Err(error) = self.add_queue(queue, reports)? {
                        return Ok(Err(error));
                    }
                }
                ControlEvent::QueueVanished { queue, is_faulted } => {
                    if self.queues.remove(&queue) {
                        reports.send(Report::Closed { queue: queue.0, is_faulted })?;
                    }
                }
                // This connection begins no calls.
                ControlEvent::Completed { .. } => {}
            }
        }
    }

    /// A process that cannot be read has ended, or is in another namespace. It is ignored.
    fn add_client(
        &mut self,
        task: TaskInfo,
        reports: &Reporter<Report>,
    ) -> Result<(), Disconnected> {
        let Ok(info) = ProcessInfo::read(task.pid) else { return Ok(()) };
        if self.clients.insert(task.task, info.key).is_some() {
            return Ok(());
        }
        reports.send(Report::Connected { client: task.task.0, process: info.key })
    }

    fn add_queue(&mut self, info: QueueInfo, reports: &Reporter<Report>) -> ReportResult {
        let Some(&process) = self.clients.get(&info.task) else { return Ok(Ok(())) };
        if !self.queues.insert(info.queue) {
            return Ok(Ok(()));
        }
        match self.control.page(info.queue) {
            Ok(page) => {
                let page = Box::new(page);
                reports.send(Report::Opened { info, process, page })?;
            }
            Err(EmuError::Refused(Refusal::NoSuchQueue)) => {
                self.queues.remove(&info.queue);
            }
            Err(error) => return Ok(Err(error)),
        }
        Ok(Ok(()))
    }
}

impl AsFd for EmulatorView {
    /// Readable when there are events, unless they were received with an answer.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}
