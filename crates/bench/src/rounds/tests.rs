use super::*;

/// Writes down what it was told.
#[derive(Default)]
struct Diary(Vec<String>);

impl Resident for Diary {
    type Prepared = u64;

    fn prepare(&mut self, round: &Round) -> Result<u64, Failure> {
        self.0.push(format!("prepare {} for {} s", round.round, round.seconds));
        Ok(round.round)
    }

    fn perform(&mut self, prepared: u64, at_ns: u64, stop: &Stop) -> Result<(), Failure> {
        self.0.push(format!("perform {prepared} at {at_ns}, ended {}", stop.is_asked()));
        Ok(())
    }
}

fn told(text: &str) -> (Vec<String>, Result<(), Failure>) {
    let (stop, bound) = (Stop::default(), Bound::default());
    let (sender, orders) = channel();
    pass_on(text.as_bytes(), &sender, &stop);
    drop(sender);
    let mut diary = Diary::default();
    let result = rounds(&mut diary, Output { json: true }, &stop, &bound, &orders);
    (diary.0, result)
}

fn prepare(round: u64) -> String {
    Order::Prepare(Round { round, seconds: 2, seed: 0, hints: None }).line()
}

fn begin(round: u64) -> String {
    Order::Begin { round, at_ns: 70 }.line()
}

#[test]
fn rounds_come_one_after_the_other_until_the_input_ends() {
    let (diary, result) = told(&(prepare(1) + &begin(1) + &prepare(2) + &begin(2)));
    assert!(result.is_ok());
    let expected = ["prepare 1 for 2 s", "perform 1 at 70, ended false"];
    assert_eq!(diary[..2], expected);
    assert_eq!(diary[3], "perform 2 at 70, ended false");
}

#[test]
fn an_end_is_for_the_round_it_names_even_if_it_comes_early() {
    let end = Order::End { round: 1 }.line();
    let (diary, result) = told(&(end + &prepare(1) + &begin(1) + &prepare(2) + &begin(2)));
    assert!(result.is_ok());
    assert_eq!(diary[1], "perform 1 at 70, ended true");
    assert_eq!(diary[3], "perform 2 at 70, ended false");
}

#[test]
fn what_is_no_order_ends_the_program() {
    let (diary, result) = told("dance\n");
    assert!(diary.is_empty());
    assert!(matches!(result, Err(Failure::Input(said)) if said.contains("no order: dance")));
    let (_, result) = told(&(prepare(1) + &prepare(2)));
    assert!(matches!(result, Err(Failure::Input(said)) if said.contains("round 1 was prepared")));
}

#[test]
fn a_round_that_never_begins_is_none() {
    let (diary, result) = told(&prepare(1));
    assert!(result.is_ok());
    assert_eq!(diary, ["prepare 1 for 2 s"]);
}
