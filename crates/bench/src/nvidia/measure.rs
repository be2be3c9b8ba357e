//! One measurement on a GPU.

use std::time::Duration;

use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};

use super::control;
use super::mode::Mode;
use super::moments::Moments;
use super::samples::{self, Sample};
use super::scene::{Actor, Scene};
use super::steer::Steer;
use super::{BE_ALONE_SECONDS, Nvidia};
use crate::engine::{BE_ALONE, LC_BUSY, Measured, busy_part};
use crate::lines;
use crate::plan::Step;
use crate::results::{BeResult, LoadResult, Number, Role};
use crate::suite::Load;

/// How long best-effort work runs before requests come.
const HEAD_START: Duration = Duration::from_millis(400);
/// How long after its time a load may still be serving its last request.
const LATE: Duration = Duration::from_secs(60);
/// How often the clock is looked at while nobody has to be waited for.
const LOOK: Duration = Duration::from_millis(20);

/// Makes one.
pub(super) fn measure(
    nvidia: &mut Nvidia,
    step: &Step<'_>,
    mode: Mode,
) -> Result<Measured, String> {
    let seconds = step.case.real.length(step.is_short).as_nanos() / 1_000_000_000;
    let of = |role: Role| step.case.of(role).collect::<Vec<&Load>>();
    if mode != Mode::Alone {
        let all: Vec<&Load> = step.case.loads.iter().collect();
        return together(nvidia, step, mode, &all, seconds);
    }
    let mut measured = Measured::default();
    if !of(Role::Lc).is_empty() {
        measured = together(nvidia, step, mode, &of(Role::Lc), seconds)?;
    }
    if !of(Role::Be).is_empty() {
        let be = together(nvidia, step, mode, &of(Role::Be), BE_ALONE_SECONDS)?;
        let rate = be.be.map_or(0.0, |be| be.per_second);
        let title = "best-effort work with nobody beside";
        measured.numbers.push(Number::new(BE_ALONE, title, "1/s", rate));
    }
    Ok(measured)
}

/// Runs some loads beside each other.
fn together(
    nvidia: &mut Nvidia,
    step: &Step<'_>,
    mode: Mode,
    loads: &[&Load],
    seconds: u64,
) -> Result<Measured, String> {
    let mut scene = nvidia.scene(step, mode, loads, seconds)?;
    if let Some(daemon) = &scene.daemon {
        daemon.tell(nvidia, &scene.actors)?;
    }
    let steer = Steer::start(nvidia, mode, step.case.policy, &scene.actors, &scene.folder)?;
    scene.go(Role::Be)?;
    std::thread::sleep(HEAD_START);
    let begin = monotonic_ns();
    scene.go(Role::Lc)?;
    let limit = Duration::from_secs(seconds) + LATE;
    let mut window = (begin, u64::MAX);
    let has_lc = loads.iter().any(|load| load.role == Role::Lc);
    if has_lc {
        for actor in scene.actors.iter_mut().filter(|actor| actor.load.role == Role::Lc) {
            actor.child.wait(limit, &nvidia.stop)?;
            let last = lines::last(&actor.child.said());
            let last = last.ok_or_else(|| actor.child.failure("did not say how it ended"))?;
            window = (window.0.max(last.from_ns), window.1.min(last.until_ns));
        }
    } else {
        window.1 = begin + seconds * 1_000_000_000;
        wait_until(nvidia, window.1)?;
    }
    let calls = match scene.actors.first() {
        Some(first) if step.case.controlled => control::numbers(first.child.pid(), &nvidia.stop)?,
        Some(_) | None => Vec::new(),
    };
    let steered = steer.end();
    let scheduled = scene.daemon.take().map_or(Ok(()), super::steer::Daemon::end);
    for actor in scene.actors.iter_mut().filter(|actor| actor.load.role == Role::Be) {
        actor.child.end(Signal::TERM)?;
    }
    scheduled?;
    let holds = steered?;
    let (mut measured, samples) = read(&scene, window)?;
    measured.numbers.extend(calls.into_iter().chain(holds));
    if mode == Mode::Alone && has_lc {
        measured.numbers.push(busy(&samples, window));
    }
    if step.case.probed && mode != Mode::Alone {
        let moments = Moments::read(&scene.actors);
        measured.numbers.extend(moments.numbers());
        measured.time_line = moments.time_line();
    }
    Ok(measured)
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
fn read(scene: &Scene<'_>, window: (u64, u64)) -> Result<(Measured, Vec<Sample>), String> {
    let mut measured = Measured::default();
    let mut all: Vec<Sample> = Vec::new();
    let (mut missed, mut total) = (None::<u64>, None::<BeResult>);
    for actor in &scene.actors {
        let (lc, be) = match actor.load.role {
            Role::Lc => {
                let text = std::fs::read_to_string(&actor.raw)
                    .map_err(|error| format!("{}: {error}", actor.raw.display()))?;
                let samples = samples::read(&text);
                let lc = samples::result(&samples, actor.load.deadline);
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
    measured.lc = samples::result(&all, None);
    if let Some(lc) = &mut measured.lc {
        lc.missed = missed;
    }
    measured.be = total;
    Ok((measured, all))
}

fn best_effort(actor: &Actor<'_>, window: (u64, u64)) -> Result<BeResult, String> {
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
fn monotonic_ns() -> u64 {
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
