use super::*;

/// The memory after blocks ran that often.
fn data(runs: &[u32]) -> Vec<u32> {
    let threads = usize::try_from(Function::THREADS).unwrap();
    runs.iter().flat_map(|runs| [runs * Kernel::INCREMENTS, 99].repeat(threads)).collect()
}

#[test]
fn a_launch_is_complete_when_every_block_ran() {
    assert!(is_complete(&[1, 0, 1, 0]));
    assert!(is_complete(&[2, 0, 1, 1]));
    assert!(!is_complete(&[1, 0, 0, 1]));
    assert!(!is_complete(&[0, 0, 0, 0]));
    assert!(!is_complete(&[]));
}

#[test]
fn work_done_once_is_exact() {
    let mut units = Units::new(2);
    units.complete(&[1, 0, 1, 0], 1);
    units.complete(&[1, 3, 1, 3], 4);
    let exactness = units.exactness(Some(&data(&[2, 2])));
    assert!(!exactness.is_fail());
    assert_eq!(exactness.to_string(), "pass: 4 units, 0 lost, 0 done twice or more");
    assert_eq!(exactness.counts.left, 6);
}

#[test]
fn work_done_again_is_counted_and_no_failure() {
    let mut units = Units::new(2);
    // The first block ran before the flag was set, the second left; then both ran.
    units.complete(&[2, 0, 1, 1], 2);
    let exactness = units.exactness(Some(&data(&[2, 1])));
    assert!(!exactness.is_fail());
    assert_eq!(
        exactness.to_string(),
        "pass: 2 units, 0 lost, 1 done twice or more (at most 2 times)"
    );
}

#[test]
fn a_cleared_entry_that_comes_back_differs_from_one_that_does_not() {
    let (mut back, mut gone) = (Units::new(1), Units::new(1));
    back.complete(&[1, 1], 2);
    gone.complete(&[1, 0], 2);
    let (back, gone) = (back.exactness(Some(&data(&[1]))), gone.exactness(Some(&data(&[1]))));
    assert_eq!((back.counts.vanished, gone.counts.vanished), (0, 1));
    assert_eq!((back.counts.left, gone.counts.left), (1, 0));
    assert!(!back.is_fail() && !gone.is_fail());
    // One that runs after the flag is gone does its work a second time.
    let mut late = Units::new(1);
    late.complete(&[2, 0], 2);
    assert_eq!(late.exactness(Some(&data(&[2]))).counts.twice, 1);
}

#[test]
fn what_nobody_can_explain_fails() {
    for (record, submissions) in [([2, 0, 2, 0], 1), ([1, 1, 1, 0], 2), ([1, 0, 0, 0], 1)] {
        let mut units = Units::new(2);
        units.complete(&record, submissions);
        let exactness = units.exactness(Some(&data(&[record[0], record[2]])));
        assert!(exactness.is_fail(), "{record:?}");
    }
}

#[test]
fn the_memory_is_believed_more_than_the_record() {
    let mut units = Units::new(2);
    units.complete(&[1, 0, 1, 0], 1);
    for memory in [data(&[1, 2]), data(&[1, 0]), data(&[1]), Vec::new()] {
        assert!(units.exactness(Some(&memory)).is_fail());
    }
    let exactness = units.exactness(None);
    assert!(!exactness.is_fail());
    assert!(exactness.to_string().starts_with("unknown: "), "{exactness}");
}

#[test]
fn parts_of_launches_that_were_never_complete_are_in_the_memory_too() {
    let mut units = Units::new(2);
    units.complete(&[1, 0, 1, 0], 1);
    units.abandon(&[1, 0, 0, 1], 1);
    let exactness = units.exactness(Some(&data(&[2, 1])));
    assert!(!exactness.is_fail(), "{exactness}");
    assert_eq!((exactness.counts.unfinished, exactness.counts.units), (1, 2));
}

#[test]
fn programs_read_the_counts_too() {
    let mut units = Units::new(1);
    units.complete(&[1, 0], 1);
    assert_eq!(
        serde_json::to_string(&units.exactness(Some(&data(&[1])))).unwrap(),
        "{\"result\":\"pass\",\"launches\":1,\"unfinished\":0,\"units\":1,\"lost\":0,\"twice\":0,\
         \"most\":1,\"left\":0,\"vanished\":0,\"unexplained\":0,\"wrong_words\":0}"
    );
}
