//! Requests that are answered when GPU memory has moved, and how far the move is.
//!
//! Each request waits in a session and a thread of its own. Meanwhile the command reads snapshots
//! in its first session: a daemon that no longer answers is noticed there, and signals are noticed
//! between two of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use gpreempt_core::time::Duration as Time;
use gpreempt_wire::client::{Client, ClientError};
use gpreempt_wire::request::{Request, Role};
use gpreempt_wire::statistics::{Snapshot, TaskSnapshot, TaskState, memory};

use crate::failure::Failure;
use crate::output::{self, Progress, counted, shown};
use crate::service::{self, ServiceClient};
use crate::signals::Stop;

/// How often progress is read.
pub(crate) const STEP: Duration = Duration::from_millis(100);
/// Memory returns when there is room, which may take as long as other programs run.
const LONGEST: Duration = Duration::from_secs(30 * 86_400);
/// Requests at once: the driver moves the memory of several processes in parallel.
const AT_ONCE: usize = 8;
/// How often the reason for a wait is printed, if it changes.
const REASON_EVERY: Duration = Duration::from_secs(10);

/// A request that waits for its answer in a thread.
#[derive(Debug)]
pub(crate) struct PendingRequest(Receiver<Result<(), ClientError>>);

impl PendingRequest {
    pub(crate) fn send(mut client: Client, request: Request) -> Result<Self, Failure> {
        let (sender, receiver) = channel();
        let work = move || {
            // The command may have given up.
            let _ = sender.send(client.expect_ok_within(&request, LONGEST));
        };
        let thread = std::thread::Builder::new().name("gpreempt-request".to_owned());
        thread.spawn(work).map_err(Failure::run)?;
        Ok(Self(receiver))
    }

    /// The answer, if it arrives within that time.
    pub(crate) fn wait(&self, time: Duration) -> Option<Result<(), ClientError>> {
        match self.0.recv_timeout(time) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(ClientError::HungUp)),
        }
    }
}

/// The result of requests for several processes.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    pub(crate) done: Vec<u32>,
    pub(crate) failed: Vec<(u32, Failure)>,
    /// Processes whose request was not answered, or not sent, before a signal arrived.
    pub(crate) left: Vec<u32>,
}

impl Moves {
    /// The failure of the command, after the other processes were reported. `what` is what did not
    /// happen, such as `evicted`.
    pub(crate) fn failure(self, what: &str) -> Result<(), Failure> {
        let mut failed = self.failed;
        if self.done.is_empty() && failed.len() == 1 {
            return failed.pop().map_or(Ok(()), |(_, failure)| Err(failure));
        }
        let sentences = failed.into_iter().filter_map(|(pid, failure)| match failure {
            Failure::Input(why) | Failure::Run(why) => Some(format!("{pid} was not {what}: {why}")),
            Failure::ReaderGone => None,
        });
        let sentences = sentences.collect::<Vec<_>>().join("\n");
        match (sentences.is_empty(), self.done.is_empty()) {
            (true, _) => Ok(()),
            (false, true) => Err(Failure::input(sentences)),
            (false, false) => Err(Failure::run(sentences)),
        }
    }
}

/// What a signal does while requests wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnStop {
    /// Requests that were sent are waited for. The text is printed.
    Wait(&'static str),
    /// The command ends.
    Leave,
}

/// Sends a request for each process, and waits for the answers.
pub(crate) fn move_all(
    service: &mut ServiceClient,
    requests: Vec<(u32, Request)>,
    progress: &mut MoveProgress,
    (stop, on_stop): (&Stop, OnStop),
) -> Result<Moves, Failure> {
    let mut unsent = VecDeque::from(requests);
    let mut sent: Vec<(u32, PendingRequest)> = Vec::new();
    let mut moves = Moves::default();
    let was_set = stop.is_set();
    let mut is_told = false;
    loop {
        let is_stopped = stop.is_set() && !was_set;
        if is_stopped && let OnStop::Wait(text) = on_stop {
            moves.left.extend(unsent.drain(..).map(|(pid, _)| pid));
            if !std::mem::replace(&mut is_told, true) && !sent.is_empty() {
                progress.note(text);
            }
        } else if is_stopped {
            moves.left.extend(sent.iter().map(|(pid, _)| *pid));
            moves.left.extend(unsent.iter().map(|(pid, _)| *pid));
            return Ok(moves);
        }
        while sent.len() < AT_ONCE
            && let Some((pid, request)) = unsent.pop_front()
        {
            sent.push((pid, PendingRequest::send(service.another(Role::Command)?, request)?));
        }
        if sent.is_empty() {
            return Ok(moves);
        }
        let begin = Instant::now();
        sent.retain(|(pid, pending)| {
            match pending.wait(STEP.saturating_sub(begin.elapsed())) {
                None => return true,
                Some(Ok(())) => moves.done.push(*pid),
                Some(Err(error)) => moves.failed.push((*pid, error.into())),
            }
            false
        });
        if !sent.is_empty() {
            progress.update(&service::snapshot(&mut service.client)?);
        }
    }
}

/// Whether the memory of a process is not on its GPU, or is about to leave it.
pub(crate) const fn is_evicted(task: &TaskSnapshot) -> bool {
    matches!(task.state, TaskState::Evicting | TaskState::Evicted | TaskState::Restoring)
}

/// A process with its name, where the service knows it.
pub(crate) fn named(pid: u32, snapshot: &Snapshot) -> String {
    let task = snapshot.tasks.iter().find(|task| task.pid == pid);
    task.map_or_else(|| pid.to_string(), |task| format!("{pid} ({})", shown(&task.name)))
}

/// Memory that moves, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    moved: u64,
    all: u64,
}

/// How far the memory of processes has moved, on stderr: a line that is rewritten on a terminal,
/// else a line when the move begins.
#[derive(Debug)]
pub(crate) struct MoveProgress {
    verb: &'static str,
    pids: BTreeSet<u32>,
    shares: BTreeMap<u32, Share>,
    bar: Progress,
    is_silent: bool,
    has_begun: bool,
    reason: Option<(Instant, String)>,
}

impl MoveProgress {
    /// `verb` is what happens to the processes, such as `evicting`.
    pub(crate) fn new(verb: &'static str, pids: BTreeSet<u32>, is_json: bool) -> Self {
        Self {
            verb,
            pids,
            shares: BTreeMap::new(),
            bar: Progress::new(""),
            is_silent: is_json,
            has_begun: false,
            reason: None,
        }
    }

    /// Shows how far the processes are.
    pub(crate) fn update(&mut self, snapshot: &Snapshot) {
        let tasks = snapshot.tasks.iter().filter(|task| self.pids.contains(&task.pid));
        let tasks: Vec<&TaskSnapshot> = tasks.collect();
        let moving = tasks.iter().filter(|task| task.moved_kib.is_some());
        let moving: BTreeMap<u32, Share> = moving.map(|task| (task.pid, Share::of(task))).collect();
        // What has arrived counts as a whole.
        let arrived = self.shares.iter().filter(|(pid, _)| !moving.contains_key(pid));
        let arrived = arrived.map(|(pid, share)| (*pid, Share { moved: share.all, ..*share }));
        let arrived: Vec<_> = arrived.collect();
        let left = tasks.iter().filter_map(|task| task.move_left_ms).max();
        self.shares.extend(moving.iter().map(|(pid, share)| (*pid, *share)).chain(arrived));
        if !moving.is_empty() {
            let of_all = |part: fn(&Share) -> u64| self.shares.values().map(part).sum::<u64>();
            let all = Share { moved: of_all(|share| share.moved), all: of_all(|share| share.all) };
            let mut names = self.shares.keys();
            let who = match (names.next(), names.next()) {
                (Some(pid), None) => named(*pid, snapshot),
                _ => counted(self.shares.len(), "process", "processes"),
            };
            let begin = format!("{} {who}", self.verb);
            self.show(&begin, all.moved, all.all, left);
        }
        if let Some(task) = tasks.iter().find(|task| task.restore_waits.is_some()) {
            let reason = task.restore_waits.as_deref().unwrap_or_default();
            self.wait(&format!("{} waits: {}", named(task.pid, snapshot), shown(reason)));
        }
    }

    /// Shows how much of the memory has moved.
    pub(crate) fn show(&mut self, begin: &str, moved_kib: u64, all_kib: u64, left: Option<u64>) {
        let left = left.filter(|left| *left > 0).map(|ms| Time::from_millis(ms).to_string());
        if self.is_silent {
            return;
        }
        if self.bar.is_shown() {
            let left = left.map(|left| format!(", {left} left")).unwrap_or_default();
            let label = format!("{begin}: {} of {}{left}", memory(moved_kib), memory(all_kib));
            self.bar.relabel(&label, moved_kib, all_kib.max(1));
        } else if !self.has_begun {
            let left = left.map(|left| format!(", about {left}")).unwrap_or_default();
            let size = Some(all_kib).filter(|kib| *kib > 0).map(memory);
            let size = size.map(|size| format!(": {size}")).unwrap_or_default();
            output::note(format_args!("{begin}{size}{left}"));
        }
        self.has_begun = true;
    }

    /// Prints why nothing moves, once for each reason and not too often.
    fn wait(&mut self, reason: &str) {
        let is_due = self
            .reason
            .as_ref()
            .is_none_or(|(at, known)| known != reason && at.elapsed() >= REASON_EVERY);
        if is_due {
            self.note(reason);
            self.reason = Some((Instant::now(), reason.to_owned()));
        }
    }

    pub(crate) fn note(&mut self, sentence: &str) {
        if !self.is_silent {
            self.bar.clear();
            output::note(sentence);
        }
    }

    /// Whether a move was shown.
    pub(crate) const fn has_begun(&self) -> bool {
        self.has_begun
    }
}

impl Share {
    /// The device may report the memory of the process until it has left, or not at all.
    fn of(task: &TaskSnapshot) -> Self {
        let moved = task.moved_kib.unwrap_or_default();
        let known = [task.gpu_memory_kib, task.host_memory_kib];
        let all = known.into_iter().flatten().max().unwrap_or_default().max(moved);
        Self { moved, all }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moving(pid: u32, moved: u64, all: u64) -> TaskSnapshot {
        TaskSnapshot {
            pid,
            name: "train".to_owned(),
            state: TaskState::Evicting,
            gpu_memory_kib: Some(all),
            moved_kib: Some(moved),
            move_left_ms: Some(2_000),
            ..TaskSnapshot::default()
        }
    }

    fn shares(progress: &MoveProgress) -> Vec<(u64, u64)> {
        progress.shares.values().map(|share| (share.moved, share.all)).collect()
    }

    #[test]
    fn memory_that_has_arrived_counts_as_a_whole() {
        let mut progress = MoveProgress::new("evicting", BTreeSet::from([7, 8]), true);
        let snapshot = |tasks| Snapshot { tasks, ..Snapshot::default() };
        progress.update(&snapshot(vec![moving(7, 10, 100), moving(8, 20, 200), moving(9, 1, 2)]));
        assert_eq!(shares(&progress), [(10, 100), (20, 200)]);
        progress.update(&snapshot(vec![moving(8, 50, 200)]));
        assert_eq!(shares(&progress), [(100, 100), (50, 200)]);
        let late = TaskSnapshot { gpu_memory_kib: None, ..moving(8, 250, 0) };
        progress.update(&snapshot(vec![late]));
        assert_eq!(shares(&progress)[1], (250, 250));
    }

    #[test]
    fn one_failure_is_that_of_the_command_and_several_name_their_processes() {
        let failed = |pids: &[u32], done: &[u32]| {
            let failed = pids.iter().map(|pid| (*pid, Failure::input("it is stopped")));
            let moves = Moves { done: done.to_vec(), failed: failed.collect(), ..Moves::default() };
            moves.failure("evicted")
        };
        assert!(failed(&[], &[7]).is_ok());
        let only = failed(&[7], &[]);
        assert!(matches!(only, Err(Failure::Input(line)) if line == "it is stopped"));
        let both = "7 was not evicted: it is stopped; 8 was not evicted: it is stopped";
        assert!(matches!(failed(&[7, 8], &[]), Err(Failure::Input(line)) if line == both));
        assert!(matches!(failed(&[7], &[8]), Err(Failure::Run(_))), "something was changed");
    }
}
