//! Duplication on the line: a segment arrives twice, the copy right after it. The copy uses no time on the bottleneck.

use super::random_events::{Independent, RandomEvents};
use super::random_stream::RandomStream;

/// Which segments arrive twice.
pub(crate) type Duplicate = RandomEvents<Independent>;

impl Duplicate {
    pub(crate) fn from_job(chance: f64, random: RandomStream) -> Self {
        Self::new(Independent::new(random, chance))
    }
}
