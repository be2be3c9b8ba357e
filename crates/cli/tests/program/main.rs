//! The program as people use it: real processes, real files, exit codes.
#![expect(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a broken expectation fails the test, and a daemon in a test knows few requests"
)]

mod amd;
mod bad_input;
mod bench;
mod bench_care;
mod beside_daemon;
mod compare;
mod completions;
mod demo;
mod fake_daemon;
mod following;
mod man;
mod private;
mod processes;
mod run;
mod sim;
mod top;
mod with_daemon;

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

/// A folder that is gone after the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("gpreempt-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        std::fs::write(self.0.join(name), text).unwrap();
        name.to_owned()
    }

    /// The program, with a daemon and a journal of its own, if there are any.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpreempt"));
        command
            .args(arguments)
            .current_dir(&self.0)
            .env("GPREEMPT_SOCKET", self.0.join("gpreemptd.sock"))
            .env("GPREEMPT_STATE", self.0.join("state"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// What a command that works prints.
    fn stdout(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.stdout(arguments)).unwrap()
    }

    /// The exit code and the one line a command that fails prints.
    fn failure(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.run(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
        assert!(output.stdout.is_empty(), "{arguments:?} printed something");
        (output.status.code().unwrap(), text.trim_end().to_owned())
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A small scenario that works.
const SCENARIO: &str = r#"
name = "small"
device = "mi300x"
duration_ms = 30

[scheduler]
policy = "strict"
interval_us = 1000

[[kernel]]
name = "short"
program = "reduce"
us = 50
groups = 100

[[kernel]]
name = "long"
program = "mix"
us = 4000
groups = 1216

[[task]]
name = "online"
priority = 12
deadline_us = 3000
arrivals = { every_us = 5000, phase_us = 2000 }
request = [{ kernel = "short", count = 5, cpu_us = 20 }]

[[task]]
name = "offline"
priority = 2
arrivals = { back_to_back = 3 }
request = [{ kernel = "long" }]
"#;
