//! Values of keys: their lengths and bytes, as pure functions of the key's number.

use howfar_contract::jobs::{Alphabet, Sizes};

use crate::digits;
use crate::random_stream::RandomStream;

/// Number of positions in one text where values may begin, so that values of neighbouring keys differ.
const POSITIONS: usize = 4096;
/// Seed of the values, independent of the job's seed, so that a load overwrites the values of a prefill with the same ones.
const SEED: u64 = 0x766C_7565;

/// All values of a job.
#[derive(Debug)]
pub(super) struct Values {
    sizes: Sizes,
    shares: u64,
    text: Vec<u8>,
}

impl Values {
    pub(super) fn new(sizes: &Sizes) -> Self {
        let shares = match sizes {
            Sizes::Listed { sizes } => sizes.iter().map(|size| u64::from(size.weight)).sum(),
            _ => 1,
        };
        let mut text = Vec::new();
        let length = sizes.max_bytes() as usize + POSITIONS;
        digits::write_text(
            &mut RandomStream::new(SEED, 0, 0),
            length,
            Alphabet::Letters,
            0.0,
            &mut text,
        );
        Self {
            sizes: sizes.clone(),
            shares,
            text,
        }
    }

    pub(super) fn max_bytes(&self) -> usize {
        self.sizes.max_bytes() as usize
    }

    /// The value of the key `id`.
    #[inline]
    pub(super) fn value(&self, id: u64) -> &[u8] {
        let mut random = RandomStream::new(SEED, 1, id);
        let start = random.bits() as usize % POSITIONS;
        let length = match &self.sizes {
            Sizes::Fixed { bytes } => *bytes,
            other => self.draw_size(other, &mut random),
        };
        &self.text[start..start + length as usize]
    }

    fn draw_size(&self, sizes: &Sizes, random: &mut RandomStream) -> u32 {
        match sizes {
            Sizes::Fixed { bytes } => *bytes,
            Sizes::Uniform { low, high } => {
                let extra = random.up_to(u64::from(high - low) + 1) - 1;
                low + extra as u32
            }
            Sizes::Lognormal {
                median,
                sigma,
                most,
            } => {
                let size = f64::from(*median) * (sigma * normal(random)).exp();
                (size.round() as u32).clamp(1, *most)
            }
            Sizes::Listed { sizes } => {
                let mut share = random.up_to(self.shares);
                for size in sizes {
                    let weight = u64::from(size.weight);
                    if share <= weight {
                        return size.bytes;
                    }
                    share -= weight;
                }
                unreachable!("shares are the sum of the weights")
            }
        }
    }
}

/// A normal deviate with mean 0 and standard deviation 1 (Box and Muller 1958).
fn normal(random: &mut RandomStream) -> f64 {
    let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.unit()).cos()
}

#[cfg(test)]
mod tests {
    use howfar_contract::jobs::Size;

    use super::*;

    const KEY_COUNT: u64 = 20_000;

    fn lengths(sizes: &Sizes) -> Vec<f64> {
        let values = Values::new(sizes);
        (1..=KEY_COUNT)
            .map(|id| values.value(id).len() as f64)
            .collect()
    }

    fn mean(numbers: impl Iterator<Item = f64>) -> f64 {
        numbers.sum::<f64>() / KEY_COUNT as f64
    }

    #[test]
    fn a_key_keeps_its_value() {
        let sizes = Sizes::Uniform { low: 0, high: 90 };
        let (first, second) = (Values::new(&sizes), Values::new(&sizes));
        assert!((1..99).all(|id| first.value(id) == second.value(id)));
        let fixed = Values::new(&Sizes::Fixed { bytes: 20 });
        let changes = (1..99).filter(|&id| fixed.value(id) != fixed.value(id + 1));
        assert!(changes.count() > 90);
    }

    /// Means of 20 000 values: six standard errors are allowed (standard deviation of 0..=100: 29.2; of the logarithms: sigma).
    #[test]
    fn sizes_follow_their_distributions() {
        let uniform = lengths(&Sizes::Uniform { low: 0, high: 100 });
        assert!((mean(uniform.iter().copied()) - 50.0).abs() < 6.0 * 29.2 / 141.4);
        assert!(uniform.contains(&0.0) && uniform.contains(&100.0));
        let lognormal = lengths(&Sizes::Lognormal {
            median: 1000,
            sigma: 1.0,
            most: 1 << 20,
        });
        let logarithms = lognormal.iter().map(|size| size.ln());
        let log_mean = mean(logarithms.clone());
        assert!((log_mean - 1000_f64.ln()).abs() < 6.0 / 141.4, "{log_mean}");
        let deviation = mean(logarithms.map(|logarithm| (logarithm - log_mean).powi(2))).sqrt();
        assert!((deviation - 1.0).abs() < 0.05, "{deviation}");
        let listed = Sizes::Listed {
            sizes: vec![
                Size {
                    bytes: 10,
                    weight: 3,
                },
                Size {
                    bytes: 500,
                    weight: 1,
                },
            ],
        };
        let long_values = lengths(&listed)
            .iter()
            .filter(|&&length| length > 10.0)
            .count();
        assert!(
            (long_values as f64 / KEY_COUNT as f64 - 0.25).abs() < 0.02,
            "{long_values}"
        );
    }
}
