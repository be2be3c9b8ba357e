//! What did not work, with its reasons.

use super::super::html::Escaped;
use super::verdict::counted;
use crate::results::{Measurement, Results, Status};

/// The same reason in the same mode, however often.
struct Group<'r> {
    mode: &'r str,
    status: &'r Status,
    /// The cases, each once, and how many measurements in all.
    cases: Vec<&'r str>,
    count: usize,
}

/// The whole section; nothing if everything worked.
pub(super) fn section(results: &Results) -> String {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for each in results.measurements.iter().filter(|each| !each.is_ok()) {
        add(&mut groups, each);
    }
    let lines = groups.iter().filter_map(line).collect::<String>();
    if lines.is_empty() {
        return String::new();
    }
    format!(
        "<section>\n<h2>What did not work</h2>\n<ul class=\"checks\">\n{lines}</ul>\n</section>\n"
    )
}

fn add<'r>(groups: &mut Vec<Group<'r>>, each: &'r Measurement) {
    let (mode, status, case) = (each.mode.as_str(), &each.status, each.case.as_str());
    let known = groups.iter_mut().find(|group| group.mode == mode && group.status == status);
    match known {
        Some(group) => {
            group.count += 1;
            if !group.cases.contains(&case) {
                group.cases.push(case);
            }
        }
        None => groups.push(Group { mode, status, cases: vec![case], count: 1 }),
    }
}

fn line(group: &Group<'_>) -> Option<String> {
    let (class, word, reason) = match group.status {
        Status::Ok => return None,
        Status::Failed { reason } => ("wrong", "failed", reason),
        Status::Skipped { reason } => ("meaning", "skipped", reason),
    };
    Some(format!(
        "<li><b class=\"{class}\">{word}</b> <span>{}<span class=\"meaning\">, {} in {}: {}</span>\
         </span></li>\n",
        Escaped(group.mode),
        counted(group.count, "measurement"),
        Escaped(&group.cases.join(", ")),
        Escaped(reason)
    ))
}
