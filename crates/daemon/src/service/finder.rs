//! Processes that come, change and go, and what the scheduler hears of it.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;

use gpreempt_core::event::{Event, TaskTraits};
use gpreempt_core::id::TaskId;
use gpreempt_device::controller::Note;
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::process::{ProcessError, ProcessKey};
use gpreempt_wire::event::EventKind;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::backlog::Look;
use super::member::{About, InForce, Member};
use super::poller::Source;
use super::registrations::Registration;
use super::{Service, events, instant};
use crate::facts::{Gpu, ProcessFacts};
use crate::verdict::Verdict;

impl Service {
    /// Everybody who uses a device now is to be met.
    pub(super) fn meet_everybody(&mut self) {
        for controller in 0..self.backends.len() {
            for key in self.backends.users(controller) {
                self.backlog.add(key, Look::Meet(controller));
            }
        }
    }

    /// Takes in what controllers have to say that is not for the scheduler.
    pub(super) fn take_notes(&mut self) {
        while let Some((controller, note)) = self.backends.poll_note() {
            match note {
                Note::Problem(problem) => self.problem(&problem),
                Note::Solved(beginning) => self.problems.solve(&beginning),
                Note::Appeared(key) => self.backlog.add(key, Look::Meet(controller)),
                Note::Ended(task) => self.leave(controller, task),
                Note::Regrouped { task, appeared, vanished } => {
                    let Some(key) = self.roster.of_task(task).map(|member| member.key) else {
                        continue;
                    };
                    let pid = key.pid;
                    self.log.debug(format_args!(
                        "process {pid} has {appeared} new contexts and lost {vanished}"
                    ));
                    if self.config.mentions_gpus() {
                        self.backlog.add(key, Look::Regrouped);
                    }
                }
            }
        }
    }

    /// A process uses devices of a controller.
    pub(super) fn meet(&mut self, controller: usize, key: ProcessKey) {
        if let Some(member) = self.roster.get_mut(key) {
            if member.homes.insert(controller) {
                self.apply(key);
            }
            self.judge_again(key);
            return;
        }
        // Whoever is gone again is not worth a word.
        let Ok((about, verdict)) = self.judge(key) else { return };
        let order = self.registrations.find(key, about.uid);
        let order = order.filter(|_| self.check_display(key).is_ok());
        let (pidfd, watch) = self.watch(key);
        let mut member = Member {
            key,
            about,
            verdict,
            order,
            is_detached: false,
            suspended_until_ns: None,
            obstacle: None,
            homes: BTreeSet::from([controller]),
            adopted: BTreeSet::new(),
            in_force: None,
            pidfd,
            watch,
        };
        self.recall(&mut member, monotonic_ns());
        let (pid, name, why) = (key.pid, &member.about.name, member.why());
        self.log.info(format_args!("process {pid} ({name}) uses a GPU: {why}"));
        for note in &member.verdict.notes {
            self.log.info(format_args!("process {pid}: {note}"));
        }
        self.roster.insert(member);
        self.apply(key);
        self.tell_of(key, EventKind::Appeared, 0);
    }

    /// What the configuration says of a process.
    pub(super) fn judge(&self, key: ProcessKey) -> Result<(About, Verdict), ProcessError> {
        let task = self.roster.get(key).and_then(|member| member.in_force);
        let devices = task.map(|in_force| self.devices_of(in_force.task)).unwrap_or_default();
        let known = devices.into_iter().filter_map(|device| self.backends.uuid(device));
        let seen = self.backends.uuids_of(key);
        let uuids: BTreeSet<String> = known.chain(seen).collect();
        let gpus = if self.config.mentions_gpus() { Gpu::named(uuids) } else { Vec::new() };
        let facts = ProcessFacts::read(key, gpus, &self.environment_names)?;
        let verdict = self.config.judge(&facts, &self.accounts);
        Ok((About::new(&facts), verdict))
    }

    /// Judges a process again that has something else on the GPUs than before.
    pub(super) fn judge_again(&mut self, key: ProcessKey) {
        if !self.config.mentions_gpus() {
            return;
        }
        let Ok((_, verdict)) = self.judge(key) else { return };
        let Some(member) = self.roster.get_mut(key) else { return };
        if member.verdict == verdict {
            return;
        }
        member.verdict = verdict;
        if member.is_ignored() {
            member.suspended_until_ns = None;
        }
        let why = member.why();
        self.log.info(format_args!("process {key} uses other GPUs: {why}"));
        self.apply(key);
    }

    /// A descriptor that is readable when a process has ended, in the set, and its name there.
    pub(super) fn watch(&mut self, key: ProcessKey) -> (Option<OwnedFd>, u64) {
        self.last_watch += 1;
        let watch = self.last_watch;
        let pid = i32::try_from(key.pid).ok().and_then(Pid::from_raw);
        let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // The number may have been given to another before it was opened.
        let pidfd = pidfd.filter(|_| key.check().is_ok());
        let watched = pidfd.filter(|fd| self.poller.watch(fd, Source::Process(watch)).is_ok());
        (watched, watch)
    }

    /// A process that is watched has ended.
    pub(super) fn take_end(&mut self, watch: u64) {
        if let Some(key) = self.roster.watched(watch) {
            self.part(key);
        } else {
            self.registrations.remove_watched(watch);
        }
    }

    /// Forgets a process.
    pub(super) fn part(&mut self, key: ProcessKey) {
        let Some(member) = self.roster.get(key) else { return };
        let (pid, name) = (key.pid, &member.about.name);
        self.log.info(format_args!("process {pid} ({name}) no longer uses a GPU"));
        self.tell_of(key, EventKind::Vanished, 0);
        self.release(key);
        // Its descriptor leaves the set when it is closed.
        self.roster.remove(key);
        self.judge_others();
    }

    /// A process left the devices of a controller, which has forgotten it.
    fn leave(&mut self, controller: usize, task: TaskId) {
        let Some(key) = self.roster.of_task(task).map(|member| member.key) else { return };
        let Some(member) = self.roster.get_mut(key) else { return };
        member.homes.remove(&controller);
        member.adopted.remove(&controller);
        if !member.homes.is_empty() {
            return;
        }
        let order = member.order.filter(|_| key.check().is_ok());
        let uid = member.about.uid;
        self.part(key);
        // If it comes back it is still what somebody asked for.
        if let Some(order) = order {
            let (pidfd, watch) = self.watch(key);
            let registration = Registration { order, by_master: true, uid, pidfd, watch };
            self.registrations.insert(key, registration);
        }
    }

    /// Brings what the scheduler knows of a process in line with what it should.
    pub(super) fn apply(&mut self, key: ProcessKey) {
        let Some(member) = self.roster.get(key) else { return };
        match (member.in_force, member.wanted()) {
            (None, None) => {}
            (Some(_), None) => {
                self.release(key);
                self.tell_of(key, EventKind::Changed, 0);
            }
            (None, Some(traits)) => self.take_in(key, traits),
            (Some(in_force), Some(traits)) => self.change(key, in_force, traits),
        }
        self.adopt_where_it_is(key);
        self.judge_others();
        self.is_changed = true;
    }

    fn take_in(&mut self, key: ProcessKey, traits: TaskTraits) {
        if self.guard.is_taken(key) {
            self.give_up(key, "another command controls it; end that one first".to_owned());
            return;
        }
        let task = self.roster.name_task(key);
        self.tell(Event::TaskAppeared { task, traits });
        let Some(member) = self.roster.get_mut(key) else { return };
        let is_suspended = member.is_suspended();
        member.in_force = Some(InForce { task, traits, is_suspended });
        if is_suspended {
            self.tell(Event::TaskSuspended { task, suspended: true });
        }
    }

    fn change(&mut self, key: ProcessKey, in_force: InForce, traits: TaskTraits) {
        let task = in_force.task;
        let Some(member) = self.roster.get_mut(key) else { return };
        let is_suspended = member.is_suspended();
        member.in_force = Some(InForce { task, traits, is_suspended });
        if in_force.traits != traits {
            self.tell(Event::TaskChanged { task, traits });
            self.backends.set_priority(task, traits.priority);
            self.tell_of(key, EventKind::Changed, 0);
        }
        if in_force.is_suspended != is_suspended {
            self.tell(Event::TaskSuspended { task, suspended: is_suspended });
        }
    }

    fn adopt_where_it_is(&mut self, key: ProcessKey) {
        let Some(member) = self.roster.get(key) else { return };
        let Some(in_force) = member.in_force else { return };
        for controller in member.homes.difference(&member.adopted).copied().collect::<Vec<_>>() {
            match self.backends.adopt(controller, in_force.task, key) {
                Ok(()) => {
                    self.backends.set_priority(in_force.task, in_force.traits.priority);
                    let Some(member) = self.roster.get_mut(key) else { return };
                    member.adopted.insert(controller);
                }
                Err(problem) => {
                    self.release(key);
                    self.give_up(key, problem);
                    return;
                }
            }
        }
    }

    /// A process cannot be controlled; it is left alone until somebody asks again.
    fn give_up(&mut self, key: ProcessKey, obstacle: String) {
        self.problem(&format!("process {key} is left alone: {obstacle}"));
        if let Some(member) = self.roster.get_mut(key) {
            member.obstacle = Some(obstacle);
            member.suspended_until_ns = None;
        }
    }

    /// Puts a process back as it was.
    pub(super) fn release(&mut self, key: ProcessKey) {
        let Some(member) = self.roster.get_mut(key) else { return };
        let adopted = std::mem::take(&mut member.adopted);
        let Some(in_force) = member.in_force.take() else { return };
        let task = in_force.task;
        self.roster.forget_task(task);
        self.tell(Event::TaskVanished { task });
        for controller in adopted {
            self.backends.release(controller, task);
        }
        self.is_changed = true;
    }

    /// Whom the scheduled processes are compared with where all of them are of one class.
    fn judge_others(&mut self) {
        for controller in 0..self.backends.len() {
            let others = self.roster.others(controller);
            self.backends.set_others(controller, others);
        }
    }

    fn tell(&mut self, event: Event) {
        if let Err(error) = self.driver.tell(instant(monotonic_ns()), event) {
            self.log.error(format_args!("the scheduler does not believe {event:?}: {error}"));
        }
    }

    /// Tells followers something about a process, when this turn's commands are given.
    pub(super) fn tell_of(&mut self, key: ProcessKey, kind: EventKind, duration_ns: u64) {
        if !self.sessions.has_followers() {
            return;
        }
        if let Some(member) = self.roster.get(key) {
            let mut event = events::of_member(monotonic_ns(), kind, member);
            event.duration_ns = duration_ns;
            self.untold.push(event);
        }
    }

    /// Ends suspensions whose time is over.
    pub(super) fn end_leases(&mut self, now_ns: u64) {
        for key in self.roster.leases_over(now_ns) {
            self.end_suspension(key);
        }
    }

    /// Ends a suspension. True if there was one.
    pub(super) fn end_suspension(&mut self, key: ProcessKey) -> bool {
        let Some(member) = self.roster.get_mut(key) else { return false };
        if member.suspended_until_ns.take().is_none() {
            return false;
        }
        self.log.info(format_args!("process {key} may run again"));
        self.apply(key);
        self.tell_of(key, EventKind::Released, 0);
        true
    }
}
