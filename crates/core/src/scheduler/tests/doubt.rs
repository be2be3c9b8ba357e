//! Kernels that run while nobody sees it.

use alloc::vec;

use super::world::{STOP, World, ms, with};
use crate::config::Config;
use crate::id::QueueId;

/// Rings are read every five milliseconds. The low queue fetched something a while ago, and looks
/// idle.
fn world() -> World {
    let config = Config { interval: ms(5), ..Config::default() };
    let mut world = World::with_device(config, STOP);
    world.task(1, with(2));
    world.task(2, with(12));
    world.busy(1);
    world.fetched(1);
    world.run(ms(20));
    assert!(!world.view(1).active);
    world
}

#[test]
fn a_kernel_that_nobody_sees_is_not_in_the_way_of_important_work() {
    let mut world = world();
    world.busy(2);
    world.fetched(2);
    world.run(ms(6));
    assert_eq!((world.running(), world.stopped()), (vec![2], vec![1]));
    // It goes on as soon as the other one looks idle, and is stopped again for the next.
    world.run(ms(10));
    assert_eq!(world.stopped(), []);
    world.busy(2);
    world.run(ms(6));
    assert_eq!(world.stopped(), [1]);
}

#[test]
fn whoever_looks_idle_keeps_nobody_off_and_is_idle_in_the_end() {
    let mut world = world();
    // An important one that only looks idle does not keep the other one off.
    world.busy(2);
    world.fetched(2);
    world.run(ms(20));
    assert_eq!(world.stopped(), []);
    world.run(ms(200));
    let before = world.commands.len();
    world.busy(2);
    world.run(ms(50));
    assert_eq!(world.commands.len(), before, "nothing can run in the low one any more");
}

#[test]
fn a_device_that_says_so_is_believed() {
    let mut world = world();
    world.done(1);
    world.run(ms(6));
    world.busy(2);
    world.run(ms(20));
    assert_eq!(world.commands, []);
}

#[test]
fn doubt_ends_also_where_the_queue_cannot_be_stopped() {
    let mut world = world();
    world.broken.insert(QueueId(1));
    world.busy(2);
    world.run(ms(400));
    let before = world.commands.len();
    assert!(before > 1, "it was tried more than once");
    world.run(ms(800));
    assert_eq!(world.commands.len(), before, "nothing can run in it any more");
}
