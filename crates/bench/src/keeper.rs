//! The keeper, where it has no program of its own.

use gpreempt_device::change;
use gpreempt_device::keeper;

use crate::args::KeeperArgs;
use crate::failure::Failure;

/// Waits for its owner to end, and undoes what the owner did not undo itself.
pub(crate) fn main(args: &KeeperArgs) -> Result<(), Failure> {
    keeper::main(&args.folder, None, change::undo).map_err(Failure::run)
}
