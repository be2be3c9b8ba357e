//! Prints what gpreemptd decides, for some seconds: `follow_events SECONDS`.

#![expect(clippy::print_stdout, reason = "a program for people")]

use std::error::Error;
use std::num::NonZeroU16;

use gpreempt_wire::client::{Client, ClientOptions};
use gpreempt_wire::request::{Request, Role};

fn main() -> Result<(), Box<dyn Error>> {
    let seconds: u16 = std::env::args().nth(1).ok_or("SECONDS is missing")?.parse()?;
    let seconds = NonZeroU16::new(seconds).ok_or("SECONDS is 0")?;
    let client = Client::connect(&ClientOptions::new(Role::Monitor, "follow_events"))?;
    let mut events = client.follow(&Request::Trace { seconds })?;
    for event in &mut events {
        let event = event?;
        let pid = event.process.map_or(0, |process| process.pid());
        println!("{} {:?} {pid} {}", event.at_ns, event.kind, event.reason.as_str());
    }
    println!("{} events were dropped, because this program read too slowly", events.dropped());
    Ok(())
}
