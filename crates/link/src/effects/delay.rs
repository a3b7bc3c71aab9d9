//! Propagation: everything that left the bottleneck arrives one delay later, in order, without loss.

use super::Nanos;

/// A line of fixed length. Shortening it while packets are on it never lets a later packet overtake an earlier one.
#[derive(Debug)]
pub(crate) struct Propagation {
    delay: Nanos,
    last: Nanos,
}

impl Propagation {
    pub(crate) fn new(delay: Nanos) -> Self {
        Self { delay, last: 0 }
    }

    pub(crate) fn set(&mut self, delay: Nanos) {
        self.delay = delay;
    }

    /// Forget arrivals after `last`: they are about to be worked out again.
    pub(crate) fn rewind(&mut self, last: Nanos) {
        self.last = last;
    }

    /// When what leaves at `depart` is at the far end.
    pub(crate) fn due(&mut self, depart: Nanos) -> Nanos {
        self.last = self.last.max(depart + self.delay);
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_exactly_the_delay() {
        let mut line = Propagation::new(500);
        assert_eq!(line.due(1_000), 1_500);
        assert_eq!(line.due(1_001), 1_501);
    }

    #[test]
    fn a_shorter_line_never_reorders() {
        let mut line = Propagation::new(500);
        assert_eq!(line.due(1_000), 1_500);
        line.set(0);
        assert_eq!(line.due(1_001), 1_500);
        assert_eq!(line.due(1_600), 1_600);
    }
}
