//! Loss, corruption and duplication together: what becomes of each segment on the line beyond the bottleneck.
//!
//! Each effect decides on every admitted segment, even if another effect hits it: switching one on does not change which segments
//! the others hit.

use super::corrupt::Corrupt;
use super::duplicate::Duplicate;
use super::effect_slot::EffectSlot;
use super::loss::Loss;
use crate::job::{self, Direction};

/// What becomes of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Lost,
    Arrives {
        /// Corrupted; the number selects the bit.
        flaw: Option<u32>,
        is_duplicated: bool,
    },
}

/// The effects, each on or off.
#[derive(Debug)]
pub(crate) struct Faults {
    loss: EffectSlot<job::Loss, Loss>,
    corrupt: EffectSlot<f64, Corrupt>,
    duplicate: EffectSlot<f64, Duplicate>,
}

impl Faults {
    pub(crate) fn new(direction: &Direction) -> Self {
        let mut faults = Self {
            loss: EffectSlot::off("loss"),
            corrupt: EffectSlot::off("corrupt"),
            duplicate: EffectSlot::off("duplicate"),
        };
        faults.set(direction);
        faults
    }

    /// Apply the requested effects.
    pub(crate) fn set(&mut self, direction: &Direction) {
        let positive = |chance: f64| (chance > 0.0).then_some(chance);
        self.loss
            .set_one_stream(direction, direction.loss.as_ref(), Loss::from_job);
        self.corrupt.set(
            direction,
            positive(direction.corrupt).as_ref(),
            |chance, stream| Corrupt::new(*chance, stream("corrupt"), stream("flaw")),
        );
        self.duplicate.set_one_stream(
            direction,
            positive(direction.duplicate).as_ref(),
            |chance, random| Duplicate::from_job(*chance, random),
        );
    }

    pub(crate) fn is_any_on(&self) -> bool {
        self.loss.is_on() || self.corrupt.is_on() || self.duplicate.is_on()
    }

    /// Skip the next segments that arrive once and intact, at most `max`; returns their number.
    pub(crate) fn skip_clean(&mut self, max: u32) -> u32 {
        let mut clean = max;
        if let Some(loss) = self.loss.get() {
            clean = loss.count_clean(clean);
        }
        if let Some(corrupt) = self.corrupt.get() {
            clean = corrupt.events.count_clean(clean);
        }
        if let Some(duplicate) = self.duplicate.get() {
            clean = duplicate.count_clean(clean);
        }
        if let Some(loss) = self.loss.get() {
            loss.skip(clean);
        }
        if let Some(corrupt) = self.corrupt.get() {
            corrupt.events.skip(clean);
        }
        if let Some(duplicate) = self.duplicate.get() {
            duplicate.skip(clean);
        }
        clean
    }

    /// Decide what becomes of the next segment.
    pub(crate) fn next(&mut self) -> Verdict {
        let lost = self.loss.get().is_some_and(Loss::step);
        let flaw = self.corrupt.get().and_then(Corrupt::next_flaw);
        let is_duplicated = self.duplicate.get().is_some_and(Duplicate::step);
        if lost {
            Verdict::Lost
        } else {
            Verdict::Arrives {
                flaw,
                is_duplicated,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(effects: &str, seed: u64) -> Faults {
        let text = format!(r#"{{"delay_ns":0,"queue_bytes":1,"seed":{seed}{effects}}}"#);
        Faults::new(&serde_json::from_str(&text).expect("the direction is valid"))
    }

    fn verdicts(effects: &str, seed: u64) -> Vec<Verdict> {
        let mut faults = faults(effects, seed);
        if !faults.is_any_on() {
            return Vec::new();
        }
        (0..20_000).map(|_| faults.next()).collect()
    }

    const LOSS: &str = r#","loss":{"kind":"independent","probability":0.1}"#;
    const CORRUPT_AND_DUPLICATE: &str = r#","corrupt":0.2,"duplicate":0.3"#;

    #[test]
    fn without_effects_there_are_no_verdicts() {
        assert!(verdicts("", 1).is_empty());
    }

    #[test]
    fn one_effect_does_not_move_another() {
        let others = verdicts(CORRUPT_AND_DUPLICATE, 5);
        let all = verdicts(&format!("{LOSS}{CORRUPT_AND_DUPLICATE}"), 5);
        let loss = verdicts(LOSS, 5);
        assert!(all.contains(&Verdict::Lost));
        assert_ne!(others, verdicts(CORRUPT_AND_DUPLICATE, 6));
        for ((all, others), loss) in all.iter().zip(&others).zip(&loss) {
            assert_eq!(*all == Verdict::Lost, *loss == Verdict::Lost);
            if *all != Verdict::Lost {
                assert_eq!(all, others);
            }
        }
    }

    #[test]
    fn skipped_segments_are_those_that_arrive_once_and_intact() {
        let effects = format!("{LOSS}{CORRUPT_AND_DUPLICATE}");
        let one_by_one = verdicts(&effects, 3);
        let mut faults = faults(&effects, 3);
        let intact = Verdict::Arrives {
            flaw: None,
            is_duplicated: false,
        };
        let mut seen = Vec::new();
        while seen.len() < one_by_one.len() - 50 {
            let clean = faults.skip_clean(44);
            seen.extend(std::iter::repeat_n(intact, clean as usize));
            if clean < 44 {
                let next = faults.next();
                assert_ne!(next, intact);
                seen.push(next);
            }
        }
        assert_eq!(seen[..], one_by_one[..seen.len()]);
    }
}
