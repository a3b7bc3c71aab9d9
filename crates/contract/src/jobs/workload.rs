//! The workload: the transactions that each connection runs in a loop.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{KeyValue, Rule, unique_names};

/// Name of a distribution of row ids over `1..=table_size`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DistributionKind {
    Uniform,
    Pareto,
    Special,
    Gaussian,
    Zipfian,
}

/// Distribution of row ids over `1..=table_size`. The parameters have the names and meanings of sysbench's options.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Distribution {
    pub kind: DistributionKind,
    #[schemars(extend("exclusiveMinimum" = 0.0, "exclusiveMaximum" = 1.0))]
    pub pareto_h: f64,
    #[schemars(range(min = 1, max = 10_000))]
    pub spec_iter: u32,
    #[schemars(range(min = 1, max = 100))]
    pub spec_pct: u32,
    #[schemars(range(min = 1, max = 99))]
    pub spec_res: u32,
    #[schemars(range(min = 0.0))]
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

impl Distribution {
    /// Return the uniform distribution.
    pub fn uniform() -> Self {
        Self {
            kind: DistributionKind::Uniform,
            ..Self::default()
        }
    }
}

/// How statements are sent: prepared, or as text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PsMode {
    /// Prepared statements, for all statements that the server can prepare.
    #[default]
    Auto,
    /// Text with interpolated values.
    Disable,
    /// Text, with all statements of a transaction in one request.
    Multi,
    /// PostgreSQL only: unnamed statements with bound values, parsed again for each request.
    Extended,
}

/// A workload: the transactions that each connection runs in a loop. The structs of the variants deny unknown fields, because serde
/// cannot do so for an internally tagged enum.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Workload {
    #[schemars(title = "Sysbench")]
    OltpReadOnly(Sysbench),
    #[schemars(title = "Sysbench")]
    OltpReadWrite(Sysbench),
    #[schemars(title = "Sysbench")]
    OltpWriteOnly(Sysbench),
    #[schemars(title = "Sysbench")]
    OltpPointSelect(Sysbench),
    #[schemars(title = "Sysbench")]
    OltpInsert(Sysbench),
    #[schemars(title = "Sysbench")]
    OltpUpdateIndex(Sysbench),
    #[schemars(title = "Sysbench")]
    OltpUpdateNonIndex(Sysbench),
    #[schemars(title = "Sysbench")]
    OltpDelete(Sysbench),
    #[schemars(title = "Sysbench")]
    SelectRandomPoints(Sysbench),
    #[schemars(title = "Sysbench")]
    SelectRandomRanges(Sysbench),
    #[schemars(title = "Sysbench")]
    BulkInsert(Sysbench),
    #[schemars(title = "Pgbench")]
    SelectOnly(Pgbench),
    #[schemars(title = "Pgbench")]
    SimpleUpdate(Pgbench),
    #[schemars(title = "Pgbench")]
    TpcbLike(Pgbench),
    #[schemars(title = "Custom")]
    Custom(Custom),
    #[schemars(title = "KeyValue")]
    KeyValue(KeyValue),
}

/// One of sysbench's Lua workloads. The names of the fields are those of sysbench's options. Options that do not apply to a kind are
/// ignored, as in sysbench.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[allow(clippy::struct_excessive_bools)] // the names are the options of another program
pub struct Sysbench {
    #[schemars(range(min = 1, max = 1_048_576))]
    pub tables: u32,
    #[schemars(range(min = 1, max = (1_u64 << 52) - 1))]
    pub table_size: u64,
    #[schemars(range(min = 1, max = (1_u64 << 52) - 1))]
    pub range_size: u64,
    #[schemars(range(max = 1_048_576))]
    pub point_selects: u32,
    pub range_selects: bool,
    #[schemars(range(max = 1_048_576))]
    pub simple_ranges: u32,
    #[schemars(range(max = 1_048_576))]
    pub sum_ranges: u32,
    #[schemars(range(max = 1_048_576))]
    pub order_ranges: u32,
    #[schemars(range(max = 1_048_576))]
    pub distinct_ranges: u32,
    #[schemars(range(max = 1_048_576))]
    pub index_updates: u32,
    #[schemars(range(max = 1_048_576))]
    pub non_index_updates: u32,
    #[schemars(range(max = 1_048_576))]
    pub delete_inserts: u32,
    pub skip_trx: bool,
    pub auto_inc: bool,
    pub secondary: bool,
    pub create_secondary: bool,
    #[schemars(regex(pattern = r"^[A-Za-z0-9_]+$"))]
    pub mysql_storage_engine: String,
    pub create_table_options: String,
    #[schemars(range(min = 1, max = 10_000))]
    pub random_points: u32,
    #[schemars(range(min = 1, max = 10_000))]
    pub number_of_ranges: u32,
    #[schemars(range(max = (1_u64 << 52) - 1))]
    pub delta: u64,
    pub db_ps_mode: PsMode,
    pub distribution: Distribution,
}

impl Default for Sysbench {
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
            index_updates: 1,
            non_index_updates: 1,
            delete_inserts: 1,
            skip_trx: false,
            auto_inc: true,
            secondary: false,
            create_secondary: true,
            mysql_storage_engine: "innodb".to_owned(),
            create_table_options: String::new(),
            random_points: 10,
            number_of_ranges: 10,
            delta: 5,
            db_ps_mode: PsMode::Auto,
            distribution: Distribution::default(),
        }
    }
}

/// One of pgbench's built-in scripts on pgbench's tables. Rows are chosen uniformly.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Pgbench {
    /// Scale factor: number of branches, each with 10 tellers and 100,000 accounts.
    #[schemars(range(min = 1, max = 20_000))]
    pub scale: u32,
    /// How statements are sent. `auto` corresponds to pgbench's `-M prepared`, `extended` to `-M extended`, and `disable` to `-M
    /// simple`.
    pub db_ps_mode: PsMode,
}

impl Default for Pgbench {
    fn default() -> Self {
        Self {
            scale: 1,
            db_ps_mode: PsMode::Auto,
        }
    }
}

/// Source of a parameter's values.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Values {
    /// The sequence `first`, `first + step` and so on, shared by all n connections: each takes every n-th value.
    #[schemars(title = "SequenceValues")]
    Sequence {
        #[serde(default = "one_u64")]
        #[schemars(range(max = (1_u64 << 62) - 1))]
        first: u64,
        #[serde(default = "one_u64")]
        #[schemars(range(min = 1, max = i32::MAX))]
        step: u64,
    },
    /// Random integers from `low` to `high`, both included.
    #[schemars(title = "IntegerValues")]
    Integer {
        #[serde(default = "one_u64")]
        #[schemars(range(max = (1_u64 << 52) - 1))]
        low: u64,
        #[schemars(range(max = (1_u64 << 52) - 1))]
        high: u64,
        #[serde(default = "Distribution::uniform")]
        distribution: Distribution,
    },
    /// A random string of `length` bytes. Roughly a fraction `compressible` of it repeats one phrase; the rest is random.
    #[schemars(title = "TextValues")]
    Text {
        #[schemars(range(min = 1, max = 1_048_576))]
        length: u32,
        #[serde(default)]
        alphabet: Alphabet,
        #[serde(default)]
        #[schemars(range(min = 0.0, max = 1.0))]
        compressible: f64,
    },
    #[schemars(title = "ConstantValue")]
    Constant { value: Constant },
    /// The latest value, within the same transaction, of parameter `index` (counted from 0) of `statement`.
    #[schemars(title = "SameValue")]
    Same {
        statement: String,
        #[schemars(range(max = 255))]
        index: u32,
    },
}

impl Values {
    /// Upper bound of the size of a text value in bytes, with quotes escaped. 0 for numbers, which are short, and for `Same`, whose
    /// size the caller adds.
    fn max_text_bytes(&self) -> u64 {
        match self {
            Self::Text { length, .. } => u64::from(*length),
            Self::Constant {
                value: Constant::Text(text),
            } => 2 * text.len() as u64,
            _ => 0,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Alphabet {
    #[default]
    Letters,
    Digits,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Constant {
    Integer(i64),
    Text(String),
}

const fn one_u64() -> u64 {
    1
}

/// An SQL statement with a `?` for each parameter.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CustomStatement {
    #[schemars(regex(pattern = r"^[a-z][a-z0-9_]{0,39}$"))]
    pub name: String,
    #[schemars(length(min = 1, max = 1_048_576))]
    pub sql: String,
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub parameters: Vec<Values>,
}

#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CustomStep {
    pub statement: String,
    #[serde(default = "one_u32")]
    #[schemars(range(min = 1, max = 1_048_576))]
    pub repeat: u32,
    /// Pause before each repetition. The latency of the transaction includes it, and that of the statement does not.
    #[serde(default)]
    #[schemars(range(max = crate::LONGEST_NS))]
    pub think_ns: u64,
}

const fn one_u32() -> u32 {
    1
}

/// A transaction: steps in order. If there are several transactions, each is chosen with a probability of its weight divided by the
/// sum of all weights.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CustomTransaction {
    #[schemars(regex(pattern = r"^[a-z][a-z0-9_]{0,39}$"))]
    pub name: String,
    #[serde(default = "one_u32")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub weight: u32,
    #[schemars(length(min = 1, max = 1024))]
    pub steps: Vec<CustomStep>,
}

/// A user-defined workload, as `howfar load --workload FILE.toml` reads it.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Custom {
    #[schemars(length(min = 1, max = 1024))]
    pub statements: Vec<CustomStatement>,
    #[schemars(length(min = 1, max = 256))]
    pub transactions: Vec<CustomTransaction>,
    /// Statements that `howfar load … prepare` executes, in order.
    #[serde(default)]
    pub prepare: Vec<String>,
    /// Statements that `howfar load … cleanup` executes, in order.
    #[serde(default)]
    pub cleanup: Vec<String>,
    #[serde(default)]
    pub db_ps_mode: PsMode,
}

impl Workload {
    /// Whether any step has a pause before its statement.
    pub(super) fn has_think_time(&self) -> bool {
        let Self::Custom(custom) = self else {
            return false;
        };
        let mut steps = custom
            .transactions
            .iter()
            .flat_map(|transaction| &transaction.steps);
        steps.any(|step| step.think_ns > 0)
    }

    /// Return how statements are sent.
    pub fn ps_mode(&self) -> PsMode {
        match self {
            Self::Custom(custom) => custom.db_ps_mode,
            Self::SelectOnly(load) | Self::SimpleUpdate(load) | Self::TpcbLike(load) => {
                load.db_ps_mode
            }
            _ => self
                .sysbench()
                .map_or(PsMode::Auto, |options| options.db_ps_mode),
        }
    }

    /// Return the options if this is one of sysbench's workloads.
    pub fn sysbench(&self) -> Option<&Sysbench> {
        match self {
            Self::OltpReadOnly(load)
            | Self::OltpReadWrite(load)
            | Self::OltpWriteOnly(load)
            | Self::OltpPointSelect(load)
            | Self::OltpInsert(load)
            | Self::OltpUpdateIndex(load)
            | Self::OltpUpdateNonIndex(load)
            | Self::OltpDelete(load)
            | Self::SelectRandomPoints(load)
            | Self::SelectRandomRanges(load)
            | Self::BulkInsert(load) => Some(load),
            _ => None,
        }
    }

    /// Return the options if this is one of pgbench's workloads.
    pub fn pgbench(&self) -> Option<&Pgbench> {
        match self {
            Self::SelectOnly(load) | Self::SimpleUpdate(load) | Self::TpcbLike(load) => Some(load),
            _ => None,
        }
    }

    /// Describe the first violation in a custom workload that its rules do not cover, or return `None`.
    pub(super) fn find_violation(&self) -> Option<String> {
        match self {
            Self::Custom(custom) => custom.find_violation(),
            _ => None,
        }
    }

    pub(super) fn rules(&self) -> Vec<Rule> {
        match self {
            Self::Custom(custom) => custom.rules(),
            Self::KeyValue(load) => load.rules(),
            _ => self.sysbench().map_or_else(Vec::new, |load| {
                let multi = load.db_ps_mode == PsMode::Multi;
                vec![(
                    !multi || load.max_request_bytes() <= MAX_SQL_BYTES,
                    "with db_ps_mode=multi a transaction has at most 16 MiB with its values",
                )]
            }),
        }
    }
}

/// Maximum size in bytes of a statement, and of a transaction that is sent as one text. MySQL's protocol would need several packets
/// for more.
const MAX_SQL_BYTES: u64 = (1 << 24) - 256;

impl Sysbench {
    /// Maximum size in bytes of a transaction that is sent as one text. Only statements whose number is configurable can add up to
    /// that much; `bulk_insert` splits its own requests.
    fn max_request_bytes(&self) -> u64 {
        const MAX_STATEMENT_BYTES: u64 = 512;
        let reads = [
            self.point_selects,
            self.simple_ranges,
            self.sum_ranges,
            self.order_ranges,
            self.distinct_ranges,
        ];
        let writes = [
            self.index_updates,
            self.non_index_updates,
            2 * self.delete_inserts,
        ];
        let statements = reads.into_iter().chain(writes).map(u64::from);
        MAX_STATEMENT_BYTES * statements.sum::<u64>()
    }
}

impl Custom {
    /// Describe the first statement or transaction that refers to something undefined or is too long.
    pub(super) fn find_violation(&self) -> Option<String> {
        self.find_broken_reference()
            .or_else(|| self.find_too_long())
    }

    fn find_broken_reference(&self) -> Option<String> {
        let find = |name: &str| {
            self.statements
                .iter()
                .find(|statement| statement.name == name)
        };
        let repeats_nothing = |values: &Values| match values {
            Values::Same { statement, index } => {
                find(statement).is_none_or(|source| *index as usize >= source.parameters.len())
            }
            _ => false,
        };
        for statement in &self.statements {
            if statement.parameters.iter().any(repeats_nothing) {
                return Some(format!(
                    "statement {} repeats a parameter that does not exist",
                    statement.name
                ));
            }
        }
        for transaction in &self.transactions {
            for step in &transaction.steps {
                if find(&step.statement).is_none() {
                    return Some(format!(
                        "transaction {} refers to statement {}, which does not exist",
                        transaction.name, step.statement
                    ));
                }
            }
        }
        None
    }

    /// Describe the first request that is too long. A request is a statement with its values, or a transaction that is sent as one
    /// text.
    fn find_too_long(&self) -> Option<String> {
        const OVERHEAD_PER_VALUE: u64 = 32;
        let max_value_bytes = self
            .parameters()
            .map(Values::max_text_bytes)
            .max()
            .unwrap_or(0);
        let value_bytes = |values: &Values| match values {
            Values::Same { .. } => OVERHEAD_PER_VALUE + max_value_bytes,
            _ => OVERHEAD_PER_VALUE + values.max_text_bytes(),
        };
        let sizes: HashMap<&str, u64> = self
            .statements
            .iter()
            .map(|statement| {
                let values: u64 = statement.parameters.iter().map(value_bytes).sum();
                (statement.name.as_str(), statement.sql.len() as u64 + values)
            })
            .collect();
        let is_too_long =
            |statement: &&CustomStatement| sizes[statement.name.as_str()] > MAX_SQL_BYTES;
        if let Some(statement) = self.statements.iter().find(is_too_long) {
            return Some(format!(
                "statement {} has more than 16 MiB with its values",
                statement.name
            ));
        }
        if self.db_ps_mode != PsMode::Multi {
            return None;
        }
        let text_bytes = |transaction: &CustomTransaction| {
            let steps = transaction.steps.iter();
            steps
                .map(|step| u64::from(step.repeat) * sizes[step.statement.as_str()])
                .sum::<u64>()
        };
        let transaction = self
            .transactions
            .iter()
            .find(|transaction| text_bytes(transaction) > MAX_SQL_BYTES)?;
        Some(format!(
            "transaction {} is one text (db_ps_mode=multi) of more than 16 MiB",
            transaction.name
        ))
    }

    fn parameters(&self) -> impl Iterator<Item = &Values> {
        self.statements
            .iter()
            .flat_map(|statement| &statement.parameters)
    }

    pub(super) fn rules(&self) -> Vec<Rule> {
        vec![
            (
                !self.statements.is_empty() && !self.transactions.is_empty(),
                "a workload must have at least one statement and one transaction",
            ),
            unique_names(&self.statements),
            (
                self.transactions
                    .iter()
                    .all(|transaction| transaction.weight > 0 && !transaction.steps.is_empty()),
                "a transaction must have a weight above 0 and at least one step",
            ),
            (
                self.parameters().all(|values| match values {
                    Values::Integer { low, high, .. } => low <= high,
                    _ => true,
                }),
                "the values of a parameter need low <= high",
            ),
        ]
    }
}
