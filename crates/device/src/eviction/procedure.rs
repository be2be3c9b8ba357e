//! The order of the driver's calls: evicting a job, and recovering it from any state.
//!
//! ```text
//!   evict     all running -> Lock all -> Checkpoint all          a failure is recovered from
//!   recover   wait for calls of killed callers -> room? -> Restore all -> Unlock all -> slices
//! ```
//! Recovery follows the driver's states. Before each call the owner must live and the record must
//! be in the journal ([`Surroundings::may_call`]). A time limit applies to Lock only.

use std::io;
use std::time::Duration;

use gpreempt_wire::lock_file::LockFile;

use super::change::Member;
use super::order::Outcome;
use super::target_lock::{Call, TargetLock};
use super::{CallError, CheckpointCalls, CheckpointState, Step};

/// What the procedure needs besides the driver.
pub(super) trait Surroundings {
    /// Whether the owner lives and the process has a record. Nothing is called otherwise.
    fn may_call(&mut self, member: &Member) -> bool;

    /// None if another evictor restores on that GPU.
    fn lock_gpu(&mut self, gpu: &str) -> io::Result<Option<LockFile>>;

    fn report(&mut self, step: Step);

    fn sleep(&mut self, time: Duration);
}

/// One process of the job, locked against other evictors.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) member: Member,
    pub(super) calls: Box<dyn CheckpointCalls>,
    pub(super) lock: TargetLock,
}

/// Why no further call is made.
#[derive(Debug)]
enum Halt {
    Stopped,
    NoRoom { needed: u64, free: u64 },
    Lost(String),
    Failed(String),
}

/// How often a state is read while a call of a killed caller may be in flight.
const LOOK: Duration = Duration::from_millis(20);
/// How slowly the driver moves memory at worst: a tenth of what was measured on an H200.
const BYTES_PER_S_MIN: u64 = 200 << 20;
/// A call that was begun is in flight for at least this time if its state does not change.
const IN_FLIGHT_MIN: Duration = Duration::from_secs(2);
/// How long a process that runs again is watched if a call of a killed caller may change it.
const WATCH: Duration = Duration::from_secs(1);
/// How long to wait for other restores on a GPU.
const GPU_WAIT: Duration = Duration::from_secs(60);
/// A refused call is repeated: its state may have changed meanwhile.
const TRIES: u32 = 5;
const TRY_AGAIN: Duration = Duration::from_millis(200);

/// Evicts all targets, or none.
pub(super) fn evict(targets: &mut Vec<Target>, around: &mut dyn Surroundings) -> Outcome {
    let mut run = Run { targets, around };
    match run.evict() {
        Ok(bytes) if !run.targets.is_empty() => Outcome::Done { bytes },
        Ok(_) => Outcome::Gone,
        Err(Refused::Untouched(sentence)) => Outcome::Failed { sentence, is_undone: true },
        Err(Refused::Halted(Halt::Stopped)) => Outcome::Stopped,
        Err(Refused::Halted(halt)) => {
            let sentence = match halt {
                Halt::Failed(sentence) | Halt::Lost(sentence) => sentence,
                Halt::NoRoom { .. } | Halt::Stopped => "it was not evicted".to_owned(),
            };
            match run.recover() {
                Ok(()) => Outcome::Failed { sentence, is_undone: true },
                Err(Halt::Stopped) => Outcome::Stopped,
                Err(Halt::Lost(sentence)) => Outcome::Lost { sentence },
                Err(_) => Outcome::Failed { sentence, is_undone: false },
            }
        }
    }
}

/// Brings all targets back to the state in which they run, as far as they live.
pub(super) fn recover(targets: &mut Vec<Target>, around: &mut dyn Surroundings) -> Outcome {
    let bytes = targets.iter().map(|target| target.member.bytes).sum();
    let mut run = Run { targets, around };
    match run.recover() {
        Ok(()) if run.targets.is_empty() => Outcome::Gone,
        Ok(()) => Outcome::Done { bytes },
        Err(Halt::Stopped) => Outcome::Stopped,
        Err(Halt::NoRoom { needed, free }) => Outcome::NoRoom { needed, free },
        Err(Halt::Lost(sentence)) => Outcome::Lost { sentence },
        Err(Halt::Failed(sentence)) => Outcome::Failed { sentence, is_undone: false },
    }
}

enum Refused {
    Untouched(String),
    Halted(Halt),
}

struct Run<'a> {
    targets: &'a mut Vec<Target>,
    around: &'a mut dyn Surroundings,
}

impl Run<'_> {
    fn evict(&mut self) -> Result<u64, Refused> {
        self.await_interrupted().map_err(Refused::Halted)?;
        self.targets.iter_mut().for_each(|target| target.lock.settle());
        for (at, state) in self.states().map_err(Refused::Halted)?.into_iter().enumerate() {
            let pid = self.targets[at].member.process.pid;
            let why = match state {
                CheckpointState::Running => continue,
                CheckpointState::Locked => "is locked by another program that evicts it",
                CheckpointState::Checkpointed => "is evicted already, by another program",
                CheckpointState::Failed => FAILED,
            };
            return Err(Refused::Untouched(format!("process {pid} {why}")));
        }
        self.around.report(Step::Locking);
        let limits = self.targets.iter().map(|target| target.member.lock_timeout_ms);
        let limit = Duration::from_millis(limits.max().unwrap_or(0));
        self.each(Call::Lock, None, limit).map_err(Refused::Halted)?;
        self.around.report(Step::Evicting);
        self.each_in(None, Call::Checkpoint).map_err(Refused::Halted)?;
        self.around.report(Step::Evicted);
        Ok(self.targets.iter().map(|target| target.member.bytes).sum())
    }

    fn recover(&mut self) -> Result<(), Halt> {
        self.await_interrupted()?;
        let mut tries = 0;
        loop {
            let result = self.bring_back().and_then(|()| self.watch());
            match result {
                Err(Halt::Failed(_)) | Ok(false) if tries < TRIES => {
                    tries += 1;
                    self.around.sleep(TRY_AGAIN);
                }
                Ok(true) => return Ok(()),
                Ok(false) => {
                    return Err(Halt::Failed("its driver state changes all the time".to_owned()));
                }
                Err(halt) => return Err(halt),
            }
        }
    }

    /// Restores what is evicted, unlocks what is locked, puts back time slices.
    fn bring_back(&mut self) -> Result<(), Halt> {
        let states = self.states()?;
        let is_out = |state: &CheckpointState| *state == CheckpointState::Checkpointed;
        if let Some(at) = states.iter().position(|state| *state == CheckpointState::Failed) {
            let pid = self.targets[at].member.process.pid;
            return Err(Halt::Lost(format!("process {pid} {FAILED}")));
        }
        if states.iter().any(is_out) {
            self.around.report(Step::Restoring);
            // Two restores that look for room at once would both find the same.
            let _gpus = self.lock_gpus()?;
            self.check_room(&states)?;
            self.restore()?;
        }
        if self.states()?.contains(&CheckpointState::Locked) {
            self.around.report(Step::Unlocking);
            self.each_in(Some(CheckpointState::Locked), Call::Unlock)?;
        }
        for target in self.targets.iter_mut() {
            match target.calls.put_back() {
                Ok(()) | Err(CallError::Gone) => {}
                Err(error) => return Err(Halt::Failed(explain(&target.member, &error))),
            }
        }
        Ok(())
    }

    /// Restores all, or evicts again what it restored: a part would occupy room and not run.
    fn restore(&mut self) -> Result<(), Halt> {
        let result = self.each_in(Some(CheckpointState::Checkpointed), Call::Restore);
        if matches!(result, Err(Halt::NoRoom { .. })) {
            self.each_in(Some(CheckpointState::Locked), Call::Checkpoint)?;
        }
        result
    }

    /// The locks of the GPUs, on which no other evictor of this journal restores meanwhile.
    fn lock_gpus(&mut self) -> Result<Vec<LockFile>, Halt> {
        let mut gpus: Vec<String> =
            self.targets.iter().filter_map(|target| target.member.gpu.clone()).collect();
        gpus.sort_unstable();
        gpus.dedup();
        let mut locks = Vec::new();
        let mut waited = Duration::ZERO;
        for gpu in gpus {
            loop {
                match self.around.lock_gpu(&gpu) {
                    Ok(Some(lock)) => break locks.push(lock),
                    Ok(None) if waited < GPU_WAIT => {}
                    Ok(None) => {
                        let sentence = "other memory is being restored on its GPU all the time";
                        return Err(Halt::Failed(sentence.to_owned()));
                    }
                    Err(error) => {
                        return Err(Halt::Failed(format!("its GPU cannot be locked: {error}")));
                    }
                }
                if self.targets.first().is_some_and(|first| !self.around.may_call(&first.member)) {
                    return Err(Halt::Stopped);
                }
                self.around.sleep(LOOK);
                waited += LOOK;
            }
        }
        Ok(locks)
    }

    /// Fails if memory that is known to be needed is known not to be free, on one of the GPUs.
    fn check_room(&mut self, states: &[CheckpointState]) -> Result<(), Halt> {
        let mut checked = Vec::new();
        for at in 0..self.targets.len() {
            let place = |target: &Target| (target.member.device.clone(), target.member.gpu.clone());
            let wanted = place(&self.targets[at]);
            if checked.contains(&wanted) {
                continue;
            }
            let out = self.targets.iter().zip(states).filter(|(target, state)| {
                place(target) == wanted && **state == CheckpointState::Checkpointed
            });
            let needed: u64 = out.map(|(target, _)| target.member.bytes).sum();
            checked.push(wanted);
            let target = &mut self.targets[at];
            match target.calls.free_bytes().map_err(|error| halt(&target.member, &error))? {
                Some(free) if free < needed => return Err(Halt::NoRoom { needed, free }),
                Some(_) | None => {}
            }
        }
        Ok(())
    }

    /// Waits for calls that were in flight when their callers were killed: they complete in the
    /// process.
    fn await_interrupted(&mut self) -> Result<(), Halt> {
        for at in 0..self.targets.len() {
            let Some(target) = self.targets.get_mut(at) else { break };
            let before = match target.lock.interrupted() {
                Some(Call::Checkpoint) => CheckpointState::Locked,
                Some(Call::Restore) => CheckpointState::Checkpointed,
                Some(Call::Lock) => CheckpointState::Running,
                Some(Call::Unlock) | None => continue,
            };
            let may_take = if before == CheckpointState::Running {
                Duration::from_millis(target.member.lock_timeout_ms)
            } else {
                Duration::from_secs(target.member.bytes / BYTES_PER_S_MIN)
            };
            // A state that waits for calls in flight is that after them.
            let is_known = before != CheckpointState::Running && target.calls.state_waits();
            let limit = if is_known { LOOK } else { IN_FLIGHT_MIN.saturating_add(may_take) };
            let mut waited = Duration::ZERO;
            while waited < limit {
                if !self.around.may_call(&target.member) {
                    return Err(Halt::Stopped);
                }
                match target.calls.state() {
                    Ok(state) if state == before => {}
                    Ok(_) | Err(CallError::Gone) => {
                        target.lock.settle();
                        break;
                    }
                    Err(error) => return Err(Halt::Failed(explain(&target.member, &error))),
                }
                self.around.sleep(LOOK);
                waited += LOOK;
            }
        }
        Ok(())
    }

    /// Whether all run, and still do after a while if a call may have been in flight.
    fn watch(&mut self) -> Result<bool, Halt> {
        let mut waited = Duration::ZERO;
        loop {
            if self.states()?.iter().any(|state| *state != CheckpointState::Running) {
                return Ok(false);
            }
            let is_settled = |target: &Target| target.lock.interrupted().is_none();
            if waited >= WATCH || self.targets.iter().all(is_settled) {
                self.targets.iter_mut().for_each(|target| target.lock.settle());
                return Ok(true);
            }
            self.around.sleep(LOOK);
            waited += LOOK;
        }
    }

    /// The states of all targets that live; others are dropped.
    fn states(&mut self) -> Result<Vec<CheckpointState>, Halt> {
        let mut states = Vec::new();
        let mut at = 0;
        while let Some(target) = self.targets.get_mut(at) {
            match target.calls.state() {
                Ok(state) => {
                    states.push(state);
                    at += 1;
                }
                Err(CallError::Gone) => self.drop_target(at),
                Err(error) => return Err(Halt::Failed(explain(&target.member, &error))),
            }
        }
        Ok(states)
    }

    fn drop_target(&mut self, at: usize) {
        self.targets.remove(at).lock.settle_and_release();
    }

    /// Makes a call for each target, or for each that is in one state.
    fn each_in(&mut self, state: Option<CheckpointState>, call: Call) -> Result<(), Halt> {
        self.each(call, state, Duration::ZERO)
    }

    /// The same; `limit` is for locking. Targets that have ended are dropped.
    fn each(
        &mut self,
        call: Call,
        only_in: Option<CheckpointState>,
        limit: Duration,
    ) -> Result<(), Halt> {
        let mut at = 0;
        while let Some(target) = self.targets.get_mut(at) {
            if !self.around.may_call(&target.member) {
                return Err(Halt::Stopped);
            }
            target.lock.begin(call);
            let result = match only_in.map(|_| target.calls.state()) {
                Some(Err(error)) => Err(error),
                Some(Ok(state)) if only_in != Some(state) => Ok(()),
                // Right before the call: without room it may lose the process.
                Some(Ok(_)) if call == Call::Restore => match target.calls.free_bytes() {
                    Ok(Some(free)) if free < target.member.bytes => Err(CallError::NoRoom),
                    Ok(_) => target.calls.restore(),
                    Err(error) => Err(error),
                },
                Some(Ok(_)) | None => make(call, &mut *target.calls, limit),
            };
            target.lock.finish();
            match result {
                Ok(()) => at += 1,
                Err(CallError::Gone) => self.drop_target(at),
                Err(CallError::NoRoom) => {
                    let free = target.calls.free_bytes().ok().flatten().unwrap_or(0);
                    return Err(Halt::NoRoom { needed: target.member.bytes, free });
                }
                Err(error) => return Err(halt(&target.member, &error)),
            }
        }
        Ok(())
    }
}

fn make(call: Call, calls: &mut dyn CheckpointCalls, limit: Duration) -> Result<(), CallError> {
    match call {
        Call::Lock => calls.lock(limit),
        Call::Checkpoint => calls.checkpoint(),
        Call::Restore => calls.restore(),
        Call::Unlock => calls.unlock(),
    }
}

/// Why no further call is made after that error.
fn halt(member: &Member, error: &CallError) -> Halt {
    let sentence = explain(member, error);
    if let CallError::Lost(_) = error { Halt::Lost(sentence) } else { Halt::Failed(sentence) }
}

/// Also the state of a process that never had a context.
const FAILED: &str =
    "has no CUDA context, or the driver lost it (state `failed`); if it was evicted, end it";

fn explain(member: &Member, error: &CallError) -> String {
    let pid = member.process.pid;
    match error {
        CallError::TimedOut => format!(
            "process {pid} was not evicted: a kernel did not end within the time limit for locking \
             it; try again when it is idle, or with a longer limit"
        ),
        CallError::Gone | CallError::NoRoom | CallError::Refused(_) | CallError::Lost(_) => {
            format!("process {pid}: {error}")
        }
    }
}
