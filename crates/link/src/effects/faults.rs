//! Loss, corruption and duplication together: what becomes of each segment on the line beyond the bottleneck.
//!
//! Each effect looks at every segment that was admitted, whatever the others do to it: switching one on does not change whom the
//! others strike.

use super::corrupt::Corrupt;
use super::duplicate::Duplicate;
use super::loss::Loss;
use crate::job::Direction;

/// What becomes of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Lost,
    Arrives {
        /// Spoilt; the number says which bit.
        flaw: Option<u32>,
        twice: bool,
    },
}

/// The effects that are on.
#[derive(Debug)]
pub(crate) struct Faults {
    loss: Option<Loss>,
    corrupt: Option<Corrupt>,
    duplicate: Option<Duplicate>,
}

impl Faults {
    /// None: the line has no faults.
    pub(crate) fn new(direction: &Direction) -> Option<Self> {
        let stream = |name| direction.draws(name);
        let on = |chance: f64| (chance > 0.0).then_some(chance);
        let faults = Self {
            loss: direction
                .loss
                .as_ref()
                .map(|asked| Loss::asked(asked, stream("loss"))),
            corrupt: on(direction.corrupt)
                .map(|chance| Corrupt::new(chance, stream("corrupt"), stream("flaw"))),
            duplicate: on(direction.duplicate)
                .map(|chance| Duplicate::asked(chance, stream("duplicate"))),
        };
        let none = faults.loss.is_none() && faults.corrupt.is_none() && faults.duplicate.is_none();
        (!none).then_some(faults)
    }

    /// How many of the next `within` segments arrive as they are before one does not; they are passed over.
    pub(crate) fn clean(&mut self, mut within: u32) -> u32 {
        if let Some(loss) = &mut self.loss {
            within = loss.clean(within);
        }
        if let Some(corrupt) = &mut self.corrupt {
            within = corrupt.strikes().clean(within);
        }
        if let Some(duplicate) = &mut self.duplicate {
            within = duplicate.clean(within);
        }
        if let Some(loss) = &mut self.loss {
            loss.pass(within);
        }
        if let Some(corrupt) = &mut self.corrupt {
            corrupt.strikes().pass(within);
        }
        if let Some(duplicate) = &mut self.duplicate {
            duplicate.pass(within);
        }
        within
    }

    /// What becomes of the next segment.
    pub(crate) fn next(&mut self) -> Fate {
        let lost = self.loss.as_mut().is_some_and(Loss::step);
        let flaw = self.corrupt.as_mut().and_then(Corrupt::flaw);
        let twice = self.duplicate.as_mut().is_some_and(Duplicate::step);
        if lost {
            Fate::Lost
        } else {
            Fate::Arrives { flaw, twice }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fates(effects: &str, seed: u64) -> Vec<Fate> {
        let text = format!(r#"{{"delay_ns":0,"queue_bytes":1,"seed":{seed}{effects}}}"#);
        let direction = serde_json::from_str(&text).expect("a direction");
        let Some(mut faults) = Faults::new(&direction) else {
            return Vec::new();
        };
        (0..20_000).map(|_| faults.next()).collect()
    }

    const LOSS: &str = r#","loss":{"kind":"independent","probability":0.1}"#;
    const OTHERS: &str = r#","corrupt":0.2,"duplicate":0.3"#;

    #[test]
    fn a_line_without_faults_is_none() {
        assert!(fates("", 1).is_empty());
    }

    #[test]
    fn one_effect_does_not_move_another() {
        let others = fates(OTHERS, 5);
        let all = fates(&format!("{LOSS}{OTHERS}"), 5);
        let loss = fates(LOSS, 5);
        assert!(all.contains(&Fate::Lost) && others != fates(OTHERS, 6));
        for ((all, others), loss) in all.iter().zip(&others).zip(&loss) {
            assert_eq!(*all == Fate::Lost, *loss == Fate::Lost);
            if *all != Fate::Lost {
                assert_eq!(all, others);
            }
        }
    }

    #[test]
    fn what_is_clean_is_what_would_arrive_as_it_is() {
        let effects = format!("{LOSS}{OTHERS}");
        let one_by_one = fates(&effects, 3);
        let text = format!(r#"{{"delay_ns":0,"queue_bytes":1,"seed":3{effects}}}"#);
        let direction = serde_json::from_str(&text).expect("a direction");
        let mut faults = Faults::new(&direction).expect("faults");
        let as_it_is = Fate::Arrives {
            flaw: None,
            twice: false,
        };
        let mut seen = Vec::new();
        while seen.len() < one_by_one.len() - 50 {
            let clean = faults.clean(44);
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
