//! Invented reports for tests, shaped like real ones.

use super::model::{Lane, Mark, Mode, Report, Span, SpanKind};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// When the window of [`report`] begins.
const WINDOW_START: u64 = 240 * MS;

/// When, in that window, requests arrive.
const ARRIVALS: [u64; 2] = [1_400 * US, 7_400 * US];

/// A mode in which nothing happened.
pub(crate) fn mode(name: &str) -> Mode {
    Mode {
        name: name.to_owned(),
        explanation: format!("What {name} does."),
        online_ns: Vec::new(),
        kept: None,
        preemptions: 0,
        reexecuted: 0,
        lost: 0,
        exact: true,
        lanes: Vec::new(),
        marks: Vec::new(),
    }
}

/// Four modes that differ as the real ones do.
pub(crate) fn report() -> Report {
    let environment = [
        ("Device model", "emulated-cwsr (110 compute units)"),
        ("Model measured", "no: numbers read from public documents"),
        ("Machine", "cwsr"),
        ("Policy", "strict, rings read every 1 ms"),
        ("Seed", "42"),
        ("Version", "gpreempt 0.1.0"),
    ];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Report {
        title: "Online and offline work on one GPU".to_owned(),
        verdict: "With gpreempt, online requests are as fast as if they were alone (p99 1.06× \
                  instead of 7.15×), and offline work keeps 68.1% of its throughput and loses \
                  nothing."
            .to_owned(),
        command: "gpreempt demo --seed 42 --report report.html".to_owned(),
        environment: environment.to_vec(),
        modes: vec![alone(), shared(), reset(), preempted()],
        window: WINDOW_START..WINDOW_START + 12 * MS,
    }
}

fn alone() -> Mode {
    Mode {
        explanation: "Online work has the device to itself: as good as it gets.".to_owned(),
        online_ns: latencies(1_700 * US, 1_700 * US, 60 * US),
        lanes: vec![online(0, 0), lane("offline", Vec::new())],
        marks: arrivals(),
        ..mode("alone")
    }
}

fn shared() -> Mode {
    let start = WINDOW_START - 2 * MS;
    let kernels = (0..5).map(|n| (start + n * 3_100 * US, 2_900 * US));
    let kernels = kernels.map(|(at, length)| span(at, at + length, SpanKind::Run));
    Mode {
        explanation: "Both submit and nobody schedules: a request waits for offline kernels."
            .to_owned(),
        online_ns: latencies(4_000 * US, 2_900 * US, 9_000 * US),
        kept: Some(0.891),
        lanes: vec![online(2_600 * US, 250 * US), lane("offline", kernels.collect())],
        marks: arrivals(),
        ..mode("shared")
    }
}

fn reset() -> Mode {
    let mut offline = Vec::new();
    let mut marks = arrivals();
    let mut free = WINDOW_START - MS;
    for arrival in ARRIVALS.map(|at| WINDOW_START + at) {
        let killed = arrival + 330 * US;
        offline.push(span(free, arrival - 900 * US, SpanKind::Run));
        offline.push(span(arrival - 900 * US, killed, SpanKind::Killed));
        free = killed + 1_850 * US;
        offline.push(span(killed, free, SpanKind::Hold));
        marks.push(mark(killed, 1, "killed"));
        marks.push(mark(free, 1, "submitted again"));
    }
    offline.push(span(free, WINDOW_START + 14 * MS, SpanKind::Run));
    Mode {
        explanation: "As the original GPreempt and REEF: running waves are killed, the ring is \
                      emptied, and everything is submitted again."
            .to_owned(),
        online_ns: latencies(2_050 * US, 1_980 * US, 240 * US),
        kept: Some(0.463),
        preemptions: 1_204,
        reexecuted: 1_131,
        exact: false,
        lanes: vec![online(330 * US, 0), lane("offline", offline)],
        marks,
        ..mode("reset")
    }
}

fn preempted() -> Mode {
    let mut offline = Vec::new();
    let mut marks = arrivals();
    let mut free = WINDOW_START - MS;
    for arrival in ARRIVALS.map(|at| WINDOW_START + at) {
        // The last stretch is many short kernels.
        let many = (0..400).map(|n| arrival - (n + 1) * 2 * US);
        offline.extend(many.map(|at| span(at, at + 1_900, SpanKind::Run)));
        offline.push(span(free, arrival - 800 * US, SpanKind::Run));
        let saved = arrival + 96 * US;
        let resumed = saved + 1_780 * US;
        free = resumed + 104 * US;
        offline.push(span(arrival, saved, SpanKind::Save));
        offline.push(span(saved, resumed, SpanKind::Hold));
        offline.push(span(resumed, free, SpanKind::Restore));
        marks.push(mark(arrival, 1, "preempted"));
        marks.push(mark(resumed, 1, "resumed"));
    }
    offline.push(span(free, WINDOW_START + 14 * MS, SpanKind::Run));
    Mode {
        explanation: "Offline waves are saved where they are, wait, and go on from there."
            .to_owned(),
        online_ns: latencies(1_800 * US, 1_796 * US, 70 * US),
        kept: Some(0.681),
        preemptions: 1_204,
        lanes: vec![online(96 * US, 0), lane("offline", offline)],
        marks,
        ..mode("gpreempt")
    }
}

/// Two requests of eight kernels each: `wait` before the first and `between` before the others.
fn online(wait: u64, between: u64) -> Lane {
    let mut spans = Vec::new();
    for arrival in ARRIVALS {
        let mut at = WINDOW_START + arrival;
        for kernel in 0..8 {
            let start = at + if kernel == 0 { wait } else { between };
            spans.push(span(at, start, SpanKind::Wait));
            spans.push(span(start, start + 180 * US, SpanKind::Run));
            at = start + 210 * US;
        }
    }
    lane("online", spans)
}

fn arrivals() -> Vec<Mark> {
    let marks = ARRIVALS.map(|at| mark(WINDOW_START + at, 0, "request arrives"));
    marks.to_vec()
}

/// Two thousand latencies around `middle`, none below `least`, with a tail about `tail` long.
fn latencies(middle: u64, least: u64, tail: u64) -> Vec<u64> {
    let mut state = 1_u64;
    let mut latencies = (0..2_000)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040);
            let uniform = (state >> 40) as f64 / f64::from(1 << 24);
            let stretch = -(1.0 - uniform).ln() / 4.6;
            let above = (stretch * 1_000_000.0).round().to_string().parse::<u64>();
            least.max(middle + tail * above.unwrap_or(0) / 1_000_000)
        })
        .collect::<Vec<_>>();
    latencies.sort_unstable();
    latencies
}

fn lane(name: &str, spans: Vec<Span>) -> Lane {
    Lane { name: name.to_owned(), spans }
}

fn span(start_ns: u64, end_ns: u64, kind: SpanKind) -> Span {
    Span { start_ns, end_ns, kind }
}

fn mark(at_ns: u64, lane: usize, text: &str) -> Mark {
    Mark { at_ns, lane, text: text.to_owned() }
}
