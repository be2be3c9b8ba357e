//! Every request of a load, as the load wrote it down.

use gpreempt_core::time::Duration;

use crate::results::{Distribution, LcResult, SlowRequest};

/// One request. Times are nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    /// When it was due.
    pub(super) due_ns: u64,
    /// When it began.
    pub(super) begin_ns: u64,
    /// When it ended; for one that never began, when the measurement did.
    pub(super) end_ns: u64,
    /// Whether it was served.
    pub(super) is_served: bool,
}

impl Sample {
    fn since(&self, from_ns: u64) -> SlowRequest {
        SlowRequest::since(from_ns, self.due_ns, self.begin_ns, self.end_ns)
    }
}

/// Reads the table that a load wrote.
pub(super) fn read(text: &str) -> Vec<Sample> {
    text.lines().filter_map(sample).collect()
}

fn sample(line: &str) -> Option<Sample> {
    let mut cells = line.split(',');
    let mut number = || cells.next()?.trim().parse::<u64>().ok();
    let (due_ns, begin_ns, end_ns) = (number()?, number()?, number()?);
    let is_served = number().is_none_or(|served| served == 1);
    Some(Sample { due_ns, begin_ns, end_ns, is_served })
}

/// What requests met with in a window that begins at `from_ns`; none without requests.
pub(super) fn result(
    samples: &[Sample],
    deadline: Option<Duration>,
    from_ns: u64,
) -> Option<LcResult> {
    let latency = |sample: &Sample| sample.end_ns.saturating_sub(sample.due_ns);
    let served = || samples.iter().filter(|sample| sample.is_served);
    let late = |limit: Duration| {
        let is_late = |sample: &&Sample| !sample.is_served || latency(sample) > limit.as_nanos();
        samples.iter().filter(is_late).count() as u64
    };
    Some(LcResult {
        latency: Distribution::of(samples.iter().map(latency).collect())?,
        service: Distribution::of(
            served().map(|sample| sample.end_ns.saturating_sub(sample.begin_ns)).collect(),
        ),
        unfinished: samples.iter().filter(|sample| !sample.is_served).count() as u64,
        missed: deadline.map(late),
        slowest: SlowRequest::slowest(samples.iter().map(|sample| sample.since(from_ns)).collect()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_never_began_have_waited() {
        let text = "due_ns,begin_ns,end_ns,served\n100,110,150,1\n200,210,290,1\n300,900,900,0\n";
        let samples = read(text);
        assert_eq!(samples.len(), 3);
        let result = result(&samples, Some(Duration::from_nanos(60)), 100).unwrap();
        assert_eq!((result.latency.p50_ns, result.latency.max_ns), (90, 600));
        assert_eq!(result.service.unwrap().max_ns, 80);
        assert_eq!((result.unfinished, result.missed), (1, Some(2)));
        let times = |slow: &SlowRequest| (slow.due_ns, slow.begin_ns, slow.end_ns);
        let slowest: Vec<_> = result.slowest.iter().map(times).collect();
        assert_eq!(slowest, [(0, 10, 50), (100, 110, 190), (200, 800, 800)]);
        assert_eq!(super::result(&[], None, 0), None);
    }
}
