//! Contexts that came and went, counted until there is a moment to tell of them.

use std::collections::BTreeMap;

/// For each process: how many contexts appeared, and how many vanished.
#[derive(Debug, Default)]
pub(super) struct Regrouped(BTreeMap<u32, (usize, usize)>);

impl Regrouped {
    pub(super) fn appeared(&mut self, pid: u32) {
        self.0.entry(pid).or_default().0 += 1;
    }

    pub(super) fn vanished(&mut self, pid: u32) {
        self.0.entry(pid).or_default().1 += 1;
    }

    /// A process that ended has no contexts to tell of.
    pub(super) fn forget(&mut self, pid: u32) {
        self.0.remove(&pid);
    }

    /// What came together since the last call.
    pub(super) fn take(&mut self) -> impl Iterator<Item = (u32, usize, usize)> + use<> {
        let all = std::mem::take(&mut self.0).into_iter();
        all.map(|(pid, (appeared, vanished))| (pid, appeared, vanished))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_together_is_told_together_and_once() {
        let mut regrouped = Regrouped::default();
        regrouped.appeared(7);
        regrouped.appeared(7);
        regrouped.vanished(7);
        regrouped.vanished(8);
        regrouped.forget(8);
        assert_eq!(regrouped.take().collect::<Vec<_>>(), [(7, 2, 1)]);
        assert_eq!(regrouped.take().count(), 0);
    }
}
