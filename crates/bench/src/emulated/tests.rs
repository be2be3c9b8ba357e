use super::*;
use crate::plan::{self, Wish};
use crate::suite::{Backends, built_in, built_in_names};

fn wish(cases: &[&str]) -> Wish {
    let cases = cases.iter().map(|&name| name.to_owned()).collect();
    Wish { backend: "emulated", repetitions: 1, is_short: true, cases }
}

fn measured(suite: &str, case: &str, mode: &str) -> Measured {
    let suite = built_in(suite).unwrap();
    let wish = wish(&[case]);
    let modes = plan::modes(&[mode.to_owned()], &Emulated::default().modes()).unwrap();
    let cases = plan::cases(&suite, &wish).unwrap();
    let steps = plan::steps(&cases, &modes, &wish);
    let step = steps.iter().find(|step| step.mode.name == mode).unwrap();
    Emulated::default().measure(step).unwrap()
}

#[test]
fn requests_with_gaps_are_ruined_by_slices_and_saved_by_holds() {
    let p50 = |mode: &str| measured("micro", "gap30", mode).lc.unwrap().latency.p50_ns;
    let (alone, slices, hold, hints) = (p50("alone"), p50("slices"), p50("hold"), p50("hints"));
    assert!(slices > 3 * alone, "{slices} against {alone}");
    assert!(hold < alone * 5 / 4, "{hold} against {alone}");
    assert!(hints < hold, "{hints} against {hold}");
}

#[test]
fn the_same_step_gives_the_same_numbers() {
    let (one, two) = (measured("micro", "be-1ms", "hold"), measured("micro", "be-1ms", "hold"));
    assert_eq!(one.lc, two.lc);
    assert_eq!(one.numbers, two.numbers);
    assert_eq!(one.time_line, two.time_line);
    assert!(one.time_line.is_some_and(|line| !line.spans.is_empty()));
}

#[test]
fn the_slowest_requests_are_those_of_the_distribution() {
    let lc = measured("micro", "gap30", "slices").lc.unwrap();
    let slowest = lc.slowest.iter().map(|each| each.end_ns - each.due_ns).max();
    assert_eq!(slowest, i64::try_from(lc.latency.max_ns).ok());
    assert!(lc.slowest.iter().all(|each| 0 <= each.due_ns && each.due_ns <= each.begin_ns));
}

#[test]
fn a_preemption_is_looked_at_closely() {
    let measured = measured("micro", "be-8ms", "slices");
    let number = |name: &str| {
        measured.numbers.iter().find(|number| number.name == name).map(|number| number.value)
    };
    let (off, first) = (number("be_off_p50").unwrap(), number("first_instruction_p50").unwrap());
    // A full context is saved in 134 us and the other one restored in 51.
    assert!(off > 0.0 && off < first && (180e3..260e3).contains(&first), "{off} {first}");
    assert!(number("resume_p50").unwrap() > 0.0);
}

#[test]
fn what_no_model_can_do_is_named_before_anything_runs() {
    let suite = built_in("torch").unwrap();
    let modes = Emulated::default().modes();
    let cases: Vec<_> = suite.cases.iter().collect();
    let steps = plan::steps(&cases, &modes, &wish(&[]));
    let missing = Emulated::default().missing(&steps);
    assert_eq!(missing.len(), 11, "{missing:?}");
    assert_eq!(missing[0], "case resnet: inference is a PyTorch program and needs a GPU");
    for name in built_in_names().filter(|name| *name != "torch") {
        let suite = built_in(name).unwrap();
        let cases: Vec<_> =
            suite.cases.iter().filter(|case| case.backends != Backends::Nvidia).collect();
        let steps = plan::steps(&cases, &modes, &wish(&[]));
        assert_eq!(Emulated::default().missing(&steps), Vec::<String>::new(), "{name}");
    }
}
