//! Loss, corruption and duplication together: what becomes of each segment on the line beyond the bottleneck.
//!
//! Each effect decides on every admitted segment, whatever the others do to it: switching one on does not change which segments the
//! others hit.

use super::corrupt::Corrupt;
use super::duplicate::Duplicate;
use super::loss::Loss;
use super::ongoing::EffectSlot;
use crate::job::{self, Direction};

/// What becomes of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Lost,
    Arrives {
        /// Corrupted; the number selects the bit.
        flaw: Option<u32>,
        twice: bool,
    },
}

/// The effects, each on or off.
#[derive(Debug)]
pub(crate) struct Faults {
    loss: EffectSlot<job::Loss, Loss>,
    corrupt: EffectSlot<f64, Corrupt>,
    duplicate: EffectSlot<f64, Duplicate>,
    any: bool,
}

impl Faults {
    pub(crate) fn new(direction: &Direction) -> Self {
        let mut faults = Self {
            loss: EffectSlot::off("loss"),
            corrupt: EffectSlot::off("corrupt"),
            duplicate: EffectSlot::off("duplicate"),
            any: false,
        };
        faults.set(direction);
        faults
    }

    /// Change the requested effects.
    pub(crate) fn set(&mut self, direction: &Direction) {
        let on = |chance: f64| (chance > 0.0).then_some(chance);
        self.loss
            .set_one_stream(direction, direction.loss.as_ref(), Loss::from_job);
        self.corrupt.set(
            direction,
            on(direction.corrupt).as_ref(),
            |chance, draws| Corrupt::new(*chance, draws("corrupt"), draws("flaw")),
        );
        self.duplicate.set_one_stream(
            direction,
            on(direction.duplicate).as_ref(),
            |chance, draws| Duplicate::from_job(*chance, draws),
        );
        self.any = self.loss.is_on() || self.corrupt.is_on() || self.duplicate.is_on();
    }

    /// Is any of them on?
    pub(crate) fn is_any_on(&self) -> bool {
        self.any
    }

    /// Pass over the segments, among the next `within`, that arrive intact before one that does not; returns their number.
    pub(crate) fn skip_clean(&mut self, mut within: u32) -> u32 {
        if let Some(loss) = self.loss.get() {
            within = loss.count_clean(within);
        }
        if let Some(corrupt) = self.corrupt.get() {
            within = corrupt.events().count_clean(within);
        }
        if let Some(duplicate) = self.duplicate.get() {
            within = duplicate.count_clean(within);
        }
        if let Some(loss) = self.loss.get() {
            loss.skip(within);
        }
        if let Some(corrupt) = self.corrupt.get() {
            corrupt.events().skip(within);
        }
        if let Some(duplicate) = self.duplicate.get() {
            duplicate.skip(within);
        }
        within
    }

    /// What becomes of the next segment.
    pub(crate) fn next(&mut self) -> Verdict {
        let lost = self.loss.get().is_some_and(Loss::step);
        let flaw = self.corrupt.get().and_then(Corrupt::flaw);
        let twice = self.duplicate.get().is_some_and(Duplicate::step);
        if lost {
            Verdict::Lost
        } else {
            Verdict::Arrives { flaw, twice }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(effects: &str, seed: u64) -> Vec<Verdict> {
        let text = format!(r#"{{"delay_ns":0,"queue_bytes":1,"seed":{seed}{effects}}}"#);
        let direction = serde_json::from_str(&text).expect("a direction");
        let mut faults = Faults::new(&direction);
        if !faults.is_any_on() {
            return Vec::new();
        }
        (0..20_000).map(|_| faults.next()).collect()
    }

    const LOSS: &str = r#","loss":{"kind":"independent","probability":0.1}"#;
    const OTHERS: &str = r#","corrupt":0.2,"duplicate":0.3"#;

    #[test]
    fn a_line_without_faults_is_none() {
        assert!(verdicts("", 1).is_empty());
    }

    #[test]
    fn one_effect_does_not_move_another() {
        let others = verdicts(OTHERS, 5);
        let all = verdicts(&format!("{LOSS}{OTHERS}"), 5);
        let loss = verdicts(LOSS, 5);
        assert!(all.contains(&Verdict::Lost) && others != verdicts(OTHERS, 6));
        for ((all, others), loss) in all.iter().zip(&others).zip(&loss) {
            assert_eq!(*all == Verdict::Lost, *loss == Verdict::Lost);
            if *all != Verdict::Lost {
                assert_eq!(all, others);
            }
        }
    }

    #[test]
    fn what_is_clean_is_what_would_arrive_as_it_is() {
        let effects = format!("{LOSS}{OTHERS}");
        let one_by_one = verdicts(&effects, 3);
        let text = format!(r#"{{"delay_ns":0,"queue_bytes":1,"seed":3{effects}}}"#);
        let direction = serde_json::from_str(&text).expect("a direction");
        let mut faults = Faults::new(&direction);
        let as_it_is = Verdict::Arrives {
            flaw: None,
            twice: false,
        };
        let mut seen = Vec::new();
        while seen.len() < one_by_one.len() - 50 {
            let clean = faults.skip_clean(44);
            seen.extend(std::iter::repeat_n(as_it_is, clean as usize));
            if clean < 44 {
                let next = faults.next();
                assert_ne!(next, as_it_is);
                seen.push(next);
            }
        }
        assert_eq!(seen[..], one_by_one[..seen.len()]);
    }
}
