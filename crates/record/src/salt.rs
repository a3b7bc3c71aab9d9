//! A hash that says whether two values are equal within one recording, and nothing else about them.

use std::hash::{BuildHasher, Hasher, RandomState};

/// 128 random bits that exist only in memory.
#[derive(Debug, Clone, Default)]
pub struct Salt(RandomState);

/// Collects values.
#[derive(Debug)]
pub(crate) struct Keys(<RandomState as BuildHasher>::Hasher);

impl Salt {
    pub(crate) fn keys(&self) -> Keys {
        Keys(self.0.build_hasher())
    }

    pub(crate) fn of(&self, value: &[u8]) -> u64 {
        let mut keys = self.keys();
        keys.add(value);
        keys.finish()
    }
}

impl Keys {
    /// A whole value.
    pub(crate) fn add(&mut self, value: &[u8]) {
        self.0.write(value);
        self.0.write_usize(value.len());
    }

    /// A piece of a value; its length is to follow with [`Keys::mark`].
    pub(crate) fn piece(&mut self, piece: &[u8]) {
        self.0.write(piece);
    }

    pub(crate) fn mark(&mut self, number: u64) {
        self.0.write_u64(number);
    }

    pub(crate) fn finish(&self) -> u64 {
        self.0.finish()
    }
}
