//! Work that is described once and launched many times.

use std::rc::Rc;

use super::{CudaError, GraphKind, Object, Stream};

/// A CUDA graph, ready to launch, together with what its steps use.
pub(crate) struct Graph<W> {
    pub(super) object: Object<GraphKind>,
    /// The graph names memory by address: whoever owns that memory stays alive with the graph.
    _work: Rc<W>,
}

impl<W> Graph<W> {
    /// What `describe` puts into the stream, as a graph. `work` owns the memory that it uses.
    pub(crate) fn capture(
        stream: &Stream,
        work: Rc<W>,
        describe: impl FnOnce(&W, &Stream) -> Result<(), CudaError>,
    ) -> Result<Self, CudaError> {
        stream.object.begin_capture()?;
        let described = describe(&work, stream);
        // The capture ends in any case; the first failure is the one to tell.
        let template = stream.object.end_capture();
        described?;
        Ok(Self { object: template?.instantiate()?, _work: work })
    }
}
