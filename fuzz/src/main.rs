//! The targets under libFuzzer. `cargo xtask fuzz TARGET` builds and starts this program;
//! libFuzzer owns the arguments, so the environment names the target.
#![no_main]
#![expect(clippy::panic, reason = "libFuzzer offers no other way to refuse to start")]

use std::sync::OnceLock;

use gpreempt_fuzz::{Target, find};
use libfuzzer_sys::fuzz_target;

static TARGET: OnceLock<&'static Target> = OnceLock::new();

fn target() -> &'static Target {
    TARGET.get_or_init(|| {
        let name = std::env::var("GPREEMPT_FUZZ_TARGET").unwrap_or_default();
        find(&name).unwrap_or_else(|| panic!("GPREEMPT_FUZZ_TARGET={name} names no target"))
    })
}

fuzz_target!(|bytes: &[u8]| (target().check)(bytes));
