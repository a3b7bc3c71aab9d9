//! The bottleneck: bits leave one after the other at a constant rate.

use super::Nanos;

const NANOBITS: u128 = 8 * 1_000_000_000;

/// A transmitter of constant rate. The part of a nanosecond that a division leaves is carried on, so that a busy line
/// carries exactly its rate however long it is busy.
#[derive(Debug)]
pub(crate) struct Bottleneck {
    /// Bits per second; None: infinitely fast.
    rate: Option<u64>,
    /// When the last admitted bit will have left.
    free: Nanos,
    /// Remainder of that moment, in 1/rate nanoseconds.
    remainder: u64,
}

impl Bottleneck {
    pub(crate) fn new(rate: Option<u64>) -> Self {
        assert_ne!(rate, Some(0), "a rate is positive or absent");
        Self {
            rate,
            free: 0,
            remainder: 0,
        }
    }

    /// Change the rate; the line becomes free at `free`, and what waits is to be sent anew through [`Self::depart`].
    pub(crate) fn set(&mut self, rate: Option<u64>, free: Nanos) {
        *self = Self::new(rate);
        self.free = free;
    }

    /// Bytes admitted and not yet sent at `now`, rounded up.
    pub(crate) fn backlog(&self, now: Nanos) -> u64 {
        let Some(rate) = self.rate else { return 0 };
        let Some(busy) = self.free.checked_sub(now) else {
            return 0;
        };
        (u128::from(busy) * u128::from(rate) + u128::from(self.remainder)).div_ceil(NANOBITS) as u64
    }

    /// Send `wire` bytes that are there at `arrival`: the moment at which the last bit has left.
    pub(crate) fn depart(&mut self, arrival: Nanos, wire: u64) -> Nanos {
        if arrival > self.free {
            self.free = arrival;
            self.remainder = 0;
        }
        if let Some(rate) = self.rate {
            let total = u128::from(wire) * NANOBITS + u128::from(self.remainder);
            self.free += (total / u128::from(rate)) as u64;
            self.remainder = (total % u128::from(rate)) as u64;
        }
        self.free
    }

    /// How many bytes leave in `time`; None: any number.
    pub(crate) fn bytes_in(&self, time: Nanos) -> Option<u64> {
        self.rate
            .map(|rate| (u128::from(rate) * u128::from(time) / NANOBITS) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_frame_at_a_gigabit_takes_12304_ns() {
        let mut line = Bottleneck::new(Some(1_000_000_000));
        assert_eq!(line.depart(100, 1_538), 100 + 12_304);
        assert_eq!(line.backlog(100), 1_538);
        assert_eq!(line.backlog(100 + 6_152), 769);
        assert_eq!(line.backlog(100 + 12_304), 0);
    }

    #[test]
    fn remainders_are_carried() {
        // 1 byte at 3 bit/s is 8/3 s; three of them are exactly 8 s.
        let mut line = Bottleneck::new(Some(3));
        line.depart(0, 1);
        line.depart(0, 1);
        assert_eq!(line.depart(0, 1), 8_000_000_000);
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let mut line = Bottleneck::new(None);
        assert_eq!(line.depart(7, 1 << 40), 7);
        assert_eq!(line.backlog(7), 0);
    }
}
