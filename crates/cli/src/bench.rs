//! `gpreempt bench`: suites of measurements.

mod command;
mod compare;
mod dry_run;
mod list;
mod lock;
mod long;
mod page;
mod predict;
mod resume;
mod run;
mod table;
mod watch;

use std::path::Path;

use gpreempt_bench::suite::{Suite, built_in, built_in_names, check_modes, read_suite};

use crate::args::{BenchArgs, BenchCommand};
use crate::failure::Failure;

pub(crate) fn main(args: &BenchArgs) -> Result<(), Failure> {
    match &args.command {
        Some(BenchCommand::List(list)) => list::main(list),
        Some(BenchCommand::Predict(file)) => predict::main(file),
        Some(BenchCommand::Report(file)) => page::main(file),
        Some(BenchCommand::Compare(files)) => compare::main(files),
        None => run::main(args),
    }
}

/// A suite of ours, or one in a file.
fn find(name: &str) -> Result<Suite, Failure> {
    if let Some(suite) = built_in(name) {
        return Ok(suite);
    }
    let path = Path::new(name);
    if !path.exists() {
        let names: Vec<&str> = built_in_names().collect();
        return Err(Failure::input(format_args!(
            "{name} is neither a file nor one of our suites: {}",
            names.join(", ")
        )));
    }
    let suite = read(path)?;
    let known = list::all_modes();
    let known: Vec<&str> = known.iter().map(|mode| mode.name.as_str()).collect();
    check_modes(name, &suite.text, &known).map_err(Failure::input)?;
    Ok(suite)
}

/// A suite in a file.
fn read(path: &Path) -> Result<Suite, Failure> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path)
        .map_err(|error| Failure::input(format_args!("cannot read {name}: {error}")))?;
    let text = gpreempt_sim::fields::decode_utf8(&name, bytes).map_err(Failure::input)?;
    read_suite(&name, &text).map_err(Failure::input)
}
