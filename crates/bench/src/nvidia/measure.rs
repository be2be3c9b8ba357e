//! One measurement on a GPU.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::Nvidia;
use super::access::Access;
use super::actor::{Actor, of_role};
use super::cast::Cast;
use super::control;
use super::estimate::be_alone_seconds;
use super::hold_calls;
use super::mode::Mode;
use super::moments::Moments;
use super::noise::Noise;
use super::samples::{self, Sample};
use super::steer::{Daemon, Steer};
use crate::engine::{BE_ALONE, LC_BUSY, Measured, busy_part};
use crate::lines;
use crate::plan::Step;
use crate::results::{BeResult, LoadResult, Number, Quiet, Role};
use crate::round::Round;

/// How long an order takes to be everywhere before somebody begins.
const LEAD: Duration = Duration::from_millis(30);
/// How long best-effort work runs before requests come.
const HEAD_START: Duration = Duration::from_millis(200);
/// Best-effort work is told when to end; if it is not, it ends by itself so much later.
const MARGIN_SECONDS: u64 = 25;
/// How often the clock is looked at while nobody has to be waited for.
const LOOK: Duration = Duration::from_millis(20);

/// Makes one. If something goes wrong all processes leave, and the next one starts them anew.
pub(super) fn measure(
    nvidia: &mut Nvidia,
    step: &Step<'_>,
    mode: Mode,
) -> Result<Measured, String> {
    let levels = step.case.loads.iter().map(|load| load.priority.level());
    if mode == Mode::Hints && levels.collect::<BTreeSet<_>>().len() < 2 {
        // For the daemon they would be somebody beside, where the case has nobody.
        nvidia.dismiss_mps();
    }
    let mut cast = nvidia.cast(step, mode.family())?;
    let measured = in_rounds(nvidia, step, mode, &mut cast)?;
    nvidia.keep(cast);
    Ok(measured)
}

fn in_rounds(
    nvidia: &Nvidia,
    step: &Step<'_>,
    mode: Mode,
    cast: &mut Cast,
) -> Result<Measured, String> {
    let seconds = step.case.real.length(step.is_short).as_nanos() / 1_000_000_000;
    if mode != Mode::Alone {
        return together(nvidia, step, mode, cast, None, seconds);
    }
    let has = |role: Role| step.case.of(role).next().is_some();
    let mut measured = Measured::default();
    if has(Role::Lc) {
        measured = together(nvidia, step, mode, cast, Some(Role::Lc), seconds)?;
    }
    if has(Role::Be) {
        let seconds = be_alone_seconds(step);
        let be = together(nvidia, step, mode, cast, Some(Role::Be), seconds)?;
        if !has(Role::Lc) {
            measured.numbers.extend(be.numbers.into_iter().filter(Quiet::has));
        }
        let rate = be.be.map_or(0.0, |be| be.per_second);
        let title = "best-effort work with nobody beside";
        measured.numbers.push(Number::new(BE_ALONE, title, "1/s", rate));
    }
    Ok(measured)
}

/// Runs everybody, or those of one role, beside each other.
fn together(
    nvidia: &Nvidia,
    step: &Step<'_>,
    mode: Mode,
    cast: &mut Cast,
    only: Option<Role>,
    seconds: u64,
) -> Result<Measured, String> {
    let policy = step.case.policy;
    let is_changed = mode.is_steered() || step.case.controlled;
    // Before the daemon starts: what it does at once would be part of the picture.
    let before = is_changed.then(|| Access::look(pids(cast, only))).transpose()?;
    let mut round = cast.next_round(seconds, step.seed);
    let start = || Daemon::start(nvidia, &cast.folder, round.round, policy);
    let daemon = (mode == Mode::Hints).then(start).transpose()?;
    round.hints = daemon.as_ref().map(|daemon| daemon.socket.clone());
    for actor in cast.members(only) {
        let is_be = actor.load.role == Role::Be;
        let seconds = if is_be { seconds + MARGIN_SECONDS } else { seconds };
        actor.prepare(&Round { seconds, ..round.clone() })?;
    }
    cast.members(only).try_for_each(|actor| actor.wait_until_prepared(nvidia))?;
    if let Some(daemon) = &daemon {
        daemon.tell(nvidia, &cast.actors)?;
    }
    let steer = Steer::start(nvidia, mode, policy, &cast.actors, &cast.folder)?;
    let noise = Noise::start();
    let window = perform(nvidia, cast, only, &round, seconds)?;
    let machine = noise.end().numbers(window);
    let calls = if step.case.controlled { calls(nvidia, &cast.actors)? } else { Vec::new() };
    let steered = steer.end();
    let scheduled = daemon.map_or(Ok(()), Daemon::end);
    let mut be: Vec<&mut Actor> =
        cast.members(only).filter(|actor| actor.load.role == Role::Be).collect();
    be.iter_mut().try_for_each(|actor| actor.end(round.round))?;
    be.iter_mut().try_for_each(|actor| actor.wait_until_over(nvidia, 0).map(drop))?;
    scheduled?;
    let holds = steered?;
    if let Some(before) = &before {
        Access::look(pids(cast, only))?.is_as_before(before)?;
    }
    let (mut measured, samples) = read(cast.members(only), window)?;
    measured.numbers.extend(calls.into_iter().chain(holds).chain(machine));
    if only == Some(Role::Lc) {
        measured.numbers.push(busy(&samples, window));
    }
    if step.case.probed && mode != Mode::Alone {
        let moments = Moments::read(&cast.actors);
        measured.numbers.extend(moments.numbers());
        measured.time_line = moments.time_line();
    }
    Ok(measured)
}

fn pids(cast: &mut Cast, only: Option<Role>) -> Vec<u32> {
    cast.members(only).map(|actor| actor.child.pid()).collect()
}

/// What the calls cost that control a process: one that is busy; and a hold for one that is not.
fn calls(nvidia: &Nvidia, actors: &[Actor]) -> Result<Vec<Number>, String> {
    let of = |role: Role| of_role(actors, role).map(|actor| actor.child.pid()).collect::<Vec<_>>();
    let (lc, be) = (of(Role::Lc), of(Role::Be));
    let mut numbers = Vec::new();
    if let Some(busy) = be.first() {
        numbers.extend(control::numbers(*busy, &nvidia.stop)?);
    }
    if let Some(holder) = lc.first() {
        numbers.extend(hold_calls::numbers(*holder, &be, &nvidia.stop)?);
    }
    Ok(numbers)
}

/// Lets a round run, and says which time counts. Best-effort work goes on.
fn perform(
    nvidia: &Nvidia,
    cast: &mut Cast,
    only: Option<Role>,
    round: &Round,
    seconds: u64,
) -> Result<(u64, u64), String> {
    let begin = monotonic_ns() + nanos(LEAD);
    let has_be = cast.members(only).any(|actor| actor.load.role == Role::Be);
    let lc_begin = if has_be { begin + nanos(HEAD_START) } else { begin };
    for actor in cast.members(only) {
        let at_ns = if actor.load.role == Role::Be { begin } else { lc_begin };
        actor.begin(round.round, at_ns)?;
    }
    let mut window = (lc_begin, u64::MAX);
    for actor in cast.members(only).filter(|actor| actor.load.role == Role::Lc) {
        let last = actor.wait_until_over(nvidia, seconds)?;
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
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// What all processes wrote down, in a window of time.
fn read<'c>(
    actors: impl Iterator<Item = &'c mut Actor>,
    window: (u64, u64),
) -> Result<(Measured, Vec<Sample>), String> {
    let mut measured = Measured::default();
    let mut all: Vec<Sample> = Vec::new();
    let (mut missed, mut total) = (None::<u64>, None::<BeResult>);
    for actor in actors {
        let (lc, be) = match actor.load.role {
            Role::Lc => {
                let samples = samples::read(&actor.requests()?);
                let lc = samples::result(&samples, actor.load.deadline, window.0);
                missed = lc
                    .as_ref()
                    .and_then(|lc| lc.missed)
                    .map(|late| late + missed.unwrap_or(0))
                    .or(missed);
                all.extend(samples);
                (lc, None)
            }
            Role::Be => {
                let be = best_effort(actor, window)?;
                total = Some(sum(total, &be));
                (None, Some(be))
            }
        };
        let (name, role) = (actor.load.name.clone(), actor.load.role);
        measured.loads.push(LoadResult { name, role, lc, be });
    }
    measured.lc = samples::result(&all, None, window.0);
    if let Some(lc) = &mut measured.lc {
        lc.missed = missed;
    }
    measured.be = total;
    Ok((measured, all))
}

fn best_effort(actor: &Actor, window: (u64, u64)) -> Result<BeResult, String> {
    let said = actor.child.said();
    let (done, seconds) = lines::done(&said, window.0, window.1);
    let last = lines::last(&said).unwrap_or_default();
    if seconds <= 0.0 {
        return Err(actor.child.failure("did not say what it did meanwhile"));
    }
    let unit = if last.unit.is_empty() { "kernels".to_owned() } else { last.unit };
    Ok(BeResult {
        done,
        unit,
        seconds,
        per_second: done / seconds,
        of_alone: None,
        kept: None,
        exact: last.exactness.map(|exactness| exactness.result == "pass"),
    })
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

/// The part of the time in which requests are under way.
fn busy(samples: &[Sample], window: (u64, u64)) -> Number {
    let served = samples.iter().filter(|sample| sample.is_served);
    let times = served.map(|sample| (sample.begin_ns, sample.end_ns)).collect();
    let part = busy_part(times, window.1.saturating_sub(window.0));
    let title = "part of the time in which requests are under way, alone";
    Number::new(LC_BUSY, title, "1", part)
}

/// The clock of the loads.
pub(super) fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_loads_add_up() {
        let be = |done: f64, exact: Option<bool>| BeResult {
            done,
            unit: "kernels".into(),
            seconds: 2.0,
            per_second: done / 2.0,
            of_alone: None,
            kept: None,
            exact,
        };
        let total = sum(Some(be(10.0, Some(true))), &be(4.0, None));
        assert_eq!((total.done, total.per_second, total.exact), (14.0, 7.0, Some(true)));
        assert_eq!(sum(Some(total), &be(1.0, Some(false))).exact, Some(false));
    }
}
