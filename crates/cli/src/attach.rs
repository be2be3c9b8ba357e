//! `gpreempt attach`: priorities for processes that already run, without a daemon.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gpreempt_core::config::Config;
use gpreempt_core::driver::Driver;
use gpreempt_core::event::Event;
use gpreempt_core::id::TaskId;
use gpreempt_core::priority::{Class, Priority};
use gpreempt_core::time::Instant;
use gpreempt_device::journal::Journal;
use gpreempt_device::keeper::{self, Keeper, monotonic_ns};
use gpreempt_device::nvidia::act;
use gpreempt_device::nvidia::backend::NvidiaBackend;
use gpreempt_device::nvidia::survey::{GpuProcess, look};

use crate::args::AttachArgs;
use crate::failure::Failure;
use crate::output;
use crate::suspend::writable_driver;

/// How long the loop sleeps at the most, so that signals and ended processes are noticed.
const SLEEP_MAX: Duration = Duration::from_millis(20);

pub(crate) fn main(args: &AttachArgs) -> Result<(), Failure> {
    writable_driver()?;
    let mut targets = Vec::new();
    for &(pid, own) in &args.processes {
        let process = look(pid).map_err(Failure::input)?;
        if let Err(problem) = &process.clients {
            return Err(Failure::input(problem));
        }
        // PANIC: the arguments allow 0 to 15 only.
        let priority = Priority::new(own.unwrap_or(args.priority)).expect("a priority");
        targets.push((process, priority));
    }
    if args.dry_run {
        return output::print(&plan(&targets));
    }
    let journal = Journal::open().map_err(Failure::run)?;
    keeper::clean_up(&journal, &mut act::undo).map_err(Failure::run)?;
    refuse_rivals(&journal, &targets)?;
    let session = journal.begin().map_err(Failure::run)?;
    let mut keeper = Keeper::start(&session).map_err(Failure::run)?;
    let mut backend = NvidiaBackend::new(session);
    let mut tasks = Vec::new();
    for (process, priority) in &targets {
        tasks.push((backend.attach(process, *priority).map_err(Failure::input)?, process.info.key));
    }
    if let Some(others) = others(&targets) {
        backend.attach_others(others);
    }
    output::print(&format!("attached {} until Ctrl-C\n", tasks.len()))?;
    let result = run(args, &mut keeper, &mut backend, tasks);
    backend.detach_all().map_err(Failure::run)?;
    result?;
    output::print("everything is as it was\n")
}

/// Refuses to attach beside another session. Two that do not know of each other would each leave
/// one low process runnable with the shortest slice, and those two starve each other (measured: no
/// progress at all); and what one changes the other would take for the original.
fn refuse_rivals(journal: &Journal, targets: &[(GpuProcess, Priority)]) -> Result<(), Failure> {
    for session in journal.sessions().map_err(Failure::run)? {
        for entry in session.entries().unwrap_or_default() {
            let rival = entry.process;
            if rival.check().is_err() {
                continue;
            }
            let same = targets.iter().any(|(process, _)| process.info.key == rival);
            let problem =
                if same { "is attached already" } else { "is attached by another command" };
            return Err(Failure::input(format_args!(
                "process {rival} {problem}; end that command first, or attach all processes in one"
            )));
        }
    }
    Ok(())
}

/// The loop: the same that the simulator runs.
fn run(
    args: &AttachArgs,
    keeper: &mut Keeper,
    backend: &mut NvidiaBackend,
    mut tasks: Vec<(TaskId, gpreempt_device::process::ProcessKey)>,
) -> Result<(), Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(Failure::run)?;
    }
    let mut driver = Driver::new(Config::default()).map_err(Failure::run)?;
    let until = args.time.map(|time| std::time::Instant::now() + time);
    while !stop.load(Ordering::Relaxed) && !tasks.is_empty() {
        if until.is_some_and(|until| std::time::Instant::now() >= until) {
            break;
        }
        if keeper.has_died() {
            return Err(Failure::run("the keeper was killed; everything was undone"));
        }
        let now = Instant::from_nanos(monotonic_ns());
        tasks.retain(|(task, key)| {
            let alive = key.check().is_ok();
            if !alive {
                // An unknown task is one that was never announced; there is nothing to forget.
                let _ = driver.tell(now, Event::TaskVanished { task: *task });
            }
            alive
        });
        let wait = driver.step(now, backend);
        std::thread::sleep(Duration::from_nanos(wait.as_nanos()).min(SLEEP_MAX));
    }
    Ok(())
}

/// Whom the attached processes are compared with where all of them are of one class: everybody
/// else on the GPU, who is not touched.
fn others(targets: &[(GpuProcess, Priority)]) -> Option<Priority> {
    let of = |class: Class| targets.iter().any(|(_, priority)| priority.class() == class);
    match (of(Class::Low), of(Class::High)) {
        (true, false) => Priority::new(8),
        (false, true) => Priority::new(7),
        _ => None,
    }
}

fn plan(targets: &[(GpuProcess, Priority)]) -> String {
    let mut text = String::new();
    for (process, priority) in targets {
        let slice = match priority.class() {
            Class::Low => "1 us; stopped while another low one has its turn",
            Class::High => "1 s, or 5 ms beside another high one",
        };
        let (pid, name) = (process.info.key.pid, &process.info.name);
        text.push_str(&format!("{pid} ({name}): priority {priority}, slice {slice}\n"));
        for client in process.clients.as_deref().unwrap_or_default() {
            for device in &client.devices {
                let uuid = device.uuid.as_deref().unwrap_or("unknown GPU");
                let groups = device.groups.len();
                text.push_str(&format!(
                    "  {uuid}: {groups} groups of client {:#x}\n",
                    client.handle
                ));
            }
        }
    }
    text.push_str("nothing was changed\n");
    text
}
