//! Runs the engine as a process: a job in, events out.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// A short job against the socket at `path`.
pub(crate) fn job(path: &str) -> Value {
    json!({
        "job": "load", "version": 2, "target": {"kind": "unix", "path": path}, "user": "u", "password": "p", "database": "d",
        "workload": {"kind": "oltp_read_only"}, "connections": 3, "seed": 1,
        "warmup_ns": 0, "measure_ns": 200_000_000, "interval_ns": 100_000_000,
        "connect_timeout_ns": 2_000_000_000, "stall_timeout_ns": 2_000_000_000,
    })
}

/// Run the engine on one line of input; returns its exit code and its events.
pub(crate) fn engine_on(input: &str) -> (Option<i32>, Vec<Value>) {
    engine_for("load", input)
}

/// Run the engine on a job of any kind; returns its exit code and its events.
pub(crate) fn engine_for(kind: &str, input: &str) -> (Option<i32>, Vec<Value>) {
    let mut events = Vec::new();
    let code = engine_telling(kind, input, |event| events.push(event));
    (code, events)
}

/// Run the engine on a job of any kind, and pass each event to `hear` as it comes; returns its exit code.
pub(crate) fn engine_telling(kind: &str, input: &str, mut hear: impl FnMut(Value)) -> Option<i32> {
    let mut engine = Command::new(Path::new(env!("CARGO_BIN_EXE_howfar-engine")))
        .arg(kind)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the engine starts");
    let mut stdin = engine.stdin.take().expect("piped");
    stdin
        .write_all(input.as_bytes())
        .expect("the engine reads its job");
    drop(stdin);
    let events = BufReader::new(engine.stdout.take().expect("piped"));
    for line in events.lines() {
        hear(serde_json::from_str(&line.expect("UTF-8")).expect("JSON lines"));
    }
    engine.wait().expect("the engine ends").code()
}

/// Run a job that fails; returns its `failed` event, after a check that the exit code agrees.
pub(crate) fn failure(job: &Value) -> Value {
    let (code, mut events) = engine_on(&format!("{job}\n"));
    let last = events.pop().expect("an event");
    assert_eq!(code, Some(1), "{last}");
    assert_eq!(last["event"], "failed", "{last}");
    assert!(!last.to_string().contains("panicked"), "{last}");
    last
}

/// Run a job that succeeds; returns all its events.
pub(crate) fn success(job: &Value) -> Vec<Value> {
    let (code, events) = engine_on(&format!("{job}\n"));
    assert_eq!(code, Some(0), "{:?}", events.last());
    events
}
