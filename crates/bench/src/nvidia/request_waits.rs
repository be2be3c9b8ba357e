//! What each request waited for: the requests of a load joined with the records of gpreempt's hold
//! watcher, which `gpreempt attach --hold-records` writes.
//!
//! ```text
//!  due     begin    placed      on the GPU                          end
//!   |--------|---------|------------|--------------------------------|
//!    request  notice      switch      work, later switches (again),
//!    before                           what the program itself takes
//! ```
//!
//! Both clocks are `CLOCK_MONOTONIC`. Times of holds are those of samples, 100 us apart.

use crate::results::{Number, RequestWaits};

/// A hold that is placed later than this after the beginning of a request may have missed its first
/// gap.
const MISSED_AFTER_NS: u64 = 300_000;
/// One in so many requests counts as slow.
const SLOW_ONE_IN: usize = 100;

/// The records of one measurement, in the order of their times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HoldRecords {
    holds: Vec<Hold>,
    late: Vec<LateSample>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hold {
    pid: u32,
    placed_ns: u64,
    /// 0 if the process was not on the GPU until the end of the hold.
    on_engine_ns: u64,
    ended_ns: u64,
    silence_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LateSample {
    pid: u32,
    from_ns: u64,
    until_ns: u64,
}

/// A request and what it waited for. Times are of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingRequest {
    pub(super) due_ns: u64,
    pub(super) begin_ns: u64,
    pub(super) end_ns: u64,
    pub(super) waits: RequestWaits,
}

impl HoldRecords {
    /// Lines that are no records are skipped.
    pub(super) fn read(text: &str) -> Self {
        let mut records = Self::default();
        for line in text.lines() {
            let (kind, numbers) = line.split_once(',').unwrap_or_default();
            let numbers: Result<Vec<u64>, _> = numbers.split(',').map(str::parse).collect();
            let numbers = numbers.unwrap_or_default();
            let pid = numbers.first().and_then(|pid| u32::try_from(*pid).ok()).unwrap_or(0);
            match (kind, &numbers[..]) {
                ("hold", &[_, placed_ns, on_engine_ns, ended_ns, silence_ns]) => {
                    let hold = Hold { pid, placed_ns, on_engine_ns, ended_ns, silence_ns };
                    records.holds.push(hold);
                }
                ("late", &[_, from_ns, until_ns]) => {
                    records.late.push(LateSample { pid, from_ns, until_ns });
                }
                _ => {}
            }
        }
        records.holds.sort_by_key(|hold| hold.placed_ns);
        records
    }

    pub(super) fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// What a request of a process waited for.
    pub(super) fn waits(&self, pid: u32, (begin_ns, end_ns): (u64, u64)) -> RequestWaits {
        let of_request =
            |hold: &&Hold| hold.pid == pid && hold.placed_ns < end_ns && hold.ended_ns > begin_ns;
        let mut waits = RequestWaits::default();
        for hold in self.holds.iter().filter(of_request) {
            let on_engine = if hold.on_engine_ns == 0 { hold.ended_ns } else { hold.on_engine_ns };
            let until = on_engine.min(end_ns);
            let switch = until.saturating_sub(hold.placed_ns.max(begin_ns));
            if waits.holds == 0 {
                waits.notice_ns = hold.placed_ns.saturating_sub(begin_ns);
                waits.switch_ns = switch;
            } else {
                waits.again_ns += switch;
            }
            waits.holds += 1;
            waits.silence_ns = waits.silence_ns.max(hold.silence_ns);
        }
        let late = self.late.iter().filter(|late| late.pid == pid);
        let late = late.filter(|late| late.from_ns < end_ns && late.until_ns > begin_ns);
        waits.late_ns = late.map(|late| late.until_ns - late.from_ns).max().unwrap_or(0);
        waits
    }
}

/// The averages of the slowest requests, and of the others: where the tail comes from.
pub(super) fn numbers(mut requests: Vec<WaitingRequest>) -> Vec<Number> {
    requests.sort_by_key(|request| request.end_ns.saturating_sub(request.due_ns));
    let slow = requests.len().div_ceil(SLOW_ONE_IN);
    let (others, slowest) = requests.split_at(requests.len() - slow);
    let mut numbers = averages("slow", "slowest 1 % of the requests", slowest);
    numbers.extend(averages("other", "other requests", others));
    numbers
}

/// Reads a time of a request, in nanoseconds.
type ReadNs = fn(&WaitingRequest) -> u64;

fn averages(name: &str, title: &str, requests: &[WaitingRequest]) -> Vec<Number> {
    if requests.is_empty() {
        return Vec::new();
    }
    // CAST: far below what a float counts exactly.
    let average = |of: ReadNs| requests.iter().map(of).sum::<u64>() as f64 / requests.len() as f64;
    let parts: [(&str, &str, ReadNs); 8] = [
        ("latency", "latency", |each| each.end_ns.saturating_sub(each.due_ns)),
        ("queue", "wait for the request before", |each| each.begin_ns.saturating_sub(each.due_ns)),
        ("notice", "until the hold was placed", |each| each.waits.notice_ns),
        ("switch", "from there until on the GPU", |each| each.waits.switch_ns),
        ("again", "later switches", |each| each.waits.again_ns),
        ("rest", "the rest: its work, and the processor", |each| {
            let waits = each.waits.notice_ns + each.waits.switch_ns + each.waits.again_ns;
            each.end_ns.saturating_sub(each.begin_ns).saturating_sub(waits)
        }),
        ("silence", "longest silence of the program in its holds", |each| each.waits.silence_ns),
        ("late", "longest time without a sample, if late", |each| each.waits.late_ns),
    ];
    let mut numbers: Vec<Number> = parts
        .into_iter()
        .map(|(part, what, of)| {
            Number::new(&format!("{name}_{part}"), &format!("{title}: {what}"), "ns", average(of))
        })
        .collect();
    let missed =
        average(|each| u64::from(each.waits.holds == 0 || each.waits.notice_ns > MISSED_AFTER_NS));
    let what = format!("{title}: hold placed after the first gap, or none");
    numbers.push(Number::new(&format!("{name}_missed"), &what, "%", 100.0 * missed));
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDS: &str = "hold,7,1000,1200,5000,300\nhold,8,1100,1200,5000,9000\n\
                           late,7,4000,4900\nomitted,3\nhold,7,6000,0,6400,0\nhold,7,x\n";

    #[test]
    fn a_request_has_the_holds_that_overlap_it() {
        let records = HoldRecords::read(RECORDS);
        let held = RequestWaits {
            holds: 2,
            notice_ns: 100,
            switch_ns: 200,
            again_ns: 400,
            silence_ns: 300,
            late_ns: 900,
        };
        assert_eq!(records.waits(7, (900, 7_000)), held);
        // Its hold was placed before it began, as for a hint.
        let expected = RequestWaits { holds: 1, switch_ns: 50, silence_ns: 300, ..held };
        let expected = RequestWaits { notice_ns: 0, again_ns: 0, late_ns: 0, ..expected };
        assert_eq!(records.waits(7, (1_150, 3_000)), expected);
        assert_eq!(records.waits(7, (7_000, 8_000)), RequestWaits::default());
        assert!(HoldRecords::read("omitted,7\n").is_empty());
    }

    #[test]
    fn the_slowest_request_in_a_hundred_is_told_apart() {
        let records = HoldRecords::read(RECORDS);
        let request = |begin_ns, end_ns| {
            let waits = records.waits(7, (begin_ns, end_ns));
            WaitingRequest { due_ns: begin_ns - 10, begin_ns, end_ns, waits }
        };
        let mut requests: Vec<_> = (0..99).map(|n| request(10_000 + n, 10_100 + n)).collect();
        requests.push(request(900, 7_000));
        let numbers = numbers(requests);
        let value = |name: &str| numbers.iter().find(|each| each.name == name).unwrap().value;
        assert_eq!((value("slow_latency"), value("slow_queue")), (6_110.0, 10.0));
        assert_eq!((value("slow_notice"), value("slow_switch")), (100.0, 200.0));
        assert_eq!((value("slow_again"), value("slow_rest")), (400.0, 5_400.0));
        assert_eq!((value("slow_missed"), value("other_missed")), (0.0, 100.0));
        assert_eq!((value("other_latency"), value("other_rest")), (110.0, 100.0));
        assert!(super::numbers(Vec::new()).is_empty());
    }
}
