//! The loop itself: starts every process, kills one after the other, waits for recovery in between,
//! and ends all of them at the end.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use gpreempt_device::journal::Journal;
use gpreempt_wire::statistics::Snapshot;

use super::checks::OrphanCheck;
use super::choices::{RandomChoices, Victim};
use super::exits::OwnerEnd;
use super::gpus::{Gpu, KINDS, Load, LoadRole};
use super::processes::{CommandProcess, Owner, Target};
use super::results::Results;
use super::setup::LoopSetup;
use super::{Plan, checks, exits};
use crate::process;

/// The longest time between two kills.
const GAP_MAX: Duration = Duration::from_millis(90);
/// The longest time until a process that was killed is started again.
const PAUSE_MAX: Duration = Duration::from_millis(150);
/// How long the loop sleeps at the most.
const TICK: Duration = Duration::from_millis(3);
/// How often progress is printed.
const REPORT: Duration = Duration::from_secs(5);
/// After that many kills the loop waits for recovery.
const KILLS_BETWEEN_PAUSES: u64 = 500;
/// How long a kill may take on average before something must be wrong with the loop itself.
const KILL_MAX: Duration = Duration::from_secs(2);
/// The same for the beginning and the end.
const REST_MAX: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(super) struct KillLoop<'a> {
    pub(super) setup: &'a LoopSetup,
    plan: Plan,
    choices: RandomChoices,
    pub(super) owner: Owner,
    pub(super) gpus: Vec<Gpu>,
    pub(super) loads: Vec<Load>,
    clients: Vec<CommandProcess>,
    /// The pids of all commands so far: a process that may not schedule beside one names it.
    commands: BTreeSet<u32>,
    pub(super) watch: OrphanCheck,
    pub(super) results: Results,
    pub(super) is_replacing: bool,
    begun: Instant,
    kill_at: Instant,
    reported: Instant,
}

impl<'a> KillLoop<'a> {
    pub(super) fn new(setup: &'a LoopSetup, plan: Plan) -> anyhow::Result<Self> {
        checks::adopt_orphans()?;
        let journal = Journal::at(setup.stage.state())?;
        let specs = setup.emulators.iter().cloned();
        let gpus: Vec<Gpu> =
            KINDS.iter().zip(specs).map(|(kind, spec)| Gpu::new(*kind, spec)).collect();
        let roles = [LoadRole::BestEffort, LoadRole::BestEffort, LoadRole::LatencyCritical];
        let loads = (0..gpus.len()).flat_map(|gpu| roles.map(|role| Load::new(role, gpu)));
        let now = Instant::now();
        Ok(Self {
            setup,
            plan,
            choices: RandomChoices::new(plan.seed),
            owner: Owner::new(),
            loads: loads.collect(),
            gpus,
            clients: Vec::new(),
            commands: BTreeSet::new(),
            watch: OrphanCheck::new(journal, plan.stopped_max),
            results: Results::new(plan.seed, setup.mode, process::commit()),
            is_replacing: true,
            begun: now,
            kill_at: now,
            reported: now,
        })
    }

    /// The whole loop: all processes start, are killed again and again, and end.
    pub(super) fn run(&mut self) -> anyhow::Result<()> {
        self.wait_for_recovery()?;
        let mut pause_at = KILLS_BETWEEN_PAUSES;
        while self.results.kills < self.plan.kills && !self.is_over() {
            self.tick()?;
            if Instant::now() >= self.kill_at {
                self.kill_one()?;
                self.kill_at = Instant::now() + self.choices.up_to(GAP_MAX);
            }
            if self.results.kills >= pause_at {
                pause_at += KILLS_BETWEEN_PAUSES;
                self.wait_for_recovery()?;
            }
        }
        if !self.is_over() {
            self.wait_for_recovery()?;
            self.finish()?;
        }
        Ok(())
    }

    pub(super) fn into_results(mut self) -> Results {
        self.results.time = self.begun.elapsed();
        self.results.owners = self.owner.starts;
        self.results.emulators = self.gpus.iter().map(|gpu| gpu.starts).sum();
        self.results.worst_stopped = self.watch.worst();
        self.results.looks = self.watch.looks;
        self.results.looks_with_stops = self.watch.looks_with_stops;
        let said = self.owner.said();
        if !self.results.is_good() {
            self.results.fail(format!("the scheduling processes printed last:\n{said}"));
        }
        self.results
    }

    fn is_over(&mut self) -> bool {
        let kills = u32::try_from(self.plan.kills).unwrap_or(u32::MAX);
        if self.begun.elapsed() > KILL_MAX.saturating_mul(kills).saturating_add(REST_MAX) {
            self.results.fail("the loop takes far too long".to_owned());
            return true;
        }
        self.results.is_failed_for_good()
    }

    /// Checks and restarts processes once, and sleeps until the next event.
    pub(super) fn tick(&mut self) -> anyhow::Result<()> {
        self.take_ends()?;
        if self.is_replacing {
            self.start_missing()?;
        }
        // A command may schedule in its own process while no other process does.
        let owners = self.owner.living().into_iter();
        let owners = owners.chain(self.clients.iter().filter_map(CommandProcess::living)).collect();
        for problem in self.watch.look(&mut self.gpus, &owners) {
            self.results.fail(problem);
        }
        let is_beside_stops = self.watch.stopped > 0;
        for client in &mut self.clients {
            let kills = u64::from(client.kill_if_due());
            self.results.count_kills(Victim::Client, kills, is_beside_stops);
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
            gpu.keep_up(self.setup)?;
        }
        self.owner.keep_up(self.setup, &self.loads)?;
        for load in &mut self.loads {
            load.keep_up(self.setup, &self.gpus[load.gpu], &mut self.choices)?;
        }
        Ok(())
    }

    /// Collects every process that has ended, and checks how it ended.
    fn take_ends(&mut self) -> anyhow::Result<()> {
        self.take_end_of_owner()?;
        for gpu in &mut self.gpus {
            if let Some(end) = gpu.end()?
                && !end.was_killed
                && (self.is_replacing || !end.status.success())
            {
                let name = gpu.name();
                self.results.fail(format!("{name} ended with {}: {}", end.status, end.err));
            }
        }
        for load in &mut self.loads {
            let Some((end, facts)) = load.end(&self.gpus[load.gpu])? else {
                if let Some(problem) = load.overdue() {
                    self.results.fail(problem);
                    load.kill();
                }
                continue;
            };
            load.replace_after(self.choices.pause(PAUSE_MAX));
            match exits::of_load(&end, facts) {
                Ok(end) => self.results.count_load(end),
                Err(problem) => self.results.fail(problem),
            }
        }
        self.take_ends_of_clients()?;
        checks::reap_orphans(&self.known());
        Ok(())
    }

    fn take_end_of_owner(&mut self) -> anyhow::Result<()> {
        if let Some(problem) = self.owner.overdue() {
            self.results.fail(problem);
        }
        let Some((end, facts)) = self.owner.end()? else { return Ok(()) };
        let words = end.err.split(|char: char| !char.is_ascii_digit());
        let mut pids = words.filter_map(|word| word.parse().ok());
        let names_command = pids.any(|pid: u32| self.commands.contains(&pid));
        match exits::of_owner(&end, self.setup.mode, facts, names_command) {
            Ok(end) => {
                self.results.count_owner(end);
                if matches!(end, OwnerEnd::Over | OwnerEnd::Refused) {
                    self.owner.replace_after(self.choices.pause(PAUSE_MAX));
                }
            }
            Err(problem) => {
                self.results.fail(problem);
                self.owner.replace_after(PAUSE_MAX);
            }
        }
        Ok(())
    }

    fn take_ends_of_clients(&mut self) -> anyhow::Result<()> {
        for mut client in std::mem::take(&mut self.clients) {
            let Some(end) = client.end()? else {
                match client.overdue() {
                    Some(problem) => self.results.fail(problem),
                    None => self.clients.push(client),
                }
                continue;
            };
            match exits::of_client(&end) {
                Ok(end) => self.results.count_client(end),
                Err(problem) => self.results.fail(problem),
            }
        }
        Ok(())
    }

    /// The children that the loop started itself, as opposed to adopted orphans.
    pub(super) fn known(&self) -> BTreeSet<u32> {
        let mut known: BTreeSet<u32> = self.owner.pid().into_iter().collect();
        known.extend(self.gpus.iter().filter_map(Gpu::pid));
        known.extend(self.loads.iter().filter_map(Load::pid));
        known.extend(self.clients.iter().map(CommandProcess::pid));
        known
    }

    pub(super) fn has_clients(&self) -> bool {
        !self.clients.is_empty()
    }

    fn kill_one(&mut self) -> anyhow::Result<()> {
        let victim = self.choices.victim(self.setup.mode);
        let pause = self.choices.pause(PAUSE_MAX);
        // Commands come all the time; some are not killed.
        if self.choices.once_in(4)
            && let Some(target) = self.target()
        {
            let client = CommandProcess::start(self.setup, target, &mut self.choices)?;
            self.add_client(client);
        }
        let kills = match victim {
            Victim::Owner => u64::from(self.owner.kill(pause)),
            Victim::Keeper => self.owner.kill_keeper(None),
            Victim::OwnerAndKeeper => self.owner.kill_keeper(Some(pause)),
            Victim::Interrupt => u64::from(self.owner.interrupt(pause)),
            Victim::BestEffort => self.kill_load(&[LoadRole::BestEffort]),
            Victim::LatencyCritical => self.kill_load(&[LoadRole::LatencyCritical]),
            Victim::OwnerAndLoad => {
                let loads = self.kill_load(&[LoadRole::BestEffort, LoadRole::LatencyCritical]);
                loads + u64::from(self.owner.kill(pause))
            }
            Victim::Client => {
                self.start_doomed_client()?;
                0
            }
            Victim::Emulator => {
                let index = self.choices.between(0, 1);
                let gpu = usize::try_from(index).ok().and_then(|index| self.gpus.get_mut(index));
                u64::from(gpu.is_some_and(|gpu| gpu.kill(pause)))
            }
        };
        self.results.count_kills(victim, kills, self.watch.stopped > 0);
        Ok(())
    }

    fn kill_load(&mut self, roles: &[LoadRole]) -> u64 {
        let is_meant = |load: &Load| load.pid().is_some() && roles.contains(&load.role);
        let meant: Vec<usize> =
            (0..self.loads.len()).filter(|index| is_meant(&self.loads[*index])).collect();
        let chosen = self.choices.pick(&meant);
        u64::from(chosen.is_some_and(|index| self.loads[index].kill()))
    }

    fn start_doomed_client(&mut self) -> anyhow::Result<()> {
        let Some(target) = self.target() else { return Ok(()) };
        let gpu = &self.gpus[0];
        let client = CommandProcess::start_doomed(self.setup, target, gpu, &mut self.choices)?;
        self.add_client(client);
        Ok(())
    }

    fn add_client(&mut self, client: CommandProcess) {
        self.commands.insert(client.pid());
        self.clients.push(client);
    }

    fn target(&mut self) -> Option<Target> {
        let targets = self.loads.iter().filter_map(|load| {
            let Load { role, .. } = *load;
            load.pid().map(|pid| Target { pid, role })
        });
        self.choices.pick(&targets.collect::<Vec<_>>())
    }

    fn report(&mut self) {
        if self.reported.elapsed() < REPORT {
            return;
        }
        self.reported = Instant::now();
        let seconds = self.begun.elapsed().as_secs().max(1);
        let (done, all) = (self.results.kills, self.plan.kills);
        let left = all.saturating_sub(done) * seconds / done.max(1);
        let (rate, worst) = (done / seconds, self.watch.worst());
        eprintln!(
            "{done} of {all} kills, {rate}/s, about {left} s left, stopped by a dead process for \
             {worst:?} at the most, {} failures",
            self.results.failures.len()
        );
    }
}

/// How long recovery may take after the last kill.
const RECOVERY_MAX: Duration = Duration::from_secs(30);
/// How often the scheduling process is asked for its state.
const ASK_EVERY: Duration = Duration::from_millis(50);

impl KillLoop<'_> {
    /// Waits for recovery: the daemon, or the private session, answers, knows every device and
    /// every load that it schedules, and has stopped a queue.
    fn wait_for_recovery(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + RECOVERY_MAX;
        let mut missing = "nothing was asked".to_owned();
        let mut asked = Instant::now();
        let mut was_stopped = false;
        while Instant::now() < until && !self.results.is_failed_for_good() {
            self.tick()?;
            was_stopped |= self.watch.stopped > 0;
            if asked.elapsed() < ASK_EVERY {
                continue;
            }
            asked = Instant::now();
            let snapshot = self.owner.snapshot(self.setup);
            match self.missing(snapshot.as_ref()) {
                Some(what) => missing = what,
                None if was_stopped => {
                    self.results.settled += 1;
                    return Ok(());
                }
                None => missing = "no queue is stopped".to_owned(),
            }
        }
        self.results.fail(format!("after {RECOVERY_MAX:?} without kills {missing}"));
        Ok(())
    }

    /// What the scheduling process does not know yet.
    fn missing(&self, snapshot: Option<&Snapshot>) -> Option<String> {
        let Some(snapshot) = snapshot else {
            return Some("no scheduling process answers".to_owned());
        };
        if self.owner.pid() != Some(snapshot.daemon.pid) {
            return Some(format!("process {} answers instead", snapshot.daemon.pid));
        }
        if snapshot.devices.len() != self.gpus.len() {
            let (known, there) = (snapshot.devices.len(), self.gpus.len());
            return Some(format!("{known} of {there} devices are known"));
        }
        let task_of = |load: &Load| {
            let pid = load.pid()?;
            snapshot.tasks.iter().find(|task| task.pid == pid)
        };
        let is_known = |load: &Load| {
            task_of(load).is_some_and(|task| !task.queues.is_empty() && task.priority.is_some())
        };
        let is_scheduled = |load: &&Load| self.owner.schedules(self.setup.mode, load);
        let scheduled: Vec<&Load> = self.loads.iter().filter(is_scheduled).collect();
        if scheduled.is_empty() {
            return Some("no load is scheduled".to_owned());
        }
        let unknown = scheduled.into_iter().find(|load| !is_known(load))?;
        let (pid, task, problems) = (unknown.pid(), task_of(unknown), &snapshot.problems);
        Some(format!("load {pid:?} is not scheduled: {task:?}; reported problems: {problems:?}"))
    }
}

/// How long one kind of process may take to end.
const END_MAX: Duration = Duration::from_secs(60);

impl KillLoop<'_> {
    /// Asks every process to end, and checks that nothing is left.
    pub(super) fn finish(&mut self) -> anyhow::Result<()> {
        self.is_replacing = false;
        self.until("commands have not ended", |running| !running.has_clients())?;
        // The loads first, while there is a process that could still keep them stopped.
        for load in &mut self.loads {
            load.ask_to_end();
        }
        self.until("loads have not ended", |running| {
            running.loads.iter().all(|load| load.pid().is_none())
        })?;
        self.owner.ask_to_end(self.setup.mode);
        let message = "the daemon, or the private session, has not ended";
        self.until(message, |running| running.owner.pid().is_none())?;
        self.until("a keeper has not ended", |running| {
            checks::reap_orphans(&running.known()).is_empty()
        })?;
        for gpu in &self.gpus {
            gpu.ask_to_end();
        }
        self.until("an emulated GPU has not ended", |running| {
            running.gpus.iter().all(|gpu| gpu.pid().is_none())
        })?;
        let sessions = Journal::at(self.setup.stage.state())?.sessions()?.len();
        if sessions > 0 {
            self.results.fail(format!("{sessions} sessions are left in the journal"));
        }
        for stray in checks::inhabitants(self.setup.stage.root()) {
            self.results.fail(format!("process {stray} is left"));
        }
        for file in self.setup.leftovers()? {
            self.results.fail(format!("{file} is left"));
        }
        Ok(())
    }

    fn until(&mut self, problem: &str, is_so: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        let until = Instant::now() + END_MAX;
        while !is_so(self) {
            if Instant::now() > until {
                self.results.fail(format!("{problem} after {END_MAX:?}"));
                return Ok(());
            }
            self.tick()?;
        }
        Ok(())
    }
}
