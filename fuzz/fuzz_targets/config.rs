//! Any bytes are a configuration of the service, or an error on one line that the file has; and a
//! configuration gives an answer for any process.
#![no_main]

use gpreempt_daemon::accounts::Accounts;
use gpreempt_daemon::cgroup::Cgroup;
use gpreempt_daemon::check::Report;
use gpreempt_daemon::config::Config;
use gpreempt_daemon::process_attributes::{Environment, ProcessAttributes};
use gpreempt_daemon::fields::decode_utf8;
use gpreempt_device::process::ProcessKey;
use libfuzzer_sys::fuzz_target;

/// A process that is, says and runs in whatever `bytes` are.
fn process(bytes: &[u8], config: &Config) -> ProcessAttributes {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let mut facts = ProcessAttributes::unknown(ProcessKey { pid: 1, start_ticks: 1 });
    facts.uid = Some(1000);
    facts.name.clone_from(&text);
    facts.executable = Some(text.clone());
    facts.command = Some(text);
    facts.environment = Some(Environment::parse(bytes, &config.environment_names()));
    facts.cgroup = Some(Cgroup::parse(bytes));
    facts
}

fuzz_target!(|bytes: &[u8]| {
    // The process is any bytes as well: what follows the first NUL.
    let (config, rest) = match bytes.iter().position(|byte| *byte == 0) {
        Some(end) => (&bytes[..end], &bytes[end + 1..]),
        None => (bytes, &[][..]),
    };
    let read = decode_utf8("config.toml", config.to_vec())
        .and_then(|text| Config::parse("config.toml", &text));
    match read {
        Ok(config) => {
            let accounts = Accounts::parse(rest, rest);
            let facts = process(rest, &config);
            let text = Report::new(
                "config.toml",
                &config,
                &config.service.socket,
                (&accounts, std::slice::from_ref(&facts)),
            )
            .text();
            assert!(!text.contains('\x1b'), "{text:?}");
        }
        Err(error) => {
            let line_ends = config.iter().filter(|byte| **byte == b'\n').count();
            assert!((1..=line_ends + 1).contains(&error.line), "{error}");
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
        }
    }
});
