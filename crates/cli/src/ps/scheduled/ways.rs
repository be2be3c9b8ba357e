//! In which way queues are stopped, where there are several.

use std::collections::BTreeSet;

use gpreempt_wire::state::TaskSnapshot;

use crate::shown::shown;

/// Adds a column, if any process is on a device with several ways.
pub(super) fn add(table: &mut [Vec<String>], tasks: &[TaskSnapshot]) {
    if tasks.iter().all(|task| task.way.is_none()) {
        return;
    }
    let way = |task: &TaskSnapshot| shown(task.way.as_deref().unwrap_or("-"));
    let cells = std::iter::once("way".to_owned()).chain(tasks.iter().map(way));
    for (row, cell) in table.iter_mut().zip(cells) {
        // Before the reasons, which may be long.
        row.insert(row.len().saturating_sub(1), cell);
    }
}

/// Why ways are not better ones, each reason once.
pub(super) fn reasons(tasks: &[TaskSnapshot]) -> String {
    let reasons: BTreeSet<String> = tasks
        .iter()
        .filter_map(|task| Some((task.way.as_deref()?, task.no_better_way.as_deref()?)))
        .map(|(way, why)| format!("{}: {}\n", shown(way), shown(why)))
        .collect();
    reasons.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_a_column_where_there_are_any_and_each_reason_is_said_once() {
        let task = |way: Option<&str>| TaskSnapshot {
            way: way.map(str::to_owned),
            no_better_way: way.map(|_| "not patched".to_owned()),
            ..TaskSnapshot::default()
        };
        let table = |rows: usize| vec![vec!["name".to_owned(), "why".to_owned()]; rows];
        let mut plain = table(2);
        add(&mut plain, &[task(None)]);
        assert_eq!(plain, table(2));
        let tasks = [task(Some("debug-trap")), task(None), task(Some("debug-trap"))];
        let mut rows = table(4);
        add(&mut rows, &tasks);
        let column: Vec<&str> = rows.iter().map(|row| row[1].as_str()).collect();
        assert_eq!(column, ["way", "debug-trap", "-", "debug-trap"]);
        assert_eq!(reasons(&tasks), "debug-trap: not patched\n");
    }
}
