//! Detects what constrains how GPUs are shared: MPS, MIG, display servers, gVisor sandboxes.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::node::{self, Node};
use crate::process::{ProcessInfo, all_pids};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SharingConstraint {
    /// An MPS server: its clients share one channel group.
    MpsServer {
        pid: u32,
    },
    Display {
        pid: u32,
        name: String,
    },
    /// A gVisor sandbox, which calls the driver for all programs inside.
    Sandbox {
        pid: u32,
        name: String,
    },
    /// GPUs that are divided into instances.
    Mig {
        instances: usize,
    },
    /// This process runs in a gVisor sandbox.
    InSandbox,
}

impl SharingConstraint {
    /// Whether it limits what gpreempt can do.
    pub const fn is_limit(&self) -> bool {
        match self {
            Self::MpsServer { .. } | Self::Mig { .. } | Self::InSandbox => true,
            Self::Display { .. } | Self::Sandbox { .. } => false,
        }
    }

    pub fn sentence(&self) -> String {
        match self {
            Self::MpsServer { pid } => format!(
                "an MPS server runs ({pid}): its clients share one channel group, so preempting or \
                 slowing one of them does the same to all of them"
            ),
            Self::Display { pid, name } => {
                format!("{name} ({pid}) drives a display: gpreempt never stops it")
            }
            Self::Sandbox { pid, name } => format!(
                "{name} ({pid}) is a gVisor sandbox: gpreempt preempts and resumes all programs \
                 inside together"
            ),
            Self::Mig { instances } => format!(
                "MIG is on ({instances} instances): gpreempt was never tested with it and changes \
                 nothing unless --allow-untested-driver is given"
            ),
            Self::InSandbox => {
                "this is a gVisor sandbox, in which gpreempt cannot borrow files of \
                                other processes; run gpreempt on the host"
                    .to_owned()
            }
        }
    }
}

pub fn detect_constraints() -> Vec<SharingConstraint> {
    let mut found = Vec::new();
    if fs::read_to_string("/proc/version").is_ok_and(|version| is_gvisor(&version)) {
        found.push(SharingConstraint::InSandbox);
    }
    let instances = mig_instances(Path::new("/proc/driver/nvidia/capabilities"));
    if instances > 0 {
        found.push(SharingConstraint::Mig { instances });
    }
    for pid in all_pids().unwrap_or_default() {
        let Ok(held) = node::held_by(pid) else { continue };
        if held.is_empty() {
            continue;
        }
        let Ok(ProcessInfo { name, .. }) = ProcessInfo::read(pid) else { continue };
        if held.iter().any(|held| held.node == Node::Modeset) {
            found.push(SharingConstraint::Display { pid, name: name.clone() });
        }
        if name.starts_with(MPS_SERVER) && held.iter().any(|held| is_device(held.node)) {
            found.push(SharingConstraint::MpsServer { pid });
        }
        if name.starts_with(SANDBOX) {
            found.push(SharingConstraint::Sandbox { pid, name });
        }
    }
    found
}

/// The names of the MPS server and its control program begin like this; the kernel truncates them
/// before they differ, but only the server has a device open.
pub(super) const MPS_SERVER: &str = "nvidia-cuda-mps";
/// The name of gVisor's process for a sandbox.
const SANDBOX: &str = "runsc";

/// Whether a process is the MPS server, by its program: users choose the other names of theirs.
pub fn is_mps_server(pid: u32) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    let name = program.file_name().unwrap_or_default();
    name.to_string_lossy().starts_with(MPS_SERVER)
}

/// The program that controls MPS servers, and the variable that names the folder of its pipes.
const MPS_CONTROL: &str = "nvidia-cuda-mps-control";
const MPS_FOLDER: &str = "CUDA_MPS_PIPE_DIRECTORY";
const MPS_FOLDER_USUAL: &str = "/tmp/nvidia-mps";

/// The control program of the MPS server that a process is a client of: CUDA makes a process a
/// client if the program listens where its environment says. None if it started after the process,
/// which may have been on the GPU before. Reads all processes.
pub fn mps_control_of(pid: u32) -> Option<u32> {
    let own = ProcessInfo::read(pid).ok()?;
    let folder = mps_folder(pid)?;
    let is_control = |other: &u32| {
        let program = fs::read_link(format!("/proc/{other}/exe")).unwrap_or_default();
        program.file_name().is_some_and(|name| name == MPS_CONTROL)
            && mps_folder(*other).as_ref() == Some(&folder)
            && ProcessInfo::read(*other)
                .is_ok_and(|control| control.key.start_ticks <= own.key.start_ticks)
    };
    all_pids().ok()?.into_iter().find(|other| *other != pid && is_control(other))
}

/// Where a process, or the MPS control program, has the pipes of MPS.
fn mps_folder(pid: u32) -> Option<PathBuf> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let folder = environment
        .split(|byte| *byte == 0)
        .find_map(|variable| variable.strip_prefix(MPS_FOLDER.as_bytes())?.strip_prefix(b"="));
    let folder = folder.unwrap_or(MPS_FOLDER_USUAL.as_bytes());
    Some(PathBuf::from(OsStr::from_bytes(folder)))
}

/// The UUIDs of the GPUs that are divided into instances.
pub fn divided_gpus() -> BTreeSet<String> {
    divided_gpus_in(Path::new("/proc/driver/nvidia"))
}

/// In `gpus/ADDRESS/information` the driver shows a GPU's UUID and the number that its folder in
/// `capabilities` has.
fn divided_gpus_in(driver: &Path) -> BTreeSet<String> {
    let gpus = fs::read_dir(driver.join("gpus")).into_iter().flatten().filter_map(Result::ok);
    let divided = gpus.filter_map(|gpu| {
        let text = fs::read_to_string(gpu.path().join("information")).ok()?;
        let value = |name: &str| {
            let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
            Some(rest.trim().to_owned())
        };
        let capability =
            driver.join("capabilities").join(format!("gpu{}", value("Device Minor:")?));
        (folders(&capability.join("mig"), "gi").next().is_some()).then(|| value("GPU UUID:"))?
    });
    divided.collect()
}

fn is_device(node: Node) -> bool {
    matches!(node, Node::Device(_))
}

/// gVisor shows the same fictitious version of Linux everywhere.
fn is_gvisor(version: &str) -> bool {
    version.contains("Linux version 4.4.0") && version.contains("Sun Jan 10 15:06:54 PST 2016")
}

/// The number of instances of divided GPUs: each has a folder.
fn mig_instances(capabilities: &Path) -> usize {
    folders(capabilities, "gpu").map(|gpu| folders(&gpu.join("mig"), "gi").count()).sum()
}

/// The entries of a folder whose names begin like that.
fn folders(path: &Path, prefix: &str) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
    let named = entries.filter(move |e| e.file_name().to_string_lossy().starts_with(prefix));
    named.map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_of_divided_gpus_are_counted() {
        let folder = gpreempt_stage::WorkFolder::new("mig").unwrap();
        let root = folder.root();
        assert_eq!(mig_instances(root), 0);
        for folder in ["mig", "gpu0/mig", "gpu1/mig/gi1/ci0", "gpu1/mig/gi2"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        assert_eq!(mig_instances(root), 2);
    }

    #[test]
    fn a_divided_gpu_is_known_by_its_uuid() {
        let root = std::env::temp_dir().join(format!("gpreempt-{}-divided", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for (address, minor) in [("0000:41:00.0", 0), ("0000:42:00.0", 1)] {
            let folder = root.join("gpus").join(address);
            fs::create_dir_all(&folder).unwrap();
            let text =
                format!("Model: \t NVIDIA\nGPU UUID: \t GPU-{minor}\nDevice Minor: \t {minor}\n");
            fs::write(folder.join("information"), text).unwrap();
        }
        fs::create_dir_all(root.join("capabilities/gpu0/mig")).unwrap();
        fs::create_dir_all(root.join("capabilities/gpu1/mig/gi2")).unwrap();
        assert_eq!(divided_gpus_in(&root), BTreeSet::from(["GPU-1".to_owned()]));
        fs::remove_dir_all(root).unwrap();
        assert!(!is_mps_server(std::process::id()));
    }

    /// Runs a program for a while with a folder of MPS pipes.
    fn sleeping(program: &Path, folder: &Path) -> std::process::Child {
        let mut command = std::process::Command::new(program);
        command.arg("60").env(MPS_FOLDER, folder).spawn().unwrap()
    }

    #[test]
    fn a_client_of_mps_is_known_by_the_control_program_of_its_folder() {
        let folder = gpreempt_stage::WorkFolder::new("mps-client").unwrap();
        let (root, sleep) = (folder.root(), Path::new("/bin/sleep"));
        let program = root.join(MPS_CONTROL);
        fs::copy(sleep, &program).unwrap();
        let earlier = sleeping(sleep, root);
        // Start times count in hundredths of a second.
        std::thread::sleep(std::time::Duration::from_millis(30));
        let control = sleeping(&program, root);
        let client = sleeping(sleep, root);
        let other = sleeping(sleep, &root.join("other"));
        // A child shows its environment when it has begun its program.
        gpreempt_stage::until("the client is known", || {
            mps_control_of(client.id()) == Some(control.id())
        });
        for each in [&other, &earlier, &control] {
            assert_eq!(mps_control_of(each.id()), None);
        }
        for mut child in [earlier, control, client, other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_sandbox_is_known_by_its_kernel() {
        assert!(is_gvisor("Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016\n"));
        assert!(!is_gvisor("Linux version 6.12.0-amd64 (debian-kernel@lists.debian.org)"));
    }

    #[test]
    fn every_constraint_explains_itself() {
        let name = || "Xorg".to_owned();
        for constraint in [
            SharingConstraint::MpsServer { pid: 7 },
            SharingConstraint::Display { pid: 7, name: name() },
            SharingConstraint::Sandbox { pid: 7, name: name() },
            SharingConstraint::Mig { instances: 2 },
            SharingConstraint::InSandbox,
        ] {
            assert!(constraint.sentence().len() > 30);
        }
    }

    #[test]
    fn a_machine_without_a_gpu_has_no_constraints() {
        if Path::new("/dev/nvidiactl").exists() {
            println!("SKIPPED: this machine has a driver");
            return;
        }
        assert_eq!(detect_constraints(), []);
    }
}
