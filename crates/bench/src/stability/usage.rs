//! What a process has: memory and descriptors.

/// One reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    /// Memory in use.
    pub(super) resident_kib: u64,
    /// Descriptors in use.
    pub(super) descriptors: u64,
}

impl Usage {
    /// Of a process that is there.
    pub(super) fn of(pid: u32) -> Option<Self> {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64;
        Some(Self { resident_kib: resident_kib(&status)?, descriptors })
    }
}

fn resident_kib(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The middle of the readings of the second tenth and of the last tenth: by then a process has what
/// it needs, and one large reading does not decide.
pub(super) fn early_and_late(readings: &[u64]) -> Option<(u64, u64)> {
    let tenth = (readings.len() / 10).max(1);
    let early = median(readings.get(tenth..2 * tenth).filter(|part| !part.is_empty())?);
    let late = median(&readings[readings.len() - tenth..]);
    Some((early, late))
}

fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_status_of_a_process() {
        assert_eq!(resident_kib("Name:\tx\nVmRSS:\t  1234 kB\nThreads:\t1\n"), Some(1234));
        assert_eq!(resident_kib("Name:\tx\n"), None);
        assert!(Usage::of(std::process::id()).is_some_and(|usage| usage.descriptors > 2));
    }

    #[test]
    fn what_a_process_takes_at_the_start_does_not_count() {
        let mut readings: Vec<u64> = vec![1; 10];
        readings.extend([50; 80]);
        readings.extend([60; 10]);
        assert_eq!(early_and_late(&readings), Some((50, 60)));
        assert_eq!(early_and_late(&[5]), None);
        assert_eq!(early_and_late(&[5, 6]), Some((6, 6)));
    }
}
