//! When requests of an open loop are due: computed from rate, shape, seed and index. Pure: the caller passes the time.
//!
//! A request is due at `origin + inverse(unit)`, where `unit` is its position in a process of rate one (constant, Poisson, bursts)
//! and `inverse` inverts the integral of the rate: linear growth over the ramp, constant after it. The backlog is not a queue but the
//! difference of two indices. No request is dropped or skipped.

use howfar_contract::jobs::{Arrivals, Shape};

use crate::draws::Draws;

/// Separates the draws of a schedule from those of transactions.
const STREAM: u64 = 0x5C4E_D01E;

/// One worker's share of the arrivals.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    origin_ns: u64,
    /// Rate of this worker.
    rate_per_ns: f64,
    ramp_ns: f64,
    shape: Shape,
    burst: u64,
    /// Position of the first request under `constant` and `bursts`: workers alternate.
    offset: f64,
    /// At the next request to take.
    taken: Walker,
    /// Counts requests due before an edge of the window (`due_before`).
    ahead: Walker,
    /// Counts requests due now (`waiting`); separate from `ahead`, which must not advance past the next edge.
    seen: Walker,
}

/// A position in the process of arrivals.
#[derive(Debug, Clone)]
struct Walker {
    count: u64,
    unit: f64,
    next_ns: u64,
    draws: Draws,
}

impl Schedule {
    /// The schedule of `worker` out of `workers`; the first request is due after `origin_ns`.
    pub(crate) fn new(
        arrivals: &Arrivals,
        (worker, workers): (usize, usize),
        seed: u64,
        origin_ns: u64,
        ramp_ns: u64,
    ) -> Self {
        let walker = Walker {
            count: 0,
            unit: 0.0,
            next_ns: origin_ns,
            draws: Draws::of(seed ^ STREAM, worker as u64, 0),
        };
        let mut schedule = Self {
            origin_ns,
            rate_per_ns: arrivals.rate_per_s / 1e9 / workers as f64,
            ramp_ns: ramp_ns as f64,
            shape: arrivals.shape,
            burst: arrivals.burst,
            offset: (worker as f64 + 0.5) / workers as f64,
            taken: walker.clone(),
            ahead: walker.clone(),
            seen: walker,
        };
        schedule.taken = schedule.stepped(schedule.taken.clone());
        schedule.ahead = schedule.taken.clone();
        schedule.seen = schedule.taken.clone();
        schedule
    }

    /// The walker, with position and due time computed for its count.
    fn stepped(&self, mut walker: Walker) -> Walker {
        walker.unit = match self.shape {
            Shape::Constant => walker.count as f64 + self.offset,
            // 1 - unit is above 0: the logarithm is finite.
            Shape::Poisson => walker.unit - (1.0 - walker.draws.unit()).ln(),
            Shape::Bursts => {
                let burst = walker.count / self.burst;
                (burst as f64 + self.offset) * self.burst as f64
            }
        };
        walker.next_ns = self.origin_ns + self.inverse(walker.unit) as u64;
        walker
    }

    /// Nanoseconds after which `unit` requests are due: the inverse of the integral of the rate.
    fn inverse(&self, unit: f64) -> f64 {
        let in_ramp = self.rate_per_ns * self.ramp_ns / 2.0;
        if unit < in_ramp {
            (2.0 * unit * self.ramp_ns / self.rate_per_ns).sqrt()
        } else {
            self.ramp_ns + (unit - in_ramp) / self.rate_per_ns
        }
    }

    /// When the first request not taken is due.
    #[inline]
    pub(crate) fn next_ns(&self) -> u64 {
        self.taken.next_ns
    }

    /// Take the next request if it is due; returns its due time.
    #[inline]
    pub(crate) fn take(&mut self, now: u64) -> Option<u64> {
        let due_ns = self.taken.next_ns;
        if due_ns > now {
            return None;
        }
        let mut walker = self.taken.clone();
        walker.count += 1;
        self.taken = self.stepped(walker);
        Some(due_ns)
    }

    /// Close the schedule: requests not taken are cancelled.
    pub(crate) fn close(&mut self) {
        self.taken.next_ns = u64::MAX;
        self.ahead = self.taken.clone();
        self.seen = self.taken.clone();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.taken.next_ns == u64::MAX
    }

    /// Number of requests due before `at`, since the origin. `at` must never decrease.
    pub(crate) fn due_before(&mut self, at: u64) -> u64 {
        while self.ahead.next_ns < at {
            let mut walker = self.ahead.clone();
            walker.count += 1;
            self.ahead = self.stepped(walker);
        }
        self.ahead.count
    }

    /// Number of requests due by `now` and not taken. `now` must never decrease.
    pub(crate) fn waiting(&mut self, now: u64) -> u64 {
        // Requests before the next one to take need not be counted.
        if self.seen.count < self.taken.count {
            self.seen = self.taken.clone();
        }
        while self.seen.next_ns <= now {
            let mut walker = self.seen.clone();
            walker.count += 1;
            self.seen = self.stepped(walker);
        }
        self.seen.count - self.taken.count
    }

    /// Number of requests due before `at` and not taken.
    pub(crate) fn backlog(&mut self, at: u64) -> u64 {
        self.due_before(at).saturating_sub(self.taken.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn schedule(rate: f64, shape: Shape, ramp_ns: u64, worker: usize, workers: usize) -> Schedule {
        let arrivals = Arrivals {
            rate_per_s: rate,
            shape,
            burst: 10,
        };
        Schedule::new(&arrivals, (worker, workers), 7, 1_000, ramp_ns)
    }

    #[test]
    fn constant_arrivals_of_all_workers_are_evenly_spaced() {
        let mut all: Vec<u64> = (0..3)
            .flat_map(|worker| {
                let mut one = schedule(1e6, Shape::Constant, 0, worker, 3);
                std::iter::from_fn(move || one.take(100_000)).collect::<Vec<_>>()
            })
            .collect();
        all.sort_unstable();
        assert_eq!(all.len(), 99);
        assert!(
            all.windows(2)
                .all(|pair| (999..=1001).contains(&(pair[1] - pair[0])))
        );
    }

    /// n exponential gaps have mean 1/rate with relative standard deviation 1/sqrt(n); a share of 1/e is longer than the mean.
    #[test]
    fn poisson_gaps_are_exponential() {
        let mut one = schedule(1e6, Shape::Poisson, 0, 0, 1);
        let due: Vec<u64> = std::iter::from_fn(|| one.take(100_000_000)).collect();
        let count = due.len() as f64;
        assert!((count - 100_000.0).abs() < 6.0 * 316.0, "{count}");
        let longer = due
            .windows(2)
            .filter(|pair| pair[1] - pair[0] > 1000)
            .count() as f64;
        assert!((longer / count - (-1.0_f64).exp()).abs() < 0.01);
    }

    #[test]
    fn a_burst_waits_but_for_what_is_taken() {
        let mut one = schedule(1e6, Shape::Bursts, 0, 0, 1);
        assert_eq!(one.waiting(1_000), 0);
        let now = one.next_ns();
        assert_eq!(one.waiting(now), 10);
        assert!(one.take(now).is_some());
        assert_eq!(one.waiting(now), 9);
    }

    #[test]
    fn bursts_come_together() {
        let mut one = schedule(1e6, Shape::Bursts, 0, 0, 1);
        let due: Vec<u64> = std::iter::from_fn(|| one.take(100_000)).collect();
        assert_eq!(due.len(), 100);
        assert!(due.chunks(10).all(|burst| burst[0] == burst[9]));
        assert!((9_999..=10_001).contains(&(due[10] - due[9])));
    }

    /// The rate grows from 0 to 1e6/s over 10 ms: that time has half the requests of the full rate, its first half a quarter of these.
    #[test]
    fn a_ramp_grows_linearly() {
        let mut one = schedule(1e6, Shape::Constant, 10_000_000, 0, 1);
        assert_eq!(one.due_before(1_000 + 5_000_000), 1250);
        assert_eq!(one.due_before(1_000 + 10_000_000), 5000);
        assert_eq!(one.due_before(1_000 + 11_000_000), 6000);
    }

    #[test]
    fn what_is_closed_asks_for_no_more() {
        let mut one = schedule(1e6, Shape::Constant, 0, 0, 1);
        assert_eq!(one.due_before(50_000), 49);
        assert!(one.take(50_000).is_some());
        one.close();
        assert_eq!((one.due_before(90_000), one.backlog(90_000)), (1, 0));
        assert!(one.take(90_000).is_none() && one.is_closed());
    }

    proptest! {
        /// In any order of takes and queries, every due request is either taken or in the backlog.
        #[test]
        fn nothing_is_lost(rate in 1e3..1e7, steps in prop::collection::vec((0_u64..100_000, 0_usize..50), 1..40)) {
            let mut one = schedule(rate, Shape::Poisson, 50_000, 0, 1);
            let (mut now, mut taken) = (1_000, 0);
            for (later, most) in steps {
                now += later;
                for _ in 0..most {
                    if one.take(now - 1).is_some() {
                        taken += 1;
                    }
                }
                prop_assert_eq!(one.backlog(now) + taken, one.due_before(now));
            }
        }
    }
}
