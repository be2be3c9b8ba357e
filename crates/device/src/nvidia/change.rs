//! Changes to contexts of other processes on NVIDIA devices, and other control calls on them.
//!
//! Each call borrows the process's own file for as long as it takes and no longer. Nothing here
//! writes the journal: the [`crate::undo_log`] records a change first.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::abi::control::{
    DisableChannels, Preempt, PreemptionMode, ReadInterleave, SetInterleave, SetPreemptionMode,
    SetSlice, SwitchCounts,
};
use super::abi::status::Status;
use super::hold::{self, HoldSite};
use super::node::{self, Node};
use super::process_discovery::{GpuProcess, denied_or_failed};
use super::rm::{Handle, Rm, RmError};
use super::rm_objects::{Client, Context, Engine};
use crate::change::{ChangeError, DeviceChange, GpuChange, Subject};
use crate::process::{ProcessHandle, ProcessKey};

/// One change on an NVIDIA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind")]
pub enum NvidiaChange {
    /// The time slice of a channel group.
    #[serde(rename = "nvidia_slice")]
    Slice { client: Handle, group: Handle, original_us: u64, set_us: u64 },
    /// Channels of a client that are disabled.
    #[serde(rename = "nvidia_stop")]
    Stop {
        client: Handle,
        /// The subdevice through which they were disabled.
        subdevice: Handle,
        /// The compute group they belong to, or 0 for all of the client's on that subdevice.
        group: Handle,
        channels: Vec<Handle>,
    },
    /// Where in a kernel the channels of a group may be preempted. Undoing it sets CUDA's own
    /// choice, between instructions.
    #[serde(rename = "nvidia_mode")]
    Mode {
        client: Handle,
        subdevice: Handle,
        group: Handle,
        channels: Vec<Handle>,
        /// The driver's number of the mode.
        set: u32,
    },
    /// A channel of gpreempt in a group, with which the device can be held for it.
    #[serde(rename = "nvidia_hold")]
    Hold(HoldSite),
    /// How often a group is in the run list.
    #[serde(rename = "nvidia_interleave")]
    Interleave { client: Handle, group: Handle, original: u32, set: u32 },
}

impl DeviceChange for NvidiaChange {
    fn perform(&self, process: ProcessKey, undo: bool) -> Result<(), ChangeError> {
        let client = match *self {
            Self::Slice { client, .. }
            | Self::Stop { client, .. }
            | Self::Mode { client, .. }
            | Self::Interleave { client, .. } => client,
            // Adding takes more than handles, so the worker does it; any process can remove it.
            Self::Hold(ref site) if undo => return hold::detach(process, site),
            Self::Hold(_) => return Err(ChangeError::ObjectGone(process.pid)),
        };
        let rm = borrow(process, client)?;
        let done = match self {
            Self::Slice { group, original_us, set_us, .. } => {
                let slice_us = if undo { *original_us } else { *set_us };
                rm.control(client, *group, &mut SetSlice { slice_us })
            }
            Self::Stop { subdevice, channels, .. } if undo => {
                enable(&rm, client, *subdevice, channels)
            }
            // If one call is refused all are reverted: the driver does not promise that a refused
            // call did nothing.
            Self::Stop { subdevice, channels, .. } => channels
                .chunks(DisableChannels::CHANNELS_MAX)
                .try_for_each(|chunk| disable(&rm, client, *subdevice, chunk))
                .inspect_err(|_| {
                    let _ = enable(&rm, client, *subdevice, channels);
                }),
            Self::Mode { subdevice, channels, set, .. } => {
                let mode =
                    if undo { PreemptionMode::Instruction } else { PreemptionMode::of(*set) };
                let mut problem = Ok(());
                for &channel in channels {
                    let mut block = SetPreemptionMode::compute(channel, mode);
                    match rm.control(client, *subdevice, &mut block) {
                        Err(error) if !is_missing(error) => problem = problem.and(Err(error)),
                        Ok(()) | Err(_) => {}
                    }
                }
                problem
            }
            Self::Interleave { group, original, set, .. } => {
                let level = if undo { *original } else { *set };
                rm.control(client, *group, &mut SetInterleave { level })
            }
            Self::Hold(_) => Ok(()),
        };
        done.map_err(|error| explain(process.pid, error))
    }

    fn is_stop(&self) -> bool {
        matches!(self, Self::Stop { .. })
    }

    fn subject(&self) -> Subject {
        let (kind, client, middle, group) = match *self {
            Self::Slice { client, group, .. } => (0, client, 0, group),
            Self::Stop { client, subdevice, group, .. } => (1, client, subdevice, group),
            Self::Mode { client, subdevice, group, .. } => (2, client, subdevice, group),
            Self::Interleave { client, group, .. } => (3, client, 0, group),
            // While a hold is renewed, the old channel and the new one exist together.
            Self::Hold(site) => (4, site.client, site.slot_number(), site.group),
        };
        Subject { kind, names: [client, middle, group].map(u64::from) }
    }
}

impl NvidiaChange {
    /// This stop, of one channel more.
    pub(super) fn with_channel(&self, channel: Option<Handle>) -> Self {
        let mut stop = self.clone();
        if let Self::Stop { channels, .. } = &mut stop {
            channels.extend(channel);
        }
        stop
    }

    /// This change, and where both are lists, what only the other one names.
    pub(crate) fn joined(&self, other: &Self) -> Self {
        let mut joined = self.clone();
        if let (Self::Stop { channels, .. }, Self::Stop { channels: others, .. })
        | (Self::Mode { channels, .. }, Self::Mode { channels: others, .. }) =
            (&mut joined, other)
        {
            let missing: Vec<Handle> =
                others.iter().copied().filter(|channel| !channels.contains(channel)).collect();
            channels.extend(missing);
        }
        joined
    }
}

/// The changes that stop a process: one for each client and device.
pub fn stops(process: &GpuProcess) -> Vec<GpuChange> {
    let clients: &[Client] = process.clients.as_deref().unwrap_or_default();
    let mut acts = Vec::new();
    for client in clients {
        for device in &client.devices {
            let Some(subdevice) = device.subdevice else { continue };
            // Kernels before copies: what consumes the other's results is stopped first.
            let of = |engine: Engine| {
                let groups = device.groups.iter().filter(move |group| group.engine == engine);
                groups.flat_map(|group| group.channels.iter().copied())
            };
            let channels: Vec<Handle> = of(Engine::Compute).chain(of(Engine::Copy)).collect();
            if !channels.is_empty() {
                let client = client.handle;
                acts.push(NvidiaChange::Stop { client, subdevice, group: 0, channels }.into());
            }
        }
    }
    acts
}

/// The change that stops one context.
pub fn stop(client: Handle, subdevice: Handle, context: &Context<'_>) -> NvidiaChange {
    let (group, channels) = (context.compute.handle, context.channels());
    NvidiaChange::Stop { client, subdevice, group, channels }
}

/// Disables at most 64 channels. Those that no longer exist need no stop, but one has to exist.
fn disable(rm: &Rm, client: Handle, subdevice: Handle, channels: &[Handle]) -> Result<(), RmError> {
    let off = |channels| rm.control(client, subdevice, &mut switch_block(client, channels, true));
    let missing = match off(channels) {
        Err(error) if is_missing(error) => error,
        result => return result,
    };
    let mut result = Err(missing);
    for channel in channels.chunks(1) {
        match off(channel) {
            Ok(()) => result = Ok(()),
            Err(error) if is_missing(error) => {}
            Err(error) => return Err(error),
        }
    }
    result
}

/// Enables all channels that still exist, even if the driver refuses some.
fn enable(rm: &Rm, client: Handle, subdevice: Handle, channels: &[Handle]) -> Result<(), RmError> {
    let mut problem = Ok(());
    for chunk in channels.chunks(DisableChannels::CHANNELS_MAX) {
        if rm.control(client, subdevice, &mut switch_block(client, chunk, false)).is_ok() {
            continue;
        }
        for channel in chunk {
            match rm.control(client, subdevice, &mut switch_block(client, &[*channel], false)) {
                Err(error) if !is_missing(error) => problem = problem.and(Err(error)),
                Ok(()) | Err(_) => {}
            }
        }
    }
    problem
}

/// Whether the driver says that the object does not exist.
const fn is_missing(error: RmError) -> bool {
    matches!(
        error,
        RmError::Refused(
            Status::OBJECT_NOT_FOUND | Status::INVALID_OBJECT_HANDLE | Status::INVALID_CHANNEL
        )
    )
}

/// The call that disables at most 64 channels, or enables them.
fn switch_block(client: Handle, channels: &[Handle], off: bool) -> DisableChannels {
    let named: Vec<(Handle, Handle)> = channels.iter().map(|&channel| (client, channel)).collect();
    let block = if off { DisableChannels::off(&named) } else { DisableChannels::on(&named) };
    // PANIC: chunks are at most as long as a call takes.
    block.expect("a chunk fits")
}

/// Preempts a group once; it runs again when its turn comes. Waits until it is off the engine for
/// at most `wait`, or not at all.
pub fn preempt(
    process: ProcessKey,
    client: Handle,
    group: Handle,
    wait: Option<Duration>,
) -> Result<(), ChangeError> {
    let mut block = match wait {
        Some(wait) => Preempt::waiting(u32::try_from(wait.as_micros()).unwrap_or(u32::MAX)),
        None => Preempt::at_once(),
    };
    with_client(process, client, |rm| rm.control(client, group, &mut block))
}

/// Sets the time slice of a group. The caller has a record of the one before.
pub(crate) fn set_slice(
    process: ProcessKey,
    client: Handle,
    group: Handle,
    slice_us: u64,
) -> Result<(), ChangeError> {
    with_client(process, client, |rm| rm.control(client, group, &mut SetSlice { slice_us }))
}

/// The interleave level of a group.
pub fn interleave(process: ProcessKey, client: Handle, group: Handle) -> Result<u32, ChangeError> {
    let mut block = ReadInterleave { level: 0 };
    with_client(process, client, |rm| rm.control(client, group, &mut block))?;
    Ok(block.level)
}

/// How often a group was preempted in the middle of a kernel.
pub fn switch_counts(
    process: ProcessKey,
    client: Handle,
    subdevice: Handle,
    group: Handle,
) -> Result<SwitchCounts, ChangeError> {
    let mut counts = SwitchCounts::of(group);
    with_client(process, client, |rm| rm.control(client, subdevice, &mut counts))?;
    Ok(counts)
}

/// Calls `call` with the file of the process that owns the client.
pub(super) fn with_client<T>(
    process: ProcessKey,
    client: Handle,
    call: impl FnOnce(&Rm) -> Result<T, RmError>,
) -> Result<T, ChangeError> {
    call(&borrow(process, client)?).map_err(|error| explain(process.pid, error))
}

const fn explain(pid: u32, error: RmError) -> ChangeError {
    if is_missing(error) { ChangeError::ObjectGone(pid) } else { ChangeError::Rm(pid, error) }
}

/// The file of the process that owns the client. The caller closes it as soon as its call is made.
fn borrow(process: ProcessKey, client: Handle) -> Result<Rm, ChangeError> {
    let pid = process.pid;
    process.check()?;
    let failed = |error| ChangeError::Inspect(denied_or_failed(pid, error));
    let handle = ProcessHandle::open(pid).map_err(failed)?;
    // Checked again: now the pidfd is known to be of this process.
    process.check()?;
    let mut unreachable = None;
    for node in node::held_by(pid).map_err(failed)? {
        if node.node != Node::Control {
            continue;
        }
        let file = match handle.borrow_fd(node.fd) {
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
            Ok(true) => return Ok(rm),
            Ok(false) => {}
            Err(error) => {
                unreachable.get_or_insert(ChangeError::Rm(pid, error));
            }
        }
    }
    // A process that ends closes its files one after the other; refusals meanwhile mean nothing.
    // Otherwise the client does not exist only if every file could be asked.
    process.check()?;
    Err(unreachable.unwrap_or(ChangeError::ObjectGone(pid)))
}

/// Empties the rings of channels: the driver drops what was submitted and not yet fetched, and
/// enables the channels again, even after a refusal. Running kernels continue.
///
/// The owner's own copy of its ring indices does not change, so its next submission may bring the
/// work back. This is the second step of a published design that is kept for comparison. It is for
/// a process's own channels, whose end reverts it too.
pub fn clear_ring(
    process: ProcessKey,
    client: Handle,
    subdevice: Handle,
    channels: &[Handle],
) -> Result<(), ChangeError> {
    with_client(process, client, |rm| {
        let mut result = Ok(());
        for chunk in channels.chunks(DisableChannels::CHANNELS_MAX) {
            let named: Vec<(Handle, Handle)> =
                chunk.iter().map(|&channel| (client, channel)).collect();
            // PANIC: chunks are at most as long as a call takes.
            let mut off = DisableChannels::off_and_clear(&named).expect("a chunk fits");
            let cleared = rm.control(client, subdevice, &mut off);
            // Also after a refusal: some of them may be disabled.
            let on = rm.control(client, subdevice, &mut switch_block(client, chunk, false));
            result = result.and(cleared).and(on);
        }
        result
    })
}

fn is_closed(error: &std::io::Error) -> bool {
    let gone = [rustix::io::Errno::BADF, rustix::io::Errno::SRCH].map(|e| Some(e.raw_os_error()));
    gone.contains(&error.raw_os_error())
}
