//! Orders from stdin, for a load that stays for several measurements.

use std::fmt;
use std::io::BufRead;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use gpreempt_bench::round::{Order, Round};
use serde::Serialize;

use crate::clock::{Clock, Monotonic};
use crate::failure::Failure;
use crate::output::Output;
use crate::stop::{Bound, Stop};

/// How often it is looked whether a signal asked to stop. Orders and their end wake us at once, and
/// whoever is idle must not disturb those who are measured.
const LOOK: Duration = Duration::from_millis(250);
/// How long a prepared round waits for its beginning.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a round may take beyond its time: preparing, the last request, what is in flight.
const OVERHEAD: Duration = Duration::from_secs(240);
/// How long the end may take when nobody gives orders any more.
const LEAVE: Duration = Duration::from_secs(40);

/// Something that can be measured again and again.
pub(crate) trait Resident {
    /// What one round needs.
    type Prepared;

    /// Gets everything ready for a round.
    fn prepare(&mut self, round: &Round) -> Result<Self::Prepared, Failure>;

    /// Begins at that time and returns when nothing is on the device any more.
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

/// Makes rounds until the input ends or somebody asks to stop.
pub(crate) fn run(
    resident: &mut impl Resident,
    output: Output,
    stop: &Stop,
    bound: &Bound,
) -> Result<(), Failure> {
    let orders = listen(stop, bound)?;
    bound.lift();
    rounds(resident, output, stop, bound, &orders)
}

fn rounds(
    resident: &mut impl Resident,
    output: Output,
    stop: &Stop,
    bound: &Bound,
    orders: &Receiver<Result<Order, String>>,
) -> Result<(), Failure> {
    while let Some(order) = next(orders, stop, None)? {
        let round = match order {
            Order::Prepare(round) => round,
            // It comes too late or too early; there is nothing to begin or to end.
            Order::Begin { .. } | Order::End { .. } => continue,
        };
        bound.set(OVERHEAD + Duration::from_secs(round.seconds));
        let in_round = stop.in_round(round.round);
        let prepared = resident.prepare(&round)?;
        output.line(&PreparedLine { round: round.round })?;
        match next(orders, &in_round, Some(PATIENCE))? {
            Some(Order::Begin { round: number, at_ns }) if number == round.round => {
                resident.perform(prepared, at_ns, &in_round)?;
            }
            Some(order) => {
                return Err(Failure::input(format_args!(
                    "round {} was prepared, and the next order was {order:?}",
                    round.round
                )));
            }
            // Ended before it began.
            None => {}
        }
        if !stop.is_asked() {
            bound.lift();
        }
    }
    Ok(())
}

/// The next order; none if there are no more, or somebody asked to stop.
fn next(
    orders: &Receiver<Result<Order, String>>,
    stop: &Stop,
    patience: Option<Duration>,
) -> Result<Option<Order>, Failure> {
    let begin = Monotonic.now_ns();
    loop {
        match orders.recv_timeout(LOOK) {
            Ok(Ok(order)) => return Ok(Some(order)),
            Ok(Err(problem)) => return Err(Failure::input(problem)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) if stop.is_asked() => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let waited = Duration::from_nanos(Monotonic.now_ns().saturating_sub(begin));
        if patience.is_some_and(|patience| waited > patience) {
            let seconds = PATIENCE.as_secs();
            return Err(Failure::run(format_args!("a round did not begin within {seconds} s")));
        }
    }
}

/// Reads orders in a thread of its own, so that a round can be ended while it lasts.
fn listen(stop: &Stop, bound: &Bound) -> Result<Receiver<Result<Order, String>>, Failure> {
    let (sender, orders) = channel();
    let (stop, bound) = (stop.clone(), bound.clone());
    let thread = std::thread::Builder::new().name("orders".to_owned());
    thread
        .spawn(move || {
            pass_on(std::io::stdin().lock(), &sender, &stop);
            // Whoever gave the orders is gone; the device gets no more time of ours.
            bound.set(LEAVE);
            stop.ask();
        })
        .map_err(|error| Failure::run(format_args!("cannot read orders: {error}")))?;
    Ok(orders)
}

fn pass_on(input: impl BufRead, sender: &Sender<Result<Order, String>>, stop: &Stop) {
    for line in input.lines().map_while(Result::ok) {
        let order: Result<Order, _> = serde_json::from_str(&line);
        let order = order.map_err(|error| format!("this is no order: {line} ({error})"));
        if let Ok(Order::End { round }) = order {
            stop.end_round(round);
            continue;
        }
        if sender.send(order).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
