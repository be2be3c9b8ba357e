//! `gpreempt bench online-offline --duration 1h`: the stability run, with real processes on the
//! emulated GPU.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use gpreempt_bench::emulated::Emulated;
use gpreempt_bench::engine::Backend;
use gpreempt_bench::plan::format_duration;
use gpreempt_bench::results::{Results, now};
use gpreempt_bench::stability::Stability;
use gpreempt_bench::suite::Suite;

use super::folder::{FolderLock, command};
use super::run::{create, finish, folder, note};
use crate::args::{BenchArgs, BenchBackend};
use crate::failure::Failure;
use crate::stop::Stop;
use crate::write_file::write_whole;

/// The only suite that has a stability run.
const SUITE: &str = "online-offline";

pub(super) fn main(
    args: &BenchArgs,
    suite: &Suite,
    length: Duration,
    stop: &Stop,
) -> Result<(), Failure> {
    if suite.name != SUITE || args.backend != BenchBackend::Emulated {
        return Err(Failure::input(format_args!(
            "--duration works only with the suite {SUITE} on the emulated GPU"
        )));
    }
    let stability = Stability::new(stop.flag()).map_err(Failure::run)?;
    let missing = stability.missing();
    if !missing.is_empty() {
        return Err(Failure::input(format_args!(
            "this machine lacks what the stability run needs, so nothing was started; missing: {}",
            missing.join("; ")
        )));
    }
    let folder = folder(args, suite);
    create(&folder)?;
    let _lock = FolderLock::take(&folder)?;
    let path = folder.join("result.json");
    if path.exists() && !args.force {
        return Err(Failure::input(format_args!(
            "{} exists already; replace it with --force, or name another folder with --out",
            path.display()
        )));
    }
    note(&format!("a stability run of {}", format_duration(length)), args.json);
    let mut results = Results {
        commit: args.commit.clone(),
        environment: Emulated::default().environment(),
        modes: vec![Stability::mode()],
        cases: vec![Stability::case()],
        ..Results::new(suite.info(), Emulated::default().name(), command(args))
    };
    let outcome = stability.run(length, &mut show_remaining).map_err(Failure::run)?;
    erase_line();
    results.measurements = vec![outcome.measurement];
    results.summarise();
    results.checks = outcome.checks;
    results.finished = Some(now());
    write_whole(&path, results.to_text().as_bytes()).map_err(Failure::run)?;
    finish(args, &results, &path)
}

fn show_remaining(left: Duration) {
    if std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr(), "\r{:<40}", format!("{} left", format_duration(left)));
    }
}

fn erase_line() {
    if std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr(), "\r{:<40}\r", "");
    }
}
