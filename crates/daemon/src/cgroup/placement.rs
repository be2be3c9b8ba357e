//! What the parts of a control group's path mean.

use std::fmt;

/// Who runs a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// Docker.
    Docker,
    /// containerd, alone or below Kubernetes.
    Containerd,
    /// CRI-O.
    Crio,
    /// Podman.
    Podman,
    /// systemd-nspawn.
    Nspawn,
    /// LXC, LXD, Incus.
    Lxc,
}

impl Runtime {
    /// How it calls itself.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Containerd => "containerd",
            Self::Crio => "cri-o",
            Self::Podman => "podman",
            Self::Nspawn => "systemd-nspawn",
            Self::Lxc => "lxc",
        }
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A job of the batch system Slurm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlurmJob {
    /// Its number.
    pub job: u32,
    /// The step of it: a number, `batch`, `extern` or `interactive`.
    pub step: Option<String>,
    /// Whose it is, where the path says so.
    pub uid: Option<u32>,
}

/// Where a process runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Who runs the container, where the path says so.
    pub runtime: Option<Runtime>,
    /// The innermost container: an id of 64 hexadecimal digits, or a name where the runtime goes
    /// by names (LXC, systemd-nspawn).
    pub container: Option<String>,
    /// The pod around it: a uid of Kubernetes or an id of Podman.
    pub pod: Option<String>,
    /// The batch job around it.
    pub slurm: Option<SlurmJob>,
}

/// How runtimes begin the name of a control group that ends with the container's id.
const PREFIXES: [(&str, Runtime); 5] = [
    ("docker", Runtime::Docker),
    ("cri-containerd", Runtime::Containerd),
    ("nerdctl", Runtime::Containerd),
    ("crio", Runtime::Crio),
    ("libpod", Runtime::Podman),
];

impl Placement {
    /// What one path says.
    pub(super) fn of(path: &str) -> Self {
        let mut found = Self::default();
        let mut above = "";
        let mut in_kubernetes = false;
        let mut in_slurm = false;
        let mut slurm = SlurmParts::default();
        for part in path.split('/').filter(|part| !part.is_empty()) {
            let name = without_unit_suffix(part);
            in_kubernetes |= name.contains("kubepods");
            in_slurm |= above.is_empty() && (name == "slurm" || name.starts_with("slurm_"));
            in_slurm |= name.ends_with("slurmstepd");
            if in_kubernetes {
                found.pod = kubernetes_pod(name).or(found.pod);
            }
            found.pod = podman_pod(name).or(found.pod);
            if in_slurm {
                slurm.read(name);
            }
            if let Some((runtime, container)) = container(above, part, name) {
                found.runtime = runtime;
                found.container = Some(container);
            }
            above = part;
        }
        found.slurm = slurm.job();
        found
    }

    /// This, and where it does not know, what the other knows. A container and who runs it belong
    /// together.
    pub(super) fn or(self, other: Self) -> Self {
        let (runtime, container) = match self.container {
            Some(container) => (self.runtime, Some(container)),
            None => (other.runtime, other.container),
        };
        let (pod, slurm) = (self.pod.or(other.pod), self.slurm.or(other.slurm));
        Self { runtime, container, pod, slurm }
    }
}

/// What is known of a batch job while a path is read.
#[derive(Debug, Default)]
struct SlurmParts<'p> {
    uid: Option<u32>,
    job: Option<u32>,
    step: Option<&'p str>,
}

impl<'p> SlurmParts<'p> {
    fn read(&mut self, name: &'p str) {
        let number = |prefix: &str| name.strip_prefix(prefix)?.parse().ok();
        self.uid = self.uid.or_else(|| number("uid_"));
        self.job = self.job.or_else(|| number("job_"));
        let step = name.strip_prefix("step_").filter(|step| is_printable(step));
        self.step = self.step.or(step);
    }

    fn job(self) -> Option<SlurmJob> {
        let step = self.step.map(str::to_owned);
        self.job.map(|job| SlurmJob { job, step, uid: self.uid })
    }
}

/// The container that the group `part` below `above` belongs to.
fn container(above: &str, part: &str, name: &str) -> Option<(Option<Runtime>, String)> {
    // A containerd that talks to systemd wrongly: `SLICE:RUNTIME:ID` as one name.
    if let Some((before, id)) = name.rsplit_once(':').filter(|(_, id)| is_id(id)) {
        let runtime = before.rsplit(':').next().unwrap_or(before);
        return Some((runtime_of(runtime), id.to_owned()));
    }
    if is_id(name) {
        return Some((runtime_of(above), name.to_owned()));
    }
    if let Some((prefix, id)) = name.rsplit_once('-').filter(|(_, id)| is_id(id)) {
        // Others, such as `libpod-conmon`, are the container's keepers and not in it.
        return runtime_of(prefix).map(|runtime| (Some(runtime), id.to_owned()));
    }
    let (runtime, named) = if let Some(named) = part.strip_prefix("lxc.payload.") {
        (Runtime::Lxc, named.to_owned())
    } else if matches!(above, "lxc" | "lxc.payload") {
        (Runtime::Lxc, part.to_owned())
    } else if let Some(named) = name.strip_prefix("systemd-nspawn@") {
        (Runtime::Nspawn, unescaped(named))
    } else if above == "machine.slice" && part.ends_with(".scope") {
        (Runtime::Nspawn, unescaped(name.strip_prefix("machine-")?))
    } else {
        return None;
    };
    // Virtual machines are machines to systemd too, but what runs in them has no /proc here.
    let is_container = is_printable(&named) && !named.starts_with("qemu-");
    is_container.then_some((Some(runtime), named))
}

fn runtime_of(name: &str) -> Option<Runtime> {
    PREFIXES.into_iter().find(|(prefix, _)| *prefix == name).map(|(_, runtime)| runtime)
}

fn without_unit_suffix(part: &str) -> &str {
    let suffixes = [".scope", ".service", ".slice"];
    suffixes.into_iter().find_map(|suffix| part.strip_suffix(suffix)).unwrap_or(part)
}

/// Container runtimes name by 64 hexadecimal digits.
fn is_id(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The uid in `podUID` or `kubepods-burstable-podUID`. systemd does not take the dashes of a uid,
/// so kubelet writes underscores there; static pods have a hash without either.
fn kubernetes_pod(name: &str) -> Option<String> {
    // The wrong name of above has the pod in its first part.
    let slice = without_unit_suffix(name.split(':').next().unwrap_or(name));
    let uid = match slice.rfind("-pod") {
        Some(at) => &slice[at + "-pod".len()..],
        None => slice.strip_prefix("pod")?,
    };
    let is_digit = |byte: u8| byte.is_ascii_hexdigit() || matches!(byte, b'-' | b'_');
    let is_uid = matches!(uid.len(), 32 | 36) && uid.bytes().all(is_digit);
    is_uid.then(|| uid.replace('_', "-"))
}

/// The id in `machine-libpod_pod_ID`.
fn podman_pod(name: &str) -> Option<String> {
    let (_, id) = name.split_once("libpod_pod_")?;
    is_id(id).then(|| id.to_owned())
}

fn is_printable(name: &str) -> bool {
    !name.is_empty() && !name.chars().any(char::is_control)
}

/// A name as it was before systemd wrote `\x2d` for the bytes that mean something to it.
fn unescaped(name: &str) -> String {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        match escaped(rest) {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &rest["\\x2d".len()..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The byte that `bytes` begin with in systemd's notation.
fn escaped(bytes: &[u8]) -> Option<u8> {
    let digits = bytes.strip_prefix(b"\\x")?.get(..2)?;
    let digits = str::from_utf8(digits).ok()?;
    // A sign would be read as part of the number.
    digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then_some(())?;
    u8::from_str_radix(digits, 16).ok()
}
