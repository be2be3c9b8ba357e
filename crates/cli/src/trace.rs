//! `gpreempt trace`: a time line of what the daemon decides, and why.

mod chrome;

use std::num::NonZeroU16;
use std::time::Duration;

use gpreempt_wire::request::Request;
use gpreempt_wire::role::Role;
use serde_json::json;

use crate::args::TraceArgs;
use crate::failure::Failure;
use crate::stop::Stop;
use crate::write_file::{probe, write_whole};
use crate::{daemon, output};
use chrome::Recording;

/// How often it is looked whether somebody wants to end it.
const CHECK: Duration = Duration::from_millis(100);
/// How many events are kept at the most: some hundred megabytes of file.
const EVENTS_MAX: usize = 1_000_000;

pub(crate) fn main(args: &TraceArgs) -> Result<(), Failure> {
    let seconds = whole_seconds(args.time)?;
    probe(&args.out).map_err(Failure::input)?;
    let mut client = daemon::require(Role::Monitor)?;
    let mut recording = Recording::new(daemon::snapshot(&mut client)?);
    let stop = Stop::on_signals()?;
    let request = Request::Trace { seconds };
    let mut follow = client.follow(&request).map_err(|error| daemon::failure(&error))?;
    let mut problem = None;
    while !follow.is_over() && !stop.is_set() && recording.len() < EVENTS_MAX {
        match follow.next_within(CHECK) {
            Ok(Some(event)) => recording.push(event),
            Ok(None) => {}
            // What there is by then is worth keeping.
            Err(error) => problem = Some(daemon::failure(&error)),
        }
    }
    let (events, dropped) = (recording.len(), follow.dropped());
    if events == 0
        && let Some(problem) = problem
    {
        return Err(problem);
    }
    let trace = recording.finish(dropped);
    let bytes = serde_json::to_vec(&trace).map_err(Failure::run)?;
    write_whole(&args.out, &bytes).map_err(Failure::input)?;
    if let Some(Failure::Run(problem) | Failure::Input(problem)) = problem {
        let out = args.out.display();
        return Err(Failure::run(format_args!(
            "{problem}; the {events} events before are in {out}"
        )));
    }
    say(args, events, dropped)
}

fn say(args: &TraceArgs, events: usize, dropped: u64) -> Result<(), Failure> {
    let out = args.out.display();
    if args.json {
        let file = out.to_string();
        return output::print_json(&json!({ "file": file, "events": events, "dropped": dropped }));
    }
    let missing = if dropped == 0 { String::new() } else { format!(" ({dropped} were left out)") };
    output::print(&format!("{events} events{missing} in {out}; open it in ui.perfetto.dev\n"))
}

/// The protocol counts in seconds.
fn whole_seconds(time: Duration) -> Result<NonZeroU16, Failure> {
    let seconds = u16::try_from(time.as_secs()).ok().filter(|_| time.subsec_nanos() == 0);
    seconds
        .and_then(NonZeroU16::new)
        .ok_or_else(|| Failure::input("a trace takes whole seconds, from 1s to 1092m"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_takes_whole_seconds() {
        let seconds = |ms| whole_seconds(Duration::from_millis(ms)).ok().map(NonZeroU16::get);
        assert_eq!([seconds(1_000), seconds(65_535_000)], [Some(1), Some(65_535)]);
        assert_eq!([seconds(500), seconds(1_500), seconds(65_536_000)], [None; 3]);
    }
}
