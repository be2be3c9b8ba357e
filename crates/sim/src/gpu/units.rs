//! Compute units and the waves that fit on them.

/// Free wave slots of every compute unit.
#[derive(Clone, Debug)]
pub(crate) struct Units {
    free: Vec<u32>,
    free_total: u32,
    waves_per_unit: u32,
    /// Where the search for room begins: work spreads over the units in turn.
    cursor: usize,
}

impl Units {
    pub(crate) fn new(compute_units: u32, waves_per_unit: u32) -> Self {
        let free = vec![waves_per_unit; compute_units as usize];
        Self { free, free_total: compute_units * waves_per_unit, waves_per_unit, cursor: 0 }
    }

    /// Takes `waves` slots on one unit, if any unit has that many.
    pub(crate) fn take(&mut self, waves: u32) -> Option<u32> {
        if self.free_total < waves {
            return None;
        }
        let count = self.free.len();
        let unit = (0..count)
            .map(|offset| (self.cursor + offset) % count)
            .find(|&unit| self.free[unit] >= waves)?;
        self.free[unit] -= waves;
        self.free_total -= waves;
        self.cursor = (unit + 1) % count;
        u32::try_from(unit).ok()
    }

    /// Gives them back.
    pub(crate) fn release(&mut self, unit: u32, waves: u32) {
        let free = &mut self.free[unit as usize];
        *free += waves;
        self.free_total += waves;
        assert!(*free <= self.waves_per_unit, "unit {unit} has more free slots than slots");
    }

    /// Slots in use.
    pub(crate) fn used(&self) -> u32 {
        self.waves_per_unit * u32::try_from(self.free.len()).unwrap_or(u32::MAX) - self.free_total
    }

    /// Whether there is no room for anything.
    pub(crate) fn is_full(&self) -> bool {
        self.free_total == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_stay_on_one_unit_and_spread_over_all() {
        let mut units = Units::new(2, 4);
        assert_eq!(units.take(3), Some(0));
        assert_eq!(units.take(3), Some(1));
        // Two slots are free, but not on one unit.
        assert_eq!(units.take(2), None);
        units.release(0, 3);
        assert_eq!(units.take(2), Some(0));
        assert_eq!(units.used(), 5);
    }
}
