//! Everybody who takes part, and the loop that kills them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use gpreempt_device::journal::Journal;

use super::actor::End;
use super::chance::Chance;
use super::client::{Client, Target};
use super::daemon::Daemon;
use super::gpu::{Gpu, KINDS};
use super::load::{Load, Role};
use super::scene::Scene;
use super::tally::Tally;
use super::victim::Victim;
use super::watch::Watch;
use super::{Plan, commit, end, orphans};

/// The longest time between two kills.
const GAP_MAX: Duration = Duration::from_millis(90);
/// The longest time until somebody who was killed is started again.
const PAUSE_MAX: Duration = Duration::from_millis(150);
/// How long the loop sleeps at the most.
const TICK: Duration = Duration::from_millis(3);
/// How often it says how far it is.
const REPORT: Duration = Duration::from_secs(5);
/// After so many kills everybody gets a pause, in which all must come in order.
const KILLS_BETWEEN_PAUSES: u64 = 500;
/// How long a kill may take on average before something must be wrong with the loop itself.
const KILL_MAX: Duration = Duration::from_secs(2);
/// The same for the beginning and the end.
const REST_MAX: Duration = Duration::from_secs(120);

/// The stage.
#[derive(Debug)]
pub(super) struct Stage<'a> {
    pub(super) scene: &'a Scene,
    plan: Plan,
    chance: Chance,
    pub(super) daemon: Daemon,
    pub(super) gpus: Vec<Gpu>,
    pub(super) loads: Vec<Load>,
    clients: Vec<Client>,
    pub(super) watch: Watch,
    pub(super) tally: Tally,
    /// Whether those who end are replaced.
    pub(super) goes_on: bool,
    begun: Instant,
    kill_at: Instant,
    reported: Instant,
}

impl<'a> Stage<'a> {
    pub(super) fn new(scene: &'a Scene, plan: Plan) -> anyhow::Result<Self> {
        orphans::take_in()?;
        let journal = Journal::at(scene.state())?;
        let gpus: Vec<Gpu> = KINDS.iter().map(|kind| Gpu::new(scene, *kind)).collect();
        let roles = [Role::BestEffort, Role::BestEffort, Role::LatencyCritical];
        let loads = (0..gpus.len()).flat_map(|gpu| roles.map(|role| Load::new(role, gpu)));
        let now = Instant::now();
        Ok(Self {
            scene,
            plan,
            chance: Chance::new(plan.seed),
            daemon: Daemon::new(),
            loads: loads.collect(),
            gpus,
            clients: Vec::new(),
            watch: Watch::new(journal, plan.stopped_max),
            tally: Tally::new(plan.seed, commit::name()),
            goes_on: true,
            begun: now,
            kill_at: now,
            reported: now,
        })
    }

    /// The whole play: everybody comes, is killed again and again, and ends.
    pub(super) fn play(&mut self) -> anyhow::Result<()> {
        self.settle()?;
        let mut pause_at = KILLS_BETWEEN_PAUSES;
        while self.tally.kills < self.plan.kills && !self.is_over() {
            self.tick()?;
            if Instant::now() >= self.kill_at {
                self.kill_somebody()?;
                self.kill_at = Instant::now() + self.chance.up_to(GAP_MAX);
            }
            if self.tally.kills >= pause_at {
                pause_at += KILLS_BETWEEN_PAUSES;
                self.settle()?;
            }
        }
        if !self.is_over() {
            self.settle()?;
            self.finish()?;
        }
        Ok(())
    }

    /// What came of it.
    pub(super) fn into_tally(mut self) -> Tally {
        self.tally.time = self.begun.elapsed();
        self.tally.daemons = self.daemon.starts;
        self.tally.emulators = self.gpus.iter().map(|gpu| gpu.starts).sum();
        self.tally.worst_stopped = self.watch.worst();
        self.tally.looks = self.watch.looks;
        self.tally.looks_with_stops = self.watch.looks_with_stops;
        let said = self.daemon.said();
        if !self.tally.is_good() {
            self.tally.fail(format!("the daemons said last:\n{said}"));
        }
        self.tally
    }

    fn is_over(&mut self) -> bool {
        let kills = u32::try_from(self.plan.kills).unwrap_or(u32::MAX);
        if self.begun.elapsed() > KILL_MAX.saturating_mul(kills).saturating_add(REST_MAX) {
            self.tally.fail("the loop takes far too long".to_owned());
            return true;
        }
        self.tally.is_hopeless()
    }

    /// Looks after everybody once, and sleeps a little.
    pub(super) fn tick(&mut self) -> anyhow::Result<()> {
        self.take_ends()?;
        if self.goes_on {
            self.start_whoever_is_missing()?;
        }
        for problem in self.watch.look(&mut self.gpus, self.daemon.living()) {
            self.tally.fail(problem);
        }
        let is_beside_stops = self.watch.stopped > 0;
        for client in &mut self.clients {
            let kills = u64::from(client.kill_if_due());
            self.tally.count_kills(Victim::Client, kills, is_beside_stops);
        }
        self.report();
        let now = Instant::now();
        let client = self.clients.iter().filter_map(|client| client.kill_at).min();
        let next = client.unwrap_or(now + TICK).min(self.kill_at).min(now + TICK);
        std::thread::sleep(next.saturating_duration_since(now).max(Duration::from_millis(1)));
        Ok(())
    }

    fn start_whoever_is_missing(&mut self) -> anyhow::Result<()> {
        for gpu in &mut self.gpus {
            gpu.keep_up(self.scene)?;
        }
        self.daemon.keep_up(self.scene, &self.gpus)?;
        for load in &mut self.loads {
            load.keep_up(self.scene, &self.gpus[load.gpu], &mut self.chance)?;
        }
        Ok(())
    }

    /// Takes note of everybody who has ended, and judges how.
    fn take_ends(&mut self) -> anyhow::Result<()> {
        if let Some(end) = self.daemon.end()?
            && !end.was_killed
            && (self.goes_on || !end.status.success())
        {
            let End { status, err, .. } = end;
            self.tally.fail(format!("the daemon ended by itself with {status}: {err}"));
        }
        for gpu in &mut self.gpus {
            if let Some(end) = gpu.end()?
                && !end.was_killed
                && (self.goes_on || !end.status.success())
            {
                let name = gpu.name();
                self.tally.fail(format!("{name} ended with {}: {}", end.status, end.err));
            }
        }
        for load in &mut self.loads {
            let Some((end, facts)) = load.end(&self.gpus[load.gpu])? else {
                if let Some(problem) = load.overdue() {
                    self.tally.fail(problem);
                    load.kill();
                }
                continue;
            };
            load.replace_after(self.chance.pause(PAUSE_MAX));
            match end::of_load(&end, facts) {
                Ok(end) => self.tally.count_load(end),
                Err(problem) => self.tally.fail(problem),
            }
        }
        self.take_ends_of_clients()?;
        orphans::look_after(&self.known());
        Ok(())
    }

    fn take_ends_of_clients(&mut self) -> anyhow::Result<()> {
        for mut client in std::mem::take(&mut self.clients) {
            let Some(end) = client.end()? else {
                match client.overdue() {
                    Some(problem) => self.tally.fail(problem),
                    None => self.clients.push(client),
                }
                continue;
            };
            match end::of_client(&end) {
                Ok(end) => self.tally.count_client(end),
                Err(problem) => self.tally.fail(problem),
            }
        }
        Ok(())
    }

    /// Children of our own, as opposed to orphans that came to us.
    pub(super) fn known(&self) -> BTreeSet<u32> {
        let mut known: BTreeSet<u32> = self.daemon.pid().into_iter().collect();
        known.extend(self.gpus.iter().filter_map(Gpu::pid));
        known.extend(self.loads.iter().filter_map(Load::pid));
        known.extend(self.clients.iter().map(Client::pid));
        known
    }

    /// Whether commands are still under way.
    pub(super) fn has_clients(&self) -> bool {
        !self.clients.is_empty()
    }

    fn kill_somebody(&mut self) -> anyhow::Result<()> {
        let victim = self.chance.victim();
        let pause = self.chance.pause(PAUSE_MAX);
        // Somebody asks for something all the time, and is left alone.
        if self.chance.once_in(4)
            && let Some(target) = self.target()
        {
            self.clients.push(Client::start(self.scene, target, &mut self.chance)?);
        }
        let kills = match victim {
            Victim::Daemon => u64::from(self.daemon.kill(pause)),
            Victim::Keeper => self.daemon.kill_keeper(None),
            Victim::DaemonAndKeeper => self.daemon.kill_keeper(Some(pause)),
            Victim::BestEffort => self.kill_load(&[Role::BestEffort]),
            Victim::LatencyCritical => self.kill_load(&[Role::LatencyCritical]),
            Victim::DaemonAndLoad => {
                let loads = self.kill_load(&[Role::BestEffort, Role::LatencyCritical]);
                loads + u64::from(self.daemon.kill(pause))
            }
            Victim::Client => {
                self.start_doomed_client()?;
                0
            }
            Victim::Emulator => {
                let index = self.chance.between(0, 1);
                let gpu = usize::try_from(index).ok().and_then(|index| self.gpus.get_mut(index));
                u64::from(gpu.is_some_and(|gpu| gpu.kill(pause)))
            }
        };
        self.tally.count_kills(victim, kills, self.watch.stopped > 0);
        Ok(())
    }

    fn kill_load(&mut self, roles: &[Role]) -> u64 {
        let is_meant = |load: &Load| load.pid().is_some() && roles.contains(&load.role);
        let meant: Vec<usize> =
            (0..self.loads.len()).filter(|index| is_meant(&self.loads[*index])).collect();
        let chosen = self.chance.pick(&meant);
        u64::from(chosen.is_some_and(|index| self.loads[index].kill()))
    }

    fn start_doomed_client(&mut self) -> anyhow::Result<()> {
        let Some(target) = self.target() else { return Ok(()) };
        let gpu = &self.gpus[0];
        self.clients.push(Client::start_doomed(self.scene, target, gpu, &mut self.chance)?);
        Ok(())
    }

    /// A process to ask something about.
    fn target(&mut self) -> Option<Target> {
        let targets = self.loads.iter().filter_map(|load| {
            let Load { role, .. } = *load;
            load.pid().map(|pid| Target { pid, role })
        });
        self.chance.pick(&targets.collect::<Vec<_>>())
    }

    fn report(&mut self) {
        if self.reported.elapsed() < REPORT {
            return;
        }
        self.reported = Instant::now();
        let seconds = self.begun.elapsed().as_secs().max(1);
        let (done, all) = (self.tally.kills, self.plan.kills);
        let left = all.saturating_sub(done) * seconds / done.max(1);
        let (rate, worst) = (done / seconds, self.watch.worst());
        eprintln!(
            "{done} of {all} kills, {rate}/s, about {left} s left, stopped by nobody for {worst:?} \
             at the most, {} failures",
            self.tally.failures.len()
        );
    }
}
