//! Latency budgets, from each place where a user sets one to `ps --json`: real processes on an
//! emulated GPU.

use gpreempt_stage::{Daemon, Emulator, LIMIT, Process, Stage, until};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::machine::ENDLESS;

const RULES: &str = "\
[[rule]]
env = \"ROLE=ruled\"
priority = 12
latency_budget = \"30%\"
";

struct Setup {
    _daemon: Daemon,
    emulator: Emulator,
    stage: Stage,
}

impl Setup {
    fn new(name: &str) -> Self {
        let stage = Stage::new(name).unwrap();
        stage.write("config.toml", RULES).unwrap();
        let emulator = stage.emulator("--model h200 --machine tsg --compute-units 1").unwrap();
        let daemon = stage.daemon().emulator(emulator.spec()).start().unwrap();
        Self { _daemon: daemon, emulator, stage }
    }

    /// An endless load, started by these words of `gpreempt` or without any, with a variable.
    fn load(&self, words: &[&str], (name, value): (&str, &str)) -> Process {
        let program = self.stage.program("gpreempt-load").unwrap();
        let mut command = match words {
            [] => self.stage.command("gpreempt-load").unwrap(),
            words => self.stage.gpreempt(words),
        };
        if !words.is_empty() {
            command.arg(program);
        }
        self.emulator.spec().add_load(&mut command, ENDLESS);
        command.env(name, value);
        self.stage.start("a load", command).unwrap()
    }

    /// A field of a process in `ps --json`.
    fn field(&self, load: &Process, name: &str) -> Option<Value> {
        let tasks = self.stage.json(&["ps", "--json"]);
        let task = tasks.as_array()?.iter().find(|task| task["pid"] == load.pid())?;
        Some(task[name].clone())
    }

    fn until_budget(&self, load: &Process, percent: Value) {
        until("the budget is in ps", || {
            self.field(load, "latency_budget_percent").as_ref() == Some(&percent)
        });
    }
}

fn end(mut load: Process) {
    load.signal(Signal::TERM);
    load.wait(LIMIT).unwrap();
}

#[test]
fn budgets_of_commands_rules_and_variables_arrive_in_ps() {
    let setup = Setup::new("latency-budget");
    let of_rule = setup.load(&[], ("ROLE", "ruled"));
    setup.until_budget(&of_rule, json!(30));
    let of_variable = setup.load(&[], ("GPREEMPT_LATENCY_BUDGET", "15%"));
    setup.until_budget(&of_variable, json!(15));
    let words = ["run", "-p", "12", "--latency-budget", "20%"];
    let of_run = setup.load(&words, ("ROLE", "none"));
    setup.until_budget(&of_run, json!(20));
    assert_eq!(setup.field(&of_run, "priority"), Some(json!(12)));
    let table = setup.stage.stdout(&["ps"]);
    assert!(table.contains(" budget ") && table.contains(" 20% "), "{table}");

    let pid = of_run.pid().to_string();
    let said = setup.stage.stdout(&["set", &pid, "--latency-budget", "400%"]);
    assert_eq!(said, format!("{pid} has a latency budget of 400 %\n"));
    setup.until_budget(&of_run, json!(400));
    let mut command = setup.stage.gpreempt(&["attach", &pid, "-p", "13"]);
    command.args(["--latency-budget", "60"]);
    let mut attach = setup.stage.start("the attach", command).unwrap();
    setup.until_budget(&of_run, json!(60));
    attach.signal(Signal::INT);
    attach.wait(LIMIT).unwrap();
    setup.until_budget(&of_run, json!(400));
    setup.stage.stdout(&["set", &pid, "--latency-budget", "0"]);
    setup.until_budget(&of_run, Value::Null);
    [of_rule, of_variable, of_run].into_iter().for_each(end);
}

/// CUDA makes a process a client of MPS if the control program listens where its environment says.
#[test]
fn a_client_of_mps_gets_no_high_priority() {
    let setup = Setup::new("latency-budget-mps");
    let folder = setup.stage.path("pipes").display().to_string();
    let program = setup.stage.path("nvidia-cuda-mps-control");
    std::fs::copy("/bin/sleep", &program).unwrap();
    let mut control = std::process::Command::new(program);
    control.arg("600").env("CUDA_MPS_PIPE_DIRECTORY", &folder);
    let control = setup.stage.start("the control program", control).unwrap();
    let load = setup.load(&[], ("CUDA_MPS_PIPE_DIRECTORY", &folder));
    until("it is known", || setup.field(&load, "pid").is_some());
    let pid = load.pid().to_string();
    for words in [&["set", &pid, "-p", "12"][..], &["attach", &pid, "-p", "8"]] {
        let (_, line) = setup.stage.failure(words);
        assert!(line.contains("is a client of the MPS server"), "{words:?}: {line}");
        assert!(line.contains("a priority below 8"), "{words:?}: {line}");
    }
    assert_ne!(setup.field(&load, "priority"), Some(json!(12)));
    setup.stage.stdout(&["set", &pid, "-p", "3"]);
    until("it has a low priority", || setup.field(&load, "priority") == Some(json!(3)));
    end(load);
    drop(control);
}

#[test]
fn impossible_budgets_are_refused_and_change_nothing() {
    let setup = Setup::new("latency-budget-refused");
    let load = setup.load(&[], ("ROLE", "ruled"));
    setup.until_budget(&load, json!(30));
    let pid = load.pid().to_string();
    let made = setup.stage.path("made").display().to_string();
    for budget in ["401%", "x", "", "0.2", "-1%"] {
        let option = format!("--latency-budget={budget}");
        for words in [
            &["set", &pid, "-p", "3", &option][..],
            &["attach", &pid, "-p", "3", &option],
            &["run", "-p", "3", &option, "touch", &made],
        ] {
            let (code, line) = setup.stage.failure(words);
            assert_eq!(code, 2, "{words:?}: {line}");
            let range = "a latency budget is a whole number of per cent from 0 to 400, such as 20%";
            assert!(line.contains(range) || budget.is_empty(), "{words:?}: {line}");
        }
    }
    assert!(!setup.stage.path("made").exists(), "the program was not started");
    assert_eq!(setup.field(&load, "latency_budget_percent"), Some(json!(30)));
    assert_eq!(setup.field(&load, "priority"), Some(json!(12)));
    end(load);
}

#[test]
fn records_of_holds_need_a_folder_and_are_written_at_the_end() {
    let stage = Stage::new("hold-records").unwrap();
    let emulator = stage.emulator("--model h200 --machine tsg --compute-units 1").unwrap();
    let mut command = stage.command("gpreempt-load").unwrap();
    emulator.spec().add_load(&mut command, ENDLESS);
    let load = stage.start("a load", command).unwrap();
    let pid = load.pid().to_string();
    let (code, line) = stage.failure(&["attach", &pid, "--hold-records", "no/where"]);
    assert_eq!(code, 2, "{line}");
    assert!(line.contains("there is no folder no; create it first"), "{line}");
    let socket = emulator.socket().display().to_string();
    let target = ["attach", &pid, "--emulated", &socket];
    stage.stdout(&[&target[..], &["--for", "1s", "--hold-records", "records"]].concat());
    let records = std::fs::read_to_string(stage.path("records")).unwrap();
    assert_eq!(records, "", "the emulated GPU places holds itself");
    end(load);
}
