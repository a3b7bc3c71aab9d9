//! A salted hash, which shows only whether two values within one recording are equal.

use std::hash::{BuildHasher, Hasher, RandomState};

/// 128 random bits that exist only in memory.
#[derive(Debug, Clone, Default)]
pub struct Salt(RandomState);

/// Hasher of a sequence of values.
#[derive(Debug)]
pub(crate) struct KeyHasher(<RandomState as BuildHasher>::Hasher);

impl Salt {
    pub(crate) fn hasher(&self) -> KeyHasher {
        KeyHasher(self.0.build_hasher())
    }

    pub(crate) fn hash(&self, value: &[u8]) -> u64 {
        let mut keys = self.hasher();
        keys.add(value);
        keys.finish()
    }
}

impl KeyHasher {
    /// Add a complete value.
    pub(crate) fn add(&mut self, value: &[u8]) {
        self.0.write(value);
        self.0.write_usize(value.len());
    }

    /// Add a piece of a value; the value's length must follow with [`KeyHasher::add_number`].
    pub(crate) fn add_piece(&mut self, piece: &[u8]) {
        self.0.write(piece);
    }

    pub(crate) fn add_number(&mut self, number: u64) {
        self.0.write_u64(number);
    }

    pub(crate) fn finish(&self) -> u64 {
        self.0.finish()
    }
}
