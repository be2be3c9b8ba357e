//! The summary of a run: one row for each case and mode, over all repetitions, and whether noise of
//! the host may have caused a tail latency.

use serde::{Deserialize, Serialize};

use super::{Distribution, Estimate, LcResult, LoadResult, Measurement, Number, Results, Status};

/// The result of a case in a mode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SummaryRow {
    pub case: String,
    pub mode: String,
    /// Successful repetitions.
    pub ok: u32,
    /// Why the first of the others failed.
    pub failure: Option<String>,
    /// Whether the first of the others was not attempted.
    pub skipped: bool,
    /// Whether requests arrived faster than they were served; their latency then grows with the
    /// length of the measurement.
    #[serde(default)]
    pub overloaded: bool,
    /// Whether the p99, or its ratio, is of a repetition in which host noise may have caused the
    /// tail; for the ratio also if the baseline was disturbed.
    #[serde(default)]
    pub disturbed: bool,
    pub p50_ns: Option<Estimate>,
    pub p99_ns: Option<Estimate>,
    /// Papers report the mean.
    pub mean_ns: Option<Estimate>,
    /// p50 divided by the p50 of the baseline in the same repetition.
    pub p50_ratio: Option<Estimate>,
    pub p99_ratio: Option<Estimate>,
    pub mean_ratio: Option<Estimate>,
    /// See [`BeResult::kept`](super::BeResult).
    pub be_kept: Option<Estimate>,
}

/// Fewer loads than this are told apart by the summary.
const LOADS_MIN: usize = 3;

impl Results {
    /// The loads of a case that has so many that the summary does not tell them apart.
    pub fn many_loads(&self, case: &str) -> Option<&[LoadResult]> {
        let measured = self.measurements.iter().filter(|each| each.case == case);
        let loads = measured.map(|each| each.loads.as_slice()).max_by_key(|loads| loads.len())?;
        (loads.len() >= LOADS_MIN).then_some(loads)
    }

    /// The results of one load, of each successful repetition.
    pub fn of_load<'r>(
        &'r self,
        case: &'r str,
        mode: &'r str,
        load: &'r str,
    ) -> impl Iterator<Item = &'r LoadResult> {
        let worked = self.of(case, mode).filter(|each| each.is_ok());
        worked.flat_map(|each| &each.loads).filter(move |each| each.name == load)
    }

    /// A latency of one load, over the repetitions; none if it has no requests.
    pub fn latency_of_load(
        &self,
        case: &str,
        mode: &str,
        load: &str,
        latency_ns: fn(&LcResult) -> u64,
    ) -> Option<Estimate> {
        let found = self.of_load(case, mode, load).filter_map(|each| each.lc.as_ref());
        // CAST: latencies are far below what a float counts exactly.
        Estimate::of(&found.map(|lc| latency_ns(lc) as f64).collect::<Vec<_>>())
    }

    /// Recomputes the summary from the measurements.
    pub fn summarise(&mut self) {
        let mut rows = Vec::new();
        for case in &self.cases {
            for mode in &self.modes {
                let alone = mode.alone.as_deref().unwrap_or(&mode.name);
                rows.extend(row(self, &case.name, &mode.name, alone));
            }
        }
        self.summary = rows;
    }

    /// Whether host noise was high enough to cause the tail latency of a measurement. False where
    /// the noise or the latency of the baseline is unknown.
    pub fn is_disturbed(&self, measurement: &Measurement) -> bool {
        let mode = self.modes.iter().find(|mode| mode.name == measurement.mode);
        let alone = mode.and_then(|mode| mode.alone.as_deref()).unwrap_or(&measurement.mode);
        let mut same = self.of(&measurement.case, alone);
        let base = same.find(|each| each.repetition == measurement.repetition && each.is_ok());
        let p50_ns = base.and_then(p50);
        HostNoise::of(measurement).zip(p50_ns).is_some_and(|(noise, p50_ns)| noise.disturbs(p50_ns))
    }
}

fn row(results: &Results, case: &str, mode: &str, alone: &str) -> Option<SummaryRow> {
    let all: Vec<&Measurement> = results.of(case, mode).collect();
    if all.is_empty() {
        return None;
    }
    let ok: Vec<&Measurement> = all.iter().copied().filter(|each| each.is_ok()).collect();
    let failure = all.iter().find_map(|each| match &each.status {
        Status::Ok => None,
        Status::Failed { reason } => Some((reason.clone(), false)),
        Status::Skipped { reason } => Some((reason.clone(), true)),
    });
    let baseline = |repetition: u32| {
        results.of(case, alone).find(|each| each.repetition == repetition && each.is_ok())
    };
    let estimate = |read: fn(&Measurement) -> Option<f64>| {
        Estimate::of(&ok.iter().filter_map(|each| read(each)).collect::<Vec<_>>())
    };
    let ratio = |read: fn(&Measurement) -> Option<f64>| {
        let ratios = ok.iter().filter_map(|each| {
            let base = read(baseline(each.repetition)?)?;
            Some(read(each)? / base).filter(|ratio| ratio.is_finite())
        });
        Estimate::of(&ratios.collect::<Vec<_>>())
    };
    let is_disturbed = |each: &Measurement| results.is_disturbed(each);
    let tails = ok.iter().filter_map(|each| Some((p99(each)?, is_disturbed(each))));
    // The ratio of the baseline to itself is 1 in every repetition.
    let tail_ratios = ok.iter().filter(|_| mode != alone).filter_map(|each| {
        let base = baseline(each.repetition)?;
        Some((p99(each)? / p99(base)?, is_disturbed(each) || is_disturbed(base)))
    });
    let disturbed = is_in_median(tails.collect()) || is_in_median(tail_ratios.collect());
    Some(SummaryRow {
        case: case.to_owned(),
        mode: mode.to_owned(),
        ok: u32::try_from(ok.len()).unwrap_or(u32::MAX),
        skipped: failure.as_ref().is_some_and(|(_, skipped)| *skipped),
        failure: failure.map(|(reason, _)| reason),
        // In most repetitions.
        overloaded: ok.iter().filter(|each| is_overloaded(each)).count() * 2 > ok.len(),
        disturbed,
        p50_ns: estimate(p50),
        p99_ns: estimate(p99),
        mean_ns: estimate(mean),
        p50_ratio: ratio(p50),
        p99_ratio: ratio(p99),
        mean_ratio: ratio(mean),
        be_kept: estimate(|each| each.be.as_ref()?.kept),
    })
}

/// More than one request in twenty is unfinished at the end. Requests that are only late now and
/// then leave fewer.
fn is_overloaded(each: &Measurement) -> bool {
    each.lc.as_ref().is_some_and(|lc| lc.unfinished.saturating_mul(20) > lc.latency.count.max(60))
}

/// Whether the median of these values belongs to a disturbed one. Two values form the median of an
/// even number.
fn is_in_median(mut values: Vec<(f64, bool)>) -> bool {
    values.sort_by(|one, other| one.0.total_cmp(&other.0));
    let Some(last) = values.len().checked_sub(1) else { return false };
    values[last / 2].1 || values[last.div_ceil(2)].1
}

// CAST: latencies are far below what a float counts exactly.
fn p50(each: &Measurement) -> Option<f64> {
    each.lc.as_ref().map(|lc| lc.latency.p50_ns as f64)
}

// CAST: as above.
fn p99(each: &Measurement) -> Option<f64> {
    each.lc.as_ref().map(|lc| lc.latency.p99_ns as f64)
}

fn mean(each: &Measurement) -> Option<f64> {
    each.lc.as_ref().map(|lc| lc.latency.mean_ns)
}

const LATE_P50: &str = "machine_late_p50";
const LATE_P99: &str = "machine_late_p99";
const LATE_MAX: &str = "machine_late_max";
const STOLEN: &str = "machine_stolen";
/// The common prefix of these numbers.
const PREFIX: &str = "machine_";

/// Wake-up latency above this fraction of a request disturbs the measurement.
const PART_MAX: f64 = 0.1;
/// An idle host wakes a sleeping thread this late (ns) too: timers are coalesced, and an idle
/// processor takes time to wake. Loads that do not sleep are not affected.
const LATE_MIN_NS: f64 = 200_000.0;

/// Noise of the host during one measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HostNoise {
    /// Wake-up latency of a sleeping thread (ns), p99 and maximum.
    pub(crate) late_p99_ns: f64,
    pub(crate) late_max_ns: f64,
    /// Steal time: the fraction of one processor that the hypervisor took, if the kernel counts it.
    pub(crate) stolen: Option<f64>,
}

impl HostNoise {
    /// The noise as numbers of a measurement; unknown values have no number.
    pub(crate) fn numbers(late: Option<&Distribution>, stolen: Option<f64>) -> Vec<Number> {
        let mut numbers = Vec::new();
        if let Some(late) = late {
            let title = |rest: &str| format!("host: wake-up latency of a sleeping thread, {rest}");
            // CAST: times are far below what a float counts exactly.
            numbers.extend([
                Number::new(LATE_P50, &title("p50"), "ns", late.p50_ns as f64),
                Number::new(LATE_P99, &title("p99"), "ns", late.p99_ns as f64),
                Number::new(LATE_MAX, &title("maximum"), "ns", late.max_ns as f64),
            ]);
        }
        let title = "host: CPU time stolen by the hypervisor";
        numbers.extend(stolen.map(|part| Number::new(STOLEN, title, "1", part)));
        numbers
    }

    pub(crate) fn has(number: &Number) -> bool {
        number.name.starts_with(PREFIX)
    }

    /// None where it was not measured: in older files and in virtual time.
    pub(crate) fn of(measurement: &Measurement) -> Option<Self> {
        let number = |name: &str| measurement.number(name).filter(|value| value.is_finite());
        Some(Self {
            late_p99_ns: number(LATE_P99)?,
            late_max_ns: number(LATE_MAX)?,
            stolen: number(STOLEN),
        })
    }

    /// Whether it may cause the tail of requests whose baseline p50 is `alone_p50_ns`.
    pub(crate) fn disturbs(&self, alone_p50_ns: f64) -> bool {
        self.late_p99_ns > LATE_MIN_NS.max(alone_p50_ns * PART_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_values_that_form_the_median_count() {
        let of = |values: &[(f64, bool)]| is_in_median(values.to_vec());
        assert!(!of(&[]));
        assert!(of(&[(1.0, true)]));
        assert!(!of(&[(9.0, true), (1.0, false), (2.0, false)]));
        assert!(of(&[(2.0, true), (1.0, false), (3.0, false)]));
        assert!(of(&[(1.0, false), (2.0, false), (3.0, true), (4.0, false)]));
        assert!(!of(&[(1.0, true), (2.0, false), (3.0, false), (4.0, true)]));
    }

    #[test]
    fn a_tenth_of_a_request_disturbs_but_not_the_wake_up_latency_of_an_idle_host() {
        let disturbs = |late_p99_ns: f64, alone_p50_ns: f64| {
            let noise = HostNoise { late_p99_ns, late_max_ns: 9e9, stolen: None };
            noise.disturbs(alone_p50_ns)
        };
        assert!(disturbs(240_001.0, 2_400_000.0));
        assert!(!disturbs(240_000.0, 2_400_000.0));
        assert!(!disturbs(200_000.0, 43_000.0));
        assert!(disturbs(200_001.0, 43_000.0));
    }

    #[test]
    fn unknown_noise_has_no_number() {
        assert!(HostNoise::numbers(None, None).is_empty());
        let late = Distribution::of(vec![5, 7]).unwrap();
        assert_eq!(HostNoise::numbers(Some(&late), None).len(), 3);
        let all = HostNoise::numbers(Some(&late), Some(0.5));
        let names: Vec<&str> = all.iter().map(|number| number.name.as_str()).collect();
        assert_eq!(names, [LATE_P50, LATE_P99, LATE_MAX, STOLEN]);
        assert!(all.iter().all(HostNoise::has));
    }
}
