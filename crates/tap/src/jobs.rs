//! Jobs, commands and events of the taps. Unknown fields are errors, as they break the contract.

use std::collections::BTreeMap;

use howfar_contract::jobs::{Listen, Target};
use howfar_contract::{FailCode, Failed};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Longest round trip that can be added.
const MAX_DELAY_NS: u64 = 60_000_000_000;

/// Pass connections on to a server, with an added delay a round trip. Lives until stdin ends.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TapJob {
    #[serde(rename = "job")]
    #[schemars(extend("const" = "tap"))]
    _job: String,
    #[serde(rename = "version")]
    #[schemars(extend("const" = 2))]
    _version: u32,
    pub(crate) listen: Listen,
    /// Everybody may connect to the listening socket: the server itself decides who may.
    pub(crate) server: Target,
}

/// Take the counts and begin new ones, with another delay.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TapDelay {
    #[serde(rename = "command")]
    #[schemars(extend("const" = "tap_delay"))]
    _command: String,
    /// Added to each round trip, half of it in each direction.
    #[schemars(range(max = 60_000_000_000_u64))]
    pub(crate) delay_ns: u64,
}

/// Parse a later line on stdin.
pub(crate) fn parse_command<C: DeserializeOwned>(line: &str) -> Result<C, Failed> {
    serde_json::from_str(line).map_err(|error| {
        Failed::bad_job(format!("the command does not follow the contract: {error}"))
    })
}

impl TapDelay {
    /// Parse a command and check its bounds.
    pub(crate) fn parse(line: &str) -> Result<Self, Failed> {
        let command: Self = parse_command(line)?;
        if command.delay_ns > MAX_DELAY_NS {
            return Err(Failed::new(
                FailCode::BadJob,
                "the job does not follow the contract: delay_ns must be at most a minute"
                    .to_owned(),
                "Correct the option that gave this value.",
            ));
        }
        Ok(command)
    }
}

/// Clients may connect.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "tap_ready")]
#[schemars(title = "TapReady")]
pub(crate) struct TapReady {
    /// None: a Unix socket.
    pub(crate) port: Option<u16>,
}

/// What passed since the last command.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "tap_counts")]
#[schemars(title = "TapCounts")]
pub(crate) struct TapCounts {
    pub(crate) connections: u64,
    /// Connections that the tap could not make to the server, and why the last one failed.
    pub(crate) refused: u64,
    pub(crate) refusal: Option<String>,
    /// Connections that are open now.
    pub(crate) open: u64,
    /// A run of bytes to the server that bytes to the client answer.
    pub(crate) round_trips: u64,
    pub(crate) bytes_to_server: u64,
    pub(crate) bytes_to_client: u64,
    /// How long a round trip was held in both directions together, in the mean; 0 without one.
    pub(crate) held_ns: u64,
}

/// Pass connections on to a server and record what passes. Outlives its stdin: it goes on, without recording, until no connection is
/// open and the application has ended.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecordJob {
    #[serde(rename = "job")]
    #[schemars(extend("const" = "record"))]
    _job: String,
    #[serde(rename = "version")]
    #[schemars(extend("const" = 2))]
    _version: u32,
    pub(crate) listen: Listen,
    pub(crate) server: Target,
    /// What stays in the names of pages, of HTTP: parameters of the query with their values, and parts of the path, which begin with `/`.
    #[serde(default)]
    pub(crate) page_by: Vec<String>,
}

/// A command to a recorder while it runs.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, tag = "command", rename_all = "snake_case")]
pub(crate) enum RecordCommand {
    /// The application is in this mount namespace: as long as that has a process, connections are passed on.
    #[schemars(title = "RecordFor")]
    RecordFor { namespace: u64 },
    /// The recording is complete: write what is left and say how it ended. Connections are passed on as before.
    #[schemars(title = "RecordFinish")]
    RecordFinish {},
}

/// In which part of a connection's life.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "RoundTripPhase")]
pub(crate) enum Phase {
    Connect,
    Operation,
    /// Inside TLS, soon after the handshake: login or operation.
    Hidden,
    Close,
}

impl From<howfar_record::Phase> for Phase {
    fn from(phase: howfar_record::Phase) -> Self {
        match phase {
            howfar_record::Phase::Connect => Self::Connect,
            howfar_record::Phase::Operation => Self::Operation,
            howfar_record::Phase::Hidden => Self::Hidden,
            howfar_record::Phase::Close => Self::Close,
        }
    }
}

/// A connection that has ended, or was open when the recording ended.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct RecordedConnection {
    pub(crate) id: u64,
    pub(crate) protocol: &'static str,
    pub(crate) opened_ns: u64,
    pub(crate) closed_ns: Option<u64>,
    pub(crate) pid: Option<i32>,
    pub(crate) uid: Option<u32>,
    pub(crate) tls: bool,
    pub(crate) login_round_trips: u32,
    pub(crate) login_ns: u64,
}

/// A statement without its literals, or a command's name.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct RecordedDigest {
    pub(crate) id: u64,
    pub(crate) protocol: &'static str,
    pub(crate) text: String,
}

/// A run of bytes to the server, and the run that answers it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct RecordedRoundTrip {
    pub(crate) id: u64,
    pub(crate) connection_id: u64,
    pub(crate) begun_ns: u64,
    pub(crate) sent_ns: u64,
    pub(crate) answered_ns: u64,
    pub(crate) ended_ns: u64,
    pub(crate) bytes_to_server: u64,
    pub(crate) bytes_to_client: u64,
    pub(crate) requests: u32,
    pub(crate) command: &'static str,
    pub(crate) digest_id: Option<u64>,
    /// A salted hash of the literals.
    pub(crate) keys: Option<i64>,
    pub(crate) phase: Phase,
    pub(crate) rows: Option<u64>,
    pub(crate) failed: bool,
}

/// What came since the last such event.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "recorded")]
#[schemars(title = "Recorded")]
pub(crate) struct Recorded {
    pub(crate) connections: Vec<RecordedConnection>,
    pub(crate) digests: Vec<RecordedDigest>,
    pub(crate) round_trips: Vec<RecordedRoundTrip>,
}

impl Recorded {
    pub(crate) fn is_empty(&self) -> bool {
        self.connections.is_empty() && self.digests.is_empty() && self.round_trips.is_empty()
    }
}

/// The recording's last event.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "record_ended")]
#[schemars(title = "RecordEnded")]
pub(crate) struct RecordEnded {
    /// Every request that was read, also those that shared a flight.
    pub(crate) commands: BTreeMap<&'static str, u64>,
    /// What is not known, by reason.
    pub(crate) unknown: BTreeMap<&'static str, u64>,
    /// Bytes taken from one side and given to the other. Equal: all that came went on.
    pub(crate) taken_to_server: u64,
    pub(crate) taken_to_client: u64,
    pub(crate) passed_to_server: u64,
    pub(crate) passed_to_client: u64,
    /// CRC-32 of the bytes of each connection, of all connections combined by exclusive or.
    pub(crate) crc32_to_server: u32,
    pub(crate) crc32_to_client: u32,
    /// Connections that are open.
    pub(crate) open: u64,
    pub(crate) refused: u64,
    pub(crate) refusal: Option<String>,
    /// The process that listens on the server's Unix socket; 0: in no namespace that the tap sees.
    pub(crate) server_pid: Option<i32>,
    /// Why the recording ended before the traffic did.
    pub(crate) stopped: Option<String>,
    /// A second process would go on with the connections if this one were killed.
    pub(crate) survives_kill: bool,
}

/// Record what packets carry: of a file, or of a capture that is still being written.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PacketsJob {
    #[serde(rename = "job")]
    #[schemars(extend("const" = "packets"))]
    _job: String,
    #[serde(rename = "version")]
    #[schemars(extend("const" = 2))]
    _version: u32,
    /// A file, pipe or descriptor with packets in pcap or pcapng.
    pub(crate) path: String,
    /// The server's.
    #[schemars(range(min = 1))]
    pub(crate) port: u16,
    /// None: a server of any address.
    pub(crate) address: Option<String>,
    /// Taken off the packets' times.
    pub(crate) epoch_ns: u64,
}

/// The last event of a recording from packets.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(tag = "event", rename = "packets_ended")]
#[schemars(title = "PacketsEnded")]
pub(crate) struct PacketsEnded {
    pub(crate) commands: BTreeMap<&'static str, u64>,
    pub(crate) unknown: BTreeMap<String, u64>,
    /// Packets of the server's connections.
    pub(crate) packets: u64,
    /// Requests for a connection (SYN) that were sent again because no answer had come.
    pub(crate) repeated_syns: u64,
    /// How long their connections waited for them.
    pub(crate) repeated_syns_ns: u64,
    /// All other packets, by what they are, as "packets are" may stand before it.
    pub(crate) skipped: BTreeMap<String, u64>,
    /// Bytes that passed and were not captured.
    pub(crate) missing: u64,
}
