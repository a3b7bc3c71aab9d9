//! Keeps a random effect when the link's settings change: an effect whose own settings stay the same continues its sequence, and an
//! effect that begins uses random numbers that this link has not used yet.
//!
//! A script that changes the delay ten times a second must not repeat the first decisions ten times a second: if the
//! first loss came after more segments than pass between two changes, nothing would ever be lost.

use super::random_stream::RandomStream;
use crate::job::Direction;

/// The effect `E` with its settings `S`, on or off.
#[derive(Debug)]
pub(crate) struct EffectSlot<S, E> {
    name: &'static str,
    spec: Option<S>,
    effect: Option<E>,
    /// Seed of the random numbers in use; None before the first use.
    seed: Option<u64>,
    /// How many times the effect has begun with this seed.
    times_begun: u64,
}

impl<S: PartialEq + Clone, E> EffectSlot<S, E> {
    /// An effect that is off.
    pub(crate) fn off(name: &'static str) -> Self {
        Self {
            name,
            spec: None,
            effect: None,
            seed: None,
            times_begun: 0,
        }
    }

    /// Set the effect's settings; None switches it off. `make` gets a source of random streams by name.
    pub(crate) fn set(
        &mut self,
        direction: &Direction,
        spec: Option<&S>,
        make: impl FnOnce(&S, &dyn Fn(&str) -> RandomStream) -> E,
    ) {
        // The seed does not matter while the effect is off.
        let is_same_seed = spec.is_none() || self.seed == Some(direction.seed);
        if is_same_seed && self.spec.as_ref() == spec {
            return;
        }
        self.spec = spec.cloned();
        self.effect = spec.map(|spec| {
            if !is_same_seed {
                (self.seed, self.times_begun) = (Some(direction.seed), 0);
            }
            let times_begun = self.times_begun;
            self.times_begun += 1;
            make(spec, &|name| direction.random_stream(name, times_begun))
        });
    }

    /// Set an effect that needs only one stream, which has the effect's name.
    pub(crate) fn set_one_stream(
        &mut self,
        direction: &Direction,
        spec: Option<&S>,
        make: impl FnOnce(&S, RandomStream) -> E,
    ) {
        let name = self.name;
        self.set(direction, spec, |spec, stream| make(spec, stream(name)));
    }

    pub(crate) fn is_on(&self) -> bool {
        self.effect.is_some()
    }

    /// The effect, if it is on.
    pub(crate) fn get(&mut self) -> Option<&mut E> {
        self.effect.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A random number of an effect after each of the steps (seed and settings).
    fn numbers_after(steps: &[(u64, Option<u32>)]) -> Vec<Option<u64>> {
        let mut effect = EffectSlot::off("test");
        let mut numbers = Vec::new();
        for (seed, spec) in steps {
            let text = format!(r#"{{"delay_ns":0,"queue_bytes":1,"seed":{seed}}}"#);
            let direction: Direction = serde_json::from_str(&text).expect("the direction is valid");
            effect.set_one_stream(&direction, spec.as_ref(), |_, random| random);
            numbers.push(effect.get().map(RandomStream::bits));
        }
        numbers
    }

    #[test]
    fn an_effect_with_unchanged_settings_continues() {
        let mut random = RandomStream::new(7, ".test");
        let numbers = [(); 3].map(|()| Some(random.bits()));
        assert_eq!(numbers_after(&[(7, Some(1)); 3]), numbers);
    }

    #[test]
    fn a_restarted_effect_uses_new_numbers() {
        // The settings are changed and changed back; the effect is switched off with another seed, and on again.
        let numbers = numbers_after(&[
            (7, Some(1)),
            (7, Some(2)),
            (7, Some(1)),
            (0, None),
            (7, Some(1)),
        ]);
        let distinct: std::collections::BTreeSet<_> = numbers.iter().flatten().collect();
        assert_eq!(distinct.len(), 4, "{numbers:?}");
    }

    #[test]
    fn another_seed_begins_at_the_first_number() {
        let first = numbers_after(&[(8, Some(1))]);
        assert_eq!(numbers_after(&[(7, Some(1)), (8, Some(1))])[1..], first);
    }
}
