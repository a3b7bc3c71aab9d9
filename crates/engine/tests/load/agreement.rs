//! Tests the engine with a real MariaDB: the server counts the same bytes, and sees the same transactions on every path and in every
//! mode.
//!
//! Skipped, with a message, if no mariadbd is installed.

use serde_json::{Value, json};

use crate::mariadb::Server;
use crate::process::{job, number, success};

const TABLES: u64 = 2;
const ROWS: u64 = 1000;
const CONNECTIONS: u64 = 3;

fn load(server: &Server, workload: &Value, connections: u64) -> Value {
    let mut job = job(&server.socket());
    job["user"] = "root".into();
    job["password"] = "".into();
    job["database"] = "sbtest".into();
    job["connections"] = connections.into();
    job["workload"] = json!({"kind": "oltp_read_only", "tables": TABLES, "table_size": ROWS});
    for (name, value) in workload.as_object().expect("the workload is an object") {
        job["workload"][name] = value.clone();
    }
    job["observe"] = json!([{"role": "server", "pid": server.pid()}]);
    job
}

/// Check that `ours / theirs` differs from 1 by less than `tolerance`.
fn assert_close(ours: u64, theirs: u64, tolerance: f64, name: &str) {
    assert!(
        (ours as f64 / theirs as f64 - 1.0).abs() < tolerance,
        "{name}: the engine has {ours}, the server {theirs}"
    );
}

#[test]
fn the_engine_and_mariadb_agree() {
    let Some(server) = Server::start(TABLES, ROWS) else {
        return;
    };
    the_server_counts_the_same(&server);
    all_modes_read_the_same_rows(&server);
    the_log_shows_the_same_statements(&server);
    a_load_over_tcp_has_the_expected_bytes(&server);
    many_connections_are_opened_and_closed(&server);
}

/// The engine's events of one job, and the server's counters while it ran.
struct CountedJob {
    events: Vec<Value>,
    received: u64,
    sent: u64,
    executed: u64,
}

fn run_counted(server: &Server, measure_ns: u64) -> CountedJob {
    let before = server.counters();
    let mut job = load(server, &json!({}), CONNECTIONS);
    job["measure_ns"] = measure_ns.into();
    let events = success(&job);
    let after = server.counters();
    let since = |counter: &str| number(&after[counter]) - number(&before[counter]);
    CountedJob {
        events,
        received: since("Bytes_received"),
        sent: since("Bytes_sent"),
        executed: since("Com_stmt_execute"),
    }
}

/// Compares a short job and a long job: the bytes of logins, prepares and queries of the counters are equal in both and cancel.
fn the_server_counts_the_same(server: &Server) {
    let short = run_counted(server, 1_000_000);
    let long = run_counted(server, 500_000_000);
    let finished = long.events.last().expect("the engine writes events");
    assert_eq!(finished["event"], "finished");
    let transactions = number(&finished["transactions"]);
    assert!(transactions > 0);
    assert_eq!(number(&finished["queries"]), 16 * transactions);
    assert_eq!(number(&finished["round_trips"]), 16 * transactions);
    let ours = |direction: &str| number(&finished["bytes"][direction]) / transactions;
    let executed = long.executed - short.executed;
    let to_server = (long.received - short.received) * 16 / executed;
    let to_client = (long.sent - short.sent) * 16 / executed;
    // Each connection has an incomplete transaction at both ends of the window, which matters more if a busy machine completes few.
    let tolerance = 0.05 + CONNECTIONS as f64 / transactions as f64;
    assert_close(
        ours("to_server"),
        to_server,
        tolerance,
        "bytes to the server",
    );
    assert_close(
        ours("to_client"),
        to_client,
        tolerance,
        "bytes to the client",
    );
    check_histograms_and_receipt(server, &long.events, transactions);
}

fn check_histograms_and_receipt(server: &Server, events: &[Value], transactions: u64) {
    let finished = events.last().expect("the engine writes events");
    let list = |name: &str| {
        finished[name]
            .as_array()
            .expect("the field is a list")
            .clone()
    };
    let histograms = list("histograms");
    let figure = |kind: &str, field: &str| {
        let histogram = histograms
            .iter()
            .find(|histogram| histogram["kind"] == kind);
        number(&histogram.unwrap_or_else(|| panic!("{kind} has a histogram"))[field])
    };
    assert_eq!(figure("transaction", "count"), transactions);
    let point_selects = figure("point_select", "count");
    assert!(
        point_selects.abs_diff(10 * transactions) <= 10 * CONNECTIONS,
        "point selects: {point_selects} in {transactions} transactions"
    );
    assert!(figure("begin", "p50_ns") < figure("transaction", "p50_ns"));
    let roles: Vec<Value> = list("cpu").iter().map(|cpu| cpu["role"].clone()).collect();
    assert_eq!(roles, ["client", "server"]);
    assert!(list("cpu").iter().all(|cpu| number(&cpu["cpu_ns"]) > 0));
    let receipt = &events[0]["receipt"];
    assert_eq!(receipt["address_family"], "unix");
    assert_eq!(receipt["peer_pid"], server.pid());
    assert_eq!(receipt["tls_version"], Value::Null);
    assert_eq!(receipt["compression"], Value::Null);
    assert_eq!(
        number(&events[0]["prepared_statements"]),
        CONNECTIONS * (5 * 2 + 2)
    );
}

/// A transaction reads the same rows in each mode and with each kind of client work: 10 points, 1 sum and three ranges of 100.
fn all_modes_read_the_same_rows(server: &Server) {
    for work in ["skip", "touch", "decode"] {
        for mode in ["auto", "disable"] {
            let workload = json!({"db_ps_mode": mode, "distribution": {"kind": "gaussian"}});
            let mut job = load(server, &workload, 2);
            job["client_work"] = work.into();
            let events = success(&job);
            let finished = events.last().expect("the engine writes events");
            assert_eq!(
                events[0]["receipt"]["protocol_mode"],
                if mode == "auto" { "prepared" } else { "text" }
            );
            // The ids are near the middle of the table: no range passes its end, and every c is distinct.
            assert_eq!(
                number(&finished["rows"]),
                311 * number(&finished["transactions"]),
                "{work} {mode}"
            );
        }
    }
}

/// With one connection, the log's first statements are the same over a socket and over TCP if the seed is the same, and differ if not.
fn the_log_shows_the_same_statements(server: &Server) {
    let read_log = |seed: u64, is_tcp: bool| {
        server.query(
            "SET GLOBAL log_output='TABLE'; TRUNCATE mysql.general_log; SET GLOBAL general_log=1",
        );
        let mut job = load(server, &json!({"db_ps_mode": "disable"}), 1);
        job["seed"] = seed.into();
        // A log in a table is slow: on a busy machine the usual window has only 42 statements.
        job["measure_ns"] = 1_500_000_000.into();
        if is_tcp {
            job["target"] = json!({"kind": "tcp", "host": "127.0.0.1", "port": server.port()});
        }
        success(&job);
        server.query("SET GLOBAL general_log=0");
        server.query(
            "SELECT argument FROM mysql.general_log WHERE argument LIKE 'SELECT%sbtest%' OR argument IN ('BEGIN','COMMIT') \
             ORDER BY event_time LIMIT 32",
        )
    };
    let statements = read_log(5, false);
    assert_eq!(statements.lines().count(), 32, "{statements}");
    assert_eq!(statements, read_log(5, true));
    assert_ne!(statements, read_log(6, false));
}

fn a_load_over_tcp_has_the_expected_bytes(server: &Server) {
    let mut job = load(
        server,
        &json!({"skip_trx": true, "range_selects": false}),
        2,
    );
    job["target"] = json!({"kind": "tcp", "host": "127.0.0.1", "port": server.port()});
    let events = success(&job);
    let receipt = &events[0]["receipt"];
    assert_eq!(receipt["address_family"], "inet");
    assert_eq!(
        receipt["peer_address"],
        format!("127.0.0.1:{}", server.port())
    );
    assert_eq!(
        (&receipt["peer_pid"], &receipt["tcp_nodelay"]),
        (&Value::Null, &json!(true))
    );
    assert!(number(&receipt["tcp_mss"]) > 500);
    let finished = events.last().expect("the engine writes events");
    assert_eq!(
        number(&finished["queries"]),
        10 * number(&finished["transactions"])
    );
    // A statement has 24 bytes once the server knows the types; the additional bytes of first executions are a small share.
    assert_close(
        number(&finished["bytes"]["to_server"]),
        24 * number(&finished["queries"]),
        0.02,
        "bytes of point selects",
    );
}

fn many_connections_are_opened_and_closed(server: &Server) {
    let before = number(&server.counters()["Aborted_clients"]);
    let mut job = load(
        server,
        &json!({"skip_trx": true, "range_selects": false}),
        300,
    );
    // A transaction takes the time of 3000 queries of all connections: seconds if other tests are running.
    job["measure_ns"] = 3_000_000_000_u64.into();
    let events = success(&job);
    assert_eq!(number(&events[0]["connections"]), 300);
    assert!(number(&events.last().expect("the engine writes events")["transactions"]) > 0);
    server.wait_until_alone();
    assert_eq!(
        number(&server.counters()["Aborted_clients"]),
        before,
        "every session ends with a quit"
    );
}
