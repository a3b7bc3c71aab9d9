//! The engine as a process that is watched: its peak memory, and an end that it must reach by itself.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Far beyond every limit in the jobs: only an engine that hangs takes so long.
const HANGS: Duration = Duration::from_secs(60);
/// Of peak memory, whatever a server sends.
const MOST_BYTES: u64 = 128 << 20;

/// Run `job`, which fails: its `failed` event. The engine ends by itself, and its memory stays bounded.
pub(crate) fn bounded_failure(name: &str, job: &Value) -> Value {
    let mut engine = started(job);
    let began = Instant::now();
    let mut peak = 0;
    let code = loop {
        peak = peak.max(peak_bytes(engine.id()));
        if let Some(status) = engine.try_wait().expect("our child") {
            break status.code();
        }
        if began.elapsed() > HANGS {
            engine.kill().expect("our child");
            engine.wait().expect("our child");
            panic!("{name}: the engine hangs; peak memory {peak} bytes");
        }
        thread::sleep(Duration::from_millis(2));
    };
    let failed = events(&mut engine).pop().expect("an event");
    assert_eq!(code, Some(1), "{name}: {failed}");
    assert_eq!(failed["event"], "failed", "{name}: {failed}");
    let text = failed.to_string();
    assert!(!text.contains("panicked"), "{name}: {failed}");
    assert!(
        text.len() < 8192,
        "{name}: an event of {} bytes",
        text.len()
    );
    assert!(peak < MOST_BYTES, "{name}: peak memory {peak} bytes");
    failed
}

/// The engine with its job, events to come.
pub(crate) fn started(job: &Value) -> Child {
    let mut engine = Command::new(Path::new(env!("CARGO_BIN_EXE_howfar-engine")))
        .arg("load")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the engine starts");
    let mut stdin = engine.stdin.take().expect("piped");
    stdin
        .write_all(format!("{job}\n").as_bytes())
        .expect("the engine reads its job");
    engine
}

/// What is left to read of the events.
pub(crate) fn events(engine: &mut Child) -> Vec<Value> {
    let mut text = String::new();
    let stdout = engine.stdout.as_mut().expect("piped");
    stdout.read_to_string(&mut text).expect("UTF-8");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON lines"))
        .collect()
}

/// `VmHWM`, or 0 when the process has just ended.
fn peak_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB"))
        .and_then(|kib| kib.trim().parse::<u64>().ok())
        .map_or(0, |kib| kib << 10)
}
