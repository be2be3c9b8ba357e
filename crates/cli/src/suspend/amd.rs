//! A process off its AMD devices, without a daemon.
//!
//! Its queues are suspended in a session of this command, which the kernel ends with it. Where that
//! is not possible the whole process is paused, and the keeper knows.

use std::time::{Duration, Instant};

use gpreempt_device::act;
use gpreempt_device::amd::Site;
use gpreempt_device::amd::act::AmdAct;
use gpreempt_device::amd::suspension::{Suspension, SuspensionError};
use gpreempt_device::journal::{Act, Entry, Journal, Session};
use gpreempt_device::keeper::{self, Keeper};
use gpreempt_device::process::ProcessInfo;

use super::{CHECK, is_in, refuse_touched, say_resumed, say_stopped, stop_all, until_ns};
use crate::args::SuspendArgs;
use crate::failure::Failure;
use crate::stop::Stop;

pub(super) fn main(args: &SuspendArgs, pid: u32, site: &Site) -> Result<(), Failure> {
    let journal = Journal::open().map_err(Failure::run)?;
    let lock = journal.lock().map_err(Failure::run)?;
    // What was left behind has to be undone before we look at anything.
    keeper::clean_up(&journal, act::undo).map_err(Failure::run)?;
    let process = ProcessInfo::read(pid).map_err(Failure::input)?;
    refuse_touched(&journal, process.key)?;
    let stop = Stop::on_signals()?;
    let session = journal.begin().map_err(Failure::run)?;
    let mut keeper = Keeper::start(&session).map_err(Failure::run)?;
    let begun = begin(site, &process);
    let (mut suspension, act) = match begun {
        Ok(begun) => begun,
        Err(failure) => {
            drop(lock);
            return Err(failure);
        }
    };
    let entry = Entry { process: process.key, acts: vec![act], until_ns: until_ns(args) };
    let stopped = stop_all(&session, &entry);
    drop(lock);
    let result = stopped.and_then(|()| {
        say_stopped(args, &format!("{pid} ({})", process.name), None)?;
        wait(args, &session, &entry, suspension.as_mut(), &mut keeper, &stop)
    });
    let ended = suspension.map_or(Ok(()), Suspension::end).map_err(Failure::run);
    // Somebody may have resumed it from elsewhere: then the journal no longer has it. A keeper that
    // is gone may have undone things before we did the last of them.
    if is_in(&session) || keeper.has_died() {
        act::undo(&entry).map_err(Failure::run)?;
        session.forget(entry.process).map_err(Failure::run)?;
    }
    drop(keeper);
    result?;
    ended?;
    say_resumed(args)
}

/// Suspends the queues, or says that the whole process is to be paused.
fn begin(site: &Site, process: &ProcessInfo) -> Result<(Option<Suspension>, Act), Failure> {
    match Suspension::begin(site, process.key) {
        Ok(suspension) => {
            Ok((Some(suspension), AmdAct::Suspend { site: site.name.clone() }.into()))
        }
        Err(error) if error.allows_pause() => {
            note(&error);
            Ok((None, AmdAct::Pause { site: site.name.clone() }.into()))
        }
        Err(error) => Err(Failure::input(error)),
    }
}

fn note(error: &SuspensionError) {
    use std::io::Write;
    let _ =
        writeln!(std::io::stderr(), "gpreempt: note: {error}; so the process is paused as a whole");
}

/// Waits until it is over. What the process makes meanwhile is suspended as well.
fn wait(
    args: &SuspendArgs,
    session: &Session,
    entry: &Entry,
    mut suspension: Option<&mut Suspension>,
    keeper: &mut Keeper,
    stop: &Stop,
) -> Result<(), Failure> {
    let until = args.time.map(|time| Instant::now() + time);
    while is_in(session) && entry.process.check().is_ok() && !stop.is_set() && !keeper.has_died() {
        keeper.beat();
        if let Some(suspension) = suspension.as_mut()
            && !suspension.keep(None).map_err(Failure::run)?
        {
            break;
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        match left {
            Some(Duration::ZERO) => break,
            Some(left) => std::thread::sleep(left.min(CHECK)),
            None => std::thread::sleep(CHECK),
        }
    }
    Ok(())
}
