//! Tasks that wait for the end of another: it must be able to come.

use super::{Arrivals, TaskSpec};
use crate::fields::{Fields, ReadError, quoted};

/// Checks that nobody waits for himself and nobody waits for a task that has no end.
pub(super) fn check(tasks: &[TaskSpec], tables: &[Fields<'_>]) -> Result<(), ReadError> {
    for (index, (task, table)) in tasks.iter().zip(tables).enumerate() {
        let Some(awaited) = task.after else { continue };
        if let Some(cycle) = cycle_from(tasks, index) {
            let names: Vec<String> = cycle.iter().map(|link| quoted(&tasks[*link].name)).collect();
            let message = format!("the tasks wait for each other: {}", names.join(" -> "));
            return Err(table.error_at("after", message));
        }
        let awaited = &tasks[awaited];
        let ends = awaited.requests_max.is_some() || matches!(awaited.arrivals, Arrivals::Trace(_));
        if !ends {
            let name = quoted(&awaited.name);
            let message = format!("{name} never ends; it must have `requests` or a `trace_us`");
            return Err(table.error_at("after", message));
        }
    }
    Ok(())
}

/// The way from a task through those it waits for back to itself, if there is one.
fn cycle_from(tasks: &[TaskSpec], first: usize) -> Option<Vec<usize>> {
    let mut way = vec![first];
    let mut next = tasks[first].after;
    // A way longer than there are tasks goes round a cycle that does not contain the first.
    while let Some(task) = next.filter(|_| way.len() <= tasks.len()) {
        way.push(task);
        if task == first {
            return Some(way);
        }
        next = tasks[task].after;
    }
    None
}
