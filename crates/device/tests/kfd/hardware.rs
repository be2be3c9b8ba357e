//! What the devices say of a process, without a journal.

use gpreempt_device::act::Act;
use gpreempt_device::amd::SiteName;
use gpreempt_device::amd::act::AmdAct;
use gpreempt_device::hardware::{DevicePlaces, Righted, set_right};
use gpreempt_device::process::ProcessInfo;
use gpreempt_stage::until;

use crate::driver::{attach, kfd, open_door};

#[test]
fn a_process_that_no_journal_names_is_found_paused_and_resumed() {
    let mut emulator = kfd("--compute-units 8");
    let mut load = emulator.load("be --kernel-us 4000 --groups 4").unwrap();
    if attach(&open_door(&emulator), load.pid()).is_none() {
        return;
    }
    let site = SiteName::emulated(emulator.place());
    let places = DevicePlaces { amd: vec![site.clone()], ..DevicePlaces::default() };
    let key = ProcessInfo::read(load.pid()).unwrap().key;
    let pause = Act::Amd(AmdAct::Pause { site });
    until("it runs", || places.read(key).stopped.is_empty());
    assert_eq!(set_right(key, &[], || places.read(key)).unwrap(), Righted::Running);
    pause.on_device().perform(key, false).unwrap();
    until("it is paused", || places.read(key).stopped == [pause.clone()]);
    // What its owner did itself stays as it is.
    let own = [pause.clone()];
    assert_eq!(set_right(key, &own, || places.read(key)).unwrap(), Righted::Running);
    assert!(places.stopped().contains(&(key, pause)));
    assert_eq!(set_right(key, &[], || places.read(key)).unwrap(), Righted::Resumed);
    load.finish_exact().unwrap();
    emulator.assert_alive();
}
