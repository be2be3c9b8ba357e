//! `gpreempt top`: who is on the GPUs, as it changes.
//!
//! Snapshots go into a [`history::History`]; a picture is a pure function of that, the size, and
//! what is selected ([`frame::draw`]). Only [`screen`] knows the terminal.

mod frame;
mod history;
mod keys;
mod screen;
mod table;
#[cfg(test)]
mod tests;
mod time_line;

use gpreempt_wire::client::Client;
use gpreempt_wire::role::Role;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::args::TopArgs;
use crate::failure::Failure;
use crate::{daemon, output};
use history::History;
use keys::Panel;

/// How wide a picture is that nobody looks at yet.
const WIDTH: u16 = 80;

pub(crate) fn main(args: &TopArgs) -> Result<(), Failure> {
    let mut client = daemon::require(Role::Monitor)?;
    if args.json {
        return print_lines(&mut client, args);
    }
    if !args.once {
        return screen::run(client, args.every);
    }
    let mut history = History::default();
    history.push(daemon::snapshot(&mut client)?);
    // Who held a device is the difference of two moments.
    std::thread::sleep(args.every);
    history.push(daemon::snapshot(&mut client)?);
    output::print(&plain(&history))
}

fn print_lines(client: &mut Client, args: &TopArgs) -> Result<(), Failure> {
    loop {
        output::print(&format!("{}\n", daemon::snapshot(client)?.to_json()))?;
        if args.once {
            return Ok(());
        }
        std::thread::sleep(args.every);
    }
}

/// A picture as plain text, as high as it takes.
fn plain(history: &History) -> String {
    let area = Rect::new(0, 0, WIDTH, frame::height(history));
    let mut buffer = Buffer::empty(area);
    frame::draw(history, &Panel::for_paper(), area, &mut buffer);
    format!("{}\n", text(&buffer).trim_end())
}

/// What a buffer shows, without colours.
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
