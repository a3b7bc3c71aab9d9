//! The watch job, which records when the rows of a load become visible to other sessions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ServerLogin, SessionJob, SqlProtocol, check_rules, one_u64, ten_seconds, thirty_seconds,
};
use crate::events::Failed;

/// Poll for the next keys that each connection of a load job inserts, over a separate connection, and log when each key is first
/// visible.
///
/// The job ends after `watch_ns`, at the end of stdin, or when the server fails. The keys of the load must come from one `sequence`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WatchJob {
    #[schemars(extend("const" = "watch"))]
    pub job: String,
    #[schemars(extend("const" = 2))]
    pub version: u32,
    #[serde(default)]
    pub protocol: SqlProtocol,
    #[serde(flatten)]
    pub login: ServerLogin,
    #[serde(default)]
    pub session: SessionJob,
    #[schemars(regex(pattern = r"^[A-Za-z0-9_]{1,64}$"))]
    pub table: String,
    #[schemars(regex(pattern = r"^[A-Za-z0-9_]{1,64}$"))]
    pub column: String,
    /// First key of the load's sequence. `step` and `connections` must also be those of the load.
    #[serde(default = "one_u64")]
    #[schemars(range(max = (1_u64 << 62) - 1))]
    pub first: u64,
    #[serde(default = "one_u64")]
    #[schemars(range(min = 1, max = i32::MAX))]
    pub step: u64,
    #[schemars(range(min = 1, max = 4096))]
    pub connections: u32,
    /// Path of a new file in which to log visible keys, in the format of `acknowledged`. The outcome is *seen*, and the times are
    /// those of sending and completing the poll that returned the key.
    #[schemars(length(min = 1))]
    pub seen: String,
    /// Pause between two polls.
    #[serde(default)]
    #[schemars(range(max = crate::LONGEST_NS))]
    pub pause_ns: u64,
    #[schemars(range(min = 1, max = crate::LONGEST_NS))]
    pub watch_ns: u64,
    #[serde(default = "ten_seconds")]
    #[schemars(range(min = 1, max = crate::LONGEST_NS))]
    pub connect_timeout_ns: u64,
    #[serde(default = "thirty_seconds")]
    #[schemars(range(min = 1, max = crate::LONGEST_NS))]
    pub stall_timeout_ns: u64,
}

/// Whether a table or column name needs no quoting.
fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

impl WatchJob {
    /// Check the schema's bounds, and the rules that the schema cannot express.
    pub fn check(&self) -> Result<(), Failed> {
        let rules = [(
            is_name(&self.table) && is_name(&self.column),
            "a table and a column are named by letters, digits and underscores",
        )];
        check_rules(
            self,
            rules
                .into_iter()
                .chain(self.session.rules())
                .chain(self.protocol.session_rules(&self.session)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_job;

    const JOB: &str = r#"{"job":"watch","version":2,"target":{"kind":"unix","path":"/s"},"user":"u","password":"secret","database":"d",
        "table":"inserted","column":"id","connections":2,"seen":"/k","watch_ns":1}"#;

    #[test]
    fn names_and_bounds_are_checked() {
        let job: WatchJob = parse_job("watch", JOB).expect("the job is valid");
        job.check().expect("the job is in bounds");
        assert!(!format!("{job:?}").contains("secret"));
        for (from, to) in [
            ("\"inserted\"", "\"a`b\""),
            ("\"column\":\"id\"", "\"column\":\"\""),
            ("\"connections\":2", "\"connections\":5000"),
            ("\"/k\"", "\"\""),
            ("\"watch_ns\":1", "\"watch_ns\":0"),
        ] {
            let job: WatchJob =
                parse_job("watch", &JOB.replace(from, to)).expect("the JSON is valid");
            job.check().expect_err(to);
        }
    }
}
