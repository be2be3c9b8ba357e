//! Tasks with one thing wrong.

use super::{Case, LEAST, MOST, check, refusal};

const TASKS: &[Case] = &[
    (
        "priority = 15",
        "priority = 16",
        "f:37: task[0].priority: is 16; must be an integer from 0 to 15",
    ),
    ("weight = 16", "weight = 0", "f:38: task[0].weight: is 0; must be an integer from 1 to 1000"),
    (
        "deadline_us = 17",
        "deadline_us = 0",
        "f:39: task[0].deadline_us: is 0; must be an integer from 1 to 3600000000",
    ),
    (
        "\"train\"",
        "\"\"",
        "f:40: task[0].gang: is \"\"; must be 1 to 64 characters, none of them a control \
         character",
    ),
    ("[2, 0]", "[2, 3]", "f:41: task[0].devices[1]: is 3; must be an integer from 0 to 2"),
    ("[2, 0]", "[2,\n2]", "f:42: task[0].devices[1]: is 2 again; must be distinct"),
    ("[2, 0]", "[]", "f:41: task[0].devices: is empty; must have at least one device"),
    ("queues = 18", "queues = 65", "f:42: task[0].queues: is 65; must be an integer from 1 to 64"),
    (
        "name = \"random\"",
        "name = \"all\"",
        "f:55: task[1].name: \"all\" is already the name of task[0]",
    ),
    (
        "requests = 22",
        "requests = 0",
        "f:46: task[0].requests: is 0; must be an integer from 1 to 1000000000",
    ),
    (
        "at_ms = 27",
        "at_ms = 26",
        "f:52: task[0].changes[1].at_ms: is not later than the one before; must be \
         ascending",
    ),
    (
        "at_ms = 27, priority = 0",
        "at_ms = 27",
        "f:52: task[0].changes[1].priority: is missing; must be an integer from 0 to 15",
    ),
];

#[test]
fn tasks() {
    check(MOST, TASKS);
}

const TASKS_AFTER_TASKS: &[Case] = &[
    (
        "after = \"traced\"",
        "after = \"tracd\"",
        "f:44: task[0].after: no task is called \"tracd\"; did you mean \"traced\"?",
    ),
    (
        "after = \"traced\"",
        "after = \"nobody\"",
        "f:44: task[0].after: no task is called \"nobody\"; must be one of: all, random, \
         traced",
    ),
    (
        "after = \"traced\"",
        "after = \"all\"",
        "f:44: task[0].after: the tasks wait for each other: \"all\" -> \"all\"",
    ),
    (
        "name = \"traced\"",
        "name = \"traced\"\nafter = \"all\"",
        "f:44: task[0].after: the tasks wait for each other: \"all\" -> \"traced\" -> \
         \"all\"",
    ),
    (
        "after = \"traced\"",
        "after = \"random\"",
        "f:44: task[0].after: \"random\" never ends; it must have `requests` or a \
         `trace_us`",
    ),
];

#[test]
fn tasks_after_tasks() {
    check(MOST, TASKS_AFTER_TASKS);
    // A cycle that the first of the tasks only leads into.
    let leading = MOST.replace("name = \"traced\"", "name = \"traced\"\nafter = \"traced\"");
    assert_eq!(
        refusal(&leading, "seed = 18446744073709551615", "seed = 1"),
        "f:61: task[2].after: the tasks wait for each other: \"traced\" -> \"traced\""
    );
}

const ARRIVALS_AND_REQUESTS: &[Case] = &[
    (
        "{ poisson_us = 28 }",
        "{}",
        "f:56: task[1].arrivals: exactly one of these is needed: every_us, poisson_us, \
         trace_us, back_to_back",
    ),
    (
        "{ poisson_us = 28 }",
        "{ poisson_us = 28, back_to_back = 1 }",
        "f:56: task[1].arrivals.back_to_back: `poisson_us` is there too; only one of: \
         every_us, poisson_us, trace_us, back_to_back",
    ),
    (
        "{ poisson_us = 28 }",
        "{ poisson_us = 28, phase_us = 1 }",
        "f:56: task[1].arrivals.phase_us: is used only with `every_us`",
    ),
    (
        "arrivals = { poisson_us = 28 }\n",
        "",
        "f:54: task[1].arrivals: is missing; must be a table with one kind of arrivals",
    ),
    (
        "[0, 29, 29, 30]",
        "[0, 29, 28]",
        "f:61: task[2].arrivals.trace_us[2]: is 28 after 29; must be ascending",
    ),
    (
        "[0, 29, 29, 30]",
        "[]",
        "f:61: task[2].arrivals.trace_us: is empty; must have at least one entry",
    ),
    (
        "[0, 29, 29, 30]",
        "7",
        "f:61: task[2].arrivals.trace_us: is an integer; must be an array of integers",
    ),
];

const ARRIVALS_AND_REQUESTS_OF_LEAST: &[Case] = &[
    (
        "back_to_back = 1",
        "back_to_back = 0",
        "f:12: task[0].arrivals.back_to_back: is 0; must be an integer from 1 to 1000",
    ),
    ("[{ kernel = \"k\" }]", "[]", "f:13: task[0].request: is empty; must have at least one step"),
    (
        "request = [{ kernel = \"k\" }]",
        "",
        "f:10: task[0].request: is empty; must have at least one step",
    ),
    (
        "[{ kernel = \"k\" }]",
        "[{ kernel = \"q\" }]",
        "f:13: task[0].request[0].kernel: no kernel is called \"q\"; must be one of: k",
    ),
    (
        "{ kernel = \"k\" }",
        "{ kernel = \"k\", count = 100_001 }",
        "f:13: task[0].request[0].count: is 100001; must be an integer from 1 to 100000",
    ),
    (
        "{ kernel = \"k\" }",
        "{ count = 1 }",
        "f:13: task[0].request[0].kernel: is missing; must be the name of a kernel",
    ),
    (
        "{ kernel = \"k\" }",
        "{ kernel = \"k\", cpu = 1 }",
        "f:13: task[0].request[0].cpu: unknown key; known here: kernel, count, sync, \
         cpu_us",
    ),
];

#[test]
fn arrivals_and_requests() {
    check(MOST, ARRIVALS_AND_REQUESTS);
    check(LEAST, ARRIVALS_AND_REQUESTS_OF_LEAST);
}
