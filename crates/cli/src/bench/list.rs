//! `gpreempt bench list`: the suites and the modes there are.

use gpreempt_bench::emulated::Emulated;
use gpreempt_bench::engine::Backend;
use gpreempt_bench::nvidia;
use gpreempt_bench::results::ModeInfo;
use gpreempt_bench::suite::{Suite, built_in, built_in_names};
use serde::Serialize;

use crate::args::BenchListArgs;
use crate::failure::Failure;
use crate::output;

#[derive(Serialize)]
struct Listed {
    suites: Vec<ListedSuite>,
    emulated_modes: Vec<ModeInfo>,
    nvidia_modes: Vec<ModeInfo>,
}

#[derive(Serialize)]
struct ListedSuite {
    name: String,
    title: String,
    cases: Vec<ListedCase>,
}

#[derive(Serialize)]
struct ListedCase {
    name: String,
    title: String,
    loads: Vec<String>,
}

/// The modes of all backends.
pub(super) fn all_modes() -> Vec<ModeInfo> {
    [Emulated::default().modes(), nvidia::modes()].concat()
}

pub(super) fn main(args: &BenchListArgs) -> Result<(), Failure> {
    let listed = Listed {
        suites: built_in_names().filter_map(built_in).map(suite).collect(),
        emulated_modes: Emulated::default().modes(),
        nvidia_modes: nvidia::modes(),
    };
    if args.json {
        return output::print_json(&listed);
    }
    let mut text = String::new();
    for suite in &listed.suites {
        text.push_str(&format!("{}: {}\n", suite.name, suite.title));
        for case in &suite.cases {
            text.push_str(&format!("    {:<18} {}\n", case.name, case.title));
        }
    }
    for (backend, modes) in [("emulated", &listed.emulated_modes), ("nvidia", &listed.nvidia_modes)]
    {
        text.push_str(&format!("\nModes of --backend {backend}:\n"));
        for mode in modes {
            text.push_str(&format!("    {:<18} {}\n", mode.name, mode.title));
        }
    }
    output::print(&text)
}

fn suite(suite: Suite) -> ListedSuite {
    let cases = suite.cases.iter().map(|case| ListedCase {
        name: case.name.clone(),
        title: case.title.clone(),
        loads: case.loads.iter().map(ToString::to_string).collect(),
    });
    ListedSuite { cases: cases.collect(), name: suite.name, title: suite.title }
}
