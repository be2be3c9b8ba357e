use super::*;

const KEYS: &[&str] = &["count", "wait_us", "on", "kind", "list", "part", "a", "b"];

/// Reads `text` with `read` and shows the error it must give.
fn error<T>(text: &str, read: impl FnOnce(&Fields<'_>) -> Result<T, ReadError>) -> String {
    match with_root("f", text, KEYS, read) {
        Ok(_) => panic!("{text:?} was accepted"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn integers_are_read_in_every_notation_and_kept_in_range() {
    for (text, expected) in [
        ("count = 7", 7),
        ("count = +7", 7),
        ("count = -0", 0),
        ("count = 1_000", 1_000),
        ("count = 0x10", 16),
        ("", 3),
    ] {
        let read = with_root("f", text, KEYS, |fields| fields.u64("count", 0..=1_000, 3));
        assert_eq!(read, Ok(expected), "{text}");
    }
    let huge = with_root("f", "count = 18446744073709551615", KEYS, |fields| {
        fields.u64("count", 0..=u64::MAX, None)
    });
    assert_eq!(huge, Ok(u64::MAX));
    for (text, message) in [
        ("\ncount = 11", "f:2: count: is 11; must be an integer from 1 to 10"),
        ("count = -1", "f:1: count: is -1; must be an integer from 1 to 10"),
        ("count = 0x0b", "f:1: count: is 0x0b; must be an integer from 1 to 10"),
        (
            "count = 123456789012345678901234567890123456789012345678901234567890",
            "f:1: count: is 1234567890123456789012345678901234567890...; \
             must be an integer from 1 to 10",
        ),
        ("count = \"1\"", "f:1: count: is a string; must be an integer from 1 to 10"),
        ("count = 1.0", "f:1: count: is a number with a fraction; must be an integer from 1 to 10"),
        ("count = 1979-05-27", "f:1: count: is a date or time; must be an integer from 1 to 10"),
        ("count = [1]", "f:1: count: is an array; must be an integer from 1 to 10"),
        ("count.x = 1", "f:1: count: is a table; must be an integer from 1 to 10"),
        ("", "f:1: count: is missing; must be an integer from 1 to 10"),
    ] {
        assert_eq!(error(text, |fields| fields.u32("count", 1..=10, None)), message, "{text}");
    }
}

#[test]
fn durations_take_their_unit_from_the_key() {
    for (key, ns) in [("us", 5_000), ("wait_us", 5_000), ("at_ms", 5_000_000), ("save_ns", 5)] {
        assert_eq!(duration_of(key, 5), Duration::from_nanos(ns), "{key}");
    }
    let read =
        with_root("f", "wait_us = 2", KEYS, |fields| fields.duration("wait_us", 0..=9, None));
    assert_eq!(read, Ok(Duration::from_micros(2)));
    let read = with_root("f", "", KEYS, |fields| fields.optional_duration("wait_us", 0..=9));
    assert_eq!(read, Ok(None));
}

#[test]
fn unknown_keys_are_found_first_in_the_order_of_the_text() {
    let fine = |_: &Fields<'_>| Ok(());
    for (text, message) in [
        ("on = true\nzeal = 1\nalso = 2", "f:2: zeal: unknown key; known here: "),
        ("conut = 1", "f:1: conut: unknown key; did you mean `count`?"),
        ("\"\\n\" = 1", "f:1: \"\\n\": unknown key; known here: "),
    ] {
        assert!(error(text, fine).starts_with(message), "{text}: {}", error(text, fine));
    }
}

#[test]
fn exactly_one_of_several_keys_is_taken() {
    let one = |fields: &Fields<'_>| fields.exactly_one(&["a", "b"]).map(|(key, _)| key);
    assert_eq!(with_root("f", "b = 1", KEYS, one), Ok("b"));
    assert_eq!(error("b = 1\na = 1", one), "f:1: b: `a` is there too; only one of: a, b");
    let inner = |fields: &Fields<'_>| one(&fields.required("part", "")?.table(KEYS)?);
    let message = "f:2: part: exactly one of these is needed: a, b";
    assert_eq!(error("\npart = {}", inner), message);
}

#[test]
fn the_other_types_say_what_they_are() {
    let read = |fields: &Fields<'_>| fields.bool("on", None);
    assert_eq!(error("on = 1", read), "f:1: on: is an integer; must be true or false");
    assert_eq!(error("", read), "f:1: on: is missing; must be true or false");
    let read = |fields: &Fields<'_>| fields.tables("list", 1, KEYS).map(|_| ());
    assert_eq!(error("list = 1", read), "f:1: list: is an integer; must be an array of tables");
    assert_eq!(error("list = [{}, {}]", read), "f:1: list: has 2 entries; must be at most 1");
    let message = "f:2: list[0]: is true or false; must be a table of: \
                   count, wait_us, on, kind, list, part, a, b";
    assert_eq!(error("list = [\ntrue]", read), message);
    let read = |fields: &Fields<'_>| fields.name("kind");
    let message =
        "f:1: kind: is \"\"; must be 1 to 64 characters, none of them a control character";
    assert_eq!(error("kind = ''", read), message);
}
