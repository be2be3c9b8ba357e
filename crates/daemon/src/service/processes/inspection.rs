//! Inspections: what a process shows of itself, read beside the loop, and what follows from it.
//!
//! A thread reads a process and evaluates the rules ([`Question`], [`Finding`]); the loop only asks
//! and takes in the answer. A process of an ordinary user that is not inspected in time gets the
//! lowest priority until it is: no process may escape a rule by being slow to read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use gpreempt_core::time::Instant;
use gpreempt_device::controller::DeviceSearch;
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::nvidia::node::drives_display;
use gpreempt_device::nvidia::sharing_constraints::mps_control_of;
use gpreempt_device::process::{ProcessError, ProcessInfo, ProcessKey, lineage};
use gpreempt_wire::event::EventKind;

use super::inspection_queue::InspectReason;
use super::normal::{Exemption, exemption_of};
use super::process_table::{ProcessLabels, TrackedProcess};
use super::registrations::ANCESTORS_MAX;
use super::{Context, Named, Processes, Rules};
use crate::assignment::Assignment;
use crate::process_attributes::{Environment, Gpu, ProcessAttributes, bounded};
use crate::service::background_reads::{BackgroundReads, READ_TIME_MAX, Read};
use crate::service::clients::request_error::RequestError;
use crate::service::devices::Devices;
use crate::service::private::PrivateRules;
use crate::service::work_budget::{Work, WorkBudget};

/// What has to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// What the rules need of a process.
    Rules(ProcessKey),
    /// What a request needs of processes.
    Facts(Vec<ProcessKey>),
    /// What the rules give a process that uses no device yet and claims memory.
    Claimant(ProcessKey),
}

/// What was read.
#[derive(Debug)]
pub(crate) enum Finding {
    Inspected(Box<Result<Inspected, ProcessError>>),
    Facts(KnownFacts),
}

pub(crate) type ProcessReads = BackgroundReads<Question, Finding>;

/// A process as it was inspected.
#[derive(Clone, Debug)]
pub(crate) struct Inspected {
    pub(crate) labels: ProcessLabels,
    pub(crate) assignment: Assignment,
    /// The process and its ancestors, for registrations.
    pub(crate) lineage: Vec<ProcessKey>,
    /// The GPUs that it uses, as far as is known.
    pub(crate) gpus: BTreeSet<String>,
    /// Why it is never preempted as a normal process.
    pub(crate) exemption: Option<Exemption>,
}

/// What a request needs of a process beside its rules.
#[derive(Clone, Debug)]
pub(crate) struct ProcessFacts {
    pub(crate) drives_display: bool,
    /// The control program of the MPS server that it is a client of.
    pub(crate) mps_control: Option<u32>,
    /// In private sessions: whether it has the NVIDIA driver open and may be controlled, or why
    /// not.
    pub(crate) on_nvidia: Result<(), String>,
}

/// What was read for the request that is served now.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownFacts {
    facts: BTreeMap<ProcessKey, ProcessFacts>,
    /// A process that claims memory, with the GPU that it will use in place of those that it does.
    claimant: Option<Box<(ProcessKey, Inspected)>>,
}

/// What a request waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unread(pub(crate) Question);

impl KnownFacts {
    /// What was read of a process.
    ///
    /// # Errors
    /// If it was not read: the request has to wait.
    pub(crate) fn of(&self, key: ProcessKey) -> Result<&ProcessFacts, RequestError> {
        self.facts
            .get(&key)
            .ok_or_else(|| RequestError::NotRead(Unread(Question::Facts(vec![key]))))
    }

    /// The first of some processes that drives a display.
    pub(crate) fn find_display(
        &self,
        keys: impl IntoIterator<Item = ProcessKey> + Clone,
    ) -> Result<Option<ProcessKey>, RequestError> {
        if !keys.clone().into_iter().all(|key| self.facts.contains_key(&key)) {
            let question = Question::Facts(keys.into_iter().collect());
            return Err(RequestError::NotRead(Unread(question)));
        }
        let drives =
            |key: &ProcessKey| self.facts.get(key).is_some_and(|facts| facts.drives_display);
        Ok(keys.into_iter().find(drives))
    }

    fn read(keys: &[ProcessKey], private: Option<PrivateRules>) -> Self {
        let facts = |key: ProcessKey| ProcessFacts {
            drives_display: drives_display(key.pid),
            mps_control: mps_control_of(key.pid),
            on_nvidia: private.map_or(Ok(()), |private| private.look(key)),
        };
        let facts = keys.iter().map(|key| (*key, facts(*key))).collect();
        Self { facts, claimant: None }
    }

    /// What was read of a process that claims memory.
    ///
    /// # Errors
    /// If it was not read: the request has to wait.
    pub(crate) fn claimant(&self, key: ProcessKey) -> Result<&Inspected, RequestError> {
        let known = self.claimant.as_deref().filter(|(known, _)| *known == key);
        let unread = || RequestError::NotRead(Unread(Question::Claimant(key)));
        known.map(|(_, inspected)| inspected).ok_or_else(unread)
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let process = match &self.0 {
            Question::Rules(key) | Question::Claimant(key) => Some(*key),
            Question::Facts(keys) => keys.first().copied(),
        };
        match process {
            Some(key) => Named(key).fmt(f),
            None => f.write_str("a process"),
        }
    }
}

impl Rules {
    /// Reads the attributes of a process and evaluates the rules. Not for the loop.
    fn inspect(&self, key: ProcessKey, search: DeviceSearch) -> Result<Inspected, ProcessError> {
        let found = search();
        let gpus = found.iter().cloned().collect();
        let named = if self.mention_gpus() { Gpu::named(found) } else { Vec::new() };
        let attributes = ProcessAttributes::read(key, named, &self.environment_names)?;
        Ok(Inspected {
            labels: ProcessLabels::new(&attributes),
            assignment: self.config.assign(&attributes, &self.accounts),
            lineage: lineage(key.pid).take(1 + ANCESTORS_MAX).collect(),
            exemption: exemption_of(key, &gpus),
            gpus,
        })
    }
}

impl Processes {
    /// Whether a process is known to use a device, and its inspection is not late.
    pub(crate) fn awaits(&self, key: ProcessKey) -> bool {
        self.inspections.awaits(key) && self.table.get(key).is_none()
    }

    /// Asks for as many inspections as the budget of this iteration permits.
    pub(crate) fn ask_inspections(
        &mut self,
        budget: &mut WorkBudget,
        now: Instant,
        context: &mut Context<'_>,
    ) {
        while !budget.is_spent()
            && let Some((key, reasons)) = self.inspections.next()
        {
            self.ask_inspection(key, &reasons, None, now, context);
            budget.take(Work::Answer);
        }
        self.begin_looks(now, context);
    }

    /// Has a process that a client names inspected out of order, if the client is trusted: the
    /// process's own user must not be able to delay that.
    pub(crate) fn hurry_inspection(
        &mut self,
        key: ProcessKey,
        uid: u32,
        now: Instant,
        context: &mut Context<'_>,
    ) {
        if !context.reads.is_trusted(uid) {
            return;
        }
        if let Some(read_id) = self.inspections.read_of(key) {
            context.reads.hurry(read_id, uid, now);
        } else if let Some(reasons) = self.inspections.take(key) {
            self.ask_inspection(key, &reasons, Some(uid), now, context);
        }
    }

    fn ask_inspection(
        &mut self,
        key: ProcessKey,
        reasons: &[InspectReason],
        asker: Option<u32>,
        now: Instant,
        context: &mut Context<'_>,
    ) {
        let info = ProcessInfo::read(key.pid).ok().filter(|info| info.key == key && !info.zombie);
        let Some(info) = info.filter(|_| self.needs_inspection(key, reasons)) else {
            self.inspections.remove(key);
            for reason in reasons {
                if let InspectReason::Appeared(controller) = reason {
                    self.add_controller(*controller, key, context);
                }
            }
            return;
        };
        let read_id = context.reads.ask(asker.unwrap_or(info.uid), Question::Rules(key), now);
        self.inspections.begin(key, read_id);
    }

    /// Whether what a process shows of itself matters. For one that is tracked, another controller
    /// and other devices do not, unless a rule depends on devices or the process is normal.
    fn needs_inspection(&self, key: ProcessKey, reasons: &[InspectReason]) -> bool {
        let process = self.table.get(key).filter(|process| !process.is_unread);
        let do_devices_matter =
            self.rules.mention_gpus() || process.is_some_and(TrackedProcess::is_normal);
        let is_tracked = process.is_some();
        reasons.iter().any(|reason| match reason {
            InspectReason::Appeared(_) => !is_tracked || do_devices_matter,
            InspectReason::DevicesChanged => is_tracked && do_devices_matter,
            InspectReason::RulesChanged => true,
        })
    }

    /// Starts the threads that may start now.
    fn begin_looks(&self, now: Instant, context: &mut Context<'_>) {
        let Context { reads, devices, .. } = context;
        reads.begin(now, |question| self.read(question, devices));
    }

    fn read(&self, question: &Question, devices: &Devices) -> Read<Finding> {
        let rules = Arc::clone(&self.rules);
        match question {
            Question::Rules(key) => {
                let (key, process) = (*key, self.table.get(*key));
                let task = process.and_then(|process| process.applied).map(|applied| applied.task);
                let search = devices.device_search(key, task);
                Box::new(move || Finding::Inspected(Box::new(rules.inspect(key, search))))
            }
            Question::Claimant(key) => {
                let key = *key;
                let devices = devices.backends.devices().into_iter();
                let devices: Vec<String> = devices.map(|(_, device)| device.uuid).collect();
                Box::new(move || {
                    let search = Box::new(move || visible_gpu(key.pid, devices));
                    let read = rules.inspect(key, search).ok();
                    let claimant = read.map(|read| Box::new((key, read)));
                    Finding::Facts(KnownFacts { claimant, ..KnownFacts::default() })
                })
            }
            Question::Facts(keys) => {
                let keys = keys.clone();
                Box::new(move || Finding::Facts(KnownFacts::read(&keys, rules.private)))
            }
        }
    }

    /// Takes in an inspection. Does nothing for one that was given up.
    pub(crate) fn take_inspection(
        &mut self,
        read_id: u64,
        inspected: Result<Inspected, ProcessError>,
        context: &mut Context<'_>,
    ) {
        let Some((key, reasons)) = self.inspections.end(read_id) else { return };
        // A process that has ended since is not reported.
        let Ok(inspected) = inspected else { return };
        for reason in reasons {
            match reason {
                InspectReason::Appeared(controller) => {
                    self.track(controller, key, &inspected, context);
                }
                InspectReason::DevicesChanged => {
                    if let Some(process) = self.table.get_mut(key) {
                        process.note_surroundings(&inspected);
                    }
                    self.yielding.is_stale = true;
                    self.reassign_for_devices(key, &inspected, context);
                }
                InspectReason::RulesChanged => self.reassign(key, &inspected, context),
            }
        }
    }

    /// An inspection takes too long. The process has the lowest priority until it ends, unless the
    /// process is tracked already or belongs to a trusted user.
    pub(crate) fn take_late_inspection(&mut self, read_id: u64, context: &mut Context<'_>) {
        let Some((key, reasons)) = self.inspections.set_late(read_id) else { return };
        let Ok(info) = ProcessInfo::read(key.pid) else { return };
        if info.key != key || info.zombie {
            return;
        }
        let beginning = unread(key, &info.name);
        let is_trusted = context.reads.is_trusted(info.uid) || self.rules.private.is_some();
        let until = if self.table.get(key).is_some() {
            "it keeps its settings"
        } else if is_trusted {
            "it is not scheduled"
        } else {
            "it has priority 0"
        };
        context.telemetry.problem(&format!(
            "{beginning} within {READ_TIME_MAX}: uid {} has many processes, or the process does \
             not let itself be read; {until} until it is",
            info.uid
        ));
        if is_trusted {
            return;
        }
        for reason in reasons {
            let InspectReason::Appeared(controller) = reason else { continue };
            if self.table.get(key).is_some() {
                self.add_controller(controller, key, context);
                continue;
            }
            let labels = ProcessLabels {
                name: info.name.clone(),
                uid: info.uid,
                ..ProcessLabels::default()
            };
            let watch = self.watch(key, context.poller);
            let assigned = (labels, Assignment::unread());
            let mut process = TrackedProcess::new(key, assigned, controller, watch);
            process.is_unread = true;
            self.load_saved(&mut process, monotonic_ns());
            self.table.insert(process);
            self.apply(key, context);
            self.tell_of(key, EventKind::Appeared, 0, context.telemetry);
        }
    }

    /// The problem of a late inspection is over.
    pub(super) fn solve_unread(key: ProcessKey, name: &str, context: &mut Context<'_>) {
        context.telemetry.problems.solve(&unread(key, name));
    }
}

/// The first of the devices that the environment of a process shows it.
fn visible_gpu(pid: u32, devices: Vec<String>) -> Vec<String> {
    let environ = bounded(&PathBuf::from(format!("/proc/{pid}/environ"))).unwrap_or_default();
    let names = BTreeSet::from([VISIBLE.to_owned()]);
    let environment = Environment::parse(&environ, &names);
    let Some(visible) = environment.get(VISIBLE) else { return Vec::new() };
    let first = visible.split(',').next().unwrap_or_default().trim().to_lowercase();
    let is_it = |gpu: &Gpu| {
        let uuid = gpu.uuid.as_deref().unwrap_or_default().to_lowercase();
        gpu.index.map(|index| index.to_string()).as_ref() == Some(&first)
            || !first.is_empty() && uuid.starts_with(&first)
    };
    let found = Gpu::named(devices).into_iter().find(is_it);
    found.and_then(|gpu| gpu.uuid).into_iter().collect()
}

/// The variable by which users choose the GPUs that a CUDA program sees.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// The beginning of the problem of a late inspection.
fn unread(key: ProcessKey, name: &str) -> String {
    format!("{name} ({key}) was not inspected")
}
