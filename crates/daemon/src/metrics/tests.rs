use std::collections::{BTreeMap, BTreeSet};

use gpreempt_core::statistics::Histogram;
use gpreempt_core::time::Duration;
use gpreempt_wire::statistics::{
    DaemonSnapshot, DeviceSnapshot, Distribution, GroupSnapshot, QueueSnapshot, Snapshot,
    TaskSnapshot, TaskState,
};
use proptest::prelude::*;

use super::*;

fn text(snapshot: &Snapshot) -> String {
    super::text(snapshot, LinesFor::Process)
}

/// A process with a value for every statistic.
fn task() -> TaskSnapshot {
    let queue =
        QueueSnapshot { id: 1, on: true, active: true, pending: 4, ..QueueSnapshot::default() };
    TaskSnapshot {
        pid: 42,
        start_ticks: 9,
        name: "train \"x\"\\\n".to_owned(),
        uid: 1000,
        container: Some("c0ffee".to_owned()),
        pod: Some("pod-1".to_owned()),
        slurm_job: Some("7".to_owned()),
        priority: Some(2),
        weight: 3,
        deadline_us: Some(5_000),
        latency_budget_percent: Some(20),
        slowdown_percent: Some(7),
        state: TaskState::Preempted,
        pending: Some(7),
        share: Some(0.25),
        device_ms: Some(61_001),
        preempts: 12,
        waiting_ms: Some(40),
        lease_ms: Some(900),
        faults: 1,
        queues: vec![queue.clone(), QueueSnapshot { on: false, pending: 3, ..queue }],
        ..TaskSnapshot::default()
    }
}

fn snapshot() -> Snapshot {
    Snapshot {
        daemon: DaemonSnapshot {
            version: "0.1.0".to_owned(),
            uptime_ms: 2_500,
            turns: 500,
            late_turns: 2,
            missed_turns: 1,
            cpu_ms: 11,
            resident_kib: 8,
            sessions: 3,
            ..DaemonSnapshot::default()
        },
        policy: "strict".to_owned(),
        interval_us: 5_000,
        devices: vec![DeviceSnapshot {
            uuid: "GPU-7f1c".to_owned(),
            kind: "nvidia".to_owned(),
            preempts: 12,
            preempt_us_p50: 210,
            preempt_us_p99: 1_900,
            ..DeviceSnapshot::default()
        }],
        groups: vec![GroupSnapshot {
            class: "high".to_owned(),
            rule: "serve \"a\"".to_owned(),
            wait_us: {
                let mut waits = Histogram::default();
                [20, 20, 30_000_000].iter().for_each(|&us| waits.record(Duration::from_micros(us)));
                Distribution::of(&waits)
            },
            ..GroupSnapshot::default()
        }],
        tasks: vec![task()],
        problems: vec!["one".to_owned()],
        ..Snapshot::default()
    }
}

/// The lines, by name and labels. Panics at lines that Prometheus would refuse.
fn series(text: &str) -> BTreeMap<String, f64> {
    let (mut lines, mut family, mut endings) = (BTreeMap::new(), "", &[""][..]);
    let mut families = BTreeSet::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            family = help.split(' ').next().unwrap();
            assert!(families.insert(family), "{family} twice");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let is_histogram = kind == format!("{family} histogram");
            let ending = if family.ends_with("_total") { "counter" } else { "gauge" };
            assert!(is_histogram || kind == format!("{family} {ending}"), "{kind}");
            endings = if is_histogram { &["_bucket", "_sum", "_count"][..] } else { &[""] };
        } else {
            let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
            let rest = name.strip_prefix(family).unwrap_or_else(|| panic!("{line}: {family}"));
            let labels = endings
                .iter()
                .find_map(|ending| rest.strip_prefix(ending).filter(|rest| !rest.starts_with('_')));
            let labels = labels.unwrap_or_else(|| panic!("{line}: {family}"));
            assert!(labels.is_empty() || are_labels(labels), "{line}");
            let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
            assert!(lines.insert(name.to_owned(), value).is_none(), "{line} twice");
        }
    }
    check_histograms(&lines);
    lines
}

/// The buckets of a histogram must not fall, and the last one is the count.
fn check_histograms(lines: &BTreeMap<String, f64>) {
    for (name, count) in lines.iter().filter(|(name, _)| name.contains("_count")) {
        let (family, labels) = name.split_once("_count{").unwrap();
        let start = format!("{family}_bucket{{{},le=\"", labels.strip_suffix('}').unwrap());
        let bucket = |(name, value): (&String, &f64)| {
            let edge = name.strip_prefix(&start)?.strip_suffix("\"}")?;
            Some((edge.parse::<f64>().unwrap(), *value))
        };
        let mut buckets: Vec<(f64, f64)> = lines.iter().filter_map(bucket).collect();
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{name}: {buckets:?}");
        assert_eq!(buckets.last(), Some(&(f64::INFINITY, *count)), "{name}");
        assert!(lines.contains_key(&format!("{family}_sum{{{labels}")), "{name}");
    }
}

/// Whether this is `{name="value",…}` with every quote, backslash and line end escaped.
fn are_labels(text: &str) -> bool {
    let Some(mut rest) = text.strip_prefix('{') else { return false };
    loop {
        let Some((name, value)) = rest.split_once("=\"") else { return false };
        let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        let mut chars = value.char_indices();
        let end = loop {
            match chars.next() {
                Some((_, '\\')) if matches!(chars.next(), Some((_, '\\' | '"' | 'n'))) => {}
                Some((at, '"')) => break at,
                Some((_, '\\' | '\n')) | None => return false,
                Some(_) => {}
            }
        };
        match &value[end + 1..] {
            "}" => return is_name,
            more if more.starts_with(',') && is_name => rest = &more[1..],
            _ => return false,
        }
    }
}

/// The lines of [`snapshot`]. Metrics may be added between them.
const PINNED: &str = r##"# TYPE gpreempt_build_info gauge
gpreempt_build_info{version="0.1.0"} 1
# TYPE gpreempt_uptime_seconds gauge
gpreempt_uptime_seconds 2.500
# TYPE gpreempt_loop_turns_total counter
gpreempt_loop_turns_total 500
# TYPE gpreempt_loop_late_turns_total counter
gpreempt_loop_late_turns_total 2
# TYPE gpreempt_loop_missed_turns_total counter
gpreempt_loop_missed_turns_total 1
# TYPE gpreempt_loop_overrun_turns_total counter
gpreempt_loop_overrun_turns_total 0
# TYPE gpreempt_cpu_seconds_total counter
gpreempt_cpu_seconds_total 0.011
# TYPE gpreempt_resident_bytes gauge
gpreempt_resident_bytes 8192
# TYPE gpreempt_sessions gauge
gpreempt_sessions 3
# TYPE gpreempt_policy_info gauge
gpreempt_policy_info{policy="strict"} 1
# TYPE gpreempt_interval_seconds gauge
gpreempt_interval_seconds 0.005000
# TYPE gpreempt_devices gauge
gpreempt_devices 1
# TYPE gpreempt_processes gauge
gpreempt_processes 1
# TYPE gpreempt_problems gauge
gpreempt_problems 1
# TYPE gpreempt_device_preempts_total counter
gpreempt_device_preempts_total{device="GPU-7f1c",kind="nvidia"} 12
# TYPE gpreempt_device_preempt_p50_seconds gauge
gpreempt_device_preempt_p50_seconds{device="GPU-7f1c",kind="nvidia"} 0.000210
# TYPE gpreempt_device_preempt_p99_seconds gauge
gpreempt_device_preempt_p99_seconds{device="GPU-7f1c",kind="nvidia"} 0.001900
# TYPE gpreempt_device_waits_total counter
gpreempt_device_waits_total{device="GPU-7f1c",kind="nvidia"} 0
# TYPE gpreempt_wait_seconds histogram
gpreempt_wait_seconds_bucket{class="high",rule="serve \"a\"",le="0.000016"} 0
gpreempt_wait_seconds_bucket{class="high",rule="serve \"a\"",le="0.000032"} 2
gpreempt_wait_seconds_bucket{class="high",rule="serve \"a\"",le="16.777216"} 2
gpreempt_wait_seconds_bucket{class="high",rule="serve \"a\"",le="+Inf"} 3
gpreempt_wait_seconds_count{class="high",rule="serve \"a\""} 3
gpreempt_wait_seconds_sum{class="high",rule="serve \"a\""} 30.000040
# TYPE gpreempt_preempt_seconds histogram
# TYPE gpreempt_process_priority gauge
gpreempt_process_priority{WHO} 2
# TYPE gpreempt_process_weight gauge
gpreempt_process_weight{WHO} 3
# TYPE gpreempt_process_deadline_seconds gauge
gpreempt_process_deadline_seconds{WHO} 0.005000
# TYPE gpreempt_process_latency_budget_ratio gauge
gpreempt_process_latency_budget_ratio{WHO} 0.20
# TYPE gpreempt_process_slowdown_ratio gauge
gpreempt_process_slowdown_ratio{WHO} 0.07
# TYPE gpreempt_process_state gauge
gpreempt_process_state{WHO,state="preempted"} 1
# TYPE gpreempt_process_pending gauge
gpreempt_process_pending{WHO} 7
# TYPE gpreempt_process_share_ratio gauge
gpreempt_process_share_ratio{WHO} 0.25
# TYPE gpreempt_process_gpu_seconds_total counter
gpreempt_process_gpu_seconds_total{WHO} 61.001
# TYPE gpreempt_process_preempts_total counter
gpreempt_process_preempts_total{WHO} 12
# TYPE gpreempt_process_waiting_seconds gauge
gpreempt_process_waiting_seconds{WHO} 0.040
# TYPE gpreempt_process_lease_seconds gauge
gpreempt_process_lease_seconds{WHO} 0.900
# TYPE gpreempt_process_faults_total counter
gpreempt_process_faults_total{WHO} 1
# TYPE gpreempt_process_device_queues gauge
gpreempt_process_device_queues{WHO,device="GPU-7f1c"} 2
# TYPE gpreempt_process_device_queues_on gauge
gpreempt_process_device_queues_on{WHO,device="GPU-7f1c"} 1
# TYPE gpreempt_process_device_pending gauge
gpreempt_process_device_pending{WHO,device="GPU-7f1c"} 7"##;

#[test]
fn a_snapshot_becomes_text() {
    let text = lines_of(&snapshot());
    let mut lines = text.lines();
    for pinned in PINNED.lines() {
        assert!(lines.any(|line| line == pinned), "{pinned}\nis not in its place in\n{text}");
    }
}

/// The text without descriptions, and without the labels that every line of a process repeats.
fn lines_of(snapshot: &Snapshot) -> String {
    let text = text(snapshot);
    series(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("# HELP")).collect();
    let who = concat!(
        r#"pid="42",name="train \"x\"\\\n",uid="1000","#,
        r#"container="c0ffee",pod="pod-1",slurm_job="7""#
    );
    lines.join("\n").replace(who, "WHO")
}

#[test]
fn every_metric_has_a_description_and_a_type() {
    let text = text(&Snapshot::default());
    let helps = text.lines().filter(|line| line.starts_with("# HELP gpreempt_")).count();
    let types = text.lines().filter(|line| line.starts_with("# TYPE gpreempt_")).count();
    assert!(helps > 20 && helps == types, "{helps} {types}");
    assert!(text.lines().filter(|line| line.starts_with("# HELP")).all(|line| line.ends_with('.')));
}

#[test]
fn more_processes_than_fit_are_summed() {
    let tasks: Vec<_> = (1..=5_000_u32)
        .map(|pid| TaskSnapshot {
            pid,
            start_ticks: pid.into(),
            waiting_ms: Some(pid.into()),
            ..task()
        })
        .collect();
    let text = text(&Snapshot { tasks, ..snapshot() });
    let series = series(&text);
    let of = |name: &str| {
        let start = format!("{name}{{");
        series.iter().filter(move |(key, _)| key.starts_with(&start)).map(|(_, value)| *value)
    };
    assert_eq!(of("gpreempt_process_preempts_total").count(), PROCESSES_MAX + 1);
    assert_eq!(of("gpreempt_process_preempts_total").sum::<f64>(), 60_000.0);
    assert_eq!(series["gpreempt_process_preempts_total{name=\"other\"}"], 48_000.0);
    assert_eq!(series["gpreempt_process_state{name=\"other\",state=\"preempted\"}"], 4_000.0);
    assert_eq!(series["gpreempt_process_waiting_seconds{name=\"other\"}"], 5.0);
    assert_eq!(series["gpreempt_process_slowdown_ratio{name=\"other\"}"], 0.07);
    assert_eq!(of("gpreempt_process_latency_budget_ratio").count(), PROCESSES_MAX);
    let device = "{name=\"other\",device=\"GPU-7f1c\"}";
    assert_eq!(series[&format!("gpreempt_process_device_queues_on{device}")], 4_000.0);
    assert_eq!(of("gpreempt_process_priority").count(), PROCESSES_MAX);
    assert_eq!(series["gpreempt_processes"], 5_000.0);
}

#[test]
fn a_process_on_very_many_devices_is_summed_too() {
    let queue = |device| QueueSnapshot { device, pending: 1, ..QueueSnapshot::default() };
    let tasks = vec![TaskSnapshot { queues: (0..100).map(queue).collect(), ..task() }];
    let series = series(&text(&Snapshot { tasks, ..Snapshot::default() }));
    let pending: Vec<_> =
        series.iter().filter(|(key, _)| key.starts_with("gpreempt_process_device_pend")).collect();
    assert_eq!(pending.len(), DEVICES_PER_PROCESS_MAX + 1);
    let other = pending.iter().find(|(key, _)| key.contains("device=\"other\"")).unwrap();
    assert_eq!(*other.1, 84.0);
}

fn any_task() -> impl Strategy<Value = TaskSnapshot> {
    let queue = (any::<u32>(), any::<bool>(), any::<u64>()).prop_map(|(device, on, pending)| {
        QueueSnapshot { device: device % 40, on, pending, ..QueueSnapshot::default() }
    });
    let optional = any::<Option<u64>>;
    let numbers = (any::<u64>(), optional(), any::<Option<f64>>(), optional());
    let who = (0_u32..40, any::<u64>(), any::<String>(), any::<Option<String>>());
    let queues = proptest::collection::vec(queue, 0..50);
    (who, numbers, queues, any::<Option<u8>>()).prop_map(|(who, numbers, queues, priority)| {
        let (pid, start_ticks, name, pod) = who;
        let (preempts, device_ms, share, deadline_us) = numbers;
        let waiting_ms = Some(preempts);
        let tags = TaskSnapshot { container: pod.clone(), slurm_job: pod.clone(), ..task() };
        let task = TaskSnapshot { pid, start_ticks, name, pod, priority, queues, ..tags };
        TaskSnapshot { preempts, device_ms, share, deadline_us, waiting_ms, ..task }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Prometheus can read the text whatever names processes have, and no line occurs twice.
    #[test]
    fn any_snapshot_is_readable(
        tasks in proptest::collection::vec(any_task(), 0..60),
        devices in proptest::collection::vec((0_u32..40, "(GPU-)?.{0,3}", any::<String>()), 0..40),
        policy in any::<String>(),
    ) {
        let devices = devices
            .into_iter()
            .map(|(id, uuid, kind)| DeviceSnapshot { id, uuid, kind, ..DeviceSnapshot::default() })
            .collect();
        series(&text(&Snapshot { tasks, devices, policy, ..snapshot() }));
    }
}

#[test]
fn scheduled_processes_have_lines_first_then_the_oldest_and_each_pid_once() {
    let task = |pid, start_ticks, priority| TaskSnapshot {
        pid,
        start_ticks,
        priority,
        ..TaskSnapshot::default()
    };
    let mut tasks: Vec<_> = (1..=1_000).map(|pid| task(pid, u64::from(pid), None)).collect();
    let process_rows = |snapshot| process_rows(snapshot, LinesFor::Process);
    tasks.push(task(2_000, 9_999, Some(3)));
    let snapshot = Snapshot { tasks, ..Snapshot::default() };
    let rows = process_rows(&snapshot);
    let [.., last, others] = rows.as_slice() else { panic!("{} rows", rows.len()) };
    assert_eq!((rows.len(), last.things[0].pid), (PROCESSES_MAX + 1, 2_000));
    let others: Vec<u32> = others.things.iter().map(|task| task.pid).collect();
    assert_eq!(others, [1_000]);
    let tasks = vec![task(7, 1, Some(2)), task(7, 5, Some(2))];
    let snapshot = Snapshot { tasks, ..Snapshot::default() };
    let starts: Vec<u64> =
        process_rows(&snapshot).iter().map(|row| row.things[0].start_ticks).collect();
    assert_eq!(starts, [1, 5]);
}

#[test]
fn processes_with_the_same_name_can_share_their_lines() {
    let task = |pid, name: &str| TaskSnapshot { pid, name: name.to_owned(), ..task() };
    let tasks = vec![task(1, "a"), task(2, "b"), task(3, "a")];
    let text = super::text(&Snapshot { tasks, ..Snapshot::default() }, LinesFor::Name);
    let series = series(&text);
    let labels = |name| {
        format!(r#"{{name="{name}",uid="1000",container="c0ffee",pod="pod-1",slurm_job="7"}}"#)
    };
    assert_eq!(series[&format!("gpreempt_process_preempts_total{}", labels("a"))], 24.0);
    assert_eq!(series[&format!("gpreempt_process_preempts_total{}", labels("b"))], 12.0);
    assert!(!text.contains("pid=") && !text.contains("gpreempt_process_priority{"), "{text}");
}

/// Every text of a JSON document under this key.
fn texts<'a>(json: &'a serde_json::Value, key: &str, found: &mut Vec<&'a str>) {
    found.extend(json.get(key).and_then(|value| value.as_str()));
    let fields = json.as_object().into_iter().flat_map(|fields| fields.values());
    let elements = json.as_array().into_iter().flatten();
    fields.chain(elements).for_each(|value| texts(value, key, found));
}

#[test]
fn the_dashboard_and_the_alerts_use_metrics_that_exist() {
    let json = include_str!("../../../../deploy/grafana-dashboard.json");
    let dashboard: serde_json::Value = serde_json::from_str(json).unwrap();
    let mut queries = Vec::new();
    texts(&dashboard, "expr", &mut queries);
    texts(&dashboard["templating"], "query", &mut queries);
    let alerts = include_str!("../../../../docs/reference/metrics.md").lines();
    queries.extend(alerts.filter_map(|line| line.trim_start().strip_prefix("expr: ")));
    let text = text(&snapshot());
    let known: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let mut shown = BTreeSet::new();
    for query in &queries {
        let words = query.split(|char: char| !char.is_ascii_alphanumeric() && char != '_');
        let words = words.filter(|word| word.starts_with("gpreempt_"));
        shown.extend(words.map(|word| word.strip_suffix("_bucket").unwrap_or(word)));
    }
    let unknown: Vec<_> = shown.difference(&known).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    assert!(shown.len() >= 15, "{shown:?}");
    for counter in shown.iter().filter(|name| name.ends_with("_total")) {
        let rated = queries.iter().filter(|query| query.contains(*counter));
        for query in rated {
            let is_rated =
                ["{", "["].iter().any(|next| query.contains(&format!("rate({counter}{next}")));
            assert!(is_rated || query.starts_with("label_values("), "{query}");
        }
    }
}
