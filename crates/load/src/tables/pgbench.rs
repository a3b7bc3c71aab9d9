//! Statements for pgbench's tables: those of `pgbench -i -I dtGvp`, with the accounts inserted in parts.

use howfar_contract::jobs::{Action, Pgbench};

use crate::workload::pgbench::{ACCOUNTS, TELLERS};

/// Number of branches whose accounts one statement inserts.
const BRANCHES_AT_ONCE: u64 = 10;
/// Tables and their primary keys; empty for a table without one.
const TABLES: [(&str, &str); 4] = [
    ("branches", "bid"),
    ("tellers", "tid"),
    ("accounts", "aid"),
    ("history", ""),
];

/// All statements of an action, in order.
pub(super) fn statements(action: Action, load: &Pgbench) -> Vec<String> {
    match action {
        Action::Prepare => prepare_statements(u64::from(load.scale)),
        Action::Warmup => vec![
            "SELECT count(*) FROM pgbench_branches".to_owned(),
            "SELECT count(*) FROM pgbench_tellers".to_owned(),
            "SELECT sum(abalance) FROM pgbench_accounts".to_owned(),
            "SET enable_seqscan = off".to_owned(),
            "SELECT count(aid) FROM pgbench_accounts WHERE aid > 0".to_owned(),
            "RESET enable_seqscan".to_owned(),
        ],
        Action::Cleanup => TABLES
            .iter()
            .map(|(table, _)| format!("DROP TABLE IF EXISTS pgbench_{table}"))
            .collect(),
    }
}

fn prepare_statements(scale: u64) -> Vec<String> {
    let options = "WITH (fillfactor=100)";
    let mut list = vec![
        "CREATE TABLE pgbench_history(tid int,bid int,aid int,delta int,mtime timestamp,filler char(22))".to_owned(),
        format!("CREATE TABLE pgbench_tellers(tid int not null,bid int,tbalance int,filler char(84)) {options}"),
        format!("CREATE TABLE pgbench_accounts(aid int not null,bid int,abalance int,filler char(84)) {options}"),
        format!("CREATE TABLE pgbench_branches(bid int not null,bbalance int,filler char(88)) {options}"),
        format!("INSERT INTO pgbench_branches(bid,bbalance) SELECT bid, 0 FROM generate_series(1, {scale}) AS bid"),
        format!(
            "INSERT INTO pgbench_tellers(tid,bid,tbalance) SELECT tid, (tid - 1) / {TELLERS} + 1, 0 FROM generate_series(1, {}) AS tid",
            TELLERS * scale
        ),
    ];
    for first in (0..scale).step_by(BRANCHES_AT_ONCE as usize) {
        let end = scale.min(first + BRANCHES_AT_ONCE);
        list.push(format!(
            "INSERT INTO pgbench_accounts(aid,bid,abalance,filler) SELECT aid, (aid - 1) / {ACCOUNTS} + 1, 0, '' \
             FROM generate_series({}, {}) AS aid",
            ACCOUNTS * first + 1,
            ACCOUNTS * end
        ));
    }
    for (table, _) in TABLES {
        list.push(format!("VACUUM ANALYZE pgbench_{table}"));
    }
    for (table, key) in TABLES.iter().filter(|(_, key)| !key.is_empty()) {
        list.push(format!(
            "ALTER TABLE pgbench_{table} ADD PRIMARY KEY ({key})"
        ));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_inserted_in_parts_without_a_gap() {
        let load = Pgbench {
            scale: 25,
            ..Pgbench::default()
        };
        let sql = statements(Action::Prepare, &load);
        let parts: Vec<&str> = sql
            .iter()
            .filter(|sql| sql.starts_with("INSERT INTO pgbench_accounts"))
            .filter_map(|sql| sql.split("generate_series").nth(1))
            .collect();
        assert_eq!(
            parts,
            [
                "(1, 1000000) AS aid",
                "(1000001, 2000000) AS aid",
                "(2000001, 2500000) AS aid"
            ]
        );
        assert_eq!(
            sql.last().map(String::as_str),
            Some("ALTER TABLE pgbench_accounts ADD PRIMARY KEY (aid)")
        );
        assert_eq!(statements(Action::Cleanup, &load).len(), 4);
    }
}
