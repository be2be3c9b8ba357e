//! What cannot be undone at once, and what hangs.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;

use super::*;
use crate::act::UndoError;
use crate::journal::{Act, Journal};
use crate::nvidia::act::NvidiaAct;
use crate::process::{ProcessInfo, ProcessKey};

/// A journal of its own, and the process that this is.
fn scene(name: &str) -> (PathBuf, Journal, ProcessKey) {
    let root = std::env::temp_dir().join(format!("gpreempt-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&root);
    let journal = Journal::at(root.clone()).unwrap();
    (root, journal, ProcessInfo::read(std::process::id()).unwrap().key)
}

fn entry(process: ProcessKey) -> Entry {
    let act = Act::Nvidia(NvidiaAct::Slice { client: 1, group: 2, original_us: 2048, set_us: 1 });
    Entry { process, acts: vec![act], until_ns: None }
}

#[test]
fn a_process_that_is_there_is_not_given_up() {
    let (root, journal, process) = scene("patient");
    let held = journal.begin().unwrap().hold().unwrap().unwrap();
    held.session().write(&entry(process)).unwrap();
    let tries = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&tries);
    let mut undoing = Undoing::new(move |_: &Entry| {
        let is_early = counted.fetch_add(1, Ordering::SeqCst) < 3;
        if is_early { Err(UndoError::SilentDevice("a debugger")) } else { Ok(()) }
    });
    undo_patiently(&held, &mut undoing, 2).unwrap();
    assert_eq!(tries.load(Ordering::SeqCst), 4);
    // Of one that is gone nothing more is expected.
    held.session().write(&entry(ProcessKey { start_ticks: 0, ..process })).unwrap();
    let mut undoing = Undoing::new(|_: &Entry| Err(UndoError::SilentDevice("never")));
    assert!(undo_patiently(&held, &mut undoing, 2).is_err());
    std::fs::remove_dir_all(root).unwrap();
}

#[test]
fn a_call_that_hangs_keeps_nobody_else_waiting() {
    let (root, journal, process) = scene("hangs");
    let hanging = ProcessKey { pid: 1, ..process };
    // In one session with it, and in one that comes after it.
    let (first, second) = (journal.begin().unwrap(), journal.begin().unwrap());
    for key in [hanging, process] {
        first.write(&entry(key)).unwrap();
    }
    second.write(&entry(process)).unwrap();
    let (goes_on, waits) = channel::<()>();
    let waits = Arc::new(std::sync::Mutex::new(waits));
    let tries = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&tries);
    let undo = move |entry: &Entry| {
        if entry.process == hanging {
            counted.fetch_add(1, Ordering::SeqCst);
            let _ = waits.lock().unwrap().recv();
        }
        Ok(())
    };
    assert!(clean_up(&journal, undo).is_err(), "one is left");
    assert_eq!(first.entries().unwrap(), [entry(hanging)]);
    assert!(!second.folder().exists());
    assert_eq!(tries.load(Ordering::SeqCst), 1, "nobody begins what somebody is at");
    drop(goes_on);
    std::fs::remove_dir_all(root).unwrap();
}
