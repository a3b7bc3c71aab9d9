//! The engine and sysbench as processes, on the same server and with the same options.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::mariadb::Server;

/// A job on the server's socket; `workload` holds its kind and options.
pub(crate) fn job(server: &Server, action: &str, workload: &Value) -> Value {
    json!({
        "job": "tables", "version": 2, "action": action, "target": {"kind": "unix", "path": server.socket()},
        "user": "root", "database": "sbtest", "workload": workload, "connections": 1, "seed": 1,
    })
}

/// Run the engine; returns its exit code and its events.
fn run(job: &Value) -> (Option<i32>, Vec<Value>) {
    let mut engine = Command::new(env!("CARGO_BIN_EXE_howfar-engine"))
        .arg("tables")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the engine starts");
    let mut stdin = engine.stdin.take().expect("piped");
    writeln!(stdin, "{job}").expect("the engine reads its job");
    drop(stdin);
    let output = engine.wait_with_output().expect("the engine ends");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let events = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON lines"));
    (output.status.code(), events.collect())
}

/// Run a job; returns the number of rows that it inserted, after a check of the progress that it reported.
pub(crate) fn done(job: &Value) -> u64 {
    let (code, mut events) = run(job);
    let last = events.pop().expect("an event");
    assert_eq!(
        (code, &last["event"]),
        (Some(0), &json!("tables_done")),
        "{last}"
    );
    for event in events {
        assert_eq!(event["event"], "tables_progress");
        assert!(event["done"].as_u64() <= event["total"].as_u64(), "{event}");
    }
    last["rows"].as_u64().expect("rows")
}

/// Check that a job fails with this code and with this text in its message.
pub(crate) fn fails(job: &Value, code: &str, fragment: &str) {
    let (exit, mut events) = run(job);
    let last = events.pop().expect("an event");
    assert_eq!((exit, &last["code"]), (Some(1), &json!(code)), "{last}");
    assert!(last.to_string().contains(fragment), "{last}");
}

/// Whether sysbench is installed; if not, prints a line on stderr.
pub(crate) fn has_sysbench() -> bool {
    let found = Command::new("sysbench").arg("--version").output().is_ok();
    if !found {
        eprintln!("SKIPPED: sysbench is not installed");
    }
    found
}

/// Run sysbench with the same action and options as [`job`].
pub(crate) fn sysbench(server: &Server, action: &str, workload: &Value) {
    let mut command = Command::new("sysbench");
    command.args([
        workload["kind"].as_str().expect("a kind"),
        "--mysql-user=root",
        "--mysql-db=sbtest",
    ]);
    command.arg(format!("--mysql-socket={}", server.socket()));
    for (name, value) in workload.as_object().expect("an object") {
        match value {
            Value::Bool(on) => command.arg(format!("--{name}={}", if *on { "on" } else { "off" })),
            Value::Number(number) => command.arg(format!("--{name}={number}")),
            Value::String(text) if name != "kind" => command.arg(format!("--{name}={text}")),
            _ => continue,
        };
    }
    let output = command.arg(action).output().expect("sysbench runs");
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
