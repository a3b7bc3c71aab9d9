//! Outages: times at which the line is down. Packets that arrive at the line during an outage are lost; those in flight or waiting
//! before the bottleneck arrive.

use super::Nanos;
use crate::job::Outage;

/// Tells when the line is down. Queries must come in order of time: between two changes of the state, a query costs one comparison,
/// however long the schedule is.
#[derive(Debug)]
pub(crate) struct Outages {
    spec: Vec<Outage>,
    /// Start of the schedule; its times count from here.
    start: Nanos,
    is_down: bool,
    /// When `is_down` may change next.
    valid_until: Nanos,
}

impl Outages {
    pub(crate) fn new(spec: &[Outage], start: Nanos) -> Self {
        Self {
            spec: spec.to_vec(),
            start,
            is_down: false,
            valid_until: if spec.is_empty() { Nanos::MAX } else { 0 },
        }
    }

    /// Whether the line is down for a packet that arrives at `arrival`.
    pub(crate) fn is_down(&mut self, arrival: Nanos) -> bool {
        if arrival >= self.valid_until {
            self.update_state(arrival.saturating_sub(self.start));
        }
        self.is_down
    }

    fn update_state(&mut self, time: Nanos) {
        let states = self.spec.iter().map(|outage| state_at(outage, time));
        (self.is_down, self.valid_until) = states.fold(
            (false, Nanos::MAX),
            |(any_down, valid_until), (is_down, until)| {
                let until = self.start.saturating_add(until);
                (any_down || is_down, valid_until.min(until))
            },
        );
    }
}

/// Whether the line is down at `time` because of this outage, and until when this state lasts.
fn state_at(outage: &Outage, time: Nanos) -> (bool, Nanos) {
    let Some(elapsed) = time.checked_sub(outage.at_ns) else {
        return (false, outage.at_ns);
    };
    let phase = match outage.every_ns {
        Some(every) if outage.for_ns >= every => return (true, Nanos::MAX),
        Some(every) => elapsed % every,
        None => elapsed,
    };
    if phase < outage.for_ns {
        (true, time + (outage.for_ns - phase))
    } else {
        let next = outage.every_ns.map(|every| time + (every - phase));
        (false, next.unwrap_or(Nanos::MAX))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn outage(at_ns: Nanos, for_ns: Nanos, every_ns: Option<Nanos>) -> Outage {
        Outage {
            at_ns,
            for_ns,
            every_ns,
        }
    }

    #[test]
    fn the_line_is_down_from_the_start_to_just_before_the_end() {
        let mut outages = Outages::new(&[outage(100, 10, None)], 1_000);
        let states = [0, 1_099, 1_100, 1_109, 1_110, 9_999].map(|at| outages.is_down(at));
        assert_eq!(states, [false, false, true, true, false, false]);
    }

    #[test]
    fn an_outage_repeats_after_its_period() {
        let mut outages = Outages::new(&[outage(5, 2, Some(10))], 0);
        let down_times: Vec<_> = (0..40).filter(|at| outages.is_down(*at)).collect();
        assert_eq!(down_times, [5, 6, 15, 16, 25, 26, 35, 36]);
    }

    #[test]
    fn an_outage_longer_than_its_period_does_not_end() {
        let mut outages = Outages::new(&[outage(5, 10, Some(10))], 0);
        assert!(!outages.is_down(4));
        assert!((5..100).all(|at| outages.is_down(at)));
    }

    #[test]
    fn without_outages_the_line_is_up() {
        assert!(!Outages::new(&[], 7).is_down(Nanos::MAX - 1));
    }

    proptest! {
        /// Queries at increasing times agree with a direct evaluation of every outage.
        #[test]
        fn the_cached_state_is_correct(
            spec in prop::collection::vec((0_u64..500, 1_u64..60, prop::option::of(1_u64..90)), 0..6),
            pauses in prop::collection::vec(0_u64..40, 1..200), start in 0_u64..50,
        ) {
            let spec: Vec<_> = spec.into_iter().map(|(at, length, every)| outage(at, length, every)).collect();
            let mut outages = Outages::new(&spec, start);
            let mut now = 0;
            for pause in pauses {
                now += pause;
                let time = now.saturating_sub(start);
                let expected = spec.iter().any(|outage| {
                    let Some(elapsed) = time.checked_sub(outage.at_ns) else { return false };
                    outage.every_ns.map_or(elapsed, |every| elapsed % every) < outage.for_ns
                });
                prop_assert_eq!(outages.is_down(now), expected);
            }
        }
    }
}
