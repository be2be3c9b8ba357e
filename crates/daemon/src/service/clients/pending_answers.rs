//! `Suspend` is answered when the process is off its devices, not when the request is accepted.
//!
//! The journal may be full and a device may refuse. So each iteration checks the pending
//! suspensions: a client is answered when all queues of the process are off, or when it is known
//! that they will not be; in the second case the suspension ends. Nothing here blocks the loop.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use gpreempt_core::id::QueueId;
use gpreempt_core::queue::RunState;
use gpreempt_core::scheduler::QueueView;
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::process::ProcessKey;
use gpreempt_device::undo_log::ChangeRefusal;
use gpreempt_wire::event::EventKind;
use gpreempt_wire::reply::RefusalCode;
use gpreempt_wire::reply::Reply;

use super::request_error::RequestError;
use crate::service::Service;
use crate::service::devices::Devices;
use crate::service::processes::client_settings::Suspension;
use crate::service::processes::{Context, Named, Processes};
use crate::service::telemetry::Telemetry;

/// The longest time until a process is off its devices. Measured stops take 0.2 to 20 ms; this is
/// far beyond that and within the 5 s that a client waits.
const OFF_MAX: Duration = Duration::from_nanos(OFF_MAX_NS);
pub(crate) const OFF_MAX_NS: u64 = 1_000_000_000;
/// How long a process without queues is observed: its controller may still be finding them.
const QUEUES_WAIT: Duration = Duration::from_millis(100);
/// Interval of the checks while a suspension is pending.
pub(crate) const CHECK_NS: u64 = 5_000_000;

/// Suspensions of one user that may be pending at once. Each is checked in every iteration.
pub(crate) const PENDING_MAX: usize = 64;

/// A request in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestRef {
    pub(crate) session: u64,
    pub(crate) request: u64,
}

/// A suspension whose client waits for an answer.
#[derive(Debug)]
pub(crate) struct PendingSuspension {
    pub(crate) asked: RequestRef,
    pub(crate) key: ProcessKey,
    pub(crate) since: Instant,
    /// The line for the log when the process is off.
    pub(crate) line: String,
    /// When the suspension ends if it is never carried out.
    pub(crate) until_ns: u64,
    pub(crate) lease_ns: u64,
    pub(crate) by_admin: bool,
    /// The suspension that this one renews. It stays in force if the renewal fails.
    pub(crate) before: Option<Suspension>,
    /// The queues that the process had when it was asked for. Later ones are stopped too, but a
    /// process that opens queues all the time cannot make the suspension fail.
    pub(crate) queues: BTreeSet<QueueId>,
}

/// Why a process was not suspended.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SuspendError {
    #[error("process {0} was not suspended: it has ended")]
    Ended(ProcessKey),
    #[error("{} was not suspended: another client resumed it first", Named(*.0))]
    Resumed(ProcessKey),
    #[error("{name} was not suspended: {1}", name = Named(*.0))]
    Refused(ProcessKey, String),
    #[error("{} was not suspended: its GPU did not stop it within {OFF_MAX:?}", Named(*.0))]
    Late(ProcessKey),
}

impl SuspendError {
    pub(crate) const fn code(&self) -> RefusalCode {
        match self {
            Self::Ended(_) => RefusalCode::NoSuchProcess,
            Self::Resumed(_) | Self::Refused(..) | Self::Late(_) => RefusalCode::Failed,
        }
    }
}

/// Whether the hardware cannot run a queue.
pub(crate) const fn is_off(view: &QueueView) -> bool {
    matches!(view.run_state, RunState::Off | RunState::Resuming)
}

/// The result of a suspension. `None` while it is not known.
fn result_of(
    key: ProcessKey,
    queues: &[QueueView],
    waited: Duration,
    refusal: Option<ChangeRefusal>,
) -> Option<Result<(), SuspendError>> {
    if queues.is_empty() {
        return (waited >= QUEUES_WAIT).then_some(Ok(()));
    }
    if queues.iter().all(is_off) {
        return Some(Ok(()));
    }
    match refusal {
        // The scheduler would try again, and the journal would be as full as before.
        Some(refusal) if refusal.is_unwritten || waited >= OFF_MAX => {
            Some(Err(SuspendError::Refused(key, refusal.sentence)))
        }
        Some(_) | None => (waited >= OFF_MAX).then_some(Err(SuspendError::Late(key))),
    }
}

impl Processes {
    /// Whether a process has queues and all of them are off.
    pub(crate) fn is_off_its_devices(&self, key: ProcessKey, devices: &Devices) -> bool {
        let queues = self.queues_of(key, devices);
        !queues.is_empty() && queues.iter().all(is_off)
    }

    pub(crate) fn queues_of(&self, key: ProcessKey, devices: &Devices) -> Vec<QueueView> {
        let task = self.table.get(key).and_then(|process| Some(process.applied?.task));
        let views = devices.scheduler().queues();
        task.map(|task| views.filter(|view| view.task == task).collect()).unwrap_or_default()
    }

    /// Begins the lease of a process that is off now, unless another request changed the lease.
    fn begin_lease(&mut self, pending: &PendingSuspension) {
        if let Some(process) = self.table.get_mut(pending.key)
            && let Some(suspension) = process.suspensions.layer(pending.by_admin)
            && suspension.until_ns == pending.until_ns
        {
            suspension.until_ns = monotonic_ns().saturating_add(pending.lease_ns);
        }
    }

    /// Ends a suspension that was not carried out, and none that was in force before.
    fn fail_suspension(&mut self, pending: &PendingSuspension, context: &mut Context<'_>) {
        let Some(process) = self.table.get(pending.key) else { return };
        let mut left = process.suspensions;
        let is_in_force = |before: &Suspension| before.until_ns > monotonic_ns();
        *left.layer(pending.by_admin) = pending.before.filter(is_in_force);
        self.replace_suspensions(pending.key, left, context);
    }

    /// Reports a suspension to the log and to followers.
    pub(crate) fn announce_suspension(
        &self,
        pending: &PendingSuspension,
        telemetry: &mut Telemetry,
    ) {
        telemetry.log.info(&pending.line);
        self.tell_of(pending.key, EventKind::Suspended, pending.lease_ns, telemetry);
    }
}

impl Service {
    /// Answers the clients whose suspensions have been carried out or have failed.
    pub(crate) fn answer_suspensions(&mut self) {
        for pending in std::mem::take(&mut self.clients.pending) {
            match self.suspension_result(&pending) {
                None => self.clients.pending.push(pending),
                Some(Ok(())) => {
                    self.processes.begin_lease(&pending);
                    self.processes.announce_suspension(&pending, &mut self.telemetry);
                    self.reply(pending.asked, Reply::Ok);
                }
                Some(Err(error)) => {
                    let (processes, mut context) = self.processes_and_context();
                    processes.fail_suspension(&pending, &mut context);
                    self.telemetry.log.warn(&error);
                    let refusal = RequestError::from(error).to_wire();
                    self.reply(pending.asked, Reply::Refused(refusal));
                }
            }
        }
    }

    fn suspension_result(&self, pending: &PendingSuspension) -> Option<Result<(), SuspendError>> {
        let key = pending.key;
        let Some(process) = self.processes.table.get(key) else {
            return Some(Err(SuspendError::Ended(key)));
        };
        if let Some(why) = &process.obstacle {
            return Some(Err(SuspendError::Refused(key, why.clone())));
        }
        if !process.is_suspended() {
            return Some(Err(SuspendError::Resumed(key)));
        }
        let quota = &self.devices.backends.quota;
        if pending.queues.iter().any(|queue| quota.is_admitting(*queue)) {
            return None;
        }
        let refusal = self.recovery.undo_log().refusal_of(key);
        let refusal = refusal.filter(|refusal| refusal.at >= pending.since);
        let mut queues = self.processes.queues_of(key, &self.devices);
        if !pending.queues.is_empty() {
            queues.retain(|view| pending.queues.contains(&view.queue));
        }
        result_of(key, &queues, pending.since.elapsed(), refusal)
    }

    /// Answers a request of an earlier iteration, if its session is still open.
    pub(crate) fn reply(&mut self, asked: RequestRef, reply: Reply) {
        let (sessions, log) = (&mut self.clients.sessions, &mut self.telemetry.log);
        sessions.send(asked.session, asked.request, reply, &self.poller, log);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_core::id::{DeviceId, TaskId};
    use gpreempt_core::priority::Priority;
    use gpreempt_core::ring::RingView;
    use gpreempt_core::statistics::QueueTotals;

    const KEY: ProcessKey = ProcessKey { pid: 7, start_ticks: 9 };
    const SOON: Duration = Duration::from_millis(1);

    fn queue(run_state: RunState) -> QueueView {
        QueueView {
            queue: QueueId(1),
            task: TaskId(1),
            device: DeviceId(0),
            priority: Priority::DEFAULT,
            has_own_priority: false,
            suspended: true,
            run_state,
            active: true,
            ring: RingView::default(),
            starving: Default::default(),
            slowdown_percent: None,
            slowdown_totals: Default::default(),
            totals: QueueTotals::default(),
        }
    }

    fn refusal(is_unwritten: bool) -> Option<ChangeRefusal> {
        let sentence = "no space".to_owned();
        Some(ChangeRefusal { at: Instant::now(), is_unwritten, sentence })
    }

    #[test]
    fn a_process_is_suspended_when_its_last_queue_is_off() {
        let [on, off] = [queue(RunState::On), queue(RunState::Off)];
        assert_eq!(result_of(KEY, &[off, on], SOON, None), None);
        assert_eq!(result_of(KEY, &[off, queue(RunState::Preempting)], SOON, None), None);
        assert_eq!(result_of(KEY, &[off, off], SOON, refusal(true)), Some(Ok(())));
        assert_eq!(result_of(KEY, &[], SOON, None), None, "its queues may be found later");
        assert_eq!(result_of(KEY, &[], QUEUES_WAIT, None), Some(Ok(())));
    }

    #[test]
    fn an_unwritten_journal_fails_at_once_and_a_refusal_of_the_device_after_the_limit() {
        let on = [queue(RunState::On)];
        let refused = Some(Err(SuspendError::Refused(KEY, "no space".to_owned())));
        assert_eq!(result_of(KEY, &on, SOON, refusal(true)), refused);
        assert_eq!(result_of(KEY, &on, SOON, refusal(false)), None);
        assert_eq!(result_of(KEY, &on, OFF_MAX, refusal(false)), refused);
        assert_eq!(result_of(KEY, &on, OFF_MAX, None), Some(Err(SuspendError::Late(KEY))));
        let refused = RequestError::from(SuspendError::Refused(KEY, "no space".to_owned()));
        assert_eq!(refused.to_string(), "process 7 was not suspended: no space");
    }
}
