use super::*;

fn args(lc: &[u32], be: &[u32]) -> SlicesArgs {
    SlicesArgs { lc: lc.to_vec(), be: be.to_vec(), seconds: 1, json: false }
}

#[test]
fn every_group_is_changed_and_remembered() {
    let groups = [
        Sliced { client: 1, group: 10, slice_us: Some(2048) },
        Sliced { client: 2, group: 11, slice_us: Some(1024) },
    ];
    let acts = acts(7, &groups, BE_US).unwrap();
    let slice = |client, group, original_us| {
        GpuChange::from(NvidiaChange::Slice { client, group, original_us, set_us: BE_US })
    };
    assert_eq!(acts, [slice(1, 10, 2048), slice(2, 11, 1024)]);
}

#[test]
fn what_could_not_be_put_back_is_not_changed() {
    let known = Sliced { client: 1, group: 10, slice_us: Some(2048) };
    let unknown = Sliced { client: 1, group: 0x20, slice_us: None };
    let error = acts(7, &[known, unknown], LC_US).unwrap_err();
    assert!(error.contains("group 0x20 of process 7"), "{error}");
    assert!(acts(7, &[], LC_US).unwrap_err().contains("no GPU work"));
}

#[test]
fn a_process_is_of_one_kind() {
    assert!(each_once(&args(&[1, 2], &[3])).is_ok());
    assert!(each_once(&args(&[1], &[1])).is_err());
    assert!(each_once(&args(&[1], &[2, 2])).is_err());
}

#[test]
fn another_commands_processes_are_left_alone() {
    let root = std::env::temp_dir().join(format!("gpreempt-slices-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&root);
    let journal = Journal::at(root.clone()).unwrap();
    assert!(refuse_rivals(&journal).is_ok());
    let own = gpreempt_device::process::ProcessInfo::read(std::process::id()).unwrap().key;
    let session = journal.begin().unwrap();
    let write = |process| {
        let entry = gpreempt_device::journal::ProcessRecord {
            process,
            changes: Vec::new(),
            until_ns: None,
        };
        session.write(&entry).unwrap();
    };
    // Somebody who is gone is in nobody's way.
    write(ProcessKey { start_ticks: own.start_ticks + 1, ..own });
    assert!(refuse_rivals(&journal).is_ok());
    write(own);
    assert!(matches!(refuse_rivals(&journal), Err(Failure::Input(_))));
    std::fs::remove_dir_all(root).unwrap();
}

#[test]
fn lines_are_for_people_and_for_programs() {
    let target = Target {
        process: ProcessKey { pid: 7, start_ticks: 1 },
        name: "train".into(),
        acts: acts(7, &[Sliced { client: 1, group: 10, slice_us: Some(2048) }], 1).unwrap(),
    };
    let line = Set { at_ns: 5, processes: vec![SetProcess::of(&target)] };
    assert_eq!(line.to_string(), "slices: 7 (train) 1 groups [2048] -> 1 us");
    assert_eq!(
        serde_json::to_string(&line).unwrap(),
        "{\"line\":\"slices\",\"at_ns\":5,\"processes\":[{\"pid\":7,\"name\":\"train\",\
         \"groups\":1,\"original_us\":[2048],\"set_us\":1}]}"
    );
    let line = Final { until_ns: 9, ended: Ended::Signal, undone: true };
    assert_eq!(line.to_string(), "asked to stop, everything is as it was");
    assert_eq!(
        serde_json::to_string(&line).unwrap(),
        "{\"line\":\"final\",\"until_ns\":9,\"ended\":\"signal\",\"undone\":true}"
    );
}
