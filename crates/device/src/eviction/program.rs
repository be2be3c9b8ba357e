//! The program `gpreempt-evictor`: takes orders from its owner and makes the driver's calls.
//!
//! It never decides what is evicted. Its owner is a thread of the daemon, of a keeper or of a
//! command; when the owner ends, so does the program, but never during a call.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use gpreempt_wire::lock_file::LockFile;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::change::Member;
use super::emulated::EmulatedCalls;
use super::nvidia::Libraries;
use super::order::{Line, Order, Outcome, Task};
use super::procedure::{self, Surroundings, Target};
use super::target_lock::TargetLock;
use super::{CallError, CheckpointCalls, EvictDevice, Step};
use crate::journal::OwnerJournal;

/// How long to wait for another evictor of the same processes. A patient one waits longer.
const LOCK_WAIT: Duration = Duration::from_secs(10);
const LOCK_RETRY: Duration = Duration::from_millis(20);
/// The time between two looks whether the GPU has room.
const ROOM_RETRY: Duration = Duration::from_secs(1);

/// Connects to the driver of a process.
pub(super) type Connect<'a> =
    dyn FnMut(&Member) -> Result<Box<dyn CheckpointCalls>, CallError> + 'a;

/// The owner, as its orders and its end show.
pub(super) trait Owner {
    fn lives(&mut self) -> bool;

    fn tell(&mut self, line: Line);

    fn sleep(&mut self, time: Duration);
}

/// Runs the program.
pub fn main() -> ExitCode {
    // Ctrl-C in the owner's terminal must not end it during a call.
    let _ = rustix::process::setsid();
    for signal in [SIGTERM, SIGHUP, SIGINT] {
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
    let Ok(mut owner) = PipeOwner::new() else { return ExitCode::FAILURE };
    let mut orders = BufReader::new(io::stdin());
    let libraries = Libraries::default();
    let mut connect = |member: &Member| connect(&libraries, member);
    loop {
        let mut line = String::new();
        match orders.read_line(&mut line) {
            Ok(0) => return ExitCode::SUCCESS,
            Ok(_) => {}
            Err(_) => return ExitCode::FAILURE,
        }
        let Ok(order) = serde_json::from_str::<Order>(&line) else {
            let _ = writeln!(
                io::stderr(),
                "gpreempt-evictor: no order; it is started by gpreempt and gpreemptd, not by hand"
            );
            return ExitCode::from(2);
        };
        let outcome = match order.task {
            Task::Probe => libraries.probe(),
            Task::Evict | Task::Recover { .. } | Task::State => {
                carry_out(&order, &mut connect, &mut owner)
            }
        };
        owner.tell(Line::End { outcome });
    }
}

fn connect(libraries: &Libraries, member: &Member) -> Result<Box<dyn CheckpointCalls>, CallError> {
    Ok(match &member.device {
        EvictDevice::Nvidia => Box::new(libraries.calls(member)?),
        EvictDevice::Emulated { socket, instance } => {
            Box::new(EmulatedCalls::new(member, socket.clone(), *instance))
        }
    })
}

/// Carries out an order.
pub(super) fn carry_out(
    order: &Order,
    connect: &mut Connect<'_>,
    owner: &mut dyn Owner,
) -> Outcome {
    let is_patient = match order.task {
        Task::State | Task::Probe => {
            report_states(order, connect, owner);
            return Outcome::Done { bytes: 0 };
        }
        Task::Evict => return attempt(order, connect, owner, LOCK_WAIT),
        Task::Recover { is_patient } => is_patient,
    };
    loop {
        let outcome = attempt(order, connect, owner, LOCK_WAIT);
        if is_patient && matches!(outcome, Outcome::Lost { .. }) {
            if !await_end(order, owner) {
                return outcome;
            }
            continue;
        }
        let may_change = matches!(outcome, Outcome::NoRoom { .. } | Outcome::Failed { .. });
        if !is_patient || !may_change || !owner.lives() {
            return outcome;
        }
        owner.sleep(ROOM_RETRY);
    }
}

/// Waits until one of the processes has ended: the driver refuses to restore one for as long as it
/// lives. False if the owner ends, or another process takes the records.
fn await_end(order: &Order, owner: &mut dyn Owner) -> bool {
    let living = || order.members.iter().filter(|member| member.process.check().is_ok()).count();
    let before = living();
    while owner.lives() {
        let has_record = order.journal.as_ref().is_some_and(|folder| {
            let journal = OwnerJournal::at(folder.clone());
            order.members.iter().any(|member| journal.eviction_of(member.process).is_some())
        });
        if !has_record {
            return false;
        }
        if living() < before {
            return true;
        }
        owner.sleep(ROOM_RETRY);
    }
    false
}

fn report_states(order: &Order, connect: &mut Connect<'_>, owner: &mut dyn Owner) {
    for member in &order.members {
        let state = connect(member).and_then(|mut calls| calls.state());
        let state = state.map_err(|error| error.to_string());
        owner.tell(Line::State { process: member.process, state });
    }
}

/// Evicts or recovers all members that live, with their locks.
fn attempt(
    order: &Order,
    connect: &mut Connect<'_>,
    owner: &mut dyn Owner,
    lock_wait: Duration,
) -> Outcome {
    let failed = |sentence| Outcome::Failed { sentence, is_undone: order.task == Task::Evict };
    let Some(journal) = order.journal.as_deref() else {
        return failed("an order without a journal".to_owned());
    };
    let mut members: Vec<&Member> = order.members.iter().collect();
    // The same order for all programs, so that two of them never wait for each other.
    members.sort_by_key(|member| member.process);
    let mut targets = Vec::new();
    let mut waited = Duration::ZERO;
    for member in members {
        let lock = loop {
            match TargetLock::take(journal, member.process) {
                Ok(Some(lock)) => break lock,
                Ok(None) if !owner.lives() => return Outcome::Stopped,
                Ok(None) if waited < lock_wait => {
                    owner.sleep(LOCK_RETRY);
                    waited += LOCK_RETRY;
                }
                Ok(None) => {
                    let pid = member.process.pid;
                    return failed(format!(
                        "another gpreempt process moves the memory of process {pid}; try again"
                    ));
                }
                Err(error) => return failed(format!("its lock cannot be taken: {error}")),
            }
        };
        match connect(member) {
            Ok(calls) => targets.push(Target { member: member.clone(), calls, lock }),
            // Its process is gone, and what was in flight with it.
            Err(CallError::Gone) => lock.settle_and_release(),
            Err(error) => {
                return failed(format!("process {}: {error}", member.process.pid));
            }
        }
    }
    let mut around = OwnerAndJournal { owner, journal: OwnerJournal::at(journal.to_owned()) };
    let outcome = match order.task {
        Task::Evict => procedure::evict(&mut targets, &mut around),
        Task::Recover { .. } | Task::State | Task::Probe => {
            procedure::recover(&mut targets, &mut around)
        }
    };
    let is_over = matches!(outcome, Outcome::Done { .. } | Outcome::Gone);
    if is_over && order.task != Task::Evict {
        // Before the locks are released: an evictor that was started for these records, and did
        // not begin yet, must not begin afterwards.
        for member in &order.members {
            let _ = around.journal.forget_eviction(member.process);
        }
    }
    targets.into_iter().for_each(|target| target.lock.release());
    outcome
}

struct OwnerAndJournal<'a> {
    owner: &'a mut dyn Owner,
    journal: OwnerJournal,
}

impl Surroundings for OwnerAndJournal<'_> {
    fn may_call(&mut self, member: &Member) -> bool {
        self.owner.lives() && self.journal.eviction_of(member.process).is_some()
    }

    fn lock_gpu(&mut self, gpu: &str) -> io::Result<Option<LockFile>> {
        let name: String = gpu.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
        let path = self.journal.folder().with_file_name(format!("restore-{name}.lock"));
        Ok(LockFile::try_lock(&path)?.map(LockFile::removed_at_end))
    }

    fn report(&mut self, step: Step) {
        self.owner.tell(Line::Step { step });
    }

    fn sleep(&mut self, time: Duration) {
        self.owner.sleep(time);
    }
}

/// The owner of a program whose standard input it writes.
struct PipeOwner {
    answers: File,
}

impl PipeOwner {
    /// libcuda may print: standard output becomes the null device, and lines go to a copy of it.
    fn new() -> io::Result<Self> {
        let answers: OwnedFd = io::stdout().as_fd().try_clone_to_owned()?;
        let null = File::options().write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdout(&null)?;
        Ok(Self { answers: answers.into() })
    }
}

impl Owner for PipeOwner {
    /// Whether the other end of standard input is open.
    fn lives(&mut self) -> bool {
        let stdin = io::stdin();
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        let _ = poll(&mut fds, Some(&Timespec::default()));
        !fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)
    }

    fn tell(&mut self, line: Line) {
        let Ok(mut text) = serde_json::to_vec(&line) else { return };
        text.push(b'\n');
        // An owner that does not read has ended; `lives` finds that.
        let _ = self.answers.write_all(&text);
    }

    fn sleep(&mut self, time: Duration) {
        let until = Instant::now() + time;
        // The end of the owner ends the wait.
        while self.lives() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(Duration::from_millis(100)));
        }
    }
}
