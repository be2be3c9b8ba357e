//! Times that kernels recorded by the device's clock: when best-effort work was off the GPU, when a
//! request's first and last instruction ran, and when best-effort work was back.

use super::load_process::{LoadProcess, of_role};
use crate::results::{Mark, Number, Role, Span, TimeLine};

/// A request, in times of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Probe {
    /// Its beginning on the host.
    begin_ns: u64,
    first_ns: u64,
    last_ns: u64,
}

/// An interval in which best-effort work was off the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    off_ns: u64,
    back_ns: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct PreemptionTimes {
    probes: Vec<Probe>,
    gaps: Vec<Gap>,
    /// The names of the two loads in the time line.
    rows: [String; 2],
}

/// How much the time line shows before a request and after best-effort work is back.
const AROUND_NS: u64 = 100_000;

impl PreemptionTimes {
    /// Reads the files of the loads.
    pub(super) fn read(loads: &[LoadProcess]) -> Self {
        let of = |role: Role| of_role(loads, role);
        let text = |role: Role| {
            let texts = of(role).map(|process| std::fs::read_to_string(&process.beats));
            texts.map(Result::unwrap_or_default).collect::<String>()
        };
        let name = |role: Role| {
            of(role).next().map(|process| process.load.name.clone()).unwrap_or_default()
        };
        Self {
            probes: probes(&text(Role::Lc)),
            gaps: gaps(&text(Role::Be)),
            rows: [name(Role::Lc), name(Role::Be)],
        }
    }

    pub(super) fn numbers(&self) -> Vec<Number> {
        let Self { probes, gaps, .. } = self;
        Number::of_preemptions(be_off(probes, gaps), first(probes), resume(probes, gaps))
    }

    /// The time line of the request with the median time to its first instruction.
    pub(super) fn time_line(&self) -> Option<TimeLine> {
        let mut met: Vec<(Probe, Gap)> = self
            .probes
            .iter()
            .filter_map(|probe| Some((*probe, around(probe, &self.gaps)?)))
            .filter(|(probe, gap)| gap.off_ns >= probe.begin_ns && gap.back_ns >= probe.last_ns)
            .collect();
        met.sort_unstable_by_key(|(probe, _)| probe.first_ns.saturating_sub(probe.begin_ns));
        let (probe, gap) = *met.get(met.len() / 2)?;
        let begin = probe.begin_ns.saturating_sub(AROUND_NS);
        let offset = |ns: u64| ns.saturating_sub(begin);
        let length_ns = offset(gap.back_ns + AROUND_NS);
        let span = |row: u32, what: &str, from_ns: u64, to_ns: u64| Span {
            row,
            what: what.to_owned(),
            from_ns,
            to_ns,
        };
        let mark = |name: &str, at: u64| Mark { name: name.to_owned(), at_ns: offset(at) };
        Some(TimeLine {
            rows: self.rows.to_vec(),
            spans: vec![
                span(0, "wait", offset(probe.begin_ns), offset(probe.first_ns)),
                span(0, "run", offset(probe.first_ns), offset(probe.last_ns)),
                span(1, "run", 0, offset(gap.off_ns)),
                span(1, "wait", offset(gap.off_ns), offset(gap.back_ns)),
                span(1, "run", offset(gap.back_ns), length_ns),
            ],
            marks: vec![
                mark("request", probe.begin_ns),
                mark("first instruction", probe.first_ns),
                mark("back", gap.back_ns),
            ],
            length_ns,
        })
    }
}

fn numbers_of(line: &str) -> Vec<u64> {
    line.split(',').map_while(|cell| cell.trim().parse().ok()).collect()
}

fn probes(text: &str) -> Vec<Probe> {
    text.lines()
        .filter_map(|line| match numbers_of(line)[..] {
            [begin_ns, first_ns, last_ns] => Some(Probe { begin_ns, first_ns, last_ns }),
            _ => None,
        })
        .collect()
}

fn gaps(text: &str) -> Vec<Gap> {
    let mut gaps: Vec<Gap> = text
        .lines()
        .filter_map(|line| match numbers_of(line)[..] {
            [off_ns, back_ns] => Some(Gap { off_ns, back_ns }),
            _ => None,
        })
        .collect();
    gaps.sort_unstable_by_key(|gap| gap.off_ns);
    gaps
}

/// The interval off the GPU in which a request ran.
fn around(probe: &Probe, gaps: &[Gap]) -> Option<Gap> {
    let next = gaps.partition_point(|gap| gap.off_ns <= probe.first_ns);
    let gap = *gaps.get(next.checked_sub(1)?)?;
    (gap.back_ns >= probe.first_ns).then_some(gap)
}

fn be_off(probes: &[Probe], gaps: &[Gap]) -> Vec<u64> {
    let off = |probe: &Probe| around(probe, gaps)?.off_ns.checked_sub(probe.begin_ns);
    probes.iter().filter_map(off).collect()
}

fn first(probes: &[Probe]) -> Vec<u64> {
    probes.iter().filter_map(|probe| probe.first_ns.checked_sub(probe.begin_ns)).collect()
}

fn resume(probes: &[Probe], gaps: &[Gap]) -> Vec<u64> {
    let back = |probe: &Probe| around(probe, gaps)?.back_ns.checked_sub(probe.last_ns);
    probes.iter().filter_map(back).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_count_from_the_request() {
        let probes = probes("begin_ns,first_ns,last_ns\n1000,1185,1205\n5000,5020,5040\n");
        let gaps = gaps("off_ns,back_ns\n1134,1351\n");
        assert_eq!(first(&probes), [185, 20]);
        assert_eq!(be_off(&probes, &gaps), [134]);
        assert_eq!(resume(&probes, &gaps), [146]);
    }

    #[test]
    fn the_time_line_shows_one_preemption() {
        let rows = ["lc".to_owned(), "be".to_owned()];
        let probes = probes("1000000,1185000,1205000\n5000000,5020000,5040000\n");
        let gaps = gaps("1134000,1351000\n");
        let line = PreemptionTimes { probes, gaps, rows }.time_line().unwrap();
        assert_eq!(line.length_ns, 551_000);
        let be: Vec<(u64, u64)> =
            line.spans.iter().filter(|s| s.row == 1).map(|s| (s.from_ns, s.to_ns)).collect();
        assert_eq!(be, [(0, 234_000), (234_000, 451_000), (451_000, 551_000)]);
        assert_eq!(line.marks[1].at_ns, 285_000);
        assert_eq!(PreemptionTimes::default().time_line(), None);
    }

    #[test]
    fn a_request_on_an_idle_gpu_has_no_preemption_times() {
        let probes = probes("100,120,140\n");
        assert!(be_off(&probes, &gaps("10,90\n")).is_empty());
        assert!(be_off(&probes, &gaps("")).is_empty());
        assert!(be_off(&probes, &gaps("130,150\n")).is_empty());
    }
}
