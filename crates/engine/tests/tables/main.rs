//! Black box tests of `howfar-engine tables` on a real MariaDB, in comparison with sysbench.
//!
//! Skipped, with a message, if no mariadbd is installed.

#[path = "../load/mariadb.rs"]
#[allow(dead_code)] // some functions are used only by the tests of the load
mod mariadb;
mod process;

use mariadb::Server;
use process::{check_failure, has_sysbench, job, run_successfully, run_sysbench};
use serde_json::{Value, json};

#[test]
fn tables_are_prepared_warmed_and_dropped() {
    let Some(server) = Server::start(0, 0) else {
        return;
    };
    if has_sysbench() {
        the_engine_and_sysbench_run_the_same_statements(&server);
    }
    rows_depend_only_on_the_seed(&server);
    k_follows_its_distribution(&server);
    the_maximum_packet_of_the_server_is_respected(&server);
    custom_statements_run_in_order(&server);
    failures_have_a_code_and_advice(&server);
}

/// The statements that a tool sends to the server, and the tables that it creates, each with a summary of its rows.
fn trace(server: &Server, tables: u64, tool: impl FnOnce()) -> (String, Vec<(String, String)>) {
    server.query("SET GLOBAL log_output='TABLE'; SET GLOBAL general_log=OFF; TRUNCATE mysql.general_log; SET GLOBAL general_log=ON");
    tool();
    server.query("SET GLOBAL general_log=OFF");
    let output = server.query(
        "SELECT argument FROM mysql.general_log WHERE command_type='Query' \
         AND argument REGEXP '^ *(CREATE|DROP|ANALYZE|SELECT AVG|SELECT COUNT|SET tmp|SET max)'",
    );
    let definition = |number| server.query(&format!("SHOW CREATE TABLE sbtest.sbtest{number}"));
    let rows = |number| {
        server.query(&format!("SELECT COUNT(*), MIN(id), MAX(id), MIN(LENGTH(c)), MAX(LENGTH(pad)) FROM sbtest.sbtest{number}"))
    };
    let tables = (1..=tables).map(|number| {
        let definition = definition(number);
        let summary = if definition.contains("`c`") {
            rows(number)
        } else {
            String::new()
        };
        (definition, summary)
    });
    (output, tables.collect())
}

fn remaining_tables(server: &Server) -> String {
    server.query("SHOW TABLES FROM sbtest")
}

fn the_engine_and_sysbench_run_the_same_statements(server: &Server) {
    let variants = [
        json!({"kind": "oltp_read_write", "tables": 2, "table_size": 1000}),
        json!({"kind": "oltp_read_only", "tables": 1, "table_size": 7, "auto_inc": false, "create_secondary": false}),
        json!({"kind": "oltp_write_only", "tables": 2, "table_size": 50, "secondary": true}),
        json!({"kind": "oltp_point_select", "tables": 1, "table_size": 50, "mysql_storage_engine": "aria"}),
        json!({"kind": "oltp_insert", "tables": 2, "table_size": 50, "auto_inc": false}),
        json!({"kind": "select_random_points", "tables": 1, "table_size": 50}),
        json!({"kind": "bulk_insert"}),
    ];
    for workload in variants {
        let tables = workload["tables"].as_u64().unwrap_or(1);
        let theirs = trace(server, tables, || {
            run_sysbench(server, "prepare", &workload);
        });
        run_sysbench(server, "cleanup", &workload);
        let ours = trace(server, tables, || {
            let inserted = run_successfully(&job(server, "prepare", &workload));
            assert!(
                inserted == tables * workload["table_size"].as_u64().unwrap_or(0) || inserted == 0
            );
        });
        assert_eq!(ours, theirs, "{workload}");
        if workload["kind"] != "bulk_insert" && workload["secondary"] != true {
            let theirs = trace(server, 0, || run_sysbench(server, "prewarm", &workload)).0;
            let ours = trace(server, 0, || {
                assert_eq!(run_successfully(&job(server, "warmup", &workload)), 0);
            })
            .0;
            assert!(
                ours == theirs && ours.contains("FORCE KEY"),
                "{ours}{theirs}"
            );
        }
        run_successfully(&job(server, "cleanup", &workload));
        assert_eq!(remaining_tables(server), "", "{workload}");
    }
}

/// All columns of all rows of three tables that a job with these additional `fields` makes.
fn contents(server: &Server, fields: &Value, auto_inc: bool) -> Vec<String> {
    let workload =
        json!({"kind": "oltp_read_write", "tables": 3, "table_size": 3000, "auto_inc": auto_inc});
    let mut job = job(server, "prepare", &workload);
    for (name, value) in fields.as_object().expect("the fields are an object") {
        job[name] = value.clone();
    }
    assert_eq!(run_successfully(&job), 9000);
    let table = |number| {
        server.query(&format!(
            "SELECT id, k, c, pad FROM sbtest.sbtest{number} ORDER BY id"
        ))
    };
    let contents = (1..=3).map(table).collect();
    job["action"] = "cleanup".into();
    run_successfully(&job);
    assert_eq!(remaining_tables(server), "");
    contents
}

fn rows_depend_only_on_the_seed(server: &Server) {
    let first = contents(server, &json!({}), true);
    assert_eq!(first[0].lines().count(), 3000);
    assert!(first[0] != first[1] && first[1] != first[2]);
    let is_same = |fields: &Value, auto_inc| contents(server, fields, auto_inc) == first;
    assert!(is_same(&json!({"connections": 2}), true), "two connections");
    assert!(
        is_same(&json!({"connections": 8}), false),
        "more connections than tables, and the engine's own ids"
    );
    let compressed = json!({"session": {"compression": {"algorithm": "zlib"}}});
    assert!(is_same(&compressed, true), "with compression");
    assert!(!is_same(&json!({"seed": 2}), true), "another seed");
}

/// Checks the mean of k, and the share of some values, in 4000 rows with k in 1..=4000. Tolerances are six standard errors of each
/// distribution.
fn k_follows_its_distribution(server: &Server) {
    let weights = || (1..=4000).map(|id| f64::from(id).powf(-0.8));
    let zipf_mean = (1..=4000)
        .zip(weights())
        .map(|(id, weight)| f64::from(id) * weight)
        .sum::<f64>()
        / weights().sum::<f64>();
    // Kind, mean of k, its tolerance, counted rows, their share, its tolerance.
    let kinds = [
        // The standard deviation is 4000 / sqrt(12); that of a share is sqrt(p (1 - p)).
        ("uniform", 2000.5, 110.0, "k <= 800", 0.2, 0.04),
        // The mean of U^7.21 is 1 / 8.21.
        ("pareto", 487.0, 90.0, "k <= 800", 0.8, 0.04),
        // k is the mean of 12 uniform values: the standard deviation is 4000 / 12.
        (
            "gaussian",
            2000.5,
            32.0,
            "k BETWEEN 1668 AND 2333",
            0.68,
            0.045,
        ),
        // These are the hot 1 %, with three quarters of the values and a proportional part of the rest.
        (
            "special",
            2001.0,
            20.0,
            "k BETWEEN 1989 AND 2021",
            0.76,
            0.05,
        ),
        (
            "zipfian",
            zipf_mean,
            110.0,
            "k = 1",
            1.0 / weights().sum::<f64>(),
            0.02,
        ),
    ];
    for (kind, mean, mean_tolerance, rows, share, share_tolerance) in kinds {
        let workload =
            json!({"kind": "oltp_read_write", "table_size": 4000, "distribution": {"kind": kind}});
        run_successfully(&job(server, "prepare", &workload));
        let output = server.query(&format!(
            "SELECT AVG(k), AVG({rows}), MIN(k) >= 1 AND MAX(k) <= 4000 FROM sbtest.sbtest1"
        ));
        let values: Vec<f64> = output
            .split_whitespace()
            .map(|value| value.parse().expect("the value is a number"))
            .collect();
        assert!(
            (values[0] - mean).abs() < mean_tolerance,
            "{kind}: {output}"
        );
        assert!(
            (values[1] - share).abs() < share_tolerance,
            "{kind}: {output}"
        );
        assert!(values[2] > 0.5, "{kind}: {output}");
        run_successfully(&job(server, "cleanup", &workload));
    }
}

fn the_maximum_packet_of_the_server_is_respected(server: &Server) {
    let default = server.query("SELECT @@GLOBAL.max_allowed_packet");
    server.query("SET GLOBAL max_allowed_packet=16384");
    let workload = json!({"kind": "oltp_read_write", "table_size": 2000});
    assert_eq!(run_successfully(&job(server, "prepare", &workload)), 2000);
    run_successfully(&job(server, "cleanup", &workload));
    server.query(&format!("SET GLOBAL max_allowed_packet={default}"));
}

fn custom(prepare: &[&str], cleanup: &[&str]) -> Value {
    json!({
        "kind": "custom",
        "statements": [{"name": "one", "sql": "SELECT 1"}],
        "transactions": [{"name": "all", "steps": [{"statement": "one"}]}],
        "prepare": prepare, "cleanup": cleanup,
    })
}

fn custom_statements_run_in_order(server: &Server) {
    let workload = custom(
        &[
            "CREATE TABLE own (id INT)",
            "INSERT INTO own VALUES (1), (2)",
            "INSERT INTO own SELECT id + 10 FROM own",
        ],
        &["DROP TABLE own"],
    );
    assert_eq!(run_successfully(&job(server, "prepare", &workload)), 4);
    assert_eq!(server.query("SELECT COUNT(*) FROM sbtest.own").trim(), "4");
    run_successfully(&job(server, "cleanup", &workload));
    assert_eq!(remaining_tables(server), "");
    check_failure(
        &job(server, "warmup", &workload),
        "bad_job",
        "nothing to warm",
    );
}

fn failures_have_a_code_and_advice(server: &Server) {
    let workload = json!({"kind": "oltp_read_write", "tables": 2, "table_size": 10});
    check_failure(&job(server, "warmup", &workload), "server_error", "prepare");
    run_successfully(&job(server, "prepare", &workload));
    let repeated = job(server, "prepare", &workload);
    check_failure(&repeated, "server_error", "1050");
    check_failure(&repeated, "server_error", "cleanup");
    run_successfully(&job(server, "cleanup", &workload));
    let mut slow = job(server, "prepare", &custom(&["SELECT SLEEP(60)"], &[]));
    slow["stall_timeout_ns"] = 100_000_000.into();
    check_failure(&slow, "stalled", "SELECT SLEEP");
    let failing = job(
        server,
        "prepare",
        &custom(&["SET @@wait_timeout=1", "SELECT 1 AS ok; BOOM"], &[]),
    );
    check_failure(&failing, "server_error", "1064");
    let mut unconnected = job(server, "cleanup", &workload);
    unconnected["target"]["path"] = "/nonexistent/s".into();
    check_failure(&unconnected, "connect", "/nonexistent/s");
}
