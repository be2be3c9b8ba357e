//! What an earlier run of the same command left, and whether this one may go on with it.

use std::path::Path;

use gpreempt_bench::results::{Environment, Results};
use gpreempt_bench::suite::Suite;

use super::command::command;
use super::run::note;
use crate::args::BenchArgs;
use crate::failure::Failure;

/// The earlier results; none if there are none.
pub(super) fn resumed(
    path: &Path,
    args: &BenchArgs,
    suite: &Suite,
    environment: &Environment,
) -> Result<Option<Results>, Failure> {
    let name = path.display().to_string();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::input(format_args!("cannot read {name}: {error}"))),
    };
    let results = Results::read(&name, &text).map_err(Failure::input)?;
    let reason = if results.finished.is_some() {
        "is finished".to_owned()
    } else if results.suite.digest != suite.digest {
        "is of another text of the suite".to_owned()
    } else if results.command != command(args) {
        "is of another command".to_owned()
    } else if let Some(what) = difference(&results, args.commit.as_deref(), environment) {
        format!("is of {what}")
    } else {
        let count = results.measurements.len();
        note(&format!("going on with {name}, which has {count} measurements"), args.json);
        return Ok(Some(results));
    };
    Err(Failure::input(format_args!(
        "{name} {reason} ({}); name another folder with --out, or remove it",
        results.command
    )))
}

/// What would make one table of two programs or two machines.
fn difference(before: &Results, commit: Option<&str>, here: &Environment) -> Option<String> {
    let version = |environment: &Environment| {
        let mut versions = environment.versions.iter();
        versions.find(|each| each.program == "gpreempt").map(|each| each.version.clone())
    };
    let there = &before.environment;
    [
        ("another commit", before.commit.clone(), commit.map(str::to_owned)),
        ("another version of gpreempt", version(there), version(here)),
        ("other devices", Some(there.devices.join("; ")), Some(here.devices.join("; "))),
        ("another driver", there.driver.clone(), here.driver.clone()),
    ]
    .into_iter()
    .find(|(_, old, new)| old != new)
    .map(|(what, old, new)| {
        let shown = |value: Option<String>| value.unwrap_or_else(|| "none named".to_owned());
        format!("{what}: {} there, {} here", shown(old), shown(new))
    })
}
