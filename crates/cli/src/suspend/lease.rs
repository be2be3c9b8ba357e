//! A suspension through the daemon: a short lease that is renewed, so that it ends soon after this
//! command does, however that happens.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use gpreempt_wire::client::Client;
use gpreempt_wire::process::Process;
use gpreempt_wire::request::Request;
use gpreempt_wire::state::TaskState;

use super::{CHECK, say_resumed, say_stopped};
use crate::args::SuspendArgs;
use crate::daemon;
use crate::failure::Failure;
use crate::stop::Stop;

/// How long the process stays suspended if this command is killed.
pub(super) const LEASE: Duration = Duration::from_millis(900);
/// How old a lease is when it is renewed.
pub(super) const RENEW: Duration = Duration::from_millis(300);
/// How often it is looked whether somebody else resumed the process: before each renewal.
const LOOK: Duration = RENEW;

pub(super) fn main(mut client: Client, args: &SuspendArgs, pid: u32) -> Result<(), Failure> {
    let process = daemon::process(pid)?;
    let stop = Stop::on_signals()?;
    let begin = Instant::now();
    let until = args.time.map(|time| begin + time);
    let left = |now: Instant| until.map(|until| until.saturating_duration_since(now));
    let replaced = lease_of(&mut client, process)?;
    suspend(&mut client, process, left(begin))?;
    say_stopped(args, &pid.to_string(), replaced)?;
    let (mut renewed, mut looked) = (begin, begin);
    let mut is_suspended = true;
    while is_suspended && !stop.is_set() {
        let now = Instant::now();
        if left(now) == Some(Duration::ZERO) {
            break;
        }
        if now - looked >= LOOK {
            looked = now;
            is_suspended = look(&mut client, process)?;
        }
        // What somebody else resumed stays so.
        if is_suspended && now - renewed >= RENEW {
            renewed = now;
            suspend(&mut client, process, left(now))?;
        }
        std::thread::sleep(left(now).unwrap_or(CHECK).min(CHECK));
    }
    if is_suspended {
        let resumed = client.expect_ok(&Request::Resume { process });
        // The lease may be over by now, or the process: then there is nothing to resume.
        if let Err(error) = resumed
            && look(&mut client, process)?
        {
            return Err(daemon::failure(&error));
        }
    }
    say_resumed(args)
}

/// Takes the process off its devices for a lease, or for the rest of the time if that is shorter.
pub(super) fn suspend(
    client: &mut Client,
    process: Process,
    left: Option<Duration>,
) -> Result<(), Failure> {
    let time = left.unwrap_or(LEASE).min(LEASE);
    let lease_ms = u32::try_from(time.as_millis()).ok().and_then(NonZeroU32::new);
    let lease_ms = lease_ms.unwrap_or(NonZeroU32::MIN);
    daemon::tell(client, &Request::Suspend { process, lease_ms })
}

fn look(client: &mut Client, process: Process) -> Result<bool, Failure> {
    lease_of(client, process).map(|lease| lease.is_some())
}

/// How much is left of a suspension, if there is one.
fn lease_of(client: &mut Client, process: Process) -> Result<Option<Duration>, Failure> {
    let tasks = daemon::snapshot(client)?.tasks;
    let task = tasks.iter().find(|task| task.pid == process.pid());
    let suspended = task.filter(|task| task.state == TaskState::Suspended);
    Ok(suspended.map(|task| Duration::from_millis(task.lease_ms.unwrap_or_default())))
}
