//! Jobs whose start is set from outside, for engines on several hosts that are to begin at one moment.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Observed, check_rules};
use crate::events::Failed;

/// The line after a job that is held: begin at this moment of this host's monotonic clock, or at once where it has passed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Begin {
    #[schemars(extend("const" = "begin"))]
    pub command: String,
    pub at_ns: u64,
}

/// The CPU time that processes take in a load's measured window, on a host where the load's engine is not. It is always held.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UsageJob {
    #[schemars(extend("const" = "usage"))]
    pub job: String,
    #[schemars(extend("const" = 2))]
    pub version: u32,
    pub observe: Vec<Observed>,
    /// As of the load.
    #[schemars(range(max = crate::LONGEST_NS))]
    pub warmup_ns: u64,
    #[schemars(range(min = 1, max = crate::LONGEST_NS))]
    pub measure_ns: u64,
}

impl UsageJob {
    /// Check the bounds that the types do not enforce.
    pub fn check(&self) -> Result<(), Failed> {
        check_rules(self, [Observed::rule(&self.observe)])
    }
}
