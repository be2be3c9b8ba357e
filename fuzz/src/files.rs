//! Readers of files: TOML documents, records of the journal, AMD's dumps of hardware queues.
//!
//! Any bytes are a valid document, or one error on a line that the file has.

use gpreempt_bench::suite::{check_modes, read_suite};
use gpreempt_daemon::accounts::Accounts;
use gpreempt_daemon::cgroup::Cgroup;
use gpreempt_daemon::check::Report;
use gpreempt_daemon::config::Config;
use gpreempt_daemon::fields::{ReadError, decode_utf8};
use gpreempt_daemon::process_attributes::{Environment, ProcessAttributes};
use gpreempt_device::amd::queue::{Dump, parse_queues};
use gpreempt_device::journal::ProcessRecord;
use gpreempt_device::process::ProcessKey;
use gpreempt_sim::model::read_model;
use gpreempt_sim::scenario::read_scenario;

/// The configuration is what precedes the first NUL, and a process is what follows it: an accepted
/// configuration has an answer for any process.
pub(crate) fn check_config(bytes: &[u8]) {
    let (text, process) = two_parts(bytes);
    let read = decode_utf8("config.toml", text.to_vec())
        .and_then(|text| Config::parse("config.toml", &text));
    match read {
        Ok(config) => {
            let accounts = Accounts::parse(process, process);
            let attributes = attributes(process, &config);
            let processes = std::slice::from_ref(&attributes);
            let socket = &config.service.socket;
            let report = Report::new("config.toml", &config, socket, (&accounts, processes));
            let text = report.text();
            assert!(!text.contains('\x1b'), "an escape reaches the terminal: {text:?}");
        }
        Err(error) => check_error(&error, text),
    }
}

/// A process whose name, program, arguments, environment and cgroup are these bytes.
fn attributes(bytes: &[u8], config: &Config) -> ProcessAttributes {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let mut attributes = ProcessAttributes::unknown(ProcessKey { pid: 1, start_ticks: 1 });
    attributes.uid = Some(1000);
    attributes.name.clone_from(&text);
    attributes.executable = Some(text.clone());
    attributes.command = Some(text);
    attributes.environment = Some(Environment::parse(bytes, &config.environment_names()));
    attributes.cgroup = Some(Cgroup::parse(bytes));
    attributes
}

/// The scenario precedes the first NUL; the file of its device model follows it.
pub(crate) fn check_scenario(bytes: &[u8]) {
    let (scenario, device) = two_parts(bytes);
    let mut resolve =
        |_: &str| decode_utf8("device.toml", device.to_vec()).map_err(|error| error.to_string());
    // Names of device files end in .toml, so the scenario's does not.
    let read = decode_utf8("scenario", scenario.to_vec())
        .and_then(|text| read_scenario("scenario", &text, &mut resolve));
    if let Err(error) = read {
        check_error(&error, if error.file == "scenario" { scenario } else { device });
    }
}

pub(crate) fn check_model(bytes: &[u8]) {
    let read =
        decode_utf8("model.toml", bytes.to_vec()).and_then(|text| read_model("model.toml", &text));
    if let Err(error) = read {
        check_error(&error, bytes);
    }
}

/// A suite that can be read can also be compared with the modes that exist.
pub(crate) fn check_suite(bytes: &[u8]) {
    let read = decode_utf8("suite.toml", bytes.to_vec()).and_then(|text| {
        let suite = read_suite("suite.toml", &text)?;
        assert_eq!(suite.text, text);
        assert!(!suite.cases.is_empty(), "a suite without cases was accepted");
        check_modes("suite.toml", &text, &["alone", "native", "gpreempt"])
    });
    if let Err(error) = read {
        check_error(&error, bytes);
    }
}

/// An error names a line of the file, and its text is one line that a terminal can show.
fn check_error(error: &ReadError, file: &[u8]) {
    let line_ends = file.iter().filter(|byte| **byte == b'\n').count();
    let text = error.to_string();
    assert!((1..=line_ends + 1).contains(&error.line), "line {} of {text}", error.line);
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(!text.contains('\x1b'), "an escape reaches the terminal: {text:?}");
}

/// What precedes the first NUL, and what follows it.
fn two_parts(bytes: &[u8]) -> (&[u8], &[u8]) {
    match bytes.iter().position(|byte| *byte == 0) {
        // PANIC: the position is within the bytes.
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &[]),
    }
}

/// Any bytes are a record or an error, and a record that is written again is the same one: an undo
/// must not depend on which program wrote the journal last.
pub(crate) fn check_journal(bytes: &[u8]) {
    let Ok(record) = serde_json::from_slice::<ProcessRecord>(bytes) else { return };
    let text = serde_json::to_vec(&record).expect("a record can be written");
    let again: ProcessRecord = serde_json::from_slice(&text).expect("a written record is read");
    assert_eq!(again, record);
}

/// Any bytes are a dump, and what is believed of it was there completely.
pub(crate) fn check_mqds(bytes: &[u8]) {
    let dump = Dump::parse(bytes);
    let lines = bytes.split(|byte| *byte == b'\n').count();
    assert!(dump.strays <= lines, "{} strays in {lines} lines", dump.strays);
    for queue in dump.processes.iter().flat_map(|process| &process.queues) {
        if let Some(hardware) = queue.hardware() {
            assert!(hardware.dies >= 1 && lines > 64 * hardware.dies, "{hardware:?}");
            assert_eq!(hardware.ring_base & 0xff, 0, "{hardware:?}");
        }
    }
    // The list of a patched KFD has one queue per line.
    let text = String::from_utf8_lossy(bytes);
    let queues = parse_queues(&text);
    assert!(queues.len() <= text.lines().count());
    for queue in queues {
        let words = [queue.pid, queue.entry.queue_id, queue.entry.gpu_id].map(|n| n.to_string());
        assert!(words.iter().all(|word| text.contains(word.as_str())), "{queue:?}");
    }
}
