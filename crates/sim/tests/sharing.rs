//! What the emulated hardware does by itself when queues compete: nobody is left out.
#![expect(clippy::unwrap_used, reason = "a broken expectation fails the test")]

use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;
use gpreempt_sim::model::{DeviceModel, MachineKind};
use gpreempt_sim::scenario::{
    Arrivals, KernelSpec, ProgramSource, RequestStep, Scenario, TaskSpec,
};
use gpreempt_sim::world::{Options, run};

/// A task that always has two kernels under way.
fn busy_task(number: u32) -> TaskSpec {
    let priority = Priority::DEFAULT;
    TaskSpec::new(
        &format!("task{number}"),
        priority,
        Arrivals::BackToBack { depth: 2 },
        vec![RequestStep { kernel: 0, count: 1, sync: true, cpu: Duration::ZERO }],
    )
}

/// Kernels that fill the device, each longer than a queue may keep it.
fn crowd(machine: MachineKind, tasks: u32) -> Scenario {
    let name = if machine == MachineKind::Tsg { "h200" } else { "mi300x" };
    let mut model = DeviceModel::built_in(name).unwrap();
    model.cwsr.queue_slots = 2;
    model.cwsr.quantum = Duration::from_millis(2);
    let kernel = KernelSpec {
        name: "kernel".into(),
        program: ProgramSource::BuiltIn("counter".into()),
        work: Duration::from_millis(3),
        groups: model.compute_units * model.waves_per_unit,
        waves: 1,
    };
    Scenario {
        name: format!("{tasks} queues on {machine:?}"),
        model,
        machine,
        devices: 1,
        seed: 1,
        duration: Duration::from_millis(500),
        scheduler: None,
        kernels: vec![kernel],
        tasks: (0..tasks).map(busy_task).collect(),
        faults: vec![],
    }
}

/// Kernels of each task that were complete in time.
fn shares(scenario: &Scenario) -> Vec<u64> {
    let options = Options { check: true, ..Options::default() };
    let outcome = run(scenario, options).unwrap();
    outcome.tasks.iter().map(|task| task.launches_in_time).collect()
}

fn assert_equal_shares(shares: &[u64]) {
    let (least, most) = (shares.iter().min().unwrap(), shares.iter().max().unwrap());
    assert!(*least >= 15 && most - least <= most / 4, "{shares:?}");
}

#[test]
fn five_queues_on_two_slots_get_equal_parts() {
    assert_equal_shares(&shares(&crowd(MachineKind::Cwsr, 5)));
}

#[test]
fn queues_with_slots_share_the_units_equally() {
    assert_equal_shares(&shares(&crowd(MachineKind::Cwsr, 2)));
}

#[test]
fn groups_on_a_runlist_get_equal_slices() {
    assert_equal_shares(&shares(&crowd(MachineKind::Tsg, 4)));
}
