//! The order in one lane.

use core::cmp::Reverse;

use crate::id::{QueueId, TaskId};
use crate::policy::Rank;
use crate::scheduler::order::{Lane, Place, Position, SeatKey};

fn place(level: u8, number: u64) -> Place {
    Place {
        rank: Rank { boosted: false, level, order: Reverse(0) },
        seat: Reverse(SeatKey { task: TaskId(number), queue: None }),
        queue: Reverse(QueueId(number)),
    }
}

#[test]
fn a_mixed_lane_has_a_loser_until_it_is_gone() {
    let mut lane = Lane::default();
    let [low, high] = [place(1, 1), place(9, 2)];
    lane.insert(QueueId(1), Position::On(low));
    assert_eq!(lane.loser(), None);
    lane.insert(QueueId(2), Position::On(high));
    assert_eq!(lane.loser(), Some((low, high)));
    lane.remove(QueueId(1), Position::On(low));
    lane.insert(QueueId(1), Position::Off(low));
    assert_eq!(lane.loser(), None);
    assert_eq!(lane.returner(), None);
    lane.remove(QueueId(2), Position::On(high));
    assert_eq!(lane.returner(), Some(low));
}

#[test]
fn whoever_may_run_unseen_makes_way_for_the_more_important_and_for_nobody_else() {
    let mut lane = Lane::default();
    let [low, equal, high] = [place(1, 1), place(1, 2), place(9, 3)];
    lane.insert(QueueId(1), Position::Unseen(low));
    assert_eq!((lane.top(), lane.loser(), lane.is_busy()), (None, None, false));
    lane.insert(QueueId(2), Position::On(equal));
    assert_eq!((lane.loser(), lane.len()), (None, 2));
    lane.insert(QueueId(3), Position::On(high));
    lane.remove(QueueId(2), Position::On(equal));
    assert_eq!(lane.loser(), Some((low, high)));
}

#[test]
fn equals_share_unless_the_lane_is_exclusive() {
    let mut lane = Lane::default();
    let [first, second] = [place(1, 1), place(1, 2)];
    lane.insert(QueueId(1), Position::On(first));
    lane.insert(QueueId(2), Position::On(second));
    assert_eq!(lane.loser(), None);
    lane.exclusive = true;
    assert_eq!(lane.loser(), Some((second, first)));
}

#[test]
fn whoever_may_still_run_has_to_go_before_another_comes_where_only_one_may() {
    let mut lane = Lane::default();
    lane.exclusive = true;
    lane.insert(QueueId(1), Position::Idle);
    assert_eq!(lane.in_the_way(), None, "no other queue has work");
    lane.insert(QueueId(2), Position::Off(place(1, 2)));
    assert_eq!((lane.in_the_way(), lane.returner()), (Some(QueueId(1)), None));
    lane.remove(QueueId(1), Position::Idle);
    assert_eq!((lane.in_the_way(), lane.returner()), (None, Some(place(1, 2))));
}

#[test]
fn nobody_comes_back_while_somebody_is_still_leaving() {
    let mut lane = Lane::default();
    lane.preempting = 1;
    lane.insert(QueueId(1), Position::Off(place(1, 1)));
    assert_eq!(lane.returner(), None);
    lane.preempting = 0;
    assert_eq!(lane.returner(), Some(place(1, 1)));
}
