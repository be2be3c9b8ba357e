//! Adds a hold channel to a group of another process, and removes it.

use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use zerocopy::FromZeros;

use super::HoldSite;
use super::channel::HoldChannel;
use super::command_ring::{ENTRIES, FENCE, HOLD, RingLayout};
use crate::change::ChangeError;
use crate::hold_pages::{HoldSlot, SLOT_SIZE};
use crate::nvidia::abi::hold::{ChannelParameters, ChannelSchedule, ChannelToken, HostMemory};
use crate::nvidia::abi::status::Status;
use crate::nvidia::change::with_client;
use crate::nvidia::import_client::{ImportClient, ImportError};
use crate::nvidia::node::{self, Node};
use crate::nvidia::process_discovery::denied_or_failed;
use crate::nvidia::rm::{Handle, Rm, RmError};
use crate::nvidia::uvm::Uvm;
use crate::process::{ProcessHandle, ProcessKey};

/// Adds the channels to a group of a process. The caller has recorded the site. On an error the
/// slot comes back, and parts of the channels may exist: call [`detach`]. The channel of idle
/// fences may be missing: holds work without it.
pub fn attach(
    process: ProcessKey,
    site: &HoldSite,
    slot: HoldSlot,
    own: &Mutex<ImportClient>,
) -> Result<HoldChannel, (HoldSlot, ChangeError)> {
    let address = slot.address();
    let added = files_of_unified_memory(process).and_then(|uvm| {
        let node = {
            let own = own.lock().unwrap_or_else(PoisonError::into_inner);
            own.node.clone()
        };
        let node = OpenOptions::new().read(true).write(true).open(node);
        let node = node.map_err(|error| failed(process, os(&error)))?;
        with_client(process, site.client, |rm| {
            rm.register(node.as_fd())?;
            let memory =
                HostMemory::new(site.client, site.device, site.memory(), address, SLOT_SIZE as u64);
            rm.alloc_host_memory(node.as_fd(), memory)?;
            // Unified memory duplicates these objects, which the driver permits to the process
            // itself alone. So they are shared with all clients for as long as this takes.
            let shared = site.shared();
            let result = share(rm, site.client, &shared, true).and_then(|()| add(rm, &uvm, site));
            let revoked = share(rm, site.client, &shared, false);
            let tokens = result?;
            revoked?;
            rm.control(site.client, site.channel(), &mut ChannelSchedule::on())?;
            let (token, fence_token) = tokens;
            let fence_token = fence_token.filter(|_| {
                rm.control(site.client, site.fence_channel(), &mut ChannelSchedule::on()).is_ok()
            });
            Ok((token, fence_token))
        })
    });
    let tokens = match added {
        Ok(tokens) => tokens,
        Err(error) => return Err((slot, error)),
    };
    let Some(generation) = site.generation() else {
        return Err((slot, ChangeError::ObjectGone(process.pid)));
    };
    let doorbell = own.lock().unwrap_or_else(PoisonError::into_inner).doorbell(generation);
    match doorbell {
        Ok(doorbell) => {
            let base = site.range().base;
            Ok(HoldChannel::new(slot, doorbell, tokens, base, site.compute_class))
        }
        Err(ImportError::Rm(error)) => Err((slot, failed(process, error))),
        Err(_) => Err((slot, failed(process, RmError::Os(Errno::NODEV)))),
    }
}

/// Maps the slot's memory and makes the channels. Returns their doorbell tokens.
fn add(rm: &Rm, uvm: &[Uvm], site: &HoldSite) -> Result<(u32, Option<u32>), RmError> {
    let memory = (site.client, site.memory());
    let mut result = Err(RmError::Refused(Status::OBJECT_NOT_FOUND));
    let mut found = None;
    for uvm in uvm {
        // A program has several files open, and one of them has the address space.
        result = uvm.map(site.range(), site.uuid, rm, memory);
        if result.is_ok() {
            found = Some(uvm);
            break;
        }
    }
    result?;
    let uvm = found.ok_or(RmError::Refused(Status::OBJECT_NOT_FOUND))?;
    let (channel, compute) = (site.channel(), site.compute());
    let token = add_channel(rm, uvm, site, &NewChannel { channel, compute, layout: HOLD })?;
    let (channel, compute) = (site.fence_channel(), site.fence_compute());
    let fence = add_channel(rm, uvm, site, &NewChannel { channel, compute, layout: FENCE });
    if fence.is_err() {
        let _ = remove_channel(rm, std::slice::from_ref(uvm), site, channel);
    }
    Ok((token, fence.ok()))
}

/// A channel to be made in the group of a site.
struct NewChannel {
    channel: Handle,
    compute: Handle,
    layout: RingLayout,
}

fn add_channel(rm: &Rm, uvm: &Uvm, site: &HoldSite, new: &NewChannel) -> Result<u32, RmError> {
    let NewChannel { channel, compute, layout } = *new;
    let ring = site.range().base + layout.ring as u64;
    let indices = (site.memory(), layout.indices as u64);
    let mut parameters = ChannelParameters::new(ring, ENTRIES, site.context_share, indices);
    let generation = site.generation().ok_or(RmError::Refused(Status::INVALID_CHANNEL))?;
    rm.alloc_channel(site.client, site.group, channel, generation, &mut parameters)?;
    rm.alloc_plain(site.client, channel, compute, site.compute_class)?;
    let needs = if layout == HOLD { site.needs() } else { site.fence_needs() };
    uvm.register(site.uuid, rm, (site.client, channel), needs)?;
    let mut token = ChannelToken::new_zeroed();
    rm.control(site.client, channel, &mut token)?;
    Ok(token.token)
}

/// Removes a channel, if it exists.
fn remove_channel(rm: &Rm, uvm: &[Uvm], site: &HoldSite, channel: Handle) -> Result<(), RmError> {
    if rm.class_of(site.client, channel).is_none() {
        return Ok(());
    }
    // It is registered with one of the files, or with none.
    let _ = uvm.iter().any(|uvm| uvm.unregister(site.uuid, (site.client, channel)).is_ok());
    rm.free(site.client, site.group, channel)
}

fn share(rm: &Rm, client: Handle, objects: &[Handle], allow: bool) -> Result<(), RmError> {
    // All of them, even if one fails: no object must stay shared.
    let results: Vec<_> =
        objects.iter().map(|&object| rm.share(client, object, None, allow)).collect();
    results.into_iter().collect()
}

/// Removes the channels from a group, or those parts of them that exist. The hold must have ended.
pub fn detach(process: ProcessKey, site: &HoldSite) -> Result<(), ChangeError> {
    let uvm = files_of_unified_memory(process)?;
    with_client(process, site.client, |rm| {
        // A process that was killed while it added the channels has left the objects shared.
        let _ = share(rm, site.client, &site.shared(), false);
        let fence = remove_channel(rm, &uvm, site, site.fence_channel());
        remove_channel(rm, &uvm, site, site.channel())?;
        // The memory of a channel that could not be removed must stay.
        fence?;
        let _ = uvm.iter().any(|uvm| uvm.free(site.range()).is_ok());
        if rm.class_of(site.client, site.memory()).is_some() {
            rm.free(site.client, site.device, site.memory())?;
        }
        Ok(())
    })
}

/// Whether the hold channel is in its group. If that cannot be read, it is taken to be.
pub fn is_attached(process: ProcessKey, site: &HoldSite) -> bool {
    let found = with_client(process, site.client, |rm| {
        Ok(rm.class_of(site.client, site.channel()).is_some())
    });
    match found {
        Ok(is_there) => is_there,
        Err(error) => !error.is_gone(),
    }
}

/// The open files of unified memory of a process, borrowed until they are dropped.
fn files_of_unified_memory(process: ProcessKey) -> Result<Vec<Uvm>, ChangeError> {
    let pid = process.pid;
    let failed = |error| ChangeError::Inspect(denied_or_failed(pid, error));
    let handle = ProcessHandle::open(pid).map_err(failed)?;
    process.check()?;
    let mut files = Vec::new();
    for node in node::held_by(pid).map_err(failed)? {
        if node.node == Node::UnifiedMemory
            && let Ok(file) = handle.borrow_fd(node.fd)
        {
            files.push(Uvm::new(file));
        }
    }
    Ok(files)
}

fn failed(process: ProcessKey, error: RmError) -> ChangeError {
    ChangeError::Rm(process.pid, error)
}

fn os(error: &std::io::Error) -> RmError {
    RmError::Os(error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))
}
