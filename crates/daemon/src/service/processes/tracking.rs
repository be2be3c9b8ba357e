//! Processes that come, change and go, and what the scheduler is told of it.

use std::collections::BTreeSet;

use gpreempt_core::event::{Event, SchedAttr};
use gpreempt_core::id::TaskId;
use gpreempt_device::controller::Note;
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::process::{ProcessError, ProcessKey};
use gpreempt_wire::event::EventKind;

use super::inspection_queue::Look;
use super::registrations::Registration;
use super::tracked_process::{About, InForce, Member};
use super::{Context, Processes};
use crate::service::devices::Devices;
use crate::service::telemetry::Telemetry;
use crate::verdict::Verdict;

impl Processes {
    /// Every process that uses a device now is to be inspected.
    pub(crate) fn meet_everybody(&mut self, devices: &mut Devices) {
        for controller in 0..devices.backends.len() {
            for key in devices.backends.users(controller) {
                self.backlog.add(key, Look::Meet(controller));
            }
        }
    }

    /// Processes the reports of controllers that are not for the scheduler.
    pub(crate) fn take_notes(&mut self, context: &mut Context<'_>) {
        while let Some((controller, note)) = context.devices.backends.poll_note() {
            match note {
                Note::Problem(problem) => context.telemetry.problem(&problem),
                Note::Solved(beginning) => context.telemetry.problems.solve(&beginning),
                Note::Appeared(key) => self.backlog.add(key, Look::Meet(controller)),
                Note::Ended(task) => self.leave(controller, task, context),
                Note::Regrouped { task, appeared, vanished } => {
                    let Some(key) = self.roster.of_task(task).map(|member| member.key) else {
                        continue;
                    };
                    let pid = key.pid;
                    context.telemetry.log.debug(format_args!(
                        "process {pid} has {appeared} new contexts and lost {vanished}"
                    ));
                    if self.rules.mention_gpus() {
                        self.backlog.add(key, Look::Regrouped);
                    }
                }
            }
        }
    }

    /// A process uses devices of a controller.
    pub(super) fn meet(&mut self, controller: usize, key: ProcessKey, context: &mut Context<'_>) {
        if let Some(member) = self.roster.get_mut(key) {
            if member.homes.insert(controller) {
                self.apply(key, context);
            }
            self.judge_again(key, context);
            return;
        }
        // A process that has ended since is not worth a line in the log.
        let Ok((about, verdict)) = self.judge(key, context.devices) else { return };
        let order = self.registrations.find(key, about.uid);
        let order = order.filter(|_| self.rules.check_display(key).is_ok());
        let (pidfd, watch) = self.watch(key, context.poller);
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
        context.telemetry.log.info(format_args!("process {pid} ({name}) uses a GPU: {why}"));
        for note in &member.verdict.notes {
            context.telemetry.log.info(format_args!("process {pid}: {note}"));
        }
        self.roster.insert(member);
        self.apply(key, context);
        self.tell_of(key, EventKind::Appeared, 0, context.telemetry);
    }

    /// What the configuration says of a process.
    fn judge(&self, key: ProcessKey, devices: &Devices) -> Result<(About, Verdict), ProcessError> {
        let in_force = self.roster.get(key).and_then(|member| member.in_force);
        self.rules.judge(key, || devices.uuids_of(key, in_force.map(|in_force| in_force.task)))
    }

    /// Evaluates the rules again for a process whose devices may have changed.
    pub(super) fn judge_again(&mut self, key: ProcessKey, context: &mut Context<'_>) {
        if !self.rules.mention_gpus() {
            return;
        }
        let Ok((_, verdict)) = self.judge(key, context.devices) else { return };
        let Some(member) = self.roster.get_mut(key) else { return };
        if member.verdict == verdict {
            return;
        }
        member.verdict = verdict;
        if member.is_ignored() {
            member.suspended_until_ns = None;
        }
        let why = member.why();
        context.telemetry.log.info(format_args!("process {key} uses other GPUs: {why}"));
        self.apply(key, context);
    }

    /// Evaluates rules for a process that may have changed since the last time.
    pub(super) fn judge_anew(&mut self, key: ProcessKey, context: &mut Context<'_>) {
        let Ok((about, verdict)) = self.judge(key, context.devices) else { return };
        let Some(member) = self.roster.get_mut(key) else { return };
        member.about = about;
        member.verdict = verdict;
        member.obstacle = None;
        if member.is_ignored() {
            member.suspended_until_ns = None;
        }
        self.apply(key, context);
    }

    /// Forgets a process.
    pub(super) fn part(&mut self, key: ProcessKey, context: &mut Context<'_>) {
        let Some(member) = self.roster.get(key) else { return };
        let (pid, name) = (key.pid, &member.about.name);
        context.telemetry.log.info(format_args!("process {pid} ({name}) no longer uses a GPU"));
        self.tell_of(key, EventKind::Vanished, 0, context.telemetry);
        self.release(key, context);
        // Its descriptor leaves the epoll set when it is closed.
        self.roster.remove(key);
        self.judge_others(context.devices);
    }

    /// A process left the devices of a controller, which has forgotten it.
    fn leave(&mut self, controller: usize, task: TaskId, context: &mut Context<'_>) {
        let Some(key) = self.roster.of_task(task).map(|member| member.key) else { return };
        let Some(member) = self.roster.get_mut(key) else { return };
        member.homes.remove(&controller);
        member.adopted.remove(&controller);
        if !member.homes.is_empty() {
            return;
        }
        let order = member.order.filter(|_| key.check().is_ok());
        let uid = member.about.uid;
        self.part(key, context);
        // The user's setting applies again if the process comes back.
        if let Some(order) = order {
            let (pidfd, watch) = self.watch(key, context.poller);
            let registration = Registration { order, by_master: true, uid, pidfd, watch };
            self.registrations.insert(key, registration);
        }
    }

    /// Brings what the scheduler knows of a process in line with what it should.
    pub(crate) fn apply(&mut self, key: ProcessKey, context: &mut Context<'_>) {
        let Some(member) = self.roster.get(key) else { return };
        match (member.in_force, member.wanted()) {
            (None, None) => {}
            (Some(_), None) => {
                self.release(key, context);
                self.tell_of(key, EventKind::Changed, 0, context.telemetry);
            }
            (None, Some(attr)) => self.take_in(key, attr, context),
            (Some(in_force), Some(attr)) => self.change(key, in_force, attr, context),
        }
        self.adopt_where_it_is(key, context);
        self.judge_others(context.devices);
        context.devices.is_changed = true;
    }

    fn take_in(&mut self, key: ProcessKey, attr: SchedAttr, context: &mut Context<'_>) {
        if context.guard.is_taken(key) {
            let obstacle = "another command controls it; end that one first".to_owned();
            self.give_up(key, obstacle, context.telemetry);
            return;
        }
        let task = self.roster.name_task(key);
        let Context { devices, telemetry, .. } = context;
        devices.tell(Event::TaskAppeared { task, attr }, &mut telemetry.log);
        let Some(member) = self.roster.get_mut(key) else { return };
        let is_suspended = member.is_suspended();
        member.in_force = Some(InForce { task, attr, is_suspended });
        if is_suspended {
            devices.tell(Event::TaskSuspended { task, suspended: true }, &mut telemetry.log);
        }
    }

    fn change(
        &mut self,
        key: ProcessKey,
        in_force: InForce,
        attr: SchedAttr,
        context: &mut Context<'_>,
    ) {
        let task = in_force.task;
        let Some(member) = self.roster.get_mut(key) else { return };
        let is_suspended = member.is_suspended();
        member.in_force = Some(InForce { task, attr, is_suspended });
        let Context { devices, telemetry, .. } = context;
        if in_force.attr != attr {
            devices.tell(Event::TaskChanged { task, attr }, &mut telemetry.log);
            devices.backends.set_priority(task, attr.priority);
            telemetry.process_event(member, EventKind::Changed, 0);
        }
        if in_force.is_suspended != is_suspended {
            let event = Event::TaskSuspended { task, suspended: is_suspended };
            devices.tell(event, &mut telemetry.log);
        }
    }

    fn adopt_where_it_is(&mut self, key: ProcessKey, context: &mut Context<'_>) {
        let Some(member) = self.roster.get(key) else { return };
        let Some(in_force) = member.in_force else { return };
        for controller in member.homes.difference(&member.adopted).copied().collect::<Vec<_>>() {
            let backends = &mut context.devices.backends;
            match backends.adopt(controller, in_force.task, key) {
                Ok(()) => {
                    backends.set_priority(in_force.task, in_force.attr.priority);
                    let Some(member) = self.roster.get_mut(key) else { return };
                    member.adopted.insert(controller);
                }
                Err(problem) => {
                    self.release(key, context);
                    self.give_up(key, problem.to_string(), context.telemetry);
                    return;
                }
            }
        }
    }

    /// A process cannot be controlled; it is left alone until a client asks again.
    fn give_up(&mut self, key: ProcessKey, obstacle: String, telemetry: &mut Telemetry) {
        telemetry.problem(&format!("process {key} is left alone: {obstacle}"));
        if let Some(member) = self.roster.get_mut(key) {
            member.obstacle = Some(obstacle);
            member.suspended_until_ns = None;
        }
    }

    /// Reverts what was changed in a process.
    fn release(&mut self, key: ProcessKey, context: &mut Context<'_>) {
        let Some(member) = self.roster.get_mut(key) else { return };
        let adopted = std::mem::take(&mut member.adopted);
        let Some(in_force) = member.in_force.take() else { return };
        let task = in_force.task;
        self.roster.forget_task(task);
        context.devices.tell(Event::TaskVanished { task }, &mut context.telemetry.log);
        for controller in adopted {
            context.devices.backends.release(controller, task);
        }
        context.devices.is_changed = true;
    }

    /// The processes that are not scheduled count as one task of the other class where all that are
    /// scheduled are of one class.
    fn judge_others(&self, devices: &mut Devices) {
        let are_expected = self.rules.private.is_some_and(|private| private.expects_others);
        for controller in 0..devices.backends.len() {
            let others = self.roster.others(controller, are_expected);
            devices.backends.set_others(controller, others);
        }
    }

    /// An event about a process, for followers.
    pub(crate) fn tell_of(
        &self,
        key: ProcessKey,
        kind: EventKind,
        duration_ns: u64,
        telemetry: &mut Telemetry,
    ) {
        if let Some(member) = self.roster.get(key) {
            telemetry.process_event(member, kind, duration_ns);
        }
    }

    /// Ends suspensions whose lease is over.
    pub(crate) fn end_leases(&mut self, now_ns: u64, context: &mut Context<'_>) {
        for key in self.roster.leases_over(now_ns) {
            self.end_suspension(key, context);
        }
    }

    /// Ends a suspension. True if there was one.
    pub(crate) fn end_suspension(&mut self, key: ProcessKey, context: &mut Context<'_>) -> bool {
        let Some(member) = self.roster.get_mut(key) else { return false };
        if member.suspended_until_ns.take().is_none() {
            return false;
        }
        context.telemetry.log.info(format_args!("process {key} may run again"));
        self.apply(key, context);
        self.tell_of(key, EventKind::Released, 0, context.telemetry);
        true
    }
}
