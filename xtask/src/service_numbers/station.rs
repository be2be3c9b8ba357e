//! The important client: it wants the device now and then, and hears what the daemon does.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, bail};
use gpreempt_core::id::DeviceId;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration as Time;
use gpreempt_stage::LIMIT;
use gpreempt_wire::client::Client;
use gpreempt_wire::client::{Follow, HintWriter};
use gpreempt_wire::clock::monotonic;
use gpreempt_wire::emulator::client::{Client as EmuClient, Launch, Queue};
use gpreempt_wire::event::{Event, EventKind};
use gpreempt_wire::process::Process;
use gpreempt_wire::request::Request;
use gpreempt_wire::traits::TraitsChange;

use super::sample::Sample;
use super::setup::Setup;

/// Longer than any interval, so that the work is still there when it is looked for.
const KERNEL_NS: u32 = 12_000_000;
/// How long nothing is heard before it is given up: far more than any reaction.
const SILENCE: Duration = Duration::from_secs(3);
/// How far apart requests are at the most, beyond what it takes to put everything back.
const PAUSE_US_MAX: u64 = 10_000;

/// The client.
#[derive(Debug)]
pub(super) struct Station {
    _emulator: EmuClient,
    queue: Queue,
    launch: Launch,
    follow: Follow,
    /// Kept, because what was asked for ends with it.
    _registered: Client,
    page: HintWriter,
    slot: usize,
    /// Queues that are off on our account, and since when.
    off: BTreeMap<u64, u64>,
    /// Of those, the ones that have left.
    left: BTreeSet<u64>,
    chance: u64,
    lost: u64,
    commands: Sample,
    detected: Sample,
    done: Sample,
}

impl Station {
    /// A client with a higher priority than all loads of the setup.
    pub(super) fn open(setup: &Setup) -> anyhow::Result<Self> {
        let mut registered = setup.connect()?;
        let change = TraitsChange { priority: Priority::new(12), ..TraitsChange::default() };
        let register = Request::Register { process: Process::SENDER, change };
        let why = "a priority above 7 needs root or the group gpreempt";
        registered.expect_ok(&register).context(why)?;
        let (groups, waves) = (4, 1);
        let region_bytes = 32 * groups;
        let mut emulator = EmuClient::connect(&setup.gpu(), region_bytes)?;
        let queue = emulator.open_queue(DeviceId(0), 64)?;
        let known = setup.snapshot()?.tasks.iter().map(|task| task.queues.len()).sum::<usize>();
        setup.until_queues(known.max(4))?;
        let page = setup.connect()?.open_page()?;
        let slot = page.claim().context("the page has no free slot")?;
        let follow = setup.connect()?.follow(&Request::Follow)?;
        let (kernel, region, number, work_ns) = (0, 0, 0, KERNEL_NS);
        let launch = Launch { kernel, groups, waves, region, region_bytes, number, work_ns };
        Ok(Self {
            _emulator: emulator,
            queue,
            launch,
            follow,
            _registered: registered,
            page,
            slot,
            off: BTreeMap::new(),
            left: BTreeSet::new(),
            chance: 1,
            lost: 0,
            commands: Sample::default(),
            detected: Sample::default(),
            done: Sample::default(),
        })
    }

    /// Submits something, and waits for the command that makes room for it.
    pub(super) fn work(&mut self) -> anyhow::Result<()> {
        let begin_ns = monotonic().as_nanos();
        self.queue.submit(&self.launch)?;
        self.await_command(begin_ns)?;
        let wanted = self.queue.submitted();
        let patience = Time::from_millis(u64::try_from(LIMIT.as_millis())?);
        if !self.queue.wait(wanted, patience)? {
            bail!("the device never did what was submitted");
        }
        Ok(())
    }

    /// Says that a request is coming, waits for the command that makes room for it, and says that
    /// it was nothing.
    pub(super) fn hint(&mut self) -> anyhow::Result<()> {
        let begin_ns = monotonic().as_nanos();
        self.page.begin(self.slot, 0);
        self.await_command(begin_ns)?;
        self.page.end(self.slot);
        Ok(())
    }

    /// Waits until everybody else is back, and for a time that nobody can guess.
    pub(super) fn settle(&mut self) -> anyhow::Result<()> {
        // Whoever's return was left out of the events is back after so long as well.
        while !self.off.is_empty() && self.hear(SILENCE)?.is_some() {}
        self.off.clear();
        self.left.clear();
        // The numbers of Knuth's generator; any would do.
        self.chance = self.chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_micros((self.chance >> 33) % PAUSE_US_MAX));
        Ok(())
    }

    fn await_command(&mut self, begin_ns: u64) -> anyhow::Result<()> {
        let own = std::process::id();
        let mut detected_ns = None;
        loop {
            let Some(event) = self.hear(SILENCE)? else {
                // The daemon leaves events out when we read too slowly, and this was one.
                self.lost += 1;
                return Ok(());
            };
            if event.at_ns < begin_ns {
                continue;
            }
            let is_own = |process: Option<Process>| process.map(Process::pid) == Some(own);
            if event.kind == EventKind::Active && is_own(event.process) {
                detected_ns = Some(event.at_ns);
            }
            if event.kind == EventKind::Preempt && is_own(event.by_process) {
                self.commands.push(event.at_ns - begin_ns);
                if let Some(detected_ns) = detected_ns {
                    self.detected.push(event.at_ns.saturating_sub(detected_ns));
                }
                return Ok(());
            }
        }
    }

    /// The next event within that time, and what it says about who is off.
    fn hear(&mut self, wait: Duration) -> anyhow::Result<Option<Event>> {
        let Some(event) = self.follow.next_within(wait)? else {
            if self.follow.is_over() {
                bail!("the daemon has ended");
            }
            return Ok(None);
        };
        match event.kind {
            EventKind::Preempt => drop(self.off.insert(event.queue, event.at_ns)),
            EventKind::Preempted => {
                if self.off.contains_key(&event.queue) && self.left.insert(event.queue) {
                    self.done.push(event.duration_ns);
                }
            }
            EventKind::Resumed | EventKind::Vanished => {
                self.off.remove(&event.queue);
                self.left.remove(&event.queue);
            }
            EventKind::Resume
            | EventKind::Boost
            | EventKind::Linger
            | EventKind::Fault
            | EventKind::Appeared
            | EventKind::Changed
            | EventKind::HintBegin
            | EventKind::HintEnd
            | EventKind::Active
            | EventKind::Idle
            | EventKind::Suspended
            | EventKind::Released
            | EventKind::Policy => {}
        }
        Ok(Some(event))
    }

    /// How many commands were not heard of.
    pub(super) const fn lost(&self) -> u64 {
        self.lost
    }

    /// From work or hint to command, since the last call.
    pub(super) fn take_commands(&mut self) -> Sample {
        std::mem::take(&mut self.commands)
    }

    /// From detection to command, since the last call.
    pub(super) fn take_detected(&mut self) -> Sample {
        std::mem::take(&mut self.detected)
    }

    /// From command to completion, since the last call.
    pub(super) fn take_done(&mut self) -> Sample {
        std::mem::take(&mut self.done)
    }
}
