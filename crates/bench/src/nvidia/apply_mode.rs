//! Applies the measured mode to the load processes (daemon, `attach`, `peer slices`), and checks
//! afterwards that their time slices and channels were restored.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use gpreempt_core::config::PolicyKind;
use gpreempt_device::nvidia::process_discovery::{InspectError, inspect_process};
use rustix::process::Signal;

use super::Nvidia;
use super::load_process::{LoadProcess, of_role};
use super::mode::Mode;
use super::request_waits::HoldRecords;
use super::requirements::{ParentDeath, found};
use crate::child::Child;
use crate::daemon_process::DaemonProcess;
use crate::lines::{self, Line};
use crate::results::{COUNT, Number, Role};

/// How long a controlling program may take to be in effect.
const LIMIT: Duration = Duration::from_secs(20);
/// Longer than any measurement; the programs end by then even if the runner does not end them.
const LONGEST: &str = "620s";
const LONGEST_SECONDS: &str = "600";
/// How long new time slices take to be in effect.
const SETTLE: Duration = Duration::from_millis(300);
/// The daemon's configuration: every process is low until it gets its priority, except for clients
/// of MPS, which wait for measurements of their own.
const CONFIG: &str = "[[rule]]\nenv = \"CUDA_MPS_PIPE_DIRECTORY=*\"\nignore = true\n\
                      [scheduler]\ndefault_priority = 2\n";

/// Starts a daemon. The state of an earlier round is not reused: its keeper may still run, and a
/// daemon would load its settings.
pub(super) fn start_daemon(
    nvidia: &Nvidia,
    folder: &Path,
    round: u64,
    policy: PolicyKind,
) -> Result<DaemonProcess, String> {
    let config = format!("{CONFIG}policy = \"{}\"\n", policy.name());
    let state = format!("state-{round}");
    DaemonProcess::start(&nvidia.programs, folder, &state, &config, &[], &nvidia.stop)
}

/// Gives every process its priority.
pub(super) fn set_priorities(
    daemon: &DaemonProcess,
    nvidia: &Nvidia,
    loads: &[LoadProcess],
) -> Result<(), String> {
    for LoadProcess { load, child, .. } in loads {
        let begin = Instant::now();
        // The daemon may not have found the process yet.
        let attributes = [
            ("priority", load.priority.level().into()),
            ("weight", load.weight.into()),
            ("deadline", load.deadline.map_or(0, gpreempt_core::time::Duration::as_micros)),
        ];
        while let Err(error) = daemon.set(&nvidia.programs, child.pid(), &attributes) {
            if begin.elapsed() > LIMIT || nvidia.is_stopped() {
                return Err(format!("cannot set the priority of {}: {error}", load.name));
            }
            std::thread::sleep(SETTLE);
        }
    }
    Ok(())
}

/// A program that controls the load processes while it runs.
#[derive(Debug)]
pub(super) struct AppliedMode {
    child: Option<Child>,
    /// The file that `attach` writes at its end.
    hold_records: PathBuf,
}

impl AppliedMode {
    /// Starts the program of the mode, if any, and waits until it is in effect.
    pub(super) fn start(
        nvidia: &Nvidia,
        mode: Mode,
        policy: PolicyKind,
        loads: &[LoadProcess],
        folder: &Path,
    ) -> Result<Self, String> {
        let hold_records = hold_records(folder);
        // Those of another measurement.
        let _ = std::fs::remove_file(&hold_records);
        let child = match mode {
            Mode::PeerSlices => peer(nvidia, loads, folder)?,
            Mode::Slices | Mode::Hold | Mode::Budget15 | Mode::Budget30 | Mode::Budget60 => {
                Some(attach(nvidia, mode, policy, loads, folder)?)
            }
            Mode::Alone | Mode::Default | Mode::Mps | Mode::MpsPriority | Mode::Hints => None,
        };
        if child.is_some() {
            std::thread::sleep(SETTLE);
        }
        Ok(Self { child, hold_records })
    }

    /// Ends it; it restores all settings. Returns how often the device was held and how much slower
    /// processes were, and the records of holds.
    pub(super) fn end(mut self) -> Result<(Vec<Number>, HoldRecords), String> {
        let Some(child) = &mut self.child else { return Ok(Default::default()) };
        child.end_successfully(Signal::INT)?;
        let said = child.output();
        let numbers = holds(&said).into_iter().chain(slowdown(&said)).collect();
        // Without holds there is no file.
        let records = std::fs::read_to_string(&self.hold_records).unwrap_or_default();
        Ok((numbers, HoldRecords::read(&records)))
    }
}

/// The slowdown that gpreempt measured, over all processes of which it did.
fn slowdown(said: &str) -> Vec<Number> {
    let (mut sum, mut budget) = ([0; 4], None);
    for line in lines::of(said) {
        if let Line::Slowdown { budget_percent, busy_us, off_us, lost_us, shared_us } = line {
            budget = budget.or(budget_percent);
            let more = [busy_us, off_us, lost_us, shared_us];
            sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
    }
    // CAST: far below what a float counts exactly.
    let [busy, off, lost, shared] = sum.map(|us| us as f64);
    if busy <= lost {
        return Vec::new();
    }
    let percent = |name, title, value: f64| Number::new(name, title, "%", 100.0 * value);
    let mut numbers = vec![
        percent("slowdown", "slowdown that gpreempt measured", lost / (busy - lost)),
        percent("off_engine", "the same if all time off the GPU were lost", off / (busy - off)),
        percent("shared", "part of the busy time with slices of the budget", shared / busy),
    ];
    numbers.extend(
        budget.map(|budget| percent("budget", "latency budget", f64::from(budget) / 100.0)),
    );
    numbers
}

/// The holds that `attach` reports at its end, summed over all processes.
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
        Number::new("holds_expired", "holds that expired", COUNT, sum.1 as f64),
        Number::new("hold_longest", "the longest hold", "ns", (sum.2 * 1_000) as f64),
    ]
}

fn hold_records(folder: &Path) -> PathBuf {
    folder.join("hold-records")
}

fn attach(
    nvidia: &Nvidia,
    mode: Mode,
    policy: PolicyKind,
    loads: &[LoadProcess],
    folder: &Path,
) -> Result<Child, String> {
    let mut command = Command::new(found(&nvidia.programs.gpreempt, "gpreempt")?);
    command.arg("attach").args(loads.iter().map(target));
    command.args(["--for", LONGEST, "--policy", policy.name(), "--json"]);
    if mode == Mode::Slices {
        command.arg("--no-hold");
    } else {
        command.arg("--hold-records").arg(hold_records(folder));
    }
    if let Some(percent) = mode.budget() {
        command.arg(format!("--latency-budget={percent}%"));
    }
    let mut command = nvidia.programs.with_parent(ParentDeath::Ask, command);
    let mut child = Child::start("gpreempt attach", &mut command, folder.join("attach"))?;
    let all = |said: &str| {
        lines::of(said).filter(|line| matches!(line, Line::Attached { .. })).count() >= loads.len()
    };
    child.wait_for("attached to all processes", all, LIMIT, &nvidia.stop)?;
    Ok(child)
}

/// The argument of `attach` for a process.
fn target(process: &LoadProcess) -> String {
    let load = &process.load;
    format!("{}:{}:{}", process.child.pid(), load.priority.level(), load.weight)
}

/// The published design has two classes; without both there is nothing to set.
fn peer(nvidia: &Nvidia, loads: &[LoadProcess], folder: &Path) -> Result<Option<Child>, String> {
    let of = |role: Role| {
        of_role(loads, role).map(|process| process.child.pid().to_string()).collect::<Vec<_>>()
    };
    let (lc, be) = (of(Role::Lc), of(Role::Be));
    if lc.is_empty() || be.is_empty() {
        return Ok(None);
    }
    let mut command = Command::new(found(&nvidia.programs.load, "gpreempt-load")?);
    command.args(["peer", "slices", "--lc"]).args(lc).arg("--be").args(be);
    command.args(["--seconds", LONGEST_SECONDS, "--json"]);
    let mut command = nvidia.programs.with_parent(ParentDeath::Ask, command);
    let mut child = Child::start("gpreempt-load peer slices", &mut command, folder.join("peer"))?;
    // Its first line lists the time slices that it set; an error is no JSON.
    let is_set = |said: &str| said.contains("{\"line\":");
    child.wait_for("in effect", is_set, LIMIT, &nvidia.stop)?;
    Ok(Some(child))
}

/// What a mode can change of some processes: time slices, channels, holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GpuState {
    groups: Vec<Group>,
    holds: Vec<Hold>,
}

/// A hold channel in a client: it is in none of the client's groups.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hold {
    pid: u32,
    client: u32,
    channel: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    pid: u32,
    handle: u32,
    slice_us: Option<u64>,
    channels: usize,
}

impl GpuState {
    /// Reads the state of some processes; those without a GPU have none.
    pub(super) fn read(pids: Vec<u32>) -> Result<Self, String> {
        let (mut groups, mut holds) = (Vec::new(), Vec::new());
        for pid in pids {
            let process = match inspect_process(pid) {
                Ok(process) => process,
                Err(InspectError::NoGpu(_)) => continue,
                Err(error) => return Err(error.to_string()),
            };
            let clients = process.clients.map_err(|error| error.to_string())?;
            for client in &clients {
                let channels = client.holds.iter();
                holds.extend(channels.map(|&channel| Hold { pid, client: client.handle, channel }));
            }
            let devices = clients.iter().flat_map(|client| &client.devices);
            groups.extend(devices.flat_map(|device| &device.groups).map(|group| Group {
                pid,
                handle: group.handle,
                slice_us: group.slice_us,
                channels: group.channels.len(),
            }));
        }
        Ok(Self { groups, holds })
    }

    /// Fails if a time slice, a channel or a hold differs from `before`.
    pub(super) fn check_restored(&self, before: &Self) -> Result<(), String> {
        if let Some(hold) = self.holds.iter().find(|hold| !before.holds.contains(hold)) {
            return Err(format!(
                "hold {:#x} in client {:#x} of process {} was not removed",
                hold.channel, hold.client, hold.pid
            ));
        }
        for was in &before.groups {
            let same = |group: &&Group| (group.pid, group.handle) == (was.pid, was.handle);
            // The process itself may have destroyed the group.
            let Some(is) = self.groups.iter().find(same) else { continue };
            if is != was {
                return Err(format!(
                    "group {:#x} of process {} was not restored: {} and {} channels, {} and {} \
                     before",
                    was.handle,
                    was.pid,
                    slice(is),
                    is.channels,
                    slice(was),
                    was.channels,
                ));
            }
        }
        Ok(())
    }
}

fn slice(group: &Group) -> String {
    group.slice_us.map_or_else(|| "no slice".to_owned(), |us| format!("a slice of {us} us"))
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

    #[test]
    fn the_slowdown_is_that_of_all_busy_time() {
        let said = "{\"line\":\"slowdown\",\"pid\":7,\"budget_percent\":15,\"busy_us\":1100,\
                    \"off_us\":200,\"lost_us\":100,\"shared_us\":550}\n";
        let values: Vec<(String, f64)> =
            slowdown(said).into_iter().map(|number| (number.name, number.value.round())).collect();
        let names = ["slowdown", "off_engine", "shared", "budget"].map(str::to_owned);
        let expected: Vec<_> = names.into_iter().zip([10.0, 22.0, 50.0, 15.0]).collect();
        assert_eq!(values, expected);
        assert!(slowdown("{\"line\":\"over\"}").is_empty());
    }

    fn access(slice_us: u64, channels: usize) -> GpuState {
        let group = Group { pid: 7, handle: 1, slice_us: Some(slice_us), channels };
        GpuState { groups: vec![group], holds: Vec::new() }
    }

    #[test]
    fn a_time_slice_or_a_channel_that_is_not_restored_is_an_error() {
        let before = access(2_000, 8);
        assert_eq!(before.clone().check_restored(&before), Ok(()));
        let error = access(1, 8).check_restored(&before).unwrap_err();
        assert!(error.contains("a slice of 1 us and 8 channels, a slice of 2000 us"), "{error}");
        assert!(access(2_000, 9).check_restored(&before).is_err());
        assert_eq!(
            GpuState { groups: Vec::new(), holds: Vec::new() }.check_restored(&before),
            Ok(())
        );
    }

    #[test]
    fn a_hold_that_is_not_removed_is_an_error() {
        let with = |channels: &[u32]| GpuState {
            holds: channels.iter().map(|&channel| Hold { pid: 7, client: 2, channel }).collect(),
            ..access(2_000, 8)
        };
        let error = with(&[9]).check_restored(&with(&[])).unwrap_err();
        assert!(error.contains("hold 0x9 in client 0x2 of process 7"), "{error}");
        assert!(with(&[9, 10]).check_restored(&with(&[9])).is_err());
        assert_eq!(with(&[9]).check_restored(&with(&[9, 10])), Ok(()));
    }

    #[test]
    fn processes_without_a_gpu_have_no_state() {
        let own = GpuState::read(vec![std::process::id()]).unwrap();
        assert!(own.groups.is_empty());
    }
}
