//! Events that load jobs, page jobs, tables jobs and watch jobs write. Times are in nanoseconds, sizes in bytes.

mod ping;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use ping::{Asked, Fetched, NotOpened, Opened, Step, StepName};

/// The kind of a failure.
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

/// The job failed and has no result.
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

    /// Create the failure for a job that the engine cannot parse.
    pub fn bad_job(message: impl Into<String>) -> Self {
        Self::new(
            FailCode::BadJob,
            message,
            "Run ./setup again, so that howfar and its engine are of one version.",
        )
    }
}

/// Create the failure for a bug in the engine, or for a system call that failed unexpectedly.
pub fn internal(message: impl Into<String>) -> Failed {
    Failed::new(
        FailCode::Internal,
        message,
        "Please report this with the command you ran.",
    )
}

/// Properties of the first connection, as observed after it was opened. `None` means that a property is unknown or does not apply; a
/// requested value is never reported as an observed one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Receipt {
    #[schemars(extend("enum" = ["unix", "inet", "inet6"]))]
    pub address_family: &'static str,
    pub local_address: Option<String>,
    /// Path of the Unix socket, or `host:port`.
    pub peer_address: String,
    /// Address and port of the server's end of the connection, from PostgreSQL's `inet_server_addr()` and `inet_server_port()`. None:
    /// a Unix socket, another protocol, or not queried.
    #[schemars(extend("default" = null))]
    pub server_address: Option<String>,
    /// Process ID of the server, from `SO_PEERCRED`. None: not a Unix socket.
    pub peer_pid: Option<u32>,
    pub server_version: String,
    /// Connection ID that the server has assigned. None: Memcached or FastCGI, which assign none.
    pub server_connection_id: Option<u32>,
    /// Authentication method. MySQL: name of the plugin. PostgreSQL: `scram-sha-256`, `md5`, `password` or `none`. Redis and
    /// Memcached: `password` or `none`. FastCGI: `none`.
    pub auth_plugin: String,
    #[schemars(extend("enum" = ["prepared", "text", "multi", "extended", "resp2", "resp3", "memcached_text", "memcached_meta", "fastcgi"]))]
    pub protocol_mode: &'static str,
    /// TLS version that the server reports, from MySQL's session status `Ssl_version` or PostgreSQL's `pg_stat_ssl`. None: no TLS, or
    /// a key-value store, which does not report the version.
    pub tls_version: Option<String>,
    pub tls_cipher: Option<String>,
    /// TLS version that the client has negotiated. It can differ from the server's if a proxy terminates TLS.
    #[schemars(extend("default" = null))]
    pub tls_client_version: Option<String>,
    #[schemars(extend("default" = null))]
    pub tls_client_cipher: Option<String>,
    /// Key exchange group that the client has negotiated.
    pub tls_group: Option<String>,
    /// Whether the server sent a `HelloRetryRequest` because it rejected the first key share. The handshake then needs one more round
    /// trip.
    #[schemars(extend("default" = null))]
    pub tls_retried: Option<bool>,
    /// Whether the second connection resumed the TLS session of the first. None: no TLS, or only one persistent connection.
    pub tls_resumed: Option<bool>,
    /// Round trips of opening a connection, from `connect()` to the last prepared statement: TCP handshake 1, greeting 1, TLS
    /// handshake 1 or 2, login 1 plus those of the authentication method, and 1 for each 64 prepared statements. Describes the second
    /// connection if there is one. None: the run file is from a version that did not record it.
    #[serde(rename = "connect_turns")]
    #[schemars(with = "Option<u32>", extend("default" = null))]
    pub connect_round_trips: u32,
    /// Compression algorithm in use, from MySQL's session status; `zlib` if the server only reports ON. None: no compression.
    pub compression: Option<String>,
    /// Compression level that the server reports. None: not reported.
    pub compression_level: Option<u32>,
    pub tcp_mss: Option<u32>,
    pub tcp_nodelay: Option<bool>,
    pub congestion_control: Option<String>,
    /// System interface that served the sockets. `threads`: one thread with blocking calls for each connection, as in a page job.
    #[schemars(extend("enum" = ["epoll", "io_uring", "threads"]))]
    pub driver: &'static str,
    pub client_threads: u32,
    pub client_cpus: Vec<u32>,
}

/// All connections are open, and all statements are prepared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "ready")]
#[schemars(title = "Ready")]
pub struct Ready {
    pub receipt: Receipt,
    pub connections: u32,
    pub prepared_statements: u32,
    /// Time from the first `connect()` until the last statement was prepared.
    pub connect_ns: u64,
    /// Receipt of each service of a page script, by the name of the service. `receipt` is the receipt of the first service.
    #[schemars(extend("default" = {}))]
    pub services: BTreeMap<&'static str, Receipt>,
}

/// The measured window has begun, and the warm-up has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "measuring")]
#[schemars(title = "Measuring")]
pub struct Measuring {
    pub unix_time_ns: u64,
    pub warmup_transactions: u64,
}

/// A job with delayed start has begun. Contains the start time on the monotonic clock, and its delay against the requested time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "begun")]
#[schemars(title = "Begun")]
pub struct Begun {
    pub at_ns: u64,
    pub late_ns: u64,
}

/// A usage job is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "used")]
#[schemars(title = "Used")]
pub struct Used {
    /// CPU time of the observed processes, by role.
    pub cpu: Vec<CpuUse>,
}

/// Number of statements by class, as sysbench counts them. A statement that returns rows is a read, one that changes rows is a write,
/// and all others are `other`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Classes {
    pub read: u64,
    pub write: u64,
    pub other: u64,
}

/// One interval of the measured window. Use intervals for time series and to check for a steady state, not as samples for statistics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "interval")]
#[schemars(title = "Interval")]
pub struct Interval {
    /// Start of the interval, counted from the start of the measured window.
    pub start_ns: u64,
    pub length_ns: u64,
    pub transactions: u64,
    pub queries: u64,
    pub classes: Classes,
    pub errors: u64,
    pub reconnects: u64,
    /// Open loop: requests that were due but not sent at the end of the interval. Closed loop: 0.
    pub backlog: u64,
    pub p50_ns: u64,
    pub p95_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
    /// Latencies of the interval's transactions, encoded as in `Histogram.data`, so that they can be added to those of other clients.
    /// Only in jobs with delayed start.
    #[schemars(extend("default" = null))]
    pub latencies: Option<String>,
}

/// Bytes of the protocol, before compression and encryption.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Bytes {
    pub to_server: u64,
    pub to_client: u64,
}

/// Keys that successful commands read, counted by whether the key existed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Lookups {
    pub hits: u64,
    pub misses: u64,
}

/// Use of one service by the pages of the measured window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ServiceUse {
    #[schemars(extend("enum" = ["mysql", "postgresql", "redis", "memcached"]))]
    pub service: &'static str,
    /// Connections that were opened during pages. None: a workload of keys, for which connections are not counted.
    #[schemars(with = "Option<u64>")]
    pub connects: u64,
    /// Number of statements, or of commands on keys.
    pub requests: u64,
    /// Round trips for requests, without those of handshakes.
    #[schemars(extend("formerName" = "turns"))]
    pub round_trips: u64,
    /// Bytes of the requests and their answers, without handshakes.
    pub bytes: Bytes,
    /// Keys that were read and existed.
    pub hits: u64,
    /// Keys that were read and did not exist.
    pub misses: u64,
}

/// CPU time of a group of processes in the measured window, from `/proc/PID/task/*/schedstat`.
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

/// A latency histogram. `data` is an HDR histogram (V2, deflate) in base64 with a unit of 1 ns.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Histogram {
    /// Name of what was measured. `transaction`: in a closed loop, from the transaction's first byte sent to its last byte received;
    /// in an open loop, the response time, which starts when the transaction was due, and which includes the age of each unanswered
    /// transaction. `service`: service time in an open loop, from the first byte sent. `unanswered`: ages of unanswered transactions
    /// in an open loop. `in_flight`: ages, counted from the first byte sent, of transactions that were in progress at the end of the
    /// window; in a closed loop, no other histogram contains these. `lateness`: delay in an open loop between the moment when a
    /// request was due and a connection was free, and its first byte sent. `connect`: time of opening a connection under load.
    /// `statement.NAME` and `command.NAME`: from the first byte sent to the last byte parsed; of commands, only those that succeeded;
    /// a request of several commands is `command.pipeline`. `stage.wait`, `stage.transfer` and `stage.parse`: parts of a statement,
    /// which end with the first byte received, the last byte received, and the end of parsing. Statements of sysbench have no prefix:
    /// `point_select`, `simple_range` and so on, as in `Sysbench`.
    ///
    /// In a page job, `transaction` is a page. `turn.SERVICE`: a round trip, from the first byte sent to the last byte read.
    /// `connect.SERVICE`: from `connect()` until the session accepts requests. `cpu`: CPU time of the worker thread for a page.
    /// `told.NAME`: times that the pages of a FastCGI application reported, for each name that ends in `_ns`. `connect.application`:
    /// time to connect to the application. `queue.application`: the part of it spent waiting for room in the application's full accept
    /// queue.
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

/// Statistics from `TCP_INFO` over all connections at the end of the window. None: the kernel does not provide the value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TcpFacts {
    pub connections: u32,
    pub rtt_p50_ns: u64,
    pub rtt_max_ns: u64,
    pub min_rtt_ns: Option<u64>,
    /// Segments that were retransmitted since each connection was opened.
    pub retransmits: u64,
    /// Time with unacknowledged or unsent data, summed over all connections. `rwnd_limited_ns` and `sndbuf_limited_ns` are parts of
    /// it.
    pub busy_ns: Option<u64>,
    pub rwnd_limited_ns: Option<u64>,
    pub sndbuf_limited_ns: Option<u64>,
}

/// Fairness between connections: mean and standard deviation of the transactions that each connection completed, and of the time that
/// each spent in transactions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct Fairness {
    pub transactions_mean: f64,
    pub transactions_stddev: f64,
    pub busy_mean_ns: f64,
    pub busy_stddev_ns: f64,
}

/// Requests of an open loop. Each request that was due in the window is counted in exactly one of `answered`, `unanswered` and
/// `failed`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Account {
    pub due: u64,
    /// Requests that were answered before the window ended.
    pub answered: u64,
    /// Requests that had no answer when the window ended, whether they had been sent or not.
    pub unanswered: u64,
    /// Requests that failed because their connection was lost, or that were abandoned.
    pub failed: u64,
    pub backlog_max: u64,
}

/// Connections that were lost under load. Only present with `on_disconnect: reconnect`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Lost {
    /// Connections that were lost and not yet reopened when the window ended.
    pub at_end: u64,
    /// Reason of the last lost connection or of the last failed attempt to reconnect.
    pub last: Failed,
}

/// Results of the measured window. In a closed loop they cover the transactions that ended in the window. In an open loop they cover
/// the transactions that were due in the window and answered before its end.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "finished")]
#[schemars(title = "Finished")]
pub struct Finished {
    #[schemars(range(min = 1))]
    pub elapsed_ns: u64,
    pub transactions: u64,
    pub queries: u64,
    /// Round trips: changes of direction from client to server and back. Each costs one RTT.
    #[schemars(extend("formerName" = "turns"))]
    pub round_trips: u64,
    pub rows: u64,
    pub classes: Classes,
    pub bytes: Bytes,
    /// Statements that were answered during the whole job, including those outside the window, for comparison with the server's
    /// counter. None: a page job, or the number is not fully known.
    #[schemars(extend("default" = null))]
    pub answered: Option<u64>,
    /// Keys that a workload of keys found and did not find.
    #[schemars(extend("default" = null))]
    pub lookups: Option<Lookups>,
    /// Number of ignored server errors by code. In a workload of keys, the code is the first word of the error, and uncommon words are
    /// counted as `OTHER`. `disconnect` counts lost connections.
    pub errors: BTreeMap<String, u64>,
    /// Connections that were lost and reopened.
    pub reconnects: u64,
    /// Connections that were lost under load. None: no connection was lost.
    #[schemars(extend("default" = null))]
    pub lost: Option<Lost>,
    /// Receive operations under `io_uring`, since the job began, that found no free buffer. Each had to be repeated by the client.
    #[schemars(extend("default" = 0))]
    pub starved_receives: u64,
    pub open_loop: Option<Account>,
    pub fairness: Fairness,
    pub tcp: Option<TcpFacts>,
    /// CPU time by role. The first entry has the role `client` and describes the engine. One entry for each observed role follows,
    /// summed over the processes of that role.
    pub cpu: Vec<CpuUse>,
    /// Peak resident memory of the engine (`VmHWM`).
    pub peak_memory_bytes: u64,
    pub histograms: Vec<Histogram>,
    /// Reason why the window ended early. Only present with `on_disconnect: end`.
    #[schemars(extend("default" = null))]
    pub interrupted: Option<Failed>,
    /// Use of each service of a page script. `transactions` then counts pages and `queries` counts requests; requests, round trips and
    /// bytes are summed over the services. If an application serves the pages, each page is one request and one round trip, and the
    /// bytes are those of FastCGI.
    #[schemars(extend("default" = []))]
    pub services: Vec<ServiceUse>,
    /// Values that the pages of a FastCGI application reported, by name, summed over the successful pages of the window.
    #[schemars(extend("default" = {}, "formerName" = "told"))]
    pub app_counters: BTreeMap<String, u64>,
}

/// The log of acknowledged keys is complete and closed. Written before the last event of the job, even if that is `failed`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "acknowledgement_log")]
#[schemars(title = "AcknowledgementLog")]
pub struct AcknowledgementLog {
    pub path: String,
    /// Records in the log: one for each transaction that drew a key, including those outside the window. It is the sum of
    /// `acknowledged`, `refused` and `unknown`.
    pub records: u64,
    /// Keys whose last statement succeeded.
    pub acknowledged: u64,
    /// Keys for which the server answered a statement with an error.
    pub refused: u64,
    /// Keys that had no answer when their connection or the job ended. They may or may not be stored on the server.
    pub unknown: u64,
}

/// A watch job has polled its table successfully once and continues to poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "watching")]
#[schemars(title = "Watching")]
pub struct Watching {}

/// A watch job is complete, and its log is closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "watched")]
#[schemars(title = "Watched")]
pub struct Watched {
    pub path: String,
    pub keys: u64,
    pub polls: u64,
    /// Duration of the longest poll. It bounds the uncertainty of the moment at which a key became visible: after the start of the
    /// last poll that did not return the key, and before the answer to the poll that did.
    pub longest_poll_ns: u64,
    pub elapsed_ns: u64,
    /// Reason why the server ended the job early. None: it did not.
    pub interrupted: Option<Failed>,
}

/// Progress of a tables job. `done` and `total` count rows while sysbench tables are prepared, statements of a custom workload, and
/// tables otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "tables_progress")]
#[schemars(title = "TablesProgress")]
pub struct TablesProgress {
    pub done: u64,
    pub total: u64,
    pub doing: String,
}

/// A tables job is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "tables_done")]
#[schemars(title = "TablesDone")]
pub struct TablesDone {
    pub rows: u64,
    pub elapsed_ns: u64,
}

/// Latencies of one repeated page. Pages are reported in the order in which they run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "repeated")]
#[schemars(title = "Repeated")]
pub struct Repeated {
    pub took_ns: u64,
    /// Time to open each connection, including the login, in the order of the steps that open one.
    pub opened_ns: Vec<u64>,
    /// Latency of each step that has a statement: from before the statement is sent until its answer is complete.
    pub round_trips_ns: Vec<u64>,
    /// Sum over all steps of the delay with which a statement was sent after its gap had ended.
    pub client_late_ns: u64,
}

/// The job's statements in their order, with literals replaced as in a recording.
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
