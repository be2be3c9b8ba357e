//! Several measurements in one process (`--rounds`): orders come from stdin, the runner is
//! `gpreempt bench` (module `nvidia` of the library). Also the start of a single measurement.
//!
//! Between rounds a load has no work on the device. It ends when stdin is closed.

use std::fmt;
use std::io::BufRead;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use gpreempt_bench::round::{Round, RoundCommand};
use serde::Serialize;

use crate::args::LoadArgs;
use crate::clock::{Clock, Monotonic};
use crate::failure::Failure;
use crate::lines::{Output, Ready};
use crate::stop::{Stop, TimeLimit};

/// How often an idle load checks for a signal. Orders and the end of stdin wake it at once, and an
/// idle load must not disturb the ones that are measured.
const POLL: Duration = Duration::from_millis(250);
/// How long a prepared round waits for its beginning, and a load for its `--wait-file`.
const BEGIN_MAX: Duration = Duration::from_secs(120);
/// How often `--wait-file` is checked: loads that wait for the same file begin this close together.
const WAIT_FILE_POLL: Duration = Duration::from_millis(1);
/// How long a round may take beyond its time: preparing, the last request, items in flight.
const OVERHEAD: Duration = Duration::from_secs(240);
/// How long the load may take to end after stdin was closed.
const LEAVE_MAX: Duration = Duration::from_secs(40);

/// A load that can be measured several times.
pub(crate) trait RoundLoad {
    /// What one round needs.
    type Prepared;

    fn prepare(&mut self, round: &Round) -> Result<Self::Prepared, Failure>;

    /// Begins at that time and returns when the load has no work left on the device.
    fn perform(&mut self, prepared: Self::Prepared, at_ns: u64, stop: &Stop)
    -> Result<(), Failure>;
}

/// The answer to `prepare`.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(tag = "line", rename = "prepared")]
struct PreparedLine {
    round: u64,
}

impl fmt::Display for PreparedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "prepared for round {}", self.round)
    }
}

/// Prints the ready line and waits for `--wait-file`. False if the load was ended before.
pub(crate) fn announce(
    ready: &Ready<impl Serialize + fmt::Display>,
    output: Output,
    args: &LoadArgs,
    stop: &Stop,
) -> Result<bool, Failure> {
    output.line(ready)?;
    let Some(path) = &args.wait_file else { return Ok(!stop.is_asked()) };
    // A load on a real GPU must not keep its memory because a test forgot it.
    let max = if args.emulated().is_some() { Duration::MAX } else { BEGIN_MAX };
    let begin = Monotonic.now_ns();
    while !path.exists() {
        if stop.is_asked() {
            return Ok(false);
        }
        if Duration::from_nanos(Monotonic.now_ns().saturating_sub(begin)) > max {
            let (path, seconds) = (path.display(), max.as_secs());
            return Err(Failure::run(format_args!("{path} did not appear within {seconds} s")));
        }
        std::thread::sleep(WAIT_FILE_POLL);
    }
    Ok(true)
}

/// Runs rounds until stdin is closed or a signal ends the load.
pub(crate) fn run(
    load: &mut impl RoundLoad,
    output: Output,
    stop: &Stop,
    limit: &TimeLimit,
) -> Result<(), Failure> {
    let orders = listen(stop, limit)?;
    limit.lift();
    rounds(load, output, stop, limit, &orders)
}

fn rounds(
    load: &mut impl RoundLoad,
    output: Output,
    stop: &Stop,
    limit: &TimeLimit,
    orders: &Receiver<Result<RoundCommand, String>>,
) -> Result<(), Failure> {
    while let Some(order) = next(orders, stop, None)? {
        let round = match order {
            RoundCommand::Prepare(round) => round,
            // No round is prepared, so there is none to begin or to end.
            RoundCommand::Begin { .. } | RoundCommand::End { .. } => continue,
        };
        limit.set(OVERHEAD + Duration::from_secs(round.seconds));
        let in_round = stop.in_round(round.round);
        let prepared = load.prepare(&round)?;
        output.line(&PreparedLine { round: round.round })?;
        match next(orders, &in_round, Some(BEGIN_MAX))? {
            Some(RoundCommand::Begin { round: number, at_ns }) if number == round.round => {
                load.perform(prepared, at_ns, &in_round)?;
            }
            Some(order) => {
                return Err(Failure::input(format_args!(
                    "round {} was prepared, but the next order was {order:?}",
                    round.round
                )));
            }
            // Ended before it began.
            None => {}
        }
        if !stop.is_asked() {
            limit.lift();
        }
    }
    Ok(())
}

/// The next order; none if stdin was closed or a signal ended the load.
fn next(
    orders: &Receiver<Result<RoundCommand, String>>,
    stop: &Stop,
    max: Option<Duration>,
) -> Result<Option<RoundCommand>, Failure> {
    let begin = Monotonic.now_ns();
    loop {
        match orders.recv_timeout(POLL) {
            Ok(Ok(order)) => return Ok(Some(order)),
            Ok(Err(problem)) => return Err(Failure::input(problem)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) if stop.is_asked() => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let waited = Duration::from_nanos(Monotonic.now_ns().saturating_sub(begin));
        if max.is_some_and(|max| waited > max) {
            let seconds = BEGIN_MAX.as_secs();
            return Err(Failure::run(format_args!(
                "the order to begin did not come within {seconds} s"
            )));
        }
    }
}

/// Reads orders in a thread of its own, so that a round can be ended while it lasts.
fn listen(
    stop: &Stop,
    limit: &TimeLimit,
) -> Result<Receiver<Result<RoundCommand, String>>, Failure> {
    let (sender, orders) = channel();
    let (stop, limit) = (stop.clone(), limit.clone());
    let thread = std::thread::Builder::new().name("orders".to_owned());
    thread
        .spawn(move || {
            read_orders(std::io::stdin().lock(), &sender, &stop);
            // The runner is gone: no further round will come.
            limit.set(LEAVE_MAX);
            stop.ask();
        })
        .map_err(|error| Failure::run(format_args!("cannot read orders: {error}")))?;
    Ok(orders)
}

fn read_orders(input: impl BufRead, sender: &Sender<Result<RoundCommand, String>>, stop: &Stop) {
    for line in input.lines().map_while(Result::ok) {
        let order: Result<RoundCommand, _> = serde_json::from_str(&line);
        let order = order.map_err(|error| format!("not an order: {line} ({error})"));
        if let Ok(RoundCommand::End { round }) = order {
            stop.end_round(round);
            continue;
        }
        if sender.send(order).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct RecordedCalls(Vec<String>);

    impl RoundLoad for RecordedCalls {
        type Prepared = u64;

        fn prepare(&mut self, round: &Round) -> Result<u64, Failure> {
            self.0.push(format!("prepare {} for {} s", round.round, round.seconds));
            Ok(round.round)
        }

        fn perform(&mut self, prepared: u64, at_ns: u64, stop: &Stop) -> Result<(), Failure> {
            self.0.push(format!("perform {prepared} at {at_ns}, ended {}", stop.is_asked()));
            Ok(())
        }
    }

    fn run_orders(text: &str) -> (Vec<String>, Result<(), Failure>) {
        let (stop, limit) = (Stop::default(), TimeLimit::default());
        let (sender, orders) = channel();
        read_orders(text.as_bytes(), &sender, &stop);
        drop(sender);
        let mut calls = RecordedCalls::default();
        let result = rounds(&mut calls, Output { json: true }, &stop, &limit, &orders);
        (calls.0, result)
    }

    fn prepare(round: u64) -> String {
        RoundCommand::Prepare(Round { round, seconds: 2, seed: 0, hints: None }).line()
    }

    fn begin(round: u64) -> String {
        RoundCommand::Begin { round, at_ns: 70 }.line()
    }

    #[test]
    fn rounds_run_one_after_the_other_until_the_input_ends() {
        let (calls, result) = run_orders(&(prepare(1) + &begin(1) + &prepare(2) + &begin(2)));
        assert!(result.is_ok());
        let expected = ["prepare 1 for 2 s", "perform 1 at 70, ended false"];
        assert_eq!(calls[..2], expected);
        assert_eq!(calls[3], "perform 2 at 70, ended false");
    }

    #[test]
    fn an_end_order_ends_the_round_it_names_even_if_it_comes_early() {
        let end = RoundCommand::End { round: 1 }.line();
        let (calls, result) =
            run_orders(&(end + &prepare(1) + &begin(1) + &prepare(2) + &begin(2)));
        assert!(result.is_ok());
        assert_eq!(calls[1], "perform 1 at 70, ended true");
        assert_eq!(calls[3], "perform 2 at 70, ended false");
    }

    #[test]
    fn a_line_that_is_not_an_order_ends_the_program() {
        let (calls, result) = run_orders("dance\n");
        assert!(calls.is_empty());
        assert!(
            matches!(result, Err(Failure::Input(said)) if said.contains("not an order: dance"))
        );
        let (_, result) = run_orders(&(prepare(1) + &prepare(2)));
        assert!(
            matches!(result, Err(Failure::Input(said)) if said.contains("round 1 was prepared"))
        );
    }

    #[test]
    fn a_round_that_never_begins_is_not_performed() {
        let (calls, result) = run_orders(&prepare(1));
        assert!(result.is_ok());
        assert_eq!(calls, ["prepare 1 for 2 s"]);
    }
}
