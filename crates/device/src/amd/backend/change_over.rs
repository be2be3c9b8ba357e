//! A patched KFD that loses its calls, or its list of queues, or gets them back.
//!
//! Without the calls every process has a session again, and with them all are in the fleet. Nobody
//! has a process before whoever had it has put it back as it was and said so. So it does not
//! matter how often the calls come and go meanwhile: what counts is how it stands then.

use gpreempt_core::id::{QueueId, TaskId};

use super::{Adopted, AmdBackend};
use crate::amd::own_calls::OwnCalls;
use crate::controller::{Limit, Note};

/// What is said while the calls are gone.
const LOST: &str = "AMD: the calls of the patched KFD are refused; processes are controlled by the \
                    debugger's interface until they are there again";

impl AmdBackend {
    /// It stands like that with the calls now.
    pub(super) fn set_own_calls(&mut self, own_calls: OwnCalls) {
        self.site.own_calls = own_calls;
        self.ways = [false, true].map(|schedules| self.site.way_if(schedules));
        let is_usable = own_calls == OwnCalls::Usable;
        let lost = LOST.to_owned();
        self.notes.push_back(if is_usable { Note::Solved(lost) } else { Note::Problem(lost) });
        let tasks: Vec<TaskId> = self.tasks.keys().copied().collect();
        tasks.into_iter().for_each(|task| self.change_over(task));
        self.judge_costs();
    }

    /// Has a process let go of, if it is not controlled as it should be.
    fn change_over(&mut self, task: TaskId) {
        let is_usable = self.site.own_calls == OwnCalls::Usable;
        let Some(adopted) = self.tasks.get_mut(&task) else { return };
        if adopted.is_moving || adopted.in_fleet == is_usable {
            return;
        }
        if adopted.in_fleet {
            adopted.in_fleet = false;
            self.leave_fleet(task);
        } else if let Some(worker) = &mut adopted.worker {
            worker.end();
        } else {
            // It does not use KFD yet.
            return;
        }
        let Some(adopted) = self.tasks.get_mut(&task) else { return };
        (adopted.is_moving, adopted.limit) = (true, None);
        let own = self.queues.iter().filter(|(_, target)| target.task == task);
        let gone: Vec<QueueId> = own.map(|(queue, _)| *queue).collect();
        self.forget(&gone);
        self.aim_reader(task);
    }

    /// The list of all queues is gone, or there again.
    pub(super) fn set_unlisted(&mut self, sentence: Option<String>) {
        let before = std::mem::replace(&mut self.unlisted, sentence.clone());
        self.notes.extend(before.map(Note::Solved));
        self.notes.extend(sentence.map(Note::Problem));
    }

    /// What is said of a process meanwhile.
    pub(super) fn unlisted_limit(&self, adopted: &Adopted) -> Option<Limit> {
        let sentence = self.unlisted.clone().filter(|_| adopted.in_fleet)?;
        Some(Limit { sentence, is_beyond: false })
    }
}
