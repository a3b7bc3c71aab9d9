//! Duplication on the line: a segment arrives twice, the copy right after it. The copy has not used the bottleneck.

use super::draws::Draws;
use super::strikes::{Independent, Strikes};

/// Which segments arrive twice.
pub(crate) type Duplicate = Strikes<Independent>;

impl Duplicate {
    pub(crate) fn asked(chance: f64, draws: Draws) -> Self {
        Self::new(Independent::new(draws, chance))
    }
}
