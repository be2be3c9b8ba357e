//! `gpreempt ping`: whether gpreemptd answers, and how soon. Made for liveness probes, so the whole
//! command has a time limit.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use gpreempt_wire::client::{Client, ClientOptions};
use gpreempt_wire::request::{Request, Role};
use serde_json::json;

use crate::args::PingArgs;
use crate::failure::Failure;
use crate::{output, service};

pub(crate) fn main(args: &PingArgs) -> Result<(), Failure> {
    let took = ping_within(args.timeout)?;
    let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    if args.json {
        return output::print_json(&json!({ "answered_us": us }));
    }
    output::print(&format!("gpreemptd answered in {}.{:03} ms\n", us / 1_000, us % 1_000))
}

/// The time of one round trip. Connecting, the greeting and the round trip together take no longer
/// than `limit`, which no single wait of the client can promise; so the client has its own thread.
fn ping_within(limit: Duration) -> Result<Duration, Failure> {
    let (answer, answered) = channel();
    let client = std::thread::Builder::new().name("ping".to_owned());
    // The answer of a client that is too late is not received any more.
    // Its own limits are longer, so that there is one message for all of them.
    let started = client.spawn(move || drop(answer.send(ping(limit.saturating_mul(2)))));
    started.map_err(|error| Failure::run(format_args!("cannot start a thread: {error}")))?;
    match answered.recv_timeout(limit) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            Err(Failure::run(format_args!(
                "gpreemptd did not answer within {} ms; its log says what it does",
                limit.as_millis()
            )))
        }
    }
}

fn ping(timeout: Duration) -> Result<Duration, Failure> {
    let options = ClientOptions { timeout, ..ClientOptions::new(Role::Command, service::PROGRAM) };
    let mut client = Client::connect(&options)?;
    let sent = Instant::now();
    client.expect_ok(&Request::Ping)?;
    Ok(sent.elapsed())
}
