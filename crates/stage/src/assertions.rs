//! `gpreempt` in a test: what it printed, and how it ended. What a test does not expect is a panic.
#![expect(clippy::expect_used, reason = "a test whose program does not run has failed")]

use std::process::{Command, Output};

use serde_json::Value;

use crate::stage::Stage;

impl Stage {
    /// Writes a file of the folder. Returns its name, for a command that runs there.
    ///
    /// # Panics
    /// If it cannot be written.
    #[track_caller]
    pub fn file(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        self.write(name, text).expect("a file that can be written");
        name.to_owned()
    }

    /// `gpreempt` with those arguments.
    ///
    /// # Panics
    /// If the program is not there and cannot be built.
    #[must_use]
    #[track_caller]
    pub fn gpreempt(&self, arguments: &[&str]) -> Command {
        let mut command = self.command("gpreempt").expect("the program gpreempt");
        command.args(arguments);
        command
    }

    /// Runs `gpreempt` to its end.
    ///
    /// # Panics
    /// If it cannot be started.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.gpreempt(arguments).output().expect("a program that can be started")
    }

    /// What `gpreempt` prints when it succeeds.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn stdout(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// What `gpreempt` prints when it succeeds, as JSON.
    ///
    /// # Panics
    /// If it fails, or prints something else.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.stdout(arguments)).expect("JSON")
    }

    /// The exit code and the one line that `gpreempt` prints when it fails.
    ///
    /// # Panics
    /// If it prints more than one line of errors, or anything on its standard output.
    #[must_use]
    #[track_caller]
    pub fn failure(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.run(arguments);
        let text = String::from_utf8(output.stderr).expect("text");
        assert_eq!(text.lines().count(), 1, "{arguments:?}: {text}");
        assert!(output.stdout.is_empty(), "{arguments:?} printed something");
        (output.status.code().expect("an exit code"), text.trim_end().to_owned())
    }
}
