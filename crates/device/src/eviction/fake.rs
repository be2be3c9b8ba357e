//! A driver for tests: processes whose memory moves in virtual time, calls that fail on demand.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use super::{CallError, CheckpointCalls, CheckpointState};
use crate::process::ProcessKey;

/// What a call takes, in virtual milliseconds.
const CALL_MS: u64 = 100;

#[derive(Clone, Debug, Default)]
pub(crate) struct FakeDriver(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    now_ms: u64,
    pub(crate) free: Option<u64>,
    processes: BTreeMap<ProcessKey, FakeProcess>,
    log: Vec<String>,
    /// Kills the caller in this many calls.
    kill_in: Option<(u32, Kill)>,
}

/// When in a call its caller is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kill {
    /// Before the driver has it.
    Before,
    /// While the process works on it.
    During,
    /// When it has completed.
    After,
}

/// The panic that stands for `kill -9` of the caller.
pub(crate) struct Killed;

#[derive(Debug)]
pub(crate) struct FakeProcess {
    state: CheckpointState,
    /// What it becomes, and when: the work of a call, in the process itself.
    becomes: Option<(u64, CheckpointState)>,
    pub(crate) bytes: u64,
    pub(crate) is_endless: bool,
    /// How many calls are refused before one succeeds.
    pub(crate) refusals: u32,
    pub(crate) has_ended: bool,
    /// Its restore will never succeed.
    pub(crate) is_lost: bool,
    pub(crate) slices_lost: bool,
}

impl FakeDriver {
    pub(crate) fn with(processes: &[ProcessKey]) -> Self {
        let driver = Self::default();
        for key in processes {
            let process = FakeProcess {
                state: CheckpointState::Running,
                becomes: None,
                bytes: 1 << 30,
                is_endless: false,
                refusals: 0,
                has_ended: false,
                is_lost: false,
                slices_lost: false,
            };
            driver.inner().processes.insert(*key, process);
        }
        driver
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    pub(crate) fn change(&self, key: ProcessKey, change: impl FnOnce(&mut FakeProcess)) {
        change(self.inner().processes.get_mut(&key).unwrap());
    }

    pub(crate) fn set_free(&self, free: Option<u64>) {
        self.inner().free = free;
    }

    /// Time passes: calls in flight complete.
    pub(crate) fn advance(&self, time: Duration) {
        let mut inner = self.inner();
        inner.now_ms += u64::try_from(time.as_millis()).unwrap();
        let now = inner.now_ms;
        for process in inner.processes.values_mut() {
            if let Some((at, state)) = process.becomes
                && at <= now
            {
                (process.state, process.becomes) = (state, None);
            }
        }
    }

    pub(crate) fn state_of(&self, key: ProcessKey) -> CheckpointState {
        self.inner().processes[&key].state
    }

    pub(crate) fn has_lost_slices(&self, key: ProcessKey) -> bool {
        self.inner().processes[&key].slices_lost
    }

    /// Has a later call kill its caller.
    pub(crate) fn kill_in(&self, calls: u32, when: Kill) {
        self.inner().kill_in = Some((calls, when));
    }

    /// Whether no call has killed its caller since.
    pub(crate) fn spare(&self) -> bool {
        self.inner().kill_in.take().is_some()
    }

    fn kill_now(&self) -> Option<Kill> {
        let mut inner = self.inner();
        let (left, when) = inner.kill_in?;
        inner.kill_in = left.checked_sub(1).map(|left| (left, when));
        (left == 0).then_some(when)
    }

    pub(crate) fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.inner().log)
    }

    pub(crate) fn calls(&self, key: ProcessKey) -> Box<dyn CheckpointCalls> {
        Box::new(FakeCalls { driver: self.clone(), key })
    }

    /// Begins a call, as a caller does that is killed right afterwards.
    pub(crate) fn begin(
        &self,
        key: ProcessKey,
        (from, to): (CheckpointState, CheckpointState),
    ) -> Result<(), CallError> {
        let mut inner = self.inner();
        let at = inner.now_ms + CALL_MS;
        let process = inner.processes.get_mut(&key).ok_or(CallError::Gone)?;
        if process.has_ended {
            return Err(CallError::Gone);
        }
        if process.refusals > 0 {
            process.refusals -= 1;
            return Err(CallError::Refused("error 999".to_owned()));
        }
        if process.state != from || process.becomes.is_some() {
            return Err(CallError::Refused("error 401: illegal state".to_owned()));
        }
        process.becomes = Some((at, to));
        process.slices_lost |= to == CheckpointState::Checkpointed;
        Ok(())
    }
}

#[derive(Debug)]
struct FakeCalls {
    driver: FakeDriver,
    key: ProcessKey,
}

impl FakeCalls {
    fn call(&self, name: &str, moves: (CheckpointState, CheckpointState)) -> Result<(), CallError> {
        let entry = format!("{name} {}", self.key.pid);
        self.driver.inner().log.push(entry);
        let kill = self.driver.kill_now();
        let die = |when: Kill| {
            if kill == Some(when) {
                std::panic::panic_any(Killed);
            }
        };
        die(Kill::Before);
        self.driver.begin(self.key, moves)?;
        die(Kill::During);
        self.driver.advance(Duration::from_millis(CALL_MS));
        die(Kill::After);
        Ok(())
    }
}

impl CheckpointCalls for FakeCalls {
    fn state(&mut self) -> Result<CheckpointState, CallError> {
        let inner = self.driver.inner();
        let process = &inner.processes[&self.key];
        if process.has_ended { Err(CallError::Gone) } else { Ok(process.state) }
    }

    fn lock(&mut self, timeout: Duration) -> Result<(), CallError> {
        if self.driver.inner().processes[&self.key].is_endless {
            self.driver.advance(timeout);
            return Err(CallError::TimedOut);
        }
        self.call("lock", (CheckpointState::Running, CheckpointState::Locked))
    }

    fn checkpoint(&mut self) -> Result<(), CallError> {
        self.call("checkpoint", (CheckpointState::Locked, CheckpointState::Checkpointed))?;
        let mut inner = self.driver.inner();
        let bytes = inner.processes[&self.key].bytes;
        inner.free = inner.free.map(|free| free + bytes);
        Ok(())
    }

    fn restore(&mut self) -> Result<(), CallError> {
        {
            let mut inner = self.driver.inner();
            if inner.processes[&self.key].is_lost {
                inner.log.push(format!("refused {}", self.key.pid));
                return Err(CallError::Lost("it cannot be restored; end it".to_owned()));
            }
            let bytes = inner.processes[&self.key].bytes;
            match inner.free {
                Some(free) if free < bytes => return Err(CallError::NoRoom),
                Some(free) => inner.free = Some(free - bytes),
                None => {}
            }
        }
        self.call("restore", (CheckpointState::Checkpointed, CheckpointState::Locked))
    }

    fn unlock(&mut self) -> Result<(), CallError> {
        self.call("unlock", (CheckpointState::Locked, CheckpointState::Running))
    }

    fn free_bytes(&mut self) -> Result<Option<u64>, CallError> {
        Ok(self.driver.inner().free)
    }

    fn put_back(&mut self) -> Result<(), CallError> {
        self.driver.change(self.key, |process| process.slices_lost = false);
        Ok(())
    }
}
