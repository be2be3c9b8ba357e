//! The stability run (`gpreempt bench --long`): real processes on the emulated GPU for a long time,
//! with checks of memory, descriptors, progress and results.

mod checks;
mod processes;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gpreempt_sim::prng::Prng;
use tempfile::TempDir;

use crate::child::{Child, temp_folder};
use crate::nvidia::Programs;
use crate::results::{CaseInfo, Check, Measurement, ModeInfo};
use checks::Usage;
use processes::{Processes, end_transient};

/// How often a priority changes and memory is read.
const ROUND: Duration = Duration::from_secs(1);
/// Rounds after which the transient load is replaced.
const TRANSIENT_ROUNDS: u64 = 5;
/// Levels of a class. Online work stays in the high class and offline work in the low one: offline
/// work never ends, so in the high class it would starve the low one.
const CLASS: u64 = 8;
/// The seed of all changes.
const SEED: u64 = 7;

#[derive(Debug)]
pub struct Stability {
    programs: Programs,
    folder: TempDir,
    stop: Arc<AtomicBool>,
}

#[derive(Debug)]
pub struct Outcome {
    pub measurement: Measurement,
    pub checks: Vec<Check>,
}

/// What happened during the run.
#[derive(Debug, Default)]
struct RunCounts {
    rounds: u64,
    transients: u64,
    changes: u64,
    refused: Vec<String>,
    failures: Vec<String>,
    daemon: Vec<Usage>,
    emulator: Vec<Usage>,
}

impl Stability {
    /// A run with a new folder for its logs and sockets.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn new(stop: Arc<AtomicBool>) -> Result<Self, String> {
        Ok(Self { programs: Programs::find(), folder: temp_folder("stability")?, stop })
    }

    /// The programs that are missing, each in one line.
    pub fn missing(&self) -> Vec<String> {
        self.programs.missing_own()
    }

    /// Runs it. `tell` gets the remaining time in every round.
    ///
    /// # Errors
    /// If a program cannot be started, or the run is stopped.
    pub fn run(&self, length: Duration, tell: &mut dyn FnMut(Duration)) -> Result<Outcome, String> {
        let mut processes =
            Processes::start(&self.programs, self.folder.path(), length, &self.stop)?;
        let mut account = RunCounts::default();
        let mut chance = Prng::new(SEED);
        let begin = Instant::now();
        let mut transient: Option<Child> = None;
        while begin.elapsed() < length {
            // ORDERING: an independent flag.
            if self.stop.load(Ordering::Relaxed) {
                return Err("stopped".to_owned());
            }
            tell(length.saturating_sub(begin.elapsed()));
            if account.rounds.is_multiple_of(TRANSIENT_ROUNDS) {
                account.failures.extend(transient.take().and_then(|old| end_transient(old).err()));
                transient = Some(processes.transient(account.transients)?);
                account.transients += 1;
            }
            let changed = processes.change(chance.below(3), chance.below(CLASS));
            account.changes += 1;
            account.refused.extend(changed.err());
            account.daemon.extend(Usage::of(processes.daemon.child.pid()));
            account.emulator.extend(Usage::of(processes.emulator.pid()));
            account.failures.extend(processes.gone());
            account.rounds += 1;
            if !account.failures.is_empty() {
                break;
            }
            std::thread::sleep(ROUND.min(length.saturating_sub(begin.elapsed())));
        }
        account.failures.extend(transient.take().and_then(|old| end_transient(old).err()));
        let ends = processes.end();
        Ok(checks::outcome(&account, &ends, begin.elapsed()))
    }

    pub fn case() -> CaseInfo {
        CaseInfo {
            name: "stability".into(),
            title: "Real processes on the emulated GPU for a long time".into(),
            loads: vec![
                "online: requests of 10 x 100us kernels, every 20ms".into(),
                "two offline programs: 4ms kernels, back to back".into(),
                "transient loads: an offline program for 5 s, then the next".into(),
                "every second, a priority changes".into(),
            ],
            point: None,
        }
    }

    pub fn mode() -> ModeInfo {
        let title = "gpreemptd on the emulated GPU, real processes".into();
        ModeInfo { name: "daemon".into(), title, alone: None }
    }
}

fn empty(took: Duration) -> Measurement {
    Measurement {
        case: "stability".into(),
        mode: "daemon".into(),
        seed: SEED,
        took_s: took.as_secs_f64(),
        ..Measurement::default()
    }
}
