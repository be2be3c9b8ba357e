//! `cargo xtask container`: gpreemptd in a container with the rights of the Kubernetes manifest.
//!
//! The container is made by runc, as on a node of a cluster: the capabilities, the memory limit,
//! the configuration and the folders are read from `deploy/kubernetes/daemonset.yaml`, the root is
//! read-only, and the system calls are filtered as the default profile of a runtime does. The
//! daemon has to schedule a process of another user there, and each capability has to be needed.
//! No cluster takes part, and the GPU is emulated: the device files of a GPU, AppArmor and SELinux
//! are not tested.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use gpreempt_stage::{Emulator, Process, Stage, WorkFolder};
use gpreempt_wire::client::{Client, ClientOptions};
use gpreempt_wire::request::Role;
use gpreempt_wire::statistics::{Snapshot, TaskSnapshot};
use serde_json::{Value, json};

use crate::packages::{self, Package};
use crate::process::{build_programs, capture, repository_root};
use crate::step::Outcome;

const RUNC: Package =
    Package { name: "runc", program: "runc", needed_by: "the test of the Kubernetes manifest" };
const MANIFEST: &str = "deploy/kubernetes/daemonset.yaml";
/// The user of the process that is preempted. No account needs to exist.
const USER: u32 = 61_001;
const USER_PRIORITY: u8 = 2;
const WAIT_MAX: Duration = Duration::from_secs(20);
/// How long a daemon without a capability gets to find out what it must not.
const SETTLED: Duration = Duration::from_secs(2);
/// Where the container has the programs and the socket of the emulated GPU.
const PROGRAMS: &str = "/opt/gpreempt";
const EMULATOR: &str = "/emulator";

/// System calls that the default profiles of containerd and Docker refuse to a container with the
/// capabilities of the manifest. They have lists of what they permit; this is the rest.
const REFUSED: &[&str] = &[
    "_sysctl",
    "acct",
    "add_key",
    "bpf",
    "chroot",
    "clock_settime",
    "create_module",
    "delete_module",
    "fanotify_init",
    "finit_module",
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "get_kernel_syms",
    "init_module",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "ioperm",
    "iopl",
    "kexec_file_load",
    "kexec_load",
    "keyctl",
    "lookup_dcookie",
    "migrate_pages",
    "mount",
    "mount_setattr",
    "move_mount",
    "move_pages",
    "nfsservctl",
    "open_tree",
    "perf_event_open",
    "pivot_root",
    "query_module",
    "quotactl",
    "quotactl_fd",
    "reboot",
    "request_key",
    "setdomainname",
    "sethostname",
    "setns",
    "settimeofday",
    "stime",
    "swapoff",
    "swapon",
    "sysfs",
    "syslog",
    "umount",
    "umount2",
    "unshare",
    "uselib",
    "userfaultfd",
    "ustat",
    "vhangup",
];

/// What the manifest gives the container.
#[derive(Debug, PartialEq, Eq)]
struct Rights {
    capabilities: Vec<String>,
    memory_mib: u64,
    /// The configuration of the daemon.
    config: String,
    /// The command of the probes.
    probe: Vec<String>,
}

pub(crate) fn check() -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return Outcome::Skipped("only root can make a container".to_owned());
    }
    if let Err(missing) = packages::provide(&[RUNC]) {
        return Outcome::Skipped(missing.to_string());
    }
    let node = match Node::new() {
        Ok(node) => node,
        Err(error) => return Outcome::Failed(format!("{error:#}")),
    };
    // A build server may forbid what a container needs.
    if let Err(error) = node.run_true() {
        return Outcome::Skipped(format!("runc cannot start a container here: {error:#}"));
    }
    Outcome::of(node.schedules().and_then(|()| node.needs_each_capability()))
}

impl Rights {
    /// Reads the manifest, in which every right is one line.
    fn read(manifest: &str) -> anyhow::Result<Self> {
        let lines = || manifest.lines().map(str::trim).filter(|line| !line.starts_with('#'));
        let find = |key: &str| lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
        for required in [
            "hostPID: true",
            "hostNetwork: false",
            "drop: [ALL]",
            "allowPrivilegeEscalation: false",
            "readOnlyRootFilesystem: true",
            "type: RuntimeDefault",
            "runAsUser: 0",
        ] {
            ensure!(lines().any(|line| line == required), "{MANIFEST} has no line `{required}`");
        }
        ensure!(find("privileged:").is_none(), "{MANIFEST} makes a privileged container");
        let mounts: Vec<&str> =
            lines().filter_map(|line| line.strip_prefix("mountPath: ")).collect();
        let mut known: Vec<&str> = MOUNTS.iter().map(|(_, target, _)| *target).collect();
        known.sort_unstable();
        let mut found = mounts.clone();
        found.sort_unstable();
        ensure!(found == known, "{MANIFEST} mounts {mounts:?}, the test {known:?}");
        let list = |text: &str| -> Vec<String> {
            let words = text.trim_matches(['[', ']']).split(',');
            words.map(|word| word.trim().trim_matches('"').to_owned()).collect()
        };
        let memory = find("memory: ").and_then(|_| {
            let limits = manifest.split_once("limits:")?.1;
            limits.split_once("memory: ")?.1.split_once("Mi")?.0.parse().ok()
        });
        let (_, config) = manifest.split_once("config.toml: |\n").context("no configuration")?;
        let config: Vec<&str> = config.lines().take_while(|line| *line != "---").collect();
        Ok(Self {
            capabilities: list(find("add:").context("no capabilities")?),
            memory_mib: memory.context("no limit of the memory")?,
            config: config.join("\n"),
            probe: list(find("command:").context("no probe")?),
        })
    }
}

/// Mounts of the manifest: what the test has in their place, the target, whether it is writable.
const MOUNTS: &[(&str, &str, bool)] = &[
    ("etc", "/etc/gpreempt", false),
    ("run", "/run/gpreempt", true),
    ("/etc/passwd", "/etc/passwd", false),
    ("/etc/group", "/etc/group", false),
];

/// What stands for a node of a cluster: an emulated GPU, and the folders of the container.
struct Node {
    stage: Stage,
    emulator: Emulator,
    programs: PathBuf,
    rights: Rights,
}

impl Node {
    fn new() -> anyhow::Result<Self> {
        let rights = Rights::read(&fs::read_to_string(repository_root().join(MANIFEST))?)?;
        let programs = build_programs()?;
        let stage = Stage::with_programs(WorkFolder::new("container")?, &programs);
        let open = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).context("a mode")
        };
        open(stage.root(), 0o755)?;
        for folder in ["etc", "run", "bundle/rootfs"] {
            fs::create_dir_all(stage.path(folder))?;
        }
        stage.write("etc/config.toml", &rights.config)?;
        let emulator = stage.emulator("--machine cwsr")?;
        open(&emulator.socket(), 0o666)?;
        // A copy that every user can execute.
        let load = stage.path("gpreempt-load");
        fs::copy(stage.program("gpreempt-load")?, &load)?;
        open(&load, 0o755)?;
        let node = Self { stage, emulator, programs, rights };
        node.link_system_folders()?;
        Ok(node)
    }

    /// The folders beside `/usr` are links to folders in it, on systems where they are.
    fn link_system_folders(&self) -> anyhow::Result<()> {
        for name in SYSTEM_FOLDERS {
            let here = Path::new("/").join(name);
            if here.is_symlink() {
                symlink(fs::read_link(&here)?, self.stage.path("bundle/rootfs").join(name))?;
            }
        }
        Ok(())
    }

    /// The configuration of a container that runs `arguments` with these capabilities.
    fn config(&self, arguments: &[&str], capabilities: &[String]) -> Value {
        let capabilities: Vec<String> =
            capabilities.iter().map(|name| format!("CAP_{name}")).collect();
        let mut mounts = vec![
            json!({"destination": "/proc", "type": "proc", "source": "proc"}),
            json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]}),
            json!({"destination": "/sys", "type": "sysfs", "source": "sysfs",
                "options": ["nosuid", "noexec", "nodev", "ro"]}),
        ];
        let mut bind = |source: PathBuf, target: &str, is_writable: bool| {
            let access = if is_writable { "rw" } else { "ro" };
            mounts.push(json!({"destination": target, "type": "bind", "source": source,
                "options": ["rbind", access]}));
        };
        let system = ["usr"].iter().chain(SYSTEM_FOLDERS).map(|name| Path::new("/").join(name));
        for folder in system.filter(|folder| folder.is_dir() && !folder.is_symlink()) {
            bind(folder.clone(), &folder.display().to_string(), false);
        }
        for (source, target, is_writable) in MOUNTS {
            bind(self.stage.path(source), target, *is_writable);
        }
        bind(self.programs.clone(), PROGRAMS, false);
        bind(self.stage.root().to_owned(), EMULATOR, false);
        // No pid namespace: `hostPID`.
        let namespaces = ["mount", "ipc", "uts", "network"].map(|kind| json!({"type": kind}));
        json!({
            "ociVersion": "1.0.2",
            "hostname": "gpreemptd",
            "root": {"path": "rootfs", "readonly": true},
            "mounts": mounts,
            "process": {
                "terminal": false,
                "user": {"uid": 0, "gid": 0},
                "cwd": "/",
                "args": arguments,
                "env": [format!("PATH={PROGRAMS}:/usr/bin:/bin")],
                "noNewPrivileges": true,
                "capabilities": {
                    "bounding": capabilities,
                    "effective": capabilities,
                    "permitted": capabilities,
                },
            },
            "linux": {
                "namespaces": namespaces,
                "resources": {
                    "memory": {"limit": self.rights.memory_mib << 20},
                    "devices": [{"allow": false, "access": "rwm"}],
                },
                "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
                "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"],
                "seccomp": {
                    "defaultAction": "SCMP_ACT_ALLOW",
                    "syscalls": [
                        {"names": REFUSED, "action": "SCMP_ACT_ERRNO", "errnoRet": 1},
                        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
                    ],
                },
            },
        })
    }

    fn runc(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("runc");
        command.arg("--root").arg(self.stage.path("runc")).args(arguments);
        command
    }

    /// Runs a command that does nothing, to see whether there can be containers here.
    fn run_true(&self) -> anyhow::Result<()> {
        let mut container = self.start("probe", &["true"], &self.rights.capabilities)?;
        let ended = container.process.wait(WAIT_MAX)?;
        ensure!(ended.status.success(), "{}", ended.err.trim());
        Ok(())
    }

    fn start(
        &self,
        name: &str,
        arguments: &[&str],
        capabilities: &[String],
    ) -> anyhow::Result<Container<'_>> {
        let config = serde_json::to_string_pretty(&self.config(arguments, capabilities))?;
        self.stage.write("bundle/config.json", config)?;
        let id = format!("gpreempt-{}-{name}", std::process::id());
        let mut command = self.runc(&["run", "--bundle"]);
        command.arg(self.stage.path("bundle")).arg(&id);
        let process = self.stage.start(name, command)?;
        Ok(Container { node: self, id, process })
    }

    /// Starts the daemon as the manifest does, but for the emulated GPU.
    fn daemon(&self, name: &str, capabilities: &[String]) -> anyhow::Result<Container<'_>> {
        let (program, emulator) = (format!("{PROGRAMS}/gpreemptd"), format!("{EMULATOR}/gpu"));
        let image = [&program, "--foreground", "--config", "/etc/gpreempt/config.toml"];
        let arguments =
            [image.as_slice(), &["--no-nvidia", "--no-amd", "--emulated", &emulator]].concat();
        let mut container = self.start(name, &arguments, capabilities)?;
        container.wait("the daemon is ready", |container| {
            container.process.err().contains("ready at").then_some(())
        })?;
        Ok(container)
    }

    /// A best-effort load of a user, which asks for a priority in its environment.
    fn load_of_user(&self) -> anyhow::Result<Process> {
        let mut command = Command::new(self.stage.path("gpreempt-load"));
        self.stage.clean(&mut command);
        self.emulator.spec().add_load(&mut command, "be --kernel-us 3000 --seconds 600");
        command.uid(USER).gid(USER).env("GPREEMPT_PRIORITY", USER_PRIORITY.to_string());
        let mut process = self.stage.start("the load of a user", command)?;
        let ready = |out: &str| out.contains("ready").then_some(());
        process.wait_for_output("that it is ready", WAIT_MAX, ready)?;
        Ok(process)
    }

    fn task(&self, pid: u32) -> anyhow::Result<Option<TaskSnapshot>> {
        let options = ClientOptions {
            paths: vec![self.stage.path("run/gpreemptd.sock")],
            timeout: WAIT_MAX,
            ..ClientOptions::new(Role::Command, "container")
        };
        let snapshot = Snapshot::from_json(&Client::connect(&options)?.snapshot()?)?;
        Ok(snapshot.tasks.into_iter().find(|task| task.pid == pid))
    }

    /// The daemon schedules with these rights, and what it changed is undone after its death.
    fn schedules(&self) -> anyhow::Result<()> {
        let capabilities = &self.rights.capabilities;
        let mut user = self.load_of_user()?;
        let mut container = self.daemon("daemon", capabilities)?;
        for pid in [container.pid()?, container.keeper()?] {
            container.check_rights(pid, capabilities)?;
        }
        ensure!(niceness(container.pid()?)? == -10, "the daemon has an ordinary CPU priority");
        let probe: Vec<&str> = self.rights.probe.iter().map(String::as_str).collect();
        let answer = container.exec(&probe)?;
        ensure!(answer.status.success(), "the probe {probe:?} fails: {answer:?}");
        for folder in ["/", "/etc/gpreempt", "/emulator"] {
            let answer = container.exec(&["touch", &format!("{folder}/file")])?;
            ensure!(!answer.status.success(), "{folder} is writable");
        }
        container.wait("the priority of another user's process is known", |container| {
            let task = container.node.task(user.pid()).ok()??;
            (task.priority == Some(USER_PRIORITY)).then_some(())
        })?;
        let mut critical = self.emulator.load_at(
            12,
            "lc --every-us 5170 --kernels 8 --kernel-us 100 \
             --seconds 600",
        )?;
        container.wait("the process is preempted", |container| {
            let task = container.node.task(user.pid()).ok()??;
            (task.preempts > 0).then_some(())
        })?;
        // The container dies with all that is in it while the process is stopped.
        container.suspend(user.pid())?;
        ensure!(self.emulator.is_stopped(user.pid()), "the process is not suspended");
        container.end()?;
        ensure!(self.emulator.is_stopped(user.pid()), "the keeper outlived its container");
        let mut second = self.daemon("daemon-again", capabilities)?;
        second.wait("the next daemon has resumed the process", |container| {
            (!container.node.emulator.is_stopped(user.pid())).then_some(())
        })?;
        critical.finish_exact()?;
        user.signal(rustix::process::Signal::TERM);
        let ended = user.wait(WAIT_MAX)?;
        let last: Value = serde_json::from_str(ended.out.lines().last().unwrap_or("null"))?;
        ensure!(last["exactness"]["result"] == "pass", "the load lost work: {last}");
        second.end()
    }

    /// Without any of its capabilities the daemon does less.
    fn needs_each_capability(&self) -> anyhow::Result<()> {
        let user = self.load_of_user()?;
        for missing in &self.rights.capabilities {
            let mut rest = self.rights.capabilities.clone();
            rest.retain(|name| name != missing);
            let container = self.daemon(missing, &rest)?;
            let is_needed = match missing.as_str() {
                "SYS_PTRACE" | "DAC_READ_SEARCH" => {
                    std::thread::sleep(SETTLED);
                    let task = self.task(user.pid())?;
                    task.is_none_or(|task| task.priority != Some(USER_PRIORITY))
                }
                "SYS_NICE" => niceness(container.pid()?)? == 0,
                _ => bail!("{missing} is not tested"),
            };
            ensure!(is_needed, "the daemon works without {missing}");
            container.end()?;
        }
        Ok(())
    }
}

/// Folders that are links into `/usr` on most systems.
const SYSTEM_FOLDERS: &[&str] = &["bin", "sbin", "lib", "lib64"];

/// A running container. It is killed when this is dropped.
struct Container<'n> {
    node: &'n Node,
    id: String,
    process: Process,
}

impl Container<'_> {
    fn wait<T>(&mut self, what: &str, find: impl Fn(&Self) -> Option<T>) -> anyhow::Result<T> {
        let begin = Instant::now();
        loop {
            if let Some(found) = find(self) {
                return Ok(found);
            }
            if let Some(ended) = self.process.end()? {
                bail!("the container ended before {what}: {}", ended.err);
            }
            ensure!(begin.elapsed() < WAIT_MAX, "not so in time: {what}; {}", self.process.err());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The pid of the daemon.
    fn pid(&self) -> anyhow::Result<u32> {
        let state = capture(&mut self.node.runc(&["state", &self.id]))?;
        let state: Value = serde_json::from_slice(&state)?;
        let pid = state["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        pid.context("runc names no pid")
    }

    fn keeper(&self) -> anyhow::Result<u32> {
        let children = gpreempt_stage::children(self.pid()?);
        children.first().copied().context("the daemon has no keeper")
    }

    /// Runs a command in the container.
    fn exec(&self, arguments: &[&str]) -> anyhow::Result<Output> {
        let mut command = self.node.runc(&["exec", &self.id]);
        Ok(command.args(arguments).output()?)
    }

    fn suspend(&self, pid: u32) -> anyhow::Result<()> {
        // The command ends the suspension when it ends, so it is killed with the container.
        let mut command = self.node.runc(&["exec", "--detach", &self.id]);
        command.args(["gpreempt", "suspend", &pid.to_string(), "--for", "60s"]);
        ensure!(command.status()?.success(), "the process cannot be suspended");
        let begin = Instant::now();
        while !self.node.emulator.is_stopped(pid) && begin.elapsed() < WAIT_MAX {
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// A process of the daemon has these capabilities, which it can only lose, and a filter.
    fn check_rights(&self, pid: u32, capabilities: &[String]) -> anyhow::Result<()> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let field = |name: &str| -> anyhow::Result<&str> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            Ok(line.with_context(|| format!("no {name}"))?.trim())
        };
        let expected = capabilities.iter().try_fold(0, |set, name| {
            let numbers = [("DAC_READ_SEARCH", 2), ("SYS_PTRACE", 19), ("SYS_NICE", 23)];
            let known = numbers.iter().find(|(known, _)| known == name);
            anyhow::Ok(set | 1_u64 << known.with_context(|| format!("{name} is unknown"))?.1)
        })?;
        for set in ["CapEff:", "CapPrm:", "CapBnd:"] {
            let found = u64::from_str_radix(field(set)?, 16)?;
            ensure!(found == expected, "{set} {found:x} of process {pid}, not {expected:x}");
        }
        ensure!(field("NoNewPrivs:")? == "1" && field("Seccomp:")? == "2", "{status}");
        Ok(())
    }

    /// Kills everything in the container at once, as the kubelet's runtime does.
    fn end(mut self) -> anyhow::Result<()> {
        let mut kill = self.node.runc(&["kill", "--all", &self.id, "KILL"]);
        ensure!(kill.status()?.success(), "the container cannot be killed");
        self.process.wait(WAIT_MAX)?;
        Ok(())
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        // It fails if the container has ended.
        let _removed = self.node.runc(&["delete", "--force", &self.id]).output();
    }
}

fn niceness(pid: u32) -> anyhow::Result<i64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace();
    Ok(fields.clone().nth(16).context("no niceness")?.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> String {
        fs::read_to_string(repository_root().join(MANIFEST)).unwrap()
    }

    #[test]
    fn the_manifest_gives_the_rights_that_are_tested() {
        let rights = Rights::read(&manifest()).unwrap();
        assert_eq!(rights.capabilities, ["SYS_PTRACE", "DAC_READ_SEARCH", "SYS_NICE"]);
        assert_eq!(rights.memory_mib, 64);
        assert_eq!(rights.probe, ["gpreempt", "ping", "--timeout", "4s"]);
        assert!(rights.config.contains("default_priority = 4"), "{}", rights.config);
    }

    #[test]
    fn a_manifest_with_other_rights_is_refused() {
        for (before, after, reason) in [
            ("drop: [ALL]", "drop: []", "no line `drop: [ALL]`"),
            ("runAsUser: 0", "runAsUser: 0\n            privileged: true", "privileged"),
            ("mountPath: /etc/group", "mountPath: /etc", "mounts"),
        ] {
            let error = Rights::read(&manifest().replace(before, after)).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
