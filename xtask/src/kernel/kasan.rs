//! `cargo xtask kernel kasan`: the tests of `vm` in a kernel with KASAN, kmemleak and lockdep.
//!
//! The kernel is small (`kernel/test/kasan.config`) and built from the patched source. At the end
//! the module reads beyond a block of memory and leaks another on purpose: a kernel that does not
//! report both was not checking.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};

use super::vm_test::{self, VmTest, Wanted};
use super::{build, folder, source, standalone_module};
use crate::kfd_vm::{self, Unpacked};
use crate::process::{repository_root, run_to_success};

const CONFIG: &str = "kernel/test/kasan.config";

/// The modules that amdgpu needs are not built.
const SETTINGS: &str = "KCFLAGS=-DWITHOUT_OTHER_MODULES=1";

/// Emulation and KASAN are slow.
const PATIENCE: Duration = Duration::from_secs(1_500);

/// kmemleak reports a block that is five seconds old, in the second scan.
const LEAKS: &str = "\
for i in 1 2; do
/bin/busybox sleep 6
echo scan >/sys/kernel/debug/kmemleak
echo \"scanned $?\" >/dev/ttyS1
done
/bin/busybox cat /sys/kernel/debug/kmemleak >/dev/ttyS1
/bin/busybox grep debug_locks: /proc/lockdep_stats | /bin/busybox tr -s ' ' >/dev/ttyS1
";

/// Whether a fault and a leak are reported.
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

pub(super) fn run() -> anyhow::Result<()> {
    let source = source::apply()?;
    let build = kernel(&source)?;
    let compiled = build::compile_in(&source, &build)?;
    let symbols = build.join("Module.symvers");
    fs::copy(build.join("vmlinux.symvers"), &symbols).context("the kernel has no symbols")?;
    let linked = standalone_module::link(&source, &build, &compiled, ("kasan/alone", &[SETTINGS]))?;
    let module = folder().join("kasan/amdgpu.ko");
    vm_test::strip(&linked, &module)?;
    let (_, _, busybox) = kfd_vm::newest()?;
    let unpacked = Unpacked { image: build.join("arch/x86/boot/bzImage"), modules: vec![module] };
    let test = VmTest {
        name: "kasan",
        script: vm_test::calls("patched") + vm_test::NODE + LEAKS,
        proof: PROOF,
        wanted: [vm_test::CALLS_WANTED, vm_test::NODE_WANTED, WANTED].concat(),
        patience: PATIENCE,
    };
    test.run(&vm_test::programs(&source, &busybox)?, &unpacked)
}

/// Builds the kernel and returns its build folder.
fn kernel(source: &Path) -> anyhow::Result<PathBuf> {
    let build = folder().join("kasan/build");
    fs::create_dir_all(&build).with_context(|| build.display().to_string())?;
    let config = repository_root().join(CONFIG);
    let wanted = fs::read_to_string(&config).with_context(|| config.display().to_string())?;
    let mut configure = build::make(source, &build);
    configure.arg(format!("KCONFIG_ALLCONFIG={}", config.display()));
    run_to_success(configure.arg("allnoconfig"))?;
    let got = fs::read_to_string(build.join(".config")).context("there is no .config")?;
    let dropped = dropped(&wanted, &got);
    if !dropped.is_empty() {
        bail!("the kernel cannot be configured so: {}", dropped.join(", "));
    }
    run_to_success(build::make(source, &build).args(["bzImage", "modules_prepare"]))?;
    Ok(build)
}

/// Wanted settings that the configuration does not have.
fn dropped<'a>(wanted: &'a str, got: &str) -> Vec<&'a str> {
    let settings = wanted.lines().filter(|line| line.starts_with("CONFIG_"));
    settings.filter(|setting| !got.lines().any(|line| line == *setting)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_is_missing_is_named() {
        let wanted = "# what looks\nCONFIG_KASAN=y\nCONFIG_SMP=y\n";
        assert_eq!(dropped(wanted, "CONFIG_SMP=y\nCONFIG_KASAN=y\n"), Vec::<&str>::new());
        assert_eq!(
            dropped(wanted, "# CONFIG_KASAN is not set\nCONFIG_SMP=y\n"),
            ["CONFIG_KASAN=y"]
        );
    }

    #[test]
    fn the_kernel_has_every_checker() {
        let config = fs::read_to_string(repository_root().join(CONFIG)).unwrap();
        for name in ["KASAN", "DEBUG_KMEMLEAK", "PROVE_LOCKING"] {
            assert!(config.contains(&format!("CONFIG_{name}=y\n")), "{name}");
        }
    }
}
