//! Control groups as they look on real machines.

use proptest::prelude::*;

use super::*;

const ID: &str = "3f2a9c81d4e5b6a7908172635445362718f9e0d1c2b3a4958677867564534231";
const OUTER: &str = "aa11bb22cc33dd44ee55ff6600778899aabbccddeeff00112233445566778899";
const POD: &str = "0c7b6e1d-52f8-4a9d-8f0e-2b7c1d9e3a45";
const STATIC_POD: &str = "6a3b0d7f1c2e4958aa0bb1cc2dd3ee4f";

/// The placement in a file whose lines have these names filled in.
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
    use Runtime::{Containerd, Crio, Docker, Podman};
    let user = "/user.slice/user-1000.slice/user@1000.service/user.slice";
    let rootless_docker = format!("0::{user}/docker-{{id}}.scope\n");
    let rootless_podman = format!("0::{user}/libpod-{{id}}.scope/container\n");
    for (file, runtime, pod) in [
        ("0::/system.slice/docker-{id}.scope\n", Some(Docker), None),
        ("12:memory:/docker/{id}\n1:name=systemd:/docker/{id}\n", Some(Docker), None),
        (&rootless_docker, Some(Docker), None),
        ("0::/docker/{outer}/docker/{id}\n", Some(Docker), None),
        ("0::/system.slice/nerdctl-{id}.scope\n", Some(Containerd), None),
        (
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{pod_}.slice/\
             cri-containerd-{id}.scope\n",
            Some(Containerd),
            Some(POD),
        ),
        (
            "0::/kubepods.slice/kubepods-pod{pod_}.slice/cri-containerd-{id}.scope\n",
            Some(Containerd),
            Some(POD),
        ),
        (
            "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/\
             kubelet-kubepods-besteffort-pod{static}.slice/cri-containerd-{id}.scope\n",
            Some(Containerd),
            Some(STATIC_POD),
        ),
        (
            "11:devices:/system.slice/containerd.service/\
             kubepods-burstable-pod{pod_}.slice:cri-containerd:{id}\n",
            Some(Containerd),
            Some(POD),
        ),
        ("5:cpu:/kubepods/besteffort/pod{pod}/{id}\n", None, Some(POD)),
        ("0::/kubepods.slice/kubepods-pod{pod_}.slice/crio-{id}.scope\n", Some(Crio), Some(POD)),
        ("0::/machine.slice/libpod-{id}.scope/container\n", Some(Podman), None),
        (&rootless_podman, Some(Podman), None),
        ("0::/libpod_parent/libpod-{id}\n", Some(Podman), None),
        (
            "0::/machine.slice/machine-libpod_pod_{outer}.slice/libpod-{id}.scope\n",
            Some(Podman),
            Some(OUTER),
        ),
        ("0::/system.slice/docker-{id}.scope (deleted)\n", Some(Docker), None),
    ] {
        let found = placement(file);
        assert_eq!(found.container.as_deref(), Some(ID), "{file}");
        assert_eq!((found.runtime, found.pod.as_deref()), (runtime, pod), "{file}");
        assert_eq!(found.slurm, None, "{file}");
    }
}

#[test]
fn containers_with_a_name_are_found() {
    use Runtime::{Lxc, Nspawn};
    for (file, runtime, name) in [
        ("0::/machine.slice/systemd-nspawn@debian.service/payload\n", Nspawn, "debian"),
        (
            "0::/machine.slice/systemd-nspawn@web\\x2d1.service/payload/init.scope\n",
            Nspawn,
            "web-1",
        ),
        ("0::/machine.slice/machine-build\\x2dbox.scope\n", Nspawn, "build-box"),
        ("0::/lxc.payload.trainer/init.scope\n", Lxc, "trainer"),
        ("0::/lxc.payload/trainer\n", Lxc, "trainer"),
        ("0::/lxc/101/ns/system.slice/nginx.service\n", Lxc, "101"),
        ("8:memory:/lxc/trainer\n0::/\n", Lxc, "trainer"),
    ] {
        let found = placement(file);
        assert_eq!(found.container.as_deref(), Some(name), "{file}");
        assert_eq!(found.runtime, Some(runtime), "{file}");
    }
}

#[test]
fn slurm_jobs_are_found() {
    let job =
        |job, step: Option<&str>, uid| Some(SlurmJob { job, step: step.map(str::to_owned), uid });
    for (file, expected) in [
        ("9:devices:/slurm/uid_1000/job_1234/step_0/task_0\n", job(1234, Some("0"), Some(1000))),
        ("9:devices:/slurm_node1/uid_7/job_5/step_batch\n", job(5, Some("batch"), Some(7))),
        (
            "0::/system.slice/slurmstepd.scope/job_77/step_extern/user/task_special\n",
            job(77, Some("extern"), None),
        ),
        ("0::/system.slice/node1_slurmstepd.scope/job_8/step_0/slurm\n", job(8, Some("0"), None)),
        ("0::/system.slice/slurmd.service\n9:devices:/slurm/uid_1/job_2\n", job(2, None, Some(1))),
        // Others may have groups of such names without being Slurm.
        ("0::/jobs/uid_1000/job_1234\n", None),
        ("0::/slurm/uid_1000/job_many\n", None),
        ("0::/slurm/uid_1000\n", None),
    ] {
        assert_eq!(placement(file).slurm, expected, "{file}");
    }
}

#[test]
fn a_container_in_a_job_is_both() {
    let found = placement("0::/system.slice/slurmstepd.scope/job_9/step_0/user/libpod-{id}\n");
    assert_eq!(found.container.as_deref(), Some(ID));
    assert_eq!(found.slurm.map(|slurm| slurm.job), Some(9));
}

#[test]
fn what_is_no_container_is_none() {
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
                "kubepods", "-pod", "pod", ".slice", ".scope", ":", "/", "docker-", "lxc", "/lxc/",
                "machine.slice", "/machine-", "\\x2", "\\x2d", "\\x+1", "é", "slurm", "/job_", "99",
                "step_", "uid_", "systemd-nspawn@", "libpod_pod_", ID, STATIC_POD, "lxc.payload.",
            ]),
            0..12,
        ),
    ) {
        let found = Cgroup::parse(format!("0::/{}\n", parts.concat()).as_bytes()).placement;
        prop_assert!(found.container.is_none_or(|name| !name.is_empty()));
        prop_assert!(found.slurm.is_none_or(|slurm| slurm.step != Some(String::new())));
    }
}
