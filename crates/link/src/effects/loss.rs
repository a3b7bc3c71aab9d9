//! Loss on the line: independent for each segment, or in bursts. It is decided for every segment, never for a super-packet at once.
//!
//! Loss happens after the bottleneck, like noise on a wire or in the air: a lost segment has used its time on the bottleneck and
//! its space in the queue. Segments that the queue has no room for are dropped by the queue and counted there.

use super::random_events::{Gap, GapSource, Independent, RandomEvents, sample_geometric};
use super::random_stream::RandomStream;
use crate::job;

/// Which segments are lost.
pub(crate) type Loss = RandomEvents<LossSource>;

#[derive(Debug)]
pub(crate) enum LossSource {
    Independent(Independent),
    Bursts(Bursts),
}

impl Loss {
    pub(crate) fn from_job(spec: &job::Loss, random: RandomStream) -> Self {
        Self::new(match *spec {
            job::Loss::Independent { probability } => {
                LossSource::Independent(Independent::new(random, probability))
            }
            job::Loss::GilbertElliott {
                to_bad,
                to_good,
                loss_good,
                loss_bad,
            } => LossSource::Bursts(Bursts::new(
                random,
                State {
                    leave_chance: to_bad,
                    loss_chance: loss_good,
                },
                State {
                    leave_chance: to_good,
                    loss_chance: loss_bad,
                },
            )),
        })
    }
}

impl GapSource for LossSource {
    fn next(&mut self) -> Gap {
        match self {
            Self::Independent(source) => source.next(),
            Self::Bursts(source) => source.next(),
        }
    }
}

/// A state of the chain: the chance to leave it after a segment, and to lose a segment in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct State {
    leave_chance: f64,
    loss_chance: f64,
}

/// The Gilbert-Elliott chain. It begins in the good state; the current state decides on a segment, and then the chain may change its
/// state. The length of a stay in a state and, within that stay, the distance to the next loss are sampled. Both are geometric and
/// memoryless, so that the distance may be sampled anew when a stay begins.
#[derive(Debug)]
pub(crate) struct Bursts {
    random: RandomStream,
    current: State,
    other: State,
    /// Number of segments for which the chain still stays in its current state.
    stay: u64,
}

impl Bursts {
    fn new(mut random: RandomStream, good: State, bad: State) -> Self {
        let stay = sample_stay(&mut random, good);
        Self {
            random,
            current: good,
            other: bad,
            stay,
        }
    }
}

/// Sample for how many segments the chain stays in a state: at least one.
fn sample_stay(random: &mut RandomStream, state: State) -> u64 {
    sample_geometric(random, state.leave_chance).saturating_add(1)
}

impl GapSource for Bursts {
    fn next(&mut self) -> Gap {
        let distance = sample_geometric(&mut self.random, self.current.loss_chance);
        let is_hit = distance < self.stay;
        let clean = distance.min(self.stay);
        // An endless stay (the state is never left) does not run out.
        if self.stay < u64::MAX {
            self.stay -= clean + u64::from(is_hit);
        }
        if self.stay == 0 {
            std::mem::swap(&mut self.current, &mut self.other);
            self.stay = sample_stay(&mut self.random, self.current);
        }
        Gap { clean, is_hit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bursts(to_bad: f64, to_good: f64, loss_good: f64, loss_bad: f64, seed: u64) -> Loss {
        let spec = job::Loss::GilbertElliott {
            to_bad,
            to_good,
            loss_good,
            loss_bad,
        };
        Loss::from_job(&spec, RandomStream::new(seed, "loss"))
    }

    #[test]
    fn a_chain_that_alternates_is_exact() {
        // The chain leaves each state after one segment and loses segments only in the bad one: every second segment is lost.
        let mut loss = bursts(1.0, 1.0, 0.0, 1.0, 3);
        let losses: Vec<_> = (0..8).map(|_| loss.step()).collect();
        assert_eq!(losses, [false, true, false, true, false, true, false, true]);
    }

    #[test]
    fn a_chain_that_never_leaves_a_state_keeps_its_loss() {
        let mut good = bursts(0.0, 1.0, 0.0, 1.0, 3);
        assert_eq!(good.count_clean(u32::MAX), u32::MAX);
        let mut bad = bursts(1.0, 0.0, 0.0, 1.0, 3);
        assert!(!bad.step());
        assert!((0..100_000).all(|_| bad.step()));
        // Neither state loses anything.
        let mut none = bursts(0.5, 0.5, 0.0, 0.0, 3);
        assert_eq!(none.count_clean(100_000), 100_000);
    }

    /// Stationary share of the bad state: `to_bad / (to_bad + to_good)`; a burst there lasts `1 / to_good` segments on average. The
    /// number of bursts in n segments is n times the rate of cycles, `1 / (1/to_bad + 1/to_good)`; burst lengths are geometric with
    /// variance (1 - q) / q^2, and so are the gaps between them.
    #[test]
    fn loss_share_and_burst_length_match_the_request() {
        let (to_bad, to_good, n) = (0.02_f64, 0.25_f64, 20_000_000_u32);
        let mut chain = bursts(to_bad, to_good, 0.0, 1.0, 8);
        let (mut lost, mut runs, mut was_hit) = (0_u32, 0_u32, false);
        for _ in 0..n {
            let is_hit = chain.step();
            lost += u32::from(is_hit);
            runs += u32::from(is_hit && !was_hit);
            was_hit = is_hit;
        }
        let (lost, runs, n) = (f64::from(lost), f64::from(runs), f64::from(n));
        // Mean burst: 4 segments, standard error sqrt(0.75) / 0.25 / sqrt(runs).
        let (mean, error) = (lost / runs, (1.0 - to_good).sqrt() / to_good / runs.sqrt());
        assert!(2.0 * 2.58 * error < 0.02 / to_good, "the test can fail");
        assert!(
            (mean - 1.0 / to_good).abs() < 2.58 * error,
            "bursts of {mean}"
        );
        // The share: its variance is that of a chain of two states, p (1 - p) (2 - s) / s / n with s = to_bad + to_good.
        let (share, s) = (to_bad / (to_bad + to_good), to_bad + to_good);
        let error = (share * (1.0 - share) * (2.0 - s) / s / n).sqrt();
        assert!(2.0 * 2.58 * error < 0.02 * share, "the test can fail");
        assert!(
            (lost / n - share).abs() < 2.58 * error,
            "{} for {share}",
            lost / n
        );
    }

    /// If both states lose segments, the shares of losses and of two losses in a row are within 1 % and 1.5 % of those of a chain
    /// that draws random numbers for every segment.
    #[test]
    fn sampled_stays_lose_as_single_steps_do() {
        let (to_bad, to_good, loss_good, loss_bad) = (0.05, 0.2, 0.1, 0.7);
        let n = 4_000_000;
        let tally = |is_next_lost: &mut dyn FnMut() -> bool| {
            let (mut single, mut double, mut was_lost) = (0_u32, 0_u32, false);
            for _ in 0..n {
                let is_lost = is_next_lost();
                single += u32::from(is_lost);
                double += u32::from(is_lost && was_lost);
                was_lost = is_lost;
            }
            (f64::from(single), f64::from(double))
        };
        let mut loss = bursts(to_bad, to_good, loss_good, loss_bad, 21);
        let sampled = tally(&mut || loss.step());
        let (mut naive, mut is_bad) = (RandomStream::new(22, "naive"), false);
        let single = tally(&mut || {
            let is_lost = naive.unit() <= if is_bad { loss_bad } else { loss_good };
            is_bad ^= naive.unit() <= if is_bad { to_good } else { to_bad };
            is_lost
        });
        assert!(
            (sampled.0 / single.0 - 1.0).abs() < 0.01,
            "{sampled:?} {single:?}"
        );
        assert!(
            (sampled.1 / single.1 - 1.0).abs() < 0.015,
            "{sampled:?} {single:?}"
        );
    }
}
