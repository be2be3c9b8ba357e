//! The simulated modes: ways in which latency-critical and best-effort work share a device.
//!
//! `bench` offers all of them; `demo` and `compare` run some of them under names of their own.

use gpreempt_core::time::Duration;
use gpreempt_sim::model::MachineKind;

use crate::results::{ALONE, ModeInfo};

/// How long before its arrival a request is announced: longer than a context switch takes.
const AHEAD: Duration = Duration::from_micros(350);

/// A way of sharing the simulated device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mode {
    pub name: &'static str,
    pub title: &'static str,
    /// The built-in device model.
    pub device: &'static str,
    /// How that device preempts.
    pub machine: MachineKind,
    pub is_scheduled: bool,
    /// Whether the scheduler reserves the device between the kernels of a request.
    pub holds: bool,
    /// How long before its arrival a request is announced, if it is.
    pub hint: Option<Duration>,
    /// How long evictable loads that do not fit together stay in memory in turn. Without it, a mode
    /// with a scheduler evicts loads for those of a higher priority only.
    pub swap_turn: Option<Duration>,
    /// The baseline; none for a baseline, in which best-effort work does not run.
    pub alone: Option<&'static str>,
}

const fn unscheduled(name: &'static str, title: &'static str) -> Mode {
    Mode {
        name,
        title,
        device: "h200",
        machine: MachineKind::Tsg,
        is_scheduled: false,
        holds: false,
        hint: None,
        swap_turn: None,
        alone: Some(ALONE),
    }
}

const fn scheduled(name: &'static str, title: &'static str) -> Mode {
    Mode { is_scheduled: true, ..unscheduled(name, title) }
}

const fn on_mi300x(mode: Mode) -> Mode {
    Mode { device: "mi300x", machine: MachineKind::Cwsr, alone: Some("cwsr-alone"), ..mode }
}

/// All modes of `gpreempt bench --backend emulated`.
pub const MODES: [Mode; 12] = [
    Mode { alone: None, ..unscheduled(ALONE, "requests alone (tsg, h200)") },
    Mode {
        machine: MachineKind::None,
        ..unscheduled("none", "no preemption: kernels run in order of submission (none, h200)")
    },
    Mode {
        machine: MachineKind::Reset,
        // The runtime of the published design intercepts every launch.
        hint: Some(Duration::ZERO),
        ..scheduled(
            "reset",
            "running kernels killed and submitted again, as published (reset, h200)",
        )
    },
    unscheduled("default", "time slices as the driver sets them (tsg, h200)"),
    scheduled("slices", "gpreempt: time slices by priority (tsg, h200)"),
    Mode {
        holds: true,
        ..scheduled("hold", "gpreempt: slices, and the device held across gaps (tsg, h200)")
    },
    Mode {
        holds: true,
        hint: Some(AHEAD),
        ..scheduled(
            "hints",
            "gpreempt: slices and holds, requests announced 350 us ahead (tsg, h200)",
        )
    },
    Mode {
        holds: true,
        swap_turn: Some(Duration::from_millis(60_000)),
        ..scheduled("turns", "gpreempt: loads that do not fit take turns of 60 s (tsg, h200)")
    },
    Mode { alone: None, ..on_mi300x(unscheduled("cwsr-alone", "requests alone (cwsr, mi300x)")) },
    on_mi300x(unscheduled(
        "cwsr-default",
        "queues share the compute units as the hardware decides (cwsr, mi300x)",
    )),
    on_mi300x(scheduled("cwsr", "gpreempt: waves saved and restored (cwsr, mi300x, not measured)")),
    Mode {
        hint: Some(Duration::ZERO),
        ..on_mi300x(scheduled(
            "cwsr-hints",
            "the same, requests announced on arrival (cwsr, mi300x)",
        ))
    },
];

/// The mode of that name.
///
/// # Panics
/// If there is none.
pub(crate) fn mode(name: &str) -> Mode {
    let found = MODES.iter().find(|mode| mode.name == name);
    // PANIC: only names of the table are asked for.
    found.cloned().expect("a mode of the table")
}

/// The modes of `gpreempt demo` on a device that preempts in this way.
pub(crate) fn demo_modes(machine: MachineKind) -> Vec<Mode> {
    let [alone, default, ours] = match machine {
        MachineKind::Tsg => [ALONE, "default", "hold"],
        // A device that only software preempts needs a hint to be faster than polling.
        MachineKind::None | MachineKind::Reset | MachineKind::Cwsr => {
            ["cwsr-alone", "cwsr-default", "cwsr-hints"]
        }
    };
    [
        (alone, ALONE, "online work has the device to itself"),
        (default, "default", "both share it as the driver does by default"),
        ("reset", "reset", "offline kernels are killed and submitted again (GPreempt, REEF)"),
        (ours, "ours", "offline kernels are saved in the middle and continue later"),
    ]
    .map(|(of, name, title)| Mode {
        name,
        title,
        alone: (name != ALONE).then_some(ALONE),
        ..mode(of)
    })
    .to_vec()
}

impl Mode {
    /// Whether best-effort work does not run.
    pub fn is_alone(&self) -> bool {
        self.alone.is_none()
    }

    pub(super) fn info(&self) -> ModeInfo {
        let alone = self.alone.map(str::to_owned);
        ModeInfo { name: self.name.to_owned(), title: self.title.to_owned(), alone }
    }
}
