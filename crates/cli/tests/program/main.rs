//! The program as users run it: real processes, real files, exit codes.
#![expect(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a broken expectation fails the test, and a daemon in a test knows few requests"
)]

mod amd;
mod bench;
mod bench_care;
mod compare;
mod demo;
mod demo_live;
mod doctor;
mod fake_daemon;
mod following;
mod latency_budget;
mod machine;
mod memory;
mod memory_live;
mod normal;
mod private;
mod run;
mod sim;
mod top;
mod two_users;
mod with_daemon;

use gpreempt_stage::Stage;

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
