//! What the devices say of a process, without a journal.

use gpreempt_device::act;
use gpreempt_device::amd::SiteName;
use gpreempt_device::hardware::{DevicePlaces, Righted, set_right};
use gpreempt_device::journal::Act;
use gpreempt_device::process::ProcessInfo;

use crate::scene::{Emulator, attach, eventually};

#[test]
fn a_process_that_no_journal_names_is_found_paused_and_resumed() {
    let mut emulator = Emulator::start("stray", "--compute-units 8");
    let mut load = emulator.load("be --kernel-us 4000 --groups 4");
    if attach(&emulator.door(), load.pid()).is_none() {
        return;
    }
    let site = SiteName::emulated(emulator.folder());
    let places = DevicePlaces { amd: vec![site.clone()], ..DevicePlaces::default() };
    let key = ProcessInfo::read(load.pid()).unwrap().key;
    let pause = Act::AmdPause { site };
    eventually("it runs", || places.read(key).stopped.is_empty().then_some(()));
    assert_eq!(set_right(key, &[], || places.read(key)).unwrap(), Righted::Running);
    act::perform(key, &pause, false).unwrap();
    eventually("it is paused", || (places.read(key).stopped == [pause.clone()]).then_some(()));
    // What its owner did itself stays as it is.
    let own = [pause.clone()];
    assert_eq!(set_right(key, &own, || places.read(key)).unwrap(), Righted::Running);
    assert!(places.stopped().contains(&(key, pause)));
    assert_eq!(set_right(key, &[], || places.read(key)).unwrap(), Righted::Resumed);
    load.finish_exact();
    emulator.assert_alive();
}
