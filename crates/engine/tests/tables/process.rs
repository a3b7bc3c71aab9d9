//! Runs the engine and sysbench as processes, on the same server and with the same options.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::mariadb::Server;

/// A tables job on the server's socket; `workload` has its kind and options.
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
    let mut stdin = engine.stdin.take().expect("stdin is a pipe");
    writeln!(stdin, "{job}").expect("the engine reads its job");
    drop(stdin);
    let output = engine.wait_with_output().expect("the engine ends");
    let text = String::from_utf8(output.stdout).expect("events are UTF-8");
    let events = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("events are JSON lines"));
    (output.status.code(), events.collect())
}

/// Run a job, which must succeed, and check the progress that it reports; returns the number of rows that it inserted.
pub(crate) fn run_successfully(job: &Value) -> u64 {
    let (code, mut events) = run(job);
    let last = events.pop().expect("the engine writes an event");
    assert_eq!(
        (code, &last["event"]),
        (Some(0), &json!("tables_done")),
        "{last}"
    );
    for event in events {
        assert_eq!(event["event"], "tables_progress");
        assert!(event["done"].as_u64() <= event["total"].as_u64(), "{event}");
    }
    last["rows"].as_u64().expect("rows are counted")
}

/// Check that a job fails with this code and this text in its message or advice.
pub(crate) fn check_failure(job: &Value, code: &str, fragment: &str) {
    let (exit_code, mut events) = run(job);
    let last = events.pop().expect("the engine writes an event");
    assert_eq!(
        (exit_code, &last["code"]),
        (Some(1), &json!(code)),
        "{last}"
    );
    assert!(last.to_string().contains(fragment), "{last}");
}

/// Whether sysbench is installed; if not, prints a message on stderr.
pub(crate) fn has_sysbench() -> bool {
    let is_installed = Command::new("sysbench").arg("--version").output().is_ok();
    if !is_installed {
        eprintln!("SKIPPED: sysbench is not installed");
    }
    is_installed
}

/// Run sysbench with the same action and options as [`job`].
pub(crate) fn run_sysbench(server: &Server, action: &str, workload: &Value) {
    let mut command = Command::new("sysbench");
    command.args([
        workload["kind"].as_str().expect("the workload has a kind"),
        "--mysql-user=root",
        "--mysql-db=sbtest",
    ]);
    command.arg(format!("--mysql-socket={}", server.socket()));
    for (name, value) in workload.as_object().expect("the workload is an object") {
        match value {
            Value::Bool(value) => {
                command.arg(format!("--{name}={}", if *value { "on" } else { "off" }))
            }
            Value::Number(number) => command.arg(format!("--{name}={number}")),
            Value::String(text) if name != "kind" => command.arg(format!("--{name}={text}")),
            _ => continue,
        };
    }
    let output = command.arg(action).output().expect("sysbench starts");
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
