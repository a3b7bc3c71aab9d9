//! The engine against a real MariaDB: bytes as the server counts them, the same transactions on every path and in every mode.
//!
//! Skipped, with a line that says so, where no mariadbd is installed.

use serde_json::{Value, json};

use crate::mariadb::Server;
use crate::process::{job, success};

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
    for (name, value) in workload.as_object().expect("an object") {
        job["workload"][name] = value.clone();
    }
    job["observe"] = json!([{"role": "server", "pid": server.pid()}]);
    job
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is a number"))
}

/// Check that `ours / theirs` differs from 1 by less than `within`.
fn close(ours: u64, theirs: u64, within: f64, what: &str) {
    assert!(
        (ours as f64 / theirs as f64 - 1.0).abs() < within,
        "{what}: {ours} here, {theirs} there"
    );
}

#[test]
fn the_engine_and_mariadb_agree() {
    let Some(server) = Server::start(TABLES, ROWS) else {
        return;
    };
    counts_are_the_servers(&server);
    all_modes_read_the_same(&server);
    the_log_shows_the_same_statements(&server);
    tcp_is_tcp(&server);
    many_connections_come_and_go(&server);
}

/// What the server counted while one job ran, and the engine's events of that job.
struct Counted {
    events: Vec<Value>,
    received: u64,
    sent: u64,
    executed: u64,
}

fn counted(server: &Server, measure_ns: u64) -> Counted {
    let before = server.counters();
    let mut job = load(server, &json!({}), CONNECTIONS);
    job["measure_ns"] = measure_ns.into();
    let events = success(&job);
    let after = server.counters();
    let since = |counter: &str| number(&after[counter]) - number(&before[counter]);
    Counted {
        events,
        received: since("Bytes_received"),
        sent: since("Bytes_sent"),
        executed: since("Com_stmt_execute"),
    }
}

/// Compares a short job and a long one: logins, prepares and queries of the counters cost the server the same in both, so they cancel.
fn counts_are_the_servers(server: &Server) {
    let short = counted(server, 1_000_000);
    let long = counted(server, 500_000_000);
    let finished = long.events.last().expect("events");
    assert_eq!(finished["event"], "finished");
    let transactions = number(&finished["transactions"]);
    assert!(transactions > 0);
    assert_eq!(number(&finished["queries"]), 16 * transactions);
    assert_eq!(number(&finished["turns"]), 16 * transactions);
    let ours = |direction: &str| number(&finished["bytes"][direction]) / transactions;
    let executed = long.executed - short.executed;
    let up = (long.received - short.received) * 16 / executed;
    let down = (long.sent - short.sent) * 16 / executed;
    // Each connection has a transaction under way at both edges, which weighs more the fewer a busy machine completes.
    let within = 0.05 + CONNECTIONS as f64 / transactions as f64;
    close(ours("to_server"), up, within, "bytes to the server");
    close(ours("to_client"), down, within, "bytes to the client");
    the_rest_of_the_outcome_is_there(server, &long.events, transactions);
}

fn the_rest_of_the_outcome_is_there(server: &Server, events: &[Value], transactions: u64) {
    let finished = events.last().expect("events");
    let list = |name: &str| finished[name].as_array().expect("a list").clone();
    let histograms = list("histograms");
    let of = |kind: &str, field: &str| {
        let histogram = histograms.iter().find(|one| one["kind"] == kind);
        number(&histogram.unwrap_or_else(|| panic!("{kind} has a histogram"))[field])
    };
    assert_eq!(of("transaction", "count"), transactions);
    let points = of("point_select", "count");
    assert!(
        points.abs_diff(10 * transactions) <= 10 * CONNECTIONS,
        "point selects: {points} in {transactions} transactions"
    );
    assert!(of("begin", "p50_ns") < of("transaction", "p50_ns"));
    let roles: Vec<Value> = list("cpu").iter().map(|one| one["role"].clone()).collect();
    assert_eq!(roles, ["client", "server"]);
    assert!(list("cpu").iter().all(|one| number(&one["cpu_ns"]) > 0));
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
fn all_modes_read_the_same(server: &Server) {
    for work in ["skip", "touch", "decode"] {
        for mode in ["auto", "disable"] {
            let workload = json!({"db_ps_mode": mode, "distribution": {"kind": "gaussian"}});
            let mut job = load(server, &workload, 2);
            job["client_work"] = work.into();
            let events = success(&job);
            let finished = events.last().expect("events");
            assert_eq!(
                events[0]["receipt"]["protocol_mode"],
                if mode == "auto" { "prepared" } else { "text" }
            );
            // Ids around the middle of the table: no range runs past its end, and every c is distinct.
            assert_eq!(
                number(&finished["rows"]),
                311 * number(&finished["transactions"]),
                "{work} {mode}"
            );
        }
    }
}

/// With one connection and the same seed, the log's first statements are the same by socket and by TCP; another seed changes them.
fn the_log_shows_the_same_statements(server: &Server) {
    let logged = |seed: u64, tcp: bool| {
        server.query(
            "SET GLOBAL log_output='TABLE'; TRUNCATE mysql.general_log; SET GLOBAL general_log=1",
        );
        let mut job = load(server, &json!({"db_ps_mode": "disable"}), 1);
        job["seed"] = seed.into();
        // A log in a table is slow: on a busy machine the usual window held only 42 statements.
        job["measure_ns"] = 1_500_000_000.into();
        if tcp {
            job["target"] = json!({"kind": "tcp", "host": "127.0.0.1", "port": server.port()});
        }
        success(&job);
        server.query("SET GLOBAL general_log=0");
        server.query(
            "SELECT argument FROM mysql.general_log WHERE argument LIKE 'SELECT%sbtest%' OR argument IN ('BEGIN','COMMIT') \
             ORDER BY event_time LIMIT 32",
        )
    };
    let by_socket = logged(5, false);
    assert_eq!(by_socket.lines().count(), 32, "{by_socket}");
    assert_eq!(by_socket, logged(5, true));
    assert_ne!(by_socket, logged(6, false));
}

fn tcp_is_tcp(server: &Server) {
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
    let finished = events.last().expect("events");
    assert_eq!(
        number(&finished["queries"]),
        10 * number(&finished["transactions"])
    );
    // 24 bytes to the server once it knows the types; the extra bytes of first executions are a small share.
    close(
        number(&finished["bytes"]["to_server"]),
        24 * number(&finished["queries"]),
        0.02,
        "bytes of point selects",
    );
}

fn many_connections_come_and_go(server: &Server) {
    let before = number(&server.counters()["Aborted_clients"]);
    let mut job = load(
        server,
        &json!({"skip_trx": true, "range_selects": false}),
        300,
    );
    // A transaction takes as long as 3000 queries of all connections; with other tests running, that is seconds.
    job["measure_ns"] = 3_000_000_000_u64.into();
    let events = success(&job);
    assert_eq!(number(&events[0]["connections"]), 300);
    assert!(number(&events.last().expect("events")["transactions"]) > 0);
    server.wait_until_alone();
    assert_eq!(
        number(&server.counters()["Aborted_clients"]),
        before,
        "sessions ended by a goodbye"
    );
}
