//! Events that a ping job writes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Failed;

/// A step of opening a connection, in which the client waits for the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepName {
    /// Connecting the socket; for TCP, the three-way handshake.
    Connect,
    /// Waiting for the first packet of a MySQL server.
    Greeting,
    /// PostgreSQL's `SSLRequest` and its answer.
    TlsRequest,
    Tls,
    Login,
}

/// A completed step of opening a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Step {
    pub name: StepName,
    pub took_ns: u64,
    /// Round trips of the step according to its protocol. Connecting a Unix socket takes none.
    pub round_trips: u32,
}

/// A connection is open and logged in. `None` means that a value is not available on this transport or from this server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "opened")]
#[schemars(title = "Opened")]
pub struct Opened {
    /// Steps in the order of their execution. Apart from the client's own work between them, they make up the whole time of opening
    /// the connection.
    pub steps: Vec<Step>,
    #[schemars(extend("enum" = ["unix", "inet", "inet6"]))]
    pub address_family: &'static str,
    /// Local `host:port`. None: a Unix socket.
    pub local_address: Option<String>,
    /// Path of the Unix socket, or `host:port`.
    pub peer_address: String,
    /// Process ID of the server, from `SO_PEERCRED`; 0 if the server is in another PID namespace. None: not a Unix socket.
    pub peer_pid: Option<u32>,
    /// Version that the server reported during the login. None: a key-value store.
    pub server_version: Option<String>,
    /// MySQL's connection ID, or the process ID of PostgreSQL's backend, as reported during the login.
    pub connection_id: Option<u32>,
    /// Authentication method; `none` if the server asked for no password.
    pub auth_method: String,
    pub tls_version: Option<String>,
    pub tls_cipher: Option<String>,
    pub tls_group: Option<String>,
    pub tls_resumed: bool,
    /// RTT of the TCP handshake as the kernel measured it, read before anything else was sent.
    pub handshake_rtt_ns: Option<u64>,
    /// Number of retransmitted SYN segments.
    pub syn_retransmits: Option<u32>,
    /// Path MTU in bytes, as far as the kernel knows it.
    pub path_mtu: Option<u32>,
}

/// A connection could not be opened. `steps` are the steps that succeeded; `step` is the one that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "not_opened")]
#[schemars(title = "NotOpened")]
pub struct NotOpened {
    pub steps: Vec<Step>,
    pub step: StepName,
    /// Time from the start of `step` to the failure.
    pub waited_ns: u64,
    /// Whether the step exceeded its time limit.
    pub timed_out: bool,
    /// Number of retransmitted SYN segments.
    pub syn_retransmits: Option<u32>,
    pub failure: Failed,
}

/// The measured latencies of an `ask` command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "asked")]
#[schemars(title = "Asked")]
pub struct Asked {
    /// Time at which the first round began, on the monotonic clock.
    pub began_ns: u64,
    /// Delay of the first round against the requested time.
    pub late_ns: u64,
    /// Latencies of each request, in the order of the rounds: from before the request is sent until the last byte of its answer is
    /// received.
    pub latencies_ns: Vec<Vec<u64>>,
    /// First error that the server returned for each request, or None. The latency of an error answer is recorded like any other.
    pub refusals: Vec<Option<String>>,
    /// Failure that ended the connection after the recorded rounds, if any.
    pub lost: Option<Failed>,
    /// Smallest RTT that the kernel has measured on this connection. It may include processing time of the server, because an
    /// acknowledgement can be sent together with an answer.
    pub min_rtt_ns: Option<u64>,
    /// Segments that were retransmitted since the connection was opened.
    pub retransmits: Option<u64>,
}

/// The answer to a `fetch` command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "fetched")]
#[schemars(title = "Fetched")]
pub struct Fetched {
    /// Time from before the request is sent to the last byte of its answer.
    pub took_ns: u64,
    /// Time from before the request is sent to the first byte of its answer.
    pub first_byte_ns: u64,
    /// Bytes of the answer as received from the socket.
    pub bytes: u64,
    /// Rows of the answer; for a key-value store, one row for each line or array element.
    pub rows: Vec<Vec<Option<String>>>,
    pub refusal: Option<String>,
    /// Failure that ended the connection before the answer was complete, if any.
    pub lost: Option<Failed>,
}
