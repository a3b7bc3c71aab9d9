//! Runs the engine as a process and checks its peak memory, its CPU time, and that it ends by itself.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::is_emulated;

/// Far beyond every limit in the jobs: only an engine that hangs takes longer.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);
/// Bound on the engine's peak memory.
const MAX_BYTES: u64 = 64 << 20;
/// Bound on the CPU time of all threads. A server that keeps the engine busy does so for the limits of 0.3 s; otherwise the engine ends
/// at once. The engine checks its limits after each receive, in which a compressed answer may expand a thousandfold: slow work without
/// optimisation.
const MAX_CPU: Duration = Duration::from_secs(if cfg!(debug_assertions) { 20 } else { 3 });
/// The unit in which the kernel reports CPU time.
const TICK: Duration = Duration::from_millis(10);

/// Run `job`, which must fail; returns its `failed` event. Checks that the engine ends by itself, and that its memory and CPU time
/// stay bounded.
pub(crate) fn bounded_failure(name: &str, job: &Value) -> Value {
    let mut engine = start_engine(job);
    let start = Instant::now();
    let (mut peak, mut cpu) = (0, Duration::ZERO);
    let code = loop {
        peak = peak.max(peak_bytes(engine.id()));
        cpu = cpu.max(cpu_time(engine.id()));
        if let Some(status) = engine.try_wait().expect("the engine is a child process") {
            break status.code();
        }
        if start.elapsed() > HANG_TIMEOUT {
            engine.kill().expect("the engine is a child process");
            engine.wait().expect("the engine is a child process");
            panic!("{name}: the engine does not end; peak memory {peak} bytes, CPU time {cpu:?}");
        }
        thread::sleep(Duration::from_millis(2));
    };
    let failed = read_events(&mut engine)
        .pop()
        .expect("the engine writes an event");
    assert_eq!(code, Some(1), "{name}: {failed}");
    assert_eq!(failed["event"], "failed", "{name}: {failed}");
    let text = failed.to_string();
    assert!(!text.contains("panicked"), "{name}: {failed}");
    assert!(
        text.len() < 8192,
        "{name}: an event of {} bytes",
        text.len()
    );
    assert!(peak < MAX_BYTES, "{name}: peak memory {peak} bytes");
    let slowness = if is_emulated() { 5 } else { 1 };
    assert!(cpu < MAX_CPU * slowness, "{name}: CPU time {cpu:?}");
    let (kib, elapsed) = (peak >> 10, start.elapsed());
    eprintln!(
        "{name}: {kib} KiB, CPU {cpu:?} of {elapsed:?}: {}",
        failed["code"]
    );
    failed
}

/// Start the engine with its job.
pub(crate) fn start_engine(job: &Value) -> Child {
    let mut engine = Command::new(Path::new(env!("CARGO_BIN_EXE_howfar-engine")))
        .arg(job["job"].as_str().expect("the job has a kind"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the engine starts");
    let mut stdin = engine.stdin.take().expect("stdin is a pipe");
    stdin
        .write_all(format!("{job}\n").as_bytes())
        .expect("the engine reads its job");
    engine
}

/// Read the remaining events.
fn read_events(engine: &mut Child) -> Vec<Value> {
    let mut text = String::new();
    let stdout = engine.stdout.as_mut().expect("stdout is a pipe");
    stdout.read_to_string(&mut text).expect("events are UTF-8");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("events are JSON lines"))
        .collect()
}

/// Peak memory (`VmHWM`); 0 if the process has just ended or does not run the engine yet, when the value would be that of the tests.
fn peak_bytes(pid: u32) -> u64 {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    if program.file_name() != Path::new(env!("CARGO_BIN_EXE_howfar-engine")).file_name() {
        return 0;
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB"))
        .and_then(|kib| kib.trim().parse::<u64>().ok())
        .map_or(0, |kib| kib << 10)
}

/// CPU time of all threads; 0 if the process has just ended.
fn cpu_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // After the name, which may contain any character, the state is the first word; user and system time are the 12th and 13th.
    let words = stat
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace();
    let ticks = words
        .skip(11)
        .take(2)
        .filter_map(|word| word.parse::<u32>().ok());
    TICK * ticks.sum::<u32>()
}
