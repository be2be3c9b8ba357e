//! Which queues of a process the devices report as stopped, independent of any journal.
//!
//! A journal can be wrong: its keeper hung, a record was lost, another program stopped a queue. So
//! `resume` and `ps` ask the devices, as far as those can be asked:
//!
//! | device | where the state of a queue is read | if it cannot be read |
//! |---|---|---|
//! | emulated | the emulator's list of queues | the emulator has ended, and its queues with it |
//! | AMD | debugfs `mqds`: none of the process's compute queues is on the device | resumed |
//! | NVIDIA | nowhere: no control call reads whether a channel is enabled | resumed |
//!
//! Resuming is the undo of a stop, which changes nothing for a running process. Reading takes
//! milliseconds and may block, so the daemon's loop must not do it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::amd::change::AmdChange;
use crate::amd::{self, KfdLocation};
use crate::change::ChangeError;
use crate::emulated;
use crate::journal::GpuChange;
use crate::nvidia;
use crate::process::ProcessKey;

/// The variable that names the sockets of emulated GPUs, separated by colons.
pub const EMULATED_VARIABLE: &str = "GPREEMPT_EMULATED";

/// How long a device may take to report that a queue runs again. The emulated KFD writes its files
/// some milliseconds after a change.
const SHOWN_MAX: Duration = Duration::from_millis(500);
const SHOWN_CHECK: Duration = Duration::from_millis(5);

/// The devices to ask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DevicePlaces {
    /// Emulated GPUs, by the sockets of their emulators.
    pub emulated: Vec<PathBuf>,
    pub amd: Vec<KfdLocation>,
    /// Whether NVIDIA devices may be changed.
    pub use_nvidia: bool,
}

/// What the devices report of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopReading {
    /// The stopped queues, as the changes that would have stopped them.
    pub stopped: Vec<GpuChange>,
    /// Changes of which the devices do not report whether they are in force.
    pub unknown: Vec<GpuChange>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeOutcome {
    /// Its devices report that it runs.
    Running,
    /// A device had it stopped without a record, and runs it now.
    Resumed,
    /// Its devices do not report it. It was resumed there.
    Unknown,
    /// A device still reports it as stopped after it was resumed.
    StillStopped,
}

impl DevicePlaces {
    /// The devices of this machine, and those that environment variables name.
    pub fn from_environment() -> Self {
        let emulated = std::env::var_os(EMULATED_VARIABLE).unwrap_or_default();
        let emulated = std::env::split_paths(&emulated).filter(|path| !path.as_os_str().is_empty());
        let driver = nvidia::driver::Driver::find();
        let was_run = |branch: nvidia::abi::Branch| branch.was_run();
        Self {
            emulated: emulated.collect(),
            amd: vec![KfdLocation::from_environment()],
            use_nvidia: driver.is_ok_and(|driver| driver.branch.is_some_and(was_run)),
        }
    }

    /// What the devices report of a process. A process that has ended is not stopped.
    pub fn read(&self, process: ProcessKey) -> StopReading {
        let mut reading = StopReading::default();
        if process.check().is_err() {
            return reading;
        }
        let is_own = |(key, change): (ProcessKey, GpuChange)| (key == process).then_some(change);
        for socket in &self.emulated {
            reading.stopped.extend(emulated::stopped(socket).into_iter().filter_map(is_own));
        }
        for site in &self.amd {
            match amd::stopped(site) {
                Some(stopped) => reading.stopped.extend(stopped.into_iter().filter_map(is_own)),
                None if amd::uses(site, process.pid) => {
                    reading.unknown.push(GpuChange::Amd(AmdChange::Pause { site: site.clone() }));
                }
                None => {}
            }
        }
        if self.use_nvidia
            && let Ok(found) = nvidia::process_discovery::inspect_process(process.pid)
        {
            reading.unknown.extend(nvidia::change::stops(&found));
        }
        reading
    }

    /// All queues that devices report as stopped.
    pub fn stopped(&self) -> Vec<(ProcessKey, GpuChange)> {
        let emulated = self.emulated.iter().flat_map(|socket| emulated::stopped(socket));
        let amd = self.amd.iter().flat_map(|site| amd::stopped(site).unwrap_or_default());
        emulated.chain(amd).collect()
    }
}

/// Whether a device has stopped a queue that none of these changes stopped.
pub fn is_stray(stopped: &GpuChange, own: &[GpuChange]) -> bool {
    // AMD devices report whole processes, so any recorded stop on them explains it.
    let is_amd = |change: &GpuChange| matches!(change, GpuChange::Amd(_));
    let explains = |known: &GpuChange| {
        known.concerns_the_same(stopped) || known.is_stop() && is_amd(known) && is_amd(stopped)
    };
    !own.iter().any(explains)
}

/// Resumes the queues of a process that its devices have stopped beyond the changes in `own`. No
/// other thread may change the process meanwhile.
pub fn resume_strays(
    process: ProcessKey,
    own: &[GpuChange],
    read: impl Fn() -> StopReading,
) -> Result<ResumeOutcome, ChangeError> {
    let strays = |reading: StopReading| -> Vec<GpuChange> {
        reading.stopped.into_iter().filter(|change| is_stray(change, own)).collect()
    };
    let reading = read();
    let unknown = reading.unknown.clone();
    let stopped = strays(reading);
    if !stopped.is_empty() {
        resume(process, &stopped)?;
        let until = Instant::now() + SHOWN_MAX;
        while !strays(read()).is_empty() {
            if Instant::now() >= until {
                return Ok(ResumeOutcome::StillStopped);
            }
            std::thread::sleep(SHOWN_CHECK);
        }
        return Ok(ResumeOutcome::Resumed);
    }
    if unknown.is_empty() || own.iter().any(GpuChange::is_stop) {
        return Ok(ResumeOutcome::Running);
    }
    resume(process, &unknown)?;
    Ok(ResumeOutcome::Unknown)
}

fn resume(process: ProcessKey, changes: &[GpuChange]) -> Result<(), ChangeError> {
    for change in changes {
        match change.on_device().perform(process, true) {
            Err(error) if !error.is_gone() => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::change::EmulatedChange;

    fn stop(queue: u64) -> GpuChange {
        GpuChange::Emulated(EmulatedChange::Stop {
            socket: "/nonexistent/gpu".into(),
            instance: 1,
            queue,
        })
    }

    const GONE: ProcessKey = ProcessKey { pid: u32::MAX, start_ticks: 1 };

    #[test]
    fn recorded_stops_stay() {
        let reading = || StopReading { stopped: vec![stop(1)], unknown: Vec::new() };
        assert_eq!(resume_strays(GONE, &[stop(1)], reading).unwrap(), ResumeOutcome::Running);
        // The emulator is gone, so undoing succeeds and the reading stays.
        assert_eq!(resume_strays(GONE, &[stop(2)], reading).unwrap(), ResumeOutcome::StillStopped);
        let once = std::cell::Cell::new(true);
        let reading = || StopReading {
            stopped: if once.replace(false) { vec![stop(1)] } else { Vec::new() },
            unknown: Vec::new(),
        };
        assert_eq!(resume_strays(GONE, &[], reading).unwrap(), ResumeOutcome::Resumed);
    }

    #[test]
    fn unknown_queues_are_resumed_unless_the_owner_stopped_them() {
        let reading = || StopReading { stopped: Vec::new(), unknown: vec![stop(1)] };
        assert_eq!(resume_strays(GONE, &[], reading).unwrap(), ResumeOutcome::Unknown);
        assert_eq!(resume_strays(GONE, &[stop(9)], reading).unwrap(), ResumeOutcome::Running);
        assert_eq!(resume_strays(GONE, &[], StopReading::default).unwrap(), ResumeOutcome::Running);
    }

    #[test]
    fn a_suspended_process_on_amd_devices_is_no_stray() {
        let site = KfdLocation::Kernel;
        let paused = GpuChange::Amd(AmdChange::Pause { site: site.clone() });
        assert!(is_stray(&paused, &[GpuChange::Amd(AmdChange::Session { site: site.clone() })]));
        assert!(!is_stray(&paused, &[GpuChange::Amd(AmdChange::Suspend { site })]));
    }
}
