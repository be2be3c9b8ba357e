//! What a journal keeps, and what it lets go of.

use super::*;
use crate::nvidia::act::NvidiaAct;

fn journal(name: &str) -> Journal {
    let root = std::env::temp_dir().join(format!("gpreempt-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&root);
    Journal::at(root).unwrap()
}

fn entry(pid: u32) -> Entry {
    let (client, group) = (0xc1d0_0001, 0x5c00_0010);
    let act = NvidiaAct::Slice { client, group, original_us: 2048, set_us: 1 };
    Entry { process: ProcessKey { pid, start_ticks: 7 }, acts: vec![act.into()], until_ns: None }
}

#[test]
fn what_is_written_can_be_read_until_it_is_forgotten() {
    let journal = journal("write");
    let session = journal.begin().unwrap();
    for pid in [12, 11] {
        session.write(&entry(pid)).unwrap();
    }
    assert_eq!(session.entries().unwrap(), [entry(11), entry(12)]);
    assert!(journal.touches(entry(11).process) && !journal.touches(entry(13).process));
    fs::write(session.folder().join("9-9.json"), "{ half").unwrap();
    assert_eq!((session.entries().unwrap().len(), session.len().unwrap()), (2, 3));
    session.forget(entry(11).process).unwrap();
    session.forget(entry(11).process).unwrap();
    assert_eq!(session.entries().unwrap(), [entry(12)]);
    fs::remove_dir_all(journal.root).unwrap();
}

#[test]
fn what_cannot_be_read_is_not_gone() {
    let journal = journal("unreadable");
    let session = journal.begin().unwrap();
    let odd = session.folder().join("9-9.json");
    fs::write(&odd, r#"{"process":{"pid":9,"start_ticks":9},"acts":[{"kind":"new"}]}"#).unwrap();
    assert_eq!(session.entries().unwrap(), []);
    let folder = session.folder().to_owned();
    assert!(session.hold().unwrap().unwrap().end().is_err());
    assert!(odd.exists() && folder.exists());
    fs::remove_dir_all(journal.root).unwrap();
}

#[test]
fn only_sessions_are_sessions() {
    let journal = journal("strangers");
    for folder in ["photos", "session-1", "session-x-0", "session-1-0/deep"] {
        fs::create_dir_all(journal.root.join(folder)).unwrap();
    }
    std::os::unix::fs::symlink("/tmp", journal.root.join("session-2-0")).unwrap();
    let names: Vec<PathBuf> =
        journal.sessions().unwrap().into_iter().map(|session| session.folder).collect();
    assert_eq!(names, [journal.root.join("session-1-0")]);
    let held = Session::at(names[0].clone()).hold().unwrap().unwrap();
    assert!(held.end().is_err(), "a folder that is not ours is in it");
    assert!(names[0].join("deep").exists());
    fs::remove_dir_all(journal.root).unwrap();
}

#[test]
fn a_folder_that_others_can_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let journal = journal("open");
    fs::set_permissions(&journal.root, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(Journal::at(journal.root.clone()).is_err());
    fs::remove_dir_all(journal.root).unwrap();
}

#[test]
fn a_session_has_one_holder_and_ends_when_nothing_is_left() {
    let journal = journal("hold");
    let folder = journal.begin().unwrap().folder;
    let session = || Session::at(folder.clone());
    let held = session().hold().unwrap().unwrap();
    assert!(session().hold().unwrap().is_none());
    held.session().write(&entry(5)).unwrap();
    assert!(held.end().is_err());
    let held = session().hold().unwrap().unwrap();
    held.session().forget(entry(5).process).unwrap();
    held.end().unwrap();
    assert!(journal.sessions().unwrap().is_empty());
    fs::remove_dir_all(journal.root).unwrap();
}

#[test]
fn a_newer_text_is_not_forgotten_for_an_older_one() {
    let journal = journal("revisions");
    let session = journal.begin().unwrap();
    session.write(&entry(11)).unwrap();
    let [(_, first)] = session.revisions().unwrap()[..] else { panic!("there is one") };
    // The same text again, and still another one.
    session.write(&entry(11)).unwrap();
    session.forget_revision(entry(11).process, first).unwrap();
    assert_eq!(session.entries().unwrap(), [entry(11)]);
    let [(_, second)] = session.revisions().unwrap()[..] else { panic!("there is one") };
    assert_ne!(first, second);
    // Somebody was killed who had taken it.
    let path = session.path_of(entry(11).process);
    fs::rename(&path, path.with_extension(TAKEN)).unwrap();
    assert_eq!((session.entries().unwrap(), session.len().unwrap()), (vec![entry(11)], 1));
    session.forget_revision(entry(11).process, first).unwrap();
    assert!(path.exists(), "put back");
    fs::rename(&path, path.with_extension(TAKEN)).unwrap();
    session.forget_revision(entry(11).process, second).unwrap();
    session.forget_revision(entry(11).process, second).unwrap();
    assert!(session.is_empty().unwrap());
    session.hold().unwrap().unwrap().end().unwrap();
    fs::remove_dir_all(journal.root).unwrap();
}
