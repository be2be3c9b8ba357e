//! Who uses the GPUs.

use std::fs;
use std::io;

use super::discover::{self, Client};
use super::node::{self, HeldNode, HeldProcess, Node};
use super::rm::Rm;
use crate::process::{ProcessError, ProcessInfo, all_pids};

/// A process with an open `/dev/nvidiactl`.
#[derive(Debug)]
pub struct GpuProcess {
    /// Who it is.
    pub info: ProcessInfo,
    /// Its open NVIDIA nodes.
    pub nodes: Vec<HeldNode>,
    /// What it has on the GPUs, or why we may not see it.
    pub clients: Result<Vec<Client>, LookError>,
}

impl GpuProcess {
    /// Whether it has anything that runs on a GPU.
    pub fn has_groups(&self) -> bool {
        let clients = self.clients.as_deref().unwrap_or_default();
        clients.iter().flat_map(|client| &client.devices).any(|device| !device.groups.is_empty())
    }

    /// The names of the GPUs it has something on.
    pub fn uuids(&self) -> Vec<String> {
        let clients = self.clients.as_deref().unwrap_or_default();
        let devices = clients.iter().flat_map(|client| &client.devices);
        devices.filter_map(|device| device.uuid.clone()).collect()
    }
}

/// Why a process cannot be looked into.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// It is not there.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// It has ended.
    #[error("process {0} has ended and waits for its parent; there is nothing to control")]
    Zombie(u32),
    /// It has nothing to do with us.
    #[error("process {0} does not use an NVIDIA GPU (it has no open /dev/nvidiactl)")]
    NoGpu(u32),
    /// We may not.
    #[error("process {pid} may not be controlled: {advice}")]
    Denied {
        /// Which process.
        pid: u32,
        /// What to do about it.
        advice: String,
    },
    /// It uses what another process made.
    #[error(
        "process {pid} shares what process {owner}, which it was forked from, has on the GPU; \
             name {owner} instead"
    )]
    Shared {
        /// Which process.
        pid: u32,
        /// Whose it is.
        owner: u32,
    },
    /// Something else.
    #[error("process {0} cannot be looked into: {1}")]
    Failed(u32, io::Error),
}

/// Every process that uses a GPU, as far as we are shown.
///
/// # Errors
/// If there is no /proc.
pub fn survey() -> io::Result<Vec<GpuProcess>> {
    let own = std::process::id();
    let found = all_pids()?
        .into_iter()
        .filter(|&pid| pid != own)
        .filter_map(|pid| {
            let nodes = node::held_by(pid).ok()?;
            nodes.iter().any(|held| held.node == Node::Control).then(|| look(pid).ok())?
        })
        .collect();
    Ok(found)
}

/// One process.
///
/// # Errors
/// If there is none, or it does not use a GPU. That we may not look into it is part of the answer.
pub fn look(pid: u32) -> Result<GpuProcess, LookError> {
    let info = ProcessInfo::read(pid)?;
    if info.zombie {
        return Err(LookError::Zombie(pid));
    }
    let nodes = node::held_by(pid).map_err(|error| denied_or_failed(pid, error))?;
    if !nodes.iter().any(|held| held.node == Node::Control) {
        return Err(LookError::NoGpu(pid));
    }
    let clients = clients_of(&info, &nodes).and_then(|clients| {
        refuse_without_keeper(pid)?;
        match owner_of(&info, &clients) {
            Some(owner) => Err(LookError::Shared { pid, owner }),
            None => Ok(clients),
        }
    });
    // Whoever had this number before is not who we wanted.
    info.key.check()?;
    Ok(GpuProcess { info, nodes, clients })
}

fn clients_of(info: &ProcessInfo, nodes: &[HeldNode]) -> Result<Vec<Client>, LookError> {
    let pid = info.key.pid;
    let process = HeldProcess::open(pid).map_err(|error| denied_or_failed(pid, error))?;
    let mut clients = Vec::new();
    for held in nodes.iter().filter(|held| held.node == Node::Control) {
        let file = process.borrow_fd(held.fd).map_err(|error| denied_or_failed(pid, error))?;
        // The file is closed again at the end of this turn of the loop.
        clients.extend(discover::clients(&Rm::new(file)));
    }
    Ok(clients)
}

/// Refuses what only we could undo. The keeper is our child: where the kernel lets only ancestors
/// in, we may be one and the keeper is not.
fn refuse_without_keeper(pid: u32) -> Result<(), LookError> {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let is_root = rustix::process::geteuid().is_root();
    if is_root || matches!(scope.trim(), "" | "0") {
        return Ok(());
    }
    Err(LookError::Denied { pid, advice: advice(Some(scope.trim())).to_owned() })
}

/// The process that a forked process has its clients from, if it lives. A client belongs to an open
/// file, and children have their parents' open files.
fn owner_of(info: &ProcessInfo, clients: &[Client]) -> Option<u32> {
    let wanted = clients.first()?.handle;
    let mut parent = info.parent;
    for _ in 0..ANCESTORS_MAX {
        if parent <= 1 {
            return None;
        }
        let process = HeldProcess::open(parent).ok()?;
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

/// How far back a forked process is traced.
const ANCESTORS_MAX: u32 = 4;

pub(super) fn denied_or_failed(pid: u32, error: io::Error) -> LookError {
    // Whoever ends is still listed for a moment, without anything that could be looked at.
    if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) {
        return LookError::Process(ProcessError::Gone(pid));
    }
    if error.kind() != io::ErrorKind::PermissionDenied {
        return LookError::Failed(pid, error);
    }
    let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/user")).ok();
    let (theirs, ours) = (namespace(&pid.to_string()), namespace("self"));
    if theirs.is_some() && theirs != ours {
        let advice = "it runs in another user namespace; become root on the host".to_owned();
        return LookError::Denied { pid, advice };
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok();
    LookError::Denied { pid, advice: advice(scope.as_deref().map(str::trim)).to_owned() }
}

/// What somebody can do who was refused, given yama's ptrace_scope.
fn advice(scope: Option<&str>) -> &'static str {
    match scope {
        Some("1") => {
            "the kernel lets only ancestors in (yama ptrace_scope is 1), and our keeper, who \
             undoes everything if we die, is none; become root, or use gpreemptd"
        }
        Some("2" | "3") => "the kernel lets only root in (yama ptrace_scope); become root",
        Some(_) | None => "it belongs to another user or is protected; become root",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_a_gpu_is_refused_with_a_sentence() {
        let pid = std::process::id();
        let error = look(pid).unwrap_err();
        assert!(matches!(error, LookError::NoGpu(_)));
        assert!(error.to_string().contains("does not use an NVIDIA GPU"));
        assert!(matches!(look(u32::MAX), Err(LookError::Process(ProcessError::Gone(_)))));
    }

    #[test]
    fn a_zombie_is_refused() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        let zombie = (0..1000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(2));
            look(pid).err().filter(|error| matches!(error, LookError::Zombie(_)))
        });
        child.wait().unwrap();
        assert!(zombie.is_some(), "the child never became a zombie");
    }

    #[test]
    fn advice_depends_on_the_rules() {
        assert!(advice(Some("1")).contains("ancestors"));
        assert!(advice(Some("2")).contains("only root"));
        assert!(advice(None).contains("become root"));
    }

    #[test]
    fn the_survey_works_where_there_is_no_gpu() {
        let processes = survey().unwrap();
        assert!(processes.iter().all(|process| !process.nodes.is_empty()));
    }
}
