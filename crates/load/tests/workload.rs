//! The transactions: texts, order and purity.

use howfar_load::workload::{Kind, Program, Statement};
use howfar_record::jobs::Sysbench;
use proptest::prelude::*;

fn all(program: &Program, connection: u64, number: u64) -> Vec<Statement> {
    let mut transaction = program.transaction(connection, number);
    std::iter::from_fn(|| transaction.next(program)).collect()
}

fn sql(kind: Kind, values: Option<[u64; 2]>) -> String {
    let mut out = Vec::new();
    kind.write_sql(&mut out, 7, values);
    String::from_utf8(out).expect("ASCII")
}

#[test]
fn texts_are_those_of_sysbench() {
    let prepared: Vec<String> = Kind::ALL.iter().map(|kind| sql(*kind, None)).collect();
    assert_eq!(
        prepared,
        [
            "SELECT c FROM sbtest7 WHERE id=?",
            "SELECT c FROM sbtest7 WHERE id BETWEEN ? AND ?",
            "SELECT SUM(k) FROM sbtest7 WHERE id BETWEEN ? AND ?",
            "SELECT c FROM sbtest7 WHERE id BETWEEN ? AND ? ORDER BY c",
            "SELECT DISTINCT c FROM sbtest7 WHERE id BETWEEN ? AND ? ORDER BY c",
            "BEGIN",
            "COMMIT",
        ]
    );
    assert_eq!(
        sql(Kind::OrderRange, Some([5, 104])),
        "SELECT c FROM sbtest7 WHERE id BETWEEN 5 AND 104 ORDER BY c"
    );
}

#[test]
fn a_transaction_has_sysbenchs_order() {
    let program = Program::new(
        &Sysbench {
            tables: 10,
            ..Sysbench::default()
        },
        1,
    );
    let statements = all(&program, 0, 0);
    let mut kinds = vec![Kind::Begin];
    kinds.extend([Kind::PointSelect; 10]);
    kinds.extend([
        Kind::SimpleRange,
        Kind::SumRange,
        Kind::OrderRange,
        Kind::DistinctRange,
        Kind::Commit,
    ]);
    assert_eq!(
        statements
            .iter()
            .map(|statement| statement.kind)
            .collect::<Vec<_>>(),
        kinds
    );
    assert!(
        statements[1..11]
            .iter()
            .all(|statement| statement.table == statements[1].table)
    );
    assert!(
        statements[11..15]
            .iter()
            .all(|range| range.values[1] == range.values[0] + 99)
    );
}

#[test]
fn tables_are_drawn_evenly_and_for_each_kind_anew() {
    let program = Program::new(
        &Sysbench {
            tables: 4,
            ..Sysbench::default()
        },
        3,
    );
    let mut pairs = [[0_u32; 4]; 4];
    for number in 0..16_000 {
        let statements = all(&program, 9, number);
        pairs[statements[1].table as usize - 1][statements[11].table as usize - 1] += 1;
    }
    // 16 cells of 1000 expected, standard deviation 31: six of them allowed.
    assert!(
        pairs
            .iter()
            .flatten()
            .all(|&count| (814..=1186).contains(&count)),
        "{pairs:?}"
    );
}

#[test]
fn options_leave_things_out() {
    let bare = Sysbench {
        skip_trx: true,
        range_selects: false,
        point_selects: 3,
        ..Sysbench::default()
    };
    let kinds: Vec<Kind> = all(&Program::new(&bare, 1), 0, 0)
        .iter()
        .map(|statement| statement.kind)
        .collect();
    assert_eq!(kinds, [Kind::PointSelect; 3]);
    let program = Program::new(&bare, 1);
    assert!(
        program.uses(Kind::PointSelect)
            && !program.uses(Kind::SimpleRange)
            && !program.uses(Kind::Begin)
    );
}

#[test]
fn slots_and_statements_agree() {
    let program = Program::new(
        &Sysbench {
            tables: 3,
            ..Sysbench::default()
        },
        1,
    );
    for (at, &(kind, table)) in program.slots().iter().enumerate() {
        assert_eq!(program.slot(kind, table), at);
    }
    assert_eq!(program.slots().len(), 5 * 3 + 2);
}

proptest! {
    #[test]
    fn the_stream_is_a_function_of_seed_connection_and_number(seed in any::<u64>(), connection in 0_u64..5000, number in any::<u64>(), tables in 1_u32..20) {
        let load = Sysbench { tables, table_size: 1_000_000, ..Sysbench::default() };
        let program = Program::new(&load, seed);
        let statements = all(&program, connection, number);
        prop_assert_eq!(statements.len(), 16);
        prop_assert_eq!(&statements, &all(&Program::new(&load, seed), connection, number));
        prop_assert_ne!(&statements, &all(&program, connection + 1, number));
        prop_assert_ne!(&statements, &all(&program, connection, number.wrapping_add(1)));
        prop_assert_ne!(&statements, &all(&Program::new(&load, seed.wrapping_add(1)), connection, number));
    }
}
