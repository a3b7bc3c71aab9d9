//! The load job, as `messages.py` defines it. Closed: an unknown field is a contract broken, never ignored.

use serde::Deserialize;

use crate::events::{FailCode, Failed};

/// A server by Unix socket or by numeric address and port.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Target {
    Unix { path: String },
    Tcp { host: String, port: u16 },
}

/// How row ids are drawn from `1..=table_size`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DistributionKind {
    Uniform,
    Pareto,
    Special,
    Gaussian,
    Zipfian,
}

/// A distribution with its parameters, in sysbench's names.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Distribution {
    pub kind: DistributionKind,
    pub pareto_h: f64,
    pub spec_iter: u32,
    pub spec_pct: u32,
    pub spec_res: u32,
    pub zipfian_exp: f64,
}

impl Default for Distribution {
    fn default() -> Self {
        Self {
            kind: DistributionKind::Special,
            pareto_h: 0.2,
            spec_iter: 12,
            spec_pct: 1,
            spec_res: 75,
            zipfian_exp: 0.8,
        }
    }
}

/// Prepared on the server where it can be, or interpolated text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PsMode {
    #[default]
    Auto,
    Disable,
}

/// What each connection repeats.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Workload {
    OltpReadOnly(OltpReadOnly),
}

/// sysbench's `oltp_read_only`, with its option names and 1.0 defaults.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(clippy::struct_excessive_bools)] // the names are the options of another program
pub struct OltpReadOnly {
    pub tables: u32,
    pub table_size: u64,
    pub range_size: u64,
    pub point_selects: u32,
    pub range_selects: bool,
    pub simple_ranges: u32,
    pub sum_ranges: u32,
    pub order_ranges: u32,
    pub distinct_ranges: u32,
    pub skip_trx: bool,
    pub db_ps_mode: PsMode,
    pub distribution: Distribution,
}

impl Default for OltpReadOnly {
    fn default() -> Self {
        Self {
            tables: 1,
            table_size: 10_000,
            range_size: 100,
            point_selects: 10,
            range_selects: true,
            simple_ranges: 1,
            sum_ranges: 1,
            order_ranges: 1,
            distinct_ranges: 1,
            skip_trx: false,
            db_ps_mode: PsMode::Auto,
            distribution: Distribution::default(),
        }
    }
}

/// What the client does with rows: hop over them, copy them, or decode their columns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientWork {
    Skip,
    #[default]
    Touch,
    Decode,
}

/// A process whose CPU time is read at both ends of the measured window, with all its descendants.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Observed {
    pub role: String,
    pub pid: u32,
}

/// Closed loop: each connection sends its next transaction when the last one is answered.
#[derive(Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadJob {
    pub job: String,
    pub version: u32,
    pub target: Target,
    pub user: String,
    #[serde(default)]
    pub password: String,
    pub database: String,
    pub workload: Workload,
    pub connections: u32,
    pub seed: u64,
    pub warmup_ns: u64,
    pub measure_ns: u64,
    #[serde(default = "one_second")]
    pub interval_ns: u64,
    #[serde(default)]
    pub client_work: ClientWork,
    #[serde(default)]
    pub observe: Vec<Observed>,
    #[serde(default = "ten_seconds")]
    pub connect_timeout_ns: u64,
    #[serde(default = "thirty_seconds")]
    pub stall_timeout_ns: u64,
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

/// Without the password: a job may end up in a log.
impl std::fmt::Debug for LoadJob {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("LoadJob")
            .field("target", &self.target)
            .field("user", &self.user)
            .field("database", &self.database)
            .field("workload", &self.workload)
            .field("connections", &self.connections)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

/// No run needs more; it bounds what a wrong job can make the engine allocate.
pub const MOST_CONNECTIONS: u32 = 65_536;
/// Longest time any field may name: a day.
const LONGEST_NS: u64 = 86_400_000_000_000;

impl LoadJob {
    /// The bounds that the types do not hold.
    pub fn check(&self) -> Result<(), Failed> {
        let Workload::OltpReadOnly(load) = &self.workload;
        let rules = self
            .rules()
            .into_iter()
            .chain(load.rules())
            .chain(load.distribution.rules());
        match rules.into_iter().find(|(holds, _)| !holds) {
            None => Ok(()),
            Some((_, rule)) => Err(Failed::new(
                FailCode::BadJob,
                format!("the job does not follow the contract: {rule}"),
                "Correct the plan or the option that gave this value.",
            )),
        }
    }

    fn rules(&self) -> Vec<Rule> {
        let watched = |one: &Observed| one.pid > 0 && one.role != "client";
        vec![
            (
                (1..=MOST_CONNECTIONS).contains(&self.connections),
                "connections must be 1..65536",
            ),
            (self.seed < 1 << 63, "seed must be below 2^63"),
            (
                within_a_day(self.measure_ns),
                "measure_ns must be above 0 and at most a day",
            ),
            (
                self.warmup_ns <= LONGEST_NS,
                "warmup_ns must be at most a day",
            ),
            (self.interval_ns > 0, "interval_ns must be above 0"),
            (
                within_a_day(self.connect_timeout_ns),
                "connect_timeout_ns must be above 0 and at most a day",
            ),
            (
                within_a_day(self.stall_timeout_ns),
                "stall_timeout_ns must be above 0 and at most a day",
            ),
            (
                self.observe.iter().all(watched),
                "an observed process needs a pid above 0 and a role that is not `client`, which is the engine",
            ),
        ]
    }
}

/// Whether it holds, and what it says.
type Rule = (bool, &'static str);

fn within_a_day(time_ns: u64) -> bool {
    (1..=LONGEST_NS).contains(&time_ns)
}

impl Distribution {
    fn rules(&self) -> Vec<Rule> {
        vec![
            (
                self.pareto_h > 0.0 && self.pareto_h < 1.0,
                "pareto_h must be between 0 and 1",
            ),
            (
                (1..=10_000).contains(&self.spec_iter),
                "spec_iter must be 1..10000",
            ),
            (
                (1..=100).contains(&self.spec_pct),
                "spec_pct must be 1..100",
            ),
            ((1..=99).contains(&self.spec_res), "spec_res must be 1..99"),
            (
                self.zipfian_exp >= 0.0 && self.zipfian_exp.is_finite(),
                "zipfian_exp must be 0 or more",
            ),
        ]
    }
}

impl OltpReadOnly {
    fn rules(&self) -> Vec<Rule> {
        vec![
            (
                (1..=1 << 20).contains(&self.tables),
                "tables must be 1..1048576",
            ),
            (
                (1..1 << 52).contains(&self.table_size),
                "table_size must be at least 1",
            ),
            (
                (1..1 << 52).contains(&self.range_size),
                "range_size must be at least 1",
            ),
            (self.queries() >= 1, "the workload has no query"),
            (
                self.queries() <= 1 << 20,
                "the workload has more than 1048576 queries in a transaction",
            ),
        ]
    }

    /// Queries of one transaction.
    pub fn queries(&self) -> u64 {
        let ranges = [
            self.simple_ranges,
            self.sum_ranges,
            self.order_ranges,
            self.distinct_ranges,
        ];
        let of_ranges: u64 = if self.range_selects {
            ranges.into_iter().map(u64::from).sum()
        } else {
            0
        };
        u64::from(self.point_selects) + of_ranges + if self.skip_trx { 0 } else { 2 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_job;

    const JOB: &str = r#"{"job":"load","version":1,"target":{"kind":"unix","path":"/s"},"user":"u","password":"secret",
        "database":"d","workload":{"kind":"oltp_read_only","tables":3},"connections":2,"seed":7,"warmup_ns":0,"measure_ns":1}"#;

    fn parse(text: &str) -> Result<LoadJob, Failed> {
        parse_job("load", text)
    }

    #[test]
    fn defaults_fill_what_is_not_said() {
        let job = parse(JOB).expect("a good job");
        let Workload::OltpReadOnly(load) = &job.workload;
        assert_eq!(
            (load.tables, load.point_selects, load.queries()),
            (3, 10, 16)
        );
        assert_eq!(job.client_work, ClientWork::Touch);
        job.check().expect("in bounds");
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
    fn kind_and_version_come_before_fields() {
        let other =
            parse(&JOB.replace("\"version\":1", "\"version\":2,\"new\":0")).expect_err("version 2");
        assert!(other.message.contains("version 2"), "{}", other.message);
        let link = parse(r#"{"job":"link","version":1}"#).expect_err("another kind");
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
                "\"point_selects\":0,\"range_selects\":false,\"skip_trx\":true",
            ),
        ] {
            let job = parse(&JOB.replace(from, to)).expect("well formed");
            assert_eq!(job.check().expect_err(to).code, FailCode::BadJob);
        }
    }
}
