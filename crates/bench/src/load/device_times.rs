//! Files with times that kernels recorded by the device's clock: the intervals in which best-effort
//! kernels were off the GPU (`be --beats`), and the first and last instruction of requests
//! (`lc --probe`). Both are written in host time after a measurement.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::clock::{ClockComparison, ClockPair, DeviceClock, wide};
use crate::cuda::{Context, HostMemory, Stream};
use crate::failure::Failure;
use crate::kernels::{RECORD_HEAD, RECORD_WORDS, RECORDS};
use crate::workload::Workload;

/// Writes the intervals in which kernels were off the GPU.
pub(crate) struct OffIntervals {
    path: PathBuf,
    comparison: ClockComparison,
}

impl OffIntervals {
    /// Creates the file as well, so that a wrong path is reported before the measurement.
    pub(crate) fn new(path: &Path, context: &Context, stream: &Stream) -> Result<Self, Failure> {
        let comparison = ClockComparison::new(context, stream)?;
        let intervals = Self { path: path.to_owned(), comparison };
        intervals.file()?;
        Ok(intervals)
    }

    /// The clock comparison before a measurement.
    pub(crate) fn begin(&self, stream: &Stream) -> Result<ClockPair, Failure> {
        self.comparison.compare(stream)
    }

    fn file(&self) -> Result<File, Failure> {
        let cannot =
            |error| Failure::input(format_args!("cannot write {}: {error}", self.path.display()));
        File::create(&self.path).map_err(cannot)
    }

    /// Writes the file after a measurement.
    pub(crate) fn write(
        &self,
        workload: &Workload,
        stream: &Stream,
        first: ClockPair,
    ) -> Result<(), Failure> {
        let clock = DeviceClock { first, last: self.comparison.compare(stream)? };
        let records = match workload.host() {
            Some(host) => of_endless(host, workload.shape().blocks),
            None => of_kernels(&workload.extra_words()?),
        };
        let rows =
            records.into_iter().map(|(off, back)| vec![clock.host_ns(off), clock.host_ns(back)]);
        write_csv(&self.file()?, "off_ns,back_ns", rows)
    }
}

/// Device times of one request's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestTimes {
    /// When the request began, in host time.
    begin_ns: u64,
    first_device_ns: u64,
    last_device_ns: u64,
}

impl RequestTimes {
    pub(crate) fn begin(begin_ns: u64) -> Self {
        Self { begin_ns, first_device_ns: u64::MAX, last_device_ns: 0 }
    }

    /// Adds the times of a kernel that is complete.
    pub(crate) fn read(&mut self, host: &HostMemory) {
        self.first_device_ns = self.first_device_ns.min(wide(host, 0));
        self.last_device_ns = self.last_device_ns.max(wide(host, 2));
    }
}

/// Writes the first and the last instruction of requests.
pub(crate) struct InstructionTimes {
    comparison: ClockComparison,
}

impl InstructionTimes {
    pub(crate) fn new(context: &Context, stream: &Stream) -> Result<Self, Failure> {
        Ok(Self { comparison: ClockComparison::new(context, stream)? })
    }

    pub(crate) fn compare(&self, stream: &Stream) -> Result<ClockPair, Failure> {
        self.comparison.compare(stream)
    }

    /// Writes the requests that began at `from_ns` or later.
    pub(crate) fn write(
        &self,
        file: &File,
        first: ClockPair,
        stream: &Stream,
        seen: &[RequestTimes],
        from_ns: u64,
    ) -> Result<(), Failure> {
        let clock = DeviceClock { first, last: self.comparison.compare(stream)? };
        let rows = seen.iter().filter(|request| request.begin_ns >= from_ns).map(|request| {
            let RequestTimes { begin_ns, first_device_ns, last_device_ns } = *request;
            vec![begin_ns, clock.host_ns(first_device_ns), clock.host_ns(last_device_ns)]
        });
        write_csv(file, "begin_ns,first_ns,last_ns", rows)
    }
}

fn write_csv(file: &File, head: &str, rows: impl Iterator<Item = Vec<u64>>) -> Result<(), Failure> {
    let mut file = BufWriter::new(file);
    let write = || {
        writeln!(file, "{head}")?;
        for row in rows {
            let cells: Vec<String> = row.iter().map(u64::to_string).collect();
            writeln!(file, "{}", cells.join(","))?;
        }
        file.flush()
    };
    let failed = |error: std::io::Error| format!("cannot write the file with {head}: {error}");
    write().map_err(|error| Failure::run(failed(error)))
}

/// The intervals that the kernel `beat` recorded in device memory. The first record of all has no
/// beginning, because no clock reading came before it.
fn of_kernels(words: &[u32]) -> Vec<(u64, u64)> {
    let count = words.get(2).map_or(0, |count| usize::try_from(*count).unwrap_or(0));
    let records = words.get(RECORD_HEAD..).unwrap_or_default().chunks_exact(RECORD_WORDS);
    let wide = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
    records
        .take(count.min(RECORDS))
        .map(|words| (wide(words[0], words[1]), wide(words[2], words[3])))
        .filter(|(off, _)| *off > 0)
        .collect()
}

/// The intervals that the kernel `beating` recorded in host memory.
fn of_endless(host: &HostMemory, blocks: u32) -> Vec<(u64, u64)> {
    let begin = first_record(blocks);
    (0..RECORDS)
        .map(|index| begin + index * RECORD_WORDS)
        .take_while(|word| word + RECORD_WORDS <= host.word_count())
        .map(|word| (wide(host, word), wide(host, word + 2)))
        .take_while(|(off, _)| *off > 0)
        .collect()
}

/// The first even word behind the stop word and the rounds of the blocks.
fn first_record(blocks: u32) -> usize {
    // PANIC: a grid has at most 2^22 blocks.
    (usize::try_from(blocks).expect("a small number") + 2) & !1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_up_to_their_count() {
        let mut words = vec![0; RECORD_HEAD + 4 * RECORD_WORDS];
        words[2] = 2;
        // The first record has no beginning.
        words[4..8].copy_from_slice(&[0, 0, 7, 1]);
        words[8..12].copy_from_slice(&[5, 1, 9, 1]);
        words[12..16].copy_from_slice(&[99, 9, 99, 9]);
        assert_eq!(of_kernels(&words), [((1 << 32) + 5, (1 << 32) + 9)]);
        assert_eq!(of_kernels(&[]), []);
    }

    #[test]
    fn records_of_an_endless_kernel_begin_at_an_even_word_behind_the_rounds() {
        assert_eq!((first_record(1), first_record(2), first_record(3)), (2, 4, 4));
        assert_eq!(first_record(1_056), 1_058);
    }
}
