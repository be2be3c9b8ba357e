//! Finds the processes that use NVIDIA GPUs and inspects what they have there.

use std::fs;
use std::io;

use super::client_index;
use super::node::{self, HeldNode, Node};
use super::rm::{ClientState, Handle, Rm};
use super::rm_objects::{Client, explore};
use crate::process::{ProcessError, ProcessHandle, ProcessInfo, all_pids, is_gone};

/// A process with an open `/dev/nvidiactl`.
#[derive(Debug)]
pub struct GpuProcess {
    pub info: ProcessInfo,
    pub nodes: Vec<HeldNode>,
    /// Its RM clients, or why they cannot be inspected.
    pub clients: Result<Vec<Client>, InspectError>,
}

impl GpuProcess {
    /// Whether it has a channel group on a GPU.
    pub fn has_groups(&self) -> bool {
        let clients = self.clients.as_deref().unwrap_or_default();
        clients.iter().flat_map(|client| &client.devices).any(|device| !device.groups.is_empty())
    }

    /// The GPUs it uses.
    pub fn uuids(&self) -> Vec<String> {
        let clients = self.clients.as_deref().unwrap_or_default();
        let devices = clients.iter().flat_map(|client| &client.devices);
        devices.filter_map(|device| device.uuid.clone()).collect()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error("process {0} has ended and waits for its parent; there is nothing to control")]
    Zombie(u32),
    #[error("process {0} does not use an NVIDIA GPU (it has no open /dev/nvidiactl)")]
    NoGpu(u32),
    #[error("process {pid} may not be controlled: {advice}")]
    Denied { pid: u32, advice: String },
    #[error(
        "process {pid} shares the GPU objects of process {owner}, which it was forked from; name \
         {owner} instead"
    )]
    Shared { pid: u32, owner: u32 },
    #[error(
        "the GPU objects of process {0} cannot be found: gpreempt cannot use /dev/nvidiactl itself \
         ({1}); give it access to this node"
    )]
    NoIndex(u32, io::Error),
    #[error("process {0} cannot be inspected: {1}")]
    Failed(u32, io::Error),
}

/// Every process that uses a GPU, as far as /proc shows them, without this one.
pub fn gpu_processes() -> io::Result<Vec<GpuProcess>> {
    let own = std::process::id();
    let found = all_pids()?
        .into_iter()
        .filter(|&pid| pid != own)
        .filter_map(|pid| {
            let nodes = node::held_by(pid).ok()?;
            nodes
                .iter()
                .any(|held| held.node == Node::Control)
                .then(|| inspect_process(pid).ok())?
        })
        .collect();
    Ok(found)
}

/// Inspects one process. That its clients may not be inspected is part of the answer.
pub fn inspect_process(pid: u32) -> Result<GpuProcess, InspectError> {
    let info = ProcessInfo::read(pid)?;
    if info.zombie {
        return Err(InspectError::Zombie(pid));
    }
    let nodes = node::held_by(pid).map_err(|error| denied_or_failed(pid, error))?;
    if !nodes.iter().any(|held| held.node == Node::Control) {
        return Err(InspectError::NoGpu(pid));
    }
    let clients = clients_of(&info, &nodes).and_then(|clients| {
        refuse_without_keeper(pid)?;
        match owner_of(&info, &clients) {
            Some(owner) => Err(InspectError::Shared { pid, owner }),
            None => Ok(clients),
        }
    });
    // Afterwards, because the pid may have been reused meanwhile.
    info.key.check()?;
    Ok(GpuProcess { info, nodes, clients })
}

fn clients_of(info: &ProcessInfo, nodes: &[HeldNode]) -> Result<Vec<Client>, InspectError> {
    let pid = info.key.pid;
    let process = ProcessHandle::open(pid).map_err(|error| denied_or_failed(pid, error))?;
    let borrow = |held: &HeldNode| -> Result<Rm, InspectError> {
        let file = process.borrow_fd(held.fd).map_err(|error| denied_or_failed(pid, error))?;
        Ok(Rm::new(file))
    };
    let no_index = |error| InspectError::NoIndex(pid, error);
    let control: Vec<&HeldNode> = nodes.iter().filter(|held| held.node == Node::Control).collect();
    loop {
        let known = client_index::known_clients().map_err(no_index)?;
        let mut usable = Vec::new();
        for held in &control {
            // A borrowed file is closed at once: its process may end meanwhile.
            usable.push((held, usable_clients(&borrow(held)?, &known)));
        }
        // libcuda and NVML make one client for each file, as soon as they have opened it. So the
        // client of a file that seems to have none was not searched for yet.
        let is_complete = usable.iter().all(|(_, clients)| !clients.is_empty());
        if !is_complete && client_index::search_further().map_err(no_index)? {
            continue;
        }
        let mut found = Vec::new();
        for (held, clients) in usable {
            let rm = borrow(held)?;
            found.extend(clients.into_iter().filter_map(|client| explore(&rm, client)));
        }
        return Ok(found);
    }
}

/// Those of the clients that can be used through this file.
fn usable_clients(rm: &Rm, known: &[Handle]) -> Vec<Handle> {
    let mut usable = Vec::new();
    for &client in known {
        match rm.client_state(client) {
            Ok(ClientState::Usable) => usable.push(client),
            Ok(ClientState::Absent) => client_index::forget_client(client),
            Ok(ClientState::OfAnotherFile) | Err(_) => {}
        }
    }
    usable
}

/// Refuses what the keeper could not undo. Where the kernel permits access to ancestors alone, this
/// process may be one, but its keeper, a child of this process, is not.
fn refuse_without_keeper(pid: u32) -> Result<(), InspectError> {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let is_root = rustix::process::geteuid().is_root();
    if is_root || matches!(scope.trim(), "" | "0") {
        return Ok(());
    }
    Err(InspectError::Denied { pid, advice: advice(Some(scope.trim())).to_owned() })
}

/// The ancestor from which a forked process has its clients, if it lives. A client belongs to an
/// open file, and children inherit open files.
fn owner_of(info: &ProcessInfo, clients: &[Client]) -> Option<u32> {
    let wanted = clients.first()?.handle;
    let mut parent = info.parent;
    for _ in 0..ANCESTORS_MAX {
        if parent <= 1 {
            return None;
        }
        let process = ProcessHandle::open(parent).ok()?;
        let nodes = node::held_by(parent).unwrap_or_default();
        let has_it = nodes.iter().filter(|held| held.node == Node::Control).any(|held| {
            let file = process.borrow_fd(held.fd);
            file.is_ok_and(|file| Rm::new(file).has_client(wanted).unwrap_or(false))
        });
        if has_it {
            return Some(parent);
        }
        parent = ProcessInfo::read(parent).ok()?.parent;
    }
    None
}

/// How many ancestors of a forked process are asked.
const ANCESTORS_MAX: u32 = 4;

pub(super) fn denied_or_failed(pid: u32, error: io::Error) -> InspectError {
    // A process that ends is listed for a moment longer, without its files.
    if is_gone(&error) {
        return InspectError::Process(ProcessError::Gone(pid));
    }
    if error.kind() != io::ErrorKind::PermissionDenied {
        return InspectError::Failed(pid, error);
    }
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/user")).ok();
    let (other, own) = (namespace(&pid.to_string()), namespace("self"));
    if other.is_some() && other != own {
        let advice = "it runs in another user namespace; become root on the host".to_owned();
        return InspectError::Denied { pid, advice };
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    InspectError::Denied { pid, advice: advice(scope.as_deref().map(str::trim)).to_owned() }
}

/// What a user who was refused can do, given yama's ptrace_scope.
fn advice(scope: Option<&str>) -> &'static str {
    match scope {
        Some("1") => {
            "the kernel permits access to ancestors only (yama ptrace_scope is 1), and the keeper, \
             which reverts all changes if gpreempt dies, is not an ancestor; become root, or use \
             gpreemptd"
        }
        Some("2" | "3") => {
            "the kernel permits access to root only (yama ptrace_scope); become root"
        }
        Some(_) | None => "it belongs to another user or is protected; become root",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_a_gpu_is_refused() {
        let pid = std::process::id();
        let error = inspect_process(pid).unwrap_err();
        assert!(matches!(error, InspectError::NoGpu(_)));
        assert!(error.to_string().contains("does not use an NVIDIA GPU"));
        assert!(matches!(
            inspect_process(u32::MAX),
            Err(InspectError::Process(ProcessError::Gone(_)))
        ));
    }

    #[test]
    fn a_zombie_is_refused() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        let zombie = (0..1000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            inspect_process(pid).err().filter(|error| matches!(error, InspectError::Zombie(_)))
        });
        child.wait().unwrap();
        assert!(zombie.is_some(), "the child never became a zombie");
    }

    #[test]
    fn advice_depends_on_the_rules() {
        assert!(advice(Some("1")).contains("ancestors"));
        assert!(advice(Some("2")).contains("root only"));
        assert!(advice(None).contains("become root"));
    }

    #[test]
    fn listing_gpu_processes_works_without_a_gpu() {
        let processes = gpu_processes().unwrap();
        assert!(processes.iter().all(|process| !process.nodes.is_empty()));
    }
}
