//! What else has a say in how GPUs are shared: MPS, MIG, sandboxes, namespaces.

use std::fs;
use std::path::Path;

use super::node::{self, Node};
use crate::process::{ProcessInfo, all_pids};

/// Something that changes what can be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Surrounding {
    /// An MPS server: its clients share one group of the hardware.
    MpsServer {
        /// Its process.
        pid: u32,
    },
    /// A process that shows pictures.
    Display {
        /// Its process.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// A sandbox that talks to the driver for everybody in it.
    Sandbox {
        /// Its process.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// GPUs that are divided into instances.
    Mig {
        /// How many instances there are.
        instances: usize,
    },
    /// We are in a sandbox ourselves.
    InSandbox,
}

impl Surrounding {
    /// Whether something can be done less well because of it.
    pub const fn is_limit(&self) -> bool {
        match self {
            Self::MpsServer { .. } | Self::Mig { .. } | Self::InSandbox => true,
            Self::Display { .. } | Self::Sandbox { .. } => false,
        }
    }

    /// What it means, in a sentence.
    pub fn sentence(&self) -> String {
        match self {
            Self::MpsServer { pid } => format!(
                "an MPS server runs ({pid}): its clients share one group, so stopping or slowing \
                 one of them does the same to all of them"
            ),
            Self::Display { pid, name } => {
                format!("{name} ({pid}) drives a display: it is never stopped")
            }
            Self::Sandbox { pid, name } => format!(
                "{name} ({pid}) is a gVisor sandbox: it stands for every program inside, and they \
                 move together"
            ),
            Self::Mig { instances } => format!(
                "MIG is on ({instances} instances): gpreempt was never tried with it and changes \
                 nothing unless --allow-untested-driver is given"
            ),
            Self::InSandbox => "this is a gVisor sandbox, where files of other processes cannot \
                                be borrowed; run gpreempt on the host"
                .to_owned(),
        }
    }
}

/// Looks around.
pub fn look_around() -> Vec<Surrounding> {
    let mut found = Vec::new();
    if fs::read_to_string("/proc/version").is_ok_and(|version| is_gvisor(&version)) {
        found.push(Surrounding::InSandbox);
    }
    let instances = mig_instances(Path::new("/proc/driver/nvidia/capabilities"));
    if instances > 0 {
        found.push(Surrounding::Mig { instances });
    }
    for pid in all_pids().unwrap_or_default() {
        let Ok(held) = node::held_by(pid) else { continue };
        if held.is_empty() {
            continue;
        }
        let Ok(ProcessInfo { name, .. }) = ProcessInfo::read(pid) else { continue };
        if held.iter().any(|held| held.node == Node::Modeset) {
            found.push(Surrounding::Display { pid, name: name.clone() });
        }
        if name.starts_with(MPS_SERVER) && held.iter().any(|held| is_device(held.node)) {
            found.push(Surrounding::MpsServer { pid });
        }
        if name.starts_with(SANDBOX) {
            found.push(Surrounding::Sandbox { pid, name });
        }
    }
    found
}

/// The names of the MPS server and its control program begin like this; the kernel cuts them off
/// before they differ, but only the server has a device open.
const MPS_SERVER: &str = "nvidia-cuda-mps";
/// gVisor's process for a sandbox.
const SANDBOX: &str = "runsc";

fn is_device(node: Node) -> bool {
    matches!(node, Node::Device(_))
}

/// gVisor shows the same made-up version of Linux everywhere.
fn is_gvisor(version: &str) -> bool {
    version.contains("Linux version 4.4.0") && version.contains("Sun Jan 10 15:06:54 PST 2016")
}

/// The instances of divided GPUs, each of which has a folder.
fn mig_instances(capabilities: &Path) -> usize {
    let folders = |path: &Path, prefix: &str| {
        let entries = fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
        let named = entries.filter(|e| e.file_name().to_string_lossy().starts_with(prefix));
        named.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    folders(capabilities, "gpu").iter().map(|gpu| folders(&gpu.join("mig"), "gi").len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_of_divided_gpus_are_counted() {
        let root = std::env::temp_dir().join(format!("gpreempt-{}-mig", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        assert_eq!(mig_instances(&root), 0);
        for folder in ["mig", "gpu0/mig", "gpu1/mig/gi1/ci0", "gpu1/mig/gi2"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        assert_eq!(mig_instances(&root), 2);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_sandbox_is_known_by_its_kernel() {
        assert!(is_gvisor("Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n"));
        assert!(!is_gvisor("Linux version 6.12.0-amd64 (debian-kernel@lists.debian.org)"));
    }

    #[test]
    fn every_surrounding_has_a_sentence() {
        let name = || "Xorg".to_owned();
        for surrounding in [
            Surrounding::MpsServer { pid: 7 },
            Surrounding::Display { pid: 7, name: name() },
            Surrounding::Sandbox { pid: 7, name: name() },
            Surrounding::Mig { instances: 2 },
            Surrounding::InSandbox,
        ] {
            assert!(surrounding.sentence().len() > 30);
        }
    }

    #[test]
    fn where_there_is_no_gpu_nothing_is_around() {
        if Path::new("/dev/nvidiactl").exists() {
            println!("SKIPPED: this machine has a driver");
            return;
        }
        assert_eq!(look_around(), []);
    }
}
