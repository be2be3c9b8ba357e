//! `cargo xtask kernel kasan`: the same trials in a kernel that looks at itself.
//!
//! A small kernel with KASAN, kmemleak and lockdep (`kernel/test/kasan.config`), built from the
//! patched source. At the end the module reads behind a block of memory and loses another, on
//! purpose: a kernel that does not find both has not looked.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};

use super::trial::{self, Trial, Wanted};
use super::{alone, folder, objects, tree, vm};
use crate::kfd_vm::{self, Unpacked};
use crate::process::{repository_root, run_to_success};

/// What the kernel is made of.
const CONFIG: &str = "kernel/test/kasan.config";

/// The modules that amdgpu needs are not built.
const SETTINGS: &str = "KCFLAGS=-DWITHOUT_OTHER_MODULES=1";

/// An emulated kernel that looks at every access takes its time.
const PATIENCE: Duration = Duration::from_secs(1_500);

/// What is lost is found after it is five seconds old, by the second look.
const LEAKS: &str = "\
for i in 1 2; do
/bin/busybox sleep 6
echo scan >/sys/kernel/debug/kmemleak
echo \"scanned $?\" >/dev/ttyS1
done
/bin/busybox cat /sys/kernel/debug/kmemleak >/dev/ttyS1
/bin/busybox grep debug_locks: /proc/lockdep_stats | /bin/busybox tr -s ' ' >/dev/ttyS1
";

/// Whether a fault and a leak are found.
const PROOF: &str = "\
/bin/busybox insmod /modules/*amdgpu.ko node=1
echo fault >/sys/kernel/debug/kfd_node
echo leak >/sys/kernel/debug/kfd_node
for i in 1 2; do
/bin/busybox sleep 6
echo scan >/sys/kernel/debug/kmemleak
done
/bin/busybox dmesg | /bin/busybox grep -q 'slab-out-of-bounds in node_'
echo \"fault found $?\" >/dev/ttyS1
/bin/busybox grep -q node_ /sys/kernel/debug/kmemleak
echo \"leak found $?\" >/dev/ttyS1
";

const WANTED: &[Wanted] = &[
    ("scanned 0", "kmemleak did not look"),
    (" debug_locks: 1", "lockdep is off, or has switched itself off"),
    ("fault found 0", "KASAN did not find a fault that there was"),
    ("leak found 0", "kmemleak did not find a leak that there was"),
];

/// Builds everything and tries it.
pub(super) fn run() -> anyhow::Result<()> {
    let source = tree::apply()?;
    let build = kernel(&source)?;
    let compiled = objects::compile_in(&source, &build)?;
    let symbols = build.join("Module.symvers");
    fs::copy(build.join("vmlinux.symvers"), &symbols).context("the kernel has no symbols")?;
    let linked = alone::link(&source, &build, &compiled, ("kasan/alone", &[SETTINGS]))?;
    let module = folder().join("kasan/amdgpu.ko");
    vm::strip(&linked, &module)?;
    let (_, _, busybox) = kfd_vm::newest()?;
    let unpacked = Unpacked { image: build.join("arch/x86/boot/bzImage"), modules: vec![module] };
    let trial = Trial {
        name: "kasan",
        script: trial::calls("patched") + trial::NODE + LEAKS,
        proof: PROOF,
        wanted: [trial::CALLS_WANTED, trial::NODE_WANTED, WANTED].concat(),
        patience: PATIENCE,
    };
    trial.run(&trial::programs(&source, &busybox)?, &unpacked)
}

/// The kernel, in its build folder.
fn kernel(source: &Path) -> anyhow::Result<PathBuf> {
    let build = folder().join("kasan/build");
    fs::create_dir_all(&build).with_context(|| build.display().to_string())?;
    let config = repository_root().join(CONFIG);
    let wanted = fs::read_to_string(&config).with_context(|| config.display().to_string())?;
    let mut configure = objects::make(source, &build);
    configure.arg(format!("KCONFIG_ALLCONFIG={}", config.display()));
    run_to_success(configure.arg("allnoconfig"))?;
    let got = fs::read_to_string(build.join(".config")).context("there is no .config")?;
    let dropped = dropped(&wanted, &got);
    if !dropped.is_empty() {
        bail!("the kernel cannot be configured so: {}", dropped.join(", "));
    }
    run_to_success(objects::make(source, &build).args(["bzImage", "modules_prepare"]))?;
    Ok(build)
}

/// The settings that were wanted and are not there.
fn dropped<'a>(wanted: &'a str, got: &str) -> Vec<&'a str> {
    let settings = wanted.lines().filter(|line| line.starts_with("CONFIG_"));
    settings.filter(|setting| !got.lines().any(|line| line == *setting)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_was_not_taken_is_named() {
        let wanted = "# what looks\nCONFIG_KASAN=y\nCONFIG_SMP=y\n";
        assert_eq!(dropped(wanted, "CONFIG_SMP=y\nCONFIG_KASAN=y\n"), Vec::<&str>::new());
        assert_eq!(
            dropped(wanted, "# CONFIG_KASAN is not set\nCONFIG_SMP=y\n"),
            ["CONFIG_KASAN=y"]
        );
    }

    #[test]
    fn the_kernel_has_everything_that_looks() {
        let config = fs::read_to_string(repository_root().join(CONFIG)).unwrap();
        for name in ["KASAN", "DEBUG_KMEMLEAK", "PROVE_LOCKING"] {
            assert!(config.contains(&format!("CONFIG_{name}=y\n")), "{name}");
        }
    }
}
