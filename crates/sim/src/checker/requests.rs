//! Requests: nobody is answered before its kernels can have run.

use gpreempt_core::time::Duration;

use crate::client::Client;
use crate::rig::Rig;
use crate::scenario::{KernelSpec, ProgramSource};

/// The first task whose last answer came too early, if any.
pub(super) fn check(rig: &Rig) -> Result<(), String> {
    for client in &rig.clients {
        let Some(served) = client.served.last() else { continue };
        let (took, least) = (served.ended.since(served.began), least_time(client, &rig.kernels));
        if took < least {
            let name = &client.spec.name;
            return Err(format!("a request of `{name}` took {took}; its kernels need {least}"));
        }
    }
    Ok(())
}

/// The launches of a request run one after the other, and their waves work for the kernel's time:
/// whoever is preempted serves the rest of it later.
fn least_time(client: &Client, kernels: &[KernelSpec]) -> Duration {
    let mut least = Duration::ZERO;
    for step in &client.spec.request {
        let kernel = &kernels[step.kernel];
        if matches!(kernel.program, ProgramSource::BuiltIn(_)) {
            least += kernel.work.times(u64::from(step.count));
        }
    }
    least
}
