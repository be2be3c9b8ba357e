//! docs/reference/protocol.md and examples.txt describe what the code does.

use std::fs;
use std::num::NonZeroU32;

use gpreempt_core::latency_budget::LatencyBudget;
use gpreempt_core::priority::Priority;
use gpreempt_wire::chunk::Chunk;
use gpreempt_wire::event::{Event, EventKind};
use gpreempt_wire::message::DecodeError;
use gpreempt_wire::message::{Body, Message};
use gpreempt_wire::policy::PolicySettings;
use gpreempt_wire::process::Process;
use gpreempt_wire::process::SchedAttrChange;
use gpreempt_wire::queue::{QueueIds, QueueList, QueueStop, StopDepth};
use gpreempt_wire::reply::Reply;
use gpreempt_wire::reply::{Refusal, RefusalCode};
use gpreempt_wire::request::Request;
use gpreempt_wire::request::Role;
use gpreempt_wire::text::Text;

fn document() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/protocol.md");
    fs::read_to_string(path).unwrap()
}

/// The bytes of the example that follows a line `Example: NAME`. Everything after `;`
/// explains, and `00*8` is eight zeros.
fn example(name: &str) -> Vec<u8> {
    let examples = include_str!("examples.txt");
    let (_, rest) = examples.split_once(&format!("Example: {name}\n")).expect(name);
    let (_, rest) = rest.split_once("```text\n").expect(name);
    let (block, _) = rest.split_once("```").expect(name);
    let words = block.lines().flat_map(|line| {
        line.split(';').next().unwrap_or("").split_whitespace().collect::<Vec<_>>()
    });
    words
        .flat_map(|word| {
            let (byte, count) = word.split_once('*').unwrap_or((word, "1"));
            vec![u8::from_str_radix(byte, 16).unwrap(); count.parse().unwrap()]
        })
        .collect()
}

fn assert_example<B: Body + PartialEq + std::fmt::Debug>(name: &str, request: u64, body: B) {
    let message = Message { request, body };
    assert_eq!(example(name), message.encode(), "{name}");
    assert_eq!(Message::decode(&example(name)), Ok(message), "{name}");
}

#[test]
fn the_examples_are_what_the_encoder_makes() {
    let hello = Request::Hello { role: Role::Command, program: Text::new("gpreempt 0.1.0") };
    assert_example("Hello", 1, hello);
    let process = Process::new(4242, 777_000).unwrap();
    let change = SchedAttrChange {
        priority: Priority::new(12),
        weight: NonZeroU32::new(3),
        deadline_us: Some(5_000),
        latency_budget: LatencyBudget::from_percent(20),
        evictable: None,
    };
    assert_example("Set", 2, Request::Set { process, change });
    let sentence = "process 4242 belongs to root; be root to change it";
    let refusal = Refusal::new(RefusalCode::NotPermitted, sentence);
    assert_example("Refused", 2, Reply::Refused(refusal));
    let event = Event {
        dropped: 3,
        device: Some(0),
        process: Some(process),
        queue: 7,
        priority: Priority::new(2),
        by_process: Process::new(4250, 778_000),
        by_queue: 9,
        duration_ns: 0,
        name: Text::new("train.py"),
        reason: Text::new("4250 waits with priority 12 while this one runs with 2"),
        ..Event::new(1_000_000_000, EventKind::Preempt)
    };
    assert_example("Event", 3, Reply::Event(event));
    let mut settings = PolicySettings::new("fair");
    settings.set("slice_us", 10_000).unwrap();
    assert_example("PolicySet", 4, Request::PolicySet(settings));
    assert_example("Wake", 0, Request::Wake);
    let queues = QueueIds::new(&[7, 9]).unwrap();
    let lease_ms = NonZeroU32::new(60_000).unwrap();
    let (grace_us, depth) = (500, StopDepth::Interrupt);
    let suspend = Request::SuspendQueues(QueueStop { queues, grace_us, lease_ms, depth });
    assert_example("SuspendQueues", 5, suspend);
}

/// A row of the tables: `| number | name | body bytes |`.
fn assert_row<B: Body>(document: &str, name: &str, body: &B) {
    let row = format!("| {:#06x} | {name} | {} |", body.kind(), body.to_bytes().len());
    assert!(document.lines().any(|line| line.starts_with(&row)), "no row that begins {row}");
}

#[test]
fn every_message_is_in_the_tables() {
    let document = document();
    for request in crate::requests() {
        assert_row(&document, request.name(), &request);
    }
    for reserved in [14, 15] {
        assert_eq!(Request::from_bytes(reserved, &[]), Err(DecodeError::Kind(reserved)));
        assert!(document.contains(&format!("{reserved:#06x}")), "the number stays reserved");
    }
    for reply in crate::replies() {
        if !matches!(reply, Reply::Snapshot(_) | Reply::Queues(_)) {
            assert_row(&document, reply.name(), &reply);
        }
    }
    // Replies without a fixed length.
    let chunk = Reply::Snapshot(Chunk::cut(b"", 0).unwrap());
    assert_eq!((chunk.kind(), chunk.to_bytes().len()), (0x8003, 8));
    assert!(document.contains("\n| 0x8003 | Snapshot | 8 and the piece |"));
    let list = Reply::Queues(QueueList::default());
    assert_eq!((list.kind(), list.to_bytes().len()), (0x8008, 8));
    assert!(document.contains("\n| 0x8008 | Queues | 8 and 80 for each |"));
}

#[test]
fn every_event_and_every_refusal_is_listed_with_its_number() {
    let document = document();
    for (number, kind) in (1..).zip(EventKind::ALL) {
        let row = format!("\n| {number} | `{}` |", kind.name());
        assert!(document.contains(&row), "no row that begins {row}");
    }
    for code in RefusalCode::ALL {
        let row = format!("\n| {} | {code:?} |", code.number());
        assert!(document.contains(&row), "no row that begins {row}");
    }
}
