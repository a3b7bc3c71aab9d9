//! The tables job, which prepares, warms up or removes the data of a workload.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ServerLogin, SessionJob, SqlProtocol, Workload, check_rules, refuse, ten_seconds};
use crate::events::Failed;

/// Action on the tables of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    Prepare,
    Warmup,
    Cleanup,
}

/// Create, warm up or drop the tables of a workload, as sysbench's `prepare`, `warmup` (`prewarm`) and `cleanup` do.
///
/// For a workload of keys, set, read or delete all keys.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TablesJob {
    #[schemars(extend("const" = "tables"))]
    pub job: String,
    #[schemars(extend("const" = 2))]
    pub version: u32,
    pub action: Action,
    #[serde(default)]
    pub protocol: SqlProtocol,
    #[serde(flatten)]
    pub login: ServerLogin,
    #[serde(default)]
    pub session: SessionJob,
    pub workload: Workload,
    /// Number of connections over which the tables are distributed.
    #[serde(default = "one_connection")]
    #[schemars(range(min = 1, max = 1024))]
    pub connections: u32,
    #[schemars(range(max = i64::MAX))]
    pub seed: u64,
    #[serde(default = "ten_seconds")]
    #[schemars(range(min = 1, max = crate::LONGEST_NS))]
    pub connect_timeout_ns: u64,
    #[serde(default = "ten_minutes")]
    #[schemars(range(min = 1, max = crate::LONGEST_NS))]
    pub stall_timeout_ns: u64,
}

const fn one_connection() -> u32 {
    1
}

const fn ten_minutes() -> u64 {
    600_000_000_000
}

impl TablesJob {
    /// Check the schema's bounds, and the rules that the schema cannot express.
    pub fn check(&self) -> Result<(), Failed> {
        check_rules(
            self,
            self.session
                .rules()
                .into_iter()
                .chain(self.workload.rules())
                .chain(self.protocol.rules(&self.session, &self.workload))
                .chain(self.workload.session_rules(&self.session, &self.login)),
        )?;
        refuse(self.workload.find_violation())
    }
}
