//! One measurement on a GPU: a round of the load processes under a mode.

use std::collections::BTreeSet;
use std::time::Duration;

use gpreempt_core::time::Duration as Deadline;
use gpreempt_device::keeper::monotonic_ns;

use super::Nvidia;
use super::apply_mode::{AppliedMode, GpuState, set_priorities, start_daemon};
use super::call_costs;
use super::host_jitter::JitterProbe;
use super::load_group::LoadGroup;
use super::load_process::{LoadProcess, of_role};
use super::mode::{Mode, be_alone_seconds};
use super::preemption_times::PreemptionTimes;
use super::request_waits::{self, HoldRecords, WaitingRequest};
use crate::daemon_process::DaemonProcess;
use crate::engine::{BE_ALONE, LC_BUSY, PARTS, busy_part};
use crate::lines::{self, Quantiles};
use crate::plan::Step;
use crate::results::{
    BeResult, Distribution, HostNoise, LcResult, LoadResult, Measurement, Number, RequestWaits,
    Role, SlowRequest,
};
use crate::round::Round;

/// How long before its beginning a round is ordered, so that every load has the order in time.
const LEAD: Duration = Duration::from_millis(30);
/// How long best-effort loads run before the first request.
const HEAD_START: Duration = Duration::from_millis(200);
/// The runner ends best-effort loads; without that order they end this much later.
const MARGIN_SECONDS: u64 = 25;
/// How often a wait checks for the end of the runner.
const POLL: Duration = Duration::from_millis(20);

/// Runs a measurement. An error ends all processes; the next measurement starts them again.
pub(super) fn measure(
    nvidia: &mut Nvidia,
    step: &Step<'_>,
    mode: Mode,
) -> Result<Measurement, String> {
    let levels = step.case.loads.iter().map(|load| load.priority.level());
    if mode == Mode::Hints && levels.collect::<BTreeSet<_>>().len() < 2 {
        // The daemon would count the MPS clients as other processes beside the only class.
        nvidia.dismiss_mps();
    }
    let mut group = nvidia.group(step, mode.family())?;
    let measured = in_rounds(nvidia, step, mode, &mut group)?;
    nvidia.keep(group);
    Ok(measured)
}

fn in_rounds(
    nvidia: &Nvidia,
    step: &Step<'_>,
    mode: Mode,
    group: &mut LoadGroup,
) -> Result<Measurement, String> {
    let seconds = step.case.real.length(step.is_short).as_nanos() / 1_000_000_000;
    if mode != Mode::Alone {
        return together(nvidia, step, mode, group, None, seconds);
    }
    let has = |role: Role| step.case.of(role).next().is_some();
    let mut measured = Measurement::default();
    if has(Role::Lc) {
        measured = together(nvidia, step, mode, group, Some(Role::Lc), seconds)?;
    }
    if has(Role::Be) {
        let seconds = be_alone_seconds(step);
        let be = together(nvidia, step, mode, group, Some(Role::Be), seconds)?;
        if !has(Role::Lc) {
            measured.numbers.extend(be.numbers.into_iter().filter(HostNoise::has));
        }
        let rate = be.be.map_or(0.0, |be| be.per_second);
        let title = "best-effort work alone on the GPU";
        measured.numbers.push(Number::new(BE_ALONE, title, "1/s", rate));
    }
    Ok(measured)
}

/// Runs all loads, or those of one role, at the same time.
fn together(
    nvidia: &Nvidia,
    step: &Step<'_>,
    mode: Mode,
    group: &mut LoadGroup,
    only: Option<Role>,
    seconds: u64,
) -> Result<Measurement, String> {
    let policy = step.case.policy;
    let is_changed = mode.changes_processes() || step.case.controlled;
    // Before the daemon starts: it changes processes at once.
    let before = is_changed.then(|| GpuState::read(pids(group, only))).transpose()?;
    let mut round = group.next_round(seconds, step.seed);
    let start = || start_daemon(nvidia, &group.folder, round.round, policy);
    let daemon = (mode == Mode::Hints).then(start).transpose()?;
    round.hints = daemon.as_ref().map(|daemon| daemon.socket.clone());
    for process in group.members(only) {
        let is_be = process.load.role == Role::Be;
        let seconds = if is_be { seconds + MARGIN_SECONDS } else { seconds };
        process.prepare(&Round { seconds, ..round.clone() })?;
    }
    group.members(only).try_for_each(|process| process.wait_until_prepared(nvidia))?;
    if let Some(daemon) = &daemon {
        set_priorities(daemon, nvidia, &group.loads)?;
    }
    let applied = AppliedMode::start(nvidia, mode, policy, &group.loads, &group.folder)?;
    let jitter = JitterProbe::start();
    let window = perform(nvidia, group, only, &round, seconds)?;
    let machine = jitter.end().numbers(window);
    let calls = if step.case.controlled { calls(nvidia, &group.loads)? } else { Vec::new() };
    let applied = applied.end();
    let scheduled = daemon.map_or(Ok(()), DaemonProcess::end);
    let mut be: Vec<&mut LoadProcess> =
        group.members(only).filter(|process| process.load.role == Role::Be).collect();
    be.iter_mut().try_for_each(|process| process.end(round.round))?;
    be.iter_mut().try_for_each(|process| process.wait_until_over(nvidia, 0).map(drop))?;
    scheduled?;
    let (holds, records) = applied?;
    if let Some(before) = &before {
        GpuState::read(pids(group, only))?.check_restored(before)?;
    }
    let (mut measured, samples) = read(group.members(only), window, &records)?;
    let waits = request_waits::numbers(samples.iter().filter_map(Sample::waiting).collect());
    measured.numbers.extend(calls.into_iter().chain(holds).chain(waits).chain(machine));
    if only == Some(Role::Lc) {
        measured.numbers.push(busy(&samples, window));
    }
    if step.case.probed && mode != Mode::Alone {
        let moments = PreemptionTimes::read(&group.loads);
        measured.numbers.extend(moments.numbers());
        measured.time_line = moments.time_line();
    }
    Ok(measured)
}

fn pids(group: &mut LoadGroup, only: Option<Role>) -> Vec<u32> {
    group.members(only).map(|process| process.child.pid()).collect()
}

/// The costs of calls that control a busy process, and of holds for an idle one.
fn calls(nvidia: &Nvidia, loads: &[LoadProcess]) -> Result<Vec<Number>, String> {
    let of =
        |role: Role| of_role(loads, role).map(|process| process.child.pid()).collect::<Vec<_>>();
    let (lc, be) = (of(Role::Lc), of(Role::Be));
    let mut numbers = Vec::new();
    if let Some(busy) = be.first() {
        numbers.extend(call_costs::control_numbers(*busy, &nvidia.stop)?);
    }
    if let Some(holder) = lc.first() {
        numbers.extend(call_costs::hold_numbers(*holder, &be, &nvidia.stop)?);
    }
    Ok(numbers)
}

/// Runs a round until its requests are done. Returns the window that counts; best-effort loads
/// continue.
fn perform(
    nvidia: &Nvidia,
    group: &mut LoadGroup,
    only: Option<Role>,
    round: &Round,
    seconds: u64,
) -> Result<(u64, u64), String> {
    let begin = monotonic_ns() + nanos(LEAD);
    let has_be = group.members(only).any(|process| process.load.role == Role::Be);
    let lc_begin = if has_be { begin + nanos(HEAD_START) } else { begin };
    for process in group.members(only) {
        let at_ns = if process.load.role == Role::Be { begin } else { lc_begin };
        process.begin(round.round, at_ns)?;
    }
    let mut window = (lc_begin, u64::MAX);
    for process in group.members(only).filter(|process| process.load.role == Role::Lc) {
        let last = process.wait_until_over(nvidia, seconds)?;
        window = (window.0.max(last.from_ns), window.1.min(last.until_ns));
    }
    if window.1 == u64::MAX {
        window.1 = lc_begin + seconds * 1_000_000_000;
        wait_until(nvidia, window.1)?;
    }
    Ok(window)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn wait_until(nvidia: &Nvidia, end_ns: u64) -> Result<(), String> {
    while monotonic_ns() < end_ns {
        if nvidia.is_stopped() {
            return Err("stopped".to_owned());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// The results of all processes in a window of time.
fn read<'c>(
    loads: impl Iterator<Item = &'c mut LoadProcess>,
    window: (u64, u64),
    records: &HoldRecords,
) -> Result<(Measurement, Vec<Sample>), String> {
    let mut measured = Measurement::default();
    let mut all: Vec<Sample> = Vec::new();
    let (mut missed, mut total) = (None::<u64>, None::<BeResult>);
    for process in loads {
        let (lc, be) = match process.load.role {
            Role::Lc => {
                // Several servers of a case are equal: the first one stands for all.
                if measured.numbers.is_empty() {
                    let last = lines::last(&process.child.output()).unwrap_or_default();
                    measured.numbers = last.parts_us.iter().flat_map(part_numbers).collect();
                }
                let mut samples = read_samples(&process.requests()?);
                if !records.is_empty() {
                    samples.iter_mut().for_each(|sample| sample.join(records, process.child.pid()));
                }
                let lc = requests_result(&samples, process.load.deadline, window.0);
                missed = lc
                    .as_ref()
                    .and_then(|lc| lc.missed)
                    .map(|late| late + missed.unwrap_or(0))
                    .or(missed);
                all.extend(samples);
                (lc, None)
            }
            Role::Be => {
                let be = best_effort(process, window)?;
                total = Some(sum(total, &be));
                (None, Some(be))
            }
        };
        let (name, role) = (process.load.name.clone(), process.load.role);
        measured.loads.push(LoadResult { name, role, lc, be });
    }
    measured.lc = requests_result(&all, None, window.0);
    if let Some(lc) = &mut measured.lc {
        lc.missed = missed;
    }
    measured.be = total;
    Ok((measured, all))
}

/// The times of one part of the requests.
fn part_numbers((part, times): (&String, &Quantiles)) -> Vec<Number> {
    let title =
        PARTS.iter().find(|(name, _)| name == part).map_or(part.as_str(), |(_, title)| title);
    [("p50", times.p50), ("p99", times.p99)]
        .map(|(name, us)| {
            Number::new(&format!("{part}_{name}"), &format!("{title}: {name}"), "ns", us * 1e3)
        })
        .to_vec()
}

fn best_effort(process: &LoadProcess, window: (u64, u64)) -> Result<BeResult, String> {
    let said = process.child.output();
    let (done, seconds) = lines::done(&said, window.0, window.1);
    let last = lines::last(&said).unwrap_or_default();
    if seconds <= 0.0 {
        return Err(process.child.failure("printed no rate during the measurement"));
    }
    let unit = if last.unit.is_empty() { "kernels" } else { &last.unit };
    let exact = last.exactness.map(|exactness| exactness.result == "pass");
    Ok(BeResult::new(done, unit, seconds, exact))
}

fn sum(total: Option<BeResult>, more: &BeResult) -> BeResult {
    let Some(total) = total else { return more.clone() };
    let exact = match (total.exact, more.exact) {
        (Some(one), Some(other)) => Some(one && other),
        (one, other) => one.or(other),
    };
    BeResult {
        done: total.done + more.done,
        per_second: total.per_second + more.per_second,
        exact,
        ..total
    }
}

/// The part of the time in which requests run.
fn busy(samples: &[Sample], window: (u64, u64)) -> Number {
    let served = samples.iter().filter(|sample| sample.is_served);
    let times = served.map(|sample| (sample.begin_ns, sample.end_ns)).collect();
    let part = busy_part(times, window.1.saturating_sub(window.0));
    let title = "part of the time in which requests run, alone on the GPU";
    Number::new(LC_BUSY, title, "1", part)
}

/// One request of a load, as it wrote it to its file. Times are of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    due_ns: u64,
    begin_ns: u64,
    /// For a request that never began, the end of the measurement.
    end_ns: u64,
    is_served: bool,
    waits: Option<RequestWaits>,
}

impl Sample {
    fn since(&self, from_ns: u64) -> SlowRequest {
        let request = SlowRequest::since(from_ns, self.due_ns, self.begin_ns, self.end_ns);
        SlowRequest { waits: self.waits, ..request }
    }

    fn join(&mut self, records: &HoldRecords, pid: u32) {
        let is_served = self.is_served;
        self.waits = is_served.then(|| records.waits(pid, (self.begin_ns, self.end_ns)));
    }

    fn waiting(&self) -> Option<WaitingRequest> {
        let Self { due_ns, begin_ns, end_ns, .. } = *self;
        self.waits.map(|waits| WaitingRequest { due_ns, begin_ns, end_ns, waits })
    }
}

fn read_samples(text: &str) -> Vec<Sample> {
    text.lines().filter_map(sample).collect()
}

fn sample(line: &str) -> Option<Sample> {
    let mut cells = line.split(',');
    let mut number = || cells.next()?.trim().parse::<u64>().ok();
    let (due_ns, begin_ns, end_ns) = (number()?, number()?, number()?);
    let is_served = number().is_none_or(|served| served == 1);
    Some(Sample { due_ns, begin_ns, end_ns, is_served, waits: None })
}

/// The latency in a window that begins at `from_ns`; none without requests.
fn requests_result(
    samples: &[Sample],
    deadline: Option<Deadline>,
    from_ns: u64,
) -> Option<LcResult> {
    let latency = |sample: &Sample| sample.end_ns.saturating_sub(sample.due_ns);
    let served = || samples.iter().filter(|sample| sample.is_served);
    let late = |limit: Deadline| {
        let is_late = |sample: &&Sample| !sample.is_served || latency(sample) > limit.as_nanos();
        samples.iter().filter(is_late).count() as u64
    };
    Some(LcResult {
        latency: Distribution::of(samples.iter().map(latency).collect())?,
        service: Distribution::of(
            served().map(|sample| sample.end_ns.saturating_sub(sample.begin_ns)).collect(),
        ),
        unfinished: samples.iter().filter(|sample| !sample.is_served).count() as u64,
        missed: deadline.map(late),
        slowest: SlowRequest::slowest(samples.iter().map(|sample| sample.since(from_ns)).collect()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_results_of_several_loads_are_added() {
        let be = |done: f64, exact: Option<bool>| BeResult::new(done, "kernels", 2.0, exact);
        let total = sum(Some(be(10.0, Some(true))), &be(4.0, None));
        assert_eq!((total.done, total.per_second, total.exact), (14.0, 7.0, Some(true)));
        assert_eq!(sum(Some(total), &be(1.0, Some(false))).exact, Some(false));
    }

    #[test]
    fn requests_that_never_began_count_in_the_latency() {
        let text = "due_ns,begin_ns,end_ns,served\n100,110,150,1\n200,210,290,1\n300,900,900,0\n";
        let samples = read_samples(text);
        assert_eq!(samples.len(), 3);
        let result = requests_result(&samples, Some(Deadline::from_nanos(60)), 100).unwrap();
        assert_eq!((result.latency.p50_ns, result.latency.max_ns), (90, 600));
        assert_eq!(result.service.unwrap().max_ns, 80);
        assert_eq!((result.unfinished, result.missed), (1, Some(2)));
        let times = |slow: &SlowRequest| (slow.due_ns, slow.begin_ns, slow.end_ns);
        let slowest: Vec<_> = result.slowest.iter().map(times).collect();
        assert_eq!(slowest, [(0, 10, 50), (100, 110, 190), (200, 800, 800)]);
        assert_eq!(requests_result(&[], None, 0), None);
    }
}
