//! `gpreempt doctor`: what gpreempt can do on this machine, and what is missing and why.

use std::fs;

use gpreempt_device::amd::{KfdLocation, probe};
use gpreempt_device::nvidia::driver::Driver;
use gpreempt_device::nvidia::gpu::{self, Gpu};
use gpreempt_device::nvidia::sharing_constraints::detect_constraints;
use gpreempt_device::process::ProcessInfo;
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::failure::Failure;
use crate::output;

#[derive(Serialize)]
struct Findings {
    emulated: &'static str,
    nvidia: Vec<Finding>,
    amd: Vec<Finding>,
    amd_way: Option<AmdWay>,
}

/// How queues of AMD devices are stopped, and why no better method is used.
#[derive(Serialize)]
struct AmdWay {
    way: &'static str,
    why_not_better: Option<String>,
}

/// One fact, and whether it permits or limits control.
#[derive(Serialize)]
struct Finding {
    ok: bool,
    what: String,
}

pub(crate) fn main(args: &DoctorArgs) -> Result<(), Failure> {
    let findings = Findings {
        emulated: "works everywhere: gpreempt demo",
        nvidia: nvidia(),
        amd: amd(),
        amd_way: amd_way(),
    };
    if args.json {
        return output::print_json(&findings);
    }
    let mut text = format!("Emulated GPU\n  ok  {}\n", findings.emulated);
    for (vendor, findings) in [("NVIDIA", &findings.nvidia), ("AMD", &findings.amd)] {
        text.push_str(&format!("{vendor}\n"));
        for finding in findings {
            text.push_str(&format!(
                "  {}  {}\n",
                if finding.ok { "ok" } else { "no" },
                finding.what
            ));
        }
    }
    output::print(&text)
}

fn finding(ok: bool, what: impl Into<String>) -> Finding {
    Finding { ok, what: what.into() }
}

fn nvidia() -> Vec<Finding> {
    let driver = match Driver::find() {
        Ok(driver) => driver,
        Err(error) => return vec![finding(false, error.to_string())],
    };
    let version = &driver.version;
    let mut findings = vec![match driver.branch {
        Some(branch) if branch.was_run() => {
            finding(true, format!("driver {version}: known, and tested on hardware"))
        }
        Some(_) => finding(
            false,
            format!("driver {version}: known from its headers, never tested; reading only"),
        ),
        None => finding(false, format!("driver {version}: unknown; update gpreempt")),
    }];
    findings.push(match driver.branch {
        Some(branch) if branch.can_hold() => finding(
            true,
            "a GPU can be held for high processes between their kernels; idle fences show when \
                 their work has finished, or the rings where `fenced` in `ps --json` is false",
        ),
        Some(_) | None => finding(
            false,
            "a GPU cannot be held between kernels with this driver (only 580 was tested); high \
             processes only get long time slices",
        ),
    });
    findings.extend(gpus());
    findings.push(if is_root() {
        finding(true, "root: processes of all users can be controlled")
    } else {
        finding(false, rights())
    });
    findings.extend(sharing());
    findings
}

fn amd() -> Vec<Finding> {
    let found = probe::look(&KfdLocation::from_environment()).into_iter();
    found.map(|seen| finding(seen.ok, seen.what)).collect()
}

fn amd_way() -> Option<AmdWay> {
    let in_use = KfdLocation::from_environment().open().ok()?.stop_method();
    Some(AmdWay { way: in_use.method.name(), why_not_better: in_use.why_not_better })
}

fn is_root() -> bool {
    ProcessInfo::read(std::process::id()).is_ok_and(|info| info.uid == 0)
}

fn rights() -> String {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "" | "0" => "not root: only your own processes can be controlled".to_owned(),
        scope => format!(
            "not root, and yama ptrace_scope is {scope}: only children of gpreempt can be \
             controlled; become root"
        ),
    }
}

fn gpus() -> Vec<Finding> {
    let found = gpu::all();
    if found.is_empty() {
        return vec![finding(false, "the driver lists no GPU")];
    }
    let line = |Gpu { model, uuid, pci }: Gpu| finding(true, format!("{model}, {uuid}, at {pci}"));
    found.into_iter().map(line).collect()
}

/// MPS, MIG and other things that share or restrict the GPUs.
fn sharing() -> Vec<Finding> {
    let found = detect_constraints().into_iter();
    found.map(|surrounding| finding(!surrounding.is_limit(), surrounding.sentence())).collect()
}
