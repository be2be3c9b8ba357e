//! The times in which kernels stood still, as one of their threads wrote them down.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::cuda::{Context, HostMemory, Stream};
use crate::device_clock::{Comparison, DeviceClock, Moment, wide};
use crate::failure::Failure;
use crate::kernels::{RECORD_HEAD, RECORD_WORDS, RECORDS};
use crate::workload::Workload;

/// What is needed to write them down in the time of the processor.
pub(super) struct Beats {
    path: PathBuf,
    comparison: Comparison,
}

impl Beats {
    /// Before the load begins: a path that cannot be written costs no measurement.
    pub(super) fn new(path: &Path, context: &Context, stream: &Stream) -> Result<Self, Failure> {
        let beats = Self { path: path.to_owned(), comparison: Comparison::new(context, stream)? };
        beats.file()?;
        Ok(beats)
    }

    /// The same moment on both clocks, before a measurement.
    pub(super) fn begin(&self, stream: &Stream) -> Result<Moment, Failure> {
        self.comparison.look(stream)
    }

    fn file(&self) -> Result<File, Failure> {
        let cannot =
            |error| Failure::input(format_args!("cannot write {}: {error}", self.path.display()));
        File::create(&self.path).map_err(cannot)
    }

    /// After it has ended.
    pub(super) fn write(
        &self,
        workload: &Workload,
        stream: &Stream,
        first: Moment,
    ) -> Result<(), Failure> {
        let clock = DeviceClock { first, last: self.comparison.look(stream)? };
        let records = match workload.host() {
            Some(host) => of_endless(host, workload.shape().blocks),
            None => of_kernels(&workload.extra_words()?),
        };
        write_records(self.file()?, &clock, &records)
            .map_err(|error| Failure::run(format_args!("cannot write the beats: {error}")))
    }
}

fn write_records(file: File, clock: &DeviceClock, records: &[(u64, u64)]) -> std::io::Result<()> {
    let mut file = BufWriter::new(file);
    writeln!(file, "off_ns,back_ns")?;
    for (off, back) in records {
        writeln!(file, "{},{}", clock.host_ns(*off), clock.host_ns(*back))?;
    }
    file.flush()
}

/// The records that `beat` left in the memory of the device. The first look of all has none before
/// it, and its record no beginning.
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

/// The records that `beating` left in the memory of the host, up to the first that it did not.
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
        // The first look: nothing before it.
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
