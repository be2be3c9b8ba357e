//! Undo: the journal, the keeper, and the restart after the keeper reverted everything.

pub(crate) mod guard;
pub(crate) mod hardware_check;
pub(crate) mod lock;
pub(crate) mod renewal;
