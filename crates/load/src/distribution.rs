//! Random row ids: sysbench's five distributions over `1..=size`.
//!
//! `special`, `gaussian`, `pareto` and `uniform` are those of sysbench 1.0; `zipfian` is that of its later versions.

use howfar_contract::jobs::{Distribution, DistributionKind};

use crate::random_stream::RandomStream;

/// A distribution with precomputed constants.
#[derive(Debug, Clone)]
pub struct IdSampler {
    size: f64,
    shape: Shape,
}

#[derive(Debug, Clone)]
enum Shape {
    Uniform,
    /// Mean of `iterations` uniforms.
    Gaussian {
        iterations: u32,
    },
    /// `stretch`: range of the number that decides between all rows and the hot ones, as a multiple of the table's;
    /// `hot`: the share of the table that is hot.
    Special {
        iterations: u32,
        stretch: f64,
        hot: f64,
    },
    Pareto {
        power: f64,
    },
    Zipfian(Zipf),
}

impl IdSampler {
    pub fn new(distribution: &Distribution, size: u64) -> Self {
        assert!(size > 0, "a table without rows has no ids");
        let shape = match distribution.kind {
            DistributionKind::Uniform => Shape::Uniform,
            DistributionKind::Gaussian => Shape::Gaussian {
                iterations: distribution.spec_iter,
            },
            DistributionKind::Special => Shape::Special {
                iterations: distribution.spec_iter,
                stretch: 100.0 / (100.0 - f64::from(distribution.spec_res)),
                hot: f64::from(distribution.spec_pct) / 100.0,
            },
            DistributionKind::Pareto => Shape::Pareto {
                power: distribution.pareto_h.ln() / (1.0 - distribution.pareto_h).ln(),
            },
            DistributionKind::Zipfian => Shape::Zipfian(Zipf::new(size, distribution.zipfian_exp)),
        };
        Self {
            size: size as f64,
            shape,
        }
    }

    /// An id in `1..=size`.
    #[inline]
    pub fn draw(&self, random: &mut RandomStream) -> u64 {
        let offset = match &self.shape {
            Shape::Uniform => random.unit() * self.size,
            Shape::Gaussian { iterations } => mean(*iterations, random) * self.size,
            Shape::Special {
                iterations,
                stretch,
                hot,
            } => {
                let range = self.size - 1.0;
                let decider = random.unit();
                if decider * stretch < 1.0 || range == 0.0 {
                    mean(*iterations, random) * range
                } else {
                    // Like sysbench, reuse the deciding number, so that only the upper part of the hot rows is ever hit.
                    let rows = range * hot;
                    decider * (rows + 1.0) + range / 2.0 - rows / 2.0
                }
            }
            Shape::Pareto { power } => random.unit().powf(*power) * self.size,
            Shape::Zipfian(zipf) => return zipf.draw(random),
        };
        // Rounding may bring a product to the excluded end of its range.
        1 + offset.min(self.size - 1.0) as u64
    }
}

fn mean(iterations: u32, random: &mut RandomStream) -> f64 {
    (0..iterations).map(|_| random.unit()).sum::<f64>() / f64::from(iterations)
}

/// P(k) proportional to k^-exponent on `1..=size`, by inverting the integral of a hat over the bars and rejecting points between hat
/// and bar (Hörmann and Derflinger 1996, "Rejection-inversion").
#[derive(Debug, Clone)]
struct Zipf {
    size: f64,
    exponent: f64,
    /// The hat's integral at its left end, where the first bar is exact, and at its right end.
    left_integral: f64,
    right_integral: f64,
    /// A point this close to its bar is accepted without evaluating the hat.
    accept_distance: f64,
}

impl Zipf {
    fn new(size: u64, exponent: f64) -> Self {
        let size = size as f64;
        let mut zipf = Self {
            size,
            exponent,
            left_integral: 0.0,
            right_integral: 0.0,
            accept_distance: 0.0,
        };
        zipf.left_integral = zipf.integral(1.5) - 1.0;
        zipf.right_integral = zipf.integral(size + 0.5);
        zipf.accept_distance = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.bar(2.0));
        zipf
    }

    fn bar(&self, x: f64) -> f64 {
        x.powf(-self.exponent)
    }

    /// Integral of the hat from 1 to `to`; the limit for exponents near one is the logarithm.
    fn integral(&self, to: f64) -> f64 {
        let log = to.ln();
        let part = (1.0 - self.exponent) * log;
        if part.abs() < 1e-12 {
            log
        } else {
            part.exp_m1() / (1.0 - self.exponent)
        }
    }

    /// The end up to which the integral of the hat is `area`.
    fn inverse(&self, area: f64) -> f64 {
        let part = (1.0 - self.exponent) * area;
        if part.abs() < 1e-12 {
            area.exp()
        } else {
            (part.ln_1p() / (1.0 - self.exponent)).exp()
        }
    }

    fn draw(&self, random: &mut RandomStream) -> u64 {
        loop {
            let area =
                self.right_integral + random.unit() * (self.left_integral - self.right_integral);
            let x = self.inverse(area);
            let bar = x.round().clamp(1.0, self.size);
            if bar - x <= self.accept_distance || area >= self.integral(bar + 0.5) - self.bar(bar) {
                return bar as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with_kind(kind: DistributionKind) -> Distribution {
        Distribution {
            kind,
            ..Distribution::default()
        }
    }

    fn count_ids(distribution: &Distribution, size: u64, sample_count: u64) -> Vec<f64> {
        let ids = IdSampler::new(distribution, size);
        let mut counts = vec![0.0; size as usize];
        for number in 0..sample_count {
            counts[ids.draw(&mut RandomStream::new(11, 5, number)) as usize - 1] += 1.0;
        }
        counts
    }

    /// Pearson's statistic has mean `degrees` and variance `2 * degrees`: six standard deviations are allowed.
    fn assert_fits(counts: &[f64], shares: &[f64]) {
        let total: f64 = counts.iter().sum();
        let statistic: f64 = counts
            .iter()
            .zip(shares)
            .map(|(count, share)| (count - total * share).powi(2) / (total * share))
            .sum();
        let degrees = counts.len() as f64 - 1.0;
        assert!(
            statistic < degrees + 6.0 * (2.0 * degrees).sqrt(),
            "chi-square {statistic} at {degrees}"
        );
    }

    #[test]
    fn uniform_is_flat() {
        assert_fits(
            &count_ids(&with_kind(DistributionKind::Uniform), 100, 200_000),
            &[0.01; 100],
        );
    }

    #[test]
    fn pareto_follows_its_power() {
        let power = 0.2_f64.ln() / 0.8_f64.ln();
        let share = |id: usize| (id as f64 / 50.0).powf(1.0 / power);
        let shares: Vec<f64> = (0..50).map(|id| share(id + 1) - share(id)).collect();
        let id_counts = count_ids(&with_kind(DistributionKind::Pareto), 50, 200_000);
        assert_fits(&id_counts, &shares);
        let first_fifth = id_counts[..10].iter().sum::<f64>() / 200_000.0;
        assert!((first_fifth - 0.8).abs() < 0.01, "{first_fifth}");
    }

    #[test]
    fn zipfian_follows_its_exponent() {
        for exponent in [0.0, 0.8, 1.0, 1.7] {
            let distribution = Distribution {
                zipfian_exp: exponent,
                ..with_kind(DistributionKind::Zipfian)
            };
            let weights: Vec<f64> = (1..=60).map(|id| f64::from(id).powf(-exponent)).collect();
            let total: f64 = weights.iter().sum();
            let shares: Vec<f64> = weights.iter().map(|weight| weight / total).collect();
            assert_fits(&count_ids(&distribution, 60, 200_000), &shares);
        }
    }

    /// Mean of 12 uniforms over 1000 rows: mean 500.5, standard deviation 1000/12; with 200 000 samples their errors are 0.19 and
    /// 0.13.
    #[test]
    fn gaussian_has_mean_and_width() {
        let id_counts = count_ids(&with_kind(DistributionKind::Gaussian), 1000, 200_000);
        let mean = id_counts
            .iter()
            .enumerate()
            .map(|(at, count)| (at + 1) as f64 * count)
            .sum::<f64>()
            / 200_000.0;
        let square = id_counts
            .iter()
            .enumerate()
            .map(|(at, count)| ((at + 1) as f64 - mean).powi(2) * count)
            .sum::<f64>();
        assert!((mean - 500.5).abs() < 1.2, "mean {mean}");
        assert!(((square / 200_000.0).sqrt() - 1000.0 / 12.0).abs() < 1.0);
    }

    /// 75 % of the samples fall uniformly on ids 4976..=5051 of 10 000, and some of the other 25 % do too.
    #[test]
    fn special_hits_its_hot_rows() {
        let id_counts = count_ids(&with_kind(DistributionKind::Special), 10_000, 400_000);
        let hot = &id_counts[4975..5051];
        let share = hot.iter().sum::<f64>() / 400_000.0;
        assert!((share - 0.758).abs() < 0.004, "{share}");
        assert!(id_counts[4900..4975].iter().sum::<f64>() < 400_000.0 * 0.02);
    }

    proptest! {
        #[test]
        fn ids_stay_in_the_table(
            size in prop_oneof![1_u64..5, 1_u64..1 << 40],
            kind in prop::sample::select(vec![
                DistributionKind::Uniform, DistributionKind::Pareto, DistributionKind::Special,
                DistributionKind::Gaussian, DistributionKind::Zipfian,
            ]),
            (pct, res, iterations) in (1_u32..=100, 1_u32..=99, 1_u32..20),
            (pareto_h, zipfian_exp) in (0.01..0.99, 0.0..3.0),
            seed in any::<u64>(),
        ) {
            let distribution = Distribution { kind, pareto_h, spec_iter: iterations, spec_pct: pct, spec_res: res, zipfian_exp };
            let ids = IdSampler::new(&distribution, size);
            let mut random = RandomStream::new(seed, 0, 0);
            for _ in 0..50 {
                prop_assert!((1..=size).contains(&ids.draw(&mut random)));
            }
        }
    }
}
