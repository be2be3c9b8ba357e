//! A mark in a stream.

use std::time::Duration;

use super::{Context, CudaError, EventKind, Object};

/// `CU_EVENT_DEFAULT`
const TIMED: u32 = 0;
/// `CU_EVENT_DISABLE_TIMING`
const PLAIN: u32 = 2;

/// A mark that is reached when everything before it in its stream is done.
pub(crate) struct Event {
    pub(super) object: Object<EventKind>,
}

impl Event {
    /// A mark that can be asked whether it is reached.
    pub(crate) fn plain(context: &Context) -> Result<Self, CudaError> {
        Ok(Self { object: context.current.create_event(PLAIN)? })
    }

    /// A mark that remembers when it was reached.
    pub(crate) fn timed(context: &Context) -> Result<Self, CudaError> {
        Ok(Self { object: context.current.create_event(TIMED)? })
    }

    /// Whether it is reached.
    pub(crate) fn is_reached(&self) -> Result<bool, CudaError> {
        self.object.query()
    }

    /// The time from another mark to this one. Both are timed and reached.
    pub(crate) fn since(&self, earlier: &Self) -> Result<Duration, CudaError> {
        let milliseconds = self.object.milliseconds_since(&earlier.object)?;
        Ok(Duration::try_from_secs_f32(milliseconds / 1000.0).unwrap_or_default())
    }
}
