//! Pieces of work in a stream, with a mark after each.

use std::rc::Rc;

use crate::cuda::{Context, CudaError, DeviceMemory, Event, Graph, HostMemory, Stream};
use crate::failure::Failure;
use crate::workload::Workload;

/// What goes into the stream again and again.
pub(super) enum Piece {
    Kernel(Workload),
    /// Several launches of a kernel as one.
    Graph {
        graph: Graph<Workload>,
        workload: Rc<Workload>,
    },
    Copy {
        to: DeviceMemory,
        from: HostMemory,
    },
}

/// A place for work: a fixed number of slots, used in turn.
pub(super) trait Lane {
    /// Puts a piece of work into a slot that is free.
    fn submit(&mut self, slot: usize) -> Result<(), CudaError>;

    /// Whether the work in a slot is complete.
    fn is_complete(&mut self, slot: usize) -> Result<bool, CudaError>;
}

/// The lane that is a stream.
pub(super) struct DeviceLane<'a> {
    stream: &'a Stream,
    piece: &'a Piece,
    marks: Vec<Event>,
}

impl Piece {
    /// So many launches of a kernel as one.
    pub(super) fn graph(stream: &Stream, workload: Workload, count: u16) -> Result<Self, Failure> {
        let workload = Rc::new(workload);
        let graph = Graph::capture(stream, Rc::clone(&workload), |workload, stream| {
            (0..count).try_for_each(|_| workload.launch(stream))
        })?;
        Ok(Self::Graph { graph, workload })
    }

    /// The kernel, if it is one.
    pub(super) fn workload(&self) -> Option<&Workload> {
        match self {
            Self::Kernel(workload) => Some(workload),
            Self::Graph { workload, .. } => Some(workload),
            Self::Copy { .. } => None,
        }
    }
}

impl<'a> DeviceLane<'a> {
    /// A lane of `depth` slots.
    pub(super) fn new(
        context: &Context,
        stream: &'a Stream,
        piece: &'a Piece,
        depth: u16,
    ) -> Result<Self, CudaError> {
        let marks = (0..depth).map(|_| Event::plain(context)).collect::<Result<_, _>>()?;
        Ok(Self { stream, piece, marks })
    }
}

impl Lane for DeviceLane<'_> {
    fn submit(&mut self, slot: usize) -> Result<(), CudaError> {
        match self.piece {
            Piece::Kernel(workload) => workload.launch(self.stream)?,
            Piece::Graph { graph, .. } => self.stream.launch_graph(graph)?,
            Piece::Copy { to, from } => self.stream.copy(to, from)?,
        }
        self.stream.record(&self.marks[slot])
    }

    fn is_complete(&mut self, slot: usize) -> Result<bool, CudaError> {
        self.marks[slot].is_reached()
    }
}
