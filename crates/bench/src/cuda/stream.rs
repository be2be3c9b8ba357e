//! An ordered sequence of work.

use super::{Context, CudaError, DeviceMemory, Event, Function, Graph, HostMemory, Launch};
use super::{Object, StreamKind};

/// Work in order, beside the work of other streams.
pub(crate) struct Stream {
    pub(super) object: Object<StreamKind>,
}

impl Stream {
    /// A stream without work.
    pub(crate) fn new(context: &Context) -> Result<Self, CudaError> {
        Ok(Self { object: context.current.create_stream()? })
    }

    /// Adds a kernel.
    pub(crate) fn launch(&self, function: &Function, launch: &Launch<'_>) -> Result<(), CudaError> {
        self.object.launch(function, launch)
    }

    /// Adds a copy of as much as both have.
    pub(crate) fn copy(&self, to: &DeviceMemory, from: &HostMemory) -> Result<(), CudaError> {
        let words = to.word_count().min(from.word_count());
        self.object.copy(&to.allocation, &from.object, words * 4)
    }

    /// Adds a graph.
    pub(crate) fn launch_graph<W>(&self, graph: &Graph<W>) -> Result<(), CudaError> {
        self.object.launch_graph(&graph.object)
    }

    /// Adds a mark.
    pub(crate) fn record(&self, event: &Event) -> Result<(), CudaError> {
        self.object.record(&event.object)
    }

    /// Waits until everything is done.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        self.object.synchronize()
    }
}
