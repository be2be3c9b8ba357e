use super::*;
use crate::amd::abi::version::Version;
use crate::amd::fake::{FakeKfd, Rules};

const ROOT: Powers = Powers { capabilities: u64::MAX, yama: 1 };

/// A folder with a topology of those devices, and a debugfs if there is one.
struct Scene {
    root: PathBuf,
}

impl Scene {
    fn new(name: &str, gfx_versions: &[u32]) -> Self {
        let root = std::env::temp_dir().join(format!("gpreempt-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let nodes = root.join("sysfs/topology/nodes");
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
        Self { root }
    }

    fn places(&self) -> Places {
        Places {
            sysfs: self.root.join("sysfs"),
            debugfs: self.root.join("debugfs"),
            parameters: self.root.join("parameters"),
        }
    }

    fn report(&self, rules: Rules, powers: Powers) -> Vec<Finding> {
        report(&FakeKfd::with(rules).door(1), powers, &self.places())
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

#[test]
fn a_machine_where_everything_is_right_says_so() {
    let scene = Scene::new("right", &[90402, 120_001]);
    fs::create_dir_all(scene.root.join("debugfs")).unwrap();
    fs::write(scene.root.join("debugfs/mqds"), "").unwrap();
    let findings = scene.report(Rules::default(), ROOT);
    assert!(findings.iter().all(|finding| finding.ok), "{findings:#?}");
    assert_eq!(findings.len(), 5);
}

#[test]
fn everything_that_is_in_the_way_has_a_sentence() {
    let scene = Scene::new("wrong", &[80003, 90006, 110_000]);
    let rules = Rules { version: Version { major: 1, minor: 11 }, ..Rules::default() };
    let findings = scene.report(rules, Powers { capabilities: 0, yama: 1 });
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
fn a_kernel_without_devices_or_without_sysfs_is_told_apart() {
    let scene = Scene::new("empty", &[]);
    let text = |findings: Vec<Finding>| {
        findings.into_iter().map(|finding| finding.what).collect::<Vec<_>>().join("\n")
    };
    assert!(text(scene.report(Rules::default(), ROOT)).contains("KFD runs but has no GPU"));
    fs::remove_dir_all(scene.root.join("sysfs")).unwrap();
    assert!(text(scene.report(Rules::default(), ROOT)).contains("is sysfs mounted?"));
}

#[test]
fn a_device_that_cannot_be_opened_has_a_reason() {
    let why = |kind| explain_open(&io::Error::from(kind));
    assert!(why(io::ErrorKind::NotFound).contains("modprobe amdgpu"));
    assert!(why(io::ErrorKind::PermissionDenied).contains("render"));
    assert!(why(io::ErrorKind::TimedOut).contains("cannot be opened"));
    if node::number().is_none() {
        let findings = look(&SiteName::Kernel);
        assert!(findings.len() == 1 && !findings[0].ok, "{findings:?}");
    } else {
        println!("SKIPPED: this machine has AMD devices");
    }
    let nowhere = look(&SiteName::emulated(Path::new("/nonexistent/kfd")));
    assert!(nowhere[0].what.contains("gpreempt-emu --kfd /nonexistent/kfd"), "{nowhere:?}");
}
