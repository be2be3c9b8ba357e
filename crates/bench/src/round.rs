//! What a program that stays for several measurements is told: one line of JSON for each order.
//!
//! A round is one measurement. It is prepared (files, connections, clocks), it begins at a moment
//! that is the same for all programs, and it ends by itself or when it is told to. Its last line
//! has the line `final` and the round's number. Between rounds a program has nothing on the
//! device; it leaves when its input ends, so it does not outlive whoever gives the orders.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// One order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum Order {
    /// Get ready; the answer is the line `prepared`.
    Prepare(Round),
    /// Begin.
    Begin {
        /// Which round; it was prepared.
        round: u64,
        /// When, by `CLOCK_MONOTONIC`.
        at_ns: u64,
    },
    /// End early: best-effort work is told so when requests are over.
    End {
        /// Which round.
        round: u64,
    },
}

/// One measurement, as far as it differs from others of the same program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// Its number: from 1, and each larger than the one before.
    pub round: u64,
    /// How long it lasts at the most.
    pub seconds: u64,
    /// Decides what is left to chance.
    pub seed: u64,
    /// The socket of the daemon that is told of requests ahead, if one is.
    pub hints: Option<PathBuf>,
}

impl Order {
    /// The line, with its end.
    pub fn line(&self) -> String {
        // PANIC: strings and numbers always have a form in JSON.
        let mut line = serde_json::to_string(self).expect("a line of JSON");
        line.push('\n');
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_lines_that_other_programs_can_read() {
        let round = Round { round: 3, seconds: 4, seed: 2_000, hints: None };
        let orders = [
            Order::Prepare(round),
            Order::Begin { round: 3, at_ns: 5_000 },
            Order::End { round: 3 },
        ];
        let text: String = orders.iter().map(Order::line).collect();
        assert_eq!(
            text,
            "{\"do\":\"prepare\",\"round\":3,\"seconds\":4,\"seed\":2000,\"hints\":null}\n\
             {\"do\":\"begin\",\"round\":3,\"at_ns\":5000}\n{\"do\":\"end\",\"round\":3}\n"
        );
        let read: Vec<Order> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(read, orders);
    }
}
