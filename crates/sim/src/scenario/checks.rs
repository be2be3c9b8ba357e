//! What is checked of a scenario as a whole: the tasks that wait for others, and how much work it
//! is.
//!
//! The simulator executes every wave, so a few zeros too many turn a second into a week. The number
//! of waves that may start is bounded from above here; a reset, which starts killed waves again,
//! is not counted.

use gpreempt_core::time::Duration;

use super::{Arrivals, KernelSpec, Scenario, TaskSpec};
use crate::fields::{FieldError, quoted};
use crate::model::MachineKind;

/// More waves are refused.
const WAVES_MAX: u128 = 200_000_000;

/// Checks that no task waits for itself or for a task that has no end.
pub(super) fn dependencies(tasks: &[TaskSpec]) -> Result<(), FieldError> {
    for (index, task) in tasks.iter().enumerate() {
        let Some(awaited) = task.after else { continue };
        let wrong =
            |message: String| Err(FieldError::at("after", message).within_item("task", index));
        if let Some(cycle) = cycle_from(tasks, index) {
            let names: Vec<String> = cycle.iter().map(|link| quoted(&tasks[*link].name)).collect();
            return wrong(format!("the tasks wait for each other: {}", names.join(" -> ")));
        }
        let awaited = &tasks[awaited];
        let ends = awaited.requests_max.is_some() || matches!(awaited.arrivals, Arrivals::Trace(_));
        if !ends {
            let name = quoted(&awaited.name);
            return wrong(format!("{name} never ends; it must have `requests` or a `trace_us`"));
        }
    }
    Ok(())
}

/// The path from a task through those it waits for back to itself, if there is one.
fn cycle_from(tasks: &[TaskSpec], first: usize) -> Option<Vec<usize>> {
    let mut path = vec![first];
    let mut next = tasks[first].after;
    // A path longer than there are tasks is in a cycle that does not contain the first.
    while let Some(task) = next.filter(|_| path.len() <= tasks.len()) {
        path.push(task);
        if task == first {
            return Some(path);
        }
        next = tasks[task].after;
    }
    None
}

/// Checks that tasks fit on their devices, and that those that may be evicted can be.
pub(super) fn memory(scenario: &Scenario) -> Result<(), FieldError> {
    let size = scenario.model.memory.bytes;
    let preempts = matches!(scenario.machine, MachineKind::Tsg | MachineKind::Cwsr);
    for (index, task) in scenario.tasks.iter().enumerate() {
        let wrong = |key: &str, message: String| {
            Err(FieldError::at(key, message).within_item("task", index))
        };
        if task.memory > size {
            let (mib, size) = (task.memory >> 20, size >> 20);
            return wrong("memory_mib", format!("is {mib}; the device has {size}"));
        }
        if !task.is_evictable {
            continue;
        }
        for (is_missing, what) in [
            (task.memory == 0, "`memory_mib`"),
            (scenario.scheduler.is_none(), "`[scheduler]`"),
            (task.devices.len() > 1, "one device only"),
            (task.gang.is_some(), "no `gang`"),
            (!preempts, "the machine `tsg` or `cwsr`"),
        ] {
            if is_missing {
                return wrong("evictable", format!("needs {what}"));
            }
        }
    }
    Ok(())
}

/// Refuses a scenario that would start too many waves, at the task that starts the most.
pub(super) fn amount_of_work(scenario: &Scenario) -> Result<(), FieldError> {
    let waves: Vec<u128> = scenario.tasks.iter().map(|task| task_waves(scenario, task)).collect();
    let total = waves.iter().fold(0_u128, |total, waves| total.saturating_add(*waves));
    let largest = waves.iter().zip(&scenario.tasks).enumerate().max_by_key(|(_, (most, _))| **most);
    match largest {
        Some((index, (most, task))) if total > WAVES_MAX => Err(FieldError::here(format!(
            "the tasks may start {total} waves, {most} of them {}; must be at most {WAVES_MAX} \
             (shorten `duration_ms`, or use fewer, longer or smaller kernels)",
            quoted(&task.name),
        ))
        .within_item("task", index)),
        _ => Ok(()),
    }
}

/// The waves a task starts at the most, on all its devices together.
fn task_waves(scenario: &Scenario, task: &TaskSpec) -> u128 {
    let per_request = task.request.iter().fold(0_u128, |sum, step| {
        let waves = launch_waves(&scenario.kernels[step.kernel]);
        sum.saturating_add(waves.saturating_mul(u128::from(step.count)))
    });
    let open = scenario.duration.saturating_sub(task.start);
    let bound = match &task.arrivals {
        Arrivals::Periodic { every, phase } => {
            let count = quotient(open.saturating_sub(*phase), *every).saturating_add(1);
            count.saturating_mul(per_request)
        }
        Arrivals::Poisson { mean } => {
            // Six standard deviations above the average: once in a billion seeds there are more.
            let count = quotient(open, *mean);
            (count + 6 * count.isqrt() + 10).saturating_mul(per_request)
        }
        Arrivals::Trace(times) => {
            let count = times.iter().filter(|time| **time <= open).count();
            (count as u128).saturating_mul(per_request)
        }
        Arrivals::BackToBack { depth } => {
            let under_way = u128::from(*depth).saturating_mul(per_request);
            closed_waves(scenario, task, *depth, open).saturating_add(under_way)
        }
    };
    let limit =
        task.requests_max.map_or(u128::MAX, |count| u128::from(count).saturating_mul(per_request));
    bound.min(limit).saturating_mul(task.devices.len() as u128)
}

/// The waves a task that always has work can finish on one device in the time `open`: as many
/// at once as fit or as it has, each as long as its shortest kernel.
fn closed_waves(scenario: &Scenario, task: &TaskSpec, depth: u32, open: Duration) -> u128 {
    let model = &scenario.model;
    let capacity = u128::from(model.compute_units) * u128::from(model.waves_per_unit);
    let steps = || task.request.iter().map(|step| (step, &scenario.kernels[step.kernel]));
    let in_step = task.request.iter().all(|step| step.sync);
    let at_once = match in_step {
        true => {
            let largest = steps().map(|(_, kernel)| launch_waves(kernel)).max().unwrap_or(0);
            capacity.min(largest.saturating_mul(u128::from(depth)))
        }
        false => capacity,
    };
    let shortest = steps().map(|(step, kernel)| match in_step {
        true => kernel.work + model.submit + model.complete + step.cpu,
        false => kernel.work,
    });
    let shortest = shortest.min().unwrap_or(Duration::ZERO);
    quotient(open, shortest).saturating_add(1).saturating_mul(at_once)
}

fn launch_waves(kernel: &KernelSpec) -> u128 {
    u128::from(kernel.groups) * u128::from(kernel.waves)
}

/// How many times `part` fits into `whole`; at the most once a nanosecond.
fn quotient(whole: Duration, part: Duration) -> u128 {
    u128::from(whole.as_nanos() / part.as_nanos().max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::read_scenario;

    /// The estimate for one task on an H200 (264 waves, submit and complete 4 us each) in 10 ms,
    /// whose requests are 3 launches of `k`: 20 us, 5 groups of 2 waves.
    fn waves(task: &str, sync: bool) -> u128 {
        let text = format!(
            "name = 'n'\ndevice = 'h200'\ndevices = 2\nduration_ms = 10\n\
             [[kernel]]\nname = 'k'\nprogram = 'counter'\nus = 20\ngroups = 5\nwaves = 2\n\
             [[task]]\nname = 't'\nrequest = [{{ kernel = 'k', count = 3, sync = {sync} }}]\n{task}"
        );
        let mut resolve = |path: &str| panic!("the scenario asked for {path}");
        match read_scenario("f", &text, &mut resolve) {
            Ok(scenario) => task_waves(&scenario, &scenario.tasks[0]),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn open_arrivals_are_counted() {
        for (task, requests) in [
            ("arrivals = { every_us = 1000 }", 11),
            ("arrivals = { every_us = 1000, phase_us = 5500 }", 5),
            ("arrivals = { every_us = 1000 }\nstart_ms = 4", 7),
            ("arrivals = { every_us = 1000 }\nrequests = 2", 2),
            ("arrivals = { every_us = 1000 }\ndevices = [0, 1]", 22),
            ("arrivals = { trace_us = [0, 9999, 10000, 10001] }", 3),
            ("arrivals = { poisson_us = 100 }", 100 + 6 * 10 + 10),
        ] {
            assert_eq!(waves(task, true), requests * 30, "{task}");
        }
    }

    #[test]
    fn closed_arrivals_are_bounded_by_the_device_or_by_themselves() {
        let rounds = 10_000 / 28 + 1;
        // Two requests under way, each with one launch of ten waves at a time.
        assert_eq!(waves("arrivals = { back_to_back = 2 }", true), rounds * 20 + 2 * 30);
        // More than fit on the device.
        assert_eq!(waves("arrivals = { back_to_back = 100 }", true), rounds * 264 + 100 * 30);
        // The task does not wait for a launch: the device is full without a pause.
        let rounds = 10_000 / 20 + 1;
        assert_eq!(waves("arrivals = { back_to_back = 2 }", false), rounds * 264 + 2 * 30);
        assert_eq!(waves("arrivals = { back_to_back = 2 }\nrequests = 7", false), 7 * 30);
    }
}
