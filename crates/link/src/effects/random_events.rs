//! Decides which segments an effect hits. It draws the distance to the next hit instead of a random number for each segment, so that
//! a chance of one in a million costs nothing for all other segments.

use super::random_stream::RandomStream;

/// A number of segments that the effect spares (`clean`), and whether it hits the segment after them. If `is_hit` is false, the next gap
/// decides on that segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) clean: u64,
    pub(crate) is_hit: bool,
}

/// A source of successive gaps.
pub(crate) trait GapSource {
    /// The next gap: at least one segment, clean or hit.
    fn next(&mut self) -> Gap;
}

/// An effect's position in the sequence of passing segments.
#[derive(Debug)]
pub(crate) struct RandomEvents<S> {
    source: S,
    gap: Gap,
}

impl<S: GapSource> RandomEvents<S> {
    pub(crate) fn new(source: S) -> Self {
        let gap = Gap {
            clean: 0,
            is_hit: false,
        };
        Self { source, gap }
    }

    /// How many segments pass before one is hit, at most `max`.
    pub(crate) fn count_clean(&mut self, max: u32) -> u32 {
        while !self.gap.is_hit && self.gap.clean < u64::from(max) {
            let next = self.source.next();
            self.gap.clean = self.gap.clean.saturating_add(next.clean);
            self.gap.is_hit = next.is_hit;
        }
        self.gap.clean.min(u64::from(max)) as u32
    }

    /// Skip segments that [`Self::count_clean`] has counted.
    pub(crate) fn skip(&mut self, count: u32) {
        assert!(
            u64::from(count) <= self.gap.clean,
            "skipped segments are known to be clean"
        );
        self.gap.clean -= u64::from(count);
    }

    /// Pass over one segment; returns whether it is hit.
    pub(crate) fn step(&mut self) -> bool {
        let is_hit = self.count_clean(1) == 0;
        if is_hit {
            self.gap.is_hit = false;
        } else {
            self.skip(1);
        }
        is_hit
    }
}

/// Hits each segment independently with the same chance. The number of clean segments before a hit is geometric.
#[derive(Debug, Clone)]
pub(crate) struct Independent {
    random: RandomStream,
    chance: f64,
}

impl Independent {
    pub(crate) fn new(random: RandomStream, chance: f64) -> Self {
        Self { random, chance }
    }
}

impl GapSource for Independent {
    fn next(&mut self) -> Gap {
        Gap {
            clean: sample_geometric(&mut self.random, self.chance),
            is_hit: self.chance > 0.0,
        }
    }
}

/// Sample the number of failures before the first success of trials with `chance`: the smallest k for which (1 - chance)^(k + 1) is
/// below a uniform random number. Exact for chances 0 (never) and 1 (at once). The random number has 53 bits, so that no result
/// exceeds 36.8 times the mean.
pub(crate) fn sample_geometric(random: &mut RandomStream, chance: f64) -> u64 {
    if chance <= 0.0 {
        return u64::MAX;
    }
    if chance >= 1.0 {
        return 0;
    }
    // ln_1p: 1 - chance would lose the digits of a small chance. The cast saturates.
    (random.unit().ln() / (-chance).ln_1p()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hits(chance: f64, seed: u64, count: u32) -> Vec<bool> {
        let mut events =
            RandomEvents::new(Independent::new(RandomStream::new(seed, "test"), chance));
        (0..count).map(|_| events.step()).collect()
    }

    #[test]
    fn never_and_always_are_exact() {
        assert!(!hits(0.0, 1, 100_000).contains(&true));
        assert!(!hits(1.0, 1, 100_000).contains(&false));
    }

    #[test]
    fn skipping_gives_the_same_hits_as_single_steps() {
        let steps = hits(0.03, 9, 50_000);
        let mut events = RandomEvents::new(Independent::new(RandomStream::new(9, "test"), 0.03));
        let mut skipping_hits = Vec::new();
        for max in (1..60).cycle() {
            let clean = events.count_clean(max);
            events.skip(clean);
            skipping_hits.extend(std::iter::repeat_n(false, clean as usize));
            if clean < max {
                skipping_hits.push(events.step());
            }
            if skipping_hits.len() >= steps.len() {
                break;
            }
        }
        assert_eq!(skipping_hits[..steps.len()], steps[..]);
    }

    /// The number of hits among n segments with chance p is binomial with mean n p. Twice the 99 % interval is less than 2 % of the
    /// mean, so that a chance wrong by 2 % is detected.
    #[test]
    fn the_hit_rate_matches_the_requested_chance() {
        for (chance, count) in [(0.01, 8_000_000_u32), (0.3, 1_000_000), (0.97, 1_000_000)] {
            let n = f64::from(count);
            let hit_count = hits(chance, 4, count).iter().filter(|hit| **hit).count() as f64;
            let interval = 2.58 * (n * chance * (1.0 - chance)).sqrt();
            assert!(2.0 * interval < 0.02 * n * chance, "the test can fail");
            assert!(
                (hit_count - n * chance).abs() < interval,
                "{hit_count} of {n} at {chance}"
            );
        }
    }

    /// A chance of one in a million: 200 000 gaps with mean 1e6 - 1; the standard error is mean / sqrt(200 000).
    #[test]
    fn a_small_chance_keeps_its_digits() {
        let mut random = RandomStream::new(5, "test");
        let mean = (0..200_000)
            .map(|_| sample_geometric(&mut random, 1e-6) as f64)
            .sum::<f64>()
            / 200_000.0;
        assert!(
            (mean / (1e6 - 1.0) - 1.0).abs() < 2.58 / 200_000_f64.sqrt(),
            "{mean}"
        );
    }

    /// Compared with a random number for each segment: the lengths of the gaps between two hits, in classes, by the two-sample chi-square
    /// test. 20 classes, 19 degrees of freedom: 99 % of the values are below 36.19.
    #[test]
    fn gaps_are_distributed_as_with_single_decisions() {
        const CLASSES: usize = 20;
        let chance = 0.1;
        let classes = |hit: &mut dyn FnMut() -> bool| {
            let (mut counts, mut gap_length) = ([0_u32; CLASSES], 0);
            for _ in 0..2_000_000 {
                if hit() {
                    counts[gap_length.min(CLASSES - 1)] += 1;
                    gap_length = 0;
                } else {
                    gap_length += 1;
                }
            }
            counts.map(f64::from)
        };
        let chi_square = |first: &[f64; CLASSES], second: &[f64; CLASSES]| {
            let ratio = (second.iter().sum::<f64>() / first.iter().sum::<f64>()).sqrt();
            let term = |(a, b): (&f64, &f64)| (a * ratio - b / ratio).powi(2) / (a + b);
            first.iter().zip(second).map(term).sum::<f64>()
        };
        let mut naive = RandomStream::new(11, "naive");
        let single = classes(&mut || naive.unit() <= chance);
        let mut events = RandomEvents::new(Independent::new(RandomStream::new(12, "ways"), chance));
        let skipped = classes(&mut || events.step());
        assert!(
            chi_square(&single, &skipped) < 36.19,
            "{single:?} {skipped:?}"
        );
        // The test can fail: a chance that is 2 % larger does not pass.
        let mut events = RandomEvents::new(Independent::new(
            RandomStream::new(12, "ways"),
            chance * 1.02,
        ));
        let wrong = classes(&mut || events.step());
        assert!(chi_square(&single, &wrong) > 36.19, "{single:?} {wrong:?}");
    }
}
