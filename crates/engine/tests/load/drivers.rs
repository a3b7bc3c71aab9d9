//! Runs scenarios under epoll and under `io_uring`, whose results must not differ.
//!
//! If the kernel or a container forbids `io_uring`, only epoll is tested, with a message.

use std::os::unix::net::UnixStream;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fake::{FakeServer, Reply, packet};
use crate::process::{failure, is_emulated, job, number, run_engine, run_load, success};

/// The drivers that are available on this machine.
pub(crate) fn drivers() -> Vec<&'static str> {
    let fake = FakeServer::new("probe", |_| Reply::Ok);
    let mut probe = job(&fake.path);
    probe["driver"] = "io_uring".into();
    probe["measure_ns"] = 1_000_000.into();
    let (code, events) = run_load(&format!("{probe}\n"));
    if code == Some(0) {
        assert_eq!(events[0]["receipt"]["driver"], "io_uring");
        return vec!["epoll", "io_uring"];
    }
    let failed = events.last().expect("the engine writes an event");
    assert_eq!(failed["code"], "interface", "{failed}");
    eprintln!("SKIPPED: {}", failed["message"]);
    vec!["epoll"]
}

/// The job as a load by eight connections over one ring; `None` if it is not a load or `io_uring` is not available.
pub(crate) fn make_ring_job(job: &Value) -> Option<Value> {
    static IS_AVAILABLE: LazyLock<bool> = LazyLock::new(|| drivers().contains(&"io_uring"));
    if job["job"] != "load" || !*IS_AVAILABLE {
        return None;
    }
    let mut job = job.clone();
    job["connections"] = 8.into();
    job["threads"] = 1.into();
    job["driver"] = "io_uring".into();
    Some(job)
}

/// Run a scenario under each driver; returns its `finished` events.
fn run_under_each_driver(job: &Value) -> Vec<Value> {
    let run = |driver: &&str| {
        let mut job = job.clone();
        job["driver"] = (*driver).into();
        let mut events = success(&job);
        assert_eq!(events[0]["receipt"]["driver"], *driver);
        events.pop().expect("the engine writes an event")
    };
    drivers().iter().map(run).collect()
}

#[test]
fn auto_chooses_the_better_driver_and_reports_it() {
    let fake = FakeServer::new("auto", |_| Reply::Ok);
    let mut job = job(&fake.path);
    job["connections"] = 1.into();
    assert_eq!(success(&job)[0]["receipt"]["driver"], "epoll");
    job["connections"] = 64.into();
    let best = *drivers().last().expect("epoll is available");
    assert_eq!(success(&job)[0]["receipt"]["driver"], best);
    job["driver"] = "kqueue".into();
    assert_eq!(failure(&job)["code"], "bad_job");
}

/// A result of one text column with `rows` rows of 200 bytes.
fn result(rows: usize) -> &'static [u8] {
    let definition = b"\x03def\0\0\0\x01a\0\x0c\x2d\0\0\x01\0\0\xfd\0\0\0\0\0";
    let end = b"\xfe\0\0\x02\0";
    let mut bytes = [packet(1, b"\x01"), packet(2, definition), packet(3, end)].concat();
    let mut row = vec![b'x'; 201];
    row[0] = 200;
    for number in 0..rows {
        bytes.extend(packet((4 + number) as u8, &row));
    }
    bytes.extend(packet((4 + rows) as u8, end));
    bytes.leak()
}

#[test]
fn replies_of_all_sizes_are_received() {
    // The replies have one small piece, about one buffer, and many more bytes than all buffers of a ring.
    for rows in [1, 80, 30_000] {
        let reply = result(rows);
        let fake = FakeServer::new(&format!("rows-{rows}"), move |_| Reply::Bytes(reply));
        let mut job = job(&fake.path);
        job["workload"] = json!({"kind": "oltp_point_select", "db_ps_mode": "disable"});
        job["transactions"] = 10.into();
        job["measure_ns"] = 10_000_000_000_u64.into();
        for finished in run_under_each_driver(&job) {
            let queries = number(&finished["queries"]);
            assert!(queries >= 10, "{finished}");
            assert_eq!(number(&finished["rows"]), queries * rows as u64);
            let bytes = number(&finished["bytes"]["to_client"]);
            assert_eq!(bytes, queries * reply.len() as u64);
        }
    }
}

#[test]
fn statements_larger_than_the_socket_buffer_are_sent_in_parts() {
    let fake = FakeServer::new("large", |_| Reply::Ok);
    let mut job = job(&fake.path);
    let sql = format!("SELECT '{}'", "y".repeat(1_000_000));
    job["workload"] = json!({
        "kind": "custom", "db_ps_mode": "disable", "statements": [{"name": "large", "sql": sql}],
        "transactions": [{"name": "one", "steps": [{"statement": "large", "repeat": 3}]}],
    });
    job["transactions"] = 20.into();
    job["measure_ns"] = 10_000_000_000_u64.into();
    for finished in run_under_each_driver(&job) {
        let queries = number(&finished["queries"]);
        assert!(queries >= 60, "{finished}");
        // Header, command and text.
        let bytes = queries * (sql.len() as u64 + 5);
        assert_eq!(number(&finished["bytes"]["to_server"]), bytes);
    }
}

#[test]
fn lost_connections_are_opened_again() {
    let fake = FakeServer::new("loses", |query| {
        if query % 30 == 0 {
            Reply::Close
        } else {
            Reply::Ok
        }
    });
    let mut job = job(&fake.path);
    job["session"] = json!({"on_disconnect": "reconnect"});
    job["connections"] = 20.into();
    // Several times the 30 queries of each connection, however long that takes.
    job["transactions"] = 200.into();
    job["measure_ns"] = 10_000_000_000_u64.into();
    for finished in run_under_each_driver(&job) {
        let reconnects = number(&finished["reconnects"]);
        assert!(reconnects > 0, "{finished}");
        let lost_at_end = number(&finished["lost"]["at_end"]);
        assert_eq!(
            number(&finished["errors"]["disconnect"]),
            reconnects + lost_at_end
        );
        assert_eq!(finished["lost"]["last"]["code"], "server_gone");
        assert!(number(&finished["transactions"]) > 0, "{finished}");
    }
}

/// The server closes half a pause after each answer: the next statement must come a full pause after the new connection.
#[test]
fn a_lost_connection_restarts_its_pause() {
    const PAUSE_NS: u64 = 50_000_000;
    const CYCLES: u64 = 8;
    let fake = FakeServer::new("interrupts", |_| {
        Reply::OkThenClose(Duration::from_nanos(PAUSE_NS / 2))
    });
    let mut job = job(&fake.path);
    job["session"] = json!({"on_disconnect": "reconnect"});
    job["workload"] = json!({
        "kind": "custom", "db_ps_mode": "disable", "statements": [{"name": "one", "sql": "SELECT 1"}],
        "transactions": [{"name": "one", "steps": [{"statement": "one", "think_ns": PAUSE_NS}]}],
    });
    job["measure_ns"] = (CYCLES * PAUSE_NS * 3 / 2).into();
    for finished in run_under_each_driver(&job) {
        let queries = number(&finished["queries"]);
        assert!((1..=3 * (CYCLES + 1)).contains(&queries), "{finished}");
    }
}

/// One of two connections has finished its work and is opened again, while the other still waits for its answer.
#[test]
fn a_finished_connection_is_counted_once() {
    let queries = AtomicU32::new(0);
    let fake = FakeServer::new("finished", move |_| {
        if queries.fetch_add(1, Ordering::Relaxed) % 2 == 0 {
            Reply::DelayedOk(Duration::from_millis(300))
        } else {
            Reply::OkThenClose(Duration::ZERO)
        }
    });
    let mut job = job(&fake.path);
    job["session"] = json!({"on_disconnect": "reconnect"});
    job["workload"] = json!({
        "kind": "custom", "db_ps_mode": "disable", "statements": [{"name": "one", "sql": "SELECT 1"}],
        "transactions": [{"name": "one", "steps": [{"statement": "one"}]}],
    });
    (job["connections"], job["threads"], job["transactions"]) = (2.into(), 1.into(), 2.into());
    job["measure_ns"] = 10_000_000_000_u64.into();
    for finished in run_under_each_driver(&job) {
        assert_eq!(number(&finished["transactions"]), 2, "{finished}");
    }
}

/// The eleventh connection and later ones are accepted but get no greeting, which ends the window as a lost connection does.
#[test]
fn a_login_that_hangs_ends_the_window() {
    let accepted = AtomicU32::new(0);
    let silent_connections = std::sync::Mutex::new(Vec::new());
    let server = FakeServer::new("server", |_| Reply::Ok);
    let server_path = server.path.clone();
    let proxy = FakeServer::listening("hangs", move |stream| {
        if accepted.fetch_add(1, Ordering::Relaxed) % 20 < 10 {
            forward(&stream, &server_path);
        } else {
            let mut connections = silent_connections.lock().expect("no thread panicked");
            connections.push(stream);
        }
    });
    let mut job = job(&proxy.path);
    job["session"] = json!({"connect": "per_transaction", "on_disconnect": "end"});
    job["connections"] = 1.into();
    job["connect_timeout_ns"] = 300_000_000.into();
    job["measure_ns"] = 10_000_000_000_u64.into();
    let mut events = success(&job);
    let finished = events.pop().expect("the engine writes an event");
    assert!(number(&finished["transactions"]) > 0, "{finished}");
    assert!(
        number(&finished["elapsed_ns"]) < 9_000_000_000,
        "{finished}"
    );
}

/// Forward both directions between `client` and a new connection to the server at `server_path`.
fn forward(client: &UnixStream, server_path: &str) {
    let server = UnixStream::connect(server_path).expect("the server listens");
    let directions = [(client, &server), (&server, client)].map(|(source, destination)| {
        let clone = |stream: &UnixStream| stream.try_clone().expect("a descriptor is free");
        (clone(source), clone(destination))
    });
    for (mut source, mut destination) in directions {
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut source, &mut destination);
            let _ = destination.shutdown(std::net::Shutdown::Write);
        });
    }
}

#[test]
fn connections_can_be_opened_for_each_transaction() {
    let fake = FakeServer::new("per-transaction", |_| Reply::Ok);
    for session in [
        json!({"connect": "per_transaction"}),
        json!({"reconnect_after": 2}),
    ] {
        let mut job = job(&fake.path);
        job["session"] = session;
        job["connections"] = 10.into();
        job["transactions"] = 200.into();
        job["measure_ns"] = 10_000_000_000_u64.into();
        for finished in run_under_each_driver(&job) {
            assert!(number(&finished["transactions"]) >= 200, "{finished}");
            assert_eq!(finished["errors"], json!({}), "{finished}");
        }
    }
}

#[test]
fn an_open_loop_accounts_for_all_due_requests() {
    let fake = FakeServer::new("open", |_| Reply::Ok);
    let mut job = job(&fake.path);
    job["workload"] = json!({"kind": "oltp_point_select"});
    job["arrivals"] = json!({"rate_per_s": 2000.0});
    job["connections"] = 16.into();
    for finished in run_under_each_driver(&job) {
        let account = &finished["open_loop"];
        let due = number(&account["due"]);
        assert!((300..500).contains(&due), "{account}");
        let answered = number(&account["answered"]);
        assert_eq!(answered + number(&account["unanswered"]), due, "{account}");
        assert!(answered > 0, "{account}");
    }
}

/// Each of eight connections is used every two seconds: an idle connection does not stall.
#[test]
fn an_idle_connection_does_not_stall() {
    let fake = FakeServer::new("slow", |_| Reply::Ok);
    let mut job = job(&fake.path);
    job["workload"] = json!({"kind": "oltp_point_select"});
    job["arrivals"] = json!({"rate_per_s": 4.0, "shape": "constant"});
    job["connections"] = 8.into();
    job["stall_timeout_ns"] = 1_000_000_000.into();
    job["measure_ns"] = 2_000_000_000_u64.into();
    for finished in run_under_each_driver(&job) {
        assert!(number(&finished["transactions"]) > 0, "{finished}");
    }
}

/// When the load is over, connections that await no answer are closed at once; the others get up to 2 s. A busy machine may sometimes
/// need a second; an engine that waits needs it each time.
#[test]
fn connections_that_await_no_answer_are_closed_at_once() {
    if is_emulated() {
        eprintln!("SKIPPED: in an emulator the engine's start alone takes a second");
        return;
    }
    let fake = FakeServer::new("leaves", |_| Reply::Ok);
    let mut closed_loop = job(&fake.path);
    closed_loop["transactions"] = 20.into();
    closed_loop["measure_ns"] = 10_000_000_000_u64.into();
    let mut open_loop = job(&fake.path);
    open_loop["arrivals"] = json!({"rate_per_s": 100.0});
    for job in [closed_loop, open_loop] {
        let durations: Vec<Duration> = (0..3)
            .map(|_| {
                let start = Instant::now();
                success(&job);
                start.elapsed()
            })
            .collect();
        let shortest = durations.iter().min().expect("there are three");
        assert!(*shortest < Duration::from_millis(1500), "{durations:?}");
    }
}

/// A bare loop reports no results, so the server counts. Eight connections use a ring, a single connection does not.
#[test]
fn a_bare_loop_sends_queries_until_its_window_is_over() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    let max_query = Arc::new(AtomicUsize::new(0));
    let server_max_query = Arc::clone(&max_query);
    let fake = FakeServer::new("bare", move |query| {
        server_max_query.fetch_max(query, Ordering::Relaxed);
        Reply::Ok
    });
    let mut job = job(&fake.path);
    for connections in [1, 8] {
        if connections > 1 && drivers().len() < 2 {
            continue;
        }
        max_query.store(0, Ordering::Relaxed);
        job["connections"] = connections.into();
        let (code, events) = run_engine("bare", &format!("{job}\n"));
        assert_eq!((code, events.len()), (Some(0), 1), "{events:?}");
        assert_eq!(events[0]["connections"], connections);
        let queries = max_query.load(Ordering::Relaxed);
        assert!(queries > 20, "{queries} by {connections}");
    }
}

#[test]
fn a_bare_loop_ends_with_its_server() {
    for connections in [1, 8] {
        if connections > 1 && drivers().len() < 2 {
            continue;
        }
        for last_reply in [
            || Reply::Close,
            || Reply::Silence,
            || Reply::Error(1146, "no table"),
        ] {
            let fake = FakeServer::new("bare-ends", move |query| {
                if query > 20 { last_reply() } else { Reply::Ok }
            });
            let mut job = job(&fake.path);
            job["connections"] = connections.into();
            job["measure_ns"] = 60_000_000_000_u64.into();
            job["stall_timeout_ns"] = 300_000_000.into();
            let (code, events) = run_engine("bare", &format!("{job}\n"));
            let last = events.last().expect("the engine writes an event");
            assert_eq!(code, Some(1), "{last}");
            assert_eq!(last["event"], "failed", "{last}");
        }
    }
}
