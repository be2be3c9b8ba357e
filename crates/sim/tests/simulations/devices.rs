//! What the simulated hardware does by itself: saved waves, and the shares of competing queues.

use gpreempt_core::time::Duration;
use gpreempt_sim::model::{DeviceModel, MachineKind};
use gpreempt_sim::scenario::{Arrivals, KernelSpec, ProgramSource, Scenario};

use crate::builder::{BACK_TO_BACK, HIGH, LOW, checked, kernel, launch, low_and_high, task, us};

/// Wave n reaches the barrier after n times the work; then each adds up what all of them stored.
const STAGGERED: &str = "
        .lds 16
        mul     s8, s6, s2
        work    s8
        shl     s9, s2, 2
        add     s10, s5, s2
        add     s10, s10, 1
        lds_store [s9], s10
        barrier
        shl     s11, s3, 2
        mov     s12, 0
        mov     s13, 0
sum:    lds_load s14, [s12]
        add     s13, s13, s14
        add     s12, s12, 4
        branch_lt s12, s11, sum
        mul     s15, s0, s3
        add     s15, s15, s2
        shl     s15, s15, 5
        add     s15, s15, s4
        global_add [s15], s13
        end";

fn model(machine: MachineKind) -> DeviceModel {
    let name = if machine == MachineKind::Tsg { "h200" } else { "mi300x" };
    DeviceModel::built_in(name).unwrap()
}

/// The built-in kernels cannot show this: all their waves reach a barrier at the same time.
#[test]
fn a_wave_that_is_saved_at_a_barrier_waits_there_after_its_restore() {
    for machine in [MachineKind::Cwsr, MachineKind::Tsg] {
        let mut model = model(machine);
        (model.compute_units, model.waves_per_unit) = (3, 4);
        let every = us(3_701);
        let arrivals = Arrivals::Periodic { every, phase: every };
        let mut scenario = low_and_high(model, us(1_000), [us(800), us(20)], arrivals);
        let program = ProgramSource::Assembly(STAGGERED.into());
        scenario.kernels[LOW] =
            KernelSpec { program, groups: 6, waves: 4, ..scenario.kernels[LOW].clone() };
        scenario.kernels[HIGH] = kernel("short", "counter", us(20), 6);
        scenario.duration = us(300_000);
        for task in &mut scenario.tasks {
            task.hint = Some(Duration::ZERO);
        }
        let outcome = checked(&scenario);
        assert!(outcome.exact);
        assert!(outcome.preemptions > 40, "{machine:?}: {}", outcome.preemptions);
    }
}

/// Kernels that fill the device, each longer than a queue may keep it; no scheduler.
fn competing(machine: MachineKind, tasks: u32) -> Scenario {
    let mut model = model(machine);
    model.cwsr.queue_slots = 2;
    model.cwsr.quantum = Duration::from_millis(2);
    let mut scenario = low_and_high(model, us(1_000), [us(3_000); 2], BACK_TO_BACK);
    scenario.scheduler = None;
    scenario.duration = us(500_000);
    scenario.kernels[LOW].program = ProgramSource::BuiltIn("counter".into());
    scenario.tasks =
        (0..tasks).map(|n| task(&format!("task{n}"), 4, BACK_TO_BACK, launch(LOW))).collect();
    scenario
}

#[test]
fn competing_queues_get_equal_shares_of_the_hardware() {
    for (case, machine, tasks) in [
        ("five queues on two slots", MachineKind::Cwsr, 5),
        ("two queues on two slots", MachineKind::Cwsr, 2),
        ("four groups on a runlist", MachineKind::Tsg, 4),
    ] {
        let outcome = checked(&competing(machine, tasks));
        let shares: Vec<u64> = outcome.tasks.iter().map(|task| task.launches_in_time).collect();
        let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
        assert!(*least >= 15 && most - least <= most / 4, "{case}: {shares:?}");
    }
}
