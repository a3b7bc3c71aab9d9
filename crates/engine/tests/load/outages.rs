//! Tests a load on a real MariaDB that pauses, crashes, restarts, is too slow, or ends sessions: an open loop shows the full effect, and
//! accounts for every request.
//!
//! Skipped, with a message, if no mariadbd is installed.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::mariadb::Server;
use crate::peak::start_engine;
use crate::process::{job, number, success};

const CONNECTIONS: u64 = 4;
const SECOND: u64 = 1_000_000_000;

/// A running engine.
struct RunningEngine {
    engine: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl RunningEngine {
    fn start(job: &Value) -> Self {
        let mut engine = start_engine(job);
        let stdout = engine.stdout.take().expect("stdout is a pipe");
        let mut running = Self {
            engine,
            lines: BufReader::new(stdout).lines(),
        };
        running.wait_for("measuring");
        running
    }

    /// The next event; `None` when the engine has ended.
    fn next_event(&mut self) -> Option<Value> {
        let line = self.lines.next()?.expect("events are UTF-8");
        Some(serde_json::from_str(&line).expect("events are JSON lines"))
    }

    /// Wait for the event of this name.
    fn wait_for(&mut self, name: &str) -> Value {
        loop {
            let event = self.next_event().expect("the engine is running");
            assert_ne!(event["event"], "failed", "{event}");
            if event["event"] == name {
                return event;
            }
        }
    }

    fn is_alive(&mut self) -> bool {
        self.engine
            .try_wait()
            .expect("the engine is a child process")
            .is_none()
    }

    /// Wait for the end; returns all remaining events.
    fn finish(mut self) -> Vec<Value> {
        let events: Vec<Value> = std::iter::from_fn(|| self.next_event()).collect();
        self.engine.wait().expect("the engine is a child process");
        events
    }
}

/// A load of point selects, one per transaction. With a `rate_per_s` of 0 it is a closed loop.
fn load(server: &Server, rate_per_s: f64, seconds: u64) -> Value {
    let mut job = job(&server.socket());
    job["user"] = "root".into();
    job["password"] = "".into();
    job["database"] = "sbtest".into();
    job["connections"] = CONNECTIONS.into();
    job["workload"] = json!({"kind": "oltp_point_select", "tables": 1, "table_size": 100});
    job["measure_ns"] = (seconds * SECOND).into();
    job["interval_ns"] = (SECOND / 2).into();
    job["connect_timeout_ns"] = (60 * SECOND).into();
    job["stall_timeout_ns"] = (60 * SECOND).into();
    if rate_per_s > 0.0 {
        job["arrivals"] = json!({"rate_per_s": rate_per_s});
    }
    job
}

/// Check that each due request is answered, unanswered or failed; returns the last event.
fn check_account(events: &[Value]) -> &Value {
    let finished = events.last().expect("the engine writes events");
    assert_eq!(finished["event"], "finished", "{finished}");
    if let account @ Value::Object(_) = &finished["open_loop"] {
        let outcomes = ["answered", "unanswered", "failed"].map(|name| number(&account[name]));
        assert_eq!(
            number(&account["due"]),
            outcomes.iter().sum::<u64>(),
            "{account}"
        );
        assert_eq!(outcomes[0], number(&finished["transactions"]), "{account}");
    }
    finished
}

/// Median, 95th and 99th percentile and maximum of the latencies of one kind, in ns.
fn latency_quantiles(finished: &Value, kind: &str) -> [u64; 4] {
    let histograms = finished["histograms"]
        .as_array()
        .expect("the field is a list");
    let histogram = histograms
        .iter()
        .find(|histogram| histogram["kind"] == kind);
    let histogram = histogram.unwrap_or_else(|| panic!("{kind} has a histogram"));
    ["p50_ns", "p95_ns", "p99_ns", "max_ns"].map(|name| number(&histogram[name]))
}

#[test]
fn latencies_show_the_full_effect_of_outages() {
    let Some(server) = Server::start(1, 100) else {
        return;
    };
    a_pause_delays_all_due_requests(&server);
    overload_builds_a_backlog(&server);
    killed_sessions_are_opened_again(&server);
}

#[test]
fn a_crash_ends_the_load_or_is_survived() {
    let Some(mut server) = Server::start(1, 100) else {
        return;
    };
    for rate in [200.0, 0.0] {
        a_crash_ends_the_load(&mut server, rate);
        a_crash_is_survived_by_reconnecting(&mut server, rate);
        a_server_that_stays_down_is_reported(&mut server, rate);
    }
}

/// 100 requests per second are due for 6 s, and the server is stopped for 2 s of them. Arrivals are uniform, so the share that waits
/// longer than `x` is (2 - x)/6, and a little more because of the queue after the pause: 5 % wait longer than 1.7 s, 1 % longer than
/// 1.94 s, and more than half are due outside of the pause. Of 600 requests 1 % is 6 with a standard deviation of 2.4; a request is
/// 0.01 s of pause, so 0.3 s of tolerance suffice.
fn a_pause_delays_all_due_requests(server: &Server) {
    let running = RunningEngine::start(&load(server, 100.0, 6));
    let pid = Pid::from_raw(server.pid() as i32).expect("the id is not zero");
    thread::sleep(Duration::from_secs(2));
    kill_process(pid, Signal::STOP).expect("the server is a child process");
    let stop_time = Instant::now();
    thread::sleep(Duration::from_secs(2));
    let pause_ns = stop_time.elapsed().as_nanos() as u64;
    kill_process(pid, Signal::CONT).expect("the server is a child process");
    let events = running.finish();
    let finished = check_account(&events);
    let [p50, p95, p99, max] = latency_quantiles(finished, "transaction");
    let [_, service_p95, _, service_max] = latency_quantiles(finished, "service");
    let figures = format!("{p50} {p95} {p99} {max}, service {service_p95} {service_max}");
    assert!(max >= pause_ns - SECOND / 10, "{figures}");
    assert!(p99 >= pause_ns - SECOND * 4 / 10, "{figures}");
    assert!(p95 >= pause_ns - SECOND * 7 / 10, "{figures}");
    assert!(p50 < SECOND, "{figures}");
    // The server had one request of each connection; the others waited for a connection, which does not count as service time.
    assert!(service_max >= pause_ns - SECOND / 2, "{figures}");
    assert!(service_p95 < SECOND, "{figures}");
    assert!(
        number(&finished["open_loop"]["backlog_max"]) > 100,
        "{finished}"
    );
}

/// For time T, requests are due at three times the maximum rate: a request due at u is answered at 3u, or not at all. The share that
/// waits longer than x is 1 - 1.5 x/T, so half wait longer than T/3. Each request sleeps in the server, so no machine serves more.
fn overload_builds_a_backlog(server: &Server) {
    const SLEEP_MS: u64 = 10;
    const SECONDS: u64 = 3;
    let max_rate_per_s = CONNECTIONS * 1000 / SLEEP_MS;
    let mut job = load(server, 3.0 * max_rate_per_s as f64, SECONDS);
    job["workload"] = json!({
        "kind": "custom", "db_ps_mode": "disable",
        "statements": [{"name": "sleep", "sql": format!("SELECT SLEEP({})", SLEEP_MS as f64 / 1e3)}],
        "transactions": [{"name": "sleep", "steps": [{"statement": "sleep"}]}],
    });
    let events = success(&job);
    let finished = check_account(&events);
    let account = &finished["open_loop"];
    let (due, answered) = (number(&account["due"]), number(&account["answered"]));
    // Arrivals are Poisson: the standard deviation is the root of the mean.
    let expected = (3 * max_rate_per_s * SECONDS) as f64;
    assert!(
        (due as f64 - expected).abs() < 6.0 * expected.sqrt() + 1.0,
        "{due} due of {expected}"
    );
    assert!(
        answered <= max_rate_per_s * SECONDS + CONNECTIONS,
        "the server answers at most its maximum: {account}"
    );
    let backlog: Vec<u64> = events
        .iter()
        .filter(|event| event["event"] == "interval")
        .map(|interval| number(&interval["backlog"]))
        .collect();
    assert!(backlog.is_sorted(), "the backlog only grows: {backlog:?}");
    // Besides the queue, each connection may have one request in progress.
    let unanswered = number(&account["unanswered"]);
    assert!(
        unanswered - backlog[backlog.len() - 1] <= CONNECTIONS,
        "{account} {backlog:?}"
    );
    let ([p50, ..], [service, ..]) = (
        latency_quantiles(finished, "transaction"),
        latency_quantiles(finished, "service"),
    );
    assert!(
        p50 > SECOND / 2 && p50 > 10 * service,
        "{p50} against {service}"
    );
}

fn killed_sessions_are_opened_again(server: &Server) {
    let mut job = load(server, 500.0, 6);
    job["session"] = json!({"on_disconnect": "reconnect"});
    let mut running = RunningEngine::start(&job);
    let (mut killed, mut reopened) = (HashSet::new(), 0);
    // A killed session is still listed until it has ended.
    let find_live_sessions = |killed: &HashSet<String>| {
        let ids = server.query("SELECT id FROM information_schema.processlist WHERE db='sbtest'");
        let ids = ids.split_whitespace().map(str::to_owned);
        ids.filter(|id| !killed.contains(id)).collect::<Vec<_>>()
    };
    for _ in 0..6 {
        let session = find_live_sessions(&killed).pop();
        if let Some(id) = session.filter(|id| server.try_query(&format!("KILL {id}")).is_some()) {
            killed.insert(id);
            // On a busy machine the window may end before the session is opened again.
            while running.is_alive() {
                if find_live_sessions(&killed).len() as u64 == CONNECTIONS {
                    reopened += 1;
                    break;
                }
            }
        }
    }
    let events = running.finish();
    let finished = check_account(&events);
    let lost = number(&finished["reconnects"]) + number(&finished["lost"]["at_end"]);
    assert!(reopened > 0, "{finished}");
    assert!(
        (reopened..=killed.len() as u64).contains(&lost),
        "{reopened} of {killed:?}: {finished}"
    );
    assert!(number(&finished["open_loop"]["answered"]) > 0, "{finished}");
}

fn a_crash_ends_the_load(server: &mut Server, rate: f64) {
    const WINDOW_S: u64 = 12;
    let running = RunningEngine::start(&load(server, rate, WINDOW_S));
    server.crash();
    let crash_time = Instant::now();
    let events = running.finish();
    let failed = events.last().expect("the engine writes events");
    assert_eq!(failed["code"], "server_gone", "{failed}");
    assert!(
        crash_time.elapsed() < Duration::from_secs(WINDOW_S / 2),
        "the crash is reported at once"
    );
    server.restart();
}

/// An attempt is inconclusive if a worker gets no CPU time until the window is nearly over, or the server too little CPU time to restart
/// in the window. That happens by chance; an engine that does not reconnect fails every attempt.
fn a_crash_is_survived_by_reconnecting(server: &mut Server, rate: f64) {
    const ATTEMPTS: usize = 3;
    let mut job = load(server, rate, 6);
    job["session"] = json!({"on_disconnect": "reconnect"});
    let mut attempts = Vec::new();
    for _ in 0..ATTEMPTS {
        let mut running = RunningEngine::start(&job);
        running.wait_for("interval");
        server.crash();
        server.restart();
        let events = running.finish();
        let reconnects = number(&check_account(&events)["reconnects"]);
        let transactions: Vec<u64> = events
            .iter()
            .filter(|event| event["event"] == "interval")
            .map(|interval| number(&interval["transactions"]))
            .collect();
        if reconnects >= CONNECTIONS && transactions.last().is_some_and(|last| *last > 0) {
            return;
        }
        attempts.push((reconnects, transactions));
    }
    panic!("an attempt shows {CONNECTIONS} reconnects and a recovery: {attempts:?}");
}

/// The server stays down, so no connection is opened again, and the last failed attempt is reported.
fn a_server_that_stays_down_is_reported(server: &mut Server, rate: f64) {
    let mut job = load(server, rate, 4);
    job["session"] = json!({"on_disconnect": "reconnect"});
    let mut running = RunningEngine::start(&job);
    running.wait_for("interval");
    server.crash();
    let events = running.finish();
    let finished = check_account(&events);
    assert_eq!(number(&finished["reconnects"]), 0, "{finished}");
    for lost in [
        &finished["errors"]["disconnect"],
        &finished["lost"]["at_end"],
    ] {
        assert_eq!(number(lost), CONNECTIONS, "{finished}");
    }
    assert_eq!(finished["lost"]["last"]["code"], "connect", "{finished}");
    server.restart();
}
