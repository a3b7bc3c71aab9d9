//! Scenarios under epoll and under `io_uring`: what differs inside must not be seen outside.
//!
//! Where the kernel or a container forbids `io_uring` only epoll is tested, with a line that says so.

use std::os::unix::net::UnixStream;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fake::{Fake, Reply, packet};
use crate::process::{engine_for, engine_on, failure, job, success};

/// The drivers that are available on this machine.
pub(crate) fn drivers() -> Vec<&'static str> {
    let fake = Fake::new("probe", |_| Reply::Ok);
    let mut probe = job(&fake.path);
    probe["driver"] = "io_uring".into();
    probe["measure_ns"] = 1_000_000.into();
    let (code, events) = engine_on(&format!("{probe}\n"));
    if code == Some(0) {
        assert_eq!(events[0]["receipt"]["driver"], "io_uring");
        return vec!["epoll", "io_uring"];
    }
    let failed = events.last().expect("an event");
    assert_eq!(failed["code"], "interface", "{failed}");
    eprintln!("SKIPPED: {}", failed["message"]);
    vec!["epoll"]
}

/// The job as a load by eight connections over one ring; `None` if it is not a load or `io_uring` is not available here.
pub(crate) fn over_a_ring(job: &Value) -> Option<Value> {
    static CAN: LazyLock<bool> = LazyLock::new(|| drivers().contains(&"io_uring"));
    if job["job"] != "load" || !*CAN {
        return None;
    }
    let mut job = job.clone();
    job["connections"] = 8.into();
    job["threads"] = 1.into();
    job["driver"] = "io_uring".into();
    Some(job)
}

/// Run a scenario under each driver; returns its `finished` events.
fn under_each(job: &Value) -> Vec<Value> {
    let under = |driver: &&str| {
        let mut job = job.clone();
        job["driver"] = (*driver).into();
        let mut events = success(&job);
        assert_eq!(events[0]["receipt"]["driver"], *driver);
        events.pop().expect("an event")
    };
    drivers().iter().map(under).collect()
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is a number"))
}

#[test]
fn auto_takes_what_pays_and_says_what_it_took() {
    let fake = Fake::new("auto", |_| Reply::Ok);
    let mut job = job(&fake.path);
    job["connections"] = 1.into();
    assert_eq!(success(&job)[0]["receipt"]["driver"], "epoll");
    job["connections"] = 64.into();
    let best = *drivers().last().expect("epoll at least");
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
fn replies_of_all_sizes_come_whole() {
    // Replies of one small piece, of about one buffer, and of many more bytes than all buffers of a ring hold.
    for rows in [1, 80, 30_000] {
        let reply = result(rows);
        let fake = Fake::new(&format!("rows-{rows}"), move |_| Reply::Bytes(reply));
        let mut job = job(&fake.path);
        job["workload"] = json!({"kind": "oltp_point_select", "db_ps_mode": "disable"});
        job["transactions"] = 10.into();
        job["measure_ns"] = 10_000_000_000_u64.into();
        for finished in under_each(&job) {
            let queries = number(&finished["queries"]);
            assert!(queries >= 10, "{finished}");
            assert_eq!(number(&finished["rows"]), queries * rows as u64);
            let bytes = number(&finished["bytes"]["to_client"]);
            assert_eq!(bytes, queries * reply.len() as u64);
        }
    }
}

#[test]
fn statements_larger_than_a_socket_takes_go_out_in_parts() {
    let fake = Fake::new("large", |_| Reply::Ok);
    let mut job = job(&fake.path);
    let sql = format!("SELECT '{}'", "y".repeat(1_000_000));
    job["workload"] = json!({
        "kind": "custom", "db_ps_mode": "disable", "statements": [{"name": "large", "sql": sql}],
        "transactions": [{"name": "one", "steps": [{"statement": "large", "repeat": 3}]}],
    });
    job["transactions"] = 20.into();
    job["measure_ns"] = 10_000_000_000_u64.into();
    for finished in under_each(&job) {
        let queries = number(&finished["queries"]);
        assert!(queries >= 60, "{finished}");
        // Header, command and text.
        let bytes = queries * (sql.len() as u64 + 5);
        assert_eq!(number(&finished["bytes"]["to_server"]), bytes);
    }
}

#[test]
fn lost_connections_come_again() {
    let fake = Fake::new("loses", |query| {
        if query % 30 == 0 {
            Reply::Close
        } else {
            Reply::Ok
        }
    });
    let mut job = job(&fake.path);
    job["session"] = json!({"on_disconnect": "reconnect"});
    job["connections"] = 20.into();
    for finished in under_each(&job) {
        let reconnects = number(&finished["reconnects"]);
        assert!(reconnects > 0, "{finished}");
        let away = number(&finished["lost"]["at_end"]);
        assert_eq!(number(&finished["errors"]["disconnect"]), reconnects + away);
        assert_eq!(finished["lost"]["last"]["code"], "server_gone");
        assert!(number(&finished["transactions"]) > 0, "{finished}");
    }
}

/// The server closes half a pause after each answer: the next statement must come a full pause after the new connection.
#[test]
fn a_pause_that_a_loss_interrupts_begins_anew() {
    const PAUSE_NS: u64 = 50_000_000;
    const CYCLES: u64 = 8;
    let fake = Fake::new("interrupts", |_| {
        Reply::Last(Duration::from_nanos(PAUSE_NS / 2))
    });
    let mut job = job(&fake.path);
    job["session"] = json!({"on_disconnect": "reconnect"});
    job["workload"] = json!({
        "kind": "custom", "db_ps_mode": "disable", "statements": [{"name": "one", "sql": "SELECT 1"}],
        "transactions": [{"name": "one", "steps": [{"statement": "one", "think_ns": PAUSE_NS}]}],
    });
    job["measure_ns"] = (CYCLES * PAUSE_NS * 3 / 2).into();
    for finished in under_each(&job) {
        let queries = number(&finished["queries"]);
        assert!((1..=3 * (CYCLES + 1)).contains(&queries), "{finished}");
    }
}

/// One of two connections has ended its work and is opened again, while the other one still waits for its answer.
#[test]
fn a_connection_at_rest_is_counted_once() {
    let asked = AtomicU32::new(0);
    let fake = Fake::new("rests", move |_| {
        if asked.fetch_add(1, Ordering::Relaxed) % 2 == 0 {
            Reply::Slow(Duration::from_millis(300))
        } else {
            Reply::Last(Duration::ZERO)
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
    for finished in under_each(&job) {
        assert_eq!(number(&finished["transactions"]), 2, "{finished}");
    }
}

/// The eleventh connection and those after it are accepted but never greeted: that ends the window as a lost connection does.
#[test]
fn a_login_that_hangs_ends_the_window() {
    let accepted = AtomicU32::new(0);
    let held = std::sync::Mutex::new(Vec::new());
    let fake = Fake::new("served", |_| Reply::Ok);
    let served = fake.path.clone();
    let front = Fake::listening("hangs", move |stream| {
        if accepted.fetch_add(1, Ordering::Relaxed) % 20 < 10 {
            join(&stream, &served);
        } else {
            held.lock().expect("no one panics").push(stream);
        }
    });
    let mut job = job(&front.path);
    job["session"] = json!({"connect": "per_transaction", "on_disconnect": "end"});
    job["connections"] = 1.into();
    job["connect_timeout_ns"] = 300_000_000.into();
    job["measure_ns"] = 10_000_000_000_u64.into();
    let mut events = success(&job);
    let finished = events.pop().expect("an event");
    assert!(number(&finished["transactions"]) > 0, "{finished}");
    assert!(
        number(&finished["elapsed_ns"]) < 9_000_000_000,
        "{finished}"
    );
}

/// Pass on both directions between `near` and a new connection to `served`.
fn join(near: &UnixStream, served: &str) {
    let far = UnixStream::connect(served).expect("the server listens");
    let ends = [(near, &far), (&far, near)].map(|(from, to)| {
        let clone = |end: &UnixStream| end.try_clone().expect("a descriptor");
        (clone(from), clone(to))
    });
    for (mut from, mut to) in ends {
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(std::net::Shutdown::Write);
        });
    }
}

#[test]
fn connections_come_and_go_with_each_transaction() {
    let fake = Fake::new("per-transaction", |_| Reply::Ok);
    for session in [
        json!({"connect": "per_transaction"}),
        json!({"reconnect_after": 2}),
    ] {
        let mut job = job(&fake.path);
        job["session"] = session;
        job["connections"] = 10.into();
        job["transactions"] = 200.into();
        job["measure_ns"] = 10_000_000_000_u64.into();
        for finished in under_each(&job) {
            assert!(number(&finished["transactions"]) >= 200, "{finished}");
            assert_eq!(finished["errors"], json!({}), "{finished}");
        }
    }
}

#[test]
fn an_open_loop_accounts_for_all_that_is_due() {
    let fake = Fake::new("open", |_| Reply::Ok);
    let mut job = job(&fake.path);
    job["workload"] = json!({"kind": "oltp_point_select"});
    job["arrivals"] = json!({"rate_per_s": 2000.0});
    job["connections"] = 16.into();
    for finished in under_each(&job) {
        let account = &finished["open_loop"];
        let due = number(&account["due"]);
        assert!((300..500).contains(&due), "{account}");
        let answered = number(&account["answered"]);
        assert_eq!(answered + number(&account["unanswered"]), due, "{account}");
        assert!(answered > 0, "{account}");
    }
}

/// Each of eight connections is used every two seconds: nothing stalls while nothing is requested.
#[test]
fn a_connection_that_is_free_does_not_stall() {
    let fake = Fake::new("slow", |_| Reply::Ok);
    let mut job = job(&fake.path);
    job["workload"] = json!({"kind": "oltp_point_select"});
    job["arrivals"] = json!({"rate_per_s": 4.0, "shape": "constant"});
    job["connections"] = 8.into();
    job["stall_timeout_ns"] = 1_000_000_000.into();
    job["measure_ns"] = 2_000_000_000_u64.into();
    for finished in under_each(&job) {
        assert!(number(&finished["transactions"]) > 0, "{finished}");
    }
}

/// Connections that await no answer are closed at once when the load is over; those that do get up to 2 s. A busy machine may need a
/// second now and then; an engine that waits needs it each time.
#[test]
fn nobody_is_waited_for_who_waits_for_nothing() {
    let fake = Fake::new("leaves", |_| Reply::Ok);
    let mut counted = job(&fake.path);
    counted["transactions"] = 20.into();
    counted["measure_ns"] = 10_000_000_000_u64.into();
    let mut at_a_rate = job(&fake.path);
    at_a_rate["arrivals"] = json!({"rate_per_s": 100.0});
    for job in [counted, at_a_rate] {
        let took: Vec<Duration> = (0..3)
            .map(|_| {
                let began = Instant::now();
                success(&job);
                began.elapsed()
            })
            .collect();
        let least = took.iter().min().expect("three");
        assert!(*least < Duration::from_millis(1500), "{took:?}");
    }
}

/// A bare loop has no results, so the server counts. Eight connections use a ring, a single one does not.
#[test]
fn a_bare_loop_moves_bytes_until_its_window_is_over() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    let most = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&most);
    let fake = Fake::new("bare", move |query| {
        seen.fetch_max(query, Ordering::Relaxed);
        Reply::Ok
    });
    let mut job = job(&fake.path);
    for connections in [1, 8] {
        if connections > 1 && drivers().len() < 2 {
            continue;
        }
        most.store(0, Ordering::Relaxed);
        job["connections"] = connections.into();
        let (code, events) = engine_for("bare", &format!("{job}\n"));
        assert_eq!((code, events.len()), (Some(0), 1), "{events:?}");
        assert_eq!(events[0]["connections"], connections);
        let asked = most.load(Ordering::Relaxed);
        assert!(asked > 20, "{asked} by {connections}");
    }
}

#[test]
fn a_bare_loop_ends_with_its_server() {
    for connections in [1, 8] {
        if connections > 1 && drivers().len() < 2 {
            continue;
        }
        for then in [
            || Reply::Close,
            || Reply::Silence,
            || Reply::Error(1146, "no table"),
        ] {
            let fake = Fake::new(
                "bare-ends",
                move |query| if query > 20 { then() } else { Reply::Ok },
            );
            let mut job = job(&fake.path);
            job["connections"] = connections.into();
            job["measure_ns"] = 60_000_000_000_u64.into();
            job["stall_timeout_ns"] = 300_000_000.into();
            let (code, events) = engine_for("bare", &format!("{job}\n"));
            let last = events.last().expect("an event");
            assert_eq!(code, Some(1), "{last}");
            assert_eq!(last["event"], "failed", "{last}");
        }
    }
}
