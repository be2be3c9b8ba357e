//! Pieces of work in a stream, with a mark after each.

use crate::cuda::{Context, CudaError, DeviceMemory, Event, HostMemory, Stream};
use crate::workload::Workload;

/// What goes into the stream again and again.
pub(super) enum Piece {
    Kernel(Workload),
    Copy { to: DeviceMemory, from: HostMemory },
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
    /// The kernel, if it is one.
    pub(super) fn workload(&self) -> Option<&Workload> {
        match self {
            Self::Kernel(workload) => Some(workload),
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
            Piece::Copy { to, from } => self.stream.copy(to, from)?,
        }
        self.stream.record(&self.marks[slot])
    }

    fn is_complete(&mut self, slot: usize) -> Result<bool, CudaError> {
        self.marks[slot].is_reached()
    }
}
