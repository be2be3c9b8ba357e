//! An invented results file, shaped like a real one.

use crate::results::{
    ALONE, BeResult, CaseInfo, Check, CurvePoint, Distribution, Environment, HostNoise, LcResult,
    LoadResult, Mark, Measurement, ModeInfo, Number, Results, Role, SlowRequest, Span, Status,
    SuiteInfo, TimeLine, Version,
};

const US: u64 = 1_000;

/// How much a mode adds to a request, in microseconds, and what it leaves to others.
const MODES: [(&str, &str, u64, f64); 5] = [
    (ALONE, "requests alone", 0, 0.0),
    ("default", "the driver's slices", 5_200, 0.97),
    ("mps", "MPS", 0, 0.0),
    ("slices", "gpreempt, slices only", 420, 0.93),
    ("hold", "gpreempt, holds across gaps", 60, 0.88),
];

/// Three points of a curve, three repetitions, a mode that fails, and a check that does.
pub(crate) fn results() -> Results {
    let modes = MODES.map(|(name, title, ..)| ModeInfo {
        name: name.to_owned(),
        title: title.to_owned(),
        alone: (name != ALONE).then(|| ALONE.to_owned()),
    });
    let cases = [10_u32, 30, 60].map(case);
    let mut measurements = Vec::new();
    for repetition in 0..3 {
        for (index, case) in cases.iter().enumerate() {
            for mode in 0..MODES.len() {
                measurements.push(measurement(&case.name, index as u64, mode, repetition));
            }
        }
    }
    let suite = SuiteInfo {
        name: "sample".to_owned(),
        title: "Requests with gaps, beside endless kernels".to_owned(),
        digest: "0123456789abcdef".to_owned(),
        text: Some("name = \"sample\"\n# <none>\n".to_owned()),
    };
    let command = "gpreempt bench sample --backend nvidia --repetitions 3".to_owned();
    let mut results = Results {
        commit: Some("0123abc".to_owned()),
        environment: environment(),
        started: "2026-01-02T03:04:05Z".to_owned(),
        finished: Some("2026-01-02T03:09:05Z".to_owned()),
        repetitions: 3,
        short: true,
        modes: modes.to_vec(),
        cases: cases.to_vec(),
        measurements,
        checks: checks(),
        ..Results::new(suite, "nvidia", command)
    };
    results.summarise();
    results
}

fn case(load: u32) -> CaseInfo {
    CaseInfo {
        name: format!("gap-{load}"),
        title: format!("Gap load at {load}%"),
        loads: vec![
            format!("lc: 20 kernels of 20 us with gaps of 30 us, {load}% of the time"),
            "be: kernels of 8 ms, back to back".to_owned(),
        ],
        point: Some(CurvePoint {
            curve: "load".to_owned(),
            axis: "the part of the time that requests take".to_owned(),
            unit: "%".to_owned(),
            value: f64::from(load),
        }),
    }
}

fn measurement(case: &str, index: u64, mode: usize, repetition: u32) -> Measurement {
    let (name, _, extra_us, kept) = MODES[mode];
    let failed = name == "mps" || (name == "slices" && repetition == 2 && index == 1);
    let status = if failed {
        Status::Failed { reason: "the control daemon did not start within 10 s".to_owned() }
    } else {
        Status::Ok
    };
    let spread = (0..400_u64).map(|n| {
        let tail = if n % 97 == 0 { extra_us * US } else { 0 };
        1_400 * US
            + (extra_us + index * 90) * US * (100 + u64::from(repetition)) / 100
            + n * n * 3
            + tail
    });
    let lc = LcResult {
        latency: Distribution::of(spread.collect()).unwrap(),
        service: None,
        unfinished: 0,
        missed: None,
        slowest: vec![SlowRequest::since(0, 7, 8, 9)],
    };
    let be = (kept > 0.0).then(|| BeResult {
        done: 900.0,
        unit: "kernels".to_owned(),
        seconds: 8.0,
        per_second: 112.0,
        of_alone: Some(kept * 0.8),
        kept: Some(kept - 0.04 * f64::from(repetition) * 0.1 - 0.08 * index as f64),
        exact: Some(true),
    });
    let loads = ["lc", "be", "be 2"].map(|load| LoadResult {
        name: load.to_owned(),
        role: if load == "lc" { Role::Lc } else { Role::Be },
        lc: (load == "lc").then(|| lc.clone()),
        be: be.clone().filter(|_| load != "lc"),
    });
    Measurement {
        case: case.to_owned(),
        mode: name.to_owned(),
        repetition,
        seed: 1,
        took_s: 8.5,
        status: status.clone(),
        lc: Some(lc).filter(|_| !failed),
        be: be.filter(|_| !failed),
        loads: if failed { Vec::new() } else { loads.to_vec() },
        numbers: if failed { Vec::new() } else { numbers(extra_us, repetition) },
        time_line: (!failed && repetition == 0 && name != ALONE).then(|| time_line(extra_us)),
    }
}

fn numbers(extra_us: u64, repetition: u32) -> Vec<Number> {
    let off_ns = (40 + extra_us / 30) * US + u64::from(repetition) * 900;
    let late = [40_u64, 80, 150].map(|us| us * US);
    let late = [vec![late[0]; 90], vec![late[1]; 9], vec![late[2]]].concat();
    let mut numbers = HostNoise::numbers(Distribution::of(late).as_ref(), Some(0.002));
    numbers.extend([
        Number::new("be_off_p50", "Other work off the device, p50", "ns", off_ns as f64),
        Number::new("share", "Requests served by the first try", "%", 99.5),
    ]);
    numbers
}

fn time_line(extra_us: u64) -> TimeLine {
    let arrival = 500 * US;
    let begin = arrival + extra_us * US / 2 + 40 * US;
    let end = begin + 1_400 * US;
    let span = |row: u32, what: &str, from_ns: u64, to_ns: u64| Span {
        row,
        what: what.to_owned(),
        from_ns,
        to_ns,
    };
    let mark = |name: &str, at_ns: u64| Mark { name: name.to_owned(), at_ns };
    TimeLine {
        rows: vec!["lc".to_owned(), "be".to_owned()],
        spans: vec![
            span(0, "wait", arrival, begin),
            span(0, "run", begin, end),
            span(1, "run", 0, begin - 30 * US),
            span(1, "save", begin - 30 * US, begin),
            span(1, "wait", begin, end),
            span(1, "restore", end, end + 25 * US),
            span(1, "run", end + 25 * US, end + 600 * US),
        ],
        marks: vec![
            mark("request", arrival),
            mark("answer", end),
            mark("preempt", begin - 30 * US),
            mark("back", end + 25 * US),
        ],
        length_ns: end + 600 * US,
    }
}

fn environment() -> Environment {
    let version = |program: &str, version: &str| Version {
        program: program.to_owned(),
        version: version.to_owned(),
    };
    Environment {
        devices: vec!["NVIDIA H200".to_owned()],
        driver: Some("570.1".to_owned()),
        kernel: "Linux 6.8".to_owned(),
        processor: "a processor".to_owned(),
        cores: 16,
        versions: vec![version("gpreempt", "0.1.0"), version("CUDA", "12.8")],
    }
}

fn checks() -> Vec<Check> {
    let check = |name: &str, mode: &str, passed: bool, text: &str| Check {
        name: name.to_owned(),
        case: Some("gap-10".to_owned()),
        mode: Some(mode.to_owned()),
        passed,
        text: text.to_owned(),
    };
    vec![
        check("p50 is at most 1.2 times that alone", "hold", true, "1.04"),
        check("p50 is at most 1.2 times that alone", "slices", false, "1.30"),
    ]
}
