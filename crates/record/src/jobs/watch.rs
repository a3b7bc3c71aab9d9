//! The watch job, as `load_job.py` defines it.

use serde::Deserialize;

use super::{
    LONGEST_NS, Password, SessionJob, Target, judge, one, ten_seconds, thirty_seconds, timeouts,
    within_a_day,
};
use crate::events::Failed;

/// Most writers: each is asked for by every poll.
const MOST_WRITERS: u32 = 4096;

/// See when the keys of a load job's sequence become visible on a connection of its own.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WatchJob {
    pub job: String,
    pub version: u32,
    pub target: Target,
    pub user: String,
    #[serde(default)]
    pub password: Password,
    pub database: String,
    #[serde(default)]
    pub session: SessionJob,
    pub table: String,
    pub column: String,
    #[serde(default = "one")]
    pub first: u64,
    #[serde(default = "one")]
    pub step: u64,
    pub connections: u32,
    pub seen: String,
    #[serde(default)]
    pub pause_ns: u64,
    pub watch_ns: u64,
    #[serde(default = "ten_seconds")]
    pub connect_timeout_ns: u64,
    #[serde(default = "thirty_seconds")]
    pub stall_timeout_ns: u64,
}

/// A name that can stand in backticks.
fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

impl WatchJob {
    /// The bounds that the types do not hold.
    pub fn check(&self) -> Result<(), Failed> {
        let rules = [
            (
                is_name(&self.table) && is_name(&self.column),
                "a table and a column are named by letters, digits and underscores",
            ),
            (
                self.first < 1 << 62 && (1..1 << 31).contains(&self.step),
                "first must be below 2^62 and step 1..2^31",
            ),
            (
                (1..=MOST_WRITERS).contains(&self.connections),
                "connections must be 1..4096",
            ),
            (!self.seen.is_empty(), "seen must name a file"),
            (
                self.pause_ns <= LONGEST_NS && within_a_day(self.watch_ns),
                "watch_ns must be above 0, and it and pause_ns at most a day",
            ),
        ];
        judge(
            rules
                .into_iter()
                .chain(timeouts(self.connect_timeout_ns, self.stall_timeout_ns))
                .chain(self.session.rules()),
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
        let job: WatchJob = parse_job("watch", JOB).expect("a good job");
        job.check().expect("in bounds");
        assert!(!format!("{job:?}").contains("secret"));
        for (from, to) in [
            ("\"inserted\"", "\"a`b\""),
            ("\"column\":\"id\"", "\"column\":\"\""),
            ("\"connections\":2", "\"connections\":5000"),
            ("\"/k\"", "\"\""),
            ("\"watch_ns\":1", "\"watch_ns\":0"),
        ] {
            let job: WatchJob = parse_job("watch", &JOB.replace(from, to)).expect("well formed");
            job.check().expect_err(to);
        }
    }
}
