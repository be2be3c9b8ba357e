//! `gpreempt bench`: runs suites of measurements and shows their results.

mod files;
mod folder;
mod plan;
mod run;
mod stability;
mod table;

use crate::args::{BenchArgs, BenchCommand};
use crate::failure::Failure;

pub(crate) fn main(args: &BenchArgs) -> Result<(), Failure> {
    match &args.command {
        Some(BenchCommand::List(list)) => plan::list(list),
        Some(BenchCommand::Predict(file)) => files::predict(file),
        Some(BenchCommand::Report(file)) => files::report(file),
        Some(BenchCommand::Compare(compared)) => files::compare(compared),
        None => run::main(args),
    }
}
