//! Tests of the transactions: texts, order, values and purity.

use howfar_contract::jobs::{Custom, PsMode, Sysbench, Workload};
use howfar_load::workload::Program;
use howfar_wire::mysql::command::quote;
use proptest::prelude::*;

/// Statements with their name, table number and values.
type StatementList = Vec<(String, u32, Vec<String>)>;

fn program(kind: fn(Sysbench) -> Workload, load: Sysbench) -> Program {
    Program::new(&kind(load), 4, 1).expect("the workload is valid")
}

fn names(statements: &StatementList) -> Vec<&str> {
    statements
        .iter()
        .map(|(name, _, _)| name.as_str())
        .collect()
}

fn parse_integer(text: &str) -> i64 {
    text.parse().expect("the value is an integer")
}

fn list_prepared_sql(program: &Program) -> Vec<String> {
    let slots = program.slots_to_prepare().into_iter();
    slots
        .map(|slot| {
            let mut out = Vec::new();
            program.write_prepare(slot, &mut out);
            String::from_utf8(out).expect("the SQL is ASCII")
        })
        .collect()
}

#[test]
fn texts_are_those_of_sysbench() {
    let all = list_prepared_sql(&program(Workload::OltpReadWrite, Sysbench::default()));
    assert_eq!(
        all,
        [
            "BEGIN",
            "SELECT c FROM sbtest1 WHERE id=?",
            "SELECT c FROM sbtest1 WHERE id BETWEEN ? AND ?",
            "SELECT SUM(k) FROM sbtest1 WHERE id BETWEEN ? AND ?",
            "SELECT c FROM sbtest1 WHERE id BETWEEN ? AND ? ORDER BY c",
            "SELECT DISTINCT c FROM sbtest1 WHERE id BETWEEN ? AND ? ORDER BY c",
            "UPDATE sbtest1 SET k=k+1 WHERE id=?",
            "UPDATE sbtest1 SET c=? WHERE id=?",
            "DELETE FROM sbtest1 WHERE id=?",
            "INSERT INTO sbtest1 (id, k, c, pad) VALUES (?, ?, ?, ?)",
            "COMMIT",
        ]
    );
    let points = Sysbench {
        random_points: 2,
        ..Sysbench::default()
    };
    assert_eq!(
        list_prepared_sql(&program(Workload::SelectRandomPoints, points)),
        [
            "\n        SELECT id, k, c, pad\n          FROM sbtest1\n          WHERE k IN (?, ?)\n        "
        ]
    );
}

#[test]
fn a_transaction_has_sysbenchs_order() {
    let load = Sysbench {
        tables: 10,
        delete_inserts: 2,
        ..Sysbench::default()
    };
    let all = program(Workload::OltpReadWrite, load).list_statements(0, 0);
    let mut order = vec!["begin"];
    order.extend(["point_select"; 10]);
    order.extend([
        "simple_range",
        "sum_range",
        "order_range",
        "distinct_range",
        "index_update",
        "non_index_update",
        "delete",
        "insert",
        "delete",
        "insert",
        "commit",
    ]);
    assert_eq!(names(&all), order);
    assert!(
        all[1..11].iter().all(|(_, table, _)| *table == all[1].1),
        "all point selects use one table"
    );
    assert!(
        all[11..15]
            .iter()
            .all(|(_, _, values)| parse_integer(&values[1]) == parse_integer(&values[0]) + 99)
    );
    assert!(
        all[17..21].iter().all(|(_, table, _)| *table == all[17].1),
        "deletes and inserts use one table"
    );
    for index in [17, 19] {
        let (deleted, inserted) = (&all[index].2[0], &all[index + 1].2[0]);
        assert_eq!(deleted, inserted, "the deleted row is inserted again");
    }
    assert_eq!(
        (all[16].2[0].len(), all[18].2[2].len(), all[18].2[3].len()),
        (119, 119, 59)
    );
}

#[test]
fn each_workload_has_the_statements_of_sysbenchs_script() {
    let list_names = |kind: fn(Sysbench) -> Workload| {
        let all = program(kind, Sysbench::default()).list_statements(1, 5);
        names(&all).join(" ")
    };
    assert_eq!(list_names(Workload::OltpPointSelect), "point_select");
    assert_eq!(list_names(Workload::OltpUpdateIndex), "index_update");
    assert_eq!(list_names(Workload::OltpUpdateNonIndex), "non_index_update");
    assert_eq!(list_names(Workload::OltpDelete), "delete");
    assert_eq!(list_names(Workload::OltpInsert), "insert");
    assert_eq!(
        list_names(Workload::OltpWriteOnly),
        "begin index_update non_index_update delete insert commit"
    );
    let ranges = program(Workload::SelectRandomRanges, Sysbench::default()).list_statements(3, 5);
    let values = &ranges[0].2;
    assert_eq!(values.len(), 20);
    for pair in values.chunks(2) {
        // Connection 3 of 4 has the last quarter of 10 000 rows.
        assert!(
            (7500..=10_000).contains(&parse_integer(&pair[0])),
            "{pair:?}"
        );
        assert_eq!(parse_integer(&pair[1]), parse_integer(&pair[0]) + 5);
    }
}

#[test]
fn inserts_are_text_and_their_ids_are_zero_or_unique() {
    let auto_inc = program(Workload::OltpInsert, Sysbench::default());
    assert!(list_prepared_sql(&auto_inc).is_empty());
    assert_eq!(auto_inc.list_statements(0, 0)[0].2[0], "0");
    let load = Sysbench {
        auto_inc: false,
        ..Sysbench::default()
    };
    let unique = program(Workload::OltpInsert, load);
    let mut ids: Vec<String> = (0..4)
        .map(|connection| unique.list_statements(connection, 0)[0].2[0].clone())
        .collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 4, "no two connections draw the same id");
}

#[test]
fn a_bulk_insert_is_as_long_as_that_of_sysbench() {
    let all = program(Workload::BulkInsert, Sysbench::default()).list_statements(2, 0);
    let (name, table, values) = &all[0];
    assert_eq!((name.as_str(), *table), ("bulk_insert", 3));
    assert!(values[0].starts_with("(1,1),(2,2),"));
    assert!((512 * 1024..513 * 1024).contains(&values[0].len()));
}

#[test]
fn tables_are_drawn_evenly_and_independently_for_each_kind() {
    let load = Sysbench {
        tables: 4,
        ..Sysbench::default()
    };
    let program = program(Workload::OltpReadOnly, load);
    let mut pairs = [[0_u32; 4]; 4];
    for number in 0..16_000 {
        let all = program.list_statements(9, number);
        pairs[all[1].1 as usize - 1][all[11].1 as usize - 1] += 1;
    }
    // 16 cells with 1000 expected each, standard deviation 31: six standard deviations are allowed.
    assert!(
        pairs
            .iter()
            .flatten()
            .all(|&count| (814..=1186).contains(&count)),
        "{pairs:?}"
    );
}

#[test]
fn options_omit_statements() {
    let point_selects = Sysbench {
        skip_trx: true,
        range_selects: false,
        point_selects: 3,
        ..Sysbench::default()
    };
    let all = program(Workload::OltpReadOnly, point_selects.clone()).list_statements(0, 0);
    assert_eq!(names(&all), ["point_select"; 3]);
    let no_query = Sysbench {
        point_selects: 0,
        ..point_selects
    };
    let error = Program::new(&Workload::OltpReadOnly(no_query), 1, 1)
        .expect_err("the workload has no query");
    assert!(error.contains("no query"), "{error}");
    let tables = Sysbench {
        tables: 2,
        ..Sysbench::default()
    };
    assert!(Program::new(&Workload::SelectRandomPoints(tables), 1, 1).is_err());
}

const CUSTOM: &str = r#"{
    "statements": [
        {"name": "put", "sql": "INSERT INTO t VALUES (?, '?', ?)", "parameters": [{"kind": "sequence", "first": 10, "step": 2}, {"kind": "text", "length": 20}]},
        {"name": "get", "sql": "SELECT ? FROM t WHERE n = ?", "parameters": [{"kind": "same", "statement": "put", "index": 1}, {"kind": "integer", "low": 5, "high": 7}]}
    ],
    "transactions": [
        {"name": "both", "weight": 3, "steps": [{"statement": "put"}, {"statement": "get", "repeat": 2, "think_ns": 7}]},
        {"name": "one", "steps": [{"statement": "get"}]}
    ]
}"#;

fn custom(text: &str) -> Result<Program, String> {
    let custom: Custom = serde_json::from_str(text).expect("the JSON is well formed");
    Program::new(&Workload::Custom(custom), 2, 9)
}

#[test]
fn a_custom_workload_draws_its_values_and_transactions() {
    let program = custom(CUSTOM).expect("the workload is valid");
    let transactions: Vec<StatementList> = (0..4000)
        .map(|number| program.list_statements(1, number))
        .filter(|all| all.len() == 3)
        .collect();
    // Three in four: 3000 expected, standard deviation 27.
    assert!(
        (2836..=3164).contains(&transactions.len()),
        "{}",
        transactions.len()
    );
    for all in &transactions {
        assert_eq!(
            names(all),
            ["statement.put", "statement.get", "statement.get"]
        );
        // The second of two connections draws its first number.
        assert_eq!(all[0].2[0], "12");
        assert_eq!(all[0].2[1], all[1].2[0]);
        assert!((5..=7).contains(&parse_integer(&all[2].2[1])));
    }
    let wrong = CUSTOM.replace("SELECT ? FROM", "SELECT c FROM");
    let error = custom(&wrong).expect_err("the statement has one `?` too few");
    assert!(
        error.contains("`get` has 1 `?` and 2 parameters"),
        "{error}"
    );
}

#[test]
fn statements_can_be_written_as_text() {
    let program =
        custom(&CUSTOM.replace("\"length\": 20", "\"length\": 4")).expect("the workload is valid");
    let mut memory = program.memory(0);
    let mut cursor = program.transaction(0, 0);
    let mut sql = Vec::new();
    while let Some(due) = cursor.next(&program) {
        program.write_text(due, &mut cursor, &mut memory, &mut sql, quote);
        sql.push(b'\n');
    }
    let sql = String::from_utf8(sql).expect("the SQL is ASCII");
    let first = sql.lines().next().expect("there is a statement");
    assert!(first.starts_with("INSERT INTO t VALUES (10, '?', '") || first.starts_with("SELECT "));
    assert_eq!(program.slots_to_prepare().len(), 2);
}

proptest! {
    #[test]
    fn the_stream_is_a_function_of_seed_connection_and_number(
        seed in any::<u64>(), connection in 0_u64..5000, number in any::<u64>(), tables in 1_u32..20,
    ) {
        let load = Workload::OltpReadWrite(Sysbench { tables, table_size: 1_000_000, ..Sysbench::default() });
        let build = |seed| Program::new(&load, 8, seed).expect("the workload is valid");
        let all = build(seed).list_statements(connection, number);
        prop_assert_eq!(all.len(), 20);
        prop_assert_eq!(&all, &build(seed).list_statements(connection, number));
        prop_assert_ne!(&all, &build(seed).list_statements(connection + 1, number));
        prop_assert_ne!(&all, &build(seed).list_statements(connection, number.wrapping_add(1)));
        prop_assert_ne!(&all, &build(seed.wrapping_add(1)).list_statements(connection, number));
    }

    /// Statements are the same in every mode of sending them.
    #[test]
    fn all_modes_send_the_same_statements(seed in any::<u64>(), number in any::<u64>()) {
        let list = |db_ps_mode| {
            let load = Sysbench { db_ps_mode, ..Sysbench::default() };
            Program::new(&Workload::OltpReadWrite(load), 1, seed).expect("the workload is valid").list_statements(0, number)
        };
        prop_assert_eq!(list(PsMode::Auto), list(PsMode::Disable));
        prop_assert_eq!(list(PsMode::Auto), list(PsMode::Multi));
    }
}
