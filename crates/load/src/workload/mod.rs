//! The workload: statements, their order, and the values that they bind.
//!
//! A [`Program`] is made once from a job ([`sysbench`] or [`custom`]) and shared by all workers. A transaction is a pure function of
//! (seed, connection, number): a [`Cursor`] steps through it and returns one [`DueStatement`] after the other; [`encode`] writes
//! it as text or as an execute. [`commands`] are sent to key-value stores instead.

pub(crate) mod commands;
mod cursor;
mod custom;
mod encode;
pub(crate) mod pgbench;
mod sizes;
mod source;
mod sysbench;

use howfar_contract::jobs::{PsMode, SqlProtocol, Workload};

use howfar_wire::sql::{self, Dialect, QuestionMark};

use crate::random_stream::RandomStream;

pub use cursor::{Cursor, DueStatement};
pub use source::{Memory, Source, Value};

/// A statement without its values: the unit that histograms name and that the server prepares, once per table.
#[derive(Debug, Clone, PartialEq)]
pub struct StatementKind {
    /// Its name in histograms.
    pub name: String,
    pieces: Vec<Piece>,
    /// Number of numbered tables that the statement may use; 1 if it names none.
    tables: u32,
    /// Whether the statement is sent as text even if others are prepared, as sysbench's `oltp_insert` is.
    is_always_text: bool,
    first_slot: usize,
}

/// A part of a statement's SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Table,
    Value,
}

impl StatementKind {
    /// `sql` has a `?` for each value and, for several tables, a `{}` for the number of its table.
    fn new(name: &str, sql: &str, tables: u32, protocol: SqlProtocol) -> Self {
        let dialect = match protocol {
            SqlProtocol::Mysql => Dialect::Mysql,
            SqlProtocol::Postgresql => Dialect::Postgres,
        };
        // Parts of the SQL to replace: offset, length, and the piece that takes their place.
        let mut cuts: Vec<(usize, usize, Option<Piece>)> = sql::find_question_marks(sql, dialect)
            .into_iter()
            .map(|mark| match mark {
                QuestionMark::Placeholder(offset) => (offset, 1, Some(Piece::Value)),
                QuestionMark::Escaped(offset) => (offset, 1, None),
            })
            .collect();
        if tables > 0 {
            cuts.extend(
                sql.match_indices("{}")
                    .map(|(offset, _)| (offset, 2, Some(Piece::Table))),
            );
            cuts.sort_unstable_by_key(|cut| cut.0);
        }
        let mut pieces = Vec::new();
        let mut start = 0;
        for (offset, length, piece) in cuts {
            if offset > start {
                pieces.push(Piece::Text(sql[start..offset].to_owned()));
            }
            pieces.extend(piece);
            start = offset + length;
        }
        if start < sql.len() {
            pieces.push(Piece::Text(sql[start..].to_owned()));
        }
        Self {
            name: name.to_owned(),
            pieces,
            tables: tables.max(1),
            is_always_text: false,
            first_slot: 0,
        }
    }

    /// Number of values that the statement binds.
    fn value_count(&self) -> usize {
        self.pieces
            .iter()
            .filter(|piece| **piece == Piece::Value)
            .count()
    }
}

/// One statement of a transaction.
#[derive(Debug, Clone)]
struct Step {
    kind: usize,
    think_ns: u64,
    sources: Vec<Source>,
}

/// The numbered table that a group uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Table {
    None,
    /// Drawn each time that the group begins, as in sysbench.
    Drawn,
    /// The connection's own table.
    PerConnection,
}

/// Steps repeated together on one table.
#[derive(Debug, Clone)]
struct Group {
    table: Table,
    repeat: u32,
    steps: Vec<Step>,
}

/// The transactions that all connections run.
#[derive(Debug)]
pub struct Program {
    kinds: Vec<StatementKind>,
    /// Kinds of transactions, each with the end of its range in `1..=shares`: a drawn number selects the kind in whose range it is.
    transactions: Vec<(u64, Vec<Group>)>,
    shares: u64,
    tables: u32,
    seed: u64,
    connections: u64,
    mode: PsMode,
    protocol: SqlProtocol,
    /// Number of statements sent together.
    pipeline: u16,
    slots: usize,
    kept_values: usize,
    /// Commands on keys, sent instead of statements.
    commands: Option<Box<commands::Commands>>,
}

impl Program {
    /// The transactions of `workload` on `connections` connections. The error is a message about what is wrong with the workload.
    pub fn new(workload: &Workload, connections: u32, seed: u64) -> Result<Self, String> {
        Self::with_protocol(SqlProtocol::Mysql, 1, workload, connections, seed)
    }

    /// The transactions of `workload` in a protocol's own SQL, with `pipeline` statements sent together.
    pub fn with_protocol(
        protocol: SqlProtocol,
        pipeline: u16,
        workload: &Workload,
        connections: u32,
        seed: u64,
    ) -> Result<Self, String> {
        let mut program = match (workload, workload.sysbench(), workload.pgbench()) {
            (Workload::Custom(custom), ..) => custom::build_program(custom, protocol)?,
            (Workload::KeyValue(load), ..) => commands::build_program(load),
            (_, Some(load), _) => sysbench::build_program(workload, load, connections, protocol)?,
            (_, _, Some(load)) => pgbench::build_program(workload, load),
            (_, None, None) => unreachable!("all other workloads are those of sysbench"),
        };
        program.protocol = protocol;
        program.pipeline = pipeline;
        program.repeat_single_statements();
        program.connections = u64::from(connections);
        program.seed = seed;
        program.mode = workload.ps_mode();
        for kind in &mut program.kinds {
            kind.first_slot = program.slots;
            program.slots += kind.tables as usize;
        }
        Ok(program)
    }

    fn from_parts(
        kinds: Vec<StatementKind>,
        transactions: Vec<(u64, Vec<Group>)>,
        tables: u32,
    ) -> Self {
        Self {
            kinds,
            shares: transactions.last().map_or(1, |(end, _)| *end),
            transactions,
            tables,
            seed: 0,
            connections: 1,
            mode: PsMode::Auto,
            protocol: SqlProtocol::Mysql,
            pipeline: 1,
            slots: 0,
            kept_values: 0,
            commands: None,
        }
    }

    /// All kinds of statements, by index.
    pub fn kinds(&self) -> &[StatementKind] {
        &self.kinds
    }

    /// Whether statements are prepared, if the server can.
    pub fn is_prepared(&self) -> bool {
        self.mode == PsMode::Auto && self.commands.is_none()
    }

    /// Fill the pipeline: a transaction with a single statement repeats it up to the depth of the pipeline.
    fn repeat_single_statements(&mut self) {
        for (_, groups) in &mut self.transactions {
            if let [group] = groups.as_mut_slice() {
                if group.repeat == 1 && group.steps.len() == 1 {
                    group.repeat = u32::from(self.pipeline);
                }
            }
        }
    }

    pub(crate) fn protocol(&self) -> SqlProtocol {
        self.protocol
    }

    /// Number of statements sent together.
    pub(crate) fn pipeline(&self) -> u16 {
        self.pipeline
    }

    /// Whether a request may hold more than one statement.
    #[inline]
    pub(crate) fn sends_several(&self) -> bool {
        self.is_multi() || self.pipeline > 1
    }

    /// Whether `due` is sent as text with its values in it, as a simple query of the protocol.
    #[inline]
    pub(crate) fn is_text(&self, due: DueStatement) -> bool {
        match self.mode {
            PsMode::Disable | PsMode::Multi => true,
            PsMode::Auto => self.pipeline == 1 && self.kinds[due.kind].is_always_text,
            PsMode::Extended => false,
        }
    }

    /// Whether all statements of a transaction are sent in one request.
    pub fn is_multi(&self) -> bool {
        self.mode == PsMode::Multi
    }

    /// Number of statements whose state a connection keeps.
    pub fn slot_count(&self) -> usize {
        self.slots
    }

    /// The slots to prepare when a connection opens, in order.
    pub fn slots_to_prepare(&self) -> Vec<usize> {
        if !self.is_prepared() {
            return Vec::new();
        }
        let is_prepared = |kind: &&StatementKind| !kind.is_always_text;
        self.kinds
            .iter()
            .filter(is_prepared)
            .flat_map(|kind| kind.first_slot..kind.first_slot + kind.tables as usize)
            .collect()
    }

    /// Append the SQL to prepare for `slot`.
    pub fn write_prepare(&self, slot: usize, out: &mut Vec<u8>) {
        let kind = self
            .kinds
            .iter()
            .find(|kind| (kind.first_slot..kind.first_slot + kind.tables as usize).contains(&slot));
        let kind = kind.expect("each slot belongs to a kind");
        self.write_template(kind, (slot - kind.first_slot) as u32 + 1, out);
    }

    /// The start of transaction `number` of `connection`.
    #[inline]
    pub fn transaction(&self, connection: u64, number: u64) -> Cursor {
        self.attempt(connection, number, 0)
    }

    /// The start of a transaction after `failures` failed attempts: with other values, as in sysbench, since the same could fail
    /// again.
    #[inline]
    pub fn attempt(&self, connection: u64, number: u64, failures: u64) -> Cursor {
        let mut random = RandomStream::new(self.seed ^ (failures << 32), connection, number);
        let transaction_kind = if self.transactions.len() == 1 {
            0
        } else {
            let share = random.up_to(self.shares);
            self.transactions.partition_point(|(end, _)| *end < share)
        };
        Cursor::new(random, connection, transaction_kind)
    }

    /// A connection's memory between statements.
    pub fn memory(&self, connection: u64) -> Memory {
        Memory::new(connection, self.kept_values)
    }

    /// The statements of a transaction with the values that they bind, for tests.
    pub fn list_statements(&self, connection: u64, number: u64) -> Vec<(String, u32, Vec<String>)> {
        let mut memory = self.memory(connection);
        let mut cursor = self.transaction(connection, number);
        let mut list = Vec::new();
        while let Some(due) = cursor.next(self) {
            let mut values = Vec::new();
            cursor.values(self, due, &mut memory, |value| {
                values.push(match value {
                    Value::Integer(number) => number.to_string(),
                    Value::Bytes(bytes) | Value::Raw(bytes) => {
                        String::from_utf8_lossy(bytes).into_owned()
                    }
                });
            });
            list.push((self.kinds[due.kind].name.clone(), due.table, values));
        }
        list
    }
}
