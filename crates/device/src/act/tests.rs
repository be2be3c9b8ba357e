//! What acts are on disk, and which of them concern the same thing.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;
use crate::amd::SiteName;
use crate::nvidia::hold::HoldSite;

fn hold(slot: usize) -> Act {
    let site = HoldSite {
        client: 1,
        device: 2,
        group: 3,
        context_share: 4,
        compute_class: 0xcbc0,
        channel_class: 0xc86f,
        uuid: [0; 16],
        slot,
    };
    NvidiaAct::Hold(site).into()
}

fn stop(group: u32, channels: &[u32]) -> Act {
    NvidiaAct::Stop { client: 1, subdevice: 0, group, channels: channels.to_vec() }.into()
}

fn slice(group: u32, set_us: u64) -> Act {
    NvidiaAct::Slice { client: 1, group, original_us: 9, set_us }.into()
}

/// Every act, and what daemons before the acts were one enum for each vendor wrote of it.
fn written_before() -> Vec<(Value, Act)> {
    let socket = PathBuf::from("/run/emu/gpu");
    let emulated = SiteName::emulated("/run/kfd".as_ref());
    let site = serde_json::to_value(&emulated).unwrap();
    vec![
        (
            json!({"kind": "nvidia_slice", "client": 1, "group": 2, "original_us": 9, "set_us": 5}),
            slice(2, 5),
        ),
        (
            json!({"kind": "nvidia_stop", "client": 1, "subdevice": 0, "group": 2,
                   "channels": [5, 6]}),
            stop(2, &[5, 6]),
        ),
        (
            json!({"kind": "nvidia_mode", "client": 1, "subdevice": 2, "group": 3,
                   "channels": [5], "set": 1}),
            NvidiaAct::Mode { client: 1, subdevice: 2, group: 3, channels: vec![5], set: 1 }.into(),
        ),
        (
            json!({"kind": "nvidia_hold", "client": 1, "device": 2, "group": 3,
                   "context_share": 4, "compute_class": 0xcbc0, "channel_class": 0xc86f,
                   "uuid": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "slot": 7}),
            hold(7),
        ),
        (
            json!({"kind": "nvidia_interleave", "client": 1, "group": 2, "original": 3, "set": 4}),
            NvidiaAct::Interleave { client: 1, group: 2, original: 3, set: 4 }.into(),
        ),
        (
            json!({"kind": "emulated_stop", "socket": "/run/emu/gpu", "instance": 1, "queue": 2}),
            EmulatedAct::Stop { socket: socket.clone(), instance: 1, queue: 2 }.into(),
        ),
        (
            json!({"kind": "emulated_park", "socket": "/run/emu/gpu", "instance": 1, "queue": 2}),
            EmulatedAct::Park { socket: socket.clone(), instance: 1, queue: 2 }.into(),
        ),
        (
            json!({"kind": "emulated_slice", "socket": "/run/emu/gpu", "instance": 1, "queue": 2,
                   "set_ns": 3}),
            EmulatedAct::Slice { socket, instance: 1, queue: 2, set_ns: 3 }.into(),
        ),
        (
            json!({"kind": "amd_pause", "site": site}),
            AmdAct::Pause { site: emulated.clone() }.into(),
        ),
        (
            json!({"kind": "amd_suspend", "site": site}),
            AmdAct::Suspend { site: emulated.clone() }.into(),
        ),
        (
            json!({"kind": "amd_session", "site": site}),
            AmdAct::Session { site: emulated.clone() }.into(),
        ),
        (json!({"kind": "amd_priority", "site": site}), AmdAct::Priority { site: emulated }.into()),
    ]
}

#[test]
fn what_an_older_daemon_wrote_can_be_undone_and_what_is_written_it_could_read() {
    for (text, act) in written_before() {
        let read: Act = serde_json::from_value(text.clone()).unwrap();
        assert_eq!(read, act, "{text}");
        assert_eq!(serde_json::to_value(&act).unwrap(), text);
    }
    assert!(serde_json::from_value::<Act>(json!({"kind": "nvidia_new", "client": 1})).is_err());
}

#[test]
fn a_pause_that_was_written_without_its_site_is_the_kernels() {
    let act: Act = serde_json::from_str(r#"{"kind":"amd_pause"}"#).unwrap();
    assert_eq!(act, AmdAct::Pause { site: SiteName::Kernel }.into());
    let suspend = Act::from(AmdAct::Suspend { site: SiteName::Kernel });
    assert!(act.is_stop() && !act.concerns_the_same(&suspend));
}

#[test]
fn every_act_concerns_itself_and_no_other_but_a_session_its_suspension() {
    let acts = written_before();
    for (one, (_, act)) in acts.iter().enumerate() {
        for (other, (_, theirs)) in acts.iter().enumerate() {
            let is_session = |act: &Act| {
                matches!(act, Act::Amd(AmdAct::Suspend { .. } | AmdAct::Session { .. }))
            };
            let expected = one == other || is_session(act) && is_session(theirs);
            assert_eq!(act.concerns_the_same(theirs), expected, "{act:?} {theirs:?}");
        }
    }
    let stops = acts.iter().filter(|(_, act)| act.is_stop()).count();
    assert_eq!(stops, 5, "NVIDIA's stop, the emulated stop and park, AMD's pause and suspension");
}

#[test]
fn acts_on_the_same_thing_replace_each_other() {
    assert!(slice(2, 1).concerns_the_same(&slice(2, 5)));
    assert!(!slice(2, 1).concerns_the_same(&slice(3, 1)));
    assert!(!slice(2, 1).concerns_the_same(&stop(2, &[])));
    assert!(stop(2, &[5]).concerns_the_same(&stop(2, &[5, 6])));
    assert!(!stop(2, &[5]).concerns_the_same(&stop(3, &[5])));
    assert!(hold(1).concerns_the_same(&hold(1)));
    assert!(!hold(1).concerns_the_same(&hold(2)), "two channels of ours in one group are two acts");
}

#[test]
fn a_list_that_replaces_another_forgets_nothing() {
    assert_eq!(stop(2, &[5, 6]).joined(&stop(2, &[6, 7])), stop(2, &[5, 6, 7]));
    assert!(stop(2, &[]).is_stop());
    let process = ProcessKey { pid: 1, start_ticks: 1 };
    let mut entry = Entry { process, acts: vec![stop(2, &[5, 6])], until_ns: None };
    let mode = NvidiaAct::Mode { client: 1, subdevice: 0, group: 2, channels: vec![5], set: 1 };
    entry.join(vec![stop(2, &[6, 7]), mode.clone().into()]);
    assert_eq!(entry.acts, [stop(2, &[6, 7, 5]), mode.into()]);
}

#[test]
fn what_is_gone_is_no_fault_of_the_device_and_what_cannot_be_reached_is_not_gone() {
    let denied = LookError::Denied { pid: 1, advice: String::new() };
    assert_eq!(ActError::Look(denied).fault(), Fault::NOT_SENT);
    assert_eq!(ActError::Changed(1).fault(), Fault::Gone);
    assert_eq!(ActError::from(ProcessError::Gone(1)).fault(), Fault::Gone);
    assert_eq!(ActError::EmulatedSilent(1).fault(), Fault::TimedOut);
}
