//! Adding our channel to a group, and taking it out again.

use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use zerocopy::FromZeros;

use super::channel::{ENTRIES, HoldChannel, RING};
use super::site::HoldSite;
use crate::act::ActError;
use crate::hold_pages::{HoldSlot, SLOT_SIZE};
use crate::nvidia::abi::hold::{ChannelParameters, ChannelSchedule, ChannelToken, HostMemory};
use crate::nvidia::abi::status::Status;
use crate::nvidia::act::with_client;
use crate::nvidia::node::{self, HeldProcess, Node};
use crate::nvidia::own::{OwnClient, OwnError};
use crate::nvidia::rm::{Handle, Rm, RmError};
use crate::nvidia::survey::denied_or_failed;
use crate::nvidia::uvm::Uvm;
use crate::process::ProcessKey;

/// Adds a channel to a group of a process. Whoever calls this has written the site down.
///
/// # Errors
/// If something is refused. Some of it may be there then: call [`detach`]. The slot comes back.
pub fn attach(
    process: ProcessKey,
    site: &HoldSite,
    slot: HoldSlot,
    own: &Mutex<OwnClient>,
) -> Result<HoldChannel, (HoldSlot, ActError)> {
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
            // Unified memory duplicates what it is told of, which the driver allows to nobody but
            // the process itself. Allowed for as long as this takes.
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
        return Err((slot, ActError::Changed(process.pid)));
    };
    let doorbell = own.lock().unwrap_or_else(PoisonError::into_inner).doorbell(generation);
    match doorbell {
        Ok(doorbell) => {
            let base = site.piece().base;
            Ok(HoldChannel::new(slot, doorbell, token, base, site.compute_class))
        }
        Err(OwnError::Rm(error)) => Err((slot, failed(process, error))),
        Err(_) => Err((slot, failed(process, RmError::Os(Errno::NODEV)))),
    }
}

/// Maps our memory and makes the channel. Returns what its doorbell wants.
fn add(rm: &Rm, uvm: &[Uvm], site: &HoldSite) -> Result<u32, RmError> {
    let memory = (site.client, site.memory());
    let mut result = Err(RmError::Refused(Status::OBJECT_NOT_FOUND));
    let mut found = None;
    for uvm in uvm {
        // A program has several files, and one of them is the address space.
        result = uvm.map(site.piece(), site.uuid, rm, memory);
        if result.is_ok() {
            found = Some(uvm);
            break;
        }
    }
    result?;
    let uvm = found.ok_or(RmError::Refused(Status::OBJECT_NOT_FOUND))?;
    let ring = site.piece().base + RING as u64;
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
    // All of them, whatever becomes of the others: what was allowed must not stay so.
    let results: Vec<_> =
        objects.iter().map(|&object| rm.share(client, object, None, allow)).collect();
    results.into_iter().collect()
}

/// Takes a channel of ours out of a group, or what there is of it. The hold has to be over.
///
/// # Errors
/// If the process is gone, or something of ours is still there.
pub fn detach(process: ProcessKey, site: &HoldSite) -> Result<(), ActError> {
    let uvm = files_of_unified_memory(process)?;
    with_client(process, site.client, |rm| {
        let channel = (site.client, site.channel());
        let is_there = |object| rm.class_of(site.client, object).is_some();
        // Whoever was killed in the middle of adding has left open what was open for that.
        let _ = share(rm, site.client, &site.shared(), false);
        if is_there(site.channel()) {
            // One of the files knows it, if it was ever told.
            let _ = uvm.iter().any(|uvm| uvm.unregister(site.uuid, channel).is_ok());
            rm.free(site.client, site.group, site.channel())?;
        }
        let _ = uvm.iter().any(|uvm| uvm.free(site.piece()).is_ok());
        if is_there(site.memory()) {
            rm.free(site.client, site.device, site.memory())?;
        }
        Ok(())
    })
}

/// Whether our channel is in a group of a process. If that cannot be seen, it is.
pub fn is_attached(process: ProcessKey, site: &HoldSite) -> bool {
    let found = with_client(process, site.client, |rm| {
        Ok(rm.class_of(site.client, site.channel()).is_some())
    });
    match found {
        Ok(is_there) => is_there,
        Err(error) => !error.is_gone(),
    }
}

/// The open files of unified memory of a process, borrowed for as long as this takes.
fn files_of_unified_memory(process: ProcessKey) -> Result<Vec<Uvm>, ActError> {
    let pid = process.pid;
    let failed = |error| ActError::Look(denied_or_failed(pid, error));
    let held = HeldProcess::open(pid).map_err(failed)?;
    process.check()?;
    let mut files = Vec::new();
    for node in node::held_by(pid).map_err(failed)? {
        if node.node == Node::UnifiedMemory
            && let Ok(file) = held.borrow_fd(node.fd)
        {
            files.push(Uvm::new(file));
        }
    }
    Ok(files)
}

fn failed(process: ProcessKey, error: RmError) -> ActError {
    ActError::Rm(process.pid, error)
}

fn os(error: &std::io::Error) -> RmError {
    RmError::Os(error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))
}
