//! Notices what changes: new processes, and new groups and channels of those that are watched.
//!
//! Nobody tells us when a program makes a channel, so it is looked at again and again: soon after
//! somebody opened a device node (inotify says so), and ever more rarely while nothing changes.
//! Programs in containers may open nodes of their own, which inotify does not see; for them there
//! are only the rare looks.

mod backoff;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;

use super::discover::Client;
use super::node::{self, HeldNode, Node};
use super::survey::{GpuProcess, look};
use crate::process::{ProcessInfo, ProcessKey, all_pids};
use backoff::Backoff;

/// What a scout has seen.
#[derive(Debug)]
pub enum Sighting {
    /// A process that is watched has something else on its GPUs than before.
    Changed(Box<GpuProcess>),
    /// A process began to use a GPU.
    Appeared(Box<GpuProcess>),
}

/// A thread that looks around.
#[derive(Debug)]
pub struct Scout {
    orders: Option<Sender<Order>>,
    wake: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Order {
    Watch(ProcessKey, Vec<Client>),
    Forget(ProcessKey),
    Rescan(Duration),
}

impl Scout {
    /// Starts looking. With `newcomers`, processes that begin to use a GPU are reported too.
    ///
    /// # Errors
    /// If there are no more descriptors or threads.
    pub fn start(
        newcomers: bool,
        report: impl FnMut(Sighting) -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let (orders, incoming) = channel();
        let (waiting, wake) = rustix::pipe::pipe_with(
            rustix::pipe::PipeFlags::CLOEXEC | rustix::pipe::PipeFlags::NONBLOCK,
        )?;
        let mut rounds = Rounds {
            incoming,
            waiting,
            nodes: watch_nodes(),
            watched: BTreeMap::new(),
            known: newcomers.then(known_processes),
            all: Backoff::new(Instant::now()),
            rescan: Backoff::WAIT_MAX,
            report,
        };
        let thread = std::thread::Builder::new()
            .name("scout".into())
            .spawn(move || while rounds.go().is_some() {})?;
        Ok(Self { orders: Some(orders), wake, thread: Some(thread) })
    }

    /// Watches a process, of which this is known.
    pub fn watch(&self, process: ProcessKey, clients: Vec<Client>) {
        self.order(Order::Watch(process, clients));
    }

    /// No longer watches a process.
    pub fn forget(&self, process: ProcessKey) {
        self.order(Order::Forget(process));
    }

    /// Looks at least so often, whatever happens.
    pub fn set_rescan(&self, every: Duration) {
        self.order(Order::Rescan(every));
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // It ends only when this side does; a full pipe wakes it as well as an empty one.
            let _ = orders.send(order);
            let _ = rustix::io::write(&self.wake, &[1]);
        }
    }
}

impl Drop for Scout {
    fn drop(&mut self) {
        self.orders = None;
        let _ = rustix::io::write(&self.wake, &[1]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the thread works with.
struct Rounds<R> {
    incoming: Receiver<Order>,
    waiting: OwnedFd,
    nodes: Option<OwnedFd>,
    watched: BTreeMap<ProcessKey, Watch>,
    /// Processes that use a GPU and are no news, if anybody wants to hear of newcomers.
    known: Option<BTreeSet<ProcessKey>>,
    all: Backoff,
    /// The longest time between two looks.
    rescan: Duration,
    report: R,
}

impl<R: FnMut(Sighting) -> bool> Rounds<R> {
    /// Waits until there is something to look at, and looks. None when it is over.
    fn go(&mut self) -> Option<()> {
        let opened = self.wait();
        loop {
            match self.incoming.try_recv() {
                Ok(Order::Watch(process, clients)) => {
                    self.watched.insert(process, Watch::new(clients, Instant::now()));
                }
                Ok(Order::Forget(process)) => drop(self.watched.remove(&process)),
                Ok(Order::Rescan(every)) => self.rescan = every,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return None,
            }
        }
        let now = Instant::now();
        if opened {
            self.all.hurry(now);
            self.watched.values_mut().for_each(|watch| watch.hear(now));
        }
        self.look_at_watched(now)?;
        self.look_for_newcomers(now)
    }

    fn wait(&self) -> bool {
        let now = Instant::now();
        let all = self.known.is_some().then_some(&self.all);
        let due = self.watched.values().map(Watch::due).chain(all.map(|backoff| backoff.at));
        let sleep = due.map(|at| at.saturating_duration_since(now)).min();
        let timeout = sleep.map(|sleep| Timespec {
            tv_sec: i64::try_from(sleep.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(sleep.subsec_nanos()),
        });
        let mut fds = vec![PollFd::new(&self.waiting, PollFlags::IN)];
        fds.extend(self.nodes.iter().map(|nodes| PollFd::new(nodes, PollFlags::IN)));
        let _ = poll(&mut fds, timeout.as_ref());
        let opened = fds.get(1).is_some_and(|nodes| !nodes.revents().is_empty());
        for fd in std::iter::once(&self.waiting).chain(&self.nodes) {
            while matches!(rustix::io::read(fd, &mut [0; 4096]), Ok(1..)) {}
        }
        opened
    }

    fn look_at_watched(&mut self, now: Instant) -> Option<()> {
        for (process, watch) in &mut self.watched {
            if !watch.is_due(process.pid, now) {
                continue;
            }
            watch.backoff.looked(now, self.rescan);
            // A process that ended, or does not let us in any more, is not for us to report.
            let Ok(found) = look(process.pid) else { continue };
            let Ok(clients) = &found.clients else { continue };
            if found.info.key == *process && watch.take(clients, now) {
                (self.report)(Sighting::Changed(Box::new(found))).then_some(())?;
            }
        }
        Some(())
    }

    fn look_for_newcomers(&mut self, now: Instant) -> Option<()> {
        if self.all.at > now {
            return Some(());
        }
        self.all.looked(now, self.rescan);
        let Some(known) = &mut self.known else { return Some(()) };
        let present = users();
        known.retain(|process| present.contains(process));
        for process in present {
            if known.contains(&process) {
                continue;
            }
            // Until it has something on a GPU it is not worth a word; then it is news once.
            let Ok(found) = look(process.pid) else { continue };
            if found.has_groups() || found.clients.is_err() {
                known.insert(process);
                (self.report)(Sighting::Appeared(Box::new(found))).then_some(())?;
            }
        }
        Some(())
    }
}

/// One process, as it was seen.
#[derive(Debug)]
struct Watch {
    /// What was reported.
    known: Vec<Client>,
    /// What was seen last and is something else.
    fresh: Option<Vec<Client>>,
    backoff: Backoff,
    /// When to see whether it was this process that opened a node, if somebody did.
    heard: Option<Instant>,
    /// The nodes it had open when it was last seen.
    nodes: Vec<HeldNode>,
}

impl Watch {
    fn new(known: Vec<Client>, now: Instant) -> Self {
        Self { known, fresh: None, backoff: Backoff::new(now), heard: None, nodes: Vec::new() }
    }

    /// Somebody opened or closed a node. Programs do that in bursts.
    fn hear(&mut self, now: Instant) {
        self.heard.get_or_insert(now + Backoff::WAIT_MIN);
    }

    fn due(&self) -> Instant {
        self.heard.map_or(self.backoff.at, |heard| heard.min(self.backoff.at))
    }

    /// Whether it has to be looked at. To see which nodes a process has open is cheap, to look
    /// into it is not; whoever makes a context opens nodes.
    fn is_due(&mut self, pid: u32, now: Instant) -> bool {
        if self.heard.is_some_and(|heard| heard <= now) {
            self.heard = None;
            let nodes = node::held_by(pid).unwrap_or_default();
            if nodes != self.nodes {
                self.nodes = nodes;
                self.backoff.hurry(now);
                self.backoff.at = now;
            } else {
                // Whoever resets its context closes nodes and opens them again, with the same
                // numbers. It may have been somebody else, so there is no hurry.
                self.backoff.at = self.backoff.at.min(now + Backoff::WAIT_UNSURE);
            }
        }
        self.backoff.at <= now
    }

    /// Takes in what was seen. Says whether it is news: a program that is just making a context is
    /// half-way through it, so what is new has to look the same twice.
    fn take(&mut self, clients: &[Client], now: Instant) -> bool {
        if clients == self.known {
            self.fresh = None;
            return false;
        }
        self.backoff.hurry(now);
        let is_steady = self.fresh.as_deref() == Some(clients);
        self.fresh = Some(clients.to_vec());
        if is_steady {
            self.known = clients.to_vec();
            self.fresh = None;
        }
        is_steady
    }
}

/// Everybody with an open control node, but us.
fn users() -> BTreeSet<ProcessKey> {
    let own = std::process::id();
    let holds_control = |pid: &u32| {
        node::held_by(*pid).is_ok_and(|held| held.iter().any(|held| held.node == Node::Control))
    };
    let pids = all_pids().unwrap_or_default().into_iter();
    pids.filter(|&pid| pid != own)
        .filter(holds_control)
        .filter_map(|pid| ProcessInfo::read(pid).ok().map(|info| info.key))
        .collect()
}

fn known_processes() -> BTreeSet<ProcessKey> {
    users()
        .into_iter()
        .filter(|process| look(process.pid).is_ok_and(|found| found.has_groups()))
        .collect()
}

/// A descriptor that is readable when somebody opens or closes a device node, if there are any.
fn watch_nodes() -> Option<OwnedFd> {
    let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
    let watch = inotify::init(flags).ok()?;
    let wanted = inotify::WatchFlags::OPEN | inotify::WatchFlags::CLOSE_WRITE;
    let mut watches = 0;
    for entry in std::fs::read_dir("/dev").ok()?.filter_map(Result::ok) {
        let is_node = entry.file_name().to_str().is_some_and(|name| name.starts_with("nvidia"));
        if is_node && inotify::add_watch(&watch, entry.path(), wanted).is_ok() {
            watches += 1;
        }
    }
    (watches > 0).then_some(watch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_open_is_no_reason_to_look_into_a_process_at_once() {
        let begin = Instant::now();
        let pid = std::process::id();
        let mut watch = Watch::new(Vec::new(), begin);
        let later = begin + Duration::from_secs(60);
        watch.backoff.at = later;
        assert_eq!(watch.due(), later);
        watch.hear(begin);
        let soon = begin + Backoff::WAIT_MIN;
        assert_eq!(watch.due(), soon);
        // This process has no node open, and had none before.
        assert!(!watch.is_due(pid, soon));
        assert_eq!(watch.due(), soon + Backoff::WAIT_UNSURE, "it may have reset its context");
        watch.nodes = vec![HeldNode { fd: 3, node: Node::Control }];
        watch.hear(begin);
        assert!(watch.is_due(pid, soon), "its nodes are others than before");
    }

    #[test]
    fn what_is_new_has_to_look_the_same_twice() {
        let now = Instant::now();
        let (devices, holds) = (Vec::new, Vec::new);
        let state =
            |objects| vec![Client { handle: 1, devices: devices(), objects, holds: holds() }];
        let mut watch = Watch::new(state(1), now);
        assert!(!watch.take(&state(1), now));
        assert!(!watch.take(&state(2), now));
        assert!(!watch.take(&state(3), now));
        assert!(watch.take(&state(3), now));
        assert!(!watch.take(&state(3), now));
        assert!(!watch.take(&state(2), now));
        assert!(!watch.take(&state(3), now), "what was known is no news");
    }

    #[test]
    fn a_scout_starts_and_ends_where_there_is_no_gpu() {
        let scout = Scout::start(true, |_| true).unwrap();
        scout.watch(ProcessKey { pid: u32::MAX, start_ticks: 1 }, Vec::new());
        scout.forget(ProcessKey { pid: u32::MAX, start_ticks: 1 });
        drop(scout);
    }
}
