//! Recognises programs whose requests all submit the same amount of work, and tells when a request
//! has submitted all of it: then no gap follows that a hold would bridge.

/// Requests that are kept.
const REQUESTS: usize = 8;
/// Of these, so many may have another length.
const OUTLIERS: usize = 1;

/// The lengths of a program's requests, in submitted packets.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestLength {
    /// What was submitted before the request that runs; none before the first one.
    begun_at: Option<u64>,
    /// What was submitted so far.
    submitted: u64,
    lengths: [u64; REQUESTS],
    /// How many of them are known.
    known: usize,
}

impl RequestLength {
    /// The first submission of a request was noticed; [`Self::submitted`] follows.
    pub(crate) fn request_began(&mut self) {
        if let Some(begun_at) = self.begun_at.replace(self.submitted) {
            self.lengths.rotate_right(1);
            self.lengths[0] = self.submitted.saturating_sub(begun_at);
            self.known = (self.known + 1).min(REQUESTS);
        }
    }

    /// So many packets were submitted since the program was first observed.
    pub(crate) fn submitted(&mut self, total: u64) {
        self.submitted = total;
    }

    /// Whether the request that runs has submitted as much as those before it.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete_with(self.submitted)
    }

    /// The same if so many packets were submitted in all.
    pub(crate) fn is_complete_with(&self, total: u64) -> bool {
        let length = self.begun_at.map(|begun_at| total.saturating_sub(begun_at));
        length.is_some() && length == self.usual()
    }

    /// How many more packets the request that runs will submit; zero if that is not known.
    pub(crate) fn expected(&self) -> u64 {
        let end = self.begun_at.zip(self.usual()).map_or(0, |(begun_at, usual)| begun_at + usual);
        end.saturating_sub(self.submitted)
    }

    /// The length of the last requests, if they have the same.
    fn usual(&self) -> Option<u64> {
        if self.known < REQUESTS {
            return None;
        }
        let is_usual = |length: &u64| {
            self.lengths.iter().filter(|&other| other == length).count() >= REQUESTS - OUTLIERS
        };
        self.lengths[..=OUTLIERS].iter().find(|length| is_usual(length)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that has made requests of these lengths, and begins another one.
    fn after(lengths: impl IntoIterator<Item = u64>) -> (RequestLength, u64) {
        let (mut length, mut total) = (RequestLength::default(), 5);
        length.submitted(total);
        for packets in lengths {
            length.request_began();
            total += packets;
            length.submitted(total);
        }
        length.request_began();
        (length, total)
    }

    /// Whether a request is complete after that many packets.
    fn is_complete((length, total): &(RequestLength, u64), packets: u64) -> bool {
        let mut length = length.clone();
        length.submitted(total + packets);
        length.is_complete()
    }

    #[test]
    fn equal_requests_are_complete_when_all_was_submitted() {
        let program = after([20; 8]);
        assert!(is_complete(&program, 20));
        assert!(!is_complete(&program, 19) && !is_complete(&program, 21));
        let (mut length, total) = program;
        length.submitted(total + 3);
        assert_eq!(length.expected(), 17);
        length.submitted(total + 30);
        assert_eq!((length.expected(), after([20; 7]).0.expected()), (0, 0));
        assert!(!is_complete(&after([20; 7]), 20), "too few are known");
    }

    #[test]
    fn one_of_eight_may_differ() {
        assert!(is_complete(&after([20, 20, 20, 21, 20, 20, 20, 20]), 20));
        assert!(is_complete(&after([20, 20, 20, 20, 20, 20, 20, 21]), 20));
        assert!(!is_complete(&after([20, 20, 21, 20, 20, 20, 20, 21]), 20));
        assert!(!is_complete(&after((0..100).map(|number| 20 + number % 3)), 21));
    }
}
