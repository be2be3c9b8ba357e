//! Attacks whose outcome is a state: who is stopped, at which priority, and who can start.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use gpreempt_stage::{Process, until};

use super::{ATTACKER, ATTACKERS, Comparison, Readings, Report, Target, measure, measured};

/// Longer than anything here may wait for a process of another user.
const WAIT_MAX: Duration = Duration::from_secs(5);

fn report(problems: Vec<String>) -> Report {
    Report { problems, readings: None }
}

/// Runs a command of `gpreempt` as a user, with a limit. Its exit code, none if it was killed at
/// the limit; what it printed; how long it took.
fn gpreempt(
    target: &Target,
    uid: u32,
    arguments: &[&str],
) -> anyhow::Result<(Option<i32>, String, Duration)> {
    let mut command = Command::new(public_program(target, "gpreempt")?);
    target.stage.clean(&mut command);
    command.args(arguments).uid(uid).gid(uid);
    let begin = Instant::now();
    let mut process = target.stage.start("gpreempt", command)?;
    let code = match process.wait(WAIT_MAX) {
        Ok(ended) => ended.status.code(),
        Err(_) => None,
    };
    let said = format!("{}{}", process.out(), process.err());
    Ok((code, said, begin.elapsed()))
}

/// A copy of a program that every user can execute.
fn public_program(target: &Target, name: &str) -> anyhow::Result<std::path::PathBuf> {
    let copy = target.stage.path(name);
    if !copy.exists() {
        fs::copy(target.stage.program(name)?, &copy)?;
    }
    Ok(copy)
}

/// A load that belongs to the attacker, as a process of `gpreempt-load`.
fn own_load(target: &Target, variables: &[(&str, &str)]) -> anyhow::Result<Process> {
    let mut command = Command::new(public_program(target, "gpreempt-load")?);
    target.stage.clean(&mut command);
    target.emulator.spec().add_load(&mut command, "be --kernel-us 1000 --seconds 120");
    command.uid(ATTACKER).gid(ATTACKER).envs(variables.iter().copied());
    let mut process = target.stage.start("the attacker's load", command)?;
    let ready = |out: &str| out.contains("ready").then_some(());
    process.wait_for_output("that it is ready", WAIT_MAX, ready)?;
    let pid = process.pid();
    until("the daemon schedules it", || target.daemon.task(pid).is_some());
    Ok(process)
}

fn priority(target: &Target, pid: u32) -> Option<u8> {
    let task = target.daemon.task(pid)?;
    let task = serde_json::to_value(&task).ok()?;
    task["priority"].as_u64().and_then(|priority| u8::try_from(priority).ok())
}

/// What an administrator decided binds the owner of a process.
pub(super) fn rules() -> anyhow::Result<Report> {
    let config = "[[rule]]
name = \"batch\"
executable = \"*/gpreempt-load\"
user = 61001
priority = 1
latency_budget = \"20%\"
trust_env = false
";
    let target = Target::start(config)?;
    let mut problems = Vec::new();
    let load = own_load(&target, &[("GPREEMPT_PRIORITY", "7")])?;
    let pid = load.pid().to_string();
    if priority(&target, load.pid()) != Some(1) {
        problems.push("the rule with priority 1 does not apply".to_owned());
    }
    for arguments in [["set", &pid, "-p", "7"].as_slice(), &["detach", &pid]] {
        let _ = gpreempt(&target, ATTACKER, arguments)?;
        if priority(&target, load.pid()).is_none_or(|priority| priority > 1) {
            problems.push(format!("the owner undid the rule with `gpreempt {}`", arguments[0]));
        }
    }
    problems.extend(overruled(&target, load.pid(), 1)?);
    gpreempt(&target, 0, &["set", &pid, "-p", "0"])?;
    let _ = gpreempt(&target, ATTACKER, &["set", &pid, "-p", "1"])?;
    if priority(&target, load.pid()) != Some(0) {
        problems.push("the owner raised a process that root had lowered".to_owned());
    }
    let mut root = target.daemon.connect();
    suspend(&mut root, load.pid())?;
    until("root's suspension is in force", || target.emulator.is_stopped(load.pid()));
    for arguments in [["resume", &pid].as_slice(), &["resume", "--all"]] {
        let _ = gpreempt(&target, ATTACKER, arguments)?;
    }
    problems.extend(overruled(&target, load.pid(), 0)?);
    std::thread::sleep(Duration::from_millis(300));
    if !target.emulator.is_stopped(load.pid()) {
        problems.push("the owner ended root's suspension".to_owned());
    }
    drop(load);
    problems.extend(target.aftermath()?);
    Ok(report(problems))
}

/// Has the owner try every request that would overrule a decision. What was accepted, and whether
/// the process has another priority than decided.
fn overruled(target: &Target, pid: u32, decided: u8) -> anyhow::Result<Vec<String>> {
    let mut owner = target.attacker("overrule", &[&pid.to_string()])?;
    let ended = owner.wait(WAIT_MAX)?;
    anyhow::ensure!(ended.out.ends_with("done\n"), "the attacker failed: {}", ended.err);
    let accepted = ended.out.lines().filter(|line| *line != "done");
    let mut problems: Vec<String> =
        accepted.map(|request| format!("accepted from the owner: {request}")).collect();
    let found = priority(target, pid);
    if found != Some(decided) {
        problems.push(format!("the priority is {found:?}, and {decided} was decided"));
    }
    Ok(problems)
}

fn suspend(client: &mut gpreempt_wire::client::Client, pid: u32) -> anyhow::Result<()> {
    let process = gpreempt_wire::process::Process::new(pid, 0).context("a pid")?;
    let lease_ms = std::num::NonZeroU32::new(60_000).context("a lease")?;
    let request = gpreempt_wire::request::Request::Suspend { process, lease_ms };
    Ok(client.expect_ok(&request)?)
}

/// Locks of the service can be taken by nobody else, and an undo does not wait for them.
pub(super) fn locks() -> anyhow::Result<Report> {
    let mut target = Target::start("")?;
    let mut problems = Vec::new();
    let mut paths = Vec::new();
    find_files(target.stage.root(), &mut paths)?;
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let attacker = target.attacker("locks", &paths)?;
    std::thread::sleep(Duration::from_millis(300));
    // A suspension with a short lease ends although the daemon is gone.
    let victim = target.best_effort.pid();
    let pid = victim.to_string();
    let mut command = Command::new(public_program(&target, "gpreempt")?);
    target.stage.clean(&mut command);
    command.args(["suspend", &pid, "--for", "2s"]);
    let suspender = target.stage.start("suspend", command)?;
    until("the victim is suspended", || target.emulator.is_stopped(victim));
    target.daemon.kill()?;
    let begin = Instant::now();
    while target.emulator.is_stopped(victim) && begin.elapsed() < WAIT_MAX {
        std::thread::sleep(Duration::from_millis(20));
    }
    if target.emulator.is_stopped(victim) {
        problems.push("a suspended process is still stopped 5 s after the daemon died".to_owned());
    }
    drop(suspender);
    let (code, said, _) = gpreempt(&target, 0, &["resume", "--all"])?;
    if code.is_none() {
        problems.push(format!("root's `gpreempt resume --all` hangs; it printed {said:?}"));
    }
    let mut daemon = target.stage.daemon().emulator(target.emulator.spec()).spawn()?;
    let begin = Instant::now();
    while !daemon.log().iter().any(|line| line.contains("ready at")) {
        if begin.elapsed() > WAIT_MAX {
            problems.push("the daemon cannot start again while the attacker runs".to_owned());
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    for line in attacker.out().lines().filter(|line| line.ends_with(": true")) {
        problems.push(format!("an ordinary user locked {line}"));
    }
    drop(attacker);
    let _ = daemon.process().kill();
    Ok(report(problems))
}

fn find_files(folder: &std::path::Path, paths: &mut Vec<String>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            find_files(&entry.path(), paths)?;
        } else if entry.file_name().to_string_lossy().contains("lock") {
            paths.push(entry.path().display().to_string());
        }
    }
    Ok(())
}

/// The metrics page answers every request while another user keeps connections to it open, or has
/// many viewers of the live page at the same address.
pub(super) fn metrics(kind: &str) -> anyhow::Result<Report> {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    let address = format!("127.0.0.1:{port}");
    let target = Target::start(&format!("[metrics]\nlisten = \"{address}\"\n"))?;
    scrape(&address).context("before the attack")?;
    let calm = Readings::during(&target)?;
    let attackers: Vec<Process> = (0..ATTACKERS)
        .map(|number| target.attacker(kind, &[&address, &number.to_string()]))
        .collect::<anyhow::Result<_>>()?;
    let is_over = AtomicBool::new(false);
    // ORDERING: the flag alone is read; the thread is joined before anything else is.
    let (readings, scraped) = std::thread::scope(|scope| {
        // A scraper that waits for a processor between its connection and its request is taken for
        // an idle one, of which the oldest is closed.
        let scraper = scope.spawn(|| {
            measure::this_thread_as_hardware()?;
            anyhow::Ok(scrapes(&address, || is_over.load(Ordering::Relaxed)))
        });
        let readings = Readings::during(&target);
        is_over.store(true, Ordering::Relaxed);
        (readings, scraper.join())
    });
    drop(attackers);
    let mut readings = Comparison::new(calm, readings?);
    readings.memory_kib_after = target.memory_kib()?;
    let mut problems = readings.problems();
    let (count, failed) = scraped.map_err(|_| anyhow::anyhow!("the scraper failed"))??;
    if let Some(error) = failed.first() {
        let failed = failed.len();
        problems.push(format!("{failed} of {count} requests for the metrics failed: {error}"));
    }
    problems.extend(target.aftermath()?);
    Ok(Report { problems, readings: Some(readings) })
}

/// Reads the metrics ten times a second. How often, and why it failed each time that it did.
fn scrapes(address: &str, is_over: impl Fn() -> bool) -> (u32, Vec<String>) {
    let (mut count, mut failed) = (0, Vec::new());
    while !is_over() {
        count += 1;
        failed.extend(scrape(address).err().map(|error| error.to_string()));
        std::thread::sleep(Duration::from_millis(100));
    }
    (count, failed)
}

fn scrape(address: &str) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    anyhow::ensure!(text.starts_with("HTTP/1.1 200"), "answered {:?}", text.lines().next());
    Ok(())
}

/// Rules with many stars against a long command line.
pub(super) fn patterns() -> anyhow::Result<Report> {
    use std::fmt::Write as _;
    let mut config = String::new();
    for number in 0..900 {
        let pattern = format!("*a*a*a*a*a*a*a*a*b{number}");
        write!(config, "[[rule]]\nname = \"r{number}\"\ncommand = \"{pattern}\"\npriority = 1\n")?;
    }
    measured(Target::start(&config)?, "patterns", ATTACKERS)
}
