//! Jitter: how the delay of one slice differs from that of another.

use super::Nanos;
use super::random_stream::RandomStream;
use crate::job;

/// Maximum extra delay, equal to the contract's maximum delay: a tail without a finite variance reaches it.
const MAX_EXTRA: f64 = 60e9;
/// One sample in this many may exceed the extra delay that memory is reserved for: about one a day at 10 000 slices a second.
const RARE_SAMPLES: f64 = 1e9;
/// A normal value exceeds this many deviations once in `RARE_SAMPLES`.
const RARE_DEVIATIONS: f64 = 6.0;

/// Samples the extra delay of each slice.
#[derive(Debug)]
pub(crate) struct Jitter {
    spec: job::Jitter,
    random: RandomStream,
}

impl Jitter {
    pub(crate) fn new(spec: &job::Jitter, random: RandomStream) -> Self {
        let spec = spec.clone();
        Self { spec, random }
    }

    /// The next value in nanoseconds, rounded to the nearest, so that the mean has no bias. Only normal jitter may be negative.
    pub(crate) fn sample(&mut self) -> i64 {
        match &self.spec {
            job::Jitter::Normal { deviation_ns } => {
                (self.random.normal() * *deviation_ns as f64).round() as i64
            }
            job::Jitter::Pareto { mean_ns, shape } => {
                lomax(self.random.unit(), *mean_ns, *shape).round() as i64
            }
            job::Jitter::Empirical { extra_ns } => {
                extra_ns[self.random.below(extra_ns.len() as u64) as usize] as i64
            }
        }
    }
}

/// The value that a share `tail` of all samples exceeds, for the Lomax distribution (Pareto shifted to begin at zero). Its scale is
/// mean × (shape - 1).
fn lomax(tail: f64, mean: Nanos, shape: f64) -> f64 {
    let scale = mean as f64 * (shape - 1.0);
    (scale * (tail.powf(-1.0 / shape) - 1.0)).min(MAX_EXTRA)
}

/// The extra delay that is practically never exceeded, for which memory is reserved.
pub(crate) fn practical_max(spec: &job::Jitter) -> Nanos {
    match spec {
        job::Jitter::Normal { deviation_ns } => {
            (*deviation_ns as f64 * RARE_DEVIATIONS).min(MAX_EXTRA) as Nanos
        }
        job::Jitter::Pareto { mean_ns, shape } => {
            lomax(1.0 / RARE_SAMPLES, *mean_ns, *shape) as Nanos
        }
        job::Jitter::Empirical { extra_ns } => extra_ns.iter().copied().max().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: u32 = 4_000_000;
    /// Half of the 99 % interval in standard errors.
    const INTERVAL: f64 = 2.58;

    fn values(spec: &job::Jitter, seed: u64) -> Vec<f64> {
        let mut jitter = Jitter::new(spec, RandomStream::new(seed, "jitter"));
        (0..COUNT).map(|_| jitter.sample() as f64).collect()
    }

    fn mean(values: &[f64], transform: impl Fn(f64) -> f64) -> f64 {
        values.iter().map(|value| transform(*value)).sum::<f64>() / values.len() as f64
    }

    /// Check that a share of the samples is as expected, within the interval of a binomial distribution. Twice the interval is less than
    /// 2 % of the share, so that an error of 2 % is detected.
    fn assert_share(actual: f64, expected: f64) {
        let interval = INTERVAL * (expected * (1.0 - expected) / f64::from(COUNT)).sqrt();
        assert!(
            (actual - expected).abs() < interval,
            "{actual} for {expected}"
        );
    }

    #[test]
    fn normal_has_its_mean_deviation_and_tail() {
        let deviation = 2_000_000.0;
        let samples = values(
            &job::Jitter::Normal {
                deviation_ns: 2_000_000,
            },
            6,
        );
        let root = f64::from(COUNT).sqrt();
        assert!(mean(&samples, |value| value).abs() < INTERVAL * deviation / root);
        // The relative error of an estimated deviation is 1 / sqrt(2 n): 0.1 % in the interval, so an error of 2 % is far outside.
        let spread = mean(&samples, |value| value * value).sqrt();
        assert!(
            (spread / deviation - 1.0).abs() < INTERVAL / (2.0_f64.sqrt() * root),
            "{spread}"
        );
        // The shares of values beyond one and three deviations, on both sides.
        for (deviations, share) in [(1.0, 0.317_310_5), (3.0, 0.002_699_8)] {
            assert_share(
                mean(&samples, |value| {
                    f64::from(value.abs() > deviations * deviation)
                }),
                share,
            );
        }
    }

    #[test]
    fn pareto_has_its_mean_and_tail() {
        // With shape 5 the fourth moment is finite, so that errors of mean and deviation can be computed: variance = mean^2 shape / (shape - 2).
        let (nominal_mean, shape) = (1_000_000_u64, 5.0);
        let samples = values(
            &job::Jitter::Pareto {
                mean_ns: nominal_mean,
                shape,
            },
            7,
        );
        let nominal_mean = nominal_mean as f64;
        let deviation = nominal_mean * (shape / (shape - 2.0_f64)).sqrt();
        let error = INTERVAL * deviation / f64::from(COUNT).sqrt();
        assert!(2.0 * error < 0.02 * nominal_mean, "the test can fail");
        assert!((mean(&samples, |value| value) - nominal_mean).abs() < error);
        assert!(samples.iter().all(|value| *value >= 0.0));
        // The share beyond a time t is (1 + t / scale)^-shape, with a scale of 4 ms.
        for time in [1e6, 4e6, 12e6] {
            let survival = (1.0_f64 + time / (nominal_mean * (shape - 1.0))).powf(-shape);
            assert_share(mean(&samples, |value| f64::from(value > time)), survival);
        }
    }

    #[test]
    fn empirical_values_have_equal_chances() {
        let samples = values(
            &job::Jitter::Empirical {
                extra_ns: vec![5, 70, 900, 900],
            },
            8,
        );
        for (value, share) in [(5.0, 0.25), (70.0, 0.25), (900.0, 0.5)] {
            assert_share(
                mean(&samples, |sample| f64::from((sample - value).abs() < 0.5)),
                share,
            );
        }
    }

    #[test]
    fn practical_max_covers_nearly_all_samples() {
        let normal = job::Jitter::Normal { deviation_ns: 100 };
        let pareto = job::Jitter::Pareto {
            mean_ns: 1_000,
            shape: 3.0,
        };
        let empirical = job::Jitter::Empirical {
            extra_ns: vec![3, 9, 4],
        };
        // 1e9^(1/3) - 1 = 999 scales of 2 000 ns.
        assert_eq!([&normal, &empirical].map(practical_max), [600, 9]);
        assert!(practical_max(&pareto).abs_diff(1_998_000) < 2);
        for spec in [normal, pareto] {
            let max = practical_max(&spec) as f64;
            assert!(values(&spec, 1).iter().all(|value| *value <= max));
        }
    }

    #[test]
    fn an_unbounded_tail_is_cut_at_the_maximum() {
        let heavy_tailed = job::Jitter::Pareto {
            mean_ns: 60_000_000_000,
            shape: 1.01,
        };
        assert!(
            values(&heavy_tailed, 2)
                .iter()
                .all(|value| (0.0..=MAX_EXTRA).contains(value))
        );
    }
}
