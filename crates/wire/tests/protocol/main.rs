//! The protocols: every message round trip, and docs/reference/protocol.md. The bytes of every
//! message of the daemon's protocol are pinned in `bytes.txt`.
//!
//! Programs that were built against an older release send these bytes, so a difference here is a
//! change of the protocol and needs a new version of it.
#![expect(clippy::unwrap_used, reason = "a broken expectation fails the test")]

mod documentation;
mod emulator;
mod round_trip;

use std::fmt::Write as _;
use std::num::{NonZeroU16, NonZeroU32};

use expect_test::expect_file;
use gpreempt_core::latency_budget::LatencyBudget;
use gpreempt_core::priority::Priority;
use gpreempt_wire::chunk::Chunk;
use gpreempt_wire::event::{Event, EventKind};
use gpreempt_wire::message::{Body, Message};
use gpreempt_wire::policy::PolicySettings;
use gpreempt_wire::process::Process;
use gpreempt_wire::process::SchedAttrChange;
use gpreempt_wire::queue::{DeviceKind, QueueIds, QueueList, QueueRecord, QueueStop, StopDepth};
use gpreempt_wire::reply::Reply;
use gpreempt_wire::reply::{Refusal, RefusalCode};
use gpreempt_wire::request::EvictScope;
use gpreempt_wire::request::Request;
use gpreempt_wire::request::Role;
use gpreempt_wire::text::Text;

fn process() -> Process {
    Process::new(4242, 0x0102_0304_0506_0708).unwrap()
}

fn change() -> SchedAttrChange {
    SchedAttrChange {
        priority: Priority::new(12),
        weight: NonZeroU32::new(0x0a0b_0c0d),
        deadline_us: Some(0x1112_1314_1516_1718),
        latency_budget: None,
        evictable: None,
    }
}

fn settings() -> PolicySettings {
    let mut settings = PolicySettings::new("fair");
    settings.set("slice_us", 10_000).unwrap();
    settings.set("linger_us", 0x2122_2324_2526_2728).unwrap();
    settings
}

fn requests() -> Vec<Request> {
    let (process, change) = (process(), change());
    let queues = QueueIds::new(&[7, 0x3132_3334_3536_3738]).unwrap();
    let (grace_us, lease_ms) = (500, NonZeroU32::new(60_000).unwrap());
    let mut requests = vec![
        Request::Ping,
        Request::Register { process, change },
        Request::Register { process: Process::SENDER, change: SchedAttrChange::default() },
        Request::Set { process, change },
        Request::Set {
            process,
            change: SchedAttrChange {
                latency_budget: LatencyBudget::from_percent(0x0102),
                ..SchedAttrChange::default()
            },
        },
        Request::Suspend { process, lease_ms },
        Request::Resume { process },
        Request::ResumeAll,
        Request::Detach { process },
        Request::PolicyRead,
        Request::PolicySet(settings()),
        Request::Snapshot,
        Request::Follow,
        Request::Trace { seconds: NonZeroU16::new(0x0203).unwrap() },
        Request::OpenPage,
        Request::Wake,
        Request::ListQueues { after: 0x4142_4344_4546_4748 },
        Request::ReadQueue { queue: 0x4142_4344_4546_4748 },
        Request::ResumeQueues { queues: queues.clone() },
        Request::SetQueue { queue: 9, priority: Priority::new(15) },
        Request::SetQueue { queue: 9, priority: None },
    ];
    for evictable in [true, false] {
        let change = SchedAttrChange { evictable: Some(evictable), ..SchedAttrChange::default() };
        requests.push(Request::Set { process, change });
    }
    requests.extend(EvictScope::ALL.map(|scope| Request::Evict {
        process,
        lease_ms: 60_000,
        scope,
    }));
    requests.extend([
        Request::Restore { process },
        Request::MakeRoom { process, bytes: 60 << 30, device: Some(1) },
        Request::MakeRoom { process: Process::SENDER, bytes: 0, device: None },
    ]);
    let program = Text::new("gpreempt 0.1.0");
    requests.extend(Role::ALL.map(|role| Request::Hello { role, program }));
    requests.extend(StopDepth::ALL.map(|depth| {
        let queues = queues.clone();
        Request::SuspendQueues(QueueStop { queues, grace_us, lease_ms, depth })
    }));
    requests
}

fn record(kind: DeviceKind) -> QueueRecord {
    QueueRecord {
        id: 1,
        native: 2,
        start_ticks: 3,
        pending: 4,
        ran_us: 5,
        preempts: 6,
        pid: 7,
        uid: 8,
        device: 9,
        priority: Priority::new(10).unwrap(),
        level: 3,
        kind,
        is_on: true,
        is_active: false,
        is_suspended: true,
        has_own_priority: false,
        is_suspended_by_asker: true,
        name: Text::new("serve.py"),
    }
}

fn replies() -> Vec<Reply> {
    let mut replies = vec![
        Reply::Ok,
        Reply::Snapshot(Chunk::cut(b"{\"a\": 1}", 2).unwrap()),
        Reply::End { dropped: 0x5152_5354_5556_5758 },
        Reply::Page { slots: 63 },
        Reply::Policy(settings()),
        Reply::Queues(QueueList::default()),
        Reply::Queues(QueueList::new(DeviceKind::ALL.map(record))),
        Reply::Queues(QueueList::new([record(DeviceKind::Amd); 51])),
        Reply::Event(Event {
            dropped: 3,
            device: Some(0),
            process: Some(process()),
            queue: 7,
            priority: Priority::new(2),
            by_process: Process::new(4250, 778_000),
            by_queue: 9,
            duration_ns: 11,
            name: Text::new("train.py"),
            reason: Text::new("4250 waits"),
            ..Event::new(1_000_000_000, EventKind::Preempt)
        }),
    ];
    replies.extend(EventKind::ALL.map(|kind| Reply::Event(Event::new(1, kind))));
    replies.extend(RefusalCode::ALL.map(|code| Reply::Refused(Refusal::new(code, "no"))));
    replies
}

/// One line: the name, then the packet in hexadecimal; `00*8` is eight zeros.
fn line<B: Body>(name: &str, request: u64, body: B) -> String {
    let packet = Message { request, body }.encode();
    let mut line = name.to_owned();
    for run in packet.chunk_by(|one, other| one == other) {
        write!(line, " {:02x}", run[0]).unwrap();
        if run.len() > 1 {
            write!(line, "*{}", run.len()).unwrap();
        }
    }
    line + "\n"
}

#[test]
fn every_message_has_the_bytes_it_always_had() {
    let mut text = String::new();
    for request in requests() {
        text += &line(request.name(), 0x6162_6364_6566_6768, request);
    }
    for reply in replies() {
        text += &line(reply.name(), 0x7172_7374_7576_7778, reply);
    }
    expect_file!["./bytes.txt"].assert_eq(&text);
    for (kind, name) in Request::KINDS.iter().chain(Reply::KINDS) {
        let is_pinned = text.lines().any(|line| line.starts_with(&format!("{name} ")));
        assert!(is_pinned, "{kind:#06x} {name} is not pinned");
    }
}
