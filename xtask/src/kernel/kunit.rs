//! `cargo xtask kernel kunit`: the tests of the policy inside of a kernel that is a program.

use std::process::Command;
use std::thread;

use anyhow::Context;

use super::{folder, tree};
use crate::process::run_to_success;

/// Where the kernel keeps what they need.
const CONFIG: &str = "drivers/gpu/drm/amd/amdkfd/tests";
/// Which of all tests in that kernel are ours.
const SUITE: &str = "kfd_preempt_policy";

/// Builds that kernel and runs the tests.
pub(super) fn run() -> anyhow::Result<()> {
    let source = tree::apply()?;
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    let mut kunit = Command::new("python3");
    kunit.arg(source.join("tools/testing/kunit/kunit.py")).arg("run");
    kunit.arg(format!("--kunitconfig={CONFIG}")).arg(format!("--jobs={jobs}"));
    kunit.arg(format!("--build_dir={}", folder().join("kunit").display()));
    // Hanging is a failure; building is not what this waits for.
    kunit.arg("--timeout=300").arg(SUITE);
    run_to_success(&mut kunit).context("the KUnit tests of the policy did not pass")
}
