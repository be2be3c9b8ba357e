//! The JSON lines that loads print, as the runner reads them.

use std::collections::BTreeMap;

use serde::Deserialize;

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "line", rename_all = "lowercase")]
pub(crate) enum Line {
    Ready {
        kernel: Option<Shape>,
    },
    /// The load is ready for a round.
    Prepared {
        round: u64,
    },
    /// Best-effort work in an interval of `CLOCK_MONOTONIC`.
    Rate {
        from_ns: u64,
        until_ns: u64,
        count: u64,
    },
    Final(Final),
    /// Holds for a process: placed, given up after the limit, and the longest.
    Holds {
        placed: u64,
        expired: u64,
        longest_us: u64,
    },
    /// The busy periods of a process under `attach`: how long, off the GPU, lost, and with slices
    /// of a latency budget.
    Slowdown {
        budget_percent: Option<u16>,
        busy_us: u64,
        off_us: u64,
        lost_us: u64,
        shared_us: u64,
    },
    Attached {
        pid: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Shape {
    /// The calibrated amount of work; none for an emulated kernel.
    pub(crate) iterations: Option<u64>,
}

/// The last line of a load; latency-critical and best-effort loads set different fields.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Final {
    /// The measured window, by `CLOCK_MONOTONIC`.
    pub(crate) from_ns: u64,
    pub(crate) until_ns: u64,
    pub(crate) unit: String,
    /// Whether every kernel ran exactly once, where that was checked.
    pub(crate) exactness: Option<Exactness>,
    /// Latencies of requests, counted from when they were due.
    pub(crate) latency_us: Option<Quantiles>,
    /// Times of parts of requests, by the name of the part.
    pub(crate) parts_us: BTreeMap<String, Quantiles>,
    /// Wrong results.
    pub(crate) wrong: u64,
    /// Whether no work was left on the device, where that was checked.
    pub(crate) drained: Option<bool>,
}

/// Percentiles in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Quantiles {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Exactness {
    /// `pass` if every kernel ran exactly once.
    pub(crate) result: String,
}

/// The lines of a log; other text is skipped.
pub(crate) fn of(log: &str) -> impl Iterator<Item = Line> + '_ {
    log.lines().filter_map(|line| serde_json::from_str(line).ok())
}

/// The work done between two times, and the seconds of the whole intervals between them.
pub(crate) fn done(log: &str, from_ns: u64, until_ns: u64) -> (f64, f64) {
    let (mut done, mut ns) = (0_u64, 0_u64);
    for line in of(log) {
        if let Line::Rate { from_ns: begin, until_ns: end, count } = line
            && begin >= from_ns
            && end <= until_ns
        {
            done += count;
            ns += end.saturating_sub(begin);
        }
    }
    // CAST: far below what a float counts exactly.
    (done as f64, ns as f64 / 1e9)
}

pub(crate) fn last(log: &str) -> Option<Final> {
    of(log).find_map(|line| if let Line::Final(last) = line { Some(last) } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
{\"line\":\"ready\",\"load\":\"be\",\"pid\":7,\"at_ns\":1,\"device\":\"x\",\"kernel\":\
{\"iterations\":500,\"measured_us\":8000.0,\"blocks\":3,\"blocks_per_multiprocessor\":1,\
\"registers\":16}}
some words
{\"line\":\"rate\",\"unit\":\"kernels\",\"from_ns\":0,\"until_ns\":500,\"count\":9,\
\"per_second\":1.0,\"total\":9}
{\"line\":\"rate\",\"unit\":\"kernels\",\"from_ns\":500,\"until_ns\":1000,\"count\":4,\
\"per_second\":1.0,\"total\":13}
{\"line\":\"rate\",\"unit\":\"kernels\",\"from_ns\":1000,\"until_ns\":2000,\"count\":6,\
\"per_second\":1.0,\"total\":19}
{\"line\":\"final\",\"unit\":\"kernels\",\"from_ns\":0,\"until_ns\":2000,\"total\":19,\
\"per_second\":1.0,\"drained\":true,\"exactness\":{\"result\":\"pass\"}}
";

    #[test]
    fn lines_are_what_loads_write() {
        let first = of(LOG).next().unwrap();
        assert_eq!(first, Line::Ready { kernel: Some(Shape { iterations: Some(500) }) });
        let emulated = "{\"line\":\"ready\",\"kernel\":{\"kernel\":\"mix\",\"groups\":8}}";
        let shape = Some(Shape { iterations: None });
        assert_eq!(of(emulated).next(), Some(Line::Ready { kernel: shape }));
        let last = last(LOG).unwrap();
        assert_eq!((last.until_ns, last.unit.as_str()), (2000, "kernels"));
        assert_eq!(last.exactness.unwrap().result, "pass");
        let lc = "{\"line\":\"final\",\"from_ns\":1,\"until_ns\":2,\"n\":1,\"missed\":0,\
                  \"unserved\":1,\"latency_us\":null,\"service_us\":null}";
        assert_eq!(super::last(lc).unwrap().exactness, None);
    }

    #[test]
    fn only_whole_windows_count() {
        assert_eq!(done(LOG, 100, 2000), (10.0, 1.5e-6));
        assert_eq!(done(LOG, 0, 999), (9.0, 5e-7));
        assert_eq!(done("", 0, 999), (0.0, 0.0));
    }
}
