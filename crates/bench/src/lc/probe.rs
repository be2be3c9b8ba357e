//! When the first and the last instruction of each request ran, by the clock of the device.

use std::fs::File;
use std::io::{BufWriter, Write};

use crate::cuda::{Context, HostMemory, Stream};
use crate::device_clock::{Comparison, DeviceClock, Moment, wide};
use crate::failure::Failure;

/// What one request's kernels wrote: when it began, and two times of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) begin_ns: u64,
    pub(super) first_device_ns: u64,
    pub(super) last_device_ns: u64,
}

/// What compares the clocks before requests come and after them.
pub(super) struct Probe {
    comparison: Comparison,
}

impl Probe {
    /// Before the load begins.
    pub(super) fn new(context: &Context, stream: &Stream) -> Result<Self, Failure> {
        Ok(Self { comparison: Comparison::new(context, stream)? })
    }

    /// The same moment on both clocks, before requests come.
    pub(super) fn look(&self, stream: &Stream) -> Result<Moment, Failure> {
        self.comparison.look(stream)
    }

    /// After them: writes everything that counts, in the time of the processor.
    pub(super) fn write(
        &self,
        file: &File,
        first: Moment,
        stream: &Stream,
        seen: &[Seen],
        from_ns: u64,
    ) -> Result<(), Failure> {
        let clock = DeviceClock { first, last: self.comparison.look(stream)? };
        let write = || {
            let mut file = BufWriter::new(file);
            writeln!(file, "begin_ns,first_ns,last_ns")?;
            for each in seen.iter().filter(|each| each.begin_ns >= from_ns) {
                let first = clock.host_ns(each.first_device_ns);
                let last = clock.host_ns(each.last_device_ns);
                writeln!(file, "{},{first},{last}", each.begin_ns)?;
            }
            file.flush()
        };
        write().map_err(|error: std::io::Error| {
            Failure::run(format_args!("cannot write what was probed: {error}"))
        })
    }
}

impl Seen {
    /// A request that begins.
    pub(super) fn begin(begin_ns: u64) -> Self {
        Self { begin_ns, first_device_ns: u64::MAX, last_device_ns: 0 }
    }

    /// One of its kernels is done.
    pub(super) fn read(&mut self, host: &HostMemory) {
        self.first_device_ns = self.first_device_ns.min(wide(host, 0));
        self.last_device_ns = self.last_device_ns.max(wide(host, 2));
    }
}
