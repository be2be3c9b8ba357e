//! A long run of real processes on the emulated GPU: who stays, who comes and goes, and whether
//! memory, descriptors and results stay as they are.

mod cast;
mod usage;
mod verdict;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gpreempt_sim::prng::Prng;

use crate::nvidia::Programs;
use crate::results::{CaseInfo, Check, Measurement, ModeInfo, Status};
use crate::scratch::Scratch;
use cast::{Cast, Visitor};
use usage::Usage;

/// How often something changes and usage is read.
const ROUND: Duration = Duration::from_secs(1);
/// How often a visitor is exchanged for the next one: in rounds.
const VISIT: u64 = 5;
/// Levels of a class: online work stays in the high one and offline work in the low one, because
/// offline work of the high class never ends and would leave nothing to the low one.
const CLASS: u64 = 8;
/// The seed of all changes: a run of the same length makes the same.
const SEED: u64 = 7;

/// A run that is to be made.
#[derive(Debug)]
pub struct Stability {
    programs: Programs,
    folder: Scratch,
    stop: Arc<AtomicBool>,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// The numbers.
    pub measurement: Measurement,
    /// What must be so.
    pub checks: Vec<Check>,
}

/// What happened on the way.
#[derive(Debug, Default)]
struct Account {
    rounds: u64,
    visits: u64,
    changes: u64,
    refused: Vec<String>,
    failures: Vec<String>,
    daemon: Vec<Usage>,
    emulator: Vec<Usage>,
}

impl Stability {
    /// A run whose logs and sockets are in a folder of its own until it is over.
    ///
    /// # Errors
    /// If the folder cannot be made.
    pub fn new(stop: Arc<AtomicBool>) -> Result<Self, String> {
        Ok(Self { programs: Programs::find(), folder: Scratch::new("stability")?, stop })
    }

    /// What is missing for it, each in one sentence.
    pub fn missing(&self) -> Vec<String> {
        let programs = &self.programs;
        [
            ("gpreempt", programs.gpreempt.is_some()),
            ("gpreemptd", programs.daemon.is_some()),
            ("gpreempt-emu", programs.emulator.is_some()),
        ]
        .into_iter()
        .filter(|(_, is_there)| !is_there)
        .map(|(name, _)| format!("{name} is neither beside gpreempt nor in PATH"))
        .collect()
    }

    /// Makes it. `tell` hears now and then how much is left.
    ///
    /// # Errors
    /// If it cannot even begin, or somebody asks to stop.
    pub fn run(&self, length: Duration, tell: &mut dyn FnMut(Duration)) -> Result<Outcome, String> {
        let mut cast = Cast::start(&self.programs, &self.folder, length, &self.stop)?;
        let mut account = Account::default();
        let mut chance = Prng::new(SEED);
        let begin = Instant::now();
        let mut visitor: Option<Visitor> = None;
        while begin.elapsed() < length {
            // ORDERING: the flag stands for itself.
            if self.stop.load(Ordering::Relaxed) {
                return Err("stopped".to_owned());
            }
            tell(length.saturating_sub(begin.elapsed()));
            if account.rounds.is_multiple_of(VISIT) {
                account.failures.extend(visitor.take().and_then(|old| old.leave().err()));
                visitor = Some(cast.visitor(account.visits)?);
                account.visits += 1;
            }
            let changed = cast.change(chance.below(3), chance.below(CLASS));
            account.changes += 1;
            account.refused.extend(changed.err());
            account.daemon.extend(Usage::of(cast.daemon_pid()));
            account.emulator.extend(Usage::of(cast.emulator_pid()));
            account.failures.extend(cast.gone());
            account.rounds += 1;
            if !account.failures.is_empty() {
                break;
            }
            std::thread::sleep(ROUND.min(length.saturating_sub(begin.elapsed())));
        }
        account.failures.extend(visitor.take().and_then(|old| old.leave().err()));
        let ends = cast.end();
        Ok(verdict::outcome(&account, &ends, begin.elapsed()))
    }

    /// What reports say about it.
    pub fn case() -> CaseInfo {
        CaseInfo {
            name: "stability".into(),
            title: "Real processes on the emulated GPU for a long time".into(),
            loads: vec![
                "online: requests of 10 x 100us kernels, every 20ms".into(),
                "two offline programs: 4ms kernels, back to back".into(),
                "visitors: an offline program for 5 s, then the next".into(),
                "every second, a priority changes".into(),
            ],
            point: None,
        }
    }

    /// The one way in which it is made.
    pub fn mode() -> ModeInfo {
        let title = "gpreemptd on the emulated GPU, real processes".into();
        ModeInfo { name: "daemon".into(), title, alone: None }
    }
}

/// A measurement without anything in it.
fn empty(took: Duration) -> Measurement {
    Measurement {
        case: "stability".into(),
        mode: "daemon".into(),
        repetition: 0,
        seed: SEED,
        took_s: took.as_secs_f64(),
        status: Status::Ok,
        lc: None,
        be: None,
        loads: Vec::new(),
        numbers: Vec::new(),
        time_line: None,
    }
}
