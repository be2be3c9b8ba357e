use super::*;

const SMALL: &str = "name = 's'\ntitle = 't'\n[[case]]\nname = 'c'\ntitle = 'C'\n";

fn error(rest: &str) -> String {
    read_suite("f.toml", &format!("{SMALL}{rest}")).unwrap_err().to_string()
}

#[test]
fn built_in_suites_can_be_read_and_have_their_names() {
    for name in built_in_names() {
        let suite = built_in(name).unwrap();
        assert_eq!(suite.name, name);
        assert!(suite.repetitions >= 5, "{name}");
        assert!(!suite.nvidia_modes.is_empty(), "{name}");
    }
    assert!(built_in("dance").is_none());
}

#[test]
fn built_in_suites_name_modes_that_backends_have() {
    use crate::engine::Backend;
    let emulated = crate::emulated::Emulated::default().modes();
    let nvidia = crate::nvidia::modes();
    let known: Vec<&str> = emulated.iter().chain(&nvidia).map(|mode| mode.name.as_str()).collect();
    for name in built_in_names() {
        assert_eq!(check_modes(name, &built_in(name).unwrap().text, &known), Ok(()));
    }
}

#[test]
fn mistakes_have_a_file_a_line_and_a_field() {
    assert_eq!(
        error(""),
        "f.toml:3: case[0].load: is missing; must be at least one `[[case.load]]`"
    );
    assert_eq!(
        error("[[case.load]]\nname = 'x'\nrole = 'lc'\n"),
        "f.toml:6: case[0].load[0].arrivals: is missing; must be a table that says when requests \
         are due"
    );
    assert_eq!(
        error("[[case.load]]\nname = 'x'\nrole = 'be'\nkernel_u = 3\n"),
        "f.toml:9: case[0].load[0].kernel_u: unknown key; did you mean `kernel_us`?"
    );
    assert_eq!(
        error("[[case.load]]\nname = 'x'\nrole = 'be'\npriority = 16\n"),
        "f.toml:9: case[0].load[0].priority: is 16; must be an integer from 0 to 15"
    );
    let closed = "[[case.load]]\nname = 'x'\nrole = 'lc'\narrivals = { back_to_back = 1 }\n";
    assert!(error(closed).contains("must be due at times that do not wait"), "{}", error(closed));
    let open = "[[case.load]]\nname = 'x'\nrole = 'be'\narrivals = { every_us = 100 }\n";
    assert!(error(open).contains("its amount is measured"), "{}", error(open));
}

#[test]
fn a_load_has_at_least_one_priority() {
    assert_eq!(
        error("[[case.load]]\nname = 'x'\nrole = 'be'\npriorities = []\n"),
        "f.toml:9: case[0].load[0].priorities: is empty; must name one priority or more"
    );
}

#[test]
fn a_suite_is_called_as_a_folder_can_be() {
    let named = |name: &str| {
        let rest = "[[case.load]]\nname = 'x'\nrole = 'be'\n";
        read_suite("f.toml", &format!("{SMALL}{rest}").replace("'s'", &format!("'{name}'")))
    };
    for name in ["micro", "my_suite-2.1", "A"] {
        assert_eq!(named(name).unwrap().name, name);
    }
    for name in ["../up", "a/b", "..", ".hidden", "with space", "ä"] {
        let error = named(name).unwrap_err().to_string();
        assert!(error.starts_with("f.toml:1: name: is \""), "{error}");
        assert!(error.contains("must be of letters, digits"), "{error}");
    }
}

#[test]
fn a_check_must_be_about_a_case_that_is_there() {
    let text = "[[case.load]]\nname = 'x'\nrole = 'be'\n\
                [[check]]\nname = 'n'\ncases = ['d']\nmode = 'm'\nwhat = 'be_kept'\nat_most = 1\n";
    assert_eq!(error(text), "f.toml:11: check[0].cases: no case is called \"d\"");
}

#[test]
fn one_table_can_stand_for_several_loads() {
    let text = "[[case.load]]\nname = 'x'\nrole = 'be'\ncount = 3\n\
                [[case.load]]\nname = 'l'\nrole = 'be'\npriorities = [3, 9]\n";
    let suite = read_suite("f", &format!("{SMALL}{text}")).unwrap();
    let loads: Vec<(&str, u8)> = suite.cases[0]
        .loads
        .iter()
        .map(|load| (load.name.as_str(), load.priority.level()))
        .collect();
    assert_eq!(loads, [("x-1", 2), ("x-2", 2), ("x-3", 2), ("l-3", 3), ("l-9", 9)]);
}

#[test]
fn another_text_has_another_digest() {
    let text = format!("{SMALL}[[case.load]]\nname = 'x'\nrole = 'be'\n");
    let digest = |text: &str| read_suite("f", text).unwrap().digest;
    assert_eq!(digest(&text), digest(&text));
    assert_ne!(digest(&text), digest(&format!("{text}\n")));
}

const WITH_MODES: &str = "name = 's'\ntitle = 't'\nnvidia_modes = ['alone']\n\
    [[case]]\nname = 'a'\ntitle = 'A'\nmodes = [\n'hold']\n\
    [[case.load]]\nname = 'be'\nrole = 'be'\n\
    [[check]]\nname = 'n'\nmode = 'slices'\nwhat = 'be_kept'\nat_most_percent = 1\n";

#[test]
fn modes_that_no_backend_has_are_named_with_their_place() {
    let check = |text: &str| check_modes("f.toml", text, &["slices", "hold", "alone", "hold"]);
    assert!(check(WITH_MODES).is_ok());
    for (from, to, expected) in [
        (
            "'alone'",
            "'zz'",
            "f.toml:3: nvidia_modes[0]: there is no mode \"zz\"; there are: alone, hold, \
             slices",
        ),
        ("'hold'", "'hold', 'zz'", "f.toml:8: case[0].modes[1]: there is no mode \"zz\""),
        (
            "'slices'",
            "'slice'",
            "f.toml:14: check[0].mode: there is no mode \"slice\"; did you mean `slices`?",
        ),
    ] {
        let error = check(&WITH_MODES.replace(from, to)).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

fn check_error(check: &str) -> String {
    let text = format!(
        "name = 's'\ntitle = 't'\n[[case]]\nname = 'c'\ntitle = 'C'\nmodes = ['hold']\n\
         only = 'nvidia'\n[[case.load]]\nname = 'x'\nrole = 'be'\n\
         [[case.load]]\nname = 'y'\nrole = 'be'\n[[check]]\nname = 'n'\nat_most = 1\n{check}"
    );
    read_suite("f", &text).err().map_or_else(String::new, |error| error.to_string())
}

#[test]
fn a_line_must_be_about_something_that_is_measured() {
    assert_eq!(check_error("mode = 'hold'\nwhat = 'share_x'\ncases = ['c']\n"), "");
    assert_eq!(check_error("mode = 'hold'\nwhat = 'be_kept'\n"), "");
    let what = check_error("mode = 'hold'\nwhat = 'share_z'\ncases = ['c']\n");
    let expected = "check[0].what: case c has no number share_z; besides ratios it has: ";
    assert!(what.contains(expected) && what.contains("jain"), "{what}");
    let ratio = check_error("mode = 'hold'\nwhat = 'p50_ratio'\n");
    assert!(ratio.contains("no case has p50_ratio"), "{ratio}");
    let mode = check_error("mode = 'mps'\nwhat = 'jain'\ncases = ['c']\n");
    assert!(mode.contains("case c is not measured in mps, but in: hold"), "{mode}");
    let place = check_error("mode = 'hold'\nwhat = 'jain'\ncases = ['c']\nbackend = 'emulated'\n");
    assert!(place.contains("check[0].backend: case c is not measured there"), "{place}");
}
