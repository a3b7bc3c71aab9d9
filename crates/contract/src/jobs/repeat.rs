//! The repeat job, which repeats recorded pages, and the job that computes digests of statements.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{ServerLogin, SessionJob, SqlProtocol, check_rules, ten_seconds, thirty_seconds};
use crate::events::Failed;

/// One round trip. It begins `gap_ns` after the previous one has ended.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RepeatStep {
    /// Number of the connection. A connection that no step opens before its first use is opened before the first page.
    #[schemars(range(max = 10_000))]
    pub connection: u32,
    /// Whether to connect and log in first; a connection that is already open is reopened.
    #[serde(default)]
    pub opens: bool,
    #[serde(default)]
    #[schemars(range(max = crate::LONGEST_NS))]
    pub gap_ns: u64,
    /// Index in `statements`. None: the step only opens a connection.
    #[serde(default)]
    pub statement: Option<u32>,
    /// Whether the server may return an error, because it did so when the page was recorded.
    #[serde(default)]
    pub may_fail: bool,
}

/// The round trips of one page, and the time from the end of the last one to the end of the page.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RepeatPage {
    #[schemars(length(min = 1))]
    pub steps: Vec<RepeatStep>,
    #[serde(default)]
    #[schemars(range(max = crate::LONGEST_NS))]
    pub rest_ns: u64,
}

/// Repeat the round trips of recorded pages on a real server, one after the other, with the statements that the user provides.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RepeatJob {
    #[schemars(extend("const" = "repeat"))]
    pub job: String,
    #[schemars(extend("const" = 2))]
    pub version: u32,
    #[serde(default)]
    pub protocol: SqlProtocol,
    #[serde(flatten)]
    pub login: ServerLogin,
    #[serde(default)]
    pub session: SessionJob,
    /// Complete statements, including their literals.
    pub statements: Vec<String>,
    /// Whether to make all transactions read-only by default. A statement can override this.
    #[serde(default)]
    pub read_only: bool,
    #[schemars(length(min = 1))]
    pub pages: Vec<RepeatPage>,
    #[serde(default = "ten_seconds")]
    #[schemars(range(min = 1, max = crate::LONGEST_NS))]
    pub connect_timeout_ns: u64,
    #[serde(default = "thirty_seconds")]
    #[schemars(range(min = 1, max = crate::LONGEST_NS))]
    pub stall_timeout_ns: u64,
}

impl RepeatJob {
    /// Check the schema's bounds, and the rules that the schema cannot express.
    pub fn check(&self) -> Result<(), Failed> {
        let has_statement = |step: &RepeatStep| {
            step.statement
                .is_none_or(|at| (at as usize) < self.statements.len())
        };
        let rules = [(
            self.pages
                .iter()
                .flat_map(|page| &page.steps)
                .all(has_statement),
            "a step refers to a statement that the job does not contain",
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

/// Find the connections that a step uses before any step opens them. Each step is given as its connection and whether it opens that
/// connection.
pub fn find_preopened_connections(steps: impl Iterator<Item = (u32, bool)>) -> BTreeSet<u32> {
    let (mut preopened, mut opened) = (BTreeSet::new(), BTreeSet::new());
    for (connection, opens) in steps {
        if opens {
            opened.insert(connection);
        } else if !opened.contains(&connection) {
            preopened.insert(connection);
        }
    }
    preopened
}

/// Compute the digests of statements: replace their literals as the recorder does.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DigestsJob {
    #[schemars(extend("const" = "digests"))]
    pub job: String,
    #[schemars(extend("const" = 2))]
    pub version: u32,
    #[serde(default)]
    pub protocol: SqlProtocol,
    pub statements: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_used_before_they_are_opened_are_preopened() {
        let steps = [(1, true), (1, false), (2, false), (2, true), (3, false)];
        assert_eq!(
            find_preopened_connections(steps.into_iter()),
            BTreeSet::from([2, 3])
        );
    }
}
