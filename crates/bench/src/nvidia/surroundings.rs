//! The machine around the GPU, as reports show it.

use std::path::Path;
use std::process::Command;

use super::programs::Programs;
use crate::machine;
use crate::results::{Environment, Version};

/// What can be found out.
pub(super) fn environment(programs: &Programs) -> Environment {
    let mut environment = machine::environment();
    let query = ["--query-gpu=name,memory.total,clocks.max.sm", "--format=csv,noheader"];
    environment.devices = lines(Path::new("nvidia-smi"), &query);
    if environment.devices.is_empty()
        && let Some(load) = &programs.load
    {
        environment.devices = lines(load, &["devices"]);
    }
    environment.driver = driver(&std::fs::read_to_string(VERSION).unwrap_or_default());
    if let Some(python) = &programs.python {
        let ask = "import torch; print(torch.__version__)";
        let found = lines(python, &["-c", ask]).pop();
        environment
            .versions
            .extend(found.map(|version| Version { program: "torch".into(), version }));
    }
    environment
}

const VERSION: &str = "/proc/driver/nvidia/version";

/// What a program says, line by line; nothing if it cannot be asked.
fn lines(program: &Path, arguments: &[&str]) -> Vec<String> {
    let Ok(output) = Command::new(program).args(arguments).output() else { return Vec::new() };
    if !output.status.success() {
        return Vec::new();
    }
    let said = String::from_utf8_lossy(&output.stdout);
    said.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
}

/// The version in the first line of the driver's own file.
fn driver(text: &str) -> Option<String> {
    let words = text.lines().next()?.split_whitespace();
    let is_version =
        |word: &&str| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
    words.into_iter().find(is_version).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_version_is_found_in_its_first_line() {
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release \
                    Build\nGCC version:  gcc version 13.3.0\n";
        assert_eq!(driver(text).as_deref(), Some("580.159.04"));
        assert_eq!(driver(""), None);
    }
}
