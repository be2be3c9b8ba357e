//! What `gpreempt doctor` finds about the GPUs: drivers, devices, memory, and what restricts their
//! use.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gpreempt_device::amd::stop_method::StopMethod;
use gpreempt_device::amd::topology::Topology;
use gpreempt_device::amd::{KfdLocation, probe};
use gpreempt_device::eviction::probe::probe;
use gpreempt_device::nvidia::driver::{Driver, for_private_session};
use gpreempt_device::nvidia::gpu::{self, Gpu};
use gpreempt_device::nvidia::sharing_constraints::{SharingConstraint, detect_constraints};
use gpreempt_wire::statistics::memory as memory_text;
use serde::Serialize;

use super::Finding;

const MIB: u64 = 1 << 20;
/// Below this part of free memory another program does not fit in general.
const FREE_PERCENT_MIN: u64 = 10;
/// How long `nvidia-smi` may take. It waits for the driver, which may wait for a GPU.
const NVIDIA_SMI_MAX: Duration = Duration::from_secs(5);

/// How queues of AMD devices are stopped, and why no better method is used.
#[derive(Serialize)]
pub(super) struct AmdWay {
    way: &'static str,
    why_not_better: Option<String>,
}

pub(super) fn nvidia() -> Vec<Finding> {
    let driver = match Driver::find() {
        Ok(driver) => driver,
        Err(error) => {
            let advice = "with an NVIDIA GPU, install its driver (branch 580)";
            return vec![Finding::no(error.to_string(), advice)];
        }
    };
    let version = &driver.version;
    let mut findings = vec![match driver.branch {
        Some(branch) if branch.was_run() => {
            Finding::ok(format!("driver {version}: known, and tested on hardware"))
        }
        Some(_) => Finding::no(
            format!("driver {version}: known from its headers, never tested; reading only"),
            "use driver 580, or permit changes with --allow-untested-driver",
        ),
        None => {
            Finding::no(format!("driver {version}: unknown"), "update gpreempt, or use driver 580")
        }
    }];
    findings.push(match driver.branch {
        Some(branch) if branch.can_hold() => Finding::ok(
            "a GPU can be held for high processes between their kernels; idle fences show when \
             their work has finished, or the rings where `fenced` in `ps --json` is false",
        ),
        Some(_) | None => Finding::no(
            "a GPU cannot be held between kernels with this driver (only 580 was tested); high \
             processes only get long time slices",
            "use driver 580",
        ),
    });
    let found = gpu::all();
    if found.is_empty() {
        findings
            .push(Finding::no("the driver lists no GPU", "see dmesg for the driver's messages"));
    }
    let line = |Gpu { model, uuid, pci }: &Gpu| Finding::ok(format!("{model}, {uuid}, at {pci}"));
    findings.extend(found.iter().map(line));
    if !found.is_empty() {
        findings.extend(nvidia_memory());
    }
    findings.push(eviction());
    findings.extend(detect_constraints().into_iter().map(constraint));
    findings
}

/// Whether the memory of processes can move to the host, and how much fits there.
fn eviction() -> Finding {
    match probe() {
        Err(why) => Finding::new(false, format!("GPU memory cannot be evicted: {why}")),
        Ok(()) => {
            let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
            let fits = available_kib(&meminfo)
                .map_or(String::new(), |kib| format!("; the host has {} for it", memory_text(kib)));
            Finding::ok(format!("GPU memory can be evicted to the host{fits}"))
        }
    }
}

/// What programs can still allocate, of `/proc/meminfo`.
fn available_kib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// MPS, MIG and other things that share or restrict the GPUs.
fn constraint(found: SharingConstraint) -> Finding {
    let advice = match found {
        SharingConstraint::MpsServer { .. } => {
            "end the MPS server (echo quit | nvidia-cuda-mps-control) to schedule its clients one \
             by one"
        }
        SharingConstraint::Mig { .. } => {
            "switch MIG off (nvidia-smi -mig 0), or permit changes with --allow-untested-driver"
        }
        SharingConstraint::InSandbox => "run gpreempt on the host",
        SharingConstraint::Display { .. } | SharingConstraint::Sandbox { .. } => {
            return Finding::ok(found.sentence());
        }
    };
    Finding::no(found.sentence(), advice)
}

pub(super) fn amd() -> Vec<Finding> {
    let site = KfdLocation::from_environment();
    let mut findings: Vec<Finding> =
        probe::look(&site).into_iter().map(|seen| Finding::new(seen.ok, seen.what)).collect();
    let topology = Topology::read(&site.paths().sysfs).unwrap_or_default();
    for node in topology.devices() {
        let folder = Path::new("/sys/bus/pci/devices").join(node.pci());
        let bytes = |file: &str| -> Option<u64> {
            fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()
        };
        let known = bytes("mem_info_vram_used").zip(bytes("mem_info_vram_total"));
        findings.extend(
            known.map(|(used, total)| memory(&format!("GPU at {}", node.pci()), used, total)),
        );
    }
    findings
}

pub(super) fn amd_way() -> Option<AmdWay> {
    let in_use = KfdLocation::from_environment().open().ok()?.stop_method();
    Some(AmdWay { way: in_use.method.name(), why_not_better: in_use.why_not_better })
}

/// How many GPUs this program can control without the service.
pub(super) fn controllable() -> usize {
    let nvidia = if for_private_session(false).is_ok() { gpu::all().len() } else { 0 };
    let site = KfdLocation::from_environment();
    let can_stop = site.open().is_ok_and(|kfd| kfd.stop_method().method != StopMethod::Nothing);
    let amd = match can_stop {
        true => Topology::read(&site.paths().sysfs).unwrap_or_default().devices().count(),
        false => 0,
    };
    nvidia + amd
}

/// A preempted or suspended program keeps its memory, so all programs have to fit together.
fn memory(gpu: &str, used: u64, total: u64) -> Finding {
    let gib =
        |bytes: u64| format!("{}.{}", bytes / (MIB << 10), bytes % (MIB << 10) * 10 / (MIB << 10));
    let what = format!("{gpu}: {} of {} GiB of memory are used", gib(used), gib(total));
    let free = total.saturating_sub(used);
    if free.saturating_mul(100) >= total.saturating_mul(FREE_PERCENT_MIN) {
        return Finding::ok(what);
    }
    let advice = "programs keep their memory while they are preempted, so all of them must fit; \
                  give each a limit (such as PyTorch's set_per_process_memory_fraction)";
    Finding::no(what, advice)
}

fn nvidia_memory() -> Vec<Finding> {
    let Some(text) = nvidia_smi() else {
        return vec![Finding::no(
            "how much memory is used is unknown: nvidia-smi does not answer",
            "programs keep their memory while they are preempted: check that all of them fit",
        )];
    };
    let line = |line: &str| {
        let mut fields = line.split(',').map(str::trim);
        let (index, used, total) = (fields.next()?, fields.next()?, fields.next()?);
        let bytes = |mib: &str| Some(mib.parse::<u64>().ok()?.saturating_mul(MIB));
        Some(memory(&format!("GPU {index}"), bytes(used)?, bytes(total)?))
    };
    text.lines().filter_map(line).collect()
}

/// Index, used and whole memory of each GPU, in MiB.
fn nvidia_smi() -> Option<String> {
    let mut child = Command::new("nvidia-smi")
        .args(["--query-gpu=index,memory.used,memory.total", "--format=csv,noheader,nounits"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let begin = Instant::now();
    loop {
        match child.try_wait().ok()? {
            // A line for each GPU fits into the pipe.
            Some(_) => return std::io::read_to_string(child.stdout.take()?).ok(),
            None if begin.elapsed() > NVIDIA_SMI_MAX => {
                // It may be stuck in the driver; then it ends when the driver answers.
                let _ = child.kill();
                return None;
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_problem_where_little_is_free() {
        let gib = MIB << 10;
        let fine = memory("GPU 0", 3 * gib + gib / 2, 140 * gib);
        assert!(fine.ok && fine.what == "GPU 0: 3.5 of 140.0 GiB of memory are used", "{fine:?}");
        let full = memory("GPU 0", 139 * gib, 140 * gib);
        assert!(!full.ok && full.advice.is_some_and(|advice| advice.contains("must fit")));
    }

    #[test]
    fn the_memory_of_the_host_is_read() {
        let text = "MemTotal:       16 kB\nMemAvailable:    2048 kB\nBuffers: 1 kB\n";
        assert_eq!((available_kib(text), available_kib("")), (Some(2_048), None));
    }

    #[test]
    fn limits_have_an_advice_and_other_constraints_have_none() {
        for found in [
            SharingConstraint::MpsServer { pid: 7 },
            SharingConstraint::Mig { instances: 2 },
            SharingConstraint::InSandbox,
            SharingConstraint::Display { pid: 7, name: "Xorg".into() },
        ] {
            let is_limit = found.is_limit();
            let shown = constraint(found);
            assert_eq!((shown.ok, shown.advice.is_some()), (!is_limit, is_limit), "{shown:?}");
        }
    }
}
