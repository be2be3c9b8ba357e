//! What can be done to a process: its slices, stopping it, letting it go on.
//!
//! Each act borrows the process's own file for as long as the call takes and no longer. Nothing
//! here writes the journal: whoever acts writes first ([`crate::journal`]).

use std::time::Duration;

use super::abi::control::group::{Preempt, ReadInterleave, SetInterleave, SetSlice};
use super::abi::control::subdevice::{
    DisableChannels, PreemptionMode, SetPreemptionMode, SwitchCounts,
};
use super::abi::status::Status;
use super::discover::{Client, Context, Engine};
use super::hold;
use super::node::{self, HeldProcess, Node};
use super::rm::{Handle, Rm, RmError};
use super::survey::{GpuProcess, denied_or_failed};
use crate::act::ActError;
use crate::journal::Act;
use crate::process::ProcessKey;

/// What has to be stopped to stop a process: for each client and device one act.
pub fn stops(process: &GpuProcess) -> Vec<Act> {
    let clients: &[Client] = process.clients.as_deref().unwrap_or_default();
    let mut acts = Vec::new();
    for client in clients {
        for device in &client.devices {
            let Some(subdevice) = device.subdevice else { continue };
            // Kernels before copies: what feeds on the other is taken off first.
            let of = |engine: Engine| {
                let groups = device.groups.iter().filter(move |group| group.engine == engine);
                groups.flat_map(|group| group.channels.iter().copied())
            };
            let channels: Vec<Handle> = of(Engine::Compute).chain(of(Engine::Copy)).collect();
            if !channels.is_empty() {
                acts.push(Act::NvidiaStop { client: client.handle, subdevice, group: 0, channels });
            }
        }
    }
    acts
}

/// What has to be stopped to stop one context.
pub fn stop(client: Handle, subdevice: Handle, context: &Context<'_>) -> Act {
    let (group, channels) = (context.compute.handle, context.channels());
    Act::NvidiaStop { client, subdevice, group, channels }
}

/// Carries an act on an NVIDIA device out, or with `undo` takes it back.
///
/// # Errors
/// If the process is gone or the driver refuses. Of an act in several calls, some may have been
/// done; whoever wrote it down undoes it.
pub fn perform(process: ProcessKey, act: &Act, undo: bool) -> Result<(), ActError> {
    match act {
        Act::NvidiaSlice { client, group, original_us, set_us } => {
            let slice_us = if undo { *original_us } else { *set_us };
            with_client(process, *client, |rm| {
                rm.control(*client, *group, &mut SetSlice { slice_us })
            })
        }
        Act::NvidiaStop { client, subdevice, channels, .. } => {
            with_client(process, *client, |rm| {
                let switch = if undo { switch_on } else { switch_off };
                switch(rm, *client, *subdevice, channels)
            })
        }
        Act::NvidiaMode { client, subdevice, channels, set, .. } => {
            let mode = if undo { PreemptionMode::Instruction } else { PreemptionMode::of(*set) };
            with_client(process, *client, |rm| {
                let mut problem = Ok(());
                for &channel in channels {
                    let mut block = SetPreemptionMode::compute(channel, mode);
                    match rm.control(*client, *subdevice, &mut block) {
                        Err(error) if !is_missing(error) => problem = problem.and(Err(error)),
                        Ok(()) | Err(_) => {}
                    }
                }
                problem
            })
        }
        Act::NvidiaInterleave { client, group, original, set } => {
            let level = if undo { *original } else { *set };
            let mut block = SetInterleave { level };
            with_client(process, *client, |rm| rm.control(*client, *group, &mut block))
        }
        // Adding takes more than a name, so whoever adds does it; taking out is for everybody.
        Act::NvidiaHold(site) if undo => hold::detach(process, site),
        Act::NvidiaHold(_) => Err(ActError::Changed(process.pid)),
        // Somebody else's to do.
        Act::EmulatedStop { .. }
        | Act::EmulatedPark { .. }
        | Act::EmulatedSlice { .. }
        | Act::AmdPause { .. }
        | Act::AmdSuspend { .. }
        | Act::AmdSession { .. }
        | Act::AmdPriority { .. } => Err(ActError::Changed(process.pid)),
    }
}

/// Stops channels, 64 in a call. If one call is refused the others are taken back.
fn switch_off(
    rm: &Rm,
    client: Handle,
    subdevice: Handle,
    channels: &[Handle],
) -> Result<(), RmError> {
    for chunk in channels.chunks(DisableChannels::CHANNELS_MAX) {
        if let Err(error) = switch_some(rm, client, subdevice, chunk, true) {
            // Nobody promises that a refused call did nothing.
            let _ = switch_on(rm, client, subdevice, channels);
            return Err(error);
        }
    }
    Ok(())
}

/// Lets channels go on: all that are still there, whatever becomes of the others.
fn switch_on(
    rm: &Rm,
    client: Handle,
    subdevice: Handle,
    channels: &[Handle],
) -> Result<(), RmError> {
    let mut problem = Ok(());
    for chunk in channels.chunks(DisableChannels::CHANNELS_MAX) {
        if switch_some(rm, client, subdevice, chunk, false).is_ok() {
            continue;
        }
        for channel in chunk {
            match switch_some(rm, client, subdevice, &[*channel], false) {
                Err(error) if !is_missing(error) => problem = problem.and(Err(error)),
                // A channel that is gone is not stopped.
                Ok(()) | Err(_) => {}
            }
        }
    }
    problem
}

/// Whether the driver says that there is no such thing.
const fn is_missing(error: RmError) -> bool {
    matches!(
        error,
        RmError::Refused(
            Status::OBJECT_NOT_FOUND | Status::INVALID_OBJECT_HANDLE | Status::INVALID_CHANNEL
        )
    )
}

fn switch_some(
    rm: &Rm,
    client: Handle,
    subdevice: Handle,
    channels: &[Handle],
    off: bool,
) -> Result<(), RmError> {
    let named: Vec<(Handle, Handle)> = channels.iter().map(|&channel| (client, channel)).collect();
    let block = if off { DisableChannels::off(&named) } else { DisableChannels::on(&named) };
    // PANIC: chunks are at most as long as a call takes.
    rm.control(client, subdevice, &mut block.expect("a chunk fits"))
}

/// Takes a group off its device once; it comes back when its turn comes. Waits until it is off for
/// as long as `wait` says, or not at all.
///
/// # Errors
/// If the process is gone, the driver refuses, or it is not off in time.
pub fn preempt(
    process: ProcessKey,
    client: Handle,
    group: Handle,
    wait: Option<Duration>,
) -> Result<(), ActError> {
    let mut block = match wait {
        Some(wait) => Preempt::waiting(u32::try_from(wait.as_micros()).unwrap_or(u32::MAX)),
        None => Preempt::at_once(),
    };
    with_client(process, client, |rm| rm.control(client, group, &mut block))
}

/// How often a group's turn comes, as the driver counts.
///
/// # Errors
/// If the process is gone or the driver refuses.
pub fn interleave(process: ProcessKey, client: Handle, group: Handle) -> Result<u32, ActError> {
    let mut block = ReadInterleave { level: 0 };
    with_client(process, client, |rm| rm.control(client, group, &mut block))?;
    Ok(block.level)
}

/// How often a process was taken off its GPUs in the middle of a kernel.
///
/// # Errors
/// If the process is gone or the driver refuses.
pub fn switch_counts(
    process: ProcessKey,
    client: Handle,
    subdevice: Handle,
    group: Handle,
) -> Result<SwitchCounts, ActError> {
    let mut counts = SwitchCounts::of(group);
    with_client(process, client, |rm| rm.control(client, subdevice, &mut counts))?;
    Ok(counts)
}

/// Calls `act` with the file of the process that owns the client.
pub(super) fn with_client<T>(
    process: ProcessKey,
    client: Handle,
    act: impl FnOnce(&Rm) -> Result<T, RmError>,
) -> Result<T, ActError> {
    let pid = process.pid;
    process.check()?;
    let failed = |error| ActError::Look(denied_or_failed(pid, error));
    let held = HeldProcess::open(pid).map_err(failed)?;
    // What is borrowed from here on is borrowed from this very process or from nobody.
    process.check()?;
    let mut unreachable = None;
    for node in node::held_by(pid).map_err(failed)? {
        if node.node != Node::Control {
            continue;
        }
        let file = match held.borrow_fd(node.fd) {
            Ok(file) => file,
            // Closed meanwhile.
            Err(error) if is_closed(&error) => continue,
            Err(error) => {
                unreachable.get_or_insert_with(|| failed(error));
                continue;
            }
        };
        let rm = Rm::new(file);
        match rm.has_client(client) {
            Ok(false) => {}
            Err(error) => {
                unreachable.get_or_insert(ActError::Rm(pid, error));
            }
            Ok(true) => {
                return act(&rm).map_err(|error| {
                    if is_missing(error) {
                        ActError::Changed(pid)
                    } else {
                        ActError::Rm(pid, error)
                    }
                });
            }
        }
    }
    // Only whoever looked everywhere may say that it is not there.
    if let Some(error) = unreachable {
        return Err(error);
    }
    Err(ActError::Changed(pid))
}

/// Empties the rings of channels: what was submitted and not yet fetched is taken out, and the
/// channels may run again. Work in the middle of a kernel goes on.
///
/// What their owner remembers of its rings does not change, so its next submission may bring the
/// work back. This is the second step of a published design that is kept to be compared with; it
/// is for a process's own channels, whose end ends what is done here too.
///
/// # Errors
/// If the process is gone or the driver refuses. The channels are let on again in any case.
pub fn clear_ring(
    process: ProcessKey,
    client: Handle,
    subdevice: Handle,
    channels: &[Handle],
) -> Result<(), ActError> {
    with_client(process, client, |rm| {
        let mut result = Ok(());
        for chunk in channels.chunks(DisableChannels::CHANNELS_MAX) {
            let named: Vec<(Handle, Handle)> =
                chunk.iter().map(|&channel| (client, channel)).collect();
            // PANIC: chunks are at most as long as a call takes.
            let mut off = DisableChannels::off_and_clear(&named).expect("a chunk fits");
            let cleared = rm.control(client, subdevice, &mut off);
            // Also after a refusal: some of them may be off.
            let on = switch_some(rm, client, subdevice, chunk, false);
            result = result.and(cleared).and(on);
        }
        result
    })
}

fn is_closed(error: &std::io::Error) -> bool {
    let gone = [rustix::io::Errno::BADF, rustix::io::Errno::SRCH].map(|e| Some(e.raw_os_error()));
    gone.contains(&error.raw_os_error())
}
