//! Random numbers as a pure function of (seed, connection, transaction): every path runs the same transactions, and a
//! transaction can be repeated.

/// Increment of the counter: the golden ratio in 64 bits, odd, so that all states are visited.
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
/// 2^-52: numbers have 52 bits, like those of sysbench.
const UNIT: f64 = 1.0 / (1_u64 << 52) as f64;

/// The generator splitmix (Steele, Lea and Flood 2014): a counter whose values are mixed until no pattern is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomStream {
    state: u64,
}

impl RandomStream {
    /// The random numbers of one transaction.
    pub fn new(seed: u64, connection: u64, transaction: u64) -> Self {
        // Mix after each key: the sequences of neighbouring connections or transactions must not be shifted copies of each other.
        let state = mix(mix(mix(seed ^ STEP) ^ connection).wrapping_add(STEP) ^ transaction);
        Self { state }
    }

    /// Uniform over all 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(STEP);
        mix(self.state)
    }

    /// Uniform in [0, 1).
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 12) as f64 * UNIT
    }

    /// Uniform in `1..=max`.
    #[inline]
    pub fn up_to(&mut self, max: u64) -> u64 {
        1 + (self.unit() * max as f64) as u64
    }
}

#[inline]
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_keys_give_equal_numbers_and_others_do_not() {
        let first =
            |seed, connection, transaction| RandomStream::new(seed, connection, transaction).bits();
        assert_eq!(first(1, 2, 3), first(1, 2, 3));
        let mut numbers: Vec<u64> = Vec::new();
        for seed in 0..10 {
            for connection in 0..10 {
                numbers.extend((0..100).map(|transaction| first(seed, connection, transaction)));
            }
        }
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count);
    }

    /// The mean of n uniforms is 1/2 with standard deviation 1/sqrt(12 n); six standard deviations are allowed.
    #[test]
    fn units_across_transactions_are_uniform() {
        let count = 200_000_u32;
        let mean = (0..count)
            .map(|number| RandomStream::new(7, 3, u64::from(number)).unit())
            .sum::<f64>()
            / f64::from(count);
        assert!(
            (mean - 0.5).abs() < 6.0 / (12.0 * f64::from(count)).sqrt(),
            "mean {mean}"
        );
    }
}
