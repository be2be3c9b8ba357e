//! When best-effort work left, when a request's first instruction ran, when the other was back:
//! by the clock of the device, written down inside the kernels.

use super::scene::Actor;
use crate::results::{Distribution, Number, Role};

/// A request as its kernel saw it. All times are of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Probe {
    /// When it began on the processor.
    begin_ns: u64,
    /// Its first instruction.
    first_ns: u64,
    /// Its last one.
    last_ns: u64,
}

/// A time in which best-effort work stood still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    off_ns: u64,
    back_ns: u64,
}

/// The percentiles of all moments, as far as they were written down.
pub(super) fn numbers(actors: &[Actor<'_>]) -> Vec<Number> {
    let read = |role: Role| {
        let mut texts = String::new();
        for actor in actors.iter().filter(|actor| actor.load.role == role) {
            texts.push_str(&std::fs::read_to_string(&actor.beats).unwrap_or_default());
        }
        texts
    };
    let (probes, gaps) = (probes(&read(Role::Lc)), gaps(&read(Role::Be)));
    [
        ("be_off", "from a request to best-effort work being off", be_off(&probes, &gaps)),
        ("first_instruction", "from a request to its first instruction", first(&probes)),
        ("resume", "from a request's end to best-effort work running", resume(&probes, &gaps)),
    ]
    .into_iter()
    .filter_map(|(name, title, times)| Some((name, title, Distribution::of(times)?)))
    .flat_map(|(name, title, spread)| Number::percentiles(name, title, &spread))
    .collect()
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

/// The gap in which a request ran.
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
    fn moments_are_counted_from_the_request() {
        let probes = probes("begin_ns,first_ns,last_ns\n1000,1185,1205\n5000,5020,5040\n");
        let gaps = gaps("off_ns,back_ns\n1134,1351\n");
        assert_eq!(first(&probes), [185, 20]);
        assert_eq!(be_off(&probes, &gaps), [134]);
        assert_eq!(resume(&probes, &gaps), [146]);
    }

    #[test]
    fn a_request_that_met_nobody_says_nothing_of_the_other() {
        let probes = probes("100,120,140\n");
        assert!(be_off(&probes, &gaps("10,90\n")).is_empty());
        assert!(be_off(&probes, &gaps("")).is_empty());
        assert!(be_off(&probes, &gaps("130,150\n")).is_empty());
    }
}
