//! Messages of the emulator's protocol are decoded as they were encoded, and parts of them are
//! refused. The fuzz target `wire` tries any other bytes, in the normal tests too.

use gpreempt_core::backend::{Capabilities, Mechanism, PreemptLevel};
use gpreempt_core::id::{DeviceId, QueueId, TaskId};
use gpreempt_core::time::Duration;
use gpreempt_wire::emulator::{
    CheckpointInfo, CheckpointState, DATA_BYTES_MAX, DeviceInfo, DeviceMemory, ProcessMemory,
    QueueInfo, REPLY_BYTES_MAX, REQUEST_BYTES_MAX, Refusal, Reply, Request, Role, TaskInfo,
    UsageInfo,
};
use gpreempt_wire::message::Body;
use gpreempt_wire::text::Text;
use proptest::prelude::*;
use proptest::sample::select;

use crate::round_trip::priority;

fn queue() -> impl Strategy<Value = QueueId> {
    any::<u64>().prop_map(QueueId)
}

fn duration() -> impl Strategy<Value = Duration> {
    (1..=u64::MAX).prop_map(Duration::from_nanos)
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![
        any::<u32>().prop_map(|memory_bytes| Role::Client { memory_bytes }),
        any::<(bool, bool)>().prop_map(|(watches, releases)| Role::Control { watches, releases }),
        Just(Role::Checkpointer),
    ]
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        role().prop_map(Request::Hello),
        any::<(u32, u32)>().prop_map(|(device, capacity)| Request::OpenQueue {
            device: DeviceId(device),
            capacity
        }),
        queue().prop_map(Request::CloseQueue),
        any::<(u32, u32)>().prop_map(|(address, bytes)| Request::Read { address, bytes }),
        Just(Request::List),
        queue().prop_map(Request::Stop),
        queue().prop_map(Request::Resume),
        queue().prop_map(Request::Park),
        queue().prop_map(Request::Unpark),
        (queue(), proptest::option::of(duration()))
            .prop_map(|(queue, slice)| Request::SetSlice { queue, slice }),
        queue().prop_map(Request::PermitHold),
        queue().prop_map(Request::ForbidHold),
        (queue(), priority())
            .prop_map(|(queue, priority)| Request::SetPriority { queue, priority }),
        queue().prop_map(Request::Page),
        queue().prop_map(Request::Usage),
        any::<u32>().prop_map(|device| Request::DeviceUsage { device: DeviceId(device) }),
        any::<(u32, u64)>()
            .prop_map(|(device, bytes)| Request::Allocate { device: DeviceId(device), bytes }),
        any::<u64>().prop_map(Request::Free),
        Just(Request::Memory),
        checkpoint_request(),
    ]
}

fn checkpoint_request() -> impl Strategy<Value = Request> {
    prop_oneof![
        any::<u32>().prop_map(Request::CheckpointState),
        (any::<u32>(), proptest::option::of(duration()))
            .prop_map(|(pid, timeout)| Request::Lock { pid, timeout }),
        any::<u32>().prop_map(Request::Checkpoint),
        any::<u32>().prop_map(Request::Restore),
        any::<u32>().prop_map(Request::Unlock),
    ]
}

fn memory_reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        any::<u64>().prop_map(|allocation| Reply::Allocated { allocation }),
        any::<(u32, u64, u64)>().prop_map(|(device, bytes, used)| {
            Reply::DeviceMemory(DeviceMemory { device: DeviceId(device), bytes, used })
        }),
        any::<(u32, u32, u64, u64)>().prop_map(|(pid, device, device_bytes, host_bytes)| {
            let device = DeviceId(device);
            Reply::ProcessMemory(ProcessMemory { pid, device, device_bytes, host_bytes })
        }),
        (any::<(u32, u64, u64)>(), select(&CheckpointState::ALL[..])).prop_map(
            |((pid, device_bytes, host_bytes), state)| {
                Reply::CheckpointState(CheckpointInfo { pid, state, device_bytes, host_bytes })
            }
        ),
    ]
}

fn device() -> impl Strategy<Value = DeviceInfo> {
    let mechanism =
        prop_oneof![Just(Mechanism::Stop), Just(Mechanism::Slice), Just(Mechanism::ObserveOnly)];
    let level = prop_oneof![
        Just(PreemptLevel::BlockSubmission),
        Just(PreemptLevel::Deactivate),
        Just(PreemptLevel::Interrupt)
    ];
    let costs = (duration(), duration(), duration());
    let flags = any::<(bool, bool, bool)>();
    ("[a-zé]{0,16}", any::<(u32, u32)>(), mechanism, level, costs, flags).prop_map(
        |(name, (device, compute_units), mechanism, level, costs, flags)| DeviceInfo {
            device: DeviceId(device),
            name: Text::new(&name),
            compute_units,
            capabilities: Capabilities {
                mechanism,
                level,
                preempt_cost: costs.0,
                resume_cost: costs.1,
                quiet: costs.2,
                hold: flags.0,
                hardware_priority: flags.1,
            },
            can_tell_running: flags.2,
        },
    )
}

fn usage() -> impl Strategy<Value = UsageInfo> {
    (queue(), duration(), any::<(u64, u32)>(), duration(), priority(), any::<[bool; 3]>()).prop_map(
        |(queue, busy, (completed, preemptions), slice, priority, flags)| UsageInfo {
            queue,
            busy,
            completed,
            slice,
            priority,
            is_stopped: flags[0],
            is_parked: flags[1],
            is_resident: flags[2],
            preemptions,
        },
    )
}

fn reply() -> impl Strategy<Value = Reply> {
    let opened = || (queue(), any::<(u32, u32)>());
    prop_oneof![
        any::<(u64, u64, u32, u32)>().prop_map(|(instance, task, devices, memory_bytes)| {
            Reply::Welcome { instance, task: TaskId(task), devices, memory_bytes }
        }),
        Just(Reply::Done),
        select(&Refusal::ALL[..]).prop_map(Reply::Refused),
        opened().prop_map(|(queue, (device, capacity))| Reply::Opened {
            queue,
            device: DeviceId(device),
            capacity
        }),
        (any::<u32>(), proptest::collection::vec(any::<u8>(), 0..100))
            .prop_map(|(address, bytes)| Reply::Data { address, bytes }),
        device().prop_map(Reply::Device),
        any::<(u64, u32, u32)>().prop_map(|(task, pid, uid)| Reply::Task(TaskInfo {
            task: TaskId(task),
            pid,
            uid
        })),
        any::<u64>().prop_map(|task| Reply::TaskGone(TaskId(task))),
        (queue(), any::<(u64, u32, bool)>(), duration()).prop_map(
            |(queue, (task, device, is_stopped), slice)| Reply::Queue(QueueInfo {
                queue,
                task: TaskId(task),
                device: DeviceId(device),
                is_stopped,
                slice,
            })
        ),
        (queue(), any::<bool>())
            .prop_map(|(queue, is_faulted)| Reply::QueueGone { queue, is_faulted }),
        opened().prop_map(|(queue, (device, capacity))| Reply::Page {
            queue,
            device: DeviceId(device),
            capacity
        }),
        usage().prop_map(Reply::Usage),
        (any::<u32>(), duration())
            .prop_map(|(device, busy)| Reply::DeviceUsage { device: DeviceId(device), busy }),
        memory_reply(),
    ]
}

proptest! {
    #[test]
    fn requests_are_decoded_as_they_were_encoded(request in request(), number in 1..=u64::MAX) {
        let bytes = request.encode(number);
        prop_assert!(bytes.len() <= REQUEST_BYTES_MAX);
        prop_assert_eq!(Request::decode(&bytes), Ok((number, request)));
        prop_assert!(Request::decode(&request.encode(0)).is_err());
    }

    #[test]
    fn replies_are_decoded_as_they_were_encoded(reply in reply(), number in any::<u64>()) {
        let bytes = reply.encode(number);
        prop_assert_eq!(Reply::decode(&bytes), Ok((number, reply)));
    }

    #[test]
    fn a_part_of_a_message_is_an_error(
        request in request(),
        reply in reply(),
        cut in any::<prop::sample::Index>(),
    ) {
        let bytes = request.encode(1);
        prop_assert!(Request::decode(&bytes[..cut.index(bytes.len())]).is_err());
        let bytes = reply.encode(1);
        prop_assert!(Reply::decode(&bytes[..cut.index(bytes.len())]).is_err());
    }
}

#[test]
fn the_largest_answer_fits() {
    let reply = Reply::Data { address: 0, bytes: vec![7; DATA_BYTES_MAX] };
    let bytes = reply.encode(1);
    assert_eq!(bytes.len(), REPLY_BYTES_MAX);
    assert_eq!(Reply::decode(&bytes), Ok((1, reply)));
    let more = Reply::Data { address: 0, bytes: vec![7; DATA_BYTES_MAX + 1] };
    assert!(more.try_encode(1).is_err());
}

#[test]
fn a_long_name_is_cut_between_characters() {
    let reply = Reply::Device(DeviceInfo {
        device: DeviceId(0),
        name: Text::new(&"é".repeat(17)),
        compute_units: 1,
        capabilities: Capabilities {
            mechanism: Mechanism::Stop,
            level: PreemptLevel::Interrupt,
            preempt_cost: Duration::ZERO,
            resume_cost: Duration::ZERO,
            quiet: Duration::ZERO,
            hold: false,
            hardware_priority: false,
        },
        can_tell_running: true,
    });
    let Ok((_, Reply::Device(read))) = Reply::decode(&reply.encode(0)) else { panic!() };
    assert_eq!(read.name.as_str(), "é".repeat(16));
}
