//! The assembler takes any text, programs survive being printed, and none of them can make a wave
//! panic.

use gpreempt_sim::isa::{Condition, Operator, Program};
use gpreempt_sim::memory::Memory;
use gpreempt_sim::wave::{Launch, Step, Wave};
use proptest::prelude::*;

proptest! {
    #[test]
    fn any_text_is_a_program_or_an_error_with_a_line(text in any_text()) {
        match Program::assemble("any", &text) {
            Ok(program) => {
                let again = Program::assemble("any", &program.to_string());
                prop_assert_eq!(again, Ok(program));
            }
            Err(error) => {
                prop_assert!((1..=text.lines().count().max(1)).contains(&error.line));
                prop_assert!(!error.message.contains('\n'));
            }
        }
    }

    #[test]
    fn programs_survive_being_printed(lines in prop::collection::vec(instruction_text(), 1..60)) {
        let text = lines.join("\n") + "\nlast: end";
        let program = Program::assemble("printed", &text).unwrap();
        prop_assert_eq!(program.instructions().len(), lines.len() + 1);
        let printed = program.to_string();
        prop_assert_eq!(Program::assemble("printed", &printed), Ok(program));
    }

    #[test]
    fn any_program_runs_without_panicking(
        lines in prop::collection::vec(instruction_text(), 1..60),
        instruction_ns: u32,
    ) {
        let text = format!(".lds 64\n{}\nlast: end", lines.join("\n"));
        let program = Program::assemble("any", &text).unwrap();
        let arguments = [4, u32::MAX, u32::MAX, 64];
        let mut wave = Wave::start(&Launch { group: 1, groups: 2, wave: 3, waves: 4, arguments });
        let (mut lds, mut memory) = (vec![0; 64], Memory::new(64));
        for _ in 0..50 {
            match wave.step(&program, &mut lds, &mut memory, instruction_ns) {
                Step::Busy(_) | Step::Barrier => {}
                Step::End | Step::Fault(_) => break,
            }
        }
    }
}

/// Characters at random, and pieces of the language at random.
fn any_text() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "add",
        "mov",
        "work",
        "end",
        "jump",
        "lane",
        "global_load",
        "lds_add",
        "branch_lt",
        "s1",
        "v2",
        "s99",
        "[",
        "]",
        "+",
        ",",
        ":",
        "@",
        "a",
        "12",
        "0x",
        "-",
        ".lds",
        " ",
        " ",
        "\n",
        ";",
        "#",
        "\u{fc}",
        "\0",
        "end\n",
        "a:",
        "jump a\n",
        "mov s1, 2\n",
        ".lds 64\n",
    ]);
    prop_oneof![
        prop::collection::vec(any::<char>(), 0..200).prop_map(|text| text.into_iter().collect()),
        prop::collection::vec(pieces, 0..60).prop_map(|pieces| pieces.concat()),
    ]
}

/// One correct line of assembly; branches go to `last` or to the first instruction.
fn instruction_text() -> impl Strategy<Value = String> {
    let s = || (0..16).prop_map(|index| format!("s{index}")).boxed();
    let v = || (0..8).prop_map(|index| format!("v{index}")).boxed();
    let n = || {
        let wide = any::<u32>().prop_map(|number| format!("{number:#x}"));
        prop_oneof![(0..64_u32).prop_map(|number| number.to_string()), wide].boxed()
    };
    let value = move || prop_oneof![s(), n()].boxed();
    let values = move || prop_oneof![v(), s(), n()].boxed();
    let place = |register: BoxedStrategy<String>| {
        let offset = (0..80_u32).prop_map(|offset| format!(" + {offset}"));
        let offset = prop_oneof![Just(String::new()), offset];
        (register, offset).prop_map(|(register, offset)| format!("[{register}{offset}]")).boxed()
    };
    let operator = || prop::sample::select(Operator::ALL.to_vec()).prop_map(Operator::name);
    let condition = prop::sample::select(Condition::ALL.to_vec()).prop_map(Condition::name);
    let space = || prop::sample::select(vec!["global", "lds"]);
    let change = || prop::sample::select(vec!["store", "add"]);
    let target = || prop::sample::select(vec!["last", "@0"]);
    let pair = |data: BoxedStrategy<String>, register: BoxedStrategy<String>| {
        prop_oneof![
            (space(), data.clone(), place(register.clone()))
                .prop_map(|(space, data, place)| format!("{space}_load {data}, {place}")),
            (space(), change(), place(register), data).prop_map(
                |(space, change, place, data)| format!("{space}_{change} {place}, {data}")
            ),
        ]
    };
    prop_oneof![
        (s(), value()).prop_map(|(to, from)| format!("mov {to}, {from}")),
        (v(), values()).prop_map(|(to, from)| format!("mov {to}, {from}")),
        (operator(), s(), s(), value()).prop_map(|(op, to, a, b)| format!("{op} {to}, {a}, {b}")),
        (operator(), v(), v(), values()).prop_map(|(op, to, a, b)| format!("{op} {to}, {a}, {b}")),
        pair(s(), s()),
        pair(v(), v()),
        (condition, s(), value(), target())
            .prop_map(|(name, a, b, target)| format!("{name} {a}, {b}, {target}")),
        target().prop_map(|target| format!("jump {target}")),
        value().prop_map(|ns| format!("work {ns}")),
        (s(), v()).prop_map(|(to, from)| format!("first {to}, {from}")),
        v().prop_map(|to| format!("lane {to}")),
        Just("barrier".to_owned()),
        Just("end".to_owned()),
    ]
}
