//! `gpreempt top`: shows the processes on the GPUs, and updates them.
//!
//! Snapshots are added to a [`history::History`]; a picture is a pure function of that, the size,
//! and the selection ([`frame::draw`]). Only this file uses the terminal.

mod frame;
mod history;
mod keys;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use gpreempt_daemon::live::LivePage;
use gpreempt_wire::client::{Client, ClientError};
use gpreempt_wire::process::{Process, SchedAttrChange};
use gpreempt_wire::request::{EvictScope, Request, Role};
use gpreempt_wire::statistics::Snapshot;
use ratatui::DefaultTerminal;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event};
use ratatui::layout::Rect;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::args::TopArgs;
use crate::failure::Failure;
use crate::memory_move::PendingRequest;
use crate::signals::Stop;
use crate::{output, ps_program, service};
use history::{History, TaskKey};
use keys::{KeyCommand, Panel};

/// The width of a picture without a terminal.
const WIDTH: u16 = 80;

/// The lease of a suspension by a key.
const LEASE_MS: NonZeroU32 = NonZeroU32::new(10_000).expect("not zero");
/// The longest wait for a key, so that signals are noticed.
const SLEEP_MAX: Duration = Duration::from_millis(250);

pub(crate) fn main(args: &TopArgs) -> Result<(), Failure> {
    if let Some(address) = args.web {
        return serve_page(address, args.allow_remote);
    }
    let mut client = service::require(Role::Monitor)?;
    if args.json {
        return print_lines(&mut client, args);
    }
    if !args.once {
        return run(client, args.every);
    }
    let (mut history, mut names) = (History::default(), Names::default());
    history.push(names.snapshot(&mut client)?);
    // The time line begins with the second snapshot.
    std::thread::sleep(args.every);
    history.push(names.snapshot(&mut client)?);
    output::print(&plain(&history))
}

/// Serves the live page until a signal.
fn serve_page(address: SocketAddr, allow_remote: bool) -> Result<(), Failure> {
    if !address.ip().to_canonical().is_loopback() && !allow_remote {
        return Err(Failure::input(format_args!(
            "other machines can reach {address} and could read the page; give an address of this \
             machine such as 127.0.0.1:9465, or --allow-remote"
        )));
    }
    // The page would say that no daemon runs; the terminal says so at once.
    drop(service::require(Role::Monitor)?);
    let stop = Stop::on_signals()?;
    let page = LivePage::listen(address).map_err(|error| {
        Failure::input(format_args!(
            "the page cannot be served at {address}: {error}; give another address, or port 0 for \
             a free port"
        ))
    })?;
    output::print(&format!("the page is at http://{}/ until Ctrl-C\n", page.address()))?;
    while !stop.is_set() {
        std::thread::sleep(SLEEP_MAX);
    }
    Ok(())
}

fn print_lines(client: &mut Client, args: &TopArgs) -> Result<(), Failure> {
    loop {
        output::print(&format!("{}\n", service::snapshot(client)?.to_json()))?;
        if args.once {
            return Ok(());
        }
        std::thread::sleep(args.every);
    }
}

/// A picture as plain text, as high as it needs to be.
fn plain(history: &History) -> String {
    let area = Rect::new(0, 0, WIDTH, frame::height(history));
    let mut buffer = Buffer::empty(area);
    frame::draw(history, &Panel::without_keys(), area, &mut buffer);
    format!("{}\n", text(&buffer).trim_end())
}

/// The content of a buffer, without colours.
fn text(buffer: &Buffer) -> String {
    let mut text = String::new();
    for row in buffer.area.rows() {
        let line: String = row
            .columns()
            .filter_map(|cell| buffer.cell(cell))
            .fold(String::new(), |line, cell| line + cell.symbol());
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Updates the picture until a key or a signal ends the program.
fn run(mut client: Client, every: Duration) -> Result<(), Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::input("top needs a terminal; use --once or --json here"));
    }
    let stop = Stop::on_signals()?;
    let (mut history, mut names) = (History::default(), Names::default());
    let mut panel = Panel::default();
    // Before the terminal is changed, so that an error does not clear it.
    history.push(names.snapshot(&mut client)?);
    let mut screen = Screen::open()?;
    let mut moves = Vec::new();
    loop {
        report_moves(&mut moves, &mut panel);
        panel.update(&panel.view(history.latest()));
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
            match wait_for_input(left.min(SLEEP_MAX))? {
                Input::None => continue,
                Input::Ended => return Ok(()),
                Input::Event => {}
            }
            if let Event::Key(key) = event::read()? {
                match panel.press(key, history.latest()) {
                    Some(KeyCommand::Quit) => return Ok(()),
                    Some(command) => panel.show(execute(&mut client, command, &mut moves)?),
                    None => panel.update(&panel.view(history.latest())),
                }
            }
            screen.draw(&history, &panel)?;
        }
        history.push(names.snapshot(&mut client)?);
    }
}

enum Input {
    None,
    Event,
    /// The terminal was closed.
    Ended,
}

/// Waits for a key or a change of the terminal's size. crossterm reads a closed terminal again and
/// again without an end, so that is found out first.
fn wait_for_input(wait: Duration) -> Result<Input, Failure> {
    let stdin = io::stdin();
    let mut terminal = [PollFd::new(&stdin, PollFlags::IN)];
    let timeout = Timespec::try_from(wait).ok();
    match rustix::event::poll(&mut terminal, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(io::Error::from(error).into()),
    }
    if terminal[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
        return Ok(Input::Ended);
    }
    Ok(if event::poll(Duration::ZERO)? { Input::Event } else { Input::None })
}

/// Programs and scripts of processes, read once for each name that the service tells.
#[derive(Default)]
struct Names(BTreeMap<(TaskKey, String), String>);

impl Names {
    /// A snapshot whose processes have the names that `ps` shows.
    fn snapshot(&mut self, client: &mut Client) -> Result<Snapshot, Failure> {
        let mut snapshot = service::snapshot(client)?;
        let mut before = std::mem::take(&mut self.0);
        for task in &mut snapshot.tasks {
            let about = (history::key(task), task.name.clone());
            let known = before.remove(&about).or_else(|| ps_program::of(task));
            if let Some(name) = known {
                task.name.clone_from(&name);
                self.0.insert(about, name);
            }
        }
        Ok(snapshot)
    }
}

/// A request that moves memory, with the message for its success.
type Move = (PendingRequest, String);

/// Shows the answers that have arrived.
fn report_moves(moves: &mut Vec<Move>, panel: &mut Panel) {
    moves.retain(|(pending, done)| match pending.wait(Duration::ZERO) {
        None => true,
        Some(answer) => {
            panel.show(answer.map_or_else(|error| error.to_string(), |()| done.clone()));
            false
        }
    });
}

/// Sends the request of a key to the service. Returns the message for the bottom line.
fn execute(
    client: &mut Client,
    command: KeyCommand,
    moves: &mut Vec<Move>,
) -> Result<String, Failure> {
    let process = |(pid, start_ticks): TaskKey| {
        let process = Process::new(pid, start_ticks);
        process.ok_or_else(|| Failure::run(format_args!("there is no process {pid}")))
    };
    let (request, done) = match command {
        KeyCommand::Quit => return Ok(String::new()),
        KeyCommand::Set(task, priority) => {
            let change = SchedAttrChange { priority: Some(priority), ..SchedAttrChange::default() };
            let done = format!("{} has priority {priority}", task.0);
            (Request::Set { process: process(task)?, change }, done)
        }
        KeyCommand::Suspend(task) => {
            let done = format!("{} is suspended for 10 s; r resumes it", task.0);
            (Request::Suspend { process: process(task)?, lease_ms: LEASE_MS }, done)
        }
        KeyCommand::Resume(task) => {
            (Request::Resume { process: process(task)? }, format!("{} was resumed", task.0))
        }
        KeyCommand::Evict(task) => {
            let (process, scope) = (process(task)?, EvictScope::Process);
            let request = Request::Evict { process, lease_ms: 0, scope };
            let done = format!("{} is evicted; b moves its memory back", task.0);
            moves.push((PendingRequest::send(service::require(Role::Monitor)?, request)?, done));
            return Ok(format!("{} is being evicted", task.0));
        }
        KeyCommand::Restore(task) => {
            let request = Request::Restore { process: process(task)? };
            let done = format!("the memory of {} is back", task.0);
            moves.push((PendingRequest::send(service::require(Role::Monitor)?, request)?, done));
            return Ok(format!("the memory of {} returns", task.0));
        }
    };
    match client.expect_ok(&request) {
        Ok(()) => Ok(done),
        // A refusal is shown; any other error ends the program.
        Err(ClientError::Refused(refusal)) => Ok(refusal.to_string()),
        Err(error) => Err(error.into()),
    }
}

/// The terminal in raw mode. Dropping it restores the terminal, however the program ends.
struct Screen(DefaultTerminal);

impl Screen {
    fn open() -> Result<Self, Failure> {
        // This also restores the terminal before a panic prints its message.
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
