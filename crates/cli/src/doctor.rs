//! `gpreempt doctor`: what gpreempt can do on this machine, and what is missing, why, and what to
//! do.
//!
//! Reads only. Fails if no GPU can be controlled, neither by this program nor by a running service.

mod gpus;
mod processes;
mod service;

use gpreempt_daemon::accounts::Accounts;
use gpreempt_wire::statistics::Snapshot;
use serde::Serialize;

use crate::args::DoctorArgs;
use crate::failure::Failure;
use crate::output::{self, counted};
use crate::service::environment_devices;

#[derive(Serialize)]
struct Findings {
    /// GPUs that can be controlled.
    controllable: usize,
    emulated: &'static str,
    nvidia: Vec<Finding>,
    amd: Vec<Finding>,
    amd_way: Option<gpus::AmdWay>,
    service: Vec<Finding>,
    user: Vec<Finding>,
    processes: Vec<Finding>,
}

/// One fact, whether it permits or limits control, and what to do about a limit.
#[derive(Debug, Serialize)]
struct Finding {
    ok: bool,
    what: String,
    advice: Option<String>,
}

impl Finding {
    fn new(ok: bool, what: impl Into<String>) -> Self {
        Self { ok, what: what.into(), advice: None }
    }

    fn ok(what: impl Into<String>) -> Self {
        Self::new(true, what)
    }

    fn no(what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { advice: Some(advice.into()), ..Self::new(false, what) }
    }

    fn text(&self) -> String {
        let mark = if self.ok { "ok" } else { "no" };
        let advice = self.advice.iter().map(|advice| format!("      to do: {advice}\n"));
        format!("  {mark}  {}\n{}", self.what, advice.collect::<String>())
    }
}

pub(crate) fn main(args: &DoctorArgs) -> Result<(), Failure> {
    let accounts = Accounts::load().unwrap_or_default();
    let (service, snapshot) = service::examine();
    let findings = Findings {
        controllable: gpus::controllable().max(scheduled_gpus(snapshot.as_ref())),
        emulated: "works everywhere: gpreempt demo",
        nvidia: gpus::nvidia(),
        amd: gpus::amd(),
        amd_way: gpus::amd_way(),
        service,
        user: processes::rights(&accounts),
        processes: processes::neighbours(snapshot.as_ref(), &environment_devices(), &accounts),
    };
    match args.json {
        true => output::print_json(&findings)?,
        false => output::print(&findings.text())?,
    }
    match findings.controllable {
        0 => Err(Failure::run("no GPU of this machine can be controlled")),
        _ => Ok(()),
    }
}

/// The GPUs that the service controls, which may be others than this program can.
fn scheduled_gpus(snapshot: Option<&Snapshot>) -> usize {
    snapshot.map_or(0, |snapshot| snapshot.devices.len())
}

impl Findings {
    fn text(&self) -> String {
        let mut text = format!("Emulated GPU\n  ok  {}\n", self.emulated);
        for (head, findings) in [
            ("NVIDIA", &self.nvidia),
            ("AMD", &self.amd),
            ("Service", &self.service),
            ("User", &self.user),
            ("Processes", &self.processes),
        ] {
            text.push_str(&format!("{head}\n"));
            text.extend(findings.iter().map(Finding::text));
        }
        if self.controllable > 0 {
            let gpus = counted(self.controllable, "GPU", "GPUs");
            text.push_str(&format!("{gpus} can be controlled.\n"));
        }
        text
    }
}
