//! Events of a load job, as `messages.py` defines them. Times are nanoseconds, sizes bytes.

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
    pub server_connection_id: u32,
    pub auth_plugin: String,
    pub protocol_mode: &'static str,
    pub tls_version: Option<String>,
    pub tls_cipher: Option<String>,
    pub compression: Option<String>,
    pub tcp_mss: Option<u32>,
    pub tcp_nodelay: Option<bool>,
    pub congestion_control: Option<String>,
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
}

/// The measured window begins; what came before was warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename = "measuring")]
pub struct Measuring {
    pub unix_time_ns: u64,
    pub warmup_transactions: u64,
}

/// One slice of the measured window; a time series for eyes, never a sample for statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename = "interval")]
pub struct Interval {
    pub start_ns: u64,
    pub length_ns: u64,
    pub transactions: u64,
    pub queries: u64,
    pub errors: u64,
    pub p50_ns: u64,
    pub p95_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
}

/// Protocol bytes as written to and read from the socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Bytes {
    pub to_server: u64,
    pub to_client: u64,
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

/// The measured window as a whole.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename = "finished")]
pub struct Finished {
    pub elapsed_ns: u64,
    pub transactions: u64,
    pub queries: u64,
    pub turns: u64,
    pub rows: u64,
    pub bytes: Bytes,
    pub errors: BTreeMap<String, u64>,
    pub cpu: Vec<CpuUse>,
    pub histograms: Vec<Histogram>,
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
