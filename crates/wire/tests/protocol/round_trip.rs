//! Messages of the daemon's protocol are decoded as they were encoded, and parts of them are
//! refused. The fuzz target `wire` tries any other bytes, in the normal tests too.

use std::num::{NonZeroU16, NonZeroU32};

use gpreempt_core::latency_budget::LatencyBudget;
use gpreempt_core::priority::Priority;
use gpreempt_wire::chunk::Chunk;
use gpreempt_wire::event::{Event, EventKind};
use gpreempt_wire::message::DecodeError;
use gpreempt_wire::message::Message;
use gpreempt_wire::message::PACKET_BYTES_MAX;
use gpreempt_wire::policy::PolicySettings;
use gpreempt_wire::process::Process;
use gpreempt_wire::process::SchedAttrChange;
use gpreempt_wire::queue::{
    DeviceKind, QUEUE_IDS_MAX, QueueIds, QueueList, QueueRecord, QueueStop, StopDepth,
};
use gpreempt_wire::reply::Reply;
use gpreempt_wire::reply::{Refusal, RefusalCode};
use gpreempt_wire::request::EvictScope;
use gpreempt_wire::request::Request;
use gpreempt_wire::request::Role;
use gpreempt_wire::text::Text;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};

fn text<const N: usize>() -> impl Strategy<Value = Text<N>> {
    any::<String>().prop_map(|text| Text::new(&text))
}

fn any_process() -> impl Strategy<Value = Process> {
    prop_oneof![
        1 => Just(Process::SENDER),
        9 => named_process(),
    ]
}

fn named_process() -> impl Strategy<Value = Process> {
    (1..=i32::MAX.unsigned_abs(), any::<u64>())
        .prop_map(|(pid, start_ticks)| Process::new(pid, start_ticks).unwrap())
}

pub(crate) fn priority() -> impl Strategy<Value = Priority> {
    (0..Priority::LEVELS).prop_map(|level| Priority::new(level).unwrap())
}

fn change() -> impl Strategy<Value = SchedAttrChange> {
    let weight = any::<NonZeroU32>();
    let budget = (0..=LatencyBudget::PERCENT_MAX).prop_map(LatencyBudget::from_percent);
    let budget = prop_oneof![Just(None), budget];
    let numbers = (option::of(priority()), option::of(weight), option::of(any::<u64>()), budget);
    (numbers, any::<Option<bool>>()).prop_map(
        |((priority, weight, deadline_us, latency_budget), evictable)| SchedAttrChange {
            priority,
            weight,
            deadline_us,
            latency_budget,
            evictable,
        },
    )
}

fn settings() -> impl Strategy<Value = PolicySettings> {
    let parameters = prop::collection::vec(("[a-z_]{1,30}", any::<u64>()), 0..16);
    (any::<String>(), parameters).prop_map(|(name, parameters)| {
        let mut settings = PolicySettings::new(&name);
        for (name, value) in parameters {
            settings.set(&name, value).unwrap();
        }
        settings
    })
}

fn ids() -> impl Strategy<Value = QueueIds> {
    prop::collection::vec(1..u64::MAX, 1..=QUEUE_IDS_MAX)
        .prop_map(|ids| QueueIds::new(&ids).unwrap())
}

fn record() -> impl Strategy<Value = QueueRecord> {
    let numbers = (any::<[u64; 6]>(), any::<[u32; 3]>(), any::<[bool; 5]>());
    let kinds = (priority(), 1..=3u8, select(&DeviceKind::ALL[..]), text());
    (numbers, kinds).prop_map(|((long, short, flags), (priority, level, kind, name))| QueueRecord {
        id: long[0],
        native: long[1],
        start_ticks: long[2],
        pending: long[3],
        ran_us: long[4],
        preempts: long[5],
        pid: short[0],
        uid: short[1],
        device: short[2],
        priority,
        level,
        kind,
        is_on: flags[0],
        is_active: flags[1],
        is_suspended: flags[2],
        has_own_priority: flags[3],
        is_suspended_by_asker: flags[4],
        name,
    })
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        (select(&Role::ALL[..]), text())
            .prop_map(|(role, program)| Request::Hello { role, program }),
        (any_process(), change())
            .prop_map(|(process, change)| Request::Register { process, change }),
        (any_process(), change()).prop_map(|(process, change)| Request::Set { process, change }),
        (any_process(), any::<NonZeroU32>())
            .prop_map(|(process, lease_ms)| Request::Suspend { process, lease_ms }),
        any_process().prop_map(|process| Request::Resume { process }),
        any_process().prop_map(|process| Request::Detach { process }),
        (any_process(), any::<u32>(), select(&EvictScope::ALL[..]))
            .prop_map(|(process, lease_ms, scope)| Request::Evict { process, lease_ms, scope }),
        any_process().prop_map(|process| Request::Restore { process }),
        (any_process(), any::<u64>(), option::of(0..u32::MAX))
            .prop_map(|(process, bytes, device)| Request::MakeRoom { process, bytes, device }),
        settings().prop_map(Request::PolicySet),
        any::<NonZeroU16>().prop_map(|seconds| Request::Trace { seconds }),
        any::<u64>().prop_map(|after| Request::ListQueues { after }),
        any::<u64>().prop_map(|queue| Request::ReadQueue { queue }),
        (ids(), any::<u32>(), any::<NonZeroU32>(), select(&StopDepth::ALL[..])).prop_map(
            |(queues, grace_us, lease_ms, depth)| {
                Request::SuspendQueues(QueueStop { queues, grace_us, lease_ms, depth })
            },
        ),
        ids().prop_map(|queues| Request::ResumeQueues { queues }),
        (any::<u64>(), option::of(priority()))
            .prop_map(|(queue, priority)| Request::SetQueue { queue, priority }),
        select(vec![
            Request::Ping,
            Request::ResumeAll,
            Request::PolicyRead,
            Request::Snapshot,
            Request::Follow,
            Request::OpenPage,
            Request::Wake,
        ]),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    let numbers = any::<[u64; 5]>();
    let who = (option::of(named_process()), option::of(named_process()));
    let what = (select(&EventKind::ALL[..]), option::of(0..u32::MAX), option::of(priority()));
    (numbers, who, what, text(), text()).prop_map(
        |(numbers, (process, by_process), (kind, device, priority), name, reason)| Event {
            at_ns: numbers[0],
            dropped: numbers[1],
            kind,
            device,
            process,
            queue: numbers[2],
            priority,
            by_process,
            by_queue: numbers[3],
            duration_ns: numbers[4],
            name,
            reason,
        },
    )
}

fn chunk() -> impl Strategy<Value = Chunk> {
    (prop::collection::vec(any::<u8>(), 0..10_000), any::<Index>()).prop_map(|(bytes, offset)| {
        // An empty piece exists of an empty snapshot only.
        let offset = if bytes.is_empty() { 0 } else { offset.index(bytes.len()) };
        Chunk::cut(&bytes, offset).unwrap()
    })
}

fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        Just(Reply::Ok),
        (select(&RefusalCode::ALL[..]), any::<String>())
            .prop_map(|(code, sentence)| Reply::Refused(Refusal::new(code, &sentence))),
        chunk().prop_map(Reply::Snapshot),
        event().prop_map(Reply::Event),
        any::<u64>().prop_map(|dropped| Reply::End { dropped }),
        any::<u32>().prop_map(|slots| Reply::Page { slots }),
        settings().prop_map(Reply::Policy),
        prop::collection::vec(record(), 0..60)
            .prop_map(|records| Reply::Queues(QueueList::new(records))),
    ]
}

proptest! {
    #[test]
    fn requests_are_decoded_as_they_were_encoded(request: u64, body in request()) {
        let message = Message { request, body };
        let packet = message.encode();
        prop_assert!(packet.len() <= PACKET_BYTES_MAX);
        prop_assert_eq!(Message::decode(&packet), Ok(message));
        // A request is no message in the other direction.
        let reply = Message::<Reply>::decode(&packet);
        prop_assert!(matches!(reply, Err(DecodeError::Kind(_))));
    }

    #[test]
    fn replies_are_decoded_as_they_were_encoded(request: u64, body in reply()) {
        let message = Message { request, body };
        let packet = message.encode();
        prop_assert!(packet.len() <= PACKET_BYTES_MAX);
        prop_assert_eq!(Message::decode(&packet), Ok(message));
        let request = Message::<Request>::decode(&packet);
        prop_assert!(matches!(request, Err(DecodeError::Kind(_))));
    }

    #[test]
    fn packets_cut_short_or_made_longer_are_refused(
        body in request(),
        cut: Index,
        more in prop::collection::vec(any::<u8>(), 1..5000),
    ) {
        let packet = Message { request: 1, body }.encode();
        let short = &packet[..cut.index(packet.len())];
        prop_assert!(Message::<Request>::decode(short).is_err());
        let long = [packet.as_slice(), &more].concat();
        prop_assert!(Message::<Request>::decode(&long).is_err());
    }
}
