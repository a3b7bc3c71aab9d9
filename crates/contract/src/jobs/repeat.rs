//! The repeat job, and the job that finds statements for it.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Password, SessionJob, SqlProtocol, Target, check_rules, ten_seconds, thirty_seconds};
use crate::events::Failed;

/// One round trip, begun `gap_ns` after the one before it ended.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RepeatStep {
    /// One that no step opens is opened before the first page.
    #[schemars(range(max = 10_000))]
    pub connection: u32,
    /// Connect and log in first, again if it is open.
    #[serde(default)]
    pub opens: bool,
    #[serde(default)]
    #[schemars(range(max = crate::LONGEST_NS))]
    pub gap_ns: u64,
    /// Index in `statements`. None: the step only connects.
    #[serde(default)]
    pub statement: Option<u32>,
    /// The server refused it when it was recorded, so it may do so again.
    #[serde(default)]
    pub may_fail: bool,
}

/// The round trips of one page, and the time after the last of them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RepeatPage {
    #[schemars(length(min = 1))]
    pub steps: Vec<RepeatStep>,
    #[serde(default)]
    #[schemars(range(max = crate::LONGEST_NS))]
    pub rest_ns: u64,
}

/// Make the round trips of recorded pages against a real server, one after the other, with statements that the user has.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RepeatJob {
    #[schemars(extend("const" = "repeat"))]
    pub job: String,
    #[schemars(extend("const" = 2))]
    pub version: u32,
    #[serde(default)]
    pub protocol: SqlProtocol,
    pub target: Target,
    pub user: String,
    #[serde(default)]
    pub password: Password,
    pub database: String,
    #[serde(default)]
    pub session: SessionJob,
    /// In full, with their literals.
    pub statements: Vec<String>,
    /// All transactions are, unless a statement says otherwise.
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
    /// Check the bounds that the types do not enforce.
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
            "a step names a statement that the job has",
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

/// Find the connections of a replay that a step uses before any step opens them. A step is a connection and whether the step opens it.
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

/// Take the literals out of statements, as the recorder does.
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
