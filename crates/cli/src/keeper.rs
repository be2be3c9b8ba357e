//! The keeper, where it has no program of its own.

use gpreempt_device::act;
use gpreempt_device::keeper;

use crate::args::KeeperArgs;
use crate::failure::Failure;

pub(crate) fn main(args: &KeeperArgs) -> Result<(), Failure> {
    keeper::main(&args.folder, args.holds.as_deref(), act::undo).map_err(Failure::run)
}
