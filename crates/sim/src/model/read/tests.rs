use super::*;

const H200: &str = include_str!("../../../models/h200.toml");

#[test]
fn a_base_gives_what_a_file_leaves_out() {
    let text = "base = \"h200\"\nwaves_per_unit = 4\n[context]\nsave_ns = 7\n";
    let base = DeviceModel::built_in("h200").unwrap();
    let expected = DeviceModel {
        name: "h200, changed".to_owned(),
        source: format!("{}, changed", base.source),
        measured: false,
        waves_per_unit: 4,
        context: ContextCost { save: Duration::from_nanos(7), ..base.context },
        ..base
    };
    assert_eq!(read_model("f", text), Ok(expected));
}

#[test]
fn every_number_of_a_file_arrives_in_its_own_field() {
    // Every number is different, so that two that are mixed up are seen.
    let text = "name = 'n'\nsource = 's'\nmeasured = true\nmachine = 'reset'\ncompute_units = 1\n\
        waves_per_unit = 2\ninstruction_ns = 3\nsubmit_ns = 4\ncomplete_ns = 5\nfetch_depth = 6\n\
        context = { save_ns = 7, restore_ns = 8, wave_bytes = 9, save_bytes_per_us = 10, \
        restore_bytes_per_us = 11 }\n\
        control = { preempt_ns = 12, resume_ns = 13, set_slice_ns = 14 }\n\
        tsg = { slice_ns = 15, hold_poll_ns = 16, hold_quiet_ns = 17, hold_max_ns = 18, \
        hold_latency_ns = 19 }\n\
        cwsr = { queue_slots = 20, quantum_ns = 21 }\n\
        reset = { flag_ns = 22, clear_ns = 23, kill_ns = 24, resubmit_ns = 25 }\n";
    let ns = Duration::from_nanos;
    let expected = DeviceModel {
        name: "n".to_owned(),
        source: "s".to_owned(),
        measured: true,
        machine: MachineKind::Reset,
        compute_units: 1,
        waves_per_unit: 2,
        instruction_ns: 3,
        submit: ns(4),
        complete: ns(5),
        fetch_depth: 6,
        context: ContextCost {
            save: ns(7),
            restore: ns(8),
            wave_bytes: 9,
            save_bytes_per_us: 10,
            restore_bytes_per_us: 11,
        },
        control: ControlCost { preempt: ns(12), resume: ns(13), set_slice: ns(14) },
        tsg: TsgModel {
            slice: ns(15),
            hold_poll: ns(16),
            hold_quiet: ns(17),
            hold_max: ns(18),
            hold_latency: ns(19),
        },
        cwsr: CwsrModel { queue_slots: 20, quantum: ns(21) },
        reset: ResetModel { flag: ns(22), clear: ns(23), kill: ns(24), resubmit: ns(25) },
    };
    assert_eq!(read_model("f", text), Ok(expected));
}

#[test]
fn without_a_base_every_key_is_needed() {
    let keys = [KEYS, CONTEXT_KEYS, CONTROL_KEYS, TSG_KEYS, CWSR_KEYS, RESET_KEYS].concat();
    let one_line_each = H200.replace("\\\n", "").replace("\"\"\"", "\"");
    let mut left_out = 0;
    for (index, line) in one_line_each.lines().enumerate() {
        let Some((key, _)) = line.split_once(" = ") else {
            continue;
        };
        if !keys.contains(&key) {
            continue;
        }
        let rest = one_line_each.lines().enumerate().filter(|(other, _)| *other != index);
        let text = rest.map(|(_, line)| format!("{line}\n")).collect::<String>();
        let error = read_model("f", &text).unwrap_err();
        assert!(error.message.starts_with("is missing; must be "), "{error}");
        assert!(error.field.ends_with(key), "{error} instead of {key}");
        left_out += 1;
    }
    // All but `base` and the names of the five tables, which stand in brackets.
    assert_eq!(left_out, keys.len() - 6);
}

#[test]
fn bad_models_are_refused_with_one_line() {
    for (text, expected) in [
        ("base = \"h100\"", "f:1: base: is \"h100\"; must be one of: h200, mi300x"),
        (
            "base = \"h200\"\ncompute_units = 0",
            "f:2: compute_units: is 0; must be an integer from 1 to 4096",
        ),
        (
            "base = \"h200\"\nmachine = \"fast\"",
            "f:2: machine: is \"fast\"; must be one of: none, reset, tsg, cwsr",
        ),
        (
            "base = \"h200\"\n[tsg]\n\nslice_ns = 0",
            "f:4: tsg.slice_ns: is 0; must be an integer from 1 to 10000000000",
        ),
        ("base = \"h200\"\n[contxt]\n", "f:2: contxt: unknown key; did you mean `context`?"),
        (
            "base = \"h200\"\nsource = \"\"",
            "f:2: source: is \"\"; must be 1 to 500 characters on one line",
        ),
        (
            "base = \"h200\"\nreset = 5",
            "f:2: reset: is an integer; must be a table of: \
             flag_ns, clear_ns, kill_ns, resubmit_ns",
        ),
        ("", "f:1: name: is missing; must be 1 to 500 characters on one line"),
        ("base = h200", "f:1: syntax: string values must be quoted, expected literal string"),
    ] {
        assert_eq!(read_model("f", text).unwrap_err().to_string(), expected);
    }
}
