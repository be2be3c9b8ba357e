//! `gpreempt doctor`: what this machine can do, and what is missing and why.

use std::fs;

use gpreempt_device::nvidia::driver::Driver;
use gpreempt_device::nvidia::node::{Node, held_by};
use gpreempt_device::process::{ProcessInfo, all_pids};
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::failure::Failure;
use crate::output;

#[derive(Serialize)]
struct Findings {
    emulated: &'static str,
    nvidia: Vec<Finding>,
    amd: Vec<Finding>,
}

/// One thing that is so, and what follows.
#[derive(Serialize)]
struct Finding {
    ok: bool,
    what: String,
}

pub(crate) fn main(args: &DoctorArgs) -> Result<(), Failure> {
    let findings = Findings {
        emulated: "works everywhere: gpreempt demo",
        nvidia: nvidia(),
        amd: vec![finding(false, "AMD devices are not supported yet")],
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
            finding(true, format!("driver {version}: known, and tried on hardware"))
        }
        Some(_) => finding(
            false,
            format!("driver {version}: known from its headers, never tried; reading only"),
        ),
        None => finding(false, format!("driver {version}: unknown; update gpreempt")),
    }];
    findings.extend(gpus());
    findings.push(if rustix_is_root() {
        finding(true, "root: processes of all users can be controlled")
    } else {
        finding(false, rights())
    });
    findings.extend(sharing());
    findings
}

fn rustix_is_root() -> bool {
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

/// The GPUs as the driver lists them.
fn gpus() -> Vec<Finding> {
    let Ok(folders) = fs::read_dir("/proc/driver/nvidia/gpus") else {
        return vec![finding(false, "the driver lists no GPU")];
    };
    let mut found: Vec<Finding> = folders
        .filter_map(|folder| {
            let folder = folder.ok()?;
            let text = fs::read_to_string(folder.path().join("information")).ok()?;
            let field = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name))?;
                Some(line.trim_start_matches(':').trim().to_owned())
            };
            let (model, uuid) = (field("Model")?, field("GPU UUID")?);
            let address = folder.file_name().into_string().ok()?;
            Some(finding(true, format!("{model}, {uuid}, at {address}")))
        })
        .collect();
    if found.is_empty() {
        found.push(finding(false, "the driver lists no GPU"));
    }
    found
}

/// Other ways of sharing that change what we can do.
fn sharing() -> Vec<Finding> {
    let mut findings = Vec::new();
    let names = all_pids().unwrap_or_default().into_iter().filter_map(|pid| {
        let info = ProcessInfo::read(pid).ok()?;
        Some((pid, info.name))
    });
    for (pid, name) in names {
        if name.starts_with("nvidia-cuda-mps") {
            findings.push(finding(
                false,
                format!("an MPS server runs ({name}, {pid}): its clients move together"),
            ));
        }
        let displays = held_by(pid).is_ok_and(|held| held.iter().any(|h| h.node == Node::Modeset));
        if displays {
            findings.push(finding(true, format!("{name} ({pid}) drives a display: never stopped")));
        }
    }
    findings
}
