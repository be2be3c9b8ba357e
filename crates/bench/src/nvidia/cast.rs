//! The processes of a case: they start once and stay for all its measurements.
//!
//! Between rounds they have a context and nothing to do, and a context that has nothing to do
//! takes no time of the device. So those that are clients of MPS and those that are not can both
//! be there; only one cast is at work at a time.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::Nvidia;
use super::actor::Actor;
use super::mode::Family;
use super::mps::Mps;
use crate::plan::Step;
use crate::results::Role;
use crate::round::Round;
use crate::suite::{Load, Work};

/// How long processes have to leave before they are killed.
const LEAVE: Duration = Duration::from_secs(5);
/// How often it is looked whether they have.
const LOOK: Duration = Duration::from_millis(10);

/// Processes that are measured together. Who is ended first is named first.
#[derive(Debug)]
pub(super) struct Cast {
    pub(super) actors: Vec<Actor>,
    /// The server outlives its clients.
    _mps: Option<Mps>,
    case: String,
    family: Family,
    pub(super) folder: PathBuf,
    rounds: u64,
}

impl Nvidia {
    /// The cast of a case, started if it is not there. Those of other cases leave.
    ///
    /// Whoever takes it gives it back with [`Self::keep`] if all went well.
    pub(super) fn cast(&mut self, step: &Step<'_>, family: Family) -> Result<Cast, String> {
        self.casts.retain(|cast| cast.case == step.case.name);
        let place = self.casts.iter().position(|cast| cast.family == family);
        if let Some(place) = place {
            let mut cast = self.casts.swap_remove(place);
            if cast.actors.iter_mut().all(|actor| actor.child.gone().is_none()) {
                return Ok(cast);
            }
        }
        self.start_casts(step, family)
    }

    /// Lets the clients of MPS leave; they start anew for their next measurement.
    pub(super) fn dismiss_mps(&mut self) {
        self.casts.retain(|cast| cast.family == Family::Plain);
    }

    /// Keeps a cast for the next measurement.
    pub(super) fn keep(&mut self, cast: Cast) {
        self.casts.push(cast);
    }

    /// Starts the cast of a family, and with it those of others that take long to start.
    fn start_casts(&mut self, step: &Step<'_>, family: Family) -> Result<Cast, String> {
        let mut cast = self.start_cast(step, family)?;
        // Whoever cannot be started early is started again when it is needed, and fails then.
        let early: Vec<Cast> = self
            .early_families(step, family)
            .into_iter()
            .filter_map(|family| self.start_cast(step, family).ok())
            .collect();
        cast.wait_until_ready(self)?;
        for mut cast in early {
            if cast.wait_until_ready(self).is_ok() {
                self.casts.push(cast);
            }
        }
        Ok(cast)
    }

    /// The families that start with this one: only PyTorch takes so long that it matters, and
    /// its programs measure nothing while they start.
    fn early_families(&self, step: &Step<'_>, family: Family) -> Vec<Family> {
        let is_torch = |load: &Load| matches!(load.work, Work::Torch(_));
        if !step.case.loads.iter().all(is_torch) {
            return Vec::new();
        }
        let is_missing = |other: &Family| {
            *other != family && self.casts.iter().all(|cast| cast.family != *other)
        };
        let expected = self.expected.get(&step.case.name);
        expected.into_iter().flatten().copied().filter(is_missing).collect()
    }

    /// Starts the processes of a family; the last ones are not ready yet.
    fn start_cast(&mut self, step: &Step<'_>, family: Family) -> Result<Cast, String> {
        self.cast_count += 1;
        let folder = self.scratch.join(format!("cast-{}", self.cast_count));
        std::fs::create_dir_all(&folder)
            .map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
        let mps = match family {
            Family::Plain => None,
            Family::Mps | Family::MpsPriority => {
                Some(Mps::start(&self.programs, &folder.join("mps"), &self.stop)?)
            }
        };
        let case = step.case.name.clone();
        let mut cast = Cast { actors: Vec::new(), _mps: mps, case, family, folder, rounds: 0 };
        let is_probed = step.case.probed;
        for (index, load) in step.case.loads.iter().enumerate() {
            // A kernel is measured with nobody beside who does anything.
            let is_unknown = Actor::is_unknown(self, load, is_probed);
            if is_unknown {
                cast.wait_until_ready(self)?;
            }
            let environment = cast.environment(load);
            let actor = Actor::start(self, load, index, is_probed, &cast.folder, environment)?;
            cast.actors.push(actor);
            if is_unknown {
                cast.wait_until_ready(self)?;
            }
        }
        Ok(cast)
    }
}

impl Cast {
    /// What a process finds around it.
    fn environment(&self, load: &Load) -> Vec<(String, String)> {
        let Some(mps) = &self._mps else { return Vec::new() };
        let below = u8::from(load.role == Role::Be);
        mps.client((self.family == Family::MpsPriority).then_some(below))
    }

    fn wait_until_ready(&mut self, nvidia: &mut Nvidia) -> Result<(), String> {
        self.actors.iter_mut().try_for_each(|actor| actor.wait_until_ready(nvidia))
    }

    /// The next round, not yet told to anybody.
    pub(super) fn next_round(&mut self, seconds: u64, seed: u64) -> Round {
        self.rounds += 1;
        Round { round: self.rounds, seconds, seed, hints: None }
    }

    /// Those who take part in a round: everybody, or those of one role.
    pub(super) fn members(&mut self, only: Option<Role>) -> impl Iterator<Item = &mut Actor> {
        self.actors.iter_mut().filter(move |actor| only.is_none_or(|role| actor.load.role == role))
    }
}

impl Drop for Cast {
    /// All leave at once; whoever does not is killed.
    fn drop(&mut self) {
        self.actors.iter_mut().for_each(|actor| actor.child.hang_up());
        let begin = Instant::now();
        while begin.elapsed() < LEAVE
            && self.actors.iter_mut().any(|actor| actor.child.gone().is_none())
        {
            std::thread::sleep(LOOK);
        }
    }
}
