//! One request: some kernels with work on the processor between them, a graph, or copies.

use std::rc::Rc;

use super::open_loop::Service;
use super::probe::Seen;
use crate::args::LcArgs;
use crate::clock::{Clock, Monotonic};
use crate::cuda::{Context, CudaError, DeviceMemory, Graph, HostMemory, Stream};
use crate::failure::Failure;
use crate::flag::Announcement;
use crate::hints::Hints;
use crate::workload::Workload;

/// What a request does several times.
pub(super) enum Step {
    Kernel(Workload),
    Copy { to: DeviceMemory, from: HostMemory },
}

/// A request that can be served again and again.
pub(super) struct Request {
    streams: Vec<Stream>,
    step: Rc<Step>,
    steps: u16,
    gap_ns: u64,
    /// All steps as one, where that was asked for.
    graph: Option<Graph<Step>>,
    /// Where others are told that a request is running, if they are.
    announcement: Option<Announcement>,
    /// Where the daemon is told, if it is.
    hints: Option<Hints>,
    /// What the kernels of all requests wrote, where that is looked at.
    seen: Option<Vec<Seen>>,
}

impl Step {
    /// A copy of `words` words to the device.
    pub(super) fn copy(context: &Context, words: usize) -> Result<Self, CudaError> {
        let to = DeviceMemory::zeroed(context, words)?;
        Ok(Self::Copy { to, from: HostMemory::zeroed(context, words)? })
    }

    /// The kernel, if it is one.
    pub(super) fn workload(&self) -> Option<&Workload> {
        match self {
            Self::Kernel(workload) => Some(workload),
            Self::Copy { .. } => None,
        }
    }

    fn submit(&self, stream: &Stream) -> Result<(), CudaError> {
        match self {
            Self::Kernel(workload) => workload.launch(stream),
            Self::Copy { to, from } => stream.copy(to, from),
        }
    }
}

impl Request {
    /// The request that the arguments describe, served once already: the first time is slow.
    pub(super) fn new(
        args: &LcArgs,
        streams: Vec<Stream>,
        step: Rc<Step>,
    ) -> Result<Self, Failure> {
        let steps = args.kernels;
        let graph = if args.graph {
            Some(Graph::capture(&streams[0], Rc::clone(&step), |step, stream| {
                (0..steps).try_for_each(|_| step.submit(stream))
            })?)
        } else {
            None
        };
        let announcement = args.announce.as_deref().map(Announcement::open).transpose()?;
        let gap_ns = args.gap_us * 1_000;
        let seen = args.probe.as_ref().map(|_| Vec::new());
        let hints = None;
        let mut request = Self { streams, step, steps, gap_ns, graph, announcement, hints, seen };
        request.serve()?;
        Ok(request)
    }
}

impl Request {
    /// A measurement begins: what was seen before does not count.
    pub(super) fn begin_round(&mut self, hints: Option<Hints>) {
        self.hints = hints;
        if let Some(seen) = &mut self.seen {
            seen.clear();
        }
    }

    /// Whether somebody is told of requests ahead.
    pub(super) fn gives_hints(&self) -> bool {
        self.hints.is_some()
    }

    /// From now on nobody is told.
    pub(super) fn end_hints(&mut self) {
        self.hints = None;
    }

    /// What the kernels of all requests wrote.
    pub(super) fn seen(&self) -> &[Seen] {
        self.seen.as_deref().unwrap_or_default()
    }

    /// The stream that comparisons go to.
    pub(super) fn stream(&self) -> &Stream {
        &self.streams[0]
    }

    fn announce(&self, is_running: bool) -> Result<(), Failure> {
        if let Some(hints) = &self.hints
            && !is_running
        {
            hints.end();
        }
        let Some(announcement) = &self.announcement else { return Ok(()) };
        announcement
            .say(is_running)
            .map_err(|error| Failure::run(format_args!("cannot announce a request: {error}")))
    }
}

impl Service for Request {
    fn serve(&mut self) -> Result<(), Failure> {
        self.announce(true)?;
        if let Some(graph) = &self.graph {
            self.streams[0].launch_graph(graph)?;
            self.streams[0].synchronize()?;
            return self.announce(false);
        }
        let mut seen = self.seen.is_some().then(|| Seen::begin(Monotonic.now_ns()));
        for step in 1..=self.steps {
            let stream = &self.streams[usize::from(step) % self.streams.len()];
            self.step.submit(stream)?;
            stream.synchronize()?;
            if let (Some(seen), Some(host)) =
                (&mut seen, self.step.workload().and_then(Workload::host))
            {
                seen.read(host);
            }
            if step == self.steps {
                self.announce(false)?;
            }
            Monotonic.spin(self.gap_ns);
        }
        if let (Some(all), Some(seen)) = (&mut self.seen, seen) {
            all.push(seen);
        }
        Ok(())
    }

    fn expect(&mut self) {
        if let Some(hints) = &self.hints {
            hints.begin();
        }
    }
}
