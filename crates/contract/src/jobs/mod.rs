//! Jobs that the engine runs against a server or an application, and their parts. Unknown fields are errors.

mod begin;
mod key_value;
mod keys;
mod login;
mod page;
mod ping;
mod repeat;
mod session;
mod sql;
mod tables;
mod watch;
mod workload;

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bounds;
use crate::events::{FailCode, Failed};

pub use begin::{Begin, UsageJob};
pub use key_value::{KeyValue, OnError, Protocol, Size, Sizes};
pub use login::{Password, ServerLogin};
pub use page::{Application, FastCgi, PageConnect, PageJob, PageScript, PageStep, Service, Store};
pub use ping::{PingCommand, PingJob, PingProtocol, PingRequest};
pub use repeat::{DigestsJob, RepeatJob, RepeatPage, RepeatStep, find_preopened_connections};
pub use session::{
    Algorithm, ChannelBinding, Compression, Connect, Driver, Listen, OnDisconnect, SessionJob,
    Target, Tls, TlsVerify, TlsVersions, parse_numeric_address, socket_address,
};
pub use sql::SqlProtocol;
pub use tables::{Action, TablesJob};
pub use watch::WatchJob;
pub use workload::{
    Alphabet, Constant, Custom, CustomStatement, CustomStep, CustomTransaction, Distribution,
    DistributionKind, Pgbench, PsMode, Sysbench, Values, Workload,
};

/// How the client processes rows: skip them, copy their bytes, or decode their columns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClientWork {
    Skip,
    #[default]
    Touch,
    Decode,
}

/// Distribution of the arrivals in an open loop: evenly spaced, as a Poisson process, or in bursts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    Constant,
    #[default]
    Poisson,
    Bursts,
}

/// Arrivals of an open loop. When each request is due depends only on the rate, the shape, the seed and the number of threads, never
/// on the server.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Arrivals {
    /// Arrival rate in transactions per second, summed over all connections.
    #[schemars(range(max = 1e9), extend("exclusiveMinimum" = 0.0))]
    pub rate_per_s: f64,
    #[serde(default)]
    pub shape: Shape,
    /// Number of requests in each burst, with the shape `bursts`. Bursts are evenly spaced.
    #[serde(default = "default_burst")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub burst: u64,
}

const fn default_burst() -> u64 {
    10
}

/// Server errors after which a transaction is retried.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum IgnoredErrors {
    Codes(Vec<IgnoredCode>),
    All(All),
}

/// A MySQL error number or a PostgreSQL SQLSTATE.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum IgnoredCode {
    Number(u16),
    State(#[schemars(regex(pattern = r"^[0-9A-Z]{5}$"))] String),
}

impl IgnoredCode {
    fn matches(&self, code: &str) -> bool {
        match self {
            Self::Number(number) => number.to_string() == code,
            Self::State(state) => state == code,
        }
    }
}

/// The string `all`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum All {
    All,
}

impl Default for IgnoredErrors {
    /// Return sysbench's defaults: deadlock, changed record, lock wait timeout, serialization failure and duplicate key.
    fn default() -> Self {
        let numbers = [1213, 1020, 1205].map(IgnoredCode::Number);
        let states = ["40001", "40P01", "23505"].map(|state| IgnoredCode::State(state.to_owned()));
        Self::Codes(numbers.into_iter().chain(states).collect())
    }
}

impl IgnoredErrors {
    /// Whether `code`, an error number or a SQLSTATE, is ignored.
    pub fn contains(&self, code: &str) -> bool {
        match self {
            Self::Codes(codes) => codes.iter().any(|ignored| ignored.matches(code)),
            Self::All(_) => true,
        }
    }
}

/// A process whose CPU time, including that of its descendants, is measured over the window.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Observed {
    pub role: String,
    #[schemars(range(min = 1))]
    pub pid: u32,
}

/// Load on one server. Without `arrivals` it is a closed loop: each connection sends its next transaction when the previous one has
/// been answered.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadJob {
    #[schemars(extend("const" = "load"))]
    pub job: String,
    #[schemars(extend("const" = 2))]
    pub version: u32,
    /// Protocol of the server, for SQL workloads. A workload of keys names its own protocol.
    #[serde(default)]
    pub protocol: SqlProtocol,
    #[serde(flatten)]
    pub login: ServerLogin,
    #[serde(default)]
    pub session: SessionJob,
    pub workload: Workload,
    #[schemars(range(min = 1, max = MAX_CONNECTIONS))]
    pub connections: u32,
    /// Additional connections that are opened and logged in, but stay idle.
    #[serde(default)]
    #[schemars(range(max = MAX_CONNECTIONS))]
    pub idle_connections: u32,
    /// Maximum number of engine threads. None: one per CPU.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1024))]
    pub threads: Option<u32>,
    /// System interface that serves the sockets. `auto` selects `io_uring` if the kernel supports it and each thread has enough
    /// connections for it to pay off, otherwise epoll.
    #[serde(default)]
    pub driver: Driver,
    #[serde(default)]
    pub arrivals: Option<Arrivals>,
    /// Ramp-up time, which is part of the warm-up. Closed loop: the connections start evenly spread over it. Open loop: the rate
    /// increases linearly from 0.
    #[serde(default)]
    #[schemars(range(max = crate::LONGEST_NS))]
    pub ramp_ns: u64,
    #[schemars(range(max = i64::MAX))]
    pub seed: u64,
    #[schemars(range(max = crate::LONGEST_NS))]
    pub warmup_ns: u64,
    #[schemars(range(min = 1, max = crate::LONGEST_NS))]
    pub measure_ns: u64,
    /// Maximum number of transactions (sysbench's `--events`). The job ends when all of them are answered or when the window ends. 0:
    /// no limit.
    #[serde(default)]
    pub transactions: u64,
    #[serde(default = "one_second")]
    #[schemars(range(min = 1))]
    pub interval_ns: u64,
    #[serde(default)]
    pub client_work: ClientWork,
    /// Whether to record the stages of each query, which costs up to two more clock readings per query.
    #[serde(default)]
    pub breakdown: bool,
    /// Server errors after which a transaction is retried with other values. The latency of the transaction includes its retries. Any
    /// other error ends the job.
    #[serde(default)]
    pub ignore_errors: IgnoredErrors,
    #[serde(default)]
    pub observe: Vec<Observed>,
    /// Whether the job starts with a delay: after the event `ready` it waits for the command `begin`.
    #[serde(default, alias = "held")]
    pub waits_for_begin: bool,
    /// Path of a new file in which to log each key that a transaction wrote, with its outcome (`acknowledged.py` reads it). The
    /// workload must give each transaction one key: either a single `sequence` parameter that each transaction draws at most once, or
    /// `oltp_insert` without `auto_inc`.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub acknowledged: Option<String>,
    #[serde(default = "ten_seconds")]
    #[schemars(range(min = 1, max = crate::LONGEST_NS))]
    pub connect_timeout_ns: u64,
    #[serde(default = "thirty_seconds")]
    #[schemars(range(min = 1, max = crate::LONGEST_NS))]
    pub stall_timeout_ns: u64,
}

const fn one_u64() -> u64 {
    1
}

const fn one_second() -> u64 {
    1_000_000_000
}

const fn ten_seconds() -> u64 {
    10_000_000_000
}

const fn thirty_seconds() -> u64 {
    30_000_000_000
}

/// Maximum number of connections. It limits the memory that an incorrect job can make the engine allocate.
pub const MAX_CONNECTIONS: u32 = 65_536;

/// A rule for a job: whether it is satisfied, and its description.
type Rule = (bool, &'static str);

/// Check the schema's bounds, and then the `rules` that the schema cannot express.
fn check_rules(
    job: &(impl JsonSchema + Serialize),
    rules: impl IntoIterator<Item = Rule>,
) -> Result<(), Failed> {
    let violated_rule = || {
        let violation = rules.into_iter().find(|(holds, _)| !holds);
        violation.map(|(_, rule)| rule.to_owned())
    };
    refuse(bounds::find_violation(job).or_else(violated_rule))
}

/// Return a failure with the description of the violated rule, if there is one.
fn refuse(violation: Option<String>) -> Result<(), Failed> {
    violation.map_or(Ok(()), |rule| {
        Err(Failed::new(
            FailCode::BadJob,
            rule,
            "Correct the plan, the workload or the option that gave this value.",
        ))
    })
}

fn unique_names(statements: &[CustomStatement]) -> Rule {
    let names: BTreeSet<&str> = statements
        .iter()
        .map(|statement| statement.name.as_str())
        .collect();
    (
        names.len() == statements.len(),
        "two statements have the same name",
    )
}

impl Observed {
    fn rule(all: &[Self]) -> Rule {
        (
            all.iter()
                .all(|observed| observed.pid > 0 && observed.role != "client"),
            "an observed process needs a pid above 0 and a role that is not `client`, which is the engine",
        )
    }
}

impl LoadJob {
    /// Check the schema's bounds, and the rules that the schema cannot express.
    pub fn check(&self) -> Result<(), Failed> {
        check_rules(
            self,
            self.rules()
                .into_iter()
                .chain(self.session.rules())
                .chain(self.workload.rules())
                .chain(self.protocol.rules(&self.session, &self.workload))
                .chain(self.workload.session_rules(&self.session, &self.login)),
        )?;
        refuse(self.workload.find_violation())
    }

    fn rules(&self) -> Vec<Rule> {
        vec![
            (
                self.ramp_ns <= self.warmup_ns,
                "ramp_ns is part of the warm-up and cannot be longer",
            ),
            (
                self.acknowledged
                    .as_ref()
                    .is_none_or(|path| !path.is_empty() && self.workload.is_keyed()),
                "a log of acknowledged keys needs a path, and transactions with one number each that is the job's only `sequence`, \
                 or oltp_insert without auto_inc",
            ),
            Observed::rule(&self.observe),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_job;

    const JOB: &str = r#"{"job":"load","version":2,"target":{"kind":"unix","path":"/s"},"user":"u","password":"secret",
        "database":"d","workload":{"kind":"oltp_read_only","tables":3},"connections":2,"seed":7,"warmup_ns":0,"measure_ns":1}"#;

    fn parse(text: &str) -> Result<LoadJob, Failed> {
        parse_job("load", text)
    }

    #[test]
    fn missing_fields_have_defaults() {
        let job = parse(JOB).expect("the job is valid");
        let load = job
            .workload
            .sysbench()
            .expect("the workload is of sysbench");
        assert_eq!((load.tables, load.point_selects), (3, 10));
        let ignored = |code| job.ignore_errors.contains(code);
        assert!(ignored("1213") && ignored("40001") && !ignored("1064"));
        assert_eq!(job.client_work, ClientWork::Touch);
        job.check().expect("the job is in bounds");
        assert!(!format!("{job:?}").contains("secret"));
    }

    #[test]
    fn unknown_fields_are_refused_at_every_depth() {
        for (from, to) in [
            ("\"seed\":7", "\"seed\":7,\"sead\":1"),
            ("\"tables\":3", "\"tables\":3,\"tabels\":1"),
            ("\"path\":\"/s\"", "\"path\":\"/s\",\"port\":1"),
        ] {
            let failed = parse(&JOB.replace(from, to)).expect_err("an unknown field");
            assert_eq!(failed.code, FailCode::BadJob);
            assert!(
                failed.message.contains("unknown field"),
                "{}",
                failed.message
            );
        }
    }

    #[test]
    fn kind_and_version_are_checked_before_fields() {
        let other =
            parse(&JOB.replace("\"version\":2", "\"version\":3,\"new\":0")).expect_err("version 3");
        assert!(other.message.contains("version 3"), "{}", other.message);
        let link = parse(r#"{"job":"link","version":2}"#).expect_err("another kind");
        assert!(link.message.contains("got link"), "{}", link.message);
        assert!(parse("[]").is_err());
        assert!(parse("{").is_err());
    }

    #[test]
    fn bounds_are_checked() {
        for (from, to) in [
            ("\"connections\":2", "\"connections\":0"),
            ("\"measure_ns\":1", "\"measure_ns\":0"),
            ("\"tables\":3", "\"tables\":0"),
            (
                "\"tables\":3",
                "\"distribution\":{\"pareto_h\":1,\"kind\":\"pareto\"}",
            ),
            ("\"seed\":7", "\"seed\":7,\"ramp_ns\":1"),
            (
                "\"seed\":7",
                "\"seed\":7,\"session\":{\"tls\":{\"verify\":\"ca\"}}",
            ),
            ("\"seed\":7", "\"seed\":7,\"session\":{\"pipeline\":2}"),
            (
                "\"seed\":7",
                "\"seed\":7,\"session\":{\"tls\":{\"direct\":true}}",
            ),
            (
                "\"seed\":7",
                "\"seed\":7,\"protocol\":\"postgresql\",\"session\":{\"compression\":{}}",
            ),
            (
                "{\"kind\":\"oltp_read_only\",\"tables\":3}",
                "{\"kind\":\"select_only\"}",
            ),
        ] {
            let job = parse(&JOB.replace(from, to)).expect("the JSON is valid");
            assert_eq!(job.check().expect_err(to).code, FailCode::BadJob);
        }
    }
}
