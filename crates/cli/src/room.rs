//! `gpreempt run --memory`: room for the program's GPU memory, before it starts.
//!
//! The claim is that of this process, which becomes the program or is its parent, and ends with
//! this process. A signal therefore needs no handler: it ends this process, and what was evicted
//! returns.

use std::time::Instant;

use gpreempt_core::time::Duration as Time;
use gpreempt_wire::process::Process;
use gpreempt_wire::request::{Request, Role};
use gpreempt_wire::statistics::{ClaimSnapshot, Snapshot};

use crate::args::RunArgs;
use crate::failure::Failure;
use crate::memory_move::{MoveProgress, PendingRequest, STEP, named};
use crate::service::{self, ServiceClient};
use crate::suspend_gpu::number_of;

/// Waits until the memory that the program needs is free.
///
/// # Errors
/// Why there is no room. Nothing stays evicted then, and the program must not be started.
pub(crate) fn make(args: &RunArgs, service: &mut ServiceClient) -> Result<(), Failure> {
    let Some(memory) = &args.memory else { return Ok(()) };
    let gpu = args.gpu.as_deref();
    let device = gpu.map(|gpu| number_of(&mut service.client, gpu)).transpose()?;
    let request = Request::MakeRoom { process: Process::SENDER, bytes: memory.bytes, device };
    let begin = Instant::now();
    let pending = PendingRequest::send(service.another(Role::Command)?, request)?;
    let mut progress = MoveProgress::new("evicting", Default::default(), false);
    let answer = loop {
        match pending.wait(STEP) {
            Some(answer) => break answer,
            None => show(&service::snapshot(&mut service.client)?, &mut progress),
        }
    };
    answer?;
    if progress.has_begun() {
        let took = Time::from_millis(u64::try_from(begin.elapsed().as_millis()).unwrap_or(0));
        progress.note(&format!("{} of GPU memory are free after {took}", memory.text));
    }
    Ok(())
}

/// Shows how far the processes in the way are.
fn show(snapshot: &Snapshot, progress: &mut MoveProgress) {
    let own = std::process::id();
    let Some(claim) = snapshot.claims.iter().find(|claim| claim.pid == own) else { return };
    if claim.to_move_kib > 0 {
        progress.show(
            &begin(claim, snapshot),
            claim.moved_kib,
            claim.to_move_kib,
            Some(claim.left_ms),
        );
    }
}

/// Who is evicted.
fn begin(claim: &ClaimSnapshot, snapshot: &Snapshot) -> String {
    match claim.evicts.as_slice() {
        [] => "making room".to_owned(),
        [pid] => format!("evicting {}", named(*pid, snapshot)),
        several => format!("evicting {} processes", several.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_is_named_and_several_are_counted() {
        let snapshot = Snapshot::default();
        let of = |evicts: &[u32]| {
            let claim = ClaimSnapshot { evicts: evicts.to_vec(), ..ClaimSnapshot::default() };
            begin(&claim, &snapshot)
        };
        assert_eq!([of(&[]), of(&[7])], ["making room", "evicting 7"]);
        assert_eq!(of(&[7, 8]), "evicting 2 processes");
    }
}
