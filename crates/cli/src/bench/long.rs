//! `gpreempt bench online-offline --duration 1h`: the stability run.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use gpreempt_bench::emulated::Emulated;
use gpreempt_bench::engine::Backend;
use gpreempt_bench::plan::spoken;
use gpreempt_bench::results::{Results, SCHEMA};
use gpreempt_bench::stability::Stability;
use gpreempt_bench::suite::Suite;

use super::command::command;
use super::lock::Lock;
use super::run::{finish, folder, make, note, now};
use crate::args::{BenchArgs, BenchBackend};
use crate::failure::Failure;
use crate::stop::Stop;
use crate::write_file::write_whole;

/// The suite that has one.
const SUITE: &str = "online-offline";

pub(super) fn main(
    args: &BenchArgs,
    suite: &Suite,
    length: Duration,
    stop: &Stop,
) -> Result<(), Failure> {
    if suite.name != SUITE || args.backend != BenchBackend::Emulated {
        return Err(Failure::input(format_args!(
            "--duration goes with {SUITE} on the emulated GPU only"
        )));
    }
    let stability = Stability::new(stop.flag()).map_err(Failure::run)?;
    let missing = stability.missing();
    if !missing.is_empty() {
        return Err(Failure::input(format_args!(
            "the stability run cannot be made here, so nothing was started; missing: {}",
            missing.join("; ")
        )));
    }
    let folder = folder(args, suite);
    make(&folder)?;
    let _lock = Lock::take(&folder)?;
    let path = folder.join("result.json");
    if path.exists() {
        return Err(Failure::input(format_args!(
            "{} is there already; name another folder with --out, or remove it",
            path.display()
        )));
    }
    note(&format!("a stability run of {}", spoken(length)), args.json);
    let started = now();
    let outcome = stability.run(length, &mut tell).map_err(Failure::run)?;
    wipe();
    let mut results = empty(args, suite, started);
    results.measurements = vec![outcome.measurement];
    results.summarise();
    results.checks = outcome.checks;
    results.finished = Some(now());
    write_whole(&path, results.to_text().as_bytes()).map_err(Failure::run)?;
    finish(args, &results, &path)
}

fn empty(args: &BenchArgs, suite: &Suite, started: String) -> Results {
    Results {
        schema: SCHEMA,
        suite: suite.info(),
        backend: Emulated::default().name().to_owned(),
        command: command(args),
        commit: args.commit.clone(),
        environment: Emulated::default().environment(),
        started,
        finished: None,
        repetitions: 1,
        short: false,
        modes: vec![Stability::mode()],
        cases: vec![Stability::case()],
        measurements: Vec::new(),
        summary: Vec::new(),
        checks: Vec::new(),
    }
}

fn tell(left: Duration) {
    if std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr(), "\r{:<40}", format!("{} left", spoken(left)));
    }
}

fn wipe() {
    if std::io::stderr().is_terminal() {
        let _ = write!(std::io::stderr(), "\r{:<40}\r", "");
    }
}
