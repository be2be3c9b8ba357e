//! The orders that a load with `--rounds` reads from stdin, one line of JSON each.
//!
//! A round is one measurement. The load prepares it (files, connections, clocks), begins it at a
//! time that is the same for all loads, and ends it by itself or at an order. Its last line is
//! `final` with the round's number. Between rounds a load has no work on the device. It ends when
//! its stdin is closed, so it does not outlive the runner.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum RoundCommand {
    /// Prepare; the answer is the line `prepared`.
    Prepare(Round),
    Begin {
        round: u64,
        /// By `CLOCK_MONOTONIC`.
        at_ns: u64,
    },
    /// End early: for best-effort loads, when the requests are done.
    End { round: u64 },
}

/// The parameters in which rounds of one load differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// From 1, and each larger than the one before.
    pub round: u64,
    /// The longest duration.
    pub seconds: u64,
    pub seed: u64,
    /// The socket of the daemon that gets hints, if any.
    pub hints: Option<PathBuf>,
}

impl RoundCommand {
    /// The line, with a line end.
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
    fn orders_are_lines_of_json() {
        let round = Round { round: 3, seconds: 4, seed: 2_000, hints: None };
        let orders = [
            RoundCommand::Prepare(round),
            RoundCommand::Begin { round: 3, at_ns: 5_000 },
            RoundCommand::End { round: 3 },
        ];
        let text: String = orders.iter().map(RoundCommand::line).collect();
        assert_eq!(
            text,
            "{\"do\":\"prepare\",\"round\":3,\"seconds\":4,\"seed\":2000,\"hints\":null}\n\
             {\"do\":\"begin\",\"round\":3,\"at_ns\":5000}\n{\"do\":\"end\",\"round\":3}\n"
        );
        let read: Vec<RoundCommand> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(read, orders);
    }
}
