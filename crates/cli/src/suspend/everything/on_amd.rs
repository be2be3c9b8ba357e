//! Without a daemon, on AMD devices: a session for each process.

use std::collections::BTreeMap;
use std::time::Duration;

use gpreempt_device::act;
use gpreempt_device::amd::Site;
use gpreempt_device::amd::act::AmdAct;
use gpreempt_device::amd::queue::{queues_of, users};
use gpreempt_device::amd::suspension::Suspension;
use gpreempt_device::amd::topology::{Node, Topology};
use gpreempt_device::journal::{Entry, Journal, Session};
use gpreempt_device::keeper::{self, Keeper};
use gpreempt_device::process::{ProcessInfo, ProcessKey};

use super::super::{refuse_touched, stop_all};
use super::{Hand, Stopped};
use crate::failure::Failure;

/// How often it is looked whether somebody new came.
const ROUND: Duration = Duration::from_millis(20);

/// A GPU, and who is off it.
pub(super) struct OnAmd {
    site: Site,
    gpu_id: u32,
    journal: Journal,
    session: Session,
    keeper: Keeper,
    stopped: BTreeMap<u32, (Entry, Option<Suspension>)>,
}

impl OnAmd {
    pub(super) fn new(gpu: &str) -> Result<Self, Failure> {
        let Some(site) = crate::amd::find() else {
            return Err(Failure::input(
                "everything on a GPU can be stopped without gpreemptd on AMD only, and no AMD GPU \
                 can be used here; start gpreemptd first",
            ));
        };
        let gpu_id = find(&site, gpu)?;
        let journal = Journal::open().map_err(Failure::run)?;
        let lock = journal.lock().map_err(Failure::run)?;
        keeper::clean_up(&journal, act::undo).map_err(Failure::run)?;
        let session = journal.begin().map_err(Failure::run)?;
        let keeper = Keeper::start(&session).map_err(Failure::run)?;
        drop(lock);
        Ok(Self { site, gpu_id, journal, session, keeper, stopped: BTreeMap::new() })
    }

    fn stop(&mut self, process: ProcessKey) -> Result<(), Failure> {
        let _lock = self.journal.lock().map_err(Failure::run)?;
        refuse_touched(&self.journal, process)?;
        let site = self.site.name.clone();
        let (suspension, act) = match Suspension::begin_on(&self.site, process, Some(self.gpu_id)) {
            Ok(suspension) => (Some(suspension), AmdAct::Suspend { site }.into()),
            Err(error) if error.allows_pause() => (None, AmdAct::Pause { site }.into()),
            Err(error) => return Err(Failure::input(error)),
        };
        let entry = Entry { process, acts: vec![act], until_ns: None };
        if let Err(failure) = stop_all(&self.session, &entry) {
            // What cannot be put back stays written down: the keeper goes on trying.
            act::undo(&entry).map_err(|error| {
                Failure::run(format_args!("{error}; the keeper tries it again"))
            })?;
            self.session.forget(process).map_err(Failure::run)?;
            return Err(failure);
        }
        self.stopped.insert(process.pid, (entry, suspension));
        Ok(())
    }

    /// Keeps those off who are, and forgets those who are gone or were resumed by somebody. What
    /// does not work with one of them is said, and the others are kept all the same.
    fn keep(&mut self, refused: &mut BTreeMap<u32, String>) -> Result<(), Failure> {
        // Nobody was resumed because we cannot read.
        let written = self.session.entries().map_err(Failure::run)?;
        let gpu_id = Some(self.gpu_id);
        let mut gone = Vec::new();
        for (pid, (entry, suspension)) in &mut self.stopped {
            let is_there = match suspension {
                Some(suspension) => suspension.keep(gpu_id).unwrap_or_else(|error| {
                    refused.insert(*pid, format!("not all of it is off: {error}"));
                    true
                }),
                None => entry.process.check().is_ok(),
            };
            let is_wanted = written.iter().any(|written| written.process == entry.process);
            if !is_there || !is_wanted {
                gone.push(*pid);
            }
        }
        for pid in gone {
            if let Some((entry, _)) = self.stopped.remove(&pid) {
                self.session.forget(entry.process).map_err(Failure::run)?;
            }
        }
        Ok(())
    }
}

impl Hand for OnAmd {
    /// Looking is one list of a small folder.
    fn round(&self) -> Duration {
        ROUND
    }

    fn stop_all(&mut self, _left: Option<Duration>) -> Result<Stopped, Failure> {
        if self.keeper.has_died() {
            return Err(Failure::run("the keeper was killed; everything was undone"));
        }
        self.keeper.beat();
        let mut stopped = Stopped::default();
        self.keep(&mut stopped.refused)?;
        let sysfs = self.site.places.sysfs.clone();
        for pid in users(&sysfs).map_err(Failure::run)? {
            let queues = queues_of(&sysfs, pid).unwrap_or_default();
            let is_here = queues.iter().any(|queue| queue.gpu_id == self.gpu_id);
            if !is_here || self.stopped.contains_key(&pid) || pid == std::process::id() {
                continue;
            }
            // Whoever ends meanwhile is not worth a word.
            let Ok(info) = ProcessInfo::read(pid) else { continue };
            if let Err(Failure::Input(why) | Failure::Run(why)) = self.stop(info.key) {
                stopped.refused.insert(pid, why);
            }
        }
        stopped.pids = self.stopped.keys().copied().collect();
        Ok(stopped)
    }

    fn let_all_go(&mut self) -> Result<(), Failure> {
        let mut result = Ok(());
        for (_, (entry, suspension)) in std::mem::take(&mut self.stopped) {
            let ended = suspension.map_or(Ok(()), Suspension::end).map_err(Failure::run);
            let undone = act::undo(&entry).map_err(Failure::run);
            let done = ended.and(undone);
            let done = done.and_then(|()| self.session.forget(entry.process).map_err(Failure::run));
            result = result.and(done);
        }
        result
    }
}

/// How much of a name is enough to mean one.
const SHORT_NAME: usize = 8;

/// The GPU of that name: its UUID, its place on the bus, or its number among those of KFD.
fn find(site: &Site, gpu: &str) -> Result<u32, Failure> {
    let topology = Topology::read(&site.places.sysfs).map_err(Failure::run)?;
    let named = |(index, node): &(usize, &Node)| {
        index.to_string() == gpu || node.uuid().eq_ignore_ascii_case(gpu) || node.pci() == gpu
    };
    // `ps` shows how a name begins; where that is enough, it is enough here.
    let mut alike = topology
        .devices()
        .enumerate()
        .filter(|(_, node)| gpu.len() >= SHORT_NAME && node.uuid().starts_with(gpu));
    let only = alike.next().filter(|_| alike.next().is_none());
    let found = topology.devices().enumerate().find(named).or(only);
    found.map(|(_, node)| node.gpu_id).ok_or_else(|| {
        let all: Vec<String> = topology.devices().map(Node::uuid).collect();
        Failure::input(format_args!("there is no AMD GPU {gpu}; there are {}", all.join(", ")))
    })
}
