//! A work-group that is saved while some of its waves wait at a barrier goes on waiting when it is
//! back. The built-in kernels cannot show that: all their waves come to a barrier at the same time.
#![expect(clippy::unwrap_used, reason = "a broken expectation fails the test")]

use gpreempt_core::config::Config;
use gpreempt_core::priority::Priority;
use gpreempt_core::time::Duration;
use gpreempt_sim::model::{DeviceModel, MachineKind};
use gpreempt_sim::scenario::{
    Arrivals, KernelSpec, ProgramSource, RequestStep, Scenario, SchedulerSpec, TaskSpec,
};
use gpreempt_sim::world::{Options, run};

/// Wave n comes to the barrier after n times the work; then each adds up what all of them left.
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

fn kernel(name: &str, program: ProgramSource, us: u64, waves: u32) -> KernelSpec {
    KernelSpec { name: name.into(), program, work: Duration::from_micros(us), groups: 6, waves }
}

fn task(name: &str, priority: u8, kernel: usize, arrivals: Arrivals) -> TaskSpec {
    let priority = Priority::new(priority).unwrap();
    let request = vec![RequestStep { kernel, count: 1, sync: true, cpu: Duration::ZERO }];
    TaskSpec { hint: Some(Duration::ZERO), ..TaskSpec::new(name, priority, arrivals, request) }
}

fn scenario(machine: MachineKind) -> Scenario {
    let name = if machine == MachineKind::Tsg { "h200" } else { "mi300x" };
    let mut model = DeviceModel::built_in(name).unwrap();
    (model.compute_units, model.waves_per_unit) = (3, 4);
    let every = Duration::from_micros(3_701);
    let config = Config { interval: Duration::from_millis(1), ..Config::default() };
    Scenario {
        name: format!("waves at a barrier on {machine:?}"),
        model,
        machine,
        devices: 1,
        seed: 1,
        duration: Duration::from_millis(300),
        scheduler: Some(SchedulerSpec { config, hold: true }),
        kernels: vec![
            kernel("staggered", ProgramSource::Assembly(STAGGERED.into()), 800, 4),
            kernel("short", ProgramSource::BuiltIn("counter".into()), 20, 1),
        ],
        tasks: vec![
            task("offline", 2, 0, Arrivals::BackToBack { depth: 2 }),
            task("online", 12, 1, Arrivals::Periodic { every, phase: every }),
        ],
        faults: vec![],
    }
}

#[test]
fn who_waits_at_a_barrier_is_saved_waiting() {
    for machine in [MachineKind::Cwsr, MachineKind::Tsg] {
        let options = Options { check: true, ..Options::default() };
        let outcome = run(&scenario(machine), options).unwrap();
        assert!(outcome.exact);
        assert!(outcome.preemptions > 40, "{machine:?}: {}", outcome.preemptions);
    }
}
