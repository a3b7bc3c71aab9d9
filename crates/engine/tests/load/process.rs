//! Runs the engine as a process, with a job as input and events as output.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// The window of a short job.
const WINDOW_NS: u64 = 200_000_000;

/// A short job against the socket at `path`.
pub(crate) fn job(path: &str) -> Value {
    json!({
        "job": "load", "version": 2, "target": {"kind": "unix", "path": path}, "user": "u", "password": "p", "database": "d",
        "workload": {"kind": "oltp_read_only"}, "connections": 3, "seed": 1,
        "warmup_ns": 0, "measure_ns": WINDOW_NS, "interval_ns": 100_000_000,
        "connect_timeout_ns": 2_000_000_000, "stall_timeout_ns": 2_000_000_000,
    })
}

/// Whether an emulator runs the tests, in which everything takes ten to thirty times longer.
pub(crate) fn is_emulated() -> bool {
    std::env::var_os("HOWFAR_EMULATED").is_some()
}

/// Run `howfar-engine load` with this input; returns its exit code and its events.
pub(crate) fn run_load(input: &str) -> (Option<i32>, Vec<Value>) {
    run_engine("load", input)
}

/// Run the engine with a job of any kind; returns its exit code and its events.
pub(crate) fn run_engine(kind: &str, input: &str) -> (Option<i32>, Vec<Value>) {
    let mut events = Vec::new();
    let code = run_engine_with(kind, input, |event| events.push(event));
    (code, events)
}

/// Run the engine with a job of any kind, and call `on_event` with each event when it comes; returns the exit code.
pub(crate) fn run_engine_with(
    kind: &str,
    input: &str,
    mut on_event: impl FnMut(Value),
) -> Option<i32> {
    let mut engine = Command::new(Path::new(env!("CARGO_BIN_EXE_howfar-engine")))
        .arg(kind)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the engine starts");
    let mut stdin = engine.stdin.take().expect("stdin is a pipe");
    stdin
        .write_all(input.as_bytes())
        .expect("the engine reads its job");
    drop(stdin);
    let events = BufReader::new(engine.stdout.take().expect("stdout is a pipe"));
    for line in events.lines() {
        on_event(
            serde_json::from_str(&line.expect("events are UTF-8")).expect("events are JSON lines"),
        );
    }
    engine.wait().expect("the engine ends").code()
}

/// Run a job that fails, however long that takes; returns its `failed` event, after a check that the exit code agrees.
pub(crate) fn failure(job: &Value) -> Value {
    let mut job = job.clone();
    if job["measure_ns"] == json!(WINDOW_NS) {
        job["measure_ns"] = (50 * WINDOW_NS).into();
    }
    let (code, mut events) = run_load(&format!("{job}\n"));
    let last = events.pop().expect("the engine writes an event");
    assert_eq!(code, Some(1), "{last}");
    assert_eq!(last["event"], "failed", "{last}");
    assert!(!last.to_string().contains("panicked"), "{last}");
    last
}

/// Run a job that succeeds; returns all its events.
pub(crate) fn success(job: &Value) -> Vec<Value> {
    let (code, events) = run_load(&format!("{job}\n"));
    assert_eq!(code, Some(0), "{:?}", events.last());
    events
}

/// The integer in a field of an event.
pub(crate) fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is a number"))
}
