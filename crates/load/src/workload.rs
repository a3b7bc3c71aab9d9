//! What is asked: the statements of sysbench's `oltp_read_only`, their order, and the transactions of a connection.
//!
//! A transaction is a pure function of (seed, connection, number). Of each kind the table is drawn once a transaction and the
//! ids for each query, as sysbench does.

use std::io::Write;

use howfar_record::jobs::{PsMode, Sysbench};

use crate::distribution::Ids;
use crate::draws::Draws;

/// A statement's kind; the discriminant is its index in tables by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    PointSelect,
    SimpleRange,
    SumRange,
    OrderRange,
    DistinctRange,
    Begin,
    Commit,
}

/// Kinds that there are.
pub const KINDS: usize = 7;

impl Kind {
    pub const ALL: [Self; KINDS] = [
        Self::PointSelect,
        Self::SimpleRange,
        Self::SumRange,
        Self::OrderRange,
        Self::DistinctRange,
        Self::Begin,
        Self::Commit,
    ];

    /// As histograms name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::PointSelect => "point_select",
            Self::SimpleRange => "simple_range",
            Self::SumRange => "sum_range",
            Self::OrderRange => "order_range",
            Self::DistinctRange => "distinct_range",
            Self::Begin => "begin",
            Self::Commit => "commit",
        }
    }

    /// Integers that it binds.
    pub fn parameters(self) -> usize {
        match self {
            Self::PointSelect => 1,
            Self::SimpleRange | Self::SumRange | Self::OrderRange | Self::DistinctRange => 2,
            Self::Begin | Self::Commit => 0,
        }
    }

    fn has_table(self) -> bool {
        self.parameters() > 0
    }

    /// Text before the table's number, and text around the parameters.
    fn text(self) -> (&'static str, &'static str) {
        match self {
            Self::PointSelect => ("SELECT c FROM sbtest", " WHERE id="),
            Self::SimpleRange | Self::OrderRange => ("SELECT c FROM sbtest", " WHERE id BETWEEN "),
            Self::SumRange => ("SELECT SUM(k) FROM sbtest", " WHERE id BETWEEN "),
            Self::DistinctRange => ("SELECT DISTINCT c FROM sbtest", " WHERE id BETWEEN "),
            Self::Begin => ("BEGIN", ""),
            Self::Commit => ("COMMIT", ""),
        }
    }

    /// Append its SQL; `values`: none for a text to prepare.
    pub fn write_sql(self, out: &mut Vec<u8>, table: u32, values: Option<[u64; 2]>) {
        let (before, after) = self.text();
        out.extend_from_slice(before.as_bytes());
        if !self.has_table() {
            return;
        }
        write_number(out, u64::from(table));
        out.extend_from_slice(after.as_bytes());
        let mut parameter = |at: usize| match values {
            None => out.push(b'?'),
            Some(values) => write_number(out, values[at]),
        };
        parameter(0);
        if self.parameters() == 2 {
            out.extend_from_slice(b" AND ");
            match values {
                None => out.push(b'?'),
                Some(values) => write_number(out, values[1]),
            }
        }
        if matches!(self, Self::OrderRange | Self::DistinctRange) {
            out.extend_from_slice(b" ORDER BY c");
        }
    }
}

fn write_number(out: &mut Vec<u8>, number: u64) {
    write!(out, "{number}").expect("writing to memory cannot fail");
}

/// One query: its kind, its table (1 when it has none) and the integers that it binds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statement {
    pub kind: Kind,
    pub table: u32,
    pub values: [u64; 2],
}

/// The transactions that all connections run.
#[derive(Debug)]
pub struct Program {
    steps: Vec<(Kind, u32)>,
    slots: Vec<(Kind, u32)>,
    tables: u32,
    range: u64,
    ids: Ids,
    seed: u64,
    prepared: bool,
}

impl Program {
    pub fn new(load: &Sysbench, seed: u64) -> Self {
        let mut steps = vec![(Kind::PointSelect, load.point_selects)];
        if load.range_selects {
            steps.push((Kind::SimpleRange, load.simple_ranges));
            steps.push((Kind::SumRange, load.sum_ranges));
            steps.push((Kind::OrderRange, load.order_ranges));
            steps.push((Kind::DistinctRange, load.distinct_ranges));
        }
        if !load.skip_trx {
            steps.insert(0, (Kind::Begin, 1));
            steps.push((Kind::Commit, 1));
        }
        let of_kind = |kind: Kind| {
            (1..=if kind.has_table() { load.tables } else { 1 }).map(move |table| (kind, table))
        };
        Self {
            steps,
            slots: Kind::ALL.into_iter().flat_map(of_kind).collect(),
            tables: load.tables,
            range: load.range_size,
            ids: Ids::new(&load.distribution, load.table_size),
            seed,
            prepared: load.db_ps_mode == PsMode::Auto,
        }
    }

    /// Statements go to the server prepared where it can.
    pub fn is_prepared(&self) -> bool {
        self.prepared
    }

    /// All statements (kind and table), in the order of their [`Program::slot`]s.
    pub fn slots(&self) -> &[(Kind, u32)] {
        &self.slots
    }

    /// Whether any transaction holds this kind.
    pub fn uses(&self, kind: Kind) -> bool {
        self.steps
            .iter()
            .any(|&(step, count)| step == kind && count > 0)
    }

    /// Where a connection keeps what it knows of a statement.
    #[inline]
    pub fn slot(&self, kind: Kind, table: u32) -> usize {
        let tables = self.tables as usize;
        match kind {
            Kind::Begin => 5 * tables,
            Kind::Commit => 5 * tables + 1,
            with_table => with_table as usize * tables + table as usize - 1,
        }
    }

    /// The start of a transaction.
    pub fn transaction(&self, connection: u64, number: u64) -> Transaction {
        Transaction {
            draws: Draws::of(self.seed, connection, number),
            step: 0,
            left: 0,
            table: 1,
        }
    }
}

/// A place inside a transaction.
#[derive(Debug, Clone)]
pub struct Transaction {
    draws: Draws,
    /// The step that comes when `left` is used up.
    step: usize,
    left: u32,
    table: u32,
}

impl Transaction {
    /// The next statement; `None` after the last.
    #[inline]
    pub fn next(&mut self, program: &Program) -> Option<Statement> {
        while self.left == 0 {
            let &(kind, count) = program.steps.get(self.step)?;
            self.step += 1;
            self.left = count;
            if kind.has_table() {
                self.table = self.draws.up_to(u64::from(program.tables)) as u32;
            }
        }
        self.left -= 1;
        let (kind, _) = program.steps[self.step - 1];
        if !kind.has_table() {
            return Some(Statement {
                kind,
                table: 1,
                values: [0; 2],
            });
        }
        let id = program.ids.draw(&mut self.draws);
        Some(Statement {
            kind,
            table: self.table,
            values: [id, id + program.range - 1],
        })
    }
}
