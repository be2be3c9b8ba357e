//! Answers that wait until a device has done what a client asked for.
//!
//! A suspension is a wish until the process is off its devices: the journal may be full, the device
//! may refuse. So `Suspend` is answered when all queues of the process are off, or when it is known
//! that they will not be; then the suspension ends and the client is told why. Nothing here blocks
//! the loop: each turn judges what is pending.

use std::time::{Duration, Instant};

use gpreempt_core::queue::RunState;
use gpreempt_core::scheduler::QueueView;
use gpreempt_device::keeper::monotonic_ns;
use gpreempt_device::ledger::ActRefusal;
use gpreempt_device::process::ProcessKey;
use gpreempt_wire::event::EventKind;
use gpreempt_wire::reply::RefusalCode;
use gpreempt_wire::reply::Reply;

use super::request_error::RequestError;
use crate::service::Service;
use crate::service::devices::Devices;
use crate::service::processes::Processes;
use crate::service::telemetry::Telemetry;

/// How long a process may take to get off its devices. Measured stops take 0.2 to 20 ms; this is
/// well beyond that and within a client's own limit of 5 s.
const OFF_MAX: Duration = Duration::from_nanos(OFF_MAX_NS);
pub(crate) const OFF_MAX_NS: u64 = 1_000_000_000;
/// How long a process without queues is watched for some: its controller may be looking for them.
const QUEUES_WAIT: Duration = Duration::from_millis(100);
/// How often what is pending is judged, at the least.
pub(crate) const JUDGE_NS: u64 = 5_000_000;

/// A request in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) session: u64,
    pub(crate) request: u64,
}

/// A suspension whose client waits.
#[derive(Debug)]
pub(crate) struct PendingSuspension {
    pub(crate) asked: Asked,
    pub(crate) key: ProcessKey,
    pub(crate) since: Instant,
    /// What the log is told when the process is off, and for how long it is.
    pub(crate) line: String,
    /// When the suspension ends if it is never carried out.
    pub(crate) until_ns: u64,
    pub(crate) lease_ns: u64,
}

/// Why a process was not suspended.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SuspendError {
    #[error("process {0} was not suspended: it has ended")]
    Ended(ProcessKey),
    #[error("process {0} was not suspended: another client resumed it first")]
    Resumed(ProcessKey),
    #[error("process {0} was not suspended: {1}")]
    Refused(ProcessKey, String),
    #[error("process {0} was not suspended: its GPU did not stop it within {OFF_MAX:?}")]
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

/// Whether the hardware may not run a queue.
pub(crate) const fn is_off(view: &QueueView) -> bool {
    matches!(view.run_state, RunState::Off | RunState::Resuming)
}

/// What became of a suspension, if that is known by now.
fn judge(
    key: ProcessKey,
    queues: &[QueueView],
    waited: Duration,
    refusal: Option<ActRefusal>,
) -> Option<Result<(), SuspendError>> {
    if queues.is_empty() {
        return (waited >= QUEUES_WAIT).then_some(Ok(()));
    }
    if queues.iter().all(is_off) {
        return Some(Ok(()));
    }
    match refusal {
        // The scheduler tries again, but there is no more space then.
        Some(refusal) if refusal.is_unwritten || waited >= OFF_MAX => {
            Some(Err(SuspendError::Refused(key, refusal.sentence)))
        }
        Some(_) | None => (waited >= OFF_MAX).then_some(Err(SuspendError::Late(key))),
    }
}

impl Processes {
    /// Whether all queues of a process are off, and there are some.
    pub(crate) fn is_off_its_devices(&self, key: ProcessKey, devices: &Devices) -> bool {
        let queues = self.queues_of(key, devices);
        !queues.is_empty() && queues.iter().all(is_off)
    }

    fn queues_of(&self, key: ProcessKey, devices: &Devices) -> Vec<QueueView> {
        let task = self.roster.get(key).and_then(|member| Some(member.in_force?.task));
        let views = devices.scheduler().queues();
        task.map(|task| views.filter(|view| view.task == task).collect()).unwrap_or_default()
    }

    /// The process is off from now on, unless another request has changed its lease meanwhile.
    fn begin_lease(&mut self, pending: &PendingSuspension) {
        if let Some(member) = self.roster.get_mut(pending.key)
            && member.suspended_until_ns == Some(pending.until_ns)
        {
            member.suspended_until_ns = Some(monotonic_ns().saturating_add(pending.lease_ns));
        }
    }

    /// Tells log and followers that a process is suspended.
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
    /// Answers the clients whose suspensions are carried out, or never will be.
    pub(crate) fn settle_pending(&mut self) {
        for pending in std::mem::take(&mut self.clients.pending) {
            match self.judge_suspension(&pending) {
                None => self.clients.pending.push(pending),
                Some(Ok(())) => {
                    self.processes.begin_lease(&pending);
                    self.processes.announce_suspension(&pending, &mut self.telemetry);
                    self.reply(pending.asked, Reply::Ok);
                }
                Some(Err(error)) => {
                    let (processes, mut context) = self.processes_and_context();
                    processes.end_suspension(pending.key, &mut context);
                    self.telemetry.log.warn(&error);
                    let refusal = RequestError::from(error).to_wire();
                    self.reply(pending.asked, Reply::Refused(refusal));
                }
            }
        }
    }

    fn judge_suspension(&self, pending: &PendingSuspension) -> Option<Result<(), SuspendError>> {
        let key = pending.key;
        let Some(member) = self.processes.roster.get(key) else {
            return Some(Err(SuspendError::Ended(key)));
        };
        if let Some(why) = &member.obstacle {
            return Some(Err(SuspendError::Refused(key, why.clone())));
        }
        if !member.is_suspended() {
            return Some(Err(SuspendError::Resumed(key)));
        }
        let refusal = self.guard.ledger().refusal_of(key);
        let refusal = refusal.filter(|refusal| refusal.at >= pending.since);
        let queues = self.processes.queues_of(key, &self.devices);
        judge(key, &queues, pending.since.elapsed(), refusal)
    }

    /// Answers a request of an earlier turn, if its session is still there.
    pub(crate) fn reply(&mut self, asked: Asked, reply: Reply) {
        let sessions = &mut self.clients.sessions;
        let Some(session) = sessions.get_mut(asked.session) else { return };
        let sent = session.connection().send(asked.request, reply);
        sessions.sent(asked.session, sent, &self.poller, &mut self.telemetry.log);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpreempt_core::id::{DeviceId, QueueId, TaskId};
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
            totals: QueueTotals::default(),
        }
    }

    fn refusal(is_unwritten: bool) -> Option<ActRefusal> {
        let sentence = "no space".to_owned();
        Some(ActRefusal { at: Instant::now(), is_unwritten, sentence })
    }

    #[test]
    fn a_process_is_suspended_when_its_last_queue_is_off() {
        let [on, off] = [queue(RunState::On), queue(RunState::Off)];
        assert_eq!(judge(KEY, &[off, on], SOON, None), None);
        assert_eq!(judge(KEY, &[off, queue(RunState::Preempting)], SOON, None), None);
        assert_eq!(judge(KEY, &[off, off], SOON, refusal(true)), Some(Ok(())));
        assert_eq!(judge(KEY, &[], SOON, None), None, "its queues may be found later");
        assert_eq!(judge(KEY, &[], QUEUES_WAIT, None), Some(Ok(())));
    }

    #[test]
    fn what_cannot_be_written_fails_at_once_and_what_the_device_refuses_when_it_is_late() {
        let on = [queue(RunState::On)];
        let refused = Some(Err(SuspendError::Refused(KEY, "no space".to_owned())));
        assert_eq!(judge(KEY, &on, SOON, refusal(true)), refused);
        assert_eq!(judge(KEY, &on, SOON, refusal(false)), None);
        assert_eq!(judge(KEY, &on, OFF_MAX, refusal(false)), refused);
        assert_eq!(judge(KEY, &on, OFF_MAX, None), Some(Err(SuspendError::Late(KEY))));
        let refused = RequestError::from(SuspendError::Refused(KEY, "no space".to_owned()));
        assert_eq!(refused.to_string(), "process 7 was not suspended: no space");
    }
}
