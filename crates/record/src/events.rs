//! Events of a load job or a page job, as `load_events.py` defines them. Times are nanoseconds, sizes bytes.

use std::collections::BTreeMap;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

/// What went wrong, in the words of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailCode {
    BadJob,
    Connect,
    Auth,
    Tls,
    ServerError,
    Protocol,
    ServerGone,
    Stalled,
    NotPermitted,
    Interface,
    Internal,
}

/// The job ended without a result. `message` says what was tried and what came back, `advice` what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename = "failed")]
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

    /// Write the event and give the exit code that goes with it.
    pub fn report(&self) -> ExitCode {
        // Without a reader the exit code alone must tell.
        let _ = crate::emit(self);
        ExitCode::from(1)
    }
}

/// What the first connection really is. `None` means: cannot be asked on this transport, never "no".
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Receipt {
    pub address_family: &'static str,
    pub local_address: Option<String>,
    pub peer_address: String,
    pub peer_pid: Option<u32>,
    pub server_version: String,
    pub server_connection_id: Option<u32>,
    pub auth_plugin: String,
    pub protocol_mode: &'static str,
    pub tls_version: Option<String>,
    pub tls_cipher: Option<String>,
    pub tls_client_version: Option<String>,
    pub tls_client_cipher: Option<String>,
    pub tls_group: Option<String>,
    pub tls_retried: Option<bool>,
    pub tls_resumed: Option<bool>,
    pub connect_turns: u32,
    pub compression: Option<String>,
    pub compression_level: Option<u32>,
    pub tcp_mss: Option<u32>,
    pub tcp_nodelay: Option<bool>,
    pub congestion_control: Option<String>,
    /// `epoll`, `io_uring` or `threads`.
    pub driver: &'static str,
    pub client_threads: u32,
    pub client_cpus: Vec<u32>,
}

/// All connections are open and all statements prepared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename = "ready")]
pub struct Ready {
    pub receipt: Receipt,
    pub connections: u32,
    pub prepared_statements: u32,
    pub connect_ns: u64,
    /// Of a page job that runs a script, by the services' names.
    pub services: BTreeMap<&'static str, Receipt>,
}

/// The measured window begins; what came before was warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename = "measuring")]
pub struct Measuring {
    pub unix_time_ns: u64,
    pub warmup_transactions: u64,
}

/// Statements by what came back: rows, rows affected, neither.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Classes {
    pub read: u64,
    pub write: u64,
    pub other: u64,
}

/// One slice of the measured window; a time series for eyes, never a sample for statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename = "interval")]
pub struct Interval {
    pub start_ns: u64,
    pub length_ns: u64,
    pub transactions: u64,
    pub queries: u64,
    pub classes: Classes,
    pub errors: u64,
    pub reconnects: u64,
    pub backlog: u64,
    pub p50_ns: u64,
    pub p95_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
}

/// Protocol bytes before compression and encryption.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Bytes {
    pub to_server: u64,
    pub to_client: u64,
}

/// Keys that were read, by whether they had a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Lookups {
    pub hits: u64,
    pub misses: u64,
}

/// What the pages of the measured window did with one service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ServiceUse {
    pub service: &'static str,
    pub connects: u64,
    pub requests: u64,
    pub turns: u64,
    pub bytes: Bytes,
    pub hits: u64,
    pub misses: u64,
}

/// On-CPU time of a role over the measured window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CpuUse {
    pub role: String,
    pub cpu_ns: u64,
    pub runnable_wait_ns: u64,
    pub busiest_thread_ns: u64,
    pub threads: u32,
    pub voluntary_switches: u64,
    pub involuntary_switches: u64,
}

/// Latency of one kind; `data` is an HDR V2 deflate histogram in base64, unit 1 ns.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Histogram {
    pub kind: String,
    pub count: u64,
    pub min_ns: u64,
    pub mean_ns: f64,
    pub p50_ns: u64,
    pub p95_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
    pub data: String,
}

/// `TCP_INFO` of the connections at the end of the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TcpFacts {
    pub connections: u32,
    pub rtt_p50_ns: u64,
    pub rtt_max_ns: u64,
    pub min_rtt_ns: Option<u64>,
    pub retransmits: u64,
    pub busy_ns: Option<u64>,
    pub rwnd_limited_ns: Option<u64>,
    pub sndbuf_limited_ns: Option<u64>,
}

/// Over the connections: transactions that each finished, and the time that each spent in them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Fairness {
    pub transactions_mean: f64,
    pub transactions_stddev: f64,
    pub busy_mean_ns: f64,
    pub busy_stddev_ns: f64,
}

/// Open loop: what became of every request due in the window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Account {
    pub due: u64,
    pub answered: u64,
    pub unanswered: u64,
    pub failed: u64,
    pub backlog_max: u64,
}

/// The measured window as a whole.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename = "finished")]
pub struct Finished {
    pub elapsed_ns: u64,
    pub transactions: u64,
    pub queries: u64,
    pub turns: u64,
    pub rows: u64,
    pub classes: Classes,
    pub bytes: Bytes,
    pub lookups: Option<Lookups>,
    pub errors: BTreeMap<String, u64>,
    pub reconnects: u64,
    pub open_loop: Option<Account>,
    pub fairness: Fairness,
    pub tcp: Option<TcpFacts>,
    pub cpu: Vec<CpuUse>,
    pub peak_memory_bytes: u64,
    pub histograms: Vec<Histogram>,
    /// Why the window ended early.
    pub interrupted: Option<Failed>,
    /// Of a page job that runs a script.
    pub services: Vec<ServiceUse>,
    /// Of a page job that asks an application: what its pages told, summed.
    pub told: BTreeMap<String, u64>,
}

/// The log of acknowledged keys is closed; comes before the job's last event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename = "acknowledgement_log")]
pub struct AcknowledgementLog {
    pub path: String,
    pub records: u64,
    pub acknowledged: u64,
    pub refused: u64,
    pub unknown: u64,
}

/// A watch job has asked once, and goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename = "watching")]
pub struct Watching {}

/// A watch job is done, and its log closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename = "watched")]
pub struct Watched {
    pub path: String,
    pub keys: u64,
    pub polls: u64,
    pub longest_poll_ns: u64,
    pub elapsed_ns: u64,
    pub interrupted: Option<Failed>,
}

/// A tables job goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename = "tables_progress")]
pub struct TablesProgress {
    pub done: u64,
    pub total: u64,
    pub doing: String,
}

/// A tables job is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename = "tables_done")]
pub struct TablesDone {
    pub rows: u64,
    pub elapsed_ns: u64,
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
