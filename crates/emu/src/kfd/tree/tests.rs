use gpreempt_core::id::QueueId;
use gpreempt_kfd::abi::trap::QueueEntry;

use super::*;
use crate::kfd::driver::QueueView;

const SHAPE: Shape = Shape { devices: 2, gfx: 90_402, xccs: 4, compute_units: 304 };

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("gpreempt-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    folder
}

fn queue(name: u32) -> QueueView {
    let entry = QueueEntry {
        queue_id: name,
        gpu_id: 7,
        ring_size: 64,
        queue_type: 2,
        ..QueueEntry::default()
    };
    QueueView {
        entry,
        device_id: QueueId(name.into()),
        serial: u64::from(name) + 1,
        priority: 11,
        is_on: true,
        is_preempted: false,
    }
}

fn process(pid: u32, pasid: u32, queues: &[u32]) -> ProcessView {
    ProcessView { pid, pasid, queues: queues.iter().map(|name| queue(*name)).collect() }
}

#[test]
fn processes_and_queues_come_and_go() {
    let folder = folder("tree");
    let mut tree = Tree::create(&folder, SHAPE).unwrap();
    let proc = folder.join("sys/proc");
    tree.show(&[process(42, 1, &[0, 3]), process(43, 2, &[])]).unwrap();
    assert_eq!(fs::read_to_string(proc.join("42/queues/3/type")).unwrap(), "0");
    assert_eq!(fs::read_to_string(proc.join("42/queues/3/gpuid")).unwrap(), "7");
    assert_eq!(fs::read_to_string(proc.join("43/pasid")).unwrap(), "2\n");
    tree.show(&[process(42, 1, &[3, 4])]).unwrap();
    assert!(!proc.join("43").exists() && !proc.join("42/queues/0").exists());
    assert!(proc.join("42/queues/4").exists());
    // Another process with the same number.
    tree.show(&[process(42, 3, &[])]).unwrap();
    assert!(!proc.join("42/queues/4").exists());
    tree.show_remaps(1, 5).unwrap();
    assert_eq!(fs::read_to_string(folder.join("sys/topology/nodes/2/remaps")).unwrap(), "5\n");
    let properties = fs::read_to_string(folder.join("sys/topology/nodes/1/properties")).unwrap();
    assert!(properties.contains("gfx_target_version 90402\n"), "{properties}");
    drop(tree);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_is_not_an_emulators_is_not_replaced() {
    let folder = folder("precious");
    fs::create_dir_all(folder.join("sys")).unwrap();
    assert!(Tree::create(&folder, SHAPE).is_err());
    assert!(folder.join("sys").exists());
    fs::remove_dir_all(&folder).unwrap();
    // What an emulator left behind that was killed is.
    drop(Tree::create(&folder, SHAPE).unwrap());
    fs::create_dir_all(folder.join("sys/old")).unwrap();
    fs::write(folder.join(MARK), "").unwrap();
    let tree = Tree::create(&folder, SHAPE).unwrap();
    assert!(!folder.join("sys/old").exists());
    drop(tree);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_dump_has_every_die_and_the_newest_queue_first() {
    let text = mqds(&[process(42, 0x8001, &[0, 1])], 4, |queue| queue.0);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "Process 42 PASID 0x8001:");
    assert_eq!(lines[1], "  Compute queue on device 7");
    assert!(lines[2].starts_with("    00000000: "));
    assert_eq!(lines.len(), 1 + 2 * (1 + 4 * 64));
    // Words 128 to 135: active, pipe priority, priority.
    let words: Vec<&str> = lines[2 + 16].split_whitespace().collect();
    assert_eq!(
        (words[0], words[3], words[6], words[7]),
        ("00000200:", "00000001", "00000002", "0000000b")
    );
}
