//! Just enough HTTP for Prometheus: `GET /metrics`, one request per connection.
//!
//! Nothing here blocks or waits, so the daemon's loop can drive it: poll [`HttpListener`] for
//! reading; poll every [`Exchange`] for writing while [`Exchange::wants_write`] says so and else
//! for reading; drop it when [`Exchange::is_over`]. Whoever connects is not trusted: a request has
//! a largest size, an exchange a longest time, and there are at most [`EXCHANGES_MAX`] of them.

mod answer;
mod exchange;
mod listener;
mod request;

use gpreempt_core::time::Duration;

pub use exchange::Exchange;
pub use listener::HttpListener;

/// How many exchanges there are at a time. More are turned away.
pub const EXCHANGES_MAX: usize = 16;
/// How long the line and the headers of a request may be together.
pub const HEAD_BYTES_MAX: usize = 8 * 1024;
/// How long an exchange may take, from the connection to its end.
pub const EXCHANGE_TIME_MAX: Duration = Duration::from_millis(10_000);

#[cfg(test)]
mod tests;
