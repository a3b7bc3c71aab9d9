//! Events of a load job or a page job. Times are nanoseconds, sizes bytes.

mod ping;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use ping::{Asked, Fetched, NotOpened, Opened, Step, StepName};

/// What went wrong, in the words of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FailCode {
    BadJob,
    Connect,
    Auth,
    Tls,
    ServerError,
    Protocol,
    OtherProtocol,
    ServerGone,
    Stalled,
    NotPermitted,
    Interface,
    Internal,
}

/// The job ended without a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename = "failed")]
#[schemars(title = "Failed")]
pub struct Failed {
    pub code: FailCode,
    pub message: String,
    pub advice: String,
}

impl Failed {
    pub fn new(code: FailCode, message: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            advice: advice.into(),
        }
    }

    /// A job that this engine cannot read.
    pub fn bad_job(message: impl Into<String>) -> Self {
        Self::new(
            FailCode::BadJob,
            message,
            "Run ./setup again, so that howfar and its engine are of one version.",
        )
    }
}

/// Our own mistake, or the kernel's refusal of something that it never refuses.
pub fn internal(message: impl Into<String>) -> Failed {
    Failed::new(
        FailCode::Internal,
        message,
        "Please report this with the command you ran.",
    )
}

/// What the first connection really is. `None` means: cannot be asked on this transport, or off; never "as asked".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Receipt {
    #[schemars(extend("enum" = ["unix", "inet", "inet6"]))]
    pub address_family: &'static str,
    pub local_address: Option<String>,
    /// Socket path, or `host:port`.
    pub peer_address: String,
    /// PostgreSQL's `inet_server_addr()` and port: where its own end of the connection is; None: on a Unix socket, or not asked.
    #[schemars(extend("default" = null))]
    pub server_address: Option<String>,
    /// `SO_PEERCRED`, Unix sockets only.
    pub peer_pid: Option<u32>,
    pub server_version: String,
    /// None: Memcached, which does not number them, and FastCGI.
    pub server_connection_id: Option<u32>,
    /// MySQL's plugin. PostgreSQL: `scram-sha-256`, `md5`, `password`, `none`. Redis and Memcached:
    /// `password`, `none`. FastCGI: `none`.
    pub auth_plugin: String,
    #[schemars(extend("enum" = ["prepared", "text", "multi", "extended", "resp2", "resp3", "memcached_text", "memcached_meta", "fastcgi"]))]
    pub protocol_mode: &'static str,
    /// From the server's session status `Ssl_version` or its `pg_stat_ssl`; None: plain, or a key-value store, which does not tell.
    pub tls_version: Option<String>,
    pub tls_cipher: Option<String>,
    /// As our side negotiated it; not the server's where something between ends the encryption.
    #[schemars(extend("default" = null))]
    pub tls_client_version: Option<String>,
    #[schemars(extend("default" = null))]
    pub tls_client_cipher: Option<String>,
    /// Key exchange group, as our side negotiated it.
    pub tls_group: Option<String>,
    /// The server did not take the first key share offered: the handshake took a round trip more.
    #[schemars(extend("default" = null))]
    pub tls_retried: Option<bool>,
    /// Whether the second connection resumed the session of the first; None: no TLS, or a single connection that
    /// stays.
    pub tls_resumed: Option<bool>,
    /// Round trips from `connect` to the last prepared statement, of the second connection if there is one: TCP 1,
    /// greeting 1, login 1 and what its way adds, TLS 1 or 2, prepares 1 for 64. None: an engine of before.
    #[schemars(with = "Option<u32>", extend("default" = null))]
    pub connect_turns: u32,
    /// Algorithm in force: the server's session status where it tells (MySQL), zlib where it says only ON; None:
    /// off.
    pub compression: Option<String>,
    /// As the server reports it; None where it does not.
    pub compression_level: Option<u32>,
    pub tcp_mss: Option<u32>,
    pub tcp_nodelay: Option<bool>,
    pub congestion_control: Option<String>,
    /// Who served the sockets; `threads`: each of its own, blocking, as a page job's.
    #[schemars(extend("enum" = ["epoll", "io_uring", "threads"]))]
    pub driver: &'static str,
    pub client_threads: u32,
    pub client_cpus: Vec<u32>,
}

/// All connections are open and all statements prepared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "ready")]
#[schemars(title = "Ready")]
pub struct Ready {
    pub receipt: Receipt,
    pub connections: u32,
    pub prepared_statements: u32,
    /// From the first `connect()` to the last statement prepared.
    pub connect_ns: u64,
    /// Receipts of the services of a page script by their names; `receipt` is then the first one's.
    #[schemars(extend("default" = {}))]
    pub services: BTreeMap<&'static str, Receipt>,
}

/// The measured window begins; what came before was warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "measuring")]
#[schemars(title = "Measuring")]
pub struct Measuring {
    pub unix_time_ns: u64,
    pub warmup_transactions: u64,
}

/// A held job begins: when, by the monotonic clock, and how much later than requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "begun")]
#[schemars(title = "Begun")]
pub struct Begun {
    pub at_ns: u64,
    pub late_ns: u64,
}

/// A usage job is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "used")]
#[schemars(title = "Used")]
pub struct Used {
    /// By role.
    pub cpu: Vec<CpuUse>,
}

/// Statements by what came back, as sysbench sorts them: rows: read; rows affected: write; neither: other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Classes {
    pub read: u64,
    pub write: u64,
    pub other: u64,
}

/// One slice of the measured window; a time series for eyes and steadiness, never a sample for statistics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "interval")]
#[schemars(title = "Interval")]
pub struct Interval {
    /// From the start of the measured window.
    pub start_ns: u64,
    pub length_ns: u64,
    pub transactions: u64,
    pub queries: u64,
    pub classes: Classes,
    pub errors: u64,
    pub reconnects: u64,
    /// Open loop: requests due and not begun at the end of the slice; closed loop: 0.
    pub backlog: u64,
    pub p50_ns: u64,
    pub p95_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
    /// Latencies of its transactions as in `Histogram.data`, to be added to those of other clients; only of a job that is held.
    #[schemars(extend("default" = null))]
    pub latencies: Option<String>,
}

/// Protocol bytes before compression and encryption.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Bytes {
    pub to_server: u64,
    pub to_client: u64,
}

/// Keys that were read by commands answered well.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Lookups {
    pub hits: u64,
    pub misses: u64,
}

/// What the pages of the measured window did with one service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ServiceUse {
    #[schemars(extend("enum" = ["mysql", "postgresql", "redis", "memcached"]))]
    pub service: &'static str,
    /// Connections opened within pages. None: a load of keys, for which they are not counted.
    #[schemars(with = "Option<u64>")]
    pub connects: u64,
    /// Statements, or commands on keys.
    pub requests: u64,
    /// Requests that were waited for one by one; handshakes are not among them.
    pub turns: u64,
    /// Bytes of these requests and their answers; handshakes are not among them.
    pub bytes: Bytes,
    pub hits: u64,
    /// Keys that were read, by whether they had a value.
    pub misses: u64,
}

/// On-CPU time over the measured window, from /proc/PID/task/*/schedstat.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CpuUse {
    pub role: String,
    pub cpu_ns: u64,
    pub runnable_wait_ns: u64,
    pub busiest_thread_ns: u64,
    pub threads: u32,
    pub voluntary_switches: u64,
    pub involuntary_switches: u64,
}

/// `data` is an HDR V2 deflate histogram in base64, unit 1 ns.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Histogram {
    /// `transaction`: closed loop: from its first byte sent; open loop: from the moment it was due (response time),
    /// with the ages of the unanswered in it. `service`: open loop, from the first byte sent. `unanswered`: those
    /// ages alone. `in_flight`: ages, from the first byte sent, of transactions under way at the end of the window;
    /// in a closed loop in no other histogram. `lateness`: open loop, from the moment when a request was due and a
    /// connection free, to its first byte. `connect`: opening a connection under load. `statement.NAME`,
    /// `command.NAME`: from the first byte sent to the last byte parsed; commands that were answered well, and more
    /// than one at once as `command.pipeline`. `stage.wait`, `stage.transfer`, `stage.parse`: of a statement, sent
    /// to first byte, to last byte, to parsed. Names of sysbench's statements stand without `statement.`:
    /// `point_select`, `simple_range`, … as in `Sysbench`.
    ///
    /// In a page job `transaction` is a page. `turn.SERVICE`: from the first byte sent to the last byte read;
    /// `connect.SERVICE`: from `connect()` to a session that can be asked; `cpu`: all CPU time of the worker's thread
    /// for a page, its computing and its turns; `told.NAME`: what a FastCGI application's pages reported,
    /// for each name that ends in `_ns`; `connect.application`: connecting to it, and `queue.application`: of that,
    /// a wait for room in its full queue of new connections.
    pub kind: String,
    pub count: u64,
    pub min_ns: u64,
    #[schemars(range(min = 0.0))]
    pub mean_ns: f64,
    pub p50_ns: u64,
    pub p95_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
    pub data: String,
}

/// `TCP_INFO` of the connections at the end of the window; None where the kernel does not tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TcpFacts {
    pub connections: u32,
    pub rtt_p50_ns: u64,
    pub rtt_max_ns: u64,
    pub min_rtt_ns: Option<u64>,
    /// Segments, since each connection began.
    pub retransmits: u64,
    /// Time with data in flight or to send, summed over connections; the next two are parts of it.
    pub busy_ns: Option<u64>,
    pub rwnd_limited_ns: Option<u64>,
    pub sndbuf_limited_ns: Option<u64>,
}

/// Over the connections: transactions that each finished, and the time that each spent in them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct Fairness {
    pub transactions_mean: f64,
    pub transactions_stddev: f64,
    pub busy_mean_ns: f64,
    pub busy_stddev_ns: f64,
}

/// Open loop: every request due in the window is in exactly one of the last three.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Account {
    pub due: u64,
    /// Answered before the window's end.
    pub answered: u64,
    /// Begun or not, without an answer at the end of the window.
    pub unanswered: u64,
    /// Lost with a connection, or given up.
    pub failed: u64,
    pub backlog_max: u64,
}

/// What became of connections that were lost under load; only under `on_disconnect: reconnect`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Lost {
    /// Connections that were not back when the window ended.
    pub at_end: u64,
    /// Why the last connection was lost, or the last try to connect again failed.
    pub last: Failed,
}

/// The measured window. Closed loop: transactions that ended in it. Open loop: those due in it and answered before
/// its end.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "finished")]
#[schemars(title = "Finished")]
pub struct Finished {
    #[schemars(range(min = 1))]
    pub elapsed_ns: u64,
    pub transactions: u64,
    pub queries: u64,
    /// Changes of direction client -> server -> client: what a round trip time multiplies.
    pub turns: u64,
    pub rows: u64,
    pub classes: Classes,
    pub bytes: Bytes,
    /// Statements answered from the first to the last, those before and after the window too: what the server counts. None: of
    /// pages, or not all is known.
    #[schemars(extend("default" = null))]
    pub answered: Option<u64>,
    /// Keys found and missed by a workload of keys.
    #[schemars(extend("default" = null))]
    pub lookups: Option<Lookups>,
    /// Ignored server errors by code; of a workload of keys by their first word, those that are not well known
    /// under `OTHER`; `disconnect`: connections lost.
    pub errors: BTreeMap<String, u64>,
    /// Connections lost and opened again.
    pub reconnects: u64,
    /// None: no connection was lost.
    #[schemars(extend("default" = null))]
    pub lost: Option<Lost>,
    /// Receives under `io_uring` that found no buffer for what had come, since the job began: each cost the client another one.
    #[schemars(extend("default" = 0))]
    pub starved_receives: u64,
    pub open_loop: Option<Account>,
    pub fairness: Fairness,
    pub tcp: Option<TcpFacts>,
    /// Role `client` is the engine itself; then one for each observed role, pids of a role summed.
    pub cpu: Vec<CpuUse>,
    /// `VmHWM` of the engine.
    pub peak_memory_bytes: u64,
    pub histograms: Vec<Histogram>,
    /// Why the window ended early; only under `on_disconnect: end`.
    #[schemars(extend("default" = null))]
    pub interrupted: Option<Failed>,
    /// Services of a page script. Transactions are then pages, queries requests, and
    /// those and turns and bytes are sums over the services. Where an application is asked, a page is a request and
    /// a turn to it, and bytes are FastCGI's.
    #[schemars(extend("default" = []))]
    pub services: Vec<ServiceUse>,
    /// What the pages of a FastCGI application reported, summed over the
    /// window's good pages.
    #[schemars(extend("default" = {}))]
    #[serde(rename = "told")]
    pub reported: BTreeMap<String, u64>,
}

/// The log of acknowledged keys is closed and complete; comes before the job's last event, also before `failed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "acknowledgement_log")]
#[schemars(title = "AcknowledgementLog")]
pub struct AcknowledgementLog {
    pub path: String,
    /// One for each transaction that drew a key, of the warm-up and after the window too; each is one of these:
    pub records: u64,
    /// Keys whose last statement was answered well.
    pub acknowledged: u64,
    /// Keys of which the server answered a statement with an error.
    pub refused: u64,
    /// Keys without an answer before their connection or the job ended: they may be on the server or not.
    pub unknown: u64,
}

/// A watch job has asked once, found its table, and goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "watching")]
#[schemars(title = "Watching")]
pub struct Watching {}

/// A watch job is done, and its log closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "watched")]
#[schemars(title = "Watched")]
pub struct Watched {
    pub path: String,
    pub keys: u64,
    pub polls: u64,
    /// A key is visible at some moment between the one before the poll that saw it was answered and that one's
    /// answer.
    pub longest_poll_ns: u64,
    pub elapsed_ns: u64,
    /// The server's end, if that ended it.
    pub interrupted: Option<Failed>,
}

/// A tables job goes on: `done` of `total` rows at sysbench's prepare, else tables, or statements of a custom list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "tables_progress")]
#[schemars(title = "TablesProgress")]
pub struct TablesProgress {
    pub done: u64,
    pub total: u64,
    pub doing: String,
}

/// A tables job is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "tables_done")]
#[schemars(title = "TablesDone")]
pub struct TablesDone {
    pub rows: u64,
    pub elapsed_ns: u64,
}

/// One page of a repeat job, in its order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "repeated")]
#[schemars(title = "Repeated")]
pub struct Repeated {
    pub took_ns: u64,
    /// Time to open each connection, its login too.
    pub opened_ns: Vec<u64>,
    /// Time of each step with a statement, from before it is sent to its answer's end.
    pub round_trips_ns: Vec<u64>,
    /// Sum over all steps: how long after its gap a statement was sent.
    pub client_late_ns: u64,
}

/// Statements without their literals, as a recording has them, in the order of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "digests")]
#[schemars(title = "Digests")]
pub struct Digests {
    pub texts: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_carries_its_name() {
        let failed = Failed::new(FailCode::ServerGone, "a", "b");
        let text = serde_json::to_string(&failed).expect("plain data");
        assert_eq!(
            text,
            r#"{"event":"failed","code":"server_gone","message":"a","advice":"b"}"#
        );
        assert_eq!(
            serde_json::from_str::<Failed>(&text).expect("round trip"),
            failed
        );
    }
}
