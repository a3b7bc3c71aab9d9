//! Random numbers of the link: a pure function of the seed and of the effect's name, so that a repeated run gives the same packets
//! the same verdicts, and switching one effect on does not change the numbers of the others.

use std::f64::consts::TAU;

/// One in 2^53: a double's mantissa.
const UNIT: f64 = 1.0 / (1_u64 << 53) as f64;

/// The generator xoshiro256++ 1.0 of Blackman and Vigna (2019), seeded by splitmix64 as its authors advise.
#[derive(Debug, Clone)]
pub(crate) struct RandomStream {
    state: [u64; 4],
}

impl RandomStream {
    /// The stream of numbers of the effect called `name`.
    pub(crate) fn new(seed: u64, name: &str) -> Self {
        // FNV-1a (with its 64-bit offset basis and prime) hashes the name.
        let name = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        // Mix the seed before adding the name: neighbouring seeds and names must not collide.
        let mut state = seed;
        state = splitmix(&mut state) ^ name;
        Self {
            state: std::array::from_fn(|_| splitmix(&mut state)),
        }
    }

    /// Uniform over all 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// Uniform in (0, 1]: its logarithm is finite.
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 * UNIT
    }

    /// Uniform in `0 .. bound`, with a bias of less than `bound` in 2^64.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Normal with mean 0 and deviation 1 (Box and Muller 1958); never beyond 8.6, the root of 2 ln 2^53.
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        radius * (TAU * self.unit()).cos()
    }
}

/// The generator `SplitMix64` of Steele, Lea and Flood (2014).
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut value = *state;
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test vectors of other implementations of both generators.
    #[test]
    fn the_generators_match_known_test_vectors() {
        let mut random = RandomStream {
            state: [1, 2, 3, 4],
        };
        for expected in [
            41_943_041,
            58_720_359,
            3_588_806_011_781_223,
            3_591_011_842_654_386,
            9_228_616_714_210_784_205,
            9_973_669_472_204_895_162,
        ] {
            assert_eq!(random.bits(), expected);
        }
        let mut state = 1_234_567;
        for expected in [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ] {
            assert_eq!(splitmix(&mut state), expected);
        }
    }

    #[test]
    fn each_seed_and_each_name_has_its_own_numbers() {
        let first = |seed, name| RandomStream::new(seed, name).bits();
        assert_eq!(first(7, "loss"), first(7, "loss"));
        let mut seen: Vec<_> = (0..1_000)
            .flat_map(|seed| {
                ["loss", "corrupt", "duplicate", "jitter"].map(|name| first(seed, name))
            })
            .collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 4_000);
    }

    /// Sums of n samples against mean and deviation of the distribution; 2.58 standard errors are the 99 % interval.
    #[test]
    fn units_and_normals_have_their_moments() {
        let count = 1_000_000;
        let mut random = RandomStream::new(1, "moments");
        let root = f64::from(count).sqrt();
        let mean = (0..count).map(|_| random.unit()).sum::<f64>() / f64::from(count);
        assert!(
            (mean - 0.5).abs() < 2.58 / (12.0_f64.sqrt() * root),
            "{mean}"
        );
        let values: Vec<_> = (0..count).map(|_| random.normal()).collect();
        let mean = values.iter().sum::<f64>() / f64::from(count);
        let square = values.iter().map(|value| value * value).sum::<f64>() / f64::from(count);
        assert!(mean.abs() < 2.58 / root, "{mean}");
        assert!(
            (square - 1.0).abs() < 2.58 * 2.0_f64.sqrt() / root,
            "{square}"
        );
    }

    #[test]
    fn below_stays_below_and_reaches_all() {
        let mut random = RandomStream::new(3, "below");
        let mut seen = [0_u32; 7];
        for _ in 0..70_000 {
            seen[random.below(7) as usize] += 1;
        }
        // Each is binomial: 10 000 with a deviation of 93.
        assert!(
            seen.iter().all(|count| count.abs_diff(10_000) < 400),
            "{seen:?}"
        );
    }
}
