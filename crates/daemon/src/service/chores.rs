//! What is done now and then: signals, the socket, the keeper, the watchdog.

use gpreempt_core::event::Event;
use gpreempt_core::time::Duration;
use gpreempt_device::process::ProcessKey;
use gpreempt_wire::event::{Event as WireEvent, EventKind};
use gpreempt_wire::hint_reader::HintChange;
use gpreempt_wire::text::Text;

use super::history::SAMPLE;
use super::scrape::Scrape;
use super::snapshot::totals;
use super::{Service, instant};
use crate::accounts::Accounts;

impl Service {
    pub(super) fn take_signals(&mut self, now_ns: u64) -> Result<(), String> {
        let asked = self.signals.take();
        if asked.reload {
            self.reload(now_ns);
        }
        self.is_stopping |= asked.stop;
        if asked.child { self.look_after_keeper() } else { Ok(()) }
    }

    /// A keeper that is gone is replaced, or nothing may be changed any more.
    fn look_after_keeper(&mut self) -> Result<(), String> {
        if self.guard.has_given_up() {
            return self.begin_again();
        }
        match self.guard.look_after_keeper() {
            Ok(false) => Ok(()),
            Ok(true) => {
                self.problem("the keeper was killed; there is a new one");
                Ok(())
            }
            Err(error) => Err(format!(
                "the keeper was killed and there is no new one ({error}), so nothing may be changed"
            )),
        }
    }

    /// Reads the configuration again. If it has a mistake the old one stays.
    fn reload(&mut self, now_ns: u64) {
        self.notifier.reloading(now_ns);
        match self.read_again() {
            Ok(()) => {
                self.problems.solve("the configuration stays");
                self.tell_of_policy(now_ns);
            }
            Err(problem) => {
                let problem = format!("the configuration stays as it was: {problem}");
                // It is said every time somebody tries.
                self.problems.add(&problem, instant(now_ns));
                self.log.error(&problem);
                self.notifier.ready("the configuration stays as it was");
            }
        }
    }

    /// Everybody has been judged by the configuration that was read again.
    pub(super) fn end_reload(&mut self) {
        self.log.info("the configuration was read again");
        self.notifier.ready("the configuration was read again");
    }

    fn read_again(&mut self) -> Result<(), String> {
        let config = self.options.load_config().map_err(|error| error.to_string())?;
        let accounts = Accounts::load().map_err(|error| error.to_string())?;
        let address = config.metrics.listen;
        if self.scrape.as_ref().map(Scrape::address) != address {
            let before = self.scrape.take();
            match address.map(|address| Scrape::listen(address, &self.poller)).transpose() {
                Ok(scrape) => self.scrape = scrape,
                Err(problem) => {
                    self.scrape = before;
                    return Err(problem);
                }
            }
        }
        let core = config.scheduler.core;
        let now = self.driver.now();
        let set = self.driver.scheduler_mut().set_config(now, core);
        set.map_err(|error| error.to_string())?;
        self.log.set_level(config.service.log);
        self.backends.set_rescan(config.service.rescan);
        if self.options.socket_path(&config).is_ok_and(|socket| socket != self.socket) {
            self.log.warn("another socket is used after a restart only");
        }
        self.environment_names = config.environment_names();
        self.config = config;
        self.accounts = accounts;
        self.backlog.add_reload(self.roster.keys());
        Ok(())
    }

    /// Judges a process by rules that may be others than before.
    pub(super) fn judge_anew(&mut self, key: ProcessKey) {
        let Ok((about, verdict)) = self.judge(key) else { return };
        let Some(member) = self.roster.get_mut(key) else { return };
        member.about = about;
        member.verdict = verdict;
        member.obstacle = None;
        if member.is_ignored() {
            member.suspended_until_ns = None;
        }
        self.apply(key);
    }

    /// What is done four times in a second.
    pub(super) fn do_chores(&mut self, now_ns: u64) -> Result<(), String> {
        let watchdog = self.notifier.watchdog();
        if let Some(interval) = watchdog
            && now_ns >= self.watchdog_at_ns
        {
            self.notifier.alive();
            self.watchdog_at_ns = now_ns.saturating_add(interval.as_nanos());
        }
        if now_ns < self.chores_at_ns {
            return Ok(());
        }
        let next = watchdog.unwrap_or(SAMPLE).min(SAMPLE).max(CHORES_MIN);
        self.chores_at_ns = now_ns.saturating_add(next.as_nanos());
        let now = instant(now_ns);
        self.history.sample(self.driver.now(), totals(self.driver.scheduler().queues()));
        self.sessions.sweep(now, &self.poller, &mut self.log);
        if let Some(scrape) = &mut self.scrape {
            scrape.sweep(now);
        }
        match self.sessions.keep_listening(&self.socket, &self.poller) {
            Ok(false) => {}
            Ok(true) => self.log.warn("the socket was removed; it is there again"),
            Err(problem) => self.problem(&problem),
        }
        self.registrations.sweep();
        self.sweep_members();
        self.end_suspensions_of_the_dead();
        self.orders.sweep(now_ns);
        self.keep_orders();
        self.check_for_system_daemon()?;
        self.look_after_keeper()
    }

    /// Notices the end of processes that could not be watched.
    fn sweep_members(&mut self) {
        let unwatched = self.roster.members().filter(|member| member.pidfd.is_none());
        let ended = unwatched.filter(|member| member.key.check().is_err());
        for key in ended.map(|member| member.key).collect::<Vec<_>>() {
            self.part(key);
        }
    }

    /// Takes in what pages say, and what they no longer say because their sessions are over.
    pub(super) fn look_at_pages(&mut self, now_ns: u64) {
        let now = instant(now_ns);
        for task in self.sessions.take_orphans() {
            self.backends.say(Event::HintEnd { task });
        }
        let mut hints = Vec::new();
        for session in self.sessions.pages() {
            let Some(page) = &mut session.page else { continue };
            // A hint of somebody whom nobody has looked at yet would be lost.
            if session.process.is_some_and(|key| self.backlog.awaits(key)) {
                continue;
            }
            let member = session.process.and_then(|key| self.roster.get(key));
            let in_force = member.and_then(|member| Some((member.key, member.in_force?.task)));
            if let Some((_, task)) = in_force
                && let Some(sight) = page.show_for(task)
            {
                self.backends.watch_hints(task, &sight);
            }
            let Some(change) = page.look(now) else { continue };
            let Some((key, task)) = in_force else { continue };
            session.hinted = (change != HintChange::Ended).then_some(task);
            hints.push((key, task, change));
        }
        for (key, task, change) in hints {
            match change {
                HintChange::Began { deadline_us } => {
                    let deadline = deadline_us.map(Duration::from_micros);
                    self.backends.say(Event::HintBegin { task, deadline });
                    let deadline_ns = deadline.map_or(0, Duration::as_nanos);
                    self.tell_of(key, EventKind::HintBegin, deadline_ns);
                }
                HintChange::Ended => {
                    self.backends.say(Event::HintEnd { task });
                    self.tell_of(key, EventKind::HintEnd, 0);
                }
            }
        }
    }

    /// Tells followers that the settings are others now.
    pub(super) fn tell_of_policy(&mut self, now_ns: u64) {
        let mut event = WireEvent::new(now_ns, EventKind::Policy);
        let policy = self.driver.scheduler().config().policy;
        event.reason = Text::new(&format!("the policy is {policy} now"));
        self.untold.push(event);
    }
}

/// Chores are not done more often than this, however short the watchdog's patience.
const CHORES_MIN: Duration = Duration::from_millis(10);
