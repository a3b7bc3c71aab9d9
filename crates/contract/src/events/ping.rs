//! Events of a ping job.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Failed;

/// A part of opening a connection, during which the client waits for the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepName {
    /// The transport: of TCP its handshake.
    Connect,
    /// The first message of MySQL's server.
    Greeting,
    /// PostgreSQL's question whether the server encrypts.
    TlsRequest,
    Tls,
    Login,
}

/// A step that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Step {
    pub name: StepName,
    pub took_ns: u64,
    /// Times that the server was waited for, as its protocol has it; a Unix socket's connect has none.
    pub round_trips: u32,
}

/// A connection is open and logged in. `None` means: cannot be asked on this transport, or of this server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "opened")]
#[schemars(title = "Opened")]
pub struct Opened {
    /// In the order of time; together they are the whole opening but for the client's own work in between.
    pub steps: Vec<Step>,
    #[schemars(extend("enum" = ["unix", "inet", "inet6"]))]
    pub address_family: &'static str,
    /// `host:port`; `None`: a Unix socket.
    pub local_address: Option<String>,
    /// Socket path, or `host:port`.
    pub peer_address: String,
    /// `SO_PEERCRED`, Unix sockets only; 0: a process in another PID namespace.
    pub peer_pid: Option<u32>,
    /// As it said during the login. None: a key-value store.
    pub server_version: Option<String>,
    /// MySQL's number of the connection, PostgreSQL's process, as said during the login.
    pub connection_id: Option<u32>,
    /// How the password was proved; `none`: it was not asked for.
    pub auth_method: String,
    pub tls_version: Option<String>,
    pub tls_cipher: Option<String>,
    pub tls_group: Option<String>,
    pub tls_resumed: bool,
    /// The kernel's own measure of TCP's handshake, from before anything else was sent.
    pub handshake_rtt_ns: Option<u64>,
    /// SYNs that were sent again.
    pub syn_retransmits: Option<u32>,
    /// Largest packet that the path carries, as far as the kernel knows.
    pub path_mtu: Option<u32>,
}

/// A connection could not be opened; the steps before `step` have ended well.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "not_opened")]
#[schemars(title = "NotOpened")]
pub struct NotOpened {
    pub steps: Vec<Step>,
    pub step: StepName,
    /// From the beginning of `step` to the failure.
    pub waited_ns: u64,
    /// The time limit of the step ended it.
    pub timed_out: bool,
    /// SYNs that were sent again.
    pub syn_retransmits: Option<u32>,
    pub failure: Failed,
}

/// The answers to an `ask`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "asked")]
#[schemars(title = "Asked")]
pub struct Asked {
    /// When the first round began, by the monotonic clock.
    pub began_ns: u64,
    /// How much later that was than asked for.
    pub late_ns: u64,
    /// For each request, its rounds in order: from before it is sent until the last byte of its answer was received.
    pub latencies_ns: Vec<Vec<u64>>,
    /// For each request, the server's first refusal of it. A refusal is an answer, and timed.
    pub refusals: Vec<Option<String>>,
    /// What ended the connection, after the rounds given here.
    pub lost: Option<Failed>,
    /// The kernel's smallest round trip of this connection. It may hold the server's time: an acknowledgement can ride on an answer.
    pub min_rtt_ns: Option<u64>,
    /// Segments sent again since the connection began.
    pub retransmits: Option<u64>,
}

/// The answer to a `fetch`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "fetched")]
#[schemars(title = "Fetched")]
pub struct Fetched {
    /// From before the request is sent to the last byte of its answer, and to the first.
    pub took_ns: u64,
    pub first_byte_ns: u64,
    /// Bytes of the answer as the socket gave them.
    pub bytes: u64,
    /// Of a key-value store: a row for each line or element.
    pub rows: Vec<Vec<Option<String>>>,
    pub refusal: Option<String>,
    /// What ended the connection instead.
    pub lost: Option<Failed>,
}
