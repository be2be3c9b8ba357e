//! The results of a suite as a text table.

use gpreempt_bench::report::{DISTURBED, host_noise};
use gpreempt_bench::results::{Estimate, LoadResult, Results, SummaryRow};

use crate::text_table;

/// The summary, the host noise, the failures and the checks.
pub(super) fn text(results: &Results) -> String {
    let heads = ["case", "mode", "p50 us", "p99 us", "p50/alone", "p99/alone", "BE kept", "n"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    let mut failures = String::new();
    for row in &results.summary {
        rows.push(cells(row));
        if let Some(reason) = &row.failure {
            let word = if row.skipped { "skipped" } else { "failed" };
            failures.push_str(&format!("{word}: {}, {}: {reason}\n", row.case, row.mode));
        }
    }
    let mut text = text_table::render(&rows);
    text.push('\n');
    for case in &results.cases {
        text.push_str(&each_load(results, &case.name));
    }
    for case in &results.cases {
        let noise = host_noise(results, &case.name);
        text.extend(noise.map(|sentence| format!("[{}] {sentence}\n", case.name)));
    }
    text.push_str(&failures);
    for check in &results.checks {
        let word = if check.passed { "pass" } else { "FAIL" };
        let case = check.case.as_deref().map(|case| format!(" [{case}]")).unwrap_or_default();
        text.push_str(&format!("{word}{case} {}: {}\n", check.name, check.text));
    }
    text
}

/// Each load of a case with many: its requests in each mode. Nothing for the other cases.
fn each_load(results: &Results, case: &str) -> String {
    let loads = results.many_loads(case).unwrap_or_default();
    let served: Vec<&LoadResult> = loads.iter().filter(|load| load.lc.is_some()).collect();
    let modes = results.modes.iter().map(|mode| mode.name.as_str());
    let modes: Vec<&str> =
        modes.filter(|mode| results.of(case, mode).any(|each| !each.loads.is_empty())).collect();
    if served.len() < 2 || modes.is_empty() {
        return String::new();
    }
    let heads = std::iter::once("p99 us").chain(modes.iter().copied());
    let mut rows = vec![heads.map(str::to_owned).collect::<Vec<_>>()];
    rows.extend(served.iter().map(|load| {
        let p99 = |mode: &&str| {
            results
                .latency_of_load(case, mode, &load.name, |lc| lc.latency.p99_ns)
                .map_or_else(|| "-".to_owned(), |estimate| format!("{:.1}", estimate.median / 1e3))
        };
        std::iter::once(load.name.clone()).chain(modes.iter().map(p99)).collect()
    }));
    format!("{case}, each load by itself:\n{}\n", text_table::render(&rows))
}

fn cells(row: &SummaryRow) -> Vec<String> {
    let us = |estimate: &Estimate| format!("{:.1}", estimate.median / 1e3);
    let times = |estimate: &Estimate| match estimate.low == estimate.high {
        true => format!("{:.2}", estimate.median),
        false => format!("{:.2} ({:.2}-{:.2})", estimate.median, estimate.low, estimate.high),
    };
    let part = |estimate: &Estimate| format!("{:.1} %", estimate.median * 100.0);
    let cell = |estimate: Option<Estimate>, show: &dyn Fn(&Estimate) -> String| {
        estimate.as_ref().map_or_else(|| "-".to_owned(), show)
    };
    let ratio = |estimate: Option<Estimate>| match row.overloaded {
        true => "never catches up".to_owned(),
        false => cell(estimate, &times),
    };
    let tail = ratio(row.p99_ratio);
    let tail = match row.disturbed && !row.overloaded {
        true => format!("{tail} {}", DISTURBED),
        false => tail,
    };
    let count = match (&row.failure, row.skipped) {
        (None, _) => row.ok.to_string(),
        (Some(_), true) => "skipped".to_owned(),
        (Some(_), false) => format!("{} FAILED", row.ok),
    };
    vec![
        row.case.clone(),
        row.mode.clone(),
        cell(row.p50_ns, &us),
        cell(row.p99_ns, &us),
        ratio(row.p50_ratio),
        tail,
        cell(row.be_kept, &part),
        count,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measurement(mode: &str, p99_ns: u64, late_ns: u64) -> String {
        let late = |name: &str| {
            format!("{{\"name\":\"{name}\",\"title\":\"t\",\"unit\":\"ns\",\"value\":{late_ns}}}")
        };
        let times = ["p50", "p90", "p95"].map(|name| format!("\"{name}_ns\":1000000,")).concat();
        format!(
            "{{\"case\":\"c\",\"mode\":\"{mode}\",\"repetition\":0,\"seed\":1,\"took_s\":1,\
             \"status\":{{\"state\":\"ok\"}},\"loads\":[],\"numbers\":[{},{}],\"lc\":{{\
             \"unfinished\":0,\"latency\":{{\"count\":9,\"mean_ns\":1,{times}\"p99_ns\":{p99_ns},\
             \"p999_ns\":{p99_ns},\"max_ns\":{p99_ns},\"cdf\":[]}}}}}}",
            late("machine_late_p99"),
            late("machine_late_max")
        )
    }

    fn results(measurements: &[String]) -> Results {
        let mode = |name: &str, alone: &str| {
            format!("{{\"name\":\"{name}\",\"title\":\"t\",\"alone\":{alone}}}")
        };
        let text = format!(
            "{{\"schema\":1,\"suite\":{{\"name\":\"s\",\"title\":\"t\",\"digest\":\"0\"}},\
             \"backend\":\"nvidia\",\"command\":\"\",\"environment\":{{\"devices\":[],\
             \"kernel\":\"\",\"processor\":\"\",\"cores\":2,\"versions\":[]}},\"started\":\"\",\
             \"repetitions\":1,\"short\":true,\"modes\":[{},{}],\"cases\":[{{\"name\":\"c\",\
             \"title\":\"C\",\"loads\":[]}}],\"measurements\":[{}],\"summary\":[],\"checks\":[]}}",
            mode("alone", "null"),
            mode("hold", "\"alone\""),
            measurements.join(",")
        );
        let mut results = Results::read("r.json", &text).unwrap();
        results.summarise();
        results
    }

    #[test]
    fn a_tail_that_host_noise_may_have_caused_is_marked() {
        let quiet = measurement("alone", 2_000_000, 90_000);
        let text = text(&results(&[quiet, measurement("hold", 5_000_000, 3_000_000)]));
        let row = |mode: &str| text.lines().find(|line| line.contains(mode)).unwrap();
        assert!(row(" hold ").contains("2.50 disturbed"), "{text}");
        assert!(!row(" alone ").contains("disturbed"), "{text}");
        let line = text.lines().find(|line| line.starts_with("[c] Host noise")).unwrap();
        assert!(line.ends_with("Disturbed repetitions: hold 1 of 1."), "{line}");
    }

    #[test]
    fn without_host_noise_there_is_no_sentence() {
        let old = |mode: &str| measurement(mode, 2_000_000, 0).replace("machine_", "other_");
        let text = text(&results(&[old("alone"), old("hold")]));
        assert!(text.contains("2000.0") && !text.contains("noise"), "{text}");
    }
}
