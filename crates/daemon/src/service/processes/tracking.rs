//! Processes that start, change and stop using devices, and the scheduler's tasks for them.

use gpreempt_core::event::{Event, SchedAttr};
use gpreempt_core::id::TaskId;
use gpreempt_device::controller::ControllerReport;
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::process::ProcessKey;
use gpreempt_wire::event::EventKind;

use super::client_settings::{Layers, Suspension};
use super::inspection::Inspected;
use super::inspection_queue::InspectReason;
use super::normal::Exemption;
use super::process_table::{AppliedAttr, TrackedProcess};
use super::{Context, Named, Processes};
use crate::service::devices::Devices;
use crate::service::telemetry::Telemetry;

impl Processes {
    /// Adds every process that uses a device now to the inspection queue.
    pub(crate) fn queue_all_users(&mut self, devices: &mut Devices) {
        for controller in 0..devices.backends.len() {
            for key in devices.backends.users(controller) {
                self.inspections.add(key, InspectReason::Appeared(controller));
            }
        }
    }

    /// Handles the reports of controllers that are not for the scheduler.
    pub(crate) fn take_notes(&mut self, context: &mut Context<'_>) {
        while let Some((controller, note)) = context.devices.backends.poll_report() {
            match note {
                ControllerReport::Problem(problem) => context.telemetry.problem(&problem),
                ControllerReport::Solved(beginning) => context.telemetry.problems.solve(&beginning),
                ControllerReport::Appeared(key) => {
                    self.inspections.add(key, InspectReason::Appeared(controller));
                }
                ControllerReport::Ended(task) => self.drop_controller(controller, task, context),
                ControllerReport::QueuesChanged { task, appeared, vanished } => {
                    self.yielding.is_stale = true;
                    let Some(process) = self.table.of_task(task) else { continue };
                    let (key, name) = (process.key, &process.labels.name);
                    context.telemetry.log.debug(format_args!(
                        "{name} ({key}) has {appeared} new contexts and lost {vanished}"
                    ));
                    self.inspections.add(key, InspectReason::DevicesChanged);
                }
            }
        }
        for (uid, is_above) in context.devices.backends.quota.take_changed() {
            let max = context.devices.backends.quota.max();
            let beginning = format!("uid {uid} has more than {max} GPU queues");
            if is_above {
                context.telemetry.problem(&format!(
                    "{beginning}; the others are not scheduled until it closes some (gpreempt ps \
                     names the processes); raise queues_per_user if it needs so many"
                ));
            } else {
                context.telemetry.problems.solve(&beginning);
            }
        }
    }

    /// Starts to track a process that uses devices of a controller.
    pub(super) fn track(
        &mut self,
        controller: usize,
        key: ProcessKey,
        inspected: &Inspected,
        context: &mut Context<'_>,
    ) {
        if let Some(process) = self.table.get(key) {
            let is_unread = process.is_unread;
            self.add_controller(controller, key, context);
            if is_unread {
                self.complete(key, inspected, context);
            } else {
                self.reassign_for_devices(key, inspected, context);
            }
            if let Some(process) = self.table.get_mut(key) {
                process.note_surroundings(inspected);
            }
            self.yielding.is_stale = true;
            return;
        }
        let watch = self.watch(key, context.poller);
        let assigned = (inspected.labels.clone(), inspected.assignment.clone());
        let mut process = TrackedProcess::new(key, assigned, controller, watch);
        if self.rules.private.is_none() || inspected.exemption != Some(Exemption::Display) {
            process.overrides = self.registrations.find(&inspected.lineage, process.labels.uid);
        }
        self.load_saved(&mut process, monotonic_ns());
        process.note_surroundings(inspected);
        announce(&process, context.telemetry);
        self.table.insert(process);
        self.apply(key, context);
        self.tell_of(key, EventKind::Appeared, 0, context.telemetry);
    }

    /// A process that is tracked uses devices of another controller.
    pub(super) fn add_controller(
        &mut self,
        controller: usize,
        key: ProcessKey,
        context: &mut Context<'_>,
    ) {
        if let Some(process) = self.table.get_mut(key)
            && process.controllers.insert(controller)
        {
            self.apply(key, context);
        }
    }

    /// Gives a process whose inspection was late what the rules give it.
    fn complete(&mut self, key: ProcessKey, inspected: &Inspected, context: &mut Context<'_>) {
        let found = self.registrations.find(&inspected.lineage, inspected.labels.uid);
        let Some(process) = self.table.get_mut(key) else { return };
        process.overrides = process.overrides.or(found);
        self.reassign(key, inspected, context);
        if let Some(process) = self.table.get(key) {
            announce(process, context.telemetry);
        }
    }

    /// Gives a process whose devices may have changed what the rules give it.
    pub(super) fn reassign_for_devices(
        &mut self,
        key: ProcessKey,
        inspected: &Inspected,
        context: &mut Context<'_>,
    ) {
        let Some(process) = self.table.get_mut(key) else { return };
        if !self.rules.mention_gpus() || process.assignment == inspected.assignment {
            return;
        }
        process.assignment = inspected.assignment.clone();
        if process.is_ignored() {
            process.suspensions = Layers::default();
        }
        let (name, why) = (&process.labels.name, process.why());
        context.telemetry.log.info(format_args!("{name} ({key}) uses other GPUs: {why}"));
        self.apply(key, context);
    }

    /// Gives a process what changed rules give it; it may itself have changed.
    pub(super) fn reassign(
        &mut self,
        key: ProcessKey,
        inspected: &Inspected,
        context: &mut Context<'_>,
    ) {
        let Some(process) = self.table.get_mut(key) else { return };
        if std::mem::take(&mut process.is_unread) {
            Self::solve_unread(key, &process.labels.name, context);
        }
        process.labels = inspected.labels.clone();
        process.assignment = inspected.assignment.clone();
        process.obstacle = None;
        if process.is_ignored() {
            process.suspensions = Layers::default();
        }
        process.note_surroundings(inspected);
        self.apply(key, context);
    }

    pub(super) fn untrack(&mut self, key: ProcessKey, context: &mut Context<'_>) {
        let Some(process) = self.table.get(key) else { return };
        let name = &process.labels.name;
        if process.is_unread {
            Self::solve_unread(key, name, context);
        }
        context.telemetry.log.info(format_args!("{name} ({key}) no longer uses a GPU"));
        self.tell_of(key, EventKind::Vanished, 0, context.telemetry);
        self.release(key, context);
        // Closing its pidfd removes it from the epoll set.
        self.table.remove(key);
        self.yielding.is_stale = true;
        self.update_unmanaged(context.devices);
    }

    /// A process stopped using the devices of a controller.
    fn drop_controller(&mut self, controller: usize, task: TaskId, context: &mut Context<'_>) {
        let Some(key) = self.table.of_task(task).map(|process| process.key) else { return };
        let Some(process) = self.table.get_mut(key) else { return };
        process.controllers.remove(&controller);
        process.adopted.remove(&controller);
        if !process.controllers.is_empty() {
            return;
        }
        // A process must not end its suspension by destroying its GPU context and making another.
        self.keep_settings(key);
        self.untrack(key, context);
    }

    /// Updates the scheduler and the controllers with what a process should have.
    pub(crate) fn apply(&mut self, key: ProcessKey, context: &mut Context<'_>) {
        self.yielding.is_stale = true;
        let Some(process) = self.table.get_mut(key) else { return };
        if !process.is_normal() {
            process.yields_to = None;
        }
        match (process.applied, process.wanted()) {
            (None, None) => {}
            (Some(_), None) => {
                self.release(key, context);
                self.tell_of(key, EventKind::Changed, 0, context.telemetry);
            }
            (None, Some(attr)) => self.start_scheduling(key, attr, context),
            (Some(applied), Some(attr)) => self.change(key, applied, attr, context),
        }
        self.adopt(key, context);
        self.limit_queues(key, context);
        self.update_unmanaged(context.devices);
        context.devices.is_changed = true;
    }

    /// Queues that the owner gave a priority above what binds the process now have its priority.
    fn limit_queues(&self, key: ProcessKey, context: &mut Context<'_>) {
        let Some(process) = self.table.get(key) else { return };
        let bound = process.bounds().priority;
        if let Some((applied, bound)) = process.applied.zip(bound) {
            context.devices.limit_queues(applied.task, bound.value);
        }
    }

    fn start_scheduling(&mut self, key: ProcessKey, attr: SchedAttr, context: &mut Context<'_>) {
        if context.recovery.is_taken(key) {
            let obstacle = "another command controls it; end that command first".to_owned();
            self.set_obstacle(key, obstacle, context.telemetry);
            return;
        }
        let task = self.table.name_task(key);
        let Context { devices, telemetry, .. } = context;
        devices.tell(Event::TaskAppeared { task, attr }, &mut telemetry.log);
        let Some(process) = self.table.get_mut(key) else { return };
        let is_suspended = process.is_suspended();
        process.applied = Some(AppliedAttr { task, attr, is_suspended });
        if is_suspended {
            devices.tell(Event::TaskSuspended { task, suspended: true }, &mut telemetry.log);
        }
    }

    fn change(
        &mut self,
        key: ProcessKey,
        applied: AppliedAttr,
        attr: SchedAttr,
        context: &mut Context<'_>,
    ) {
        let task = applied.task;
        let Some(process) = self.table.get_mut(key) else { return };
        let is_suspended = process.is_suspended();
        process.applied = Some(AppliedAttr { task, attr, is_suspended });
        let Context { devices, telemetry, .. } = context;
        if applied.attr != attr {
            devices.tell(Event::TaskChanged { task, attr }, &mut telemetry.log);
            devices.backends.set_priority(task, attr.priority);
            telemetry.process_event(process, EventKind::Changed, 0);
        }
        if applied.is_suspended != is_suspended {
            let event = Event::TaskSuspended { task, suspended: is_suspended };
            devices.tell(event, &mut telemetry.log);
        }
    }

    /// Has every controller whose devices a process uses control it.
    fn adopt(&mut self, key: ProcessKey, context: &mut Context<'_>) {
        let Some(process) = self.table.get(key) else { return };
        let Some(applied) = process.applied else { return };
        let uid = process.labels.uid;
        let missing: Vec<usize> =
            process.controllers.difference(&process.adopted).copied().collect();
        for controller in missing {
            let backends = &mut context.devices.backends;
            match backends.adopt(controller, (applied.task, uid), key) {
                Ok(()) => {
                    backends.set_priority(applied.task, applied.attr.priority);
                    let Some(process) = self.table.get_mut(key) else { return };
                    process.adopted.insert(controller);
                }
                Err(problem) => {
                    self.release(key, context);
                    self.set_obstacle(key, problem.to_string(), context.telemetry);
                    return;
                }
            }
        }
    }

    /// A process cannot be controlled. It is not scheduled until a client asks again, and a normal
    /// one until a high-priority process becomes active anew.
    fn set_obstacle(&mut self, key: ProcessKey, obstacle: String, telemetry: &mut Telemetry) {
        let Some(process) = self.table.get_mut(key) else { return };
        if process.is_normal() {
            telemetry.log.info(format_args!("{} cannot be preempted: {obstacle}", Named(key)));
        } else {
            telemetry.problem(&format!("{} is not scheduled: {obstacle}", Named(key)));
        }
        process.obstacle = Some(obstacle);
        process.yields_to = None;
        process.suspensions = Layers::default();
    }

    /// Reverts the changes to a process and removes its task.
    fn release(&mut self, key: ProcessKey, context: &mut Context<'_>) {
        let Some(process) = self.table.get_mut(key) else { return };
        let adopted = std::mem::take(&mut process.adopted);
        let Some(applied) = process.applied.take() else { return };
        let task = applied.task;
        self.table.forget_task(task);
        context.devices.tell(Event::TaskVanished { task }, &mut context.telemetry.log);
        for controller in adopted {
            context.devices.backends.release(controller, task);
        }
        context.devices.is_changed = true;
    }

    /// Sets the placeholder tasks that stand for the unmanaged processes of each controller.
    fn update_unmanaged(&self, devices: &mut Devices) {
        let are_expected = self.rules.private.is_some_and(|private| private.expects_others);
        for controller in 0..devices.backends.len() {
            let priority = self.table.unmanaged(controller, are_expected);
            devices.backends.set_unmanaged(controller, priority);
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
        if let Some(process) = self.table.get(key) {
            telemetry.process_event(process, kind, duration_ns);
        }
    }

    pub(crate) fn end_leases(&mut self, now_ns: u64, context: &mut Context<'_>) {
        for key in self.table.leases_over(now_ns) {
            let Some(process) = self.table.get(key) else { continue };
            let left = process.suspensions.after(now_ns);
            self.replace_suspensions(key, left, context);
        }
    }

    /// Ends the suspensions of a process; those of administrators only for an administrator.
    /// Returns whether there was one.
    pub(crate) fn end_suspension(
        &mut self,
        key: ProcessKey,
        by_admin: bool,
        context: &mut Context<'_>,
    ) -> bool {
        let Some(process) = self.table.get(key) else { return false };
        let mut left = process.suspensions;
        left.end(by_admin);
        self.replace_suspensions(key, left, context)
    }

    /// Returns whether that ended a suspension.
    pub(crate) fn replace_suspensions(
        &mut self,
        key: ProcessKey,
        left: Layers<Suspension>,
        context: &mut Context<'_>,
    ) -> bool {
        let Some(process) = self.table.get_mut(key) else { return false };
        let before = std::mem::replace(&mut process.suspensions, left);
        if left == before || !left.is_empty() {
            return left != before;
        }
        let name = &process.labels.name;
        context.telemetry.log.info(format_args!("{name} ({key}) may run again"));
        self.apply(key, context);
        self.tell_of(key, EventKind::Released, 0, context.telemetry);
        true
    }
}

/// Logs what a process is given, and why.
fn announce(process: &TrackedProcess, telemetry: &mut Telemetry) {
    let (key, name, why) = (process.key, &process.labels.name, process.why());
    telemetry.log.info(format_args!("{name} ({key}) uses a GPU: {why}"));
    for note in &process.assignment.notes {
        telemetry.log.info(format_args!("{name} ({key}): {note}"));
    }
}
