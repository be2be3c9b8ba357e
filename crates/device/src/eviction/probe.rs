//! Whether NVIDIA's driver of this machine can evict memory, for a report to users.

use std::time::{Duration, Instant};

use super::child::{EvictorChild, program};
use super::order::{Order, Outcome, Task};

/// Loading libcuda takes milliseconds. It opens the devices, which may wait for a GPU that hangs.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Whether libcuda is there and has the calls that move memory, or why not. An evictor program
/// loads it, not this process.
///
/// # Errors
/// Why memory cannot be evicted, and what to do.
pub fn probe() -> Result<(), String> {
    let order = Order { task: Task::Probe, journal: None, members: Vec::new() };
    let until = Instant::now() + ANSWER_MAX;
    let outcome = program().and_then(|program| {
        let mut child = EvictorChild::start(&program)?;
        child.send(&order)?;
        child.read_to_end(drop, || Instant::now() >= until)
    });
    match outcome {
        Ok(Outcome::Done { .. }) => Ok(()),
        Ok(outcome) => Err(outcome.to_string()),
        Err(_) if Instant::now() >= until => Err(format!(
            "NVIDIA's driver has not answered for {} s; see dmesg for its messages",
            ANSWER_MAX.as_secs()
        )),
        Err(error) => Err(format!("the program gpreempt-evictor cannot be started: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_program_there_is_a_reason() {
        let why = probe().unwrap_err();
        assert!(why.contains("gpreempt-evictor is missing"), "{why}");
    }
}
