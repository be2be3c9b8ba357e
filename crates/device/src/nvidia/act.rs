//! What can be done to a process: its slices, stopping it, letting it go on.
//!
//! Each act borrows the process's own file for as long as the call takes and no longer. Nothing
//! here writes the journal: the [`crate::ledger`] writes an act down first.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::abi::control::group::{Preempt, ReadInterleave, SetInterleave, SetSlice};
use super::abi::control::subdevice::{
    DisableChannels, PreemptionMode, SetPreemptionMode, SwitchCounts,
};
use super::abi::status::Status;
use super::discover::{Client, Context, Engine};
use super::hold::{self, HoldSite};
use super::node::{self, HeldProcess, Node};
use super::rm::{Handle, Rm, RmError};
use super::survey::{GpuProcess, denied_or_failed};
use crate::act::{Act, ActError, DeviceAct, Subject};
use crate::process::ProcessKey;

/// One change on an NVIDIA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind")]
pub enum NvidiaAct {
    /// The slice of a channel group.
    #[serde(rename = "nvidia_slice")]
    Slice {
        /// The RM client.
        client: Handle,
        /// The group.
        group: Handle,
        /// What it was, in microseconds.
        original_us: u64,
        /// What it is now.
        set_us: u64,
    },
    /// Channels of a client that no longer run.
    #[serde(rename = "nvidia_stop")]
    Stop {
        /// The RM client.
        client: Handle,
        /// The subdevice through which they were stopped.
        subdevice: Handle,
        /// The compute group they belong to, or 0 for all of the client's on that subdevice.
        group: Handle,
        /// Which ones.
        channels: Vec<Handle>,
    },
    /// Where in a kernel the channels of a group may be taken off. CUDA's own choice, to which it
    /// is put back, is between instructions.
    #[serde(rename = "nvidia_mode")]
    Mode {
        /// The RM client.
        client: Handle,
        /// The subdevice.
        subdevice: Handle,
        /// The group.
        group: Handle,
        /// Its channels.
        channels: Vec<Handle>,
        /// What it is now, as the driver counts.
        set: u32,
    },
    /// A channel of ours in a group, with which the device can be held for it.
    #[serde(rename = "nvidia_hold")]
    Hold(HoldSite),
    /// How often a group's turn comes.
    #[serde(rename = "nvidia_interleave")]
    Interleave {
        /// The RM client.
        client: Handle,
        /// The group.
        group: Handle,
        /// What it was.
        original: u32,
        /// What it is now.
        set: u32,
    },
}

impl DeviceAct for NvidiaAct {
    fn perform(&self, process: ProcessKey, undo: bool) -> Result<(), ActError> {
        let client = match *self {
            Self::Slice { client, .. }
            | Self::Stop { client, .. }
            | Self::Mode { client, .. }
            | Self::Interleave { client, .. } => client,
            // Adding takes more than a name, so the worker does it; any process may take it out.
            Self::Hold(ref site) if undo => return hold::detach(process, site),
            Self::Hold(_) => return Err(ActError::Changed(process.pid)),
        };
        let rm = borrow(process, client)?;
        let done = match self {
            Self::Slice { group, original_us, set_us, .. } => {
                let slice_us = if undo { *original_us } else { *set_us };
                rm.control(client, *group, &mut SetSlice { slice_us })
            }
            Self::Stop { subdevice, channels, .. } if undo => {
                switch_on(&rm, client, *subdevice, channels)
            }
            // If one call is refused the others are taken back: the driver does not promise that a
            // refused call did nothing.
            Self::Stop { subdevice, channels, .. } => channels
                .chunks(DisableChannels::CHANNELS_MAX)
                .try_for_each(|chunk| {
                    rm.control(client, *subdevice, &mut switch_block(client, chunk, true))
                })
                .inspect_err(|_| {
                    let _ = switch_on(&rm, client, *subdevice, channels);
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
            // Where a context is watched anew, the old channel and the new one are there together.
            Self::Hold(site) => (4, site.client, site.slot_number(), site.group),
        };
        Subject { kind, names: [client, middle, group].map(u64::from) }
    }
}

impl NvidiaAct {
    /// This act, and where both are lists, what only the other one names.
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
                let client = client.handle;
                acts.push(NvidiaAct::Stop { client, subdevice, group: 0, channels }.into());
            }
        }
    }
    acts
}

/// What has to be stopped to stop one context.
pub fn stop(client: Handle, subdevice: Handle, context: &Context<'_>) -> NvidiaAct {
    let (group, channels) = (context.compute.handle, context.channels());
    NvidiaAct::Stop { client, subdevice, group, channels }
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
        if rm.control(client, subdevice, &mut switch_block(client, chunk, false)).is_ok() {
            continue;
        }
        for channel in chunk {
            match rm.control(client, subdevice, &mut switch_block(client, &[*channel], false)) {
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

/// The call that stops at most 64 channels, or lets them run again.
fn switch_block(client: Handle, channels: &[Handle], off: bool) -> DisableChannels {
    let named: Vec<(Handle, Handle)> = channels.iter().map(|&channel| (client, channel)).collect();
    let block = if off { DisableChannels::off(&named) } else { DisableChannels::on(&named) };
    // PANIC: chunks are at most as long as a call takes.
    block.expect("a chunk fits")
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
    act(&borrow(process, client)?).map_err(|error| explain(process.pid, error))
}

/// What the driver refused: what is not there any more has changed.
const fn explain(pid: u32, error: RmError) -> ActError {
    if is_missing(error) { ActError::Changed(pid) } else { ActError::Rm(pid, error) }
}

/// The file of the process that owns the client, to be closed as soon as the call is made.
fn borrow(process: ProcessKey, client: Handle) -> Result<Rm, ActError> {
    let pid = process.pid;
    process.check()?;
    let failed = |error| ActError::Look(denied_or_failed(pid, error));
    let held = HeldProcess::open(pid).map_err(failed)?;
    // The pidfd names this process from here on: another one cannot get its number.
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
            Ok(true) => return Ok(rm),
            Ok(false) => {}
            Err(error) => {
                unreachable.get_or_insert(ActError::Rm(pid, error));
            }
        }
    }
    // A process that ends closes its files one after the other, and what it refuses then is no
    // answer: it is gone. Otherwise only a look at every file may say that the client is not there.
    process.check()?;
    Err(unreachable.unwrap_or(ActError::Changed(pid)))
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
