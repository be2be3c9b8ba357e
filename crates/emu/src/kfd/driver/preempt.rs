//! The calls of the patches: preempt queues of several processes at once, with an owner and a
//! timeout.
//!
//! As in the kernel, three conditions keep a queue off independently of each other: a debugger's
//! suspension, an eviction, and a preemption.

use std::collections::{BTreeMap, BTreeSet};

use gpreempt_core::time::{Duration, Instant};
use gpreempt_kfd::abi::patched::{
    ALL_QUEUES, FLAG_ANY_OWNER, FLAG_GRACE, GRACE_MAX, PRIORITY_DEFAULT, PRIORITY_UNPRIVILEGED,
    PreemptEntry, PreemptQueue, QUEUES_MAX, ResumeQueue, SetPreemptPriority, TIMEOUT_MAX_MS,
};
use gpreempt_sim::external_gpu::CallId;
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::process::Queue;
use super::{CallProgress, Caller, Driver, IoctlRequest, WaitReason};
use crate::kfd::driver_env::DriverEnv;

const PRIORITY_MAX: u32 = 15;

/// The process that preempted a queue, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PreemptOwner {
    owner: u32,
    until: Option<Instant>,
}

/// Changed queues by pid.
pub(super) type Touched = BTreeMap<u32, Vec<u32>>;

#[derive(Clone, Copy)]
enum PreemptAction {
    Preempt(PreemptOwner),
    Resume { owner: u32, any_owner: bool },
}

impl Driver {
    pub(super) fn preempt_queue(
        &mut self,
        env: &mut DriverEnv<'_>,
        caller: Caller,
        request: &mut IoctlRequest,
    ) -> Result<CallProgress, Errno> {
        let block: PreemptQueue = whole_block(request)?;
        let grace_max = if block.flags & FLAG_GRACE != 0 { GRACE_MAX } else { 0 };
        if block.flags & !FLAG_GRACE != 0
            || block.done != 0
            || block.grace > grace_max
            || block.timeout_ms > TIMEOUT_MAX_MS
        {
            return Err(Errno::INVAL);
        }
        let time = Duration::from_millis(block.timeout_ms.into());
        let until = (block.timeout_ms > 0).then(|| env.now + time);
        let action = PreemptAction::Preempt(PreemptOwner { owner: caller.pid, until });
        let sizes = (block.count, block.entry_size);
        let (done, calls) = self.perform_all(env, caller, request, sizes, action)?;
        request.set_block(&PreemptQueue { done, ..block });
        Ok(CallProgress::Wait(WaitReason::Devices(calls)))
    }

    pub(super) fn resume_queue(
        &mut self,
        env: &mut DriverEnv<'_>,
        caller: Caller,
        request: &mut IoctlRequest,
    ) -> Result<CallProgress, Errno> {
        let block: ResumeQueue = whole_block(request)?;
        if block.flags & !FLAG_ANY_OWNER != 0 || block.done != 0 {
            return Err(Errno::INVAL);
        }
        check_array(request, block.count, block.entry_size)?;
        let any_owner = block.flags & FLAG_ANY_OWNER != 0;
        if any_owner && !caller.is_admin {
            return Err(Errno::PERM);
        }
        let action = PreemptAction::Resume { owner: caller.pid, any_owner };
        let sizes = (block.count, block.entry_size);
        let (done, calls) = self.perform_all(env, caller, request, sizes, action)?;
        request.set_block(&ResumeQueue { done, ..block });
        Ok(CallProgress::Wait(WaitReason::Devices(calls)))
    }

    /// Applies an action to every entry of a call. Returns how many succeeded, and the device calls
    /// that have not completed.
    fn perform_all(
        &mut self,
        env: &mut DriverEnv<'_>,
        caller: Caller,
        request: &mut IoctlRequest,
        (count, entry_size): (u32, u32),
        action: PreemptAction,
    ) -> Result<(u32, BTreeSet<CallId>), Errno> {
        let mut entries = entries_of(request, count, entry_size)?;
        check(&entries, caller)?;
        let touched = self.perform_action(caller, &mut entries, action);
        let bytes = entries.as_bytes();
        request.array(bytes.len())?.copy_from_slice(bytes);
        let done = entries.iter().filter(|entry| entry.result == 0).count();
        let calls = self.apply_touched(env, &touched);
        Ok((u32::try_from(done).unwrap_or(u32::MAX), calls))
    }

    pub(super) fn set_preempt_priority(
        &mut self,
        caller: Caller,
        request: &mut IoctlRequest,
    ) -> Result<CallProgress, Errno> {
        let mut block: SetPreemptPriority = whole_block(request)?;
        let is_default = block.priority == PRIORITY_DEFAULT;
        let is_all = block.queue_id == ALL_QUEUES;
        if block.flags != 0
            || (is_all && block.serial != 0)
            || block.reserved != 0
            || block.done != 0
            || i32::try_from(block.pid).is_err()
            || (block.priority > PRIORITY_MAX && !is_default)
        {
            return Err(Errno::INVAL);
        }
        let is_self = is_self(block.pid, caller);
        let is_raise = !is_default && block.priority > PRIORITY_UNPRIVILEGED;
        if (!is_self || is_raise) && !caller.is_admin {
            return Err(Errno::PERM);
        }
        let pid = if is_self { caller.pid } else { block.pid };
        let process = self.process(pid)?;
        let priority = u8::try_from(block.priority).ok().filter(|_| !is_default);
        let mut is_stale = false;
        if is_all {
            process.logical_priority = priority;
        }
        for (name, queue) in &mut process.queues {
            if *name == block.queue_id && !queue.is_meant(block.serial) {
                is_stale = true;
            } else if is_all || *name == block.queue_id {
                // A priority for all queues replaces those of single queues.
                queue.logical_priority = priority.filter(|_| !is_all);
                block.done += 1;
            }
        }
        request.set_block(&block);
        match block.done {
            _ if is_stale => Err(Errno::STALE),
            0 if !is_all => Err(Errno::NOENT),
            _ => Ok(CallProgress::Done),
        }
    }

    /// Resumes what a process preempted, because it has ended.
    pub(super) fn release_owner(&mut self, env: &mut DriverEnv<'_>, owner: u32) {
        let touched = self.resume_matching(|hold| hold.owner == owner);
        self.apply_touched(env, &touched);
    }

    /// Loads the module again, patched or not, which resumes every preempted queue.
    pub fn set_patched(&mut self, env: &mut DriverEnv<'_>, patched: bool) {
        self.profile.patched = patched;
        self.changes += 1;
        let touched = self.resume_matching(|_| true);
        self.apply_touched(env, &touched);
    }

    /// Resumes queues whose timeout has passed.
    pub fn expire(&mut self, env: &mut DriverEnv<'_>) {
        let now = env.now;
        let touched = self.resume_matching(|hold| hold.until.is_some_and(|until| until <= now));
        if !touched.is_empty() {
            self.changes += 1;
        }
        self.apply_touched(env, &touched);
    }

    pub fn next_expiry(&self) -> Option<Instant> {
        let queues = self.processes.values().flat_map(|process| process.queues.values());
        queues.filter_map(|queue| queue.preempted_by?.until).min()
    }

    fn resume_matching(&mut self, is_meant: impl Fn(PreemptOwner) -> bool) -> Touched {
        let mut touched = Touched::new();
        for (pid, process) in &mut self.processes {
            for (name, queue) in &mut process.queues {
                if queue.preempted_by.is_some_and(&is_meant) {
                    queue.preempted_by = None;
                    touched.entry(*pid).or_default().push(*name);
                }
            }
        }
        touched
    }

    /// Applies an action to every queue of a call. Returns the queues that changed.
    fn perform_action(
        &mut self,
        caller: Caller,
        entries: &mut [PreemptEntry],
        action: PreemptAction,
    ) -> Touched {
        let mut touched = Touched::new();
        for entry in entries {
            let pid = if is_self(entry.pid, caller) { caller.pid } else { entry.pid };
            let result = match self.processes.get_mut(&pid) {
                // The caller uses KFD even if it has no queues.
                None if pid == caller.pid => Err(Errno::NOENT),
                None => Err(Errno::SRCH),
                Some(process) => match process.queues.get_mut(&entry.queue_id) {
                    None => Err(Errno::NOENT),
                    Some(queue) if !queue.is_meant(entry.serial) => Err(Errno::STALE),
                    Some(queue) => queue.perform_action(action),
                },
            };
            if result.is_ok() {
                touched.entry(pid).or_default().push(entry.queue_id);
            }
            entry.result = result.map_or_else(|errno| -errno.raw_os_error(), |()| 0);
        }
        touched
    }

    /// Updates the devices of changed queues, once per device.
    pub(super) fn apply_touched(
        &mut self,
        env: &mut DriverEnv<'_>,
        touched: &Touched,
    ) -> BTreeSet<CallId> {
        let (mut calls, mut devices) = (BTreeSet::new(), BTreeSet::new());
        for (pid, names) in touched {
            if self.profile.by_queue {
                calls.extend(self.apply(env, *pid, names));
                continue;
            }
            let Some(process) = self.processes.get(pid) else { continue };
            let queues = names.iter().filter_map(|name| process.queues.get(name));
            let changed = queues.filter(|queue| queue.is_on != process.may_run(queue));
            devices.extend(changed.map(|queue| queue.entry.gpu_id));
        }
        calls.extend(self.remap(env, &devices));
        calls
    }
}

impl Queue {
    /// Whether a patched call or the scheduler keeps it off.
    pub(super) fn is_preempted(&self) -> bool {
        self.preempted_by.is_some() || self.is_scheduled_off
    }

    /// Whether it has this serial number; 0 matches any.
    fn is_meant(&self, serial: u64) -> bool {
        serial == 0 || serial == self.serial
    }

    pub(super) fn preempt_owner(&self) -> Option<u32> {
        self.preempted_by.map(|hold| hold.owner)
    }

    fn perform_action(&mut self, action: PreemptAction) -> Result<(), Errno> {
        let holder = self.preempted_by.map(|hold| hold.owner);
        match action {
            PreemptAction::Preempt(hold) if holder.is_some_and(|holder| holder != hold.owner) => {
                Err(Errno::BUSY)
            }
            PreemptAction::Preempt(hold) => {
                if !self.is_preempted() {
                    self.check_obedience()?;
                }
                self.preempted_by = Some(hold);
                Ok(())
            }
            PreemptAction::Resume { owner, any_owner }
                if !any_owner && holder.is_some_and(|holder| holder != owner) =>
            {
                Err(Errno::BUSY)
            }
            PreemptAction::Resume { .. } => {
                self.preempted_by = None;
                Ok(())
            }
        }
    }

    /// Whether it can be preempted now.
    pub(super) fn check_obedience(&self) -> Result<(), Errno> {
        if self.is_leaving {
            return Err(Errno::BUSY);
        }
        if self.is_broken { Err(Errno::IO) } else { Ok(()) }
    }
}

fn is_self(pid: u32, caller: Caller) -> bool {
    pid == 0 || pid == caller.pid
}

/// The block, which must have exactly the expected size.
fn whole_block<B: FromBytes + zerocopy::FromZeros + IntoBytes>(
    request: &IoctlRequest,
) -> Result<B, Errno> {
    if request.block.len() != size_of::<B>() {
        return Err(Errno::INVAL);
    }
    Ok(request.block())
}

fn check_array(request: &IoctlRequest, count: u32, entry_size: u32) -> Result<(), Errno> {
    let is_sized = usize::try_from(entry_size) == Ok(size_of::<PreemptEntry>());
    if request.array.is_none() || count == 0 || count > QUEUES_MAX || !is_sized {
        return Err(Errno::INVAL);
    }
    Ok(())
}

fn entries_of(
    request: &mut IoctlRequest,
    count: u32,
    entry_size: u32,
) -> Result<Vec<PreemptEntry>, Errno> {
    check_array(request, count, entry_size)?;
    let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
    let bytes = request.array(count * size_of::<PreemptEntry>())?;
    let entries = bytes.chunks_exact(size_of::<PreemptEntry>());
    Ok(entries.filter_map(|bytes| PreemptEntry::read_from_bytes(bytes).ok()).collect())
}

/// Checks all entries before looking up any process.
fn check(entries: &[PreemptEntry], caller: Caller) -> Result<(), Errno> {
    if entries.iter().any(|entry| entry.reserved != 0 || i32::try_from(entry.pid).is_err()) {
        return Err(Errno::INVAL);
    }
    let has_others = entries.iter().any(|entry| !is_self(entry.pid, caller));
    if has_others && !caller.is_admin { Err(Errno::PERM) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
