//! What is done to the processes of a measurement from outside.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use gpreempt_core::config::PolicyKind;
use rustix::process::Signal;

use super::Nvidia;
use super::actor::{Actor, of_role};
use super::mode::Mode;
use super::programs::{Leash, there};
use crate::child::Child;
use crate::lines::{self, Line};
use crate::results::{COUNT, Number, Role};

/// How long a program of ours has to take hold.
const LIMIT: Duration = Duration::from_secs(20);
/// Longer than any measurement, so that nothing is left if the runner is killed.
const LONGEST: &str = "620s";
const LONGEST_SECONDS: &str = "600";
/// How long slices and classes need to settle.
const SETTLE: Duration = Duration::from_millis(300);
/// What the daemon is told: everybody is low until somebody says otherwise, but for clients of MPS,
/// which wait for measurements of their own.
const CONFIG: &str = "[[rule]]\nenv = \"CUDA_MPS_PIPE_DIRECTORY=*\"\nignore = true\n\
                      [scheduler]\ndefault_priority = 2\n";

/// The daemon, before there is anybody to schedule.
#[derive(Debug)]
pub(super) struct Daemon {
    child: Child,
    environment: Vec<(String, String)>,
    /// Where it listens.
    pub(super) socket: PathBuf,
}

impl Daemon {
    /// Starts one with a socket and a state of its own. The state of an earlier round stays where
    /// it is, because its keeper may still use it; a daemon that found it would go on with it.
    pub(super) fn start(
        nvidia: &Nvidia,
        folder: &Path,
        round: u64,
        policy: PolicyKind,
    ) -> Result<Self, String> {
        let cannot = |error: std::io::Error| format!("cannot prepare the daemon: {error}");
        let (config, socket) = (folder.join("config.toml"), folder.join("gpreemptd.sock"));
        let text = format!("{CONFIG}policy = \"{}\"\n", policy.name());
        std::fs::write(&config, text).map_err(cannot)?;
        let state = folder.join(format!("state-{round}"));
        let environment = vec![
            ("GPREEMPT_STATE".to_owned(), state.display().to_string()),
            ("GPREEMPT_SOCKET".to_owned(), socket.display().to_string()),
        ];
        let mut command = Command::new(there(&nvidia.programs.daemon, "gpreemptd")?);
        command.arg("--config").arg(&config).arg("--socket").arg(&socket);
        command.envs(environment.iter().cloned());
        let mut command = nvidia.programs.leashed(Leash::Ask, command);
        // One that was there for an earlier round may have left it.
        let _ = std::fs::remove_file(&socket);
        let mut child = Child::start("gpreemptd", &mut command, folder.join("gpreemptd"))?;
        child.wait_for("listening", |_| socket.exists(), LIMIT, &nvidia.stop)?;
        Ok(Self { child, environment, socket })
    }

    /// Gives every process its priority.
    pub(super) fn tell(&self, nvidia: &Nvidia, actors: &[Actor]) -> Result<(), String> {
        for actor in actors {
            let begin = Instant::now();
            // It looks for new processes now and then.
            while let Err(error) = self.set(nvidia, actor) {
                if begin.elapsed() > LIMIT || nvidia.is_stopped() {
                    return Err(error);
                }
                std::thread::sleep(SETTLE);
            }
        }
        Ok(())
    }

    fn set(&self, nvidia: &Nvidia, actor: &Actor) -> Result<(), String> {
        let priority = actor.load.priority.level().to_string();
        let weight = actor.load.weight.to_string();
        let mut command = Command::new(there(&nvidia.programs.gpreempt, "gpreempt")?);
        command.args(["set", &actor.child.pid().to_string(), "-p", &priority]);
        command.args(["--weight", &weight]);
        let output = command
            .envs(self.environment.iter().cloned())
            .output()
            .map_err(|error| format!("cannot start gpreempt: {error}"))?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(format!("{} could not get its priority: {said}", actor.load.name))
    }

    /// Ends it; everything is then as it was.
    pub(super) fn end(mut self) -> Result<(), String> {
        self.child.end(Signal::TERM)
    }
}

/// A program of ours that holds on to processes while it runs.
#[derive(Debug)]
pub(super) struct Steer {
    child: Option<Child>,
}

impl Steer {
    /// Starts what the mode needs, and waits until it has taken hold.
    pub(super) fn start(
        nvidia: &Nvidia,
        mode: Mode,
        policy: PolicyKind,
        actors: &[Actor],
        folder: &Path,
    ) -> Result<Self, String> {
        let child = match mode {
            Mode::Slices | Mode::Hold => Some(attach(nvidia, mode, policy, actors, folder)?),
            Mode::PeerSlices => peer(nvidia, actors, folder)?,
            Mode::Alone | Mode::Default | Mode::Mps | Mode::MpsPriority | Mode::Hints => None,
        };
        if child.is_some() {
            std::thread::sleep(SETTLE);
        }
        Ok(Self { child })
    }

    /// Ends it; everything is then as it was. Says how often the device was held.
    pub(super) fn end(mut self) -> Result<Vec<Number>, String> {
        let Some(child) = &mut self.child else { return Ok(Vec::new()) };
        child.end_well(Signal::INT)?;
        Ok(holds(&child.said()))
    }
}

/// What `attach` says about its holds at the end, all processes together.
fn holds(said: &str) -> Vec<Number> {
    let (mut seen, mut sum) = (false, (0, 0, 0));
    for line in lines::of(said) {
        if let Line::Holds { placed, expired, longest_us } = line {
            seen = true;
            sum = (sum.0 + placed, sum.1 + expired, sum.2.max(longest_us));
        }
    }
    if !seen {
        return Vec::new();
    }
    // CAST: far below what a float counts exactly.
    vec![
        Number::new("holds", "times that the device was held", COUNT, sum.0 as f64),
        Number::new("holds_expired", "holds that were given up", COUNT, sum.1 as f64),
        Number::new("hold_longest", "the longest hold", "ns", (sum.2 * 1_000) as f64),
    ]
}

fn attach(
    nvidia: &Nvidia,
    mode: Mode,
    policy: PolicyKind,
    actors: &[Actor],
    folder: &Path,
) -> Result<Child, String> {
    let mut command = Command::new(there(&nvidia.programs.gpreempt, "gpreempt")?);
    command.arg("attach").args(actors.iter().map(target));
    command.args(["--for", LONGEST, "--policy", policy.name(), "--json"]);
    if mode == Mode::Slices {
        command.arg("--no-hold");
    }
    let mut command = nvidia.programs.leashed(Leash::Ask, command);
    let mut child = Child::start("gpreempt attach", &mut command, folder.join("attach"))?;
    let all = |said: &str| {
        lines::of(said).filter(|line| matches!(line, Line::Attached { .. })).count() >= actors.len()
    };
    child.wait_for("attached to everybody", all, LIMIT, &nvidia.stop)?;
    Ok(child)
}

/// A process as `attach` names it.
fn target(actor: &Actor) -> String {
    let load = &actor.load;
    format!("{}:{}:{}", actor.child.pid(), load.priority.level(), load.weight)
}

/// The published design knows two classes; without both there is nothing to do.
fn peer(nvidia: &Nvidia, actors: &[Actor], folder: &Path) -> Result<Option<Child>, String> {
    let of = |role: Role| {
        of_role(actors, role).map(|actor| actor.child.pid().to_string()).collect::<Vec<_>>()
    };
    let (lc, be) = (of(Role::Lc), of(Role::Be));
    if lc.is_empty() || be.is_empty() {
        return Ok(None);
    }
    let mut command = Command::new(there(&nvidia.programs.load, "gpreempt-load")?);
    command.args(["peer", "slices", "--lc"]).args(lc).arg("--be").args(be);
    command.args(["--seconds", LONGEST_SECONDS, "--json"]);
    let mut command = nvidia.programs.leashed(Leash::Ask, command);
    let mut child = Child::start("gpreempt-load peer slices", &mut command, folder.join("peer"))?;
    // Its first line says which slices were set; a complaint is no line of JSON.
    let is_set = |said: &str| said.contains("{\"line\":");
    child.wait_for("in place", is_set, LIMIT, &nvidia.stop)?;
    Ok(Some(child))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holds_of_all_processes_add_up() {
        let line = |pid: u32, placed: u32, expired: u32, longest: u32| {
            format!(
                "{{\"line\":\"holds\",\"pid\":{pid},\"placed\":{placed},\"expired\":{expired},\
                 \"longest_us\":{longest},\"quiet_us\":3}}\n"
            )
        };
        let said = line(7, 9, 1, 40) + "{\"line\":\"over\"}\n" + &line(8, 2, 0, 70);
        let values: Vec<f64> = holds(&said).iter().map(|number| number.value).collect();
        assert_eq!(values, [11.0, 1.0, 70_000.0]);
        assert!(holds("{\"line\":\"over\"}").is_empty());
    }
}
