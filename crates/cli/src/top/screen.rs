//! The terminal: kept while this runs, and given back as it was, however it ends.

use std::io::{self, IsTerminal};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use gpreempt_wire::client::{Client, ClientError};
use gpreempt_wire::process::Process;
use gpreempt_wire::request::Request;
use gpreempt_wire::traits::TraitsChange;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};

use super::frame;
use super::history::{History, TaskKey};
use super::keys::{Panel, Wish};
use crate::daemon;
use crate::failure::Failure;
use crate::stop::Stop;

/// How long a process is suspended by a key.
const LEASE_MS: NonZeroU32 = NonZeroU32::new(10_000).expect("not zero");
/// How long we sleep at the most, so that signals are noticed.
const SLEEP_MAX: Duration = Duration::from_millis(250);

/// Shows what there is to see until somebody has seen enough.
pub(super) fn run(mut client: Client, every: Duration) -> Result<(), Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::input("top needs a terminal; use --once or --json here"));
    }
    let stop = Stop::on_signals()?;
    let mut history = History::default();
    let mut panel = Panel::default();
    // If the daemon has nothing to say, the terminal need not flicker.
    history.push(daemon::snapshot(&mut client)?);
    let mut screen = Screen::open()?;
    loop {
        panel.catch_up(&history.latest().tasks);
        screen.draw(&history, &panel)?;
        let due = Instant::now() + every;
        loop {
            if stop.is_set() {
                return Ok(());
            }
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if !event::poll(left.min(SLEEP_MAX))? {
                continue;
            }
            if let Event::Key(key) = event::read()? {
                match panel.press(key, &history.latest().tasks) {
                    Some(Wish::Quit) => return Ok(()),
                    Some(wish) => panel.say(fulfil(&mut client, wish)?),
                    None => {}
                }
            }
            screen.draw(&history, &panel)?;
        }
        history.push(daemon::snapshot(&mut client)?);
    }
}

/// Asks the daemon for it. Returns what to tell.
fn fulfil(client: &mut Client, wish: Wish) -> Result<String, Failure> {
    let process = |(pid, start_ticks): TaskKey| {
        let process = Process::new(pid, start_ticks);
        process.ok_or_else(|| Failure::run(format_args!("there is no process {pid}")))
    };
    let (request, done) = match wish {
        Wish::Quit => return Ok(String::new()),
        Wish::Set(task, priority) => {
            let change = TraitsChange { priority: Some(priority), ..TraitsChange::default() };
            let done = format!("{} has priority {priority}", task.0);
            (Request::Set { process: process(task)?, change }, done)
        }
        Wish::Suspend(task) => {
            let done = format!("{} is suspended for 10 s; r resumes it", task.0);
            (Request::Suspend { process: process(task)?, lease_ms: LEASE_MS }, done)
        }
        Wish::Resume(task) => {
            (Request::Resume { process: process(task)? }, format!("{} runs again", task.0))
        }
    };
    match client.expect_ok(&request) {
        Ok(()) => Ok(done),
        // A refusal is an answer; everything else is the end.
        Err(ClientError::Refused(refusal)) => Ok(refusal.to_string()),
        Err(error) => Err(daemon::failure(&error)),
    }
}

/// A terminal that is ours.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> Result<Self, Failure> {
        // This also sees to it that a panic gives the terminal back before it says anything.
        ratatui::try_init().map(Self).map_err(|error| {
            ratatui::restore();
            Failure::run(format_args!("the terminal cannot be used: {error}"))
        })
    }

    fn draw(&mut self, history: &History, panel: &Panel) -> io::Result<()> {
        self.0.draw(|picture| {
            let area = picture.area();
            frame::draw(history, panel, area, picture.buffer_mut());
        })?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}
