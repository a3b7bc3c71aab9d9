//! Statements for each table: those of sysbench 1.0.20's `oltp_common.lua` and `bulk_insert.lua`, verbatim, or a custom workload's.

use std::borrow::Cow;

use howfar_contract::jobs::{Action, Custom, SqlProtocol, Sysbench, TablesJob, Workload};
use howfar_contract::{FailCode, Failed};

use super::pgbench;

/// One piece of work, done by one connection: a table, or a statement of a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// What it does, for progress reports.
    pub(super) description: String,
    pub(super) before: Vec<String>,
    /// The table whose rows are inserted after `before`.
    pub(super) load: Option<u32>,
    pub(super) after: Vec<String>,
}

/// All the work of a job. Its pieces are made on demand, because there may be a million.
#[derive(Debug)]
pub(super) enum TableWork<'a> {
    Tables {
        action: Action,
        load: &'a Sysbench,
        count: u32,
        /// Rows of each table.
        rows: u64,
        /// Whether these are the tables of `bulk_insert`, which have other columns.
        is_bulk: bool,
        protocol: SqlProtocol,
    },
    List {
        name: &'static str,
        statements: Cow<'a, [String]>,
    },
}

impl<'a> TableWork<'a> {
    pub(super) fn from_job(job: &'a TablesJob) -> Result<Self, Failed> {
        if let Workload::Custom(custom) = &job.workload {
            return from_custom(job.action, custom);
        }
        if let Some(load) = job.workload.pgbench() {
            return Ok(Self::List {
                name: "pgbench",
                statements: pgbench::statements(job.action, load).into(),
            });
        }
        let load = job
            .workload
            .sysbench()
            .expect("every other workload is one of sysbench's");
        let is_bulk = matches!(job.workload, Workload::BulkInsert(_));
        // Ids that the load will draw must not exist yet.
        let is_empty = is_bulk || matches!(job.workload, Workload::OltpInsert(_)) && !load.auto_inc;
        if is_bulk && job.action == Action::Warmup {
            return Err(no_warmup_failure("tables of bulk_insert are empty"));
        }
        Ok(Self::Tables {
            action: job.action,
            load,
            // For `bulk_insert`, one for each connection of the load to come.
            count: if is_bulk {
                job.connections
            } else {
                load.tables
            },
            rows: if is_empty { 0 } else { load.table_size },
            is_bulk,
            protocol: job.protocol,
        })
    }

    /// Statements that every connection runs first.
    pub(super) fn setup(&self) -> &'static [&'static str] {
        match self {
            Self::Tables {
                action: Action::Warmup,
                protocol: SqlProtocol::Mysql,
                ..
            } => &[
                // Keep derived tables off the disk.
                "SET tmp_table_size=2*1024*1024*1024",
                "SET max_heap_table_size=2*1024*1024*1024",
            ],
            _ => &[],
        }
    }

    /// Number of connections, at most `requested`, that have work. A list is run in order by one connection.
    pub(super) fn connections(&self, requested: u32) -> u32 {
        match self {
            Self::Tables { count, .. } => requested.min(*count).max(1),
            Self::List { .. } => 1,
        }
    }

    pub(super) fn pieces(&self) -> u64 {
        match self {
            Self::Tables { count, .. } => u64::from(*count),
            Self::List { statements, .. } => statements.len() as u64,
        }
    }

    /// Rows that each piece inserts; 0 if progress is counted in pieces.
    pub(super) fn rows_each(&self) -> u64 {
        match self {
            Self::Tables {
                action: Action::Prepare,
                rows,
                ..
            } => *rows,
            _ => 0,
        }
    }

    /// Piece `index` of `0..pieces()`.
    pub(super) fn piece(&self, index: u64) -> Piece {
        match self {
            Self::List { name, statements } => Piece {
                description: format!(
                    "statement {} of {} of `{name}`",
                    index + 1,
                    statements.len()
                ),
                before: vec![statements[index as usize].clone()],
                load: None,
                after: Vec::new(),
            },
            Self::Tables {
                action,
                load,
                rows,
                is_bulk,
                protocol,
                ..
            } => {
                let table = index as u32 + 1;
                match action {
                    Action::Prepare if *is_bulk => {
                        statements_piece(table, "making", vec![create_bulk_table(table)])
                    }
                    Action::Prepare => Piece {
                        description: format!("loading sbtest{table}"),
                        before: create_table(table, load, *protocol),
                        load: (*rows > 0).then_some(table),
                        after: load
                            .create_secondary
                            .then(|| create_index(table))
                            .into_iter()
                            .collect(),
                    },
                    Action::Warmup => statements_piece(
                        table,
                        "warming",
                        match protocol {
                            SqlProtocol::Mysql => warm_mysql(table, load).into(),
                            SqlProtocol::Postgresql => warm_postgres(table).into(),
                        },
                    ),
                    Action::Cleanup => statements_piece(
                        table,
                        "dropping",
                        vec![format!("DROP TABLE IF EXISTS sbtest{table}")],
                    ),
                }
            }
        }
    }
}

fn statements_piece(table: u32, verb: &str, statements: Vec<String>) -> Piece {
    Piece {
        description: format!("{verb} sbtest{table}"),
        before: statements,
        load: None,
        after: Vec::new(),
    }
}

fn from_custom(action: Action, custom: &Custom) -> Result<TableWork<'_>, Failed> {
    let (name, statements) = match action {
        Action::Prepare => ("prepare", Cow::Borrowed(&custom.prepare[..])),
        Action::Cleanup => ("cleanup", Cow::Borrowed(&custom.cleanup[..])),
        Action::Warmup => {
            return Err(no_warmup_failure(
                "a custom workload's tables are not known",
            ));
        }
    };
    Ok(TableWork::List { name, statements })
}

fn no_warmup_failure(reason: &str) -> Failed {
    Failed::new(
        FailCode::BadJob,
        format!("there is nothing to warm: {reason}"),
        "Leave `warmup` out; the load's own warm-up time warms what it uses.",
    )
}

fn create_table(table: u32, load: &Sysbench, protocol: SqlProtocol) -> Vec<String> {
    let is_postgres = protocol == SqlProtocol::Postgresql;
    let id = match (load.auto_inc, is_postgres) {
        (true, true) => "SERIAL",
        (true, false) => "INTEGER NOT NULL AUTO_INCREMENT",
        (false, _) => "INTEGER NOT NULL",
    };
    let key = match (load.secondary, is_postgres) {
        (true, false) => ",\n  KEY xid (id)",
        // A separate index, created below; sysbench fails here.
        (true, true) => "",
        (false, _) => ",\n  PRIMARY KEY (id)",
    };
    let engine = if is_postgres {
        String::new()
    } else {
        format!("/*! ENGINE = {} */", load.mysql_storage_engine)
    };
    let table_sql = format!(
        "CREATE TABLE sbtest{table}(\n  id {id},\n  k INTEGER DEFAULT '0' NOT NULL,\n  c CHAR(120) DEFAULT '' NOT NULL,\n  \
         pad CHAR(60) DEFAULT '' NOT NULL{key}\n) {engine} {}",
        load.create_table_options
    );
    let index_sql = format!("CREATE INDEX xid_{table} ON sbtest{table}(id)");
    [table_sql]
        .into_iter()
        .chain((is_postgres && load.secondary).then_some(index_sql))
        .collect()
}

fn create_bulk_table(table: u32) -> String {
    format!(
        "        CREATE TABLE IF NOT EXISTS sbtest{table} (\n          id INTEGER NOT NULL,\n          \
         k INTEGER DEFAULT '0' NOT NULL,\n          PRIMARY KEY (id))"
    )
}

fn create_index(table: u32) -> String {
    format!("CREATE INDEX k_{table} ON sbtest{table}(k)")
}

/// Statements that collect statistics, then read every page of the table's tree and of the index on k. A table with `secondary` has
/// no PRIMARY to force: sysbench fails there, here the table's own key is used.
fn warm_mysql(table: u32, load: &Sysbench) -> [String; 3] {
    let rows = load.table_size;
    let key = if load.secondary { "xid" } else { "PRIMARY" };
    [
        format!("ANALYZE TABLE sbtest{table}"),
        format!(
            "SELECT AVG(id) FROM (SELECT * FROM sbtest{table} FORCE KEY ({key}) LIMIT {rows}) t"
        ),
        format!(
            "SELECT COUNT(*) FROM (SELECT * FROM sbtest{table} WHERE k LIKE '%0%' LIMIT {rows}) t"
        ),
    ]
}

/// Statements that read a table of PostgreSQL into memory: the heap, then both indexes.
fn warm_postgres(table: u32) -> [String; 6] {
    [
        format!("VACUUM ANALYZE sbtest{table}"),
        format!("SELECT sum(length(c)) FROM sbtest{table}"),
        "SET enable_seqscan = off".to_owned(),
        format!("SELECT count(id) FROM sbtest{table} WHERE id > 0"),
        format!("SELECT count(k) FROM sbtest{table} WHERE k > 0"),
        "RESET enable_seqscan".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(action: Action, load: &Sysbench) -> TableWork<'_> {
        TableWork::Tables {
            action,
            load,
            count: 4,
            rows: load.table_size,
            is_bulk: false,
            protocol: SqlProtocol::Mysql,
        }
    }

    #[test]
    fn the_default_table_is_that_of_sysbench() {
        let load = Sysbench::default();
        assert_eq!(
            work(Action::Prepare, &load).piece(0),
            Piece {
                description: "loading sbtest1".to_owned(),
                before: vec![
                    "CREATE TABLE sbtest1(\n  id INTEGER NOT NULL AUTO_INCREMENT,\n  k INTEGER DEFAULT '0' NOT NULL,\n  \
                     c CHAR(120) DEFAULT '' NOT NULL,\n  pad CHAR(60) DEFAULT '' NOT NULL,\n  PRIMARY KEY (id)\n\
                     ) /*! ENGINE = innodb */ "
                        .to_owned()
                ],
                load: Some(1),
                after: vec!["CREATE INDEX k_1 ON sbtest1(k)".to_owned()],
            }
        );
    }

    #[test]
    fn options_change_the_statements() {
        let load = Sysbench {
            auto_inc: false,
            secondary: true,
            create_secondary: false,
            mysql_storage_engine: "aria".to_owned(),
            create_table_options: "COMMENT='x'".to_owned(),
            ..Sysbench::default()
        };
        let piece = work(Action::Prepare, &load).piece(2);
        assert!(piece.before[0].starts_with("CREATE TABLE sbtest3(\n  id INTEGER NOT NULL,\n"));
        assert!(piece.before[0].ends_with("\n  KEY xid (id)\n) /*! ENGINE = aria */ COMMENT='x'"));
        assert!(piece.after.is_empty());
        assert!(work(Action::Warmup, &load).piece(0).before[1].contains("FORCE KEY (xid)"));
    }

    #[test]
    fn tables_are_dropped_if_they_exist() {
        let load = Sysbench::default();
        let cleanup = work(Action::Cleanup, &load);
        assert_eq!(cleanup.piece(3).before, ["DROP TABLE IF EXISTS sbtest4"]);
        assert_eq!((cleanup.pieces(), cleanup.rows_each()), (4, 0));
        assert_eq!((cleanup.connections(10), cleanup.connections(3)), (4, 3));
    }
}
