//! What people asked for outlives this daemon.

use gpreempt_device::process::ProcessKey;

use super::Processes;
use super::registrations::Registration;
use super::saved_settings::{Kept, KeptMember, KeptOrder, KeptRegistration};
use super::tracked_process::{Member, Order};
use crate::service::poller::Poller;
use crate::service::telemetry::Telemetry;

/// How a problem with it begins.
const PROBLEM: &str = "what people asked for cannot be kept";

impl Processes {
    /// Takes back what was registered with the daemon before us.
    pub(crate) fn register_again(&mut self, registrations: Vec<KeptRegistration>, poller: &Poller) {
        for KeptRegistration { process, order, by_master, uid } in registrations {
            let (pidfd, watch) = self.watch(process, poller);
            let order = Order::from(order);
            let registration = Registration { order, by_master, uid, pidfd, watch };
            self.registrations.insert(process, registration);
        }
    }

    /// Gives a process that is met now what it had before us.
    pub(super) fn recall(&mut self, member: &mut Member, now_ns: u64) {
        let Some(kept) = self.orders.take(member.key) else { return };
        let KeptMember { order, is_detached, suspended_until_ns, .. } = kept;
        member.order = order.map(Order::from).or(member.order);
        member.is_detached = is_detached;
        member.suspended_until_ns =
            suspended_until_ns.filter(|until| *until > now_ns && !member.is_ignored());
    }

    /// Keeps what people asked for, as it is now.
    pub(crate) fn keep_orders(&mut self, telemetry: &mut Telemetry) {
        let members = self.roster.members().filter_map(kept).collect();
        let registrations = self.registrations.iter().map(kept_registration).collect();
        match self.orders.write(Kept { members, registrations }) {
            Ok(()) => telemetry.problems.solve(PROBLEM),
            Err(error) => telemetry.problem(&format!("{PROBLEM}: {error}")),
        }
    }
}

/// What has to be kept of a process, if anything.
fn kept(member: &Member) -> Option<KeptMember> {
    let (order, suspended_until_ns) = (member.order, member.suspended_until_ns);
    let is_plain = order.is_none() && suspended_until_ns.is_none() && !member.is_detached;
    (!is_plain).then(|| KeptMember {
        process: member.key,
        order: order.map(KeptOrder::from),
        is_detached: member.is_detached,
        suspended_until_ns,
    })
}

fn kept_registration((process, known): (&ProcessKey, &Registration)) -> KeptRegistration {
    let Registration { order, by_master, uid, .. } = *known;
    KeptRegistration { process: *process, order: order.into(), by_master, uid }
}
