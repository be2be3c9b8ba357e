//! The calls of our own patches: queues of several processes at once, with an owner and a time.
//!
//! As in the kernel, three things keep a queue off and none of them undoes another: a debugger's
//! suspension, an eviction, and this.

use std::collections::{BTreeMap, BTreeSet};

use gpreempt_core::time::{Duration, Instant};
use gpreempt_kfd::abi::own::{
    ALL_QUEUES, FLAG_ANY_OWNER, FLAG_GRACE, GRACE_MAX, PRIORITY_DEFAULT, PRIORITY_UNPRIVILEGED,
    PreemptEntry, PreemptQueue, QUEUES_MAX, ResumeQueue, SetPreemptPriority, TIMEOUT_MAX_MS,
};
use gpreempt_sim::external_gpu::CallId;
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::queue::Queue;
use super::{Asked, Caller, Driver, Next, Why};
use crate::kfd::world::World;

/// The highest logical priority.
const PRIORITY_MAX: u32 = 15;

/// Who keeps a queue off, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    owner: u32,
    until: Option<Instant>,
}

/// Queues whose devices have to be told, by their processes.
pub(super) type Touched = BTreeMap<u32, Vec<u32>>;

/// What is to be done to every queue of a call.
#[derive(Clone, Copy)]
enum Wish {
    Preempt(Hold),
    Resume { owner: u32, any_owner: bool },
}

impl Driver {
    pub(super) fn preempt_queue(
        &mut self,
        world: &mut World<'_>,
        caller: Caller,
        asked: &mut Asked,
    ) -> Result<Next, Errno> {
        let mut block: PreemptQueue = whole_block(asked)?;
        let grace_max = if block.flags & FLAG_GRACE != 0 { GRACE_MAX } else { 0 };
        if block.flags & !FLAG_GRACE != 0
            || block.done != 0
            || block.grace > grace_max
            || block.timeout_ms > TIMEOUT_MAX_MS
        {
            return Err(Errno::INVAL);
        }
        let mut entries = entries_of(asked, block.count, block.entry_size)?;
        check(&entries, caller)?;
        let time = Duration::from_millis(block.timeout_ms.into());
        let until = (block.timeout_ms > 0).then(|| world.now + time);
        let wish = Wish::Preempt(Hold { owner: caller.pid, until });
        let touched = self.fulfil(caller, &mut entries, wish);
        block.done = done(&entries);
        finish(asked, &block, &entries)?;
        Ok(Next::Wait(Why::Devices(self.apply_touched(world, &touched))))
    }

    pub(super) fn resume_queue(
        &mut self,
        world: &mut World<'_>,
        caller: Caller,
        asked: &mut Asked,
    ) -> Result<Next, Errno> {
        let mut block: ResumeQueue = whole_block(asked)?;
        if block.flags & !FLAG_ANY_OWNER != 0 || block.done != 0 {
            return Err(Errno::INVAL);
        }
        check_array(asked, block.count, block.entry_size)?;
        let any_owner = block.flags & FLAG_ANY_OWNER != 0;
        if any_owner && !caller.is_admin {
            return Err(Errno::PERM);
        }
        let mut entries = entries_of(asked, block.count, block.entry_size)?;
        check(&entries, caller)?;
        let wish = Wish::Resume { owner: caller.pid, any_owner };
        let touched = self.fulfil(caller, &mut entries, wish);
        block.done = done(&entries);
        finish(asked, &block, &entries)?;
        Ok(Next::Wait(Why::Devices(self.apply_touched(world, &touched))))
    }

    pub(super) fn set_preempt_priority(
        &mut self,
        caller: Caller,
        asked: &mut Asked,
    ) -> Result<Next, Errno> {
        let mut block: SetPreemptPriority = whole_block(asked)?;
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
                // What was said of one queue ends with what is said of all.
                queue.logical_priority = priority.filter(|_| !is_all);
                block.done += 1;
            }
        }
        asked.set_block(&block);
        match block.done {
            _ if is_stale => Err(Errno::STALE),
            0 if !is_all => Err(Errno::NOENT),
            _ => Ok(Next::Done),
        }
    }

    /// Everything that a process preempted goes on, because it has ended.
    pub(super) fn release_owner(&mut self, world: &mut World<'_>, owner: u32) {
        let touched = self.resume_matching(|hold| hold.owner == owner);
        self.apply_touched(world, &touched);
    }

    /// The module is loaded anew, patched or not: whatever was preempted goes on.
    pub fn set_own_calls(&mut self, world: &mut World<'_>, own_calls: bool) {
        self.rules.own_calls = own_calls;
        self.changes += 1;
        let touched = self.resume_matching(|_| true);
        self.apply_touched(world, &touched);
    }

    /// Whatever was preempted for a time that is over goes on.
    pub fn expire(&mut self, world: &mut World<'_>) {
        let now = world.now;
        let touched = self.resume_matching(|hold| hold.until.is_some_and(|until| until <= now));
        if !touched.is_empty() {
            self.changes += 1;
        }
        self.apply_touched(world, &touched);
    }

    /// When the next time is over.
    pub fn next_expiry(&self) -> Option<Instant> {
        let queues = self.processes.values().flat_map(|process| process.queues.values());
        queues.filter_map(|queue| queue.hold?.until).min()
    }

    fn resume_matching(&mut self, is_meant: impl Fn(Hold) -> bool) -> Touched {
        let mut touched = Touched::new();
        for (pid, process) in &mut self.processes {
            for (name, queue) in &mut process.queues {
                if queue.hold.is_some_and(&is_meant) {
                    queue.hold = None;
                    touched.entry(*pid).or_default().push(*name);
                }
            }
        }
        touched
    }

    /// Does what is wished with every queue, and says whose devices have to be told.
    fn fulfil(&mut self, caller: Caller, entries: &mut [PreemptEntry], wish: Wish) -> Touched {
        let mut touched = Touched::new();
        for entry in entries {
            let pid = if is_self(entry.pid, caller) { caller.pid } else { entry.pid };
            let result = match self.processes.get_mut(&pid) {
                // Whoever calls uses KFD, whether it has queues or not.
                None if pid == caller.pid => Err(Errno::NOENT),
                None => Err(Errno::SRCH),
                Some(process) => match process.queues.get_mut(&entry.queue_id) {
                    None => Err(Errno::NOENT),
                    Some(queue) if !queue.is_meant(entry.serial) => Err(Errno::STALE),
                    Some(queue) => queue.fulfil(wish),
                },
            };
            if result.is_ok() {
                touched.entry(pid).or_default().push(entry.queue_id);
            }
            entry.result = result.map_or_else(|errno| -errno.raw_os_error(), |()| 0);
        }
        touched
    }

    /// Tells the devices of queues what may run now, once for each device, if anything is
    /// different there.
    pub(super) fn apply_touched(
        &mut self,
        world: &mut World<'_>,
        touched: &Touched,
    ) -> BTreeSet<CallId> {
        let (mut calls, mut devices) = (BTreeSet::new(), BTreeSet::new());
        for (pid, names) in touched {
            if self.rules.by_queue {
                calls.extend(self.apply(world, *pid, names));
                continue;
            }
            let Some(process) = self.processes.get(pid) else { continue };
            let queues = names.iter().filter_map(|name| process.queues.get(name));
            let changed = queues.filter(|queue| queue.is_on != process.may_run(queue));
            devices.extend(changed.map(|queue| queue.entry.gpu_id));
        }
        calls.extend(self.remap(world, &devices));
        calls
    }
}

impl Queue {
    /// Whether our own calls or the scheduler keep it off.
    pub(super) fn is_preempted(&self) -> bool {
        self.hold.is_some() || self.is_scheduled_off
    }

    /// Whether it is the one of that serial number; 0 is any.
    fn is_meant(&self, serial: u64) -> bool {
        serial == 0 || serial == self.serial
    }

    /// The process that preempted it.
    pub(super) fn preempt_owner(&self) -> Option<u32> {
        self.hold.map(|hold| hold.owner)
    }

    fn fulfil(&mut self, wish: Wish) -> Result<(), Errno> {
        let holder = self.hold.map(|hold| hold.owner);
        match wish {
            Wish::Preempt(hold) if holder.is_some_and(|holder| holder != hold.owner) => {
                Err(Errno::BUSY)
            }
            Wish::Preempt(hold) => {
                if !self.is_preempted() {
                    self.check_obedience()?;
                }
                self.hold = Some(hold);
                Ok(())
            }
            Wish::Resume { owner, any_owner }
                if !any_owner && holder.is_some_and(|holder| holder != owner) =>
            {
                Err(Errno::BUSY)
            }
            Wish::Resume { .. } => {
                self.hold = None;
                Ok(())
            }
        }
    }

    /// Whether it can be taken off now.
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

/// The block, which must be exactly as long as ours.
fn whole_block<B: FromBytes + zerocopy::FromZeros + IntoBytes>(asked: &Asked) -> Result<B, Errno> {
    if asked.block.len() != size_of::<B>() {
        return Err(Errno::INVAL);
    }
    Ok(asked.block())
}

fn check_array(asked: &Asked, count: u32, entry_size: u32) -> Result<(), Errno> {
    let is_sized = usize::try_from(entry_size) == Ok(size_of::<PreemptEntry>());
    if asked.array.is_none() || count == 0 || count > QUEUES_MAX || !is_sized {
        return Err(Errno::INVAL);
    }
    Ok(())
}

fn entries_of(asked: &mut Asked, count: u32, entry_size: u32) -> Result<Vec<PreemptEntry>, Errno> {
    check_array(asked, count, entry_size)?;
    let count = usize::try_from(count).map_err(|_| Errno::INVAL)?;
    let bytes = asked.array(count * size_of::<PreemptEntry>())?;
    let entries = bytes.chunks_exact(size_of::<PreemptEntry>());
    Ok(entries.filter_map(|bytes| PreemptEntry::read_from_bytes(bytes).ok()).collect())
}

/// Checks all entries before anybody is looked up.
fn check(entries: &[PreemptEntry], caller: Caller) -> Result<(), Errno> {
    if entries.iter().any(|entry| entry.reserved != 0 || i32::try_from(entry.pid).is_err()) {
        return Err(Errno::INVAL);
    }
    let has_others = entries.iter().any(|entry| !is_self(entry.pid, caller));
    if has_others && !caller.is_admin { Err(Errno::PERM) } else { Ok(()) }
}

fn done(entries: &[PreemptEntry]) -> u32 {
    let count = entries.iter().filter(|entry| entry.result == 0).count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn finish<B: IntoBytes + zerocopy::Immutable>(
    asked: &mut Asked,
    block: &B,
    entries: &[PreemptEntry],
) -> Result<(), Errno> {
    let bytes = entries.as_bytes();
    asked.array(bytes.len())?.copy_from_slice(bytes);
    asked.set_block(block);
    Ok(())
}

#[cfg(test)]
mod tests;
