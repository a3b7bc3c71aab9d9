//! What each connection repeats, as `workloads.py` defines it.

use serde::Deserialize;

use super::{KeyValue, Rule, named_once};

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

impl Distribution {
    /// Each id as likely as any other.
    pub fn uniform() -> Self {
        Self {
            kind: DistributionKind::Uniform,
            ..Self::default()
        }
    }

    pub(super) fn rules(&self) -> Vec<Rule> {
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

/// How statements travel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PsMode {
    /// Prepared on the server where it can be.
    #[default]
    Auto,
    /// Interpolated text.
    Disable,
    /// Text, all statements of a transaction in one request.
    Multi,
}

/// What each connection repeats. Closed by its parts: serde cannot deny unknown fields of a tagged enum itself.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Workload {
    OltpReadOnly(Sysbench),
    OltpReadWrite(Sysbench),
    OltpWriteOnly(Sysbench),
    OltpPointSelect(Sysbench),
    OltpInsert(Sysbench),
    OltpUpdateIndex(Sysbench),
    OltpUpdateNonIndex(Sysbench),
    OltpDelete(Sysbench),
    SelectRandomPoints(Sysbench),
    SelectRandomRanges(Sysbench),
    BulkInsert(Sysbench),
    Custom(Custom),
    KeyValue(KeyValue),
}

/// The options of sysbench's Lua workloads, with its names and 1.0 defaults; each kind uses some of them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[allow(clippy::struct_excessive_bools)] // the names are the options of another program
pub struct Sysbench {
    pub tables: u32,
    pub table_size: u64,
    pub range_size: u64,
    pub point_selects: u32,
    pub range_selects: bool,
    pub simple_ranges: u32,
    pub sum_ranges: u32,
    pub order_ranges: u32,
    pub distinct_ranges: u32,
    pub index_updates: u32,
    pub non_index_updates: u32,
    pub delete_inserts: u32,
    pub skip_trx: bool,
    pub auto_inc: bool,
    pub secondary: bool,
    pub create_secondary: bool,
    pub mysql_storage_engine: String,
    pub create_table_options: String,
    pub random_points: u32,
    pub number_of_ranges: u32,
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

/// Where a parameter's values come from.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Values {
    Sequence {
        #[serde(default = "one")]
        first: u64,
        #[serde(default = "one")]
        step: u64,
    },
    Integer {
        #[serde(default = "one")]
        low: u64,
        high: u64,
        #[serde(default = "Distribution::uniform")]
        distribution: Distribution,
    },
    Text {
        length: u32,
        #[serde(default)]
        alphabet: Alphabet,
        #[serde(default)]
        compressible: f64,
    },
    Constant {
        value: Constant,
    },
    Same {
        statement: String,
        index: u32,
    },
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Alphabet {
    #[default]
    Letters,
    Digits,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Constant {
    Integer(i64),
    Text(String),
}

const fn one() -> u64 {
    1
}

/// SQL with a `?` for each parameter.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustomStatement {
    pub name: String,
    pub sql: String,
    #[serde(default)]
    pub parameters: Vec<Values>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustomStep {
    pub statement: String,
    #[serde(default = "once")]
    pub repeat: u32,
    #[serde(default)]
    pub think_ns: u64,
}

const fn once() -> u32 {
    1
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustomTransaction {
    pub name: String,
    #[serde(default = "once")]
    pub weight: u32,
    pub steps: Vec<CustomStep>,
}

/// A workload of one's own.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Custom {
    pub statements: Vec<CustomStatement>,
    pub transactions: Vec<CustomTransaction>,
    #[serde(default)]
    pub prepare: Vec<String>,
    #[serde(default)]
    pub cleanup: Vec<String>,
    #[serde(default)]
    pub db_ps_mode: PsMode,
}

impl Workload {
    /// How statements travel.
    pub fn ps_mode(&self) -> PsMode {
        match self {
            Self::Custom(custom) => custom.db_ps_mode,
            _ => self.sysbench().map_or(PsMode::Auto, |one| one.db_ps_mode),
        }
    }

    /// The options, when it is one of sysbench's.
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
            Self::Custom(_) | Self::KeyValue(_) => None,
        }
    }

    pub(super) fn rules(&self) -> Vec<Rule> {
        match self {
            Self::Custom(custom) => custom.rules(),
            Self::KeyValue(load) => load.rules(),
            other => other.sysbench().map_or_else(Vec::new, Sysbench::rules),
        }
    }
}

impl Sysbench {
    fn rules(&self) -> Vec<Rule> {
        let counts = [
            self.point_selects,
            self.simple_ranges,
            self.sum_ranges,
            self.order_ranges,
            self.distinct_ranges,
            self.index_updates,
            self.non_index_updates,
            self.delete_inserts,
        ];
        let mut rules = vec![
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
            (
                counts.iter().all(|&count| count <= 1 << 20),
                "a transaction holds at most 1048576 statements of a kind",
            ),
            (
                (1..=10_000).contains(&self.random_points)
                    && (1..=10_000).contains(&self.number_of_ranges),
                "random_points and number_of_ranges must be 1..10000",
            ),
            (self.delta < 1 << 52, "delta must be below 2^52"),
        ];
        rules.extend(self.distribution.rules());
        rules
    }
}

impl Custom {
    fn parameters(&self) -> impl Iterator<Item = &Values> {
        self.statements
            .iter()
            .flat_map(|statement| &statement.parameters)
    }

    fn knows(&self, name: &str) -> bool {
        self.statements.iter().any(|one| one.name == name)
    }

    pub(super) fn rules(&self) -> Vec<Rule> {
        let mut rules = vec![
            (
                !self.statements.is_empty() && !self.transactions.is_empty(),
                "a workload has statements and transactions",
            ),
            named_once(&self.statements),
            (
                self.transactions
                    .iter()
                    .all(|one| one.weight > 0 && !one.steps.is_empty()),
                "a transaction has a weight and steps",
            ),
            (
                self.transactions
                    .iter()
                    .flat_map(|one| &one.steps)
                    .all(|step| step.repeat > 0 && self.knows(&step.statement)),
                "a step names a statement that is there",
            ),
            (
                self.parameters().all(|values| match values {
                    Values::Sequence { first, step } => {
                        *first < 1 << 62 && (1..1 << 31).contains(step)
                    }
                    Values::Integer { low, high, .. } => low <= high && *high < 1 << 52,
                    Values::Text {
                        length,
                        compressible,
                        ..
                    } => (1..=1 << 20).contains(length) && (0.0..=1.0).contains(compressible),
                    Values::Constant { .. } => true,
                    Values::Same { statement, index } => self.statements.iter().any(|one| {
                        one.name == *statement && (*index as usize) < one.parameters.len()
                    }),
                }),
                "a parameter's values are out of bounds",
            ),
        ];
        for values in self.parameters() {
            if let Values::Integer { distribution, .. } = values {
                rules.extend(distribution.rules());
            }
        }
        rules
    }
}
