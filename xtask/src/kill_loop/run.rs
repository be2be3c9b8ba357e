//! All processes that take part, and the loop that kills them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use gpreempt_device::journal::Journal;

use super::chance::Chance;
use super::client::{Client, Target};
use super::end::OwnerEnd;
use super::gpu::{Gpu, KINDS};
use super::load::{Load, Role};
use super::owner::Owner;
use super::site::Site;
use super::tally::Tally;
use super::victim::Victim;
use super::watch::Watch;
use super::{Plan, commit, end, orphans};

/// The longest time between two kills.
const GAP_MAX: Duration = Duration::from_millis(90);
/// The longest time until a process that was killed is started again.
const PAUSE_MAX: Duration = Duration::from_millis(150);
/// How long the loop sleeps at the most.
const TICK: Duration = Duration::from_millis(3);
/// How often it says how far it is.
const REPORT: Duration = Duration::from_secs(5);
/// After that many kills nothing is killed until everything is in order again.
const KILLS_BETWEEN_PAUSES: u64 = 500;
/// How long a kill may take on average before something must be wrong with the loop itself.
const KILL_MAX: Duration = Duration::from_secs(2);
/// The same for the beginning and the end.
const REST_MAX: Duration = Duration::from_secs(120);

/// The loop.
#[derive(Debug)]
pub(super) struct KillLoop<'a> {
    pub(super) site: &'a Site,
    plan: Plan,
    chance: Chance,
    pub(super) owner: Owner,
    pub(super) gpus: Vec<Gpu>,
    pub(super) loads: Vec<Load>,
    clients: Vec<Client>,
    /// The pids of all commands so far: a process that may not schedule beside one names it.
    commands: BTreeSet<u32>,
    pub(super) watch: Watch,
    pub(super) tally: Tally,
    /// Whether processes that end are replaced.
    pub(super) goes_on: bool,
    begun: Instant,
    kill_at: Instant,
    reported: Instant,
}

impl<'a> KillLoop<'a> {
    pub(super) fn new(site: &'a Site, plan: Plan) -> anyhow::Result<Self> {
        orphans::take_in()?;
        let journal = Journal::at(site.stage.state())?;
        let specs = site.emulators.iter().cloned();
        let gpus: Vec<Gpu> =
            KINDS.iter().zip(specs).map(|(kind, spec)| Gpu::new(*kind, spec)).collect();
        let roles = [Role::BestEffort, Role::BestEffort, Role::LatencyCritical];
        let loads = (0..gpus.len()).flat_map(|gpu| roles.map(|role| Load::new(role, gpu)));
        let now = Instant::now();
        Ok(Self {
            site,
            plan,
            chance: Chance::new(plan.seed),
            owner: Owner::new(),
            loads: loads.collect(),
            gpus,
            clients: Vec::new(),
            commands: BTreeSet::new(),
            watch: Watch::new(journal, plan.stopped_max),
            tally: Tally::new(plan.seed, site.mode, commit::name()),
            goes_on: true,
            begun: now,
            kill_at: now,
            reported: now,
        })
    }

    /// The whole loop: all processes start, are killed again and again, and end.
    pub(super) fn run(&mut self) -> anyhow::Result<()> {
        self.settle()?;
        let mut pause_at = KILLS_BETWEEN_PAUSES;
        while self.tally.kills < self.plan.kills && !self.is_over() {
            self.tick()?;
            if Instant::now() >= self.kill_at {
                self.kill_one()?;
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
        self.tally.owners = self.owner.starts;
        self.tally.emulators = self.gpus.iter().map(|gpu| gpu.starts).sum();
        self.tally.worst_stopped = self.watch.worst();
        self.tally.looks = self.watch.looks;
        self.tally.looks_with_stops = self.watch.looks_with_stops;
        let said = self.owner.said();
        if !self.tally.is_good() {
            self.tally.fail(format!("the scheduling processes printed last:\n{said}"));
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

    /// Looks after all processes once, and sleeps a little.
    pub(super) fn tick(&mut self) -> anyhow::Result<()> {
        self.take_ends()?;
        if self.goes_on {
            self.start_missing()?;
        }
        // A command may schedule in its own process while no other process does.
        let owners = self.owner.living().into_iter();
        let owners = owners.chain(self.clients.iter().filter_map(Client::living)).collect();
        for problem in self.watch.look(&mut self.gpus, &owners) {
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

    fn start_missing(&mut self) -> anyhow::Result<()> {
        for gpu in &mut self.gpus {
            gpu.keep_up(self.site)?;
        }
        self.owner.keep_up(self.site, &self.loads)?;
        for load in &mut self.loads {
            load.keep_up(self.site, &self.gpus[load.gpu], &mut self.chance)?;
        }
        Ok(())
    }

    /// Takes note of every process that has ended, and judges how.
    fn take_ends(&mut self) -> anyhow::Result<()> {
        self.take_end_of_owner()?;
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

    fn take_end_of_owner(&mut self) -> anyhow::Result<()> {
        if let Some(problem) = self.owner.overdue() {
            self.tally.fail(problem);
        }
        let Some((end, facts)) = self.owner.end()? else { return Ok(()) };
        let words = end.err.split(|char: char| !char.is_ascii_digit());
        let mut pids = words.filter_map(|word| word.parse().ok());
        let names_command = pids.any(|pid: u32| self.commands.contains(&pid));
        match end::of_owner(&end, self.site.mode, facts, names_command) {
            Ok(end) => {
                self.tally.count_owner(end);
                if matches!(end, OwnerEnd::Over | OwnerEnd::Refused) {
                    self.owner.replace_after(self.chance.pause(PAUSE_MAX));
                }
            }
            Err(problem) => {
                self.tally.fail(problem);
                self.owner.replace_after(PAUSE_MAX);
            }
        }
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
        let mut known: BTreeSet<u32> = self.owner.pid().into_iter().collect();
        known.extend(self.gpus.iter().filter_map(Gpu::pid));
        known.extend(self.loads.iter().filter_map(Load::pid));
        known.extend(self.clients.iter().map(Client::pid));
        known
    }

    /// Whether commands are still under way.
    pub(super) fn has_clients(&self) -> bool {
        !self.clients.is_empty()
    }

    fn kill_one(&mut self) -> anyhow::Result<()> {
        let victim = self.chance.victim(self.site.mode);
        let pause = self.chance.pause(PAUSE_MAX);
        // Commands come all the time; some are not killed.
        if self.chance.once_in(4)
            && let Some(target) = self.target()
        {
            let client = Client::start(self.site, target, &mut self.chance)?;
            self.add_client(client);
        }
        let kills = match victim {
            Victim::Owner => u64::from(self.owner.kill(pause)),
            Victim::Keeper => self.owner.kill_keeper(None),
            Victim::OwnerAndKeeper => self.owner.kill_keeper(Some(pause)),
            Victim::Interrupt => u64::from(self.owner.interrupt(pause)),
            Victim::BestEffort => self.kill_load(&[Role::BestEffort]),
            Victim::LatencyCritical => self.kill_load(&[Role::LatencyCritical]),
            Victim::OwnerAndLoad => {
                let loads = self.kill_load(&[Role::BestEffort, Role::LatencyCritical]);
                loads + u64::from(self.owner.kill(pause))
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
        let client = Client::start_doomed(self.site, target, gpu, &mut self.chance)?;
        self.add_client(client);
        Ok(())
    }

    fn add_client(&mut self, client: Client) {
        self.commands.insert(client.pid());
        self.clients.push(client);
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
            "{done} of {all} kills, {rate}/s, about {left} s left, stopped by a dead process for \
             {worst:?} at the most, {} failures",
            self.tally.failures.len()
        );
    }
}
