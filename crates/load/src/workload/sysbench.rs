//! sysbench's Lua workloads: the same statements in the same order, values by the same distributions.
//!
//! As in sysbench, the table is drawn once per transaction for each kind of statement, and ids for each query. sysbench's
//! `bulk_insert` calls each row an event; here a transaction is one INSERT with as many rows as sysbench sends at once (512 KiB).

use howfar_contract::jobs::{SqlProtocol, Sysbench, Workload};

use super::{Group, Program, Source, StatementKind, Step, Table};
use crate::distribution::IdSampler;

/// sysbench sends a bulk insert once it has this many bytes.
const BULK_BYTES: usize = 512 * 1024;

pub(super) fn build_program(
    workload: &Workload,
    load: &Sysbench,
    connections: u32,
    protocol: SqlProtocol,
) -> Result<Program, String> {
    let mut script = Script {
        load,
        protocol,
        kinds: Vec::new(),
        groups: Vec::new(),
        ids: IdSampler::new(&load.distribution, load.table_size),
    };
    let in_transaction = matches!(
        workload,
        Workload::OltpReadOnly(_) | Workload::OltpReadWrite(_) | Workload::OltpWriteOnly(_)
    ) && !load.skip_trx;
    if in_transaction {
        script.add_fixed("begin", "BEGIN");
    }
    match workload {
        Workload::OltpReadOnly(_) => script.add_reads(),
        Workload::OltpReadWrite(_) => {
            script.add_reads();
            script.add_writes();
        }
        Workload::OltpWriteOnly(_) => script.add_writes(),
        // As in sysbench's script, the count is fixed.
        Workload::OltpPointSelect(_) => script.add_point_selects(1),
        Workload::OltpUpdateIndex(_) => script.add_index_updates(load.index_updates),
        Workload::OltpUpdateNonIndex(_) => script.add_non_index_updates(load.non_index_updates),
        Workload::OltpDelete(_) => script.add_deletes(),
        Workload::OltpInsert(_) => script.add_inserts(),
        Workload::SelectRandomPoints(_) => script.add_random_points(connections)?,
        Workload::SelectRandomRanges(_) => script.add_random_ranges(connections)?,
        Workload::BulkInsert(_) => script.add_bulk_insert(connections),
        _ => unreachable!("other modules build the other workloads"),
    }
    if in_transaction {
        script.add_fixed("commit", "COMMIT");
    }
    if script.groups.iter().all(|group| group.repeat == 0) {
        return Err("the workload has no query: every count of statements is 0".to_owned());
    }
    let mut program = Program::from_parts(script.kinds, vec![(1, script.groups)], load.tables);
    if matches!(workload, Workload::BulkInsert(_)) {
        program.tables = connections;
    }
    Ok(program)
}

struct Script<'a> {
    load: &'a Sysbench,
    protocol: SqlProtocol,
    kinds: Vec<StatementKind>,
    groups: Vec<Group>,
    ids: IdSampler,
}

impl Script<'_> {
    fn make_step(&mut self, name: &str, sql: &str, tables: u32, sources: Vec<Source>) -> Step {
        let kind = StatementKind::new(name, sql, tables, self.protocol);
        debug_assert_eq!(
            kind.value_count(),
            sources.len(),
            "{sql} has one source for each value"
        );
        self.kinds.push(kind);
        Step {
            kind: self.kinds.len() - 1,
            think_ns: 0,
            sources,
        }
    }

    fn add_fixed(&mut self, name: &str, sql: &str) {
        let step = self.make_step(name, sql, 0, Vec::new());
        self.add_once(step, Table::None);
    }

    /// Add `repeat` times the same statement, on one table drawn for all of them.
    fn add_repeated(&mut self, name: &str, sql: &str, repeat: u32, sources: Vec<Source>) {
        if repeat == 0 {
            return;
        }
        let steps = vec![self.make_step(name, sql, self.load.tables, sources)];
        self.groups.push(Group {
            table: Table::Drawn,
            repeat,
            steps,
        });
    }

    fn id_source(&self) -> Source {
        Source::Id(self.ids.clone())
    }

    /// A value for `k`: drawn like an id, but later statements cannot refer to it.
    fn k_source(&self) -> Source {
        Source::Number {
            ids: self.ids.clone(),
            offset: 0,
        }
    }

    fn add_point_selects(&mut self, count: u32) {
        let sources = vec![self.id_source()];
        self.add_repeated(
            "point_select",
            "SELECT c FROM sbtest{} WHERE id=?",
            count,
            sources,
        );
    }

    fn add_reads(&mut self) {
        let load = self.load;
        self.add_point_selects(load.point_selects);
        if !load.range_selects {
            return;
        }
        for (name, sql, count) in [
            (
                "simple_range",
                "SELECT c FROM sbtest{} WHERE id BETWEEN ? AND ?",
                load.simple_ranges,
            ),
            (
                "sum_range",
                "SELECT SUM(k) FROM sbtest{} WHERE id BETWEEN ? AND ?",
                load.sum_ranges,
            ),
            (
                "order_range",
                "SELECT c FROM sbtest{} WHERE id BETWEEN ? AND ? ORDER BY c",
                load.order_ranges,
            ),
            (
                "distinct_range",
                "SELECT DISTINCT c FROM sbtest{} WHERE id BETWEEN ? AND ? ORDER BY c",
                load.distinct_ranges,
            ),
        ] {
            let sources = vec![self.id_source(), Source::LastPlus(load.range_size - 1)];
            self.add_repeated(name, sql, count, sources);
        }
    }

    fn add_index_updates(&mut self, count: u32) {
        let sources = vec![self.id_source()];
        self.add_repeated(
            "index_update",
            "UPDATE sbtest{} SET k=k+1 WHERE id=?",
            count,
            sources,
        );
    }

    fn add_non_index_updates(&mut self, count: u32) {
        let sources = vec![Source::C, self.id_source()];
        self.add_repeated(
            "non_index_update",
            "UPDATE sbtest{} SET c=? WHERE id=?",
            count,
            sources,
        );
    }

    fn add_deletes(&mut self) {
        let sources = vec![self.id_source()];
        self.add_repeated("delete", "DELETE FROM sbtest{} WHERE id=?", 1, sources);
    }

    fn add_writes(&mut self) {
        let load = self.load;
        self.add_index_updates(load.index_updates);
        self.add_non_index_updates(load.non_index_updates);
        if load.delete_inserts == 0 {
            return;
        }
        let (id, k) = (self.id_source(), self.k_source());
        let steps = vec![
            self.make_step(
                "delete",
                "DELETE FROM sbtest{} WHERE id=?",
                load.tables,
                vec![id],
            ),
            self.make_step(
                "insert",
                "INSERT INTO sbtest{} (id, k, c, pad) VALUES (?, ?, ?, ?)",
                load.tables,
                vec![Source::LastPlus(0), k, Source::C, Source::Pad],
            ),
        ];
        self.groups.push(Group {
            table: Table::Drawn,
            repeat: load.delete_inserts,
            steps,
        });
    }

    /// Add INSERTs; as in sysbench, they are sent as text in every mode.
    fn add_inserts(&mut self) {
        let mut sources = vec![self.k_source(), Source::C, Source::Pad];
        // PostgreSQL assigns a serial number only if no id is given.
        let sql = if self.load.auto_inc && self.protocol == SqlProtocol::Postgresql {
            "INSERT INTO sbtest{} (k, c, pad) VALUES (?, ?, ?)"
        } else {
            let id = if self.load.auto_inc {
                Source::Integer(0)
            } else {
                Source::Unique
            };
            sources.insert(0, id);
            "INSERT INTO sbtest{} (id, k, c, pad) VALUES (?, ?, ?, ?)"
        };
        self.add_repeated("insert", sql, 1, sources);
        self.kinds[0].is_always_text = true;
    }

    /// Source of ids from each connection's own part of the single table: `a..=a + rows`, which has one more than `rows` ids, as in
    /// sysbench.
    fn make_slice_source(&self, connections: u32) -> Result<Source, String> {
        if self.load.tables != 1 {
            return Err("this workload has one table only: tables must be 1".to_owned());
        }
        let rows = self.load.table_size as f64 / f64::from(connections);
        let ids = IdSampler::new(&self.load.distribution, rows as u64 + 1);
        Ok(Source::Slice { ids, rows })
    }

    fn add_random_points(&mut self, connections: u32) -> Result<(), String> {
        let points = self.load.random_points as usize;
        let slice = self.make_slice_source(connections)?;
        let placeholders = vec!["?"; points].join(", ");
        let sql = format!(
            "\n        SELECT id, k, c, pad\n          FROM sbtest1\n          WHERE k IN ({placeholders})\n        "
        );
        let step = self.make_step("random_points", &sql, 0, vec![slice; points]);
        self.add_once(step, Table::None);
        Ok(())
    }

    fn add_random_ranges(&mut self, connections: u32) -> Result<(), String> {
        let ranges = self.load.number_of_ranges as usize;
        let slice = self.make_slice_source(connections)?;
        let placeholders = vec!["k BETWEEN ? AND ?"; ranges].join(" OR ");
        let sql = format!(
            "\n        SELECT count(k)\n          FROM sbtest1\n          WHERE {placeholders}"
        );
        let pair = [slice, Source::LastPlus(self.load.delta)];
        let sources = std::iter::repeat_n(pair, ranges).flatten().collect();
        let step = self.make_step("random_ranges", &sql, 0, sources);
        self.add_once(step, Table::None);
        Ok(())
    }

    fn add_bulk_insert(&mut self, connections: u32) {
        let step = self.make_step(
            "bulk_insert",
            "INSERT INTO sbtest{} VALUES?",
            connections,
            vec![Source::Rows { bytes: BULK_BYTES }],
        );
        self.kinds[0].is_always_text = true;
        self.add_once(step, Table::PerConnection);
    }

    fn add_once(&mut self, step: Step, table: Table) {
        self.groups.push(Group {
            table,
            repeat: 1,
            steps: vec![step],
        });
    }
}
