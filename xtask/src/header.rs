//! `cargo xtask header`: writes `gpreempt.h` anew from the source of the library.

use crate::args::Syntax;
use crate::process::{cargo, run_to_success};

/// Writes the header. That it is up to date is a test of the library, which this runs.
pub(crate) fn main(args: &[String]) -> anyhow::Result<bool> {
    Syntax::NONE.parse(args)?;
    let mut test = cargo(["test", "--quiet", "--package", "gpreempt-agent", "--test", "header"]);
    run_to_success(test.env("UPDATE_EXPECT", "1"))?;
    Ok(true)
}
