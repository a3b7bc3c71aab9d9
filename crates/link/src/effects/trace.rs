//! A bottleneck whose rate changes by a schedule: a sequence of steps, which begins again after the last.
//!
//! The state of the line is the amount it could have carried since the schedule began, counted in billionths of a bit: a rate of r
//! bit/s carries r of them in a nanosecond, so that all numbers are integers and nothing is rounded between steps. The backlog is
//! the amount that was admitted minus the amount that the line could have carried.

use super::Nanos;
use crate::job::RateStep;

/// Billionths of a bit in one byte.
pub(crate) const NANOBITS_PER_BYTE: u128 = 8 * 1_000_000_000;
/// A time that is never reached: 146 years after the machine's start.
const NEVER: Nanos = Nanos::MAX / 4;

#[derive(Debug, Clone, Copy)]
struct Step {
    /// When the step begins in the cycle.
    start: Nanos,
    /// Nanobits that a cycle carries before this step.
    carried: u128,
    rate: u64,
}

/// A bottleneck whose rate follows a schedule.
#[derive(Debug)]
pub(crate) struct Trace {
    steps: Vec<Step>,
    /// Length of a cycle.
    period: Nanos,
    /// Nanobits that a cycle carries.
    carried_per_cycle: u128,
    begin: Nanos,
    /// Nanobits that the line will have carried when the last admitted bit has left.
    admitted: u128,
}

impl Trace {
    /// A schedule that begins at `begin`. At least one step has a rate.
    pub(crate) fn new(spec: &[RateStep], begin: Nanos) -> Self {
        let (mut period, mut carried) = (0, 0);
        let steps = spec
            .iter()
            .map(|spec| {
                let step = Step {
                    start: period,
                    carried,
                    rate: spec.rate_bps,
                };
                period += spec.for_ns;
                carried += u128::from(spec.rate_bps) * u128::from(spec.for_ns);
                step
            })
            .collect();
        assert!(carried > 0, "at least one step has a rate");
        Self {
            steps,
            period,
            carried_per_cycle: carried,
            begin,
            admitted: 0,
        }
    }

    /// Bytes admitted and not yet sent at `now`, rounded up.
    pub(crate) fn backlog(&self, now: Nanos) -> u64 {
        let waiting = self.admitted.saturating_sub(self.carried(now));
        waiting.div_ceil(NANOBITS_PER_BYTE) as u64
    }

    /// Send `wire_bytes` that arrive at `arrival`. Returns the moment at which the last bit has left.
    pub(crate) fn depart(&mut self, arrival: Nanos, wire_bytes: u64) -> Nanos {
        self.admitted = self.next_bit(arrival) + u128::from(wire_bytes) * NANOBITS_PER_BYTE;
        // The time at which a bit ends belongs to the step that carries it, even if the step ends at that time.
        let (cycles, step, carried) = self.locate(self.admitted - 1);
        self.time_of(cycles, step, carried + 1)
    }

    /// How many bytes leave within `time` after the first bit that arrives at `arrival` begins to leave.
    pub(crate) fn bytes_in(&self, arrival: Nanos, time: Nanos) -> u64 {
        let first_bit = self.next_bit(arrival);
        let (cycles, step, carried) = self.locate(first_bit);
        let start = self.time_of(cycles, step, carried);
        // `carried` is less than `first_bit` only at a time that is never reached.
        let carried = self.carried(start.saturating_add(time));
        (carried.saturating_sub(first_bit) / NANOBITS_PER_BYTE) as u64
    }

    fn next_bit(&self, arrival: Nanos) -> u128 {
        self.admitted.max(self.carried(arrival))
    }

    /// Nanobits that the line could have carried until `time`.
    fn carried(&self, time: Nanos) -> u128 {
        let time = time.saturating_sub(self.begin);
        let phase = time % self.period;
        // The first step begins at 0.
        let step = self.steps[self.steps.partition_point(|step| step.start <= phase) - 1];
        u128::from(time / self.period) * self.carried_per_cycle
            + step.carried
            + u128::from(step.rate) * u128::from(phase - step.start)
    }

    /// Position in the schedule at which the line has carried `nanobits`: complete cycles, the step, and how much that step has
    /// carried by then. The step never has rate 0: the step after it begins with the same amount and is chosen instead.
    /// There always is such a step, because a cycle carries more than the remainder.
    fn locate(&self, nanobits: u128) -> (u128, Step, u128) {
        let remainder = nanobits % self.carried_per_cycle;
        let step = self.steps[self.steps.partition_point(|step| step.carried <= remainder) - 1];
        (
            nanobits / self.carried_per_cycle,
            step,
            remainder - step.carried,
        )
    }

    /// When, rounded down, `step` has carried `nanobits` in the cycle after `cycles` complete ones.
    fn time_of(&self, cycles: u128, step: Step, nanobits: u128) -> Nanos {
        let elapsed = cycles
            .saturating_mul(u128::from(self.period))
            .saturating_add(u128::from(step.start) + nanobits / u128::from(step.rate));
        u64::try_from(elapsed).map_or(NEVER, |elapsed| {
            self.begin.saturating_add(elapsed).min(NEVER)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::effects::rate::SteadyRate;

    fn trace(steps: &[(Nanos, u64)], begin: Nanos) -> Trace {
        let steps: Vec<_> = steps
            .iter()
            .map(|(for_ns, rate_bps)| RateStep {
                for_ns: *for_ns,
                rate_bps: *rate_bps,
            })
            .collect();
        Trace::new(&steps, begin)
    }

    #[test]
    fn bytes_wait_while_the_rate_is_zero() {
        // The line carries 1000 bytes in 1 ms at 8 Mb/s, then nothing for 1 ms.
        let mut line = trace(&[(1_000_000, 8_000_000), (1_000_000, 0)], 500);
        assert_eq!(line.depart(500, 400), 500 + 400_000);
        assert_eq!(
            line.depart(500, 600),
            500 + 1_000_000,
            "at the end of the step"
        );
        assert_eq!(line.depart(500, 1), 500 + 2_001_000);
        assert_eq!(line.backlog(500), 1_001);
        assert_eq!(line.backlog(500 + 1_500_000), 1);
        assert_eq!(line.backlog(500 + 2_000_500), 1, "rounded up");
        assert_eq!(line.backlog(500 + 2_001_000), 0);
        // The byte arrives while the line stands still, in a later cycle.
        assert_eq!(line.depart(500 + 5_700_000, 1), 500 + 6_001_000);
    }

    #[test]
    fn a_segment_may_take_several_steps() {
        // 1000 bytes: 250 at 2 Mb/s in 1 ms, 500 at 4 Mb/s in 1 ms, the last 250 again at 2 Mb/s.
        let mut line = trace(&[(1_000_000, 2_000_000), (1_000_000, 4_000_000)], 0);
        assert_eq!(line.depart(0, 1_000), 3_000_000);
    }

    #[test]
    fn bytes_in_a_time_count_from_when_the_first_bit_leaves() {
        let line = trace(
            &[(1_000, 0), (1_000, 8_000_000_000), (1_000, 16_000_000_000)],
            0,
        );
        // The first bit leaves at 1 µs; then 1000 bytes leave within 1 µs, and after that 2 bytes per nanosecond.
        assert_eq!(line.bytes_in(0, 500), 500);
        assert_eq!(line.bytes_in(0, 1_500), 2_000);
        assert_eq!(line.bytes_in(2_500, 1_000), 1_000, "then the rate is zero");
    }

    #[test]
    fn extreme_schedules_do_not_overflow() {
        let day = 86_400_000_000_000;
        let mut line = trace(&[(1, 1), (day, 0)], 5);
        assert_eq!(line.depart(5, 1 << 40), NEVER);
        assert!(line.backlog(5) == 1 << 40 && line.bytes_in(9, 100_000) == 0);
    }

    proptest! {
        /// Several steps of one rate behave like that constant rate.
        #[test]
        fn equal_steps_are_a_steady_rate(
            rate in 1_000_u64..20_000_000_000, lengths in prop::collection::vec(1_u64..5_000_000, 1..6), begin in 0_u64..9_999,
            packets in prop::collection::vec((0_u64..400_000, 1_u64..70_000), 1..80),
        ) {
            let steps: Vec<_> = lengths.iter().map(|length| (*length, rate)).collect();
            let (mut trace, mut steady) = (trace(&steps, begin), SteadyRate::new(Some(rate), begin));
            let mut now = begin;
            for (pause, wire_bytes) in packets {
                now += pause;
                prop_assert_eq!(trace.backlog(now), steady.backlog(now));
                prop_assert_eq!(trace.depart(now, wire_bytes), steady.depart(now, wire_bytes));
            }
        }

        /// Departures are those of a walk over the steps, in exact fractions, that sends every byte at the rate in force.
        #[test]
        fn departures_match_a_walk_over_the_steps(
            mut steps in prop::collection::vec((1_u64..300_000, prop_oneof![Just(0), 1_000_u64..9_000_000_000]), 1..7),
            packets in prop::collection::vec((0_u64..400_000, 1_u64..70_000), 1..40),
        ) {
            steps.push((1_000, 1_000_000_000));
            let mut line = trace(&steps, 0);
            let (mut now, mut position, mut used) = (0_u64, 0_u64, 0_u128);
            for (pause, wire_bytes) in packets {
                now += pause;
                if now > position { (position, used) = (now, 0) }
                let mut remaining = u128::from(wire_bytes) * 8_000_000_000;
                let departed = loop {
                    let period: u64 = steps.iter().map(|step| step.0).sum();
                    let mut end = position - position % period;
                    let rate = steps.iter().find_map(|(length, rate)| { end += length; (end > position).then_some(*rate) }).expect("a step");
                    let available = u128::from(rate) * u128::from(end - position) - used;
                    if remaining <= available {
                        used += remaining;
                        let elapsed = (used / u128::from(rate)) as u64;
                        break { position += elapsed; used %= u128::from(rate); position };
                    }
                    (remaining, position, used) = (remaining - available, end, 0);
                };
                prop_assert_eq!(line.depart(now, wire_bytes), departed);
            }
        }
    }
}
