//! Adds a hold channel to a group of another process, and removes it.

use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use zerocopy::FromZeros;

use super::HoldSite;
use super::channel::{ENTRIES, HoldChannel, RING};
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

/// Adds a channel to a group of a process. The caller has recorded the site. On an error the slot
/// comes back, and parts of the channel may exist: call [`detach`].
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
            own.node().to_owned()
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
            let token = result?;
            revoked?;
            rm.control(site.client, site.channel(), &mut ChannelSchedule::on())?;
            Ok(token)
        })
    });
    let token = match added {
        Ok(token) => token,
        Err(error) => return Err((slot, error)),
    };
    let Some(generation) = site.generation() else {
        return Err((slot, ChangeError::ObjectGone(process.pid)));
    };
    let doorbell = own.lock().unwrap_or_else(PoisonError::into_inner).doorbell(generation);
    match doorbell {
        Ok(doorbell) => {
            let base = site.range().base;
            Ok(HoldChannel::new(slot, doorbell, token, base, site.compute_class))
        }
        Err(ImportError::Rm(error)) => Err((slot, failed(process, error))),
        Err(_) => Err((slot, failed(process, RmError::Os(Errno::NODEV)))),
    }
}

/// Maps the slot's memory and makes the channel. Returns its doorbell token.
fn add(rm: &Rm, uvm: &[Uvm], site: &HoldSite) -> Result<u32, RmError> {
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
    let ring = site.range().base + RING as u64;
    let mut channel = ChannelParameters::new(ring, ENTRIES, site.context_share, site.memory());
    let generation = site.generation().ok_or(RmError::Refused(Status::INVALID_CHANNEL))?;
    rm.alloc_channel(site.client, site.group, site.channel(), generation, &mut channel)?;
    rm.alloc_plain(site.client, site.channel(), site.compute(), site.compute_class)?;
    uvm.register(site.uuid, rm, (site.client, site.channel()), site.needs())?;
    let mut token = ChannelToken::new_zeroed();
    rm.control(site.client, site.channel(), &mut token)?;
    Ok(token.token)
}

fn share(rm: &Rm, client: Handle, objects: &[Handle], allow: bool) -> Result<(), RmError> {
    // All of them, even if one fails: no object must stay shared.
    let results: Vec<_> =
        objects.iter().map(|&object| rm.share(client, object, None, allow)).collect();
    results.into_iter().collect()
}

/// Removes a hold channel from a group, or those parts of it that exist. The hold must have ended.
pub fn detach(process: ProcessKey, site: &HoldSite) -> Result<(), ChangeError> {
    let uvm = files_of_unified_memory(process)?;
    with_client(process, site.client, |rm| {
        let channel = (site.client, site.channel());
        let is_there = |object| rm.class_of(site.client, object).is_some();
        // A process that was killed while it added the channel has left the objects shared.
        let _ = share(rm, site.client, &site.shared(), false);
        if is_there(site.channel()) {
            // It is registered with one of the files, or with none.
            let _ = uvm.iter().any(|uvm| uvm.unregister(site.uuid, channel).is_ok());
            rm.free(site.client, site.group, site.channel())?;
        }
        let _ = uvm.iter().any(|uvm| uvm.free(site.range()).is_ok());
        if is_there(site.memory()) {
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
