//! When requests of an open loop are due: computed from rate, shape, seed and index. Pure: the caller passes the time.
//!
//! A request is due at `origin + inverse(unit_time)`, where `unit_time` is when it would be due at a rate of one (constant, Poisson or
//! bursts) and `inverse` inverts the integral of the rate: linear growth over the ramp, constant after it. The backlog is not a queue
//! but the difference of two indices. No request is dropped or skipped.

use howfar_contract::jobs::{Arrivals, Shape};

use crate::random_stream::RandomStream;

/// Separates the random numbers of a schedule from those of transactions.
const RANDOM_STREAM: u64 = 0x5C4E_D01E;

/// One worker's share of the arrivals.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    origin_ns: u64,
    /// The rate of this worker's arrivals.
    rate_per_ns: f64,
    ramp_ns: f64,
    shape: Shape,
    burst_size: u64,
    /// Unit time of the first request under `constant` and `bursts`, different for each worker so that they alternate.
    offset: f64,
    /// The next request to take.
    next_arrival: ArrivalPosition,
    /// Counts the requests due before an edge of the window (`due_before`).
    edge_arrival: ArrivalPosition,
    /// Counts the requests due now (`waiting_count`); separate from `edge_arrival`, which must not advance past the next edge.
    now_arrival: ArrivalPosition,
}

/// A position in the process of arrivals.
#[derive(Debug, Clone, Copy)]
struct ArrivalPosition {
    count: u64,
    unit_time: f64,
    due_ns: u64,
    random: RandomStream,
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
        let position = ArrivalPosition {
            count: 0,
            unit_time: 0.0,
            due_ns: origin_ns,
            random: RandomStream::new(seed ^ RANDOM_STREAM, worker as u64, 0),
        };
        let mut schedule = Self {
            origin_ns,
            rate_per_ns: arrivals.rate_per_s / 1e9 / workers as f64,
            ramp_ns: ramp_ns as f64,
            shape: arrivals.shape,
            burst_size: arrivals.burst,
            offset: (worker as f64 + 0.5) / workers as f64,
            next_arrival: position,
            edge_arrival: position,
            now_arrival: position,
        };
        schedule.next_arrival = schedule.compute_position(position);
        schedule.edge_arrival = schedule.next_arrival;
        schedule.now_arrival = schedule.next_arrival;
        schedule
    }

    /// Compute the times of `position` from its count.
    fn compute_position(&self, mut position: ArrivalPosition) -> ArrivalPosition {
        position.unit_time = match self.shape {
            Shape::Constant => position.count as f64 + self.offset,
            // The argument of the logarithm is above 0, because `unit()` is below 1.
            Shape::Poisson => position.unit_time - (1.0 - position.random.unit()).ln(),
            Shape::Bursts => {
                let burst_index = position.count / self.burst_size;
                (burst_index as f64 + self.offset) * self.burst_size as f64
            }
        };
        position.due_ns = self.origin_ns + self.inverse(position.unit_time) as u64;
        position
    }

    fn following_position(&self, mut position: ArrivalPosition) -> ArrivalPosition {
        position.count += 1;
        self.compute_position(position)
    }

    /// Nanoseconds after which the rate has added up to `unit_time` requests: the inverse of the integral of the rate.
    fn inverse(&self, unit_time: f64) -> f64 {
        let ramp_requests = self.rate_per_ns * self.ramp_ns / 2.0;
        if unit_time < ramp_requests {
            (2.0 * unit_time * self.ramp_ns / self.rate_per_ns).sqrt()
        } else {
            self.ramp_ns + (unit_time - ramp_requests) / self.rate_per_ns
        }
    }

    /// When the first request that is not taken is due.
    #[inline]
    pub(crate) fn next_ns(&self) -> u64 {
        self.next_arrival.due_ns
    }

    /// Take the next request if it is due; returns its due time.
    #[inline]
    pub(crate) fn take(&mut self, now: u64) -> Option<u64> {
        let due_ns = self.next_arrival.due_ns;
        if due_ns > now {
            return None;
        }
        self.next_arrival = self.following_position(self.next_arrival);
        Some(due_ns)
    }

    /// Close the schedule: requests not taken are cancelled.
    pub(crate) fn close(&mut self) {
        self.next_arrival.due_ns = u64::MAX;
        self.edge_arrival = self.next_arrival;
        self.now_arrival = self.next_arrival;
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.next_arrival.due_ns == u64::MAX
    }

    /// Number of requests due before `time_ns`, since the origin. `time_ns` must never decrease.
    pub(crate) fn due_before(&mut self, time_ns: u64) -> u64 {
        while self.edge_arrival.due_ns < time_ns {
            self.edge_arrival = self.following_position(self.edge_arrival);
        }
        self.edge_arrival.count
    }

    /// Number of requests due by `now` and not taken. `now` must never decrease.
    pub(crate) fn waiting_count(&mut self, now: u64) -> u64 {
        // Requests before the next one to take need not be counted.
        if self.now_arrival.count < self.next_arrival.count {
            self.now_arrival = self.next_arrival;
        }
        while self.now_arrival.due_ns <= now {
            self.now_arrival = self.following_position(self.now_arrival);
        }
        self.now_arrival.count - self.next_arrival.count
    }

    /// Number of requests due before `time_ns` and not taken.
    pub(crate) fn backlog(&mut self, time_ns: u64) -> u64 {
        self.due_before(time_ns)
            .saturating_sub(self.next_arrival.count)
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
                let mut schedule = schedule(1e6, Shape::Constant, 0, worker, 3);
                std::iter::from_fn(move || schedule.take(100_000)).collect::<Vec<_>>()
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
        let mut schedule = schedule(1e6, Shape::Poisson, 0, 0, 1);
        let due: Vec<u64> = std::iter::from_fn(|| schedule.take(100_000_000)).collect();
        let count = due.len() as f64;
        assert!((count - 100_000.0).abs() < 6.0 * 316.0, "{count}");
        let longer_gaps = due
            .windows(2)
            .filter(|pair| pair[1] - pair[0] > 1000)
            .count() as f64;
        assert!((longer_gaps / count - (-1.0_f64).exp()).abs() < 0.01);
    }

    #[test]
    fn requests_of_a_burst_wait_until_they_are_taken() {
        let mut schedule = schedule(1e6, Shape::Bursts, 0, 0, 1);
        assert_eq!(schedule.waiting_count(1_000), 0);
        let now = schedule.next_ns();
        assert_eq!(schedule.waiting_count(now), 10);
        assert!(schedule.take(now).is_some());
        assert_eq!(schedule.waiting_count(now), 9);
    }

    #[test]
    fn requests_of_a_burst_are_due_together() {
        let mut schedule = schedule(1e6, Shape::Bursts, 0, 0, 1);
        let due: Vec<u64> = std::iter::from_fn(|| schedule.take(100_000)).collect();
        assert_eq!(due.len(), 100);
        assert!(due.chunks(10).all(|burst| burst[0] == burst[9]));
        assert!((9_999..=10_001).contains(&(due[10] - due[9])));
    }

    /// The rate grows from 0 to 1e6/s over 10 ms: that time has half the requests of the full rate, its first half a quarter of
    /// these.
    #[test]
    fn a_ramp_grows_linearly() {
        let mut schedule = schedule(1e6, Shape::Constant, 10_000_000, 0, 1);
        assert_eq!(schedule.due_before(1_000 + 5_000_000), 1250);
        assert_eq!(schedule.due_before(1_000 + 10_000_000), 5000);
        assert_eq!(schedule.due_before(1_000 + 11_000_000), 6000);
    }

    #[test]
    fn a_closed_schedule_has_no_more_requests() {
        let mut schedule = schedule(1e6, Shape::Constant, 0, 0, 1);
        assert_eq!(schedule.due_before(50_000), 49);
        assert!(schedule.take(50_000).is_some());
        schedule.close();
        assert_eq!(
            (schedule.due_before(90_000), schedule.backlog(90_000)),
            (1, 0)
        );
        assert!(schedule.take(90_000).is_none() && schedule.is_closed());
    }

    proptest! {
        /// In any order of takes and queries, every due request is either taken or in the backlog.
        #[test]
        fn each_due_request_is_taken_or_in_the_backlog(rate in 1e3..1e7, steps in prop::collection::vec((0_u64..100_000, 0_usize..50), 1..40)) {
            let mut schedule = schedule(rate, Shape::Poisson, 50_000, 0, 1);
            let (mut now, mut taken) = (1_000, 0);
            for (elapsed, attempts) in steps {
                now += elapsed;
                for _ in 0..attempts {
                    if schedule.take(now - 1).is_some() {
                        taken += 1;
                    }
                }
                prop_assert_eq!(schedule.backlog(now) + taken, schedule.due_before(now));
            }
        }
    }
}
