//! What the devices themselves say of a process, whatever a journal says.
//!
//! A journal can be wrong: its keeper hung, its text was lost, another program stopped a queue. So
//! `resume` and `ps` ask the devices, as far as those can be asked:
//!
//! | device | whether a queue is stopped is read from | where that cannot be read |
//! |---|---|---|
//! | emulated | the emulator's list of queues | the emulator is gone, and its queues with it |
//! | AMD | debugfs `mqds`: none of the process's compute queues is on the device | told to run |
//! | NVIDIA | nothing: no control call reads whether a channel is enabled | told to run |
//!
//! "Told to run" is the undo of a stop, which changes nothing for a process that runs. Reading
//! takes milliseconds and may block, so it is not for the daemon's loop.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::act::ActError;
use crate::amd::act::AmdAct;
use crate::amd::{self, SiteName};
use crate::emulated;
use crate::journal::Act;
use crate::nvidia;
use crate::process::ProcessKey;

/// The variable that names the sockets of emulated GPUs, separated by colons.
pub const EMULATED_VARIABLE: &str = "GPREEMPT_EMULATED";

/// How long a device may take to show that a queue runs again. The emulated KFD writes its files
/// some milliseconds after a change.
const SHOWN_MAX: Duration = Duration::from_millis(500);
/// How often that is read meanwhile.
const SHOWN_CHECK: Duration = Duration::from_millis(5);

/// Where devices are asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DevicePlaces {
    /// Emulated GPUs, by the sockets of their emulators.
    pub emulated: Vec<PathBuf>,
    /// AMD devices.
    pub amd: Vec<SiteName>,
    /// Whether NVIDIA devices may be changed.
    pub use_nvidia: bool,
}

/// What the devices say of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// What is stopped, as the acts that would have stopped it.
    pub stopped: Vec<Act>,
    /// Acts of which the devices do not tell whether they are in force.
    pub unknown: Vec<Act>,
}

/// What became of a process that should run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Righted {
    /// Its devices say that it runs.
    Running,
    /// A device had it stopped without a reason, and runs it now.
    Resumed,
    /// Its devices do not tell. They were told to run it.
    Unknown,
    /// A device still says that it is stopped, after it was told to run it.
    StillStopped,
}

impl DevicePlaces {
    /// Those of this machine, and those that variables name.
    pub fn from_environment() -> Self {
        let emulated = std::env::var_os(EMULATED_VARIABLE).unwrap_or_default();
        let emulated = std::env::split_paths(&emulated).filter(|path| !path.as_os_str().is_empty());
        let driver = nvidia::driver::Driver::find();
        let was_run = |branch: nvidia::abi::branch::Branch| branch.was_run();
        Self {
            emulated: emulated.collect(),
            amd: vec![SiteName::from_environment()],
            use_nvidia: driver.is_ok_and(|driver| driver.branch.is_some_and(was_run)),
        }
    }

    /// What the devices say of a process. One that is gone is not stopped.
    pub fn read(&self, process: ProcessKey) -> Reading {
        let mut reading = Reading::default();
        if process.check().is_err() {
            return reading;
        }
        let is_own = |(key, act): (ProcessKey, Act)| (key == process).then_some(act);
        for socket in &self.emulated {
            reading.stopped.extend(emulated::stopped(socket).into_iter().filter_map(is_own));
        }
        for site in &self.amd {
            match amd::stopped(site) {
                Some(stopped) => reading.stopped.extend(stopped.into_iter().filter_map(is_own)),
                None if amd::uses(site, process.pid) => {
                    reading.unknown.push(Act::Amd(AmdAct::Pause { site: site.clone() }));
                }
                None => {}
            }
        }
        if self.use_nvidia
            && let Ok(found) = nvidia::survey::look(process.pid)
        {
            reading.unknown.extend(nvidia::act::stops(&found));
        }
        reading
    }

    /// Everything that devices say is stopped.
    pub fn stopped(&self) -> Vec<(ProcessKey, Act)> {
        let emulated = self.emulated.iter().flat_map(|socket| emulated::stopped(socket));
        let amd = self.amd.iter().flat_map(|site| amd::stopped(site).unwrap_or_default());
        emulated.chain(amd).collect()
    }
}

/// Whether a device has something stopped that none of these acts did.
pub fn is_stray(stopped: &Act, own: &[Act]) -> bool {
    // Where a whole process is read, any stop of ours on such devices explains it.
    let is_amd = |act: &Act| matches!(act, Act::Amd(_));
    let explains = |known: &Act| {
        known.concerns_the_same(stopped) || known.is_stop() && is_amd(known) && is_amd(stopped)
    };
    !own.iter().any(explains)
}

/// Sets a process right to which `own` was done: what its devices have stopped beyond that is
/// resumed. Nothing else may act on the process meanwhile.
///
/// # Errors
/// If a device refuses to resume it.
pub fn set_right(
    process: ProcessKey,
    own: &[Act],
    read: impl Fn() -> Reading,
) -> Result<Righted, ActError> {
    let strays = |reading: Reading| -> Vec<Act> {
        reading.stopped.into_iter().filter(|act| is_stray(act, own)).collect()
    };
    let reading = read();
    let unknown = reading.unknown.clone();
    let stopped = strays(reading);
    if !stopped.is_empty() {
        resume(process, &stopped)?;
        let until = Instant::now() + SHOWN_MAX;
        while !strays(read()).is_empty() {
            if Instant::now() >= until {
                return Ok(Righted::StillStopped);
            }
            std::thread::sleep(SHOWN_CHECK);
        }
        return Ok(Righted::Resumed);
    }
    if unknown.is_empty() || own.iter().any(Act::is_stop) {
        return Ok(Righted::Running);
    }
    resume(process, &unknown)?;
    Ok(Righted::Unknown)
}

fn resume(process: ProcessKey, acts: &[Act]) -> Result<(), ActError> {
    for act in acts {
        match act.on_device().perform(process, true) {
            Err(error) if !error.is_gone() => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emulated::act::EmulatedAct;

    fn stop(queue: u64) -> Act {
        Act::Emulated(EmulatedAct::Stop { socket: "/nonexistent/gpu".into(), instance: 1, queue })
    }

    const GONE: ProcessKey = ProcessKey { pid: u32::MAX, start_ticks: 1 };

    #[test]
    fn what_the_owner_stopped_itself_stays_stopped() {
        let reading = || Reading { stopped: vec![stop(1)], unknown: Vec::new() };
        assert_eq!(set_right(GONE, &[stop(1)], reading).unwrap(), Righted::Running);
        // The emulator is gone, so undoing succeeds and the reading stays.
        assert_eq!(set_right(GONE, &[stop(2)], reading).unwrap(), Righted::StillStopped);
        let once = std::cell::Cell::new(true);
        let reading = || Reading {
            stopped: if once.replace(false) { vec![stop(1)] } else { Vec::new() },
            unknown: Vec::new(),
        };
        assert_eq!(set_right(GONE, &[], reading).unwrap(), Righted::Resumed);
    }

    #[test]
    fn what_cannot_be_read_is_told_to_run_unless_the_owner_stopped_it() {
        let reading = || Reading { stopped: Vec::new(), unknown: vec![stop(1)] };
        assert_eq!(set_right(GONE, &[], reading).unwrap(), Righted::Unknown);
        assert_eq!(set_right(GONE, &[stop(9)], reading).unwrap(), Righted::Running);
        assert_eq!(set_right(GONE, &[], Reading::default).unwrap(), Righted::Running);
    }

    #[test]
    fn a_suspended_process_on_amd_devices_is_no_stray() {
        let site = SiteName::Kernel;
        let paused = Act::Amd(AmdAct::Pause { site: site.clone() });
        assert!(is_stray(&paused, &[Act::Amd(AmdAct::Session { site: site.clone() })]));
        assert!(!is_stray(&paused, &[Act::Amd(AmdAct::Suspend { site })]));
    }
}
