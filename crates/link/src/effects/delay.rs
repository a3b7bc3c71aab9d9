//! Propagation: a slice arrives one delay after it left the bottleneck, without loss, and in order unless reordering is allowed.

use super::Nanos;

/// A line of a given length. Shortening it while packets are on it never lets a later packet overtake an earlier one.
#[derive(Debug)]
pub(crate) struct Propagation {
    delay: Nanos,
    /// Each slice arrives after its own delay, regardless of those before it.
    reorder: bool,
    last_due: Nanos,
}

impl Propagation {
    /// A line on which earlier slices arrive at `last_due` at the latest.
    pub(crate) fn new(delay: Nanos, reorder: bool, last_due: Nanos) -> Self {
        Self {
            delay,
            reorder,
            last_due,
        }
    }

    /// When a slice that leaves at `departure` arrives at the far end; `extra` is added to the delay, which never gets below 0.
    pub(crate) fn due(&mut self, departure: Nanos, extra: i64) -> Nanos {
        let due = departure.saturating_add(self.delay.saturating_add_signed(extra));
        if self.reorder {
            return due;
        }
        self.last_due = self.last_due.max(due);
        self.last_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_arrives_exactly_one_delay_later() {
        let mut line = Propagation::new(500, false, 0);
        assert_eq!(line.due(1_000, 0), 1_500);
        assert_eq!(line.due(1_001, 0), 1_501);
    }

    #[test]
    fn a_shorter_line_never_reorders() {
        let mut line = Propagation::new(0, false, 1_500);
        assert_eq!(line.due(1_001, 0), 1_500);
        assert_eq!(line.due(1_600, 0), 1_600);
    }

    #[test]
    fn varying_delays_keep_the_order_unless_reordering_is_allowed() {
        let mut ordered = Propagation::new(500, false, 0);
        let mut reordering = Propagation::new(500, true, 0);
        assert_eq!([100, -100].map(|extra| ordered.due(0, extra)), [600, 600]);
        assert_eq!(
            [100, -100].map(|extra| reordering.due(0, extra)),
            [600, 400]
        );
    }

    #[test]
    fn a_delay_is_never_negative() {
        assert_eq!(Propagation::new(500, true, 0).due(7, -501), 7);
    }
}
