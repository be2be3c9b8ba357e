//! The container, pod or batch job of a process, read from its control group.
//!
//! A daemon in a container has a control group namespace of its own, in which the kernel shows the
//! paths of other processes relative to its own group (`/../../kubepods-...`). Rules and containers
//! are about the paths of the node, so `NamespaceRoot` finds where the namespace begins.
//!
//! Every container runtime and batch system makes a control group for what it starts and puts its
//! id into the path, so no runtime has to be asked. Names that are not in the path (those of Docker
//! and Kubernetes) are not known.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;

/// The control groups of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cgroup {
    /// The distinct paths, that of the unified hierarchy first.
    pub paths: Vec<String>,
    pub placement: Placement,
}

/// Where a process runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The innermost container: an id of 64 hexadecimal digits, or a name where the runtime uses
    /// names (LXC, systemd-nspawn).
    pub container: Option<String>,
    /// The pod around it: a uid of Kubernetes or an id of Podman.
    pub pod: Option<String>,
    pub slurm_job: Option<u32>,
}

impl Cgroup {
    /// Reads a `/proc/PID/cgroup`. Invalid lines are skipped.
    pub fn parse(bytes: &[u8]) -> Self {
        static ROOT: OnceLock<Option<NamespaceRoot>> = OnceLock::new();
        Self::parse_in(bytes, ROOT.get_or_init(NamespaceRoot::find).as_ref())
    }

    fn parse_in(bytes: &[u8], root: Option<&NamespaceRoot>) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut hierarchies: Vec<(bool, &str)> = text.lines().filter_map(hierarchy).collect();
        hierarchies.sort_by_key(|(is_unified, _)| !is_unified);
        let mut seen = BTreeSet::new();
        let paths: Vec<String> = hierarchies
            .into_iter()
            .map(|(is_unified, path)| match root {
                Some(root) if is_unified => root.resolve(path),
                _ => path.to_owned(),
            })
            .filter(|path| seen.insert(path.clone()))
            .collect();
        let placement = paths.iter().fold(Placement::default(), |known, path| {
            let found = Placement::of(path);
            Placement {
                container: known.container.or(found.container),
                pod: known.pod.or(found.pod),
                slurm_job: known.slurm_job.or(found.slurm_job),
            }
        });
        Self { paths, placement }
    }
}

/// Where the control group namespace of this process begins in the hierarchy of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NamespaceRoot(Vec<String>);

impl NamespaceRoot {
    /// More groups are not looked at.
    const GROUPS_MAX: usize = 100_000;

    /// None where the kernel shows this process the paths of the node. In a container that shares
    /// the node's processes, process 1 is the node's, and its root has the whole hierarchy.
    fn find() -> Option<Self> {
        let init = fs::read_to_string("/proc/1/cgroup").ok()?;
        let depth = init.lines().find_map(|line| match hierarchy(line)? {
            (true, path) => Some(leading_parents(path)),
            (false, _) => None,
        })?;
        let own = fs::metadata("/sys/fs/cgroup").ok()?.ino();
        Self::below(Path::new("/proc/1/root/sys/fs/cgroup"), depth, own)
    }

    /// The group with that inode so many levels below `root`.
    fn below(root: &Path, depth: usize, inode: u64) -> Option<Self> {
        let mut groups = vec![(root.to_owned(), Vec::new())];
        for _ in 0..depth {
            let mut lower = Vec::new();
            for (folder, names) in groups {
                for entry in fs::read_dir(folder).ok()?.filter_map(Result::ok) {
                    if entry.file_type().is_ok_and(|kind| kind.is_dir())
                        && lower.len() < Self::GROUPS_MAX
                    {
                        let mut names: Vec<String> = names.clone();
                        names.push(entry.file_name().to_string_lossy().into_owned());
                        lower.push((entry.path(), names));
                    }
                }
            }
            groups = lower;
        }
        let is_own = |folder: &Path| fs::metadata(folder).is_ok_and(|found| found.ino() == inode);
        let found = groups.into_iter().find(|(folder, _)| depth > 0 && is_own(folder));
        found.map(|(_, names)| Self(names))
    }

    /// The path of the node for one that the kernel shows in this namespace.
    fn resolve(&self, path: &str) -> String {
        let up = leading_parents(path);
        let Self(own) = self;
        let kept = own.get(..own.len().saturating_sub(up)).unwrap_or_default();
        let names = kept.iter().map(String::as_str);
        let below = path.split('/').filter(|name| !name.is_empty()).skip(up);
        let names: Vec<&str> = names.chain(below).collect();
        format!("/{}", names.join("/"))
    }
}

/// How many levels above the namespace a path begins.
fn leading_parents(path: &str) -> usize {
    path.split('/').filter(|name| !name.is_empty()).take_while(|name| *name == "..").count()
}

/// The path in a line `NUMBER:CONTROLLERS:PATH`, and whether it is that of the unified hierarchy,
/// which has number 0 and no controllers.
fn hierarchy(line: &str) -> Option<(bool, &str)> {
    let (number, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    path.starts_with('/').then_some((number == "0" && controllers.is_empty(), path))
}

/// The prefixes of control groups that end with the container's id: Docker, containerd, nerdctl,
/// CRI-O, Podman.
const PREFIXES: [&str; 5] = ["docker", "cri-containerd", "nerdctl", "crio", "libpod"];

impl Placement {
    fn of(path: &str) -> Self {
        let mut found = Self::default();
        let mut above = "";
        let mut in_kubernetes = false;
        let mut in_slurm = false;
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
                let job = name.strip_prefix("job_").and_then(|job| job.parse().ok());
                found.slurm_job = found.slurm_job.or(job);
            }
            found.container = container(above, part, name).or(found.container);
            above = part;
        }
        found
    }
}

/// The container of the group `part` below `above`.
fn container(above: &str, part: &str, name: &str) -> Option<String> {
    // A misconfigured containerd writes `SLICE:RUNTIME:ID` as one name.
    if let Some((_, id)) = name.rsplit_once(':').filter(|(_, id)| is_id(id)) {
        return Some(id.to_owned());
    }
    if is_id(name) {
        return Some(name.to_owned());
    }
    if let Some((prefix, id)) = name.rsplit_once('-').filter(|(_, id)| is_id(id)) {
        // Other prefixes, such as `libpod-conmon`, are helpers outside the container.
        return PREFIXES.contains(&prefix).then(|| id.to_owned());
    }
    let named = if let Some(named) = part.strip_prefix("lxc.payload.") {
        named.to_owned()
    } else if matches!(above, "lxc" | "lxc.payload") {
        part.to_owned()
    } else if let Some(named) = name.strip_prefix("systemd-nspawn@") {
        unescaped(named)
    } else if above == "machine.slice" && part.ends_with(".scope") {
        unescaped(name.strip_prefix("machine-")?)
    } else {
        return None;
    };
    // systemd lists virtual machines as well; their processes are not in this /proc.
    let is_container =
        !named.is_empty() && !named.chars().any(char::is_control) && !named.starts_with("qemu-");
    is_container.then_some(named)
}

fn without_unit_suffix(part: &str) -> &str {
    let suffixes = [".scope", ".service", ".slice"];
    suffixes.into_iter().find_map(|suffix| part.strip_suffix(suffix)).unwrap_or(part)
}

fn is_id(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The uid in `podUID` or `kubepods-burstable-podUID`. systemd does not accept the dashes of a uid,
/// so kubelet writes underscores there; static pods have a hash without either.
fn kubernetes_pod(name: &str) -> Option<String> {
    // `SLICE:RUNTIME:ID` has the pod in its first part.
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

/// Reverts systemd's notation `\x2d` for bytes that have a meaning in unit names.
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
    // `from_str_radix` would accept a sign.
    digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then_some(())?;
    u8::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "3f2a9c81d4e5b6a7908172635445362718f9e0d1c2b3a4958677867564534231";
    const OUTER: &str = "aa11bb22cc33dd44ee55ff6600778899aabbccddeeff00112233445566778899";
    const POD: &str = "0c7b6e1d-52f8-4a9d-8f0e-2b7c1d9e3a45";
    const STATIC_POD: &str = "6a3b0d7f1c2e4958aa0bb1cc2dd3ee4f";

    /// The placement in a file with these names filled in.
    fn placement(file: &str) -> Placement {
        let file = file
            .replace("{id}", ID)
            .replace("{outer}", OUTER)
            .replace("{pod}", POD)
            .replace("{pod_}", &POD.replace('-', "_"))
            .replace("{static}", STATIC_POD);
        Cgroup::parse(file.as_bytes()).placement
    }

    #[test]
    fn containers_with_an_id_are_found() {
        let user = "/user.slice/user-1000.slice/user@1000.service/user.slice";
        let rootless_docker = format!("0::{user}/docker-{{id}}.scope\n");
        let rootless_podman = format!("0::{user}/libpod-{{id}}.scope/container\n");
        for (file, pod) in [
            ("0::/system.slice/docker-{id}.scope\n", None),
            ("12:memory:/docker/{id}\n1:name=systemd:/docker/{id}\n", None),
            (&rootless_docker, None),
            ("0::/docker/{outer}/docker/{id}\n", None),
            ("0::/system.slice/nerdctl-{id}.scope\n", None),
            (
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod_}.slice/\
             cri-containerd-{id}.scope\n",
                Some(POD),
            ),
            ("0::/kubepods.slice/kubepods-pod{pod_}.slice/cri-containerd-{id}.scope\n", Some(POD)),
            (
                "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/\
             kubelet-kubepods-besteffort-pod{static}.slice/cri-containerd-{id}.scope\n",
                Some(STATIC_POD),
            ),
            (
                "11:devices:/system.slice/containerd.service/\
             kubepods-burstable-pod{pod_}.slice:cri-containerd:{id}\n",
                Some(POD),
            ),
            ("5:cpu:/kubepods/besteffort/pod{pod}/{id}\n", Some(POD)),
            ("0::/kubepods.slice/kubepods-pod{pod_}.slice/crio-{id}.scope\n", Some(POD)),
            ("0::/machine.slice/libpod-{id}.scope/container\n", None),
            (&rootless_podman, None),
            ("0::/libpod_parent/libpod-{id}\n", None),
            ("0::/machine.slice/machine-libpod_pod_{outer}.slice/libpod-{id}.scope\n", Some(OUTER)),
            ("0::/system.slice/docker-{id}.scope (deleted)\n", None),
        ] {
            let found = placement(file);
            assert_eq!(found.container.as_deref(), Some(ID), "{file}");
            assert_eq!(found.pod.as_deref(), pod, "{file}");
            assert_eq!(found.slurm_job, None, "{file}");
        }
    }

    #[test]
    fn containers_with_a_name_are_found() {
        for (file, name) in [
            ("0::/machine.slice/systemd-nspawn@debian.service/payload\n", "debian"),
            ("0::/machine.slice/systemd-nspawn@web\\x2d1.service/payload/init.scope\n", "web-1"),
            ("0::/machine.slice/machine-build\\x2dbox.scope\n", "build-box"),
            ("0::/lxc.payload.trainer/init.scope\n", "trainer"),
            ("0::/lxc.payload/trainer\n", "trainer"),
            ("0::/lxc/101/ns/system.slice/nginx.service\n", "101"),
            ("8:memory:/lxc/trainer\n0::/\n", "trainer"),
        ] {
            assert_eq!(placement(file).container.as_deref(), Some(name), "{file}");
        }
    }

    #[test]
    fn slurm_jobs_are_found() {
        for (file, expected) in [
            ("9:devices:/slurm/uid_1000/job_1234/step_0/task_0\n", Some(1234)),
            ("9:devices:/slurm_node1/uid_7/job_5/step_batch\n", Some(5)),
            ("0::/system.slice/slurmstepd.scope/job_77/step_extern/user/task_special\n", Some(77)),
            ("0::/system.slice/node1_slurmstepd.scope/job_8/step_0/slurm\n", Some(8)),
            ("0::/system.slice/slurmd.service\n9:devices:/slurm/uid_1/job_2\n", Some(2)),
            // Groups with such names that are not of Slurm.
            ("0::/jobs/uid_1000/job_1234\n", None),
            ("0::/slurm/uid_1000/job_many\n", None),
            ("0::/slurm/uid_1000\n", None),
        ] {
            assert_eq!(placement(file).slurm_job, expected, "{file}");
        }
    }

    #[test]
    fn a_container_in_a_job_has_both() {
        let found = placement("0::/system.slice/slurmstepd.scope/job_9/step_0/user/libpod-{id}\n");
        assert_eq!(found.container.as_deref(), Some(ID));
        assert_eq!(found.slurm_job, Some(9));
    }

    #[test]
    fn other_control_groups_are_no_container() {
        for file in [
            "",
            "0::/\n",
            "0::/user.slice/user-1000.slice/session-1.scope\n",
            "0::/system.slice/docker.service\n",
            "0::/machine.slice/libpod-conmon-{id}.scope\n",
            "0::/lxc.monitor.trainer\n",
            "0::/machine.slice/machine-qemu\\x2d1\\x2dvm.scope\n",
            "0::/kubepods.slice/kubepods-burstable.slice\n",
            "0::/system.slice/docker-3f2a9c81d4e5.scope\n",
            "docker/{id}\n",
        ] {
            assert_eq!(placement(file), Placement::default(), "{file}");
        }
    }

    #[test]
    fn a_daemon_in_a_container_knows_the_paths_of_the_node() {
        let node = gpreempt_stage::WorkFolder::new("cgroups").unwrap();
        let pods = "kubepods.slice/kubepods-burstable.slice";
        let own = node.path(format!("{pods}/kubepods-burstable-podA.slice/cri-containerd-B.scope"));
        fs::create_dir_all(&own).unwrap();
        fs::create_dir_all(node.path("system.slice/a/b/c/d")).unwrap();
        let inode = fs::metadata(own).unwrap().ino();
        let root = NamespaceRoot::below(node.root(), 4, inode).unwrap();
        for (seen, path) in [
            (
                "/../../../kubepods-besteffort.slice/x",
                "/kubepods.slice/kubepods-besteffort.slice/x",
            ),
            ("/../../../../init.scope", "/init.scope"),
            ("/../../../..", "/"),
            ("/../../../../../x", "/x"),
            ("/", &format!("/{pods}/kubepods-burstable-podA.slice/cri-containerd-B.scope")),
            ("/x", &format!("/{pods}/kubepods-burstable-podA.slice/cri-containerd-B.scope/x")),
        ] {
            let file = format!("3:memory:/../a\n0::{seen}\n");
            let parsed = Cgroup::parse_in(file.as_bytes(), Some(&root));
            assert_eq!(parsed.paths, [path, "/../a"], "{seen}");
        }
        assert_eq!(NamespaceRoot::below(node.root(), 3, inode), None);
        assert_eq!(NamespaceRoot::below(node.root(), 0, inode), None, "all paths are the node's");
        let pod = "0c7b6e1d_52f8_4a9d_8f0e_2b7c1d9e3a45";
        let of_pod =
            format!("0::/../../kubepods-burstable-pod{pod}.slice/cri-containerd-{ID}.scope");
        let placement = Cgroup::parse_in(of_pod.as_bytes(), Some(&root)).placement;
        assert_eq!(placement.container.as_deref(), Some(ID));
        assert_eq!(placement.pod, Some(pod.replace('_', "-")));
    }

    #[test]
    fn the_unified_path_comes_first_and_each_comes_once() {
        let file = b"2:cpu:/a\n1:name=systemd:/b\nnonsense\n3:memory:/a\n0::/b c\n";
        assert_eq!(Cgroup::parse(file).paths, ["/b c", "/a", "/b"]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes: Vec<u8>) {
            let _ = Cgroup::parse(&bytes);
        }

        #[test]
        fn any_path_of_likely_parts_is_read(
            parts in prop::collection::vec(
                prop::sample::select(vec![
                    "kubepods", "-pod", "pod", ".slice", ".scope", ":", "/", "docker-", "lxc",
                    "/lxc/", "machine.slice", "/machine-", "\\x2", "\\x2d", "\\x+1", "é",
                    "slurm", "/job_", "99", "step_", "uid_", "systemd-nspawn@", "libpod_pod_", ID,
                    STATIC_POD, "lxc.payload.",
                ]),
                0..12,
            ),
        ) {
            let found = Cgroup::parse(format!("0::/{}\n", parts.concat()).as_bytes()).placement;
            prop_assert!(found.container.is_none_or(|name| !name.is_empty()));
        }
    }
}
