//! The bottleneck: bits leave one after the other, at a constant rate or at one that changes by a schedule.

use super::Nanos;
use super::trace::{NANOBITS_PER_BYTE, Trace};
use crate::job::Direction;

/// Maximum time of one slice on the wire. A super-packet that came at once leaves as a series of slices, so that a slow line does not
/// deliver 64 KiB in one instant; 100 µs bounds the series to about 10 000 slices a second at any rate.
pub(crate) const MAX_SLICE_TIME: Nanos = 100_000;

/// The bottleneck of a direction, where its rate is the limit.
#[derive(Debug)]
pub(crate) enum Bottleneck {
    Steady(SteadyRate),
    Changing(Trace),
}

impl Bottleneck {
    /// A bottleneck that is free at `free_at`; a schedule begins at `now`.
    pub(crate) fn new(direction: &Direction, now: Nanos, free_at: Nanos) -> Self {
        if direction.rate_trace.is_empty() {
            Self::Steady(SteadyRate::new(direction.rate_bps(), free_at))
        } else {
            Self::Changing(Trace::new(&direction.rate_trace, now))
        }
    }

    pub(crate) fn is_unlimited(&self) -> bool {
        matches!(self, Self::Steady(SteadyRate { rate: None, .. }))
    }

    /// Bytes admitted and not yet sent at `now`, rounded up.
    pub(crate) fn backlog(&self, now: Nanos) -> u64 {
        match self {
            Self::Steady(line) => line.backlog(now),
            Self::Changing(line) => line.backlog(now),
        }
    }

    /// Send `wire_bytes` that arrive at `arrival`. Returns the moment at which the last bit has left.
    pub(crate) fn depart(&mut self, arrival: Nanos, wire_bytes: u64) -> Nanos {
        match self {
            Self::Steady(line) => line.depart(arrival, wire_bytes),
            Self::Changing(line) => line.depart(arrival, wire_bytes),
        }
    }

    /// Maximum bytes of a slice of a packet that arrives at `arrival`; None if unlimited.
    pub(crate) fn max_slice_bytes(&self, arrival: Nanos) -> Option<u32> {
        match self {
            Self::Steady(line) => line.max_slice_bytes,
            Self::Changing(line) => Some(saturate(line.bytes_in(arrival, MAX_SLICE_TIME))),
        }
    }
}

/// Saturate to 32 bits: any number above the size of a packet has the same effect, and the caller's division is faster.
fn saturate(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// A transmitter of constant rate. The fraction of a nanosecond that a division leaves is carried over, so that a line carries
/// exactly its rate however long it is busy.
#[derive(Debug)]
pub(crate) struct SteadyRate {
    /// Bits per second; None if infinitely fast.
    rate: Option<u64>,
    /// When the last admitted bit will have left.
    free_at: Nanos,
    /// Remainder of that moment, in 1/rate nanoseconds.
    remainder: u64,
    /// Bytes that leave in [`MAX_SLICE_TIME`].
    max_slice_bytes: Option<u32>,
}

impl SteadyRate {
    pub(crate) fn new(rate: Option<u64>, free_at: Nanos) -> Self {
        assert_ne!(rate, Some(0), "a rate is positive or absent");
        Self {
            rate,
            free_at,
            remainder: 0,
            max_slice_bytes: rate.map(|rate| {
                saturate((u128::from(rate) * u128::from(MAX_SLICE_TIME) / NANOBITS_PER_BYTE) as u64)
            }),
        }
    }

    pub(crate) fn backlog(&self, now: Nanos) -> u64 {
        let Some(rate) = self.rate else { return 0 };
        let Some(busy) = self.free_at.checked_sub(now) else {
            return 0;
        };
        (u128::from(busy) * u128::from(rate) + u128::from(self.remainder))
            .div_ceil(NANOBITS_PER_BYTE) as u64
    }

    pub(crate) fn depart(&mut self, arrival: Nanos, wire_bytes: u64) -> Nanos {
        if arrival > self.free_at {
            self.free_at = arrival;
            self.remainder = 0;
        }
        if let Some(rate) = self.rate {
            let total = u128::from(wire_bytes) * NANOBITS_PER_BYTE + u128::from(self.remainder);
            self.free_at += (total / u128::from(rate)) as u64;
            self.remainder = (total % u128::from(rate)) as u64;
        }
        self.free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_frame_at_a_gigabit_takes_12304_ns() {
        let mut line = SteadyRate::new(Some(1_000_000_000), 0);
        assert_eq!(line.depart(100, 1_538), 100 + 12_304);
        assert_eq!(line.backlog(100), 1_538);
        assert_eq!(line.backlog(100 + 6_152), 769);
        assert_eq!(line.backlog(100 + 12_304), 0);
    }

    #[test]
    fn remainders_are_carried() {
        // 1 byte at 3 bit/s is 8/3 s; three of them are exactly 8 s.
        let mut line = SteadyRate::new(Some(3), 0);
        line.depart(0, 1);
        line.depart(0, 1);
        assert_eq!(line.depart(0, 1), 8_000_000_000);
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let mut line = SteadyRate::new(None, 0);
        assert_eq!(line.depart(7, 1 << 40), 7);
        assert_eq!(line.backlog(7), 0);
    }
}
