//! The programs under test as processes: this test program, started with the name of a job.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

use crate::rig::{Host, Rig, SERVER};

/// The process of a job; dropping it closes its stdin, kills it and waits for it.
pub(crate) struct Job {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Job {
    pub(crate) fn start(mut command: Command, job: &Value) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the job starts");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut process = Self {
            stdin: child.stdin.take(),
            child,
            stdout,
        };
        process.send(job);
        process
    }

    pub(crate) fn send(&mut self, line: &Value) {
        writeln!(self.stdin.as_mut().expect("stdin is open"), "{line}").expect("the job reads");
    }

    /// The next event; the job's own time limits bound the wait.
    pub(crate) fn next_event(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("the job writes");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("no event but {line:?}: {error}"))
    }

    /// Close its stdin and wait for it; returns its exit code.
    pub(crate) fn end(mut self) -> Option<i32> {
        drop(self.stdin.take());
        self.child.wait().expect("the job ends").code()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The path of this program.
fn own_path() -> String {
    let path = std::env::current_exe().expect("the program knows its path");
    path.into_os_string()
        .into_string()
        .expect("the path is UTF-8")
}

/// This program in the middle namespace.
pub(crate) fn own_command(job: &str) -> Command {
    let mut command = Command::new(own_path());
    command.arg(job);
    command
}

/// This program on a host.
pub(crate) fn own_command_on(host: &Host, arguments: &[&str]) -> Command {
    let mut command = host.command(&own_path());
    command.args(arguments);
    command
}

/// Start sending `length` bytes from the client host to the echo on `port` of `host` and back.
pub(crate) fn start_mirror(rig: &Rig, host: &str, port: u64, length: u64) -> Child {
    let arguments = ["mirror", host, &port.to_string(), &length.to_string()];
    own_command_on(&rig.client, &arguments)
        .spawn()
        .expect("the mirror starts")
}

/// One direction of a link: rate in bits per second (0: unshaped), round trip time and queue.
pub(crate) fn direction_parameters(rate: u64, rtt_ns: u64, queue_bytes: u64) -> Value {
    json!({
        "rate_bps": (rate > 0).then_some(rate),
        "delay_ns": rtt_ns / 2,
        "compensate_ns": 0,
        "queue_bytes": queue_bytes,
    })
}

/// One direction with a queue of one bandwidth-delay product, of at least 100 Mb/s and 10 ms.
pub(crate) fn usual_direction(rate: u64, rtt_ns: u64) -> Value {
    let queue =
        u128::from(rate.max(100_000_000)) * u128::from(rtt_ns.max(10_000_000)) / 8_000_000_000;
    direction_parameters(rate, rtt_ns, queue as u64)
}

/// Start a link and wait until it is ready.
pub(crate) fn start_link(to_server: &Value, to_client: &Value) -> Job {
    let mut link = Job::start(
        own_command("link"),
        &link_job("lc", "ls", to_server, to_client),
    );
    let ready = link.next_event();
    assert_eq!(ready["event"], "link_ready", "{ready}");
    // Reset the counters: drops from before the other host existed do not count.
    read_stats(&mut link);
    link
}

pub(crate) fn link_job(client: &str, server: &str, to_server: &Value, to_client: &Value) -> Value {
    json!({
        "job": "link", "version": 2,
        "client_interface": client, "server_interface": server,
        "to_server": to_server, "to_client": to_client,
        "realtime": std::env::var("HOWFAR_LINK_REALTIME").unwrap_or_else(|_| "auto".to_owned()),
    })
}

/// Change both directions.
pub(crate) fn set_both(link: &mut Job, both: &Value) {
    link.send(&json!({"command": "set", "to_server": both, "to_client": both}));
}

/// Read the link's statistics since the last call.
pub(crate) fn read_stats(link: &mut Job) -> Value {
    link.send(&json!({"command": "stats", "reset": true}));
    let stats = link.next_event();
    assert_eq!(stats["event"], "link_stats", "{stats}");
    stats
}

/// Number of drops that no setting of the link explains.
pub(crate) fn count_unmodelled_drops(stats: &Value) -> u64 {
    ["to_server", "to_client"]
        .iter()
        .flat_map(|direction| {
            ["arena", "socket", "transmit"]
                .map(|cause| stats[*direction]["drops"][cause].as_u64().expect("a count"))
        })
        .sum()
}

/// Start the far end of the probes; returns it and its port.
pub(crate) fn start_echo(server: &Host) -> (Job, u64) {
    start_echo_at(server, SERVER)
}

pub(crate) fn start_echo_at(server: &Host, address: &str) -> (Job, u64) {
    let mut echo = Job::start(
        own_command_on(server, &["echo"]),
        &json!({"job": "echo", "version": 2, "host": address}),
    );
    let port = echo.next_event()["port"].as_u64().expect("a port");
    (echo, port)
}

pub(crate) fn measure_rtt(client: &Host, port: u64, count: u64) -> Value {
    let job = json!({"job": "rtt", "version": 2, "host": SERVER, "port": port, "count": count, "timeout_ns": 30_000_000_000_u64});
    let event = Job::start(own_command_on(client, &["rtt"]), &job).next_event();
    assert_eq!(event["event"], "rtt", "{event}");
    event
}

pub(crate) fn measure_goodput(
    client: &Host,
    port: u64,
    direction: &str,
    warmup_ms: u64,
    measure_ms: u64,
) -> Value {
    let job = json!({
        "job": "goodput", "version": 2, "host": SERVER, "port": port, "direction": direction,
        "warmup_ns": warmup_ms * 1_000_000, "measure_ns": measure_ms * 1_000_000,
    });
    let event = Job::start(own_command_on(client, &["goodput"]), &job).next_event();
    assert_eq!(event["event"], "goodput", "{event}");
    event
}
