//! Reports what this machine supports on AMD devices, what prevents the rest, and what to do about
//! it (`gpreempt doctor`).

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::kfd_instance::{KfdInstance, KfdLocation};
use super::stop_method::{PatchedCalls, StopMethod};
use super::topology::{Gfx, Topology};
use super::{KfdDebugCalls, kfd_file};
use crate::process::StatusFile;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub ok: bool,
    /// What was found and, if it is a problem, what to do about it.
    pub what: String,
}

/// The paths at which a KFD shows its state.
#[derive(Clone, Debug)]
pub struct KfdPaths {
    pub sysfs: PathBuf,
    pub debugfs: PathBuf,
    pub parameters: PathBuf,
    /// The folders of PCI devices, by their addresses.
    pub pci: PathBuf,
}

impl KfdPaths {
    pub fn emulated(folder: &Path) -> Self {
        Self {
            sysfs: folder.join("sys"),
            debugfs: folder.join("debug"),
            parameters: folder.join("parameters"),
            pci: folder.join("pci"),
        }
    }
}

impl Default for KfdPaths {
    fn default() -> Self {
        Self {
            sysfs: PathBuf::from("/sys/class/kfd/kfd"),
            debugfs: PathBuf::from("/sys/kernel/debug/kfd"),
            parameters: PathBuf::from("/sys/module/amdgpu/parameters"),
            pci: PathBuf::from("/sys/bus/pci/devices"),
        }
    }
}

pub fn look(name: &KfdLocation) -> Vec<Finding> {
    match name.open() {
        Ok(instance) => {
            let mut findings = report(&*instance.kfd, instance.privileges, &instance.paths);
            findings.extend(stop_method(&instance));
            findings
        }
        Err(error) => vec![no(explain_location(name, &error))],
    }
}

/// Explains why a KFD could not be opened.
pub fn explain_location(name: &KfdLocation, error: &io::Error) -> String {
    match name {
        KfdLocation::Kernel => explain_open(error),
        KfdLocation::Emulated(folder) => format!(
            "the emulated KFD in {} cannot be used ({error}); start it with: gpreempt-emu --kfd {}",
            folder.display(),
            folder.display()
        ),
    }
}

pub fn report(kfd: &dyn KfdDebugCalls, privileges: Privileges, paths: &KfdPaths) -> Vec<Finding> {
    let mut findings = Vec::new();
    let abilities = match kfd.version() {
        Ok(version) => version.abilities(),
        Err(errno) => {
            let path = kfd_file::PATH;
            return vec![no(format!("{path} does not answer ({errno}): it is not AMD's"))];
        }
    };
    findings.push(Finding { ok: abilities.suspend, what: abilities.sentence() });
    findings.push(tracing(privileges));
    if !abilities.suspend {
        findings.push(pausing(privileges));
    }
    findings.extend(devices(paths));
    findings.push(addresses(paths));
    findings
}

/// Explains why `/dev/kfd` could not be opened.
fn explain_open(error: &io::Error) -> String {
    let path = kfd_file::PATH;
    if error.kind() == io::ErrorKind::NotFound {
        return format!(
            "there is no {path}: no AMD GPU, or the amdgpu module is not loaded (modprobe amdgpu), \
             or a container without the device (--device {path})"
        );
    }
    if error.kind() == io::ErrorKind::PermissionDenied {
        return format!(
            "{path} may not be opened: run this as root, or join the group that owns it (render)"
        );
    }
    format!("{path} cannot be opened: {error}")
}

/// The stop method and why there is no better one.
fn stop_method(instance: &KfdInstance) -> Vec<Finding> {
    let in_use = instance.stop_method();
    let mut findings = vec![Finding {
        ok: in_use.method != StopMethod::Nothing,
        what: format!("stop method: {} ({})", in_use.method, in_use.method.name()),
    }];
    // A stock kernel is not a problem.
    let ok =
        instance.patched_calls == PatchedCalls::Absent && in_use.method == StopMethod::DebugTrap;
    let why = in_use.why_not_better;
    findings.extend(why.map(|why| Finding { ok, what: format!("no better method: {why}") }));
    let is_listed = instance.paths.debugfs.join("queues").exists();
    if in_use.method == StopMethod::PatchedCalls && !is_listed {
        findings.push(no(format!(
            "{} cannot be read: queues count as busy all the time; mount debugfs with: mount -t \
             debugfs debugfs /sys/kernel/debug",
            instance.paths.debugfs.join("queues").display()
        )));
    }
    findings
}

fn tracing(privileges: Privileges) -> Finding {
    match privileges.tracing_problem() {
        None => yes("processes of all users can be traced, which suspending queues needs"),
        Some(problem) => no(problem),
    }
}

fn pausing(privileges: Privileges) -> Finding {
    if privileges.may_checkpoint() {
        return yes("whole processes can be paused");
    }
    no("whole processes cannot be paused: that needs CAP_CHECKPOINT_RESTORE; run this as root")
}

fn devices(paths: &KfdPaths) -> Vec<Finding> {
    let topology = match Topology::read(&paths.sysfs) {
        Ok(topology) => topology,
        Err(error) => {
            let place = paths.sysfs.display();
            return vec![no(format!("{place} cannot be read ({error}); is sysfs mounted?"))];
        }
    };
    if topology.devices().next().is_none() {
        return vec![no("KFD runs but has no GPU; the kernel's log (dmesg) says why")];
    }
    topology.devices().map(|node| device(node.gpu_id, node.gfx)).collect()
}

/// How well a device supports debug sessions.
fn device(gpu_id: u32, gfx: Gfx) -> Finding {
    if !gfx.knows_debuggers() {
        return no(format!(
            "GPU {gpu_id} ({gfx}) is too old for suspending queues (gfx9 or newer); its processes \
             can only be paused as a whole"
        ));
    }
    if !gfx.debugs_several() {
        return no(format!(
            "GPU {gpu_id} ({gfx}) can suspend the queues of one process at a time; the others can \
             only be paused as a whole"
        ));
    }
    if gfx.masks_units() {
        return yes(format!(
            "GPU {gpu_id} ({gfx}) can suspend queues; a process under control has fewer compute \
             units there, because of a fault of this chip"
        ));
    }
    yes(format!("GPU {gpu_id} ({gfx}) can suspend queues"))
}

/// Whether rings can be read without a session.
fn addresses(paths: &KfdPaths) -> Finding {
    let file = paths.debugfs.join("mqds");
    match fs::File::open(&file) {
        Ok(_) => yes("priorities and rings can be read without a session (debugfs)"),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => no(format!(
            "{} may not be read: hardware priorities are not shown; run this as root",
            file.display()
        )),
        Err(_) => no(format!(
            "{} is not there: hardware priorities are not shown; mount debugfs with: mount -t \
             debugfs debugfs /sys/kernel/debug",
            file.display()
        )),
    }
}

fn yes(what: impl Into<String>) -> Finding {
    Finding { ok: true, what: what.into() }
}

fn no(what: impl Into<String>) -> Finding {
    Finding { ok: false, what: what.into() }
}

/// What the kernel permits this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Privileges {
    /// The effective set, as in `/proc/self/status`.
    pub capabilities: u64,
    /// `kernel.yama.ptrace_scope`; 0 without Yama.
    pub yama: u32,
}

const SYS_PTRACE: u32 = 19;
const SYS_ADMIN: u32 = 21;
const CHECKPOINT_RESTORE: u32 = 40;

impl Privileges {
    pub fn read() -> Self {
        let status = StatusFile::read(std::process::id()).unwrap_or_default();
        let yama = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
        Self::parse(&status, &yama.unwrap_or_default())
    }

    fn parse(status: &StatusFile, yama: &str) -> Self {
        let capabilities = status.field("CapEff");
        let capabilities = capabilities.and_then(|set| u64::from_str_radix(set, 16).ok());
        Self { capabilities: capabilities.unwrap_or(0), yama: yama.trim().parse().unwrap_or(0) }
    }

    /// Whether this process may trace processes of other users.
    pub const fn may_trace(self) -> bool {
        self.has(SYS_PTRACE) && self.yama < 3
    }

    pub const fn may_checkpoint(self) -> bool {
        self.has(CHECKPOINT_RESTORE) || self.has(SYS_ADMIN)
    }

    const fn has(self, capability: u32) -> bool {
        self.capabilities & (1 << capability) != 0
    }

    /// What prevents this process from tracing some processes, and what to do about it.
    pub fn tracing_problem(self) -> Option<String> {
        if self.may_trace() {
            return None;
        }
        Some(match self.yama {
            3 => "no process can be traced: kernel.yama.ptrace_scope is 3, and only a reboot \
                  changes that; set it to 2 or less in /etc/sysctl.d"
                .to_owned(),
            2 => "only root may trace processes (kernel.yama.ptrace_scope is 2); run this as root"
                .to_owned(),
            1 => "only one's own children can be traced (kernel.yama.ptrace_scope is 1); run this \
                  as root, or: sysctl kernel.yama.ptrace_scope=0"
                .to_owned(),
            _ => "only one's own processes can be traced; for those of others, run this as root"
                .to_owned(),
        })
    }

    /// What to do after tracing a process was refused.
    pub(crate) fn advice(self) -> String {
        self.tracing_problem().unwrap_or_else(|| {
            "a security policy (seccomp, SELinux, AppArmor, or a container) forbids tracing it; \
             run gpreempt on the host, as root"
                .to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use gpreempt_stage::WorkFolder;

    use super::*;
    use crate::amd::abi::version::Version;
    use crate::amd::{FakeKfd, KfdProfile};

    const ROOT: &str = "Name:\tx\nCapEff:\t000001ffffffffff\n";

    #[test]
    fn root_may_trace_unless_yama_forbids_it() {
        let root = |yama| Privileges::parse(&ROOT.into(), yama);
        assert!(root("0\n").may_trace() && root("2\n").may_trace() && root("").may_trace());
        assert!(root("1\n").may_checkpoint());
        assert!(root("3\n").tracing_problem().is_some_and(|text| text.contains("reboot")));
        assert!(root("0\n").advice().contains("security policy"));
    }

    #[test]
    fn users_get_advice_for_every_yama_scope() {
        let user = |yama| Privileges::parse(&"CapEff:\t0000000000000000\n".into(), yama);
        assert!(!user("0").may_trace() && !user("0").may_checkpoint());
        assert!(user("0").advice().contains("only one's own processes"));
        assert!(user("1").advice().contains("ptrace_scope=0"));
        assert!(user("2").advice().contains("only root"));
        assert_eq!(
            Privileges::parse(&"nonsense".into(), "nonsense"),
            Privileges { capabilities: 0, yama: 0 }
        );
    }

    const ALL_PRIVILEGES: Privileges = Privileges { capabilities: u64::MAX, yama: 1 };

    /// A folder with a sysfs that has these devices.
    struct SysfsFixture(WorkFolder);

    impl SysfsFixture {
        fn new(gfx_versions: &[u32]) -> Self {
            let root = WorkFolder::new("probe").unwrap();
            let nodes = root.path("sysfs/topology/nodes");
            fs::create_dir_all(nodes.join("0")).unwrap();
            fs::write(nodes.join("0/gpu_id"), "0\n").unwrap();
            fs::write(nodes.join("0/properties"), "cpu_cores_count 8\nsimd_count 0\n").unwrap();
            for (index, gfx) in (1..).zip(gfx_versions) {
                let node = nodes.join(index.to_string());
                fs::create_dir_all(&node).unwrap();
                fs::write(node.join("gpu_id"), format!("{}\n", 1000 + index)).unwrap();
                let text = format!("simd_count 64\ngfx_target_version {gfx}\n");
                fs::write(node.join("properties"), text).unwrap();
            }
            Self(root)
        }

        fn paths(&self) -> KfdPaths {
            KfdPaths {
                sysfs: self.0.path("sysfs"),
                debugfs: self.0.path("debugfs"),
                parameters: self.0.path("parameters"),
                pci: self.0.path("pci"),
            }
        }

        fn report(&self, rules: KfdProfile, privileges: Privileges) -> Vec<Finding> {
            report(&FakeKfd::with(rules).debugger(1), privileges, &self.paths())
        }
    }

    #[test]
    fn a_machine_without_problems_has_only_good_findings() {
        let fixture = SysfsFixture::new(&[90402, 120_001]);
        fs::create_dir_all(fixture.0.path("debugfs")).unwrap();
        fs::write(fixture.0.path("debugfs/mqds"), "").unwrap();
        let findings = fixture.report(KfdProfile::default(), ALL_PRIVILEGES);
        assert!(findings.iter().all(|finding| finding.ok), "{findings:#?}");
        assert_eq!(findings.len(), 5);
    }

    #[test]
    fn every_problem_has_a_finding() {
        let fixture = SysfsFixture::new(&[80003, 90006, 110_000]);
        let rules =
            KfdProfile { version: Version { major: 1, minor: 11 }, ..KfdProfile::default() };
        let findings = fixture.report(rules, Privileges { capabilities: 0, yama: 1 });
        let problems: Vec<&str> = findings
            .iter()
            .filter(|finding| !finding.ok)
            .map(|finding| finding.what.as_str())
            .collect();
        let expected = [
            "KFD 1.11 cannot suspend single queues",
            "only one's own children can be traced",
            "whole processes cannot be paused",
            "GPU 1001 (gfx803) is too old",
            "GPU 1002 (gfx906) can suspend the queues of one process",
            "mqds is not there",
        ];
        assert_eq!(problems.len(), expected.len(), "{problems:#?}");
        for (problem, expected) in problems.iter().zip(expected) {
            assert!(problem.contains(expected), "{problem}: {expected}");
        }
        let last = &findings[findings.len() - 2];
        assert!(last.ok && last.what.contains("fewer compute"), "{last:?}");
    }

    #[test]
    fn missing_devices_and_missing_sysfs_have_different_findings() {
        let fixture = SysfsFixture::new(&[]);
        let text = |findings: Vec<Finding>| {
            findings.into_iter().map(|finding| finding.what).collect::<Vec<_>>().join("\n")
        };
        assert!(
            text(fixture.report(KfdProfile::default(), ALL_PRIVILEGES))
                .contains("KFD runs but has no GPU")
        );
        fs::remove_dir_all(fixture.0.path("sysfs")).unwrap();
        assert!(
            text(fixture.report(KfdProfile::default(), ALL_PRIVILEGES))
                .contains("is sysfs mounted?")
        );
    }

    #[test]
    fn a_device_that_cannot_be_opened_has_an_explanation() {
        let why = |kind| explain_open(&io::Error::from(kind));
        assert!(why(io::ErrorKind::NotFound).contains("modprobe amdgpu"));
        assert!(why(io::ErrorKind::PermissionDenied).contains("render"));
        assert!(why(io::ErrorKind::TimedOut).contains("cannot be opened"));
        if kfd_file::number().is_none() {
            let findings = look(&KfdLocation::Kernel);
            assert!(findings.len() == 1 && !findings[0].ok, "{findings:?}");
        } else {
            println!("SKIPPED: this machine has AMD devices");
        }
        let nowhere = look(&KfdLocation::emulated(Path::new("/nonexistent/kfd")));
        assert!(nowhere[0].what.contains("gpreempt-emu --kfd /nonexistent/kfd"), "{nowhere:?}");
    }
}
