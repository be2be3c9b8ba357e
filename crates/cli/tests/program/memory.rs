//! Commands about GPU memory, with a daemon whose answers the test decides.

use gpreempt_core::priority::Priority;
use gpreempt_wire::process::{Process, SchedAttrChange};
use gpreempt_wire::reply::RefusalCode;
use gpreempt_wire::request::{EvictScope, Request};
use gpreempt_wire::statistics::{DeviceSnapshot, Snapshot, TaskState};
use serde_json::json;

use super::Stage;
use super::fake_daemon::{Answer, FakeDaemon};
use super::with_daemon::snapshot;

fn process(pid: u32) -> Process {
    Process::new(pid, 0).unwrap()
}

fn evict(pid: u32, lease_ms: u32, scope: EvictScope) -> Request {
    Request::Evict { process: process(pid), lease_ms, scope }
}

/// Process 4242 has 18 GiB, on the host once they were evicted.
fn snapshot_with(is_out: bool) -> Snapshot {
    let mut snapshot = snapshot(if is_out { TaskState::Evicted } else { TaskState::Running });
    let size = Some(18 << 20);
    let task = &mut snapshot.tasks[0];
    (task.gpu_memory_kib, task.host_memory_kib) = if is_out { (None, size) } else { (size, None) };
    task.evicted_why = is_out.then(|| "user 1000 asked for it".to_owned());
    snapshot.devices.push(DeviceSnapshot { id: 3, uuid: "GPU-3".into(), ..Default::default() });
    snapshot
}

/// A daemon that moves the memory of process 4242, and refuses any other.
fn daemon(folder: &Stage) -> FakeDaemon {
    let mut is_out = false;
    FakeDaemon::start(folder.root(), move |request| match request {
        Request::Snapshot => Answer::Snapshot(Box::new(snapshot_with(is_out))),
        Request::Evict { process, .. } if process.pid() != 4242 => {
            Answer::refuse(RefusalCode::CannotEvict, "process 7 has no GPU memory")
        }
        Request::Restore { .. } if !is_out => {
            Answer::refuse(RefusalCode::NotEvicted, "train (4242) is not evicted")
        }
        Request::Evict { .. } | Request::Restore { .. } => {
            is_out = matches!(request, Request::Evict { .. });
            Answer::Ok
        }
        _ => Answer::Ok,
    })
}

/// The requests without those for a snapshot.
fn changes(daemon: &FakeDaemon) -> Vec<Request> {
    daemon.heard().into_iter().filter(|request| *request != Request::Snapshot).collect()
}

#[test]
fn an_eviction_outlasts_the_command_and_restore_ends_it() {
    let folder = Stage::new("evict").unwrap();
    let daemon = daemon(&folder);
    let text = folder.stdout(&["evict", "4242"]);
    let expected = "4242 (train) is evicted: 18 GiB are on the host; `gpreempt restore 4242` \
                    ends that\n";
    assert_eq!(text, expected);
    let noted = folder.run(&["resume", "--all"]);
    let noted = String::from_utf8(noted.stderr).unwrap();
    assert!(noted.starts_with("gpreempt: 4242 (train) is evicted (user 1000 asked"), "{noted}");
    assert_eq!(folder.stdout(&["restore", "4242"]), "4242 was restored\n");
    let (code, line) = folder.failure(&["restore", "4242"]);
    assert_eq!((code, line.as_str()), (2, "gpreempt: train (4242) is not evicted"));
    let text = folder.stdout(&["evict", "--tree", "4242", "--for", "10m"]);
    let expected = "4242 (train) is evicted for 600s: 18 GiB are on the host\n";
    assert_eq!(text, expected);
    let restore = Request::Restore { process: process(4242) };
    let wanted = [
        evict(4242, 0, EvictScope::Process),
        Request::ResumeAll,
        restore.clone(),
        restore,
        evict(4242, 600_000, EvictScope::Tree),
    ];
    assert_eq!(changes(&daemon), wanted);
}

#[test]
fn a_process_that_is_refused_does_not_keep_others_on_the_gpu() {
    let folder = Stage::new("evict-some").unwrap();
    let _daemon = daemon(&folder);
    let (code, line) = folder.failure(&["evict", "7"]);
    assert_eq!((code, line.as_str()), (2, "gpreempt: process 7 has no GPU memory"));
    let output = folder.run(&["evict", "7", "4242", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&line["line"], &line["pid"]), (&json!("evicted"), &json!(4242)));
    assert_eq!(line["host_memory_kib"], 18 << 20);
    let error: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(error["error"], "7 was not evicted: process 7 has no GPU memory");
    let (code, line) = folder.failure(&["evict", "0"]);
    assert_eq!((code, line.as_str()), (2, "gpreempt: there is no process 0"));
}

#[test]
fn a_suspension_with_evict_restores_the_memory_when_it_ends() {
    let folder = Stage::new("suspend-evict").unwrap();
    let daemon = daemon(&folder);
    let text = folder.stdout(&["suspend", "4242", "--evict", "--for", "100ms"]);
    let expected = "4242 is evicted and suspended for 100ms\n4242 was restored\n4242 was resumed\n";
    assert_eq!(text, expected);
    let changes = changes(&daemon);
    assert_eq!(changes[0], evict(4242, 10_000, EvictScope::Process));
    assert!(matches!(changes[1], Request::Suspend { .. }), "{changes:?}");
    let last = &changes[changes.len() - 2..];
    let (resume, restore) =
        (Request::Resume { process: process(4242) }, Request::Restore { process: process(4242) });
    assert_eq!(last, [resume, restore]);
    let (code, line) = folder.failure(&["suspend", "7", "--evict", "--for", "100ms"]);
    assert_eq!((code, line.as_str()), (2, "gpreempt: process 7 has no GPU memory"));
}

#[test]
fn a_program_starts_when_there_is_room_for_its_memory() {
    let folder = Stage::new("run-memory").unwrap();
    let daemon = daemon(&folder);
    let show = "echo $GPREEMPT_MEMORY $GPREEMPT_EVICTABLE";
    let run = ["run", "-p", "12", "--memory", "60GiB", "--evictable", "--gpu", "GPU-3"];
    assert_eq!(folder.stdout(&[&run[..], &["sh", "-c", show]].concat()), "60GiB 1\n");
    let change = SchedAttrChange {
        priority: Priority::new(12),
        evictable: Some(true),
        ..SchedAttrChange::default()
    };
    let process = Process::SENDER;
    let wanted = [
        Request::Register { process, change },
        Request::MakeRoom { process, bytes: 60 << 30, device: Some(3) },
    ];
    assert_eq!(changes(&daemon), wanted);
    let (code, line) =
        folder.failure(&["run", "-p", "12", "--memory", "60G", "--gpu", "5", "--", "true"]);
    assert_eq!((code, line.as_str()), (2, "gpreempt: gpreemptd knows no GPU 5; it knows GPU-3"));
}

#[test]
fn a_program_without_room_is_not_started() {
    let folder = Stage::new("run-no-room").unwrap();
    let sentence = "GPU-3 lacks 20 GiB; nothing was evicted";
    let _daemon = FakeDaemon::start(folder.root(), move |request| match request {
        Request::MakeRoom { .. } => Answer::refuse(RefusalCode::NoRoom, sentence),
        _ => Answer::Ok,
    });
    let words = ["run", "-p", "12", "--memory", "60GiB", "touch", "started"];
    let (code, line) = folder.failure(&words);
    assert_eq!((code, line), (2, format!("gpreempt: {sentence}")));
    assert!(!folder.path("started").exists());
    for memory in ["vllm", "60", "0GiB", "60 GiB"] {
        let (code, line) = folder.failure(&["run", "-p", "12", "--memory", memory, "true"]);
        assert_eq!((code, line.lines().count()), (2, 1), "{line}");
        assert!(line.contains("--memory <SIZE>") && line.contains("24GiB"), "{line}");
    }
}
