//! Telemetry: log, problems, events, snapshots, metrics and the timing of the loop.

pub(crate) mod events;
pub(crate) mod history;
pub(crate) mod log;
pub(crate) mod loop_latency;
pub(crate) mod metrics_server;
pub(crate) mod problems;
pub(crate) mod publish;
pub(crate) mod snapshot;
