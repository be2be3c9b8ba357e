//! A thread that finds new GPU processes, and new groups and channels of watched processes.
//!
//! The driver does not report new channels, so the thread inspects processes again and again: soon
//! after a process opened a device node (inotify reports that), and ever more rarely while nothing
//! changes. Programs in containers may open nodes of their own, which inotify does not see; for
//! them the rare inspections remain.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify;

use super::node::{self, HeldNode, Node};
use super::process_discovery::{GpuProcess, inspect_process};
use super::rm_objects::Client;
use crate::process::{ProcessInfo, ProcessKey, all_pids, open_files};
use crate::worker_thread::{Orders, WorkerThread, timespec};

#[derive(Debug)]
pub enum DiscoveryEvent {
    /// A watched process has other objects on its GPUs than before.
    Changed(Box<GpuProcess>),
    /// A process uses a GPU: since before the watcher started, or it began to.
    Appeared(Box<GpuProcess>),
    /// Every process has been inspected for the first time.
    Scanned,
}

#[derive(Debug)]
pub struct ProcessWatcher {
    thread: WorkerThread<ScanCommand>,
}

#[derive(Debug)]
enum ScanCommand {
    Watch(ProcessKey, Vec<Client>),
    Forget(ProcessKey),
    Rescan(Duration),
}

impl ProcessWatcher {
    /// Starts the thread, which ends when `report` returns false.
    pub fn start(report: impl FnMut(DiscoveryEvent) -> bool + Send + 'static) -> io::Result<Self> {
        // Before the first inspection, so that no process is missed.
        let nodes = watch_nodes();
        let thread = WorkerThread::start_polling("process-watch", move |orders| {
            let mut watch = WatchLoop {
                orders,
                nodes,
                watched: BTreeMap::new(),
                known: BTreeSet::new(),
                is_scanned: false,
                all: Backoff::due(Instant::now()),
                rescan: Backoff::WAIT_MAX,
                report,
            };
            while watch.iterate().is_some() {}
        })?;
        Ok(Self { thread })
    }

    /// Watches a process, of which these clients are known.
    pub fn watch(&self, process: ProcessKey, clients: Vec<Client>) {
        self.thread.order(ScanCommand::Watch(process, clients));
    }

    pub fn forget(&self, process: ProcessKey) {
        self.thread.order(ScanCommand::Forget(process));
    }

    /// Sets the longest time between two inspections.
    pub fn set_rescan(&self, every: Duration) {
        self.thread.order(ScanCommand::Rescan(every));
    }
}

impl Drop for ProcessWatcher {
    fn drop(&mut self) {
        self.thread.stop();
    }
}

/// The state of the thread.
struct WatchLoop<R> {
    orders: Orders<ScanCommand>,
    /// Readable when a process opens or closes a device node.
    nodes: Option<OwnedFd>,
    watched: BTreeMap<ProcessKey, WatchedProcess>,
    /// GPU processes that were reported.
    known: BTreeSet<ProcessKey>,
    is_scanned: bool,
    all: Backoff,
    rescan: Duration,
    report: R,
}

impl<R: FnMut(DiscoveryEvent) -> bool> WatchLoop<R> {
    /// Waits until an inspection is due, and makes it. None when the thread has to end.
    fn iterate(&mut self) -> Option<()> {
        let opened = self.wait();
        let (orders, is_over) = self.orders.take();
        if is_over {
            return None;
        }
        for order in orders {
            match order {
                ScanCommand::Watch(process, clients) => {
                    let watched = WatchedProcess::new(clients, Instant::now());
                    self.watched.insert(process, watched);
                }
                ScanCommand::Forget(process) => drop(self.watched.remove(&process)),
                ScanCommand::Rescan(every) => self.rescan = every,
            }
        }
        let now = Instant::now();
        if opened {
            self.all.hurry(now);
            self.watched.values_mut().for_each(|watched| watched.node_opened(now));
        }
        self.inspect_watched(now)?;
        self.find_new(now)
    }

    /// Waits for an order, an opened node, or the time of the next inspection. Returns whether a
    /// node was opened or closed.
    fn wait(&self) -> bool {
        let now = Instant::now();
        let due = self.watched.values().map(WatchedProcess::due).chain([self.all.at]);
        let sleep = due.map(|at| at.saturating_duration_since(now)).min();
        let timeout = sleep.map(timespec);
        let mut fds = vec![PollFd::new(&self.orders, PollFlags::IN)];
        fds.extend(self.nodes.iter().map(|nodes| PollFd::new(nodes, PollFlags::IN)));
        let _ = poll(&mut fds, timeout.as_ref());
        let opened = fds.get(1).is_some_and(|nodes| !nodes.revents().is_empty());
        if let Some(nodes) = &self.nodes {
            while matches!(rustix::io::read(nodes, &mut [0; 4096]), Ok(1..)) {}
        }
        opened
    }

    fn inspect_watched(&mut self, now: Instant) -> Option<()> {
        for (process, watched) in &mut self.watched {
            if watched.due() > now {
                continue;
            }
            let begun = Instant::now();
            let is_due = watched.is_due(process.pid, now);
            if is_due {
                watched.backoff.inspected(now, self.rescan);
            }
            let found = is_due.then(|| inspect_process(process.pid));
            watched.backoff.pause(begun.elapsed(), Instant::now());
            // The backend notices itself when a process has ended or can no longer be accessed.
            let Some(Ok(found)) = found else { continue };
            let Ok(clients) = &found.clients else { continue };
            if found.info.key == *process && watched.take(clients, now) {
                (self.report)(DiscoveryEvent::Changed(Box::new(found))).then_some(())?;
            }
        }
        Some(())
    }

    fn find_new(&mut self, now: Instant) -> Option<()> {
        if self.all.at > now {
            return Some(());
        }
        let mut present = BTreeSet::new();
        for pid in pids_by_files() {
            let Ok(ProcessInfo { key, .. }) = ProcessInfo::read(pid) else { continue };
            if !has_control_node(pid) {
                continue;
            }
            present.insert(key);
            if self.known.contains(&key) {
                continue;
            }
            // A process is reported once, when it has a group on a GPU.
            let Ok(found) = inspect_process(pid) else { continue };
            if found.has_groups() || found.clients.is_err() {
                self.known.insert(key);
                (self.report)(DiscoveryEvent::Appeared(Box::new(found))).then_some(())?;
            }
        }
        self.known.retain(|process| present.contains(process));
        self.all.inspected(now, self.rescan);
        self.all.pause(now.elapsed(), Instant::now());
        if !std::mem::replace(&mut self.is_scanned, true) {
            (self.report)(DiscoveryEvent::Scanned).then_some(())?;
        }
        Some(())
    }
}

/// One watched process, as it was inspected last.
#[derive(Debug)]
struct WatchedProcess {
    /// The clients that were reported.
    known: Vec<Client>,
    /// What the last inspection found, if that is something else.
    fresh: Option<Vec<Client>>,
    backoff: Backoff,
    /// When to check whether this process opened a node, if one did.
    check_nodes_at: Option<Instant>,
    /// The nodes it had open when that was checked last.
    nodes: Vec<HeldNode>,
}

impl WatchedProcess {
    fn new(known: Vec<Client>, now: Instant) -> Self {
        let backoff = Backoff::new(now);
        Self { known, fresh: None, backoff, check_nodes_at: None, nodes: Vec::new() }
    }

    /// A process opened or closed a node. Programs do that in bursts.
    fn node_opened(&mut self, now: Instant) {
        let at = (now + Backoff::WAIT_MIN).max(self.backoff.earliest);
        self.check_nodes_at.get_or_insert(at);
    }

    fn due(&self) -> Instant {
        self.check_nodes_at.map_or(self.backoff.at, |at| at.min(self.backoff.at))
    }

    /// Whether it has to be inspected. Listing the open nodes of a process is cheap, inspecting it
    /// is not; a program that makes a context opens nodes.
    fn is_due(&mut self, pid: u32, now: Instant) -> bool {
        if self.check_nodes_at.is_some_and(|at| at <= now) {
            self.check_nodes_at = None;
            let nodes = node::held_by(pid).unwrap_or_default();
            if nodes != self.nodes {
                self.nodes = nodes;
                self.backoff.hurry(now);
                self.backoff.at = now;
            } else {
                // A program that resets its context closes nodes and opens them again, with the
                // same numbers. But another process may have opened the node, so it can wait.
                self.backoff.at = self.backoff.at.min(now + Backoff::WAIT_UNSURE);
            }
        }
        self.backoff.at <= now
    }

    /// Takes in what an inspection found. Returns whether to report it: a program may be in the
    /// middle of making a context, so two inspections have to find the same.
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

/// When to inspect again: soon at first, then ever more rarely.
#[derive(Debug)]
struct Backoff {
    at: Instant,
    /// Not before this, whatever may have changed.
    earliest: Instant,
    wait: Duration,
}

impl Backoff {
    const WAIT_MIN: Duration = Duration::from_millis(50);
    const WAIT_UNSURE: Duration = Duration::from_millis(400);
    const WAIT_MAX: Duration = Duration::from_secs(5);
    /// The shortest pause after an inspection, as a multiple of what it took.
    const PAUSE: u32 = 15;

    fn new(now: Instant) -> Self {
        Self { at: now + Self::WAIT_MIN, earliest: now, wait: Self::WAIT_MIN }
    }

    fn due(now: Instant) -> Self {
        Self { at: now, earliest: now, wait: Self::WAIT_MIN }
    }

    /// Something may have changed. Inspections stay at least `WAIT_MIN` apart.
    fn hurry(&mut self, now: Instant) {
        self.wait = Self::WAIT_MIN;
        self.at = self.at.min(now + Self::WAIT_MIN).max(self.earliest);
    }

    fn inspected(&mut self, now: Instant, wait_max: Duration) {
        self.at = now + self.wait.min(wait_max);
        self.wait = (self.wait * 2).min(wait_max);
    }

    /// A look at a process took that long. One that takes long, because the process has many files,
    /// is rare, so that the thread has time for the other processes.
    fn pause(&mut self, took: Duration, now: Instant) {
        self.earliest = now + took * Self::PAUSE;
        self.at = self.at.max(self.earliest);
    }
}

/// All other processes, those with few open files first: a user with many files delays the
/// inspection of its own processes, not that of others. (Kernels before 6.2 do not count them.)
fn pids_by_files() -> Vec<u32> {
    let mut pids = all_pids().unwrap_or_default();
    pids.retain(|&pid| pid != std::process::id());
    pids.sort_by_cached_key(|&pid| open_files(pid));
    pids
}

fn has_control_node(pid: u32) -> bool {
    node::held_by(pid).is_ok_and(|held| held.iter().any(|held| held.node == Node::Control))
}

/// A descriptor that is readable after a process opened or closed a device node, if there are any.
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
    use std::process::{Child, Command};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_process_is_inspected_at_once_only_if_its_own_nodes_changed() {
        let begin = Instant::now();
        let pid = std::process::id();
        let mut watch = WatchedProcess::new(Vec::new(), begin);
        let later = begin + Duration::from_secs(60);
        watch.backoff.at = later;
        assert_eq!(watch.due(), later);
        watch.node_opened(begin);
        let soon = begin + Backoff::WAIT_MIN;
        assert_eq!(watch.due(), soon);
        // This process has no node open, and had none before.
        assert!(!watch.is_due(pid, soon));
        assert_eq!(watch.due(), soon + Backoff::WAIT_UNSURE, "it may have reset its context");
        watch.nodes = vec![HeldNode { fd: 3, node: Node::Control }];
        watch.node_opened(begin);
        assert!(watch.is_due(pid, soon), "its nodes have changed");
    }

    #[test]
    fn a_change_is_reported_when_two_inspections_found_it() {
        let now = Instant::now();
        let (devices, holds) = (Vec::new, Vec::new);
        let state =
            |objects| vec![Client { handle: 1, devices: devices(), objects, holds: holds() }];
        let mut watch = WatchedProcess::new(state(1), now);
        assert!(!watch.take(&state(1), now));
        assert!(!watch.take(&state(2), now));
        assert!(!watch.take(&state(3), now));
        assert!(watch.take(&state(3), now));
        assert!(!watch.take(&state(3), now));
        assert!(!watch.take(&state(2), now));
        assert!(!watch.take(&state(3), now), "what was reported before is not reported again");
    }

    #[test]
    fn a_watcher_starts_and_ends_without_a_gpu() {
        let (reports, scanned) = channel();
        let watcher = ProcessWatcher::start(move |event| {
            !matches!(event, DiscoveryEvent::Scanned) || reports.send(()).is_ok()
        });
        let watcher = watcher.unwrap();
        scanned.recv_timeout(Duration::from_secs(10)).expect("every process is inspected at once");
        watcher.watch(ProcessKey { pid: u32::MAX, start_ticks: 1 }, Vec::new());
        watcher.forget(ProcessKey { pid: u32::MAX, start_ticks: 1 });
        drop(watcher);
    }

    #[test]
    fn inspections_become_rarer_until_something_changes() {
        let begin = Instant::now();
        let mut backoff = Backoff::new(begin);
        let mut waits = Vec::new();
        for _ in 0..9 {
            let now = backoff.at;
            backoff.inspected(now, Backoff::WAIT_MAX);
            waits.push((backoff.at - now).as_millis());
        }
        assert_eq!(waits, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        let now = backoff.at;
        backoff.inspected(now, Duration::from_millis(700));
        assert_eq!(backoff.at - now, Duration::from_millis(700));
        backoff.at = now + Duration::from_millis(4000);
        backoff.hurry(now);
        assert_eq!(backoff.at, now + Backoff::WAIT_MIN);
        backoff.hurry(now + Duration::from_millis(10));
        assert_eq!(backoff.at, now + Backoff::WAIT_MIN, "hurrying does not postpone");
    }

    #[test]
    fn a_process_with_many_files_is_looked_at_rarely_whatever_changes() {
        let begin = Instant::now();
        let mut watch = WatchedProcess::new(Vec::new(), begin);
        let took = Duration::from_millis(500);
        watch.backoff.pause(took, begin);
        let earliest = begin + took * Backoff::PAUSE;
        assert_eq!(watch.due(), earliest);
        watch.node_opened(begin);
        watch.backoff.hurry(begin);
        assert_eq!(watch.due(), earliest);
    }

    #[test]
    fn processes_with_few_files_come_first() {
        if open_files(std::process::id()) == 0 {
            eprintln!(
                "SKIPPED: this kernel (before 6.2) does not count the open files of a process"
            );
            return;
        }
        let sleep = |redirections: &str| -> Child {
            let script = format!("exec sleep 60 {redirections}");
            Command::new("bash").args(["-c", &script]).spawn().unwrap()
        };
        let many: String = (10..60).map(|fd| format!("{fd}</dev/null ")).collect();
        let mut children = [sleep(&many), sleep("")];
        let pids = children.each_ref().map(Child::id);
        // Until both shells have become the other program.
        let begin = Instant::now();
        while open_files(pids[0]) < 50 && begin.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let order = pids_by_files();
        let place = |pid| order.iter().position(|&other| other == pid).unwrap();
        assert!(place(pids[1]) < place(pids[0]), "{:?}", pids.map(open_files));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}
