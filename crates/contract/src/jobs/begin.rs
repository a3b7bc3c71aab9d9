//! Delayed start of jobs, so that engines on several hosts can begin at the same moment.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Observed, check_rules};
use crate::events::Failed;

/// Starts a job with delayed start at a time of this host's monotonic clock, or immediately if that time has passed.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Begin {
    #[schemars(extend("const" = "begin"))]
    pub command: String,
    pub at_ns: u64,
}

/// Measurement of the CPU time of processes on a host that runs no load engine, over the measured window of a load on another host.
/// The job always has a delayed start.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UsageJob {
    #[schemars(extend("const" = "usage"))]
    pub job: String,
    #[schemars(extend("const" = 2))]
    pub version: u32,
    pub observe: Vec<Observed>,
    /// Warm-up time of the load.
    #[schemars(range(max = crate::LONGEST_NS))]
    pub warmup_ns: u64,
    #[schemars(range(min = 1, max = crate::LONGEST_NS))]
    pub measure_ns: u64,
}

impl UsageJob {
    /// Check the schema's bounds, and the rules that the schema cannot express.
    pub fn check(&self) -> Result<(), Failed> {
        check_rules(self, [Observed::rule(&self.observe)])
    }
}
