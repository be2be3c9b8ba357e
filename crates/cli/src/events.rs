//! `gpreempt events`: prints the events of the service as they happen.

use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;
use gpreempt_wire::event::Event;
use gpreempt_wire::process::Process;
use gpreempt_wire::request::Request;
use gpreempt_wire::request::Role;
use serde_json::{Value, json};

use crate::args::EventsArgs;
use crate::failure::Failure;
use crate::{output, service};

pub(crate) fn main(args: &EventsArgs) -> Result<(), Failure> {
    let events = service::require(Role::Monitor)?.follow(&Request::Follow)?;
    let mut left = args.count;
    for event in events {
        let event = event?;
        if !is_wanted(args, &event) {
            continue;
        }
        if args.json {
            output::print(&format!("{}\n", as_json(&event)))?;
        } else {
            output::print(&text(&event))?;
        }
        left = left.map(|left| left - 1);
        if left == Some(0) {
            break;
        }
    }
    Ok(())
}

/// Whether the arguments select the event.
fn is_wanted(args: &EventsArgs, event: &Event) -> bool {
    let is_of = |pid: u32| {
        let processes = [event.process, event.by_process];
        processes.into_iter().flatten().any(|process| process.pid() == pid)
    };
    (args.kind.is_empty() || args.kind.contains(&event.kind)) && args.pid.is_none_or(is_of)
}

fn as_json(event: &Event) -> Value {
    json!({
        "at_ns": event.at_ns,
        "kind": event.kind.name(),
        "device": event.device,
        "pid": event.process.map(Process::pid),
        "start_ticks": event.process.map(Process::start_ticks),
        "name": event.name.as_str(),
        "queue": some(event.queue),
        "priority": event.priority.map(Priority::level),
        "by_pid": event.by_process.map(Process::pid),
        "by_queue": some(event.by_queue),
        "duration_ns": some(event.duration_ns),
        "reason": event.reason.as_str(),
        "dropped": event.dropped,
    })
}

/// 0 stands for none.
fn some(number: u64) -> Option<u64> {
    Some(number).filter(|number| *number != 0)
}

/// One line, and one before it if events were dropped. Numbers of queues are in the JSON only: no
/// other text names them.
fn text(event: &Event) -> String {
    let mut text = String::new();
    if event.dropped > 0 {
        text.push_str(&format!("({} events were dropped)\n", event.dropped));
    }
    let (seconds, micros) = (event.at_ns / 1_000_000_000, event.at_ns / 1_000 % 1_000_000);
    text.push_str(&format!("{seconds:>6}.{micros:06} {:<10}", event.kind.name()));
    if let Some(process) = event.process {
        text.push_str(&format!(" {} ({process})", event.name));
    }
    if let Some(device) = event.device {
        text.push_str(&format!(" on device {device}"));
    }
    if let Some(duration) = some(event.duration_ns) {
        text.push_str(&format!(", {}", Duration::from_nanos(duration)));
    }
    if !event.reason.is_empty() {
        text.push_str(&format!(": {}", event.reason));
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_wire::event::EventKind;
    use gpreempt_wire::text::Text;

    fn preempted() -> Event {
        Event {
            dropped: 2,
            device: Some(0),
            process: Process::new(4242, 77),
            queue: 3,
            priority: Priority::new(2),
            duration_ns: 812_000,
            name: Text::new("trainer"),
            reason: Text::new("priority 12 waits"),
            ..Event::new(12_345_678_901, EventKind::Preempted)
        }
    }

    #[test]
    fn an_event_is_a_line() {
        let line = "    12.345678 preempted  trainer (4242) on device 0, 812us: \
                    priority 12 waits\n";
        assert_eq!(text(&preempted()), format!("(2 events were dropped)\n{line}"));
        let policy = Event::new(5_000, EventKind::Policy);
        assert_eq!(text(&policy), "     0.000005 policy    \n");
    }

    #[test]
    fn only_selected_events_are_printed() {
        let args = |kind: &[EventKind], pid| EventsArgs {
            kind: kind.to_vec(),
            pid,
            count: None,
            json: false,
        };
        let mut event = preempted();
        event.by_process = Process::new(9, 1);
        for (kinds, pid, expected) in [
            (&[][..], None, true),
            (&[EventKind::Preempted], None, true),
            (&[EventKind::Resume, EventKind::Preempted], Some(4242), true),
            (&[EventKind::Resume], Some(4242), false),
            (&[], Some(9), true),
            (&[], Some(7), false),
        ] {
            assert_eq!(is_wanted(&args(kinds, pid), &event), expected, "{kinds:?} {pid:?}");
        }
        assert!(!is_wanted(&args(&[], Some(9)), &Event::new(1, EventKind::Policy)));
    }

    #[test]
    fn absent_values_are_null() {
        let json = as_json(&preempted());
        assert_eq!(json["pid"], 4242);
        assert_eq!(json["by_pid"], Value::Null);
        assert_eq!(json["by_queue"], Value::Null);
        assert_eq!(json["priority"], 2);
        assert_eq!(json["dropped"], 2);
    }
}
