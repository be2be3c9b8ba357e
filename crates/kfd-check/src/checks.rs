//! Everything that is checked, in order.

mod backend;
mod death;
mod door;
mod handshake;
mod machine_log;
mod permission;
mod probe;
mod refusal;
mod session;

use crate::machine::Machine;
use crate::verdict::Verdict;

/// One thing to find out.
#[derive(Clone, Copy)]
pub(crate) struct Check {
    /// A few words with dashes.
    pub(crate) name: &'static str,
    /// Finds it out.
    pub(crate) run: fn(&Machine) -> Verdict,
}

const fn check(name: &'static str, run: fn(&Machine) -> Verdict) -> Check {
    Check { name, run }
}

/// On every kernel.
const ALWAYS: &[Check] = &[
    check("version", door::version),
    check("borrowed-file-is-useless", door::borrowed),
    check("inherited-file-is-useless", door::inherited),
    check("unknown-calls-are-refused", door::unknown_calls),
    check("pause-needs-a-tracer", door::pause_needs_a_tracer),
    check("pause-needs-rights", door::pause_needs_rights),
    check("pause-by-the-journal", door::pause_by_the_journal),
    check("no-queue-without-a-device", door::no_queue_without_a_device),
    check("findings", probe::findings),
    check("findings-of-a-user", probe::findings_of_a_user),
    check("debugfs-not-mounted", probe::debugfs_not_mounted),
    check("debugfs-mounted", probe::debugfs_mounted),
];

/// Where there are sessions.
const SESSIONS: &[Check] = &[
    check("attach-without-stopping", session::attach),
    check("calls-from-any-thread", session::any_thread),
    check("unknown-queues-are-marked", session::unknown_queues),
    check("no-calls-without-a-session", session::without_a_session),
    check("no-suspending-without-a-runtime", session::without_a_runtime),
    check("one-session-at-a-time", session::twice),
    check("another-debugger-is-named", session::another_debugger),
    check("a-tracer-is-named", session::another_tracer),
    check("a-refused-debugger-does-no-harm", session::refused_debugger),
    check("bad-file-for-events", session::bad_file),
    check("a-process-debugs-itself", session::itself),
    check("nobody-to-attach-to", session::nobody),
    check("the-kernel-waits-for-an-answer", handshake::the_kernel_waits),
    check("start-and-exit-under-a-session", handshake::start_and_exit),
    check("restarts-under-a-session", handshake::restarts),
    check("start-beside-a-deaf-debugger", handshake::deaf),
    check("killed-between-question-and-answer", handshake::killed_in_between),
    check("killed-while-the-target-restarts", handshake::killed_while_restarting),
    check("the-next-debugger-frees-who-waits", handshake::next_frees),
    check("death-ends-the-session", death::of_the_debugger),
    check("death-at-any-moment", death::at_any_moment),
    check("target-dies", death::of_the_target),
    check("target-dies-mid-call", death::mid_call),
    check("target-leaves", death::target_leaves),
    check("backend-adopts-and-releases", backend::adopts),
    check("backend-sees-the-end", backend::sees_the_end),
    check("user-controls-own-process", permission::own_process),
    check("user-is-kept-from-others", permission::processes_of_others),
    check("yama-1", permission::yama_1),
    check("yama-2", permission::yama_2),
];

/// Where there are none.
const REFUSALS: &[Check] = &[
    check("attach-is-refused", refusal::attach),
    check("runtime-is-refused", refusal::runtime),
    check("backend-says-why", backend::says_why),
];

/// After everything else: what cannot be changed back, and what is left.
const LAST: &[Check] =
    &[check("yama-3", permission::yama_3), check("kernel-log", machine_log::is_clean)];

/// All that are for this machine.
pub(crate) fn of(machine: &Machine) -> Vec<Check> {
    let middle = if machine.has_sessions() { SESSIONS } else { REFUSALS };
    [ALWAYS, middle, LAST].concat()
}
