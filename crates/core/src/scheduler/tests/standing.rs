//! The edges between standings.

use crate::scheduler::{Edge, Standing};

#[test]
fn no_second_command_while_one_is_in_flight() {
    for standing in [Standing::Preempting, Standing::Resuming] {
        assert!(standing.is_moving());
        assert_eq!(standing.next(Edge::Preempt), None);
        assert_eq!(standing.next(Edge::Resume), None);
    }
}

#[test]
fn a_failed_command_leaves_the_queue_where_it_was() {
    for (from, edge) in [(Standing::On, Edge::Preempt), (Standing::Off, Edge::Resume)] {
        let moving = from.next(edge).unwrap();
        assert_eq!(moving.next(Edge::Failed), Some(from));
    }
}

#[test]
fn completions_nobody_asked_for_lead_nowhere() {
    for standing in [Standing::On, Standing::Off] {
        assert_eq!(standing.next(Edge::Done), None);
        assert_eq!(standing.next(Edge::Failed), None);
    }
}
